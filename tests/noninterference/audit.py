"""``undersong audit`` with a hostile coordinator beside it.

``python -m tests.noninterference.audit TASK.toml --examples 60`` takes the options of ``undersong audit`` too. It talks
to two copies of a party that differ in their records: whole conversations, and sums of the statistics of the task's
plan. Exit code 3 also if the copies' answers differ.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tests.noninterference import rounds
from tests.noninterference.rounds import Played
from undersong.auditing import run as auditing
from undersong.auditing.verdict import AuditReport, AuditSettings
from undersong.cli import app
from undersong_common.program import entry
from undersong_protocol.agreement.plan import Plan
from undersong_server.progress import Progress
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

EXAMPLES = 60  # conversations per body


@dataclass(frozen=True, kw_only=True)
class WholeReport(AuditReport):
    """An audit's report with the findings of the conversations."""

    played: tuple[Played, ...]

    @property
    def faults(self) -> list[str]:
        found = [f"{each.body}: {each.found.partition(chr(10))[0]}" for each in self.played if each.found]
        return [*super().faults, *found]

    def lines(self) -> list[str]:
        said = (
            f"  a hostile coordinator sent {sum(each.messages for each in self.played):,} messages to two copies of a"
            f" party that differ in their records, in {sum(each.examples for each in self.played):,} conversations;"
            f" {sum(each.vectors for each in self.played):,} masked vectors came"
        )
        same = ["  the copies' answers are the same but for these vectors"]
        return [said, *([] if any(each.found for each in self.played) else same), *super().lines()]


def conversations(plan: Plan, seed: int, *, examples: int) -> Sequence[partial[Played]]:
    """Conversations for a plan, one function per body."""
    bodies = rounds.bodies_of([planned.statistic for planned in plan.sums])
    return [partial(rounds.play, body, examples=examples, seed=seed) for body in bodies]


def audit(settings: AuditSettings, progress: Progress, *, examples: int) -> WholeReport:
    """Attacks runs of the task, and plays the conversations."""
    found = auditing.audit(settings, progress)
    plan = plan_run(tasks.load(settings.task_file, list(settings.assignments))).plan
    games = conversations(plan, settings.seed, examples=examples)
    with ProcessPoolExecutor(settings.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(game) for game in games]
        played = []
        for done, each in enumerate(waiting):
            progress.update("conversations", done, len(games))
            played.append(each.result())
    return WholeReport(**vars(found), played=tuple(played))


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    own, options = parser.parse_known_args()
    asked = partial(audit, examples=own.examples)
    entry.run(lambda: app(["audit", *options], prog_name="undersong", standalone_mode=False, obj=asked))


if __name__ == "__main__":
    main()
