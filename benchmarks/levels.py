"""Ten million candidates: votes level by level beside one flat vote, simulated in counts, without embeddings.

    python -m benchmarks.levels [--quick] [--seeds N] [--json]

10 000 000 candidates of 100 000 topics (100 each) in 1 000 regions (100 topics each); records of 5 000 topics, which
lie in 50 regions ("together") or in all of them ("scattered"). A record gives Top-Q votes (Q = 8) to candidates of its
topic. Level by level it votes for regions, for the topics of the regions with the most votes, and for the candidates of
the topics with the most votes. The levels share the budget equally; the noise is that of the product's own plan
(epsilon, delta 1e-5, ten parties). The best 100 000 candidates are then taken. ``held`` is the part of the best
100 000 candidates' true votes that the chosen ones hold. A flat vote of this size is beyond the limits of a plan
(2^21 public rows of one sum); its noise is simulated nevertheless, to compare.

JSON, a line per case: records, epsilon, lie, held (three levels), flat_held, coordinates, down_bytes, up_bytes,
flat_down_bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.models.embedding import publishable
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire.public import encode_embeddings

Q, REGIONS, TOPICS, EACH = 8, 1_000, 100, 100  # topics of a region, candidates of a topic
KEPT_REGIONS, KEPT_TOPICS = 100, 1_000
QUORUM, DIMENSION = Quorum(10, 6, 1, 1), 384


def row_bytes() -> float:
    """Bytes of one published embedding, measured on a thousand random directions."""
    x = np.random.default_rng(0).normal(size=(1000, DIMENSION))
    sample = publishable((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return len(encode_embeddings(sample, np.full(len(sample), -1, dtype=np.int64))) / len(sample)


def votes(records: int, topics: Int64, candidates: int, rng: np.random.Generator) -> Float64:
    """Draws the records' exact votes for candidates of their topics, one full vote being 1, float64 [candidates]."""
    of = rng.choice(topics, records)
    chosen = of[:, None] * EACH + rng.integers(0, EACH, (records, Q))
    weights = np.broadcast_to(0.5 ** np.arange(Q, dtype=np.float64), chosen.shape)
    return np.bincount(chosen.ravel(), weights=weights.ravel(), minlength=candidates).astype(np.float64)


def best(values: Float64, count: int) -> Int64:
    """Positions of the ``count`` highest values, in any order."""
    found: Int64 = np.argpartition(-values, count - 1)[:count]
    return found


def measure(regions: int, records: int, epsilon: float, together: bool, seeds: int) -> dict[str, Any]:
    """Returns the JSON figures of the module's docstring for ``regions`` regions of 10 000 candidates each."""
    topics, candidates = regions * TOPICS, regions * TOPICS * EACH
    relevant = np.arange(topics // 20) if together else np.arange(topics)[::20]
    kept, shown = candidates // 100, (max(5, regions // 10), max(50, regions))
    sizes = (regions, shown[0] * TOPICS, shown[1] * EACH)
    privacy = Privacy(epsilon, 1e-5)
    levels, flat = (
        plan_sums([SumRequest(f"of {c}", TopQVotes(q=Q, candidates=c, furthest=False)) for c in asked], privacy, QUORUM)
        for asked in (sizes, (candidates,))
    )
    sigmas, held, flat_held = [each.sigma for each in levels.sums], [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        exact = votes(records, relevant, candidates, rng)
        most = np.sort(exact[best(exact, kept)]).sum()
        # A full vote is for a record's own region or topic. Its seven smaller votes say nothing and are left out.
        own = np.rint(exact.reshape(topics, EACH).sum(axis=1) / (2.0 - 2.0 ** (1 - Q)))
        region = best(own.reshape(regions, TOPICS).sum(axis=1) + rng.normal(0, sigmas[0], regions), shown[0])
        inside = (region[:, None] * TOPICS + np.arange(TOPICS)).ravel()
        topic = inside[best(own[inside] + rng.normal(0, sigmas[1], len(inside)), shown[1])]
        last = (topic[:, None] * EACH + np.arange(EACH)).ravel()
        chosen = last[best(exact[last] + rng.normal(0, sigmas[2], len(last)), min(kept, len(last)))]
        held.append(exact[chosen].sum() / most)
        flat_held.append(exact[best(exact + rng.normal(0, flat.sums[0].sigma, candidates), kept)].sum() / most)
    row, dimension = row_bytes(), sum(sizes)
    return {
        **{"candidates": candidates, "records": records, "epsilon": epsilon},
        "lie": "together" if together else "scattered",
        **{"held": float(np.mean(held)), "flat_held": float(np.mean(flat_held)), "coordinates": dimension},
        **{"down_bytes": row * dimension, "flat_down_bytes": row * candidates},
        "up_bytes": sum(each.dimension * each.modulus_bits / 8 for each in levels.sums),
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.levels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the candidates and of the records")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    part = 100 if options.quick else 1
    for records in (10_000 // part, 100_000 // part):
        for epsilon in (1.0, 4.0):
            for together in (True, False):
                found = measure(REGIONS // part, records, epsilon, together, options.seeds)
                if options.json:
                    print(json.dumps(found))
                    continue
                print(
                    f"{found['candidates']:,} candidates, {records:,} records {found['lie']}, epsilon {epsilon:g}:"
                    f" held {found['held']:.1%} by levels, {found['flat_held']:.1%} flat;"
                    f" down {found['down_bytes'] / 1e6:.1f} MB (flat {found['flat_down_bytes'] / 1e6:,.0f} MB),"
                    f" up {found['up_bytes'] / 1e3:.0f} kB",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
