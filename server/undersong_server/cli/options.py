"""The options and arguments that several commands share, and how a command prints."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from undersong_common import drill
from undersong_common.errors import ConfigurationError
from undersong_common.printable import json_text, with_iso_times
from undersong_server import defaults
from undersong_server.cli import completion

DEFAULT_HOME = Path(defaults.HOME)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK.toml", help="The task file (`undersong init` writes one).")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the task file; repeatable.")
]
CacheFile = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FILE", help="Keep endpoints' answers here: what was asked before costs nothing."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help='Spread the work over a Ray cluster: HOST:PORT, "auto", or "local" for Ray on this machine.',
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def _marked(context: typer.Context, home: Path) -> Path:
    """Says before anything else, on standard error, that a coordinator is for rehearsals, where it is."""
    if not context.resilient_parsing:
        drill.announce(home / "coordinator.json", drill.COORDINATOR_WORDS)
    return home


HomeFolder = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="UNDERSONG_HOME",
        help="The coordinator's folder (or $UNDERSONG_HOME).",
        callback=_marked,
    ),
]
CoordinatorName = Annotated[str, typer.Option(help="The coordinator's name, as the parties read it.")]
Addresses = Annotated[
    list[str], typer.Option("--address", help="host:port by which parties reach it; repeat for several.")
]
Bind = Annotated[str, typer.Option(help="host:port to listen on; no party ever sees it.")]
Metrics = Annotated[str, typer.Option(help='host:port of metrics and health over HTTP; "" for none.')]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's name (`undersong run list`).", autocompletion=completion.run_names),
]


def overrides(
    *, parties: int | None = None, alpha: float | None = None, method: str | None = None, epsilon: float | None = None
) -> list[str]:
    """The usual overrides of a task file, which have options of their own, as ``section.key=value``."""
    given = {
        "federation.parties": parties,
        "federation.alpha": alpha,
        "method.name": None if method is None else f'"{method}"',
        "privacy.epsilon": epsilon,
    }
    return [f"{key}={_toml(value)}" for key, value in given.items() if value is not None]


def with_cache(task_file: Path, assignments: Sequence[str], cache: Path | None) -> list[str]:
    """The overrides, and the cache for each endpoint of the task that names none of its own."""
    if cache is None:
        return list(assignments)
    from undersong_server.runs import task as tasks

    generators = tasks.load(task_file, assignments).generators
    endpoints = [n for n, each in enumerate(generators) if each.lacks_cache]
    if not endpoints:
        raise ConfigurationError(
            f"--cache: {task_file} has no endpoint whose answers it could keep", 'leave it out; it is for kind "openai"'
        )
    return [*assignments, *(f"generators.{number}.cache={json.dumps(str(cache.absolute()))}" for number in endpoints)]


def _toml(value: object) -> str:
    return "inf" if isinstance(value, float) and math.isinf(value) else str(value)


def print_json(value: Any) -> None:
    """One JSON value on standard output, times as ISO 8601."""
    print(json_text(with_iso_times(value)))


def say_whether_served(home: Path) -> None:
    """Tells on standard error that nothing goes on, where that is so."""
    from undersong_server.operations import coordinator

    if not coordinator.is_served(home):
        print("nobody is serving: nothing goes on until `undersong coordinator serve` runs", file=sys.stderr)


def day(seconds: float) -> str:
    """Seconds since the epoch as a person here reads them."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
