"""Entry point ``undersong``: the server's commands, and the simulation that brings many parties onto one machine."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from undersong.run.options import ComparisonOptions, Engine
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.program import entry, logs
from undersong_common.program.options import with_options
from undersong_common.program.terminal import screen
from undersong_server.cli.app import app
from undersong_server.cli.options import (
    AsJson,
    Assignments,
    CacheFile,
    RayAddress,
    TaskFile,
    overrides,
    print_json,
    print_result,
    with_cache,
)


def audit(
    context: typer.Context,
    task_file: TaskFile,
    runs: Annotated[int, typer.Option(help="Whole simulations to attack.", min=2)] = 64,
    canaries: Annotated[int, typer.Option(help="Records that each run plants or not, by fair coins.", min=1)] = 16,
    samples: Annotated[
        int | None, typer.Option(help="Texts that a run writes (else as the task says, and takes its time).", min=1)
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the canaries and their coins; never of noise or keys.", min=0)] = 0,
    assignments: Assignments = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
) -> None:
    """Attacks real runs of a task with planted records; states what epsilon the attacks prove beside the promise.

    Exit code 3 if more is proven than was promised, or noise, sensitivity or coins are not the planned ones. From a
    source checkout, python -m tests.noninterference.audit also plays a hostile coordinator, with the same options.
    """
    from undersong.auditing import run as auditing
    from undersong.auditing.verdict import AuditSettings
    from undersong_server.cli.display import display

    task_assignments = [*([] if samples is None else [f"method.samples={samples}"]), *(assignments or ())]
    with display(quiet or as_json) as progress:
        report = (context.obj or auditing.audit)(
            AuditSettings(task_file, tuple(task_assignments), runs, canaries, seed, jobs), progress
        )
    print_result(report.to_json(), *report.lines(), as_json=as_json)
    if report.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)


__all__ = ("app", "main")

app.command()(audit)


@app.command()
def simulate(
    task_file: TaskFile,
    parties: Annotated[int | None, typer.Option(help="Deal one file to this many parties.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration over labels; inf: equal shares.")] = None,
    method: Annotated[str | None, typer.Option(help="Run another method than the task file's.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the whole run; inf is not private.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Output folder (else the task's output.dir).")] = None,
    assignments: Assignments = None,
    cache: CacheFile = None,
    engine: Annotated[
        Engine, typer.Option(help="flower is Flower's simulation engine, for hundreds of parties.")
    ] = "inprocess",
    ray: RayAddress = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: removes what the folder's last run wrote.")
    ] = False,
    insecure_noise_seed: Annotated[
        int | None, typer.Option(help="TESTS ONLY: reproducible noise; the output is marked as not private.", min=0)
    ] = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
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
    shorthand = overrides(parties=parties, alpha=alpha, method=method, epsilon=epsilon)
    task = Task.load(task_file, *with_cache(task_file, [*shorthand, *(assignments or ())], cache))
    with display(quiet or as_json) as progress:
        run = front.simulate(
            task,
            out,
            seed=seed,
            fresh=fresh,
            engine=engine,
            ray=ray,
            insecure_noise_seed=insecure_noise_seed,
            progress=progress,
        )
    if as_json:
        print_json(run.to_json())
    else:
        screen().print(run.screen())


@app.command()
@with_options(ComparisonOptions)
def compare(
    task_file: TaskFile,
    options: ComparisonOptions,
    engine: Annotated[
        Literal["processes", "ray"], typer.Option(help="What spreads the cells: this machine's processes, or Ray.")
    ] = "processes",
    ray_address: Annotated[
        str, typer.Option(help="Of a Ray cluster, with the same files under the same paths (else this machine).")
    ] = "",
    assignments: Assignments = None,
    as_json: AsJson = False,
    quiet: entry.Quiet = False,
    debug: entry.Debug = False,
) -> None:
    """Compares methods by what the panel's task models learn from their corpora; the same command continues.

    The folder has one table: another command with the same task adds its methods, budgets, sizes and seeds to it.
    """
    from undersong.library import functions as front
    from undersong.library.task_files import Task
    from undersong_server.cli.display import display

    if ray_address and engine != "ray":
        raise ConfigurationError("--ray-address without --engine ray", "add --engine ray")
    jobs = 1 if debug else options.jobs  # an error of another process has no traceback here
    options = replace(options, ray=ray_address if engine == "ray" else None, jobs=jobs)
    command = shlex.join(["undersong", *sys.argv[1:]])
    with display(quiet) as progress:
        comparison = front.compare_by(Task.load(task_file, *(assignments or ())), options, command, progress)
    print_result(comparison.to_json(), str(comparison), as_json=as_json)


def main() -> None:
    """Entry point of the command ``undersong``."""
    from undersong.run.author_errors import traceback_of

    entry.run(lambda: app(prog_name="undersong", standalone_mode=False), traceback_of)


if __name__ == "__main__":
    main()
