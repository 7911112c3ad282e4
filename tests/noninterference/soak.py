"""The harness at length, with fresh seeds: ``make soak`` (an hour), ``make soak SOAK_S=600`` (ten minutes).

Prints what was tried and what was found, and ends by itself; exit code 1 where something was found, with the seed that
finds it again (``python -m tests.noninterference.soak --seed N --body NAME``).
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.noninterference import bodies
from tests.noninterference.hospital import MakePair, pairs
from tests.noninterference.play import Draw
from tests.noninterference.questions import NAMES

AT_ONCE = 25  # examples between two looks at the clock
REPORT_S = 60.0
Body = Callable[[MakePair, Draw], Counter[str]]


def all_bodies() -> dict[str, Body]:
    """Conversations as often as all statistics together."""
    found: dict[str, Body] = {}
    for name in NAMES:
        found[f"conversation before {name}"] = bodies.conversation
        found[f"one sum of {name}"] = lambda make, draw, name=name: bodies.one_sum(make, draw, name)  # type: ignore[misc]
        found[f"one unit of {name}"] = lambda make, draw, name=name: bodies.one_unit(make, draw, name)  # type: ignore[misc]
    return found


def tried(make: MakePair, body: Body, number: int, shrink: bool) -> Counter[str]:
    """AT_ONCE examples from a seed. Raises what was found, shrunk where asked for."""
    counted: Counter[str] = Counter()
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @seed(number)
    @settings(
        deadline=None,
        database=None,
        max_examples=AT_ONCE,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(data=st.data())
    def play(data: st.DataObject) -> None:
        counted["examples"] += 1
        counted.update(body(make, data.draw))

    play()
    return counted


def soak(seconds: float) -> int:
    """Runs until the time is over; how many bodies found something."""
    end, told, found = time.monotonic() + seconds, time.monotonic(), 0
    counted: Counter[str] = Counter()
    with pairs() as make:
        for name, body in _turns():
            if time.monotonic() > end:
                break
            number = secrets.randbits(48)
            try:
                counted += tried(make, body, number, shrink=False)
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                found += 1
                print(f"FOUND by {name!r}: again with --seed {number} --body {name!r}", flush=True)
                traceback.print_exc()
            if time.monotonic() - told > REPORT_S:
                told = time.monotonic()
                print(f"{end - told:6.0f} s left: {_summary(counted)}; findings: {found}", flush=True)
    print(f"tried {_summary(counted)}")
    for name, count in sorted(counted.items()):
        print(f"  {count:9,} {name}")
    print(f"findings: {found}")
    return found


def _turns() -> Iterator[tuple[str, Body]]:
    return cycle(all_bodies().items())


def _summary(counted: Counter[str]) -> str:
    return f"{counted['examples']:,} examples, {counted['messages']:,} messages, {counted['masked vectors']:,} vectors"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_S", "3600")))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--body")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.seed is not None:
        with pairs() as make:
            print(tried(make, all_bodies()[options.body], options.seed, shrink=True))
        return 0
    return 1 if soak(options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
