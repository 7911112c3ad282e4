"""Teachers of one party: 100 of them over 5 000 records have to be trained in under 60 s on two cores.

    python -m benchmarks.teachers [--quick] [--json] [--records M] [--teachers T ...]

Made-up records of ten classes, 1 000 candidates to tell them from and 400 queries, 384 coordinates; the whole of the
statistic is timed: whitening, training, votes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from common.embedding import quantise
from protocol.statistics import LabelledEmbeddings, PublicInputs
from protocol.statistics.teacher_votes import TeacherVotes

LABELS, WIDTH, QUERIES, CONTRAST = 10, 384, 400, 1000
LIMIT_S = 60.0


class Records:
    """Random unit embeddings around one centre a class, a little away from the candidates'."""

    def __init__(self, count: int, seed: int, shift: float) -> None:
        rng = np.random.default_rng(seed)
        centres = np.random.default_rng(0).normal(size=(LABELS, WIDTH))
        self.labels = rng.integers(0, LABELS, count)
        x = centres[self.labels] + 1.5 * rng.normal(size=(count, WIDTH)) + shift
        self.embeddings = quantise(x / np.linalg.norm(x, axis=1, keepdims=True))
        self.texts = [""] * count
        self.units = np.arange(count)
        self.unit_hashes = rng.integers(0, 2**63, count).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.labels)


def measure(records: int, teachers: int) -> dict[str, Any]:
    """Seconds of one contribution, wall clock and processor, and how much its votes favour the records' side."""
    private = Records(records, 1, 0.1)
    shown = {
        name: Records(count, seed, 0.0) for name, count, seed in (("queries", QUERIES, 2), ("contrast", CONTRAST, 3))
    }
    public = PublicInputs({name: LabelledEmbeddings(one.embeddings, one.labels) for name, one in shown.items()})
    statistic = TeacherVotes(queries=QUERIES, teachers=teachers, labels=LABELS)
    wall, processor = time.perf_counter(), time.process_time()
    rows = statistic.rows(private, public, {})
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    votes = rows.take(np.arange(len(rows))).sum(axis=0)
    along = shown["queries"].embeddings.sum(axis=1)
    return {
        "records": records,
        "teachers": teachers,
        "seconds": round(wall, 2),
        "processor_seconds": round(processor, 2),
        "correlation": round(float(np.corrcoef(votes, along)[0, 1]), 2),
    }


def main(argv: list[str] | None = None) -> int:
    """0 if every size up to 100 teachers over 5 000 records stays below the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teachers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 teachers over 5 000 records only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--teachers", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args(argv)
    sizes = [100] if options.quick else options.teachers
    found = [measure(options.records, teachers) for teachers in sizes]
    if options.json:
        print(json.dumps({"teachers": found}))
    else:
        for row in found:
            print(
                f"{row['teachers']} teachers over {row['records']} records: {row['seconds']} s"
                f" ({row['processor_seconds']} s of processor time), votes correlate"
                f" {row['correlation']} with the truth"
            )
    bounded = [row for row in found if row["teachers"] <= 100 and row["records"] <= 5000]
    return 0 if all(row["seconds"] < LIMIT_S for row in bounded) else 1


if __name__ == "__main__":
    sys.exit(main())
