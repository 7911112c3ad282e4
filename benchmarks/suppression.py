"""Time and memory of selection with similarity suppression at the paper's size, in a process of its own.

    python -m benchmarks.suppression [--json]

10 000 x 384 unit embeddings in 77 clusters, random votes, tau from 0.2, an elite of 2 000. ``peak_mb`` is that of the
whole process, its libraries and the data included.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from undersong_common.models.embedding import quantise
from undersong_server.methods.parts.selection import select_with_suppression

SAMPLES, DIMENSION, ELITE, CLUSTERS, TAU = 10_000, 384, 2_000, 77, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    arguments = parser.parse_args()
    figures = measure()
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:24} {figure:.4g}")


def measure() -> dict[str, float]:
    """Returns the seconds of the selection and the peak memory of this process."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, DIMENSION))
    embeddings = centres[rng.integers(0, CLUSTERS, SAMPLES)] + rng.standard_normal((SAMPLES, DIMENSION))
    x = quantise((embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float32))
    votes = rng.standard_normal(SAMPLES)
    start_s, processor_s = time.perf_counter(), time.process_time()
    elite, tau = select_with_suppression(x, votes, ELITE, TAU)
    return {
        "seconds": time.perf_counter() - start_s,
        "processor_seconds": time.process_time() - processor_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "elite": float(len(elite)),
        "last_tau": tau,
    }


if __name__ == "__main__":
    main()
