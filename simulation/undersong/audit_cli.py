"""``undersong audit`` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common import entry
from undersong_common.errors import PrivacyRefusal
from undersong_server.cli.options import AsJson, Assignments, TaskFile, print_json

if TYPE_CHECKING:
    from undersong.audit import AuditReport

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
    from undersong.audit import AuditSettings, no_conversations
    from undersong.audit import audit as attack
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
    from undersong.audit import OUTSIDE
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
