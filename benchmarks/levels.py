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


def draw_votes(records: int, topics: Int64, candidates: int, rng: np.random.Generator) -> Float64:
    """Draws the records' exact votes for candidates of their topics, one full vote being 1, float64 [candidates]."""
    topic_of_record = rng.choice(topics, records)
    record_candidates = topic_of_record[:, None] * EACH + rng.integers(0, EACH, (records, Q))
    weights = np.broadcast_to(0.5 ** np.arange(Q, dtype=np.float64), record_candidates.shape)
    return np.bincount(record_candidates.ravel(), weights=weights.ravel(), minlength=candidates).astype(np.float64)


def best_positions(values: Float64, count: int) -> Int64:
    """Positions of the ``count`` highest values, in any order."""
    positions: Int64 = np.argpartition(-values, count - 1)[:count]
    return positions


def measure(regions: int, records: int, epsilon: float, together: bool, seeds: int) -> dict[str, Any]:
    """Returns the JSON figures of the module's docstring for ``regions`` regions of 10 000 candidates each."""
    topics, candidates = regions * TOPICS, regions * TOPICS * EACH
    record_topics = np.arange(topics // 20) if together else np.arange(topics)[::20]
    kept_count, chosen_counts = candidates // 100, (max(5, regions // 10), max(50, regions))
    sizes = (regions, chosen_counts[0] * TOPICS, chosen_counts[1] * EACH)
    privacy = Privacy(epsilon, 1e-5)
    levels, flat = (
        plan_sums(
            [SumRequest(f"of {c}", TopQVotes(q=Q, candidates=c, furthest=False)) for c in candidate_counts],
            privacy,
            QUORUM,
        )
        for candidate_counts in (sizes, (candidates,))
    )
    sigmas, held_shares, flat_held_shares = [each.sigma for each in levels.sums], [], []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        exact_votes = draw_votes(records, record_topics, candidates, rng)
        best_votes = np.sort(exact_votes[best_positions(exact_votes, kept_count)]).sum()
        # A full vote is for a record's own region or topic. Its seven smaller votes say nothing and are left out.
        topic_votes = np.rint(exact_votes.reshape(topics, EACH).sum(axis=1) / (2.0 - 2.0 ** (1 - Q)))
        region = best_positions(
            topic_votes.reshape(regions, TOPICS).sum(axis=1) + rng.normal(0, sigmas[0], regions), chosen_counts[0]
        )
        inside = (region[:, None] * TOPICS + np.arange(TOPICS)).ravel()
        topic = inside[best_positions(topic_votes[inside] + rng.normal(0, sigmas[1], len(inside)), chosen_counts[1])]
        last_candidates = (topic[:, None] * EACH + np.arange(EACH)).ravel()
        chosen_candidates = last_candidates[
            best_positions(
                exact_votes[last_candidates] + rng.normal(0, sigmas[2], len(last_candidates)),
                min(kept_count, len(last_candidates)),
            )
        ]
        held_shares.append(exact_votes[chosen_candidates].sum() / best_votes)
        flat_held_shares.append(
            exact_votes[best_positions(exact_votes + rng.normal(0, flat.sums[0].sigma, candidates), kept_count)].sum()
            / best_votes
        )
    row, dimension = row_bytes(), sum(sizes)
    return {
        **{"candidates": candidates, "records": records, "epsilon": epsilon},
        "lie": "together" if together else "scattered",
        **{
            "held": float(np.mean(held_shares)),
            "flat_held": float(np.mean(flat_held_shares)),
            "coordinates": dimension,
        },
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
    divisor = 100 if options.quick else 1
    for records in (10_000 // divisor, 100_000 // divisor):
        for epsilon in (1.0, 4.0):
            for together in (True, False):
                figures = measure(REGIONS // divisor, records, epsilon, together, options.seeds)
                if options.json:
                    print(json.dumps(figures))
                    continue
                print(
                    f"{figures['candidates']:,} candidates, {records:,} records {figures['lie']}, epsilon {epsilon:g}:"
                    f" held {figures['held']:.1%} by levels, {figures['flat_held']:.1%} flat;"
                    f" down {figures['down_bytes'] / 1e6:.1f} MB (flat {figures['flat_down_bytes'] / 1e6:,.0f} MB),"
                    f" up {figures['up_bytes'] / 1e3:.0f} kB",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
