"""``undersong audit`` with a hostile coordinator beside it.

``python -m tests.noninterference.audit TASK.toml --examples 60`` takes the options of ``undersong audit`` too. It talks
to two copies of a party that differ in their records: whole conversations, and sums of the statistics of the task's
plan. Exit code 3 also if the copies' answers differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tests.noninterference import rounds
from undersong.auditing import Played
from undersong.cli import app
from undersong_common import entry
from undersong_protocol.agreement.plan import Plan

EXAMPLES = 60  # conversations per body


def conversations(plan: Plan, seed: int, *, examples: int) -> Sequence[partial[Played]]:
    """Conversations for a plan, one function per body."""
    bodies = rounds.bodies_of([planned.statistic for planned in plan.sums])
    return [partial(rounds.play, body, examples=examples, seed=seed) for body in bodies]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    own, options = parser.parse_known_args()
    asked = partial(conversations, examples=own.examples)
    entry.run(lambda: app(["audit", *options], prog_name="undersong", standalone_mode=False, obj=asked))


if __name__ == "__main__":
    main()
