"""Top-Q votes against the bare float32 matrix product of the same size, alternated in one run.

    python -m benchmarks.votes [--quick] [--json] [--every-kernel]

2 000 records x 6 000 candidates x 384, unlabelled, Q = 8, nearest and furthest. ``ratio_to_matmul`` is the ratio of the
medians; ``processor_ratio`` that of the processor time of all threads, which other programs disturb less.
``extend_ratio`` and ``extend_processor_ratio`` are those of adding 1 500 candidates to a vote over 6 000, compared with
the same product.
``--every-kernel`` measures each kernel of OpenBLAS that this processor has, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from tests.doubles.votes import top_q_votes
from tools.kernels import kernels
from undersong_common.arrays import Float64
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics.nearest import NearestFurthest

RECORDS, CANDIDATES, DIMENSION, Q = 2_000, 6_000, 384, 8
NEW = CANDIDATES // 4
# Seconds. After a product the other threads of OpenBLAS wait for work in a loop, for 2^26 cycles. Without a pause, up
# to 60 ms of processor time would count as the next task's.
PAUSE_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="7 repetitions instead of 31")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--every-kernel", action="store_true", help="a row for each OPENBLAS_CORETYPE")
    arguments = parser.parse_args()
    if arguments.every_kernel:
        for kernel in kernels():
            command = [sys.executable, "-m", "benchmarks.votes", "--json", *["--quick"] * arguments.quick]
            environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
            row = json.loads(
                subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            )
            ratios = "  ".join(f"{name} {value:.2f}" for name, value in row.items() if name.endswith("ratio"))
            print(f"{kernel:10} {ratios}  ratio_to_matmul {row['ratio_to_matmul']:.2f}", flush=True)
        return
    figures = measure(7 if arguments.quick else 31)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:.4g}")


def measure(repetitions: int) -> dict[str, float]:
    """Median seconds of each task and their ratios."""
    rng = np.random.default_rng(0)
    x, c = (quantise(_unit(rng.standard_normal((rows, DIMENSION)))) for rows in (RECORDS, CANDIDATES))
    known_state = NearestFurthest(x, None, Q)
    known_state.extend(c, None)
    state = {name: value.copy() for name, value in vars(known_state).items() if isinstance(value, np.ndarray)}

    def extend() -> None:
        grown_state = NearestFurthest(x, None, Q)
        vars(grown_state).update({name: value.copy() for name, value in state.items()}, candidates=CANDIDATES)
        grown_state.extend(c[:NEW], None)

    tasks: dict[str, Callable[[], object]] = {
        "matmul_s": lambda: x @ c.T,
        "votes_s": lambda: top_q_votes(x, None, c, None, Q),
        "extend_s": extend,
        "new_matmul_s": lambda: x @ c[:NEW].T,
    }
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    processor: dict[str, list[float]] = {name: [] for name in tasks}
    for repetition in range(repetitions + 2):
        for name, task in tasks.items():
            time.sleep(PAUSE_S)
            start_s, processor_start_s = time.perf_counter(), time.process_time()
            task()
            if repetition >= 2:  # the first two warm caches and threads
                seconds[name].append(time.perf_counter() - start_s)
                processor[name].append(time.process_time() - processor_start_s)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    processor_median_s = {name: statistics.median(values) for name, values in processor.items()}
    return {
        "ratio_to_matmul": medians["votes_s"] / medians["matmul_s"],
        "processor_ratio": processor_median_s["votes_s"] / processor_median_s["matmul_s"],
        "extend_ratio": medians["extend_s"] / medians["new_matmul_s"],
        "extend_processor_ratio": processor_median_s["extend_s"] / processor_median_s["new_matmul_s"],
        **medians,
    }


def _unit(rows: Float64) -> Float64:
    unit: Float64 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
