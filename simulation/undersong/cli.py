"""Entry point ``undersong``: the server's commands, and the simulation that brings many parties onto one machine."""

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from undersong.run.options import ComparisonOptions, SimulationOptions
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.program import entry, logs
from undersong_common.program.options import Output, with_options
from undersong_common.program.terminal import screen
from undersong_server.cli.app import app
from undersong_server.cli.options import (
    Assignments,
    SimulationChanges,
    TaskChanges,
    TaskFile,
    print_json,
    print_result,
)


@dataclass(frozen=True)
class AttackOptions:
    """The extent of an audit: its simulations, its planted records, and where their coins begin."""

    runs: Annotated[int, typer.Option(help="Whole simulations to attack.", min=2)] = 64
    canaries: Annotated[int, typer.Option(help="Records that each run plants or not, by fair coins.", min=1)] = 16
    samples: Annotated[
        int | None, typer.Option(help="Texts that a run writes (else as the task says, and takes its time).", min=1)
    ] = None
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2
    seed: Annotated[int, typer.Option(help="Of the canaries and their coins; never of noise or keys.", min=0)] = 0


@with_options()
def audit(
    context: typer.Context,
    task_file: TaskFile,
    attack: AttackOptions,
    output: Output,
    assignments: Assignments = None,
) -> None:
    """Attacks real runs of a task with planted records; states what epsilon the attacks prove beside the promise.

    Exit code 3 if more is proven than was promised, or noise, sensitivity or coins are not the planned ones. From a
    source checkout, python -m tests.noninterference.audit also plays a hostile coordinator, with the same options.
    """
    from undersong.auditing import run as auditing
    from undersong.auditing.verdict import AuditSettings
    from undersong_server.cli.display import display

    if attack.samples is None:
        overrides = []
    else:
        overrides = [f"method.samples={attack.samples}"]
    settings = AuditSettings(
        task_file,
        (*overrides, *(assignments or ())),
        runs=attack.runs,
        canaries=attack.canaries,
        seed=attack.seed,
        jobs=attack.jobs,
    )
    with display(output.quiet or output.as_json) as progress:
        report = (context.obj or auditing.audit)(settings, progress)
    print_result(report.to_json(), *report.lines(), as_json=output.as_json)
    if report.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)


__all__ = ("app", "main")

app.command()(audit)


@app.command()
@with_options()
def simulate(
    task_file: TaskFile,
    shorthand: SimulationChanges,
    changes: TaskChanges,
    options: SimulationOptions,
    output: Output,
    out: Annotated[Path | None, typer.Option(help="Output folder (else the task's output.dir).")] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Log what happens, and tracebacks of authors' code (never private data).")
    ] = False,
) -> None:
    """Runs a task with every party on this machine. The same command continues a run that was stopped."""
    from undersong.library import functions as front
    from undersong.library.task_files import Task
    from undersong_server.cli.display import display

    packages = ("undersong_common", "undersong_protocol", "undersong_client", "undersong_server", "undersong")
    logs.to_stderr(packages if debug else (), as_json=False, debug=debug)
    task = Task.load(task_file, *changes.of(task_file, *shorthand.assignments()))
    with display(output.quiet or output.as_json) as progress:
        run = front.simulate(task, out, **asdict(options), progress=progress)
    if output.as_json:
        print_json(run.to_json())
    else:
        screen().print(run.screen())


@dataclass(frozen=True)
class CellEngine:
    """The processes that compute the cells of a comparison."""

    engine: Annotated[
        Literal["processes", "ray"], typer.Option(help="What spreads the cells: this machine's processes, or Ray.")
    ] = "processes"
    ray_address: Annotated[
        str, typer.Option(help="Of a Ray cluster, with the same files under the same paths (else this machine).")
    ] = ""

    def ray(self) -> str | None:
        """Returns the address of the cluster, None for processes. Raises ConfigurationError for an unused address."""
        if self.ray_address and self.engine != "ray":
            raise ConfigurationError(
                "--ray-address is given without --engine ray, and only Ray uses an address", "add --engine ray"
            )
        if self.engine == "ray":
            return self.ray_address
        return None


@app.command()
@with_options()
def compare(
    task_file: TaskFile,
    options: ComparisonOptions,
    cells: CellEngine,
    output: Output,
    assignments: Assignments = None,
    debug: entry.Debug = False,
) -> None:
    """Compares methods by what the panel's task models learn from their corpora; the same command continues.

    The folder has one table: another command with the same task adds its methods, budgets, sizes and seeds to it.
    """
    from undersong.library import functions as front
    from undersong.library.task_files import Task
    from undersong_server.cli.display import display

    jobs = 1 if debug else options.jobs  # An error in another process would have no traceback here.
    options = replace(options, ray=cells.ray(), jobs=jobs)
    command = shlex.join(["undersong", *sys.argv[1:]])
    with display(output.quiet) as progress:
        comparison = front.compare_by(Task.load(task_file, *(assignments or ())), options, command, progress)
    print_result(comparison.to_json(), str(comparison), as_json=output.as_json)


def main() -> None:
    """Entry point of the command ``undersong``."""
    from undersong.run.author_errors import traceback_of

    entry.run(lambda: app(prog_name="undersong", standalone_mode=False), traceback_of)


if __name__ == "__main__":
    main()
