"""The harness at length, with fresh seeds: ``make soak`` (an hour), ``make soak SOAK_S=600`` (ten minutes).

Prints what was tried and what was found, and ends by itself; exit code 1 where something was found, with the seed that
finds it again (``python -m tests.noninterference.soak --seed N --body NAME``).
"""

import argparse
import logging
import os
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import cycle

from tests.noninterference.hospital import pairs
from tests.noninterference.rounds import Body, all_bodies, tried

AT_ONCE = 25  # examples between two looks at the clock
REPORT_S = 60.0


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
                counted += tried(make, body, number, examples=AT_ONCE)
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
            print(tried(make, all_bodies()[options.body], options.seed, examples=AT_ONCE, shrink=True))
        return 0
    return 1 if soak(options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
