"""Entry point ``undersong``: the server's commands, and the simulation that brings many parties onto one machine."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from undersong.options import ComparisonOptions, Engine
from undersong_common import entry, logs
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.rows import screen
from undersong_server.cli.app import app
from undersong_server.cli.options import (
    AsJson,
    Assignments,
    CacheFile,
    RayAddress,
    TaskFile,
    overrides,
    print_json,
    with_cache,
    with_options,
)

if TYPE_CHECKING:
    from undersong.auditing import AuditReport

MEANING = (
    "An attack that fails proves nothing: these are lower bounds, and no number of runs proves the promise kept.\n"
    "One that succeeds beyond the promise refutes it."
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
    from undersong.auditing import AuditSettings, no_conversations
    from undersong.auditing import audit as attack
    from undersong_server.cli.display import display

    given = [*([] if samples is None else [f"method.samples={samples}"]), *(assignments or ())]
    with display(quiet or as_json) as progress:
        settings = AuditSettings(task_file, tuple(given), runs, canaries, seed, jobs)
        found = attack(settings, progress, context.obj or no_conversations)
    if as_json:
        print_json(found.to_json())
    else:
        print("\n".join(lines(found)))
    if found.faults:
        raise typer.Exit(PrivacyRefusal.exit_code)


def _refutable(found: AuditReport) -> str:
    ways = (found.refutable_by_noise, "by the measured noise"), (found.refutable_by_attack, "by the first attack")
    return ", ".join(f"{'none' if epsilon is None else f'{epsilon:.3g}'} {how}" for epsilon, how in ways)


def lines(found: AuditReport) -> list[str]:
    """The report as a person reads it."""
    from undersong.auditing import OUTSIDE
    from undersong_server.evaluation.intervals import CONFIDENCE

    shown = [
        f"{found.task!r} with {found.method}: promised epsilon {found.epsilon:g} at delta {found.delta:g}"
        f" per {found.unit}",
        f"{found.runs} runs, {found.canaries} canaries each"
        + (f"; set for the audit: {', '.join(found.overrides)}" if found.overrides else ""),
    ]
    for verdict in found.verdicts:
        seen = verdict.detection
        shown.append(
            f"  {verdict.attack}: proves epsilon >= {verdict.epsilon:.3g}"
            f" ({seen.hits} of {seen.present} planted records found, {seen.false_alarms} of {seen.absent} false"
            f" alarms; so many runs prove {verdict.most:.3g} at most)"
        )
    shown.append(f"  all of these hold together with {CONFIDENCE:.1%} confidence, over runs")
    shown.append(f"  a planted record moves its score by {found.signal:.0%} of what the promise allows")
    if found.noise is not None:
        shown.append(f"  the noise in the opened sums is {found.noise[0]:.3f} of what the parties must draw together")
    shown.append(f"  the largest contribution of a planted record is {found.largest:.6g} of the declared sensitivity")
    shown.append(
        f"  of rows {OUTSIDE:g} times their bound, {found.clamp[0]:.6g} to {found.clamp[1]:.6g} of that bound is left"
    )
    shown.append(f"smallest epsilon that this audit could have refuted, by too little noise: {_refutable(found)}")
    if found.played:
        shown.append(
            f"  a hostile coordinator sent {sum(each.messages for each in found.played):,} messages to two copies of a"
            f" party that differ in their records, in {sum(each.examples for each in found.played):,} conversations;"
            f" {sum(each.vectors for each in found.played):,} masked vectors came"
        )
        if not any(each.found for each in found.played):
            shown.append("  the copies' answers are the same but for these vectors")
    shown += [f"REFUTED: {fault}" for fault in found.faults] or ["nothing refutes the promise"]
    return [*shown, MEANING]


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
    debug: Annotated[bool, typer.Option("--debug", help="Log what happens (never private data).")] = False,
) -> None:
    """Runs a task with every party on this machine. The same command continues a run that was stopped."""
    from undersong import front
    from undersong.task_files import Task
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
) -> None:
    """Compares methods by what the panel's task models learn from their corpora; the same command continues.

    The folder has one table: another command with the same task adds its methods, budgets, sizes and seeds to it.
    """
    from undersong import front
    from undersong.task_files import Task
    from undersong_server.cli.display import display

    if ray_address and engine != "ray":
        raise ConfigurationError("--ray-address without --engine ray", "add --engine ray")
    options = replace(options, ray=ray_address if engine == "ray" else None)
    command = shlex.join(["undersong", *sys.argv[1:]])
    with display(quiet) as progress:
        comparison = front.compare_by(Task.load(task_file, *(assignments or ())), options, command, progress)
    if as_json:
        print_json(comparison.to_json())
    else:
        print(comparison)


def main() -> None:
    """Entry point."""
    entry.run(lambda: app(prog_name="undersong", standalone_mode=False))


if __name__ == "__main__":
    main()
