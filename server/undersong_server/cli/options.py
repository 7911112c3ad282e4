"""Options and arguments that several commands share, and the output of commands."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.models.model_files import WEIGHTS_MISSING, has_packaged_weights
from undersong_common.printable import json_text, with_iso_times
from undersong_common.program import drill
from undersong_common.program.machine import rights_that_pass
from undersong_common.program.owner import check_owner, work_in
from undersong_common.program.terminal import screen, show_rows
from undersong_server import defaults, operations

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_HOME = Path(defaults.HOME)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK.toml", help="The task file (`undersong init` writes one).")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the task file; repeatable.")
]


@dataclass(frozen=True)
class TaskChanges:
    """Keys of the task file that a command sets, and a cache for its endpoints."""

    assignments: Assignments = None
    cache: Annotated[
        Path | None,
        typer.Option("--cache", metavar="FILE", help="Keep endpoints' answers here: repeated requests cost nothing."),
    ] = None

    def of(self, task_file: Path | None, *shorthand: str) -> list[str]:
        """Returns every assignment for a task file, those of ``shorthand`` first; without a file, no cache is set.

        Raises ConfigurationError if there is a cache and no endpoint.
        """
        assignments = [*shorthand, *(self.assignments or ())]
        if task_file is None:
            return assignments
        return with_cache(task_file, assignments, self.cache)


@dataclass(frozen=True)
class RunChanges:
    """Options that stand for keys of the task file."""

    parties: Annotated[int | None, typer.Option(help="Deal one file to this many parties.")] = None
    method: Annotated[str | None, typer.Option(help="Another method than the task file's.")] = None
    epsilon: Annotated[float | None, typer.Option(help="Budget of the whole run; inf is not private.")] = None

    def assignments(self) -> list[str]:
        """Returns the options that are not None as ``section.key=value``."""
        return _set_keys(
            {
                "federation.parties": self.parties,
                "method.name": None if self.method is None else f'"{self.method}"',
                "privacy.epsilon": self.epsilon,
            }
        )


@dataclass(frozen=True)
class SimulationChanges(RunChanges):
    """Options of a simulation that stand for keys of the task file."""

    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration over labels; inf: equal shares.")] = None

    def assignments(self) -> list[str]:
        """Returns the options that are not None as ``section.key=value``."""
        return [*super().assignments(), *_set_keys({"federation.alpha": self.alpha})]


def _set_keys(values: Mapping[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items() if value is not None]


RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Spread the work over a Ray cluster: HOST:PORT, "auto", or "local" for Ray on this machine.',
    ),
]


# Commands that write nothing into the coordinator's folder, so that any account that can read it may run them.
READING_COMMANDS = frozenset(
    (
        *("run watch", "run list", "run show", "run compare", "run search", "run generators"),
        *("export", "verify", "dossier", "parties"),
        *("coordinator show", "coordinator healthy", "coordinator backup", "console audit", "console support"),
    )
)
# Commands that a systemd unit runs: missing rights, which a root shell may have taken, end them with the exit code by
# which the unit starts them again.
SERVING_COMMANDS = frozenset(("coordinator serve", "console serve"))


def _check_home(context: typer.Context, home: Path) -> Path:
    """Refuses to write into another account's folder; says first if the coordinator is one for rehearsals only."""
    if not context.resilient_parsing:
        work_in(home)
        command = " ".join(context.command_path.split()[1:])
        if command not in READING_COMMANDS:
            with rights_that_pass() if command in SERVING_COMMANDS else nullcontext():
                check_owner(home, "coordinator.json")
        drill.announce(home / "coordinator.json", drill.COORDINATOR_WORDS)
    return home


def _run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the names of the runs in the folder that --home or $UNDERSONG_HOME names."""
    folder = Path(context.params.get("home") or defaults.HOME) / "runs"
    return sorted(run.name for run in folder.glob("*") if run.name.startswith(incomplete))


HomeFolder = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="UNDERSONG_HOME",
        help="The coordinator's folder (or $UNDERSONG_HOME).",
        callback=_check_home,
        readable=False,  # check_owner names the folder's account, which says more than "not readable".
    ),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's name (`undersong run list`).", autocompletion=_run_names),
]


def with_cache(task_file: Path, assignments: Sequence[str], cache: Path | None) -> list[str]:
    """Returns ``assignments`` with overrides that set ``cache`` for each endpoint of the task that has none.

    Raises ConfigurationError if there is a cache and no such endpoint.
    """
    if cache is None:
        return list(assignments)
    from undersong_server.runs import task as tasks

    generators = tasks.load(task_file, assignments).generators
    endpoint_numbers = [endpoint_number for endpoint_number, settings in enumerate(generators) if settings.lacks_cache]
    if not endpoint_numbers:
        raise ConfigurationError(
            f"--cache: {task_file} has no endpoint with answers to keep",
            'leave it out; it is for kind "openai"',
            code="no-endpoint",
        )
    return [
        *assignments,
        *(
            f"generators.{endpoint_number}.cache={json.dumps(str(cache.absolute()))}"
            for endpoint_number in endpoint_numbers
        ),
    ]


def print_json(value: Any) -> None:
    """Prints a value or dataclass as JSON on standard output, times as ISO 8601."""
    from pydantic_core import to_jsonable_python

    print(json_text(with_iso_times(to_jsonable_python(value))))


def print_result(
    value: Any, *shown: "str | RenderableType", as_json: bool, quiet: bool = False, brief: str = ""
) -> None:
    """Prints a command's result: ``value`` as JSON, else lines and tables, or with --quiet ``brief`` alone."""
    if as_json:
        print_json(value)
    elif not quiet:
        for part in shown:
            show = print if isinstance(part, str) else screen().print
            show(part)
    elif brief:
        print(brief)


def print_table(
    value: Any, headings: Sequence[str], rows: Sequence[Sequence[str]], empty: str, *, as_json: bool
) -> None:
    """Prints a list: ``value`` as JSON, else a table, or the sentence ``empty`` if there are no rows."""
    if as_json:
        print_json(value)
    else:
        show_rows(headings, rows, empty)


def warn_if_not_served(home: Path) -> None:
    """Warns on standard error if no process serves the coordinator."""
    if not operations.coordinator.is_served(home):
        print("the coordinator is not running: start it with `undersong coordinator serve`", file=sys.stderr)


def warn_of_missing_weights() -> None:
    """Warns on standard error if this machine has no weights of the packaged embedder, which most tasks use."""
    if not has_packaged_weights():
        problem, remedy = WEIGHTS_MISSING
        print(f"warning: {problem}, without which most runs are refused\n  remedy: {remedy}", file=sys.stderr)


def day(epoch_s: float) -> str:
    """Formats seconds since the epoch as date and minute in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch_s))
