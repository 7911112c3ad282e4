"""A hundred thousand candidates: one exact vote's time and memory, and votes in two levels beside flat ones.

    python -m benchmarks.two_levels [--quick] [--json] [--seeds N]

100 000 candidates and 10 000 records of 384 coordinates, invented: 1 000 topics on the sphere, candidates evenly of
all of them, records of 50. ``flat`` is one Top-Q vote (Q = 8, nearest) over all candidates; two levels vote for public
cells first, 250, 1 000 or 4 000 of them, then for the candidates of those that stand out, 10 000 at most, at the same
epsilon and delta (methods/parts/augpe.py). The vote is exact: a few records are compared with all candidates in
integers. Each then takes the 1 000 candidates with the most noisy votes, once for each seed of the noise.

JSON: ``candidates``, ``records``, ``seeds``, ``vote_cpu_s`` (processor time of the flat vote), ``vote_peak_bytes``
(what the vote takes beside records and candidates), ``product_cpu_s`` (the bare float32 product of the same size),
``levels`` = list of {cells, cells_cpu_s (the coordinator's clustering), votes_cpu_s (a party's both votes)}, and ``at``
= list of {epsilon, cells (0: flat), sigma (votes), held (share of the best 1 000 candidates' true votes that the chosen
hold, mean over the seeds), held_interval (95 %), near (share of the chosen that are of the records' topics),
down_bytes, up_bytes (public embeddings and packed vector, per party)}.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.party_memory import forget_peak, resident_peak
from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.models.embedding import GRID, publishable, quantise
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.statistics.nearest import NearestFurthest
from undersong_protocol.wire.public import encode_embeddings
from undersong_server.methods import augpe

DIMENSION, Q = 384, 8
QUORUM = Quorum(10, 6, 1, 1)


def invent_vectors(rows: int, topics: Float64, rng: np.random.Generator) -> tuple[Float64, Int64]:
    """Unit vectors around topics, float64 [n, d], and the topic of each, int64 [n]."""
    topic_of_row = rng.integers(0, len(topics), rows)
    values = topics[topic_of_row] + rng.normal(0.0, 0.9 / math.sqrt(DIMENSION), (rows, DIMENSION))
    return values / np.linalg.norm(values, axis=1, keepdims=True), topic_of_row


def nearest(x: Float32, c: Float32) -> tuple[Int64, float]:
    """Returns the Q nearest candidates of every record, int64 [M, Q], and the processor seconds of finding them."""
    start_s = time.process_time()
    state = NearestFurthest(x, None, Q, furthest=False)
    state.extend(c, None)
    return state.near, time.process_time() - start_s


def votes_of(near: Int64, candidates: int) -> Float64:
    """Returns the candidates' exact votes from each record's nearest ones, one full vote being 1, float64 [N]."""
    weights = np.broadcast_to(2.0 ** -np.arange(Q), near.shape)
    votes = np.bincount(near.reshape(-1), weights=weights.reshape(-1), minlength=candidates)
    return np.asarray(votes, dtype=np.float64)


def check_exact(x: Float32, c: Float32, near: Int64, rows: Int64) -> None:
    """Raises AssertionError unless ``near`` of the records ``rows`` equals a comparison in exact integers."""
    integer_candidates = np.rint(c * GRID).astype(np.int64)
    norms = np.einsum("nd,nd->n", integer_candidates, integer_candidates)
    for row in rows:
        scores = 2 * (integer_candidates @ np.rint(x[row] * GRID).astype(np.int64)) - norms
        assert np.array_equal(np.argsort(-scores, kind="stable")[:Q], near[row])


class TwoLevels:
    """Exact votes for cells and for candidates in chosen cells. The latter are cached by the choice of cells."""

    def __init__(self, x: Float32, c: Float32, cells: int, within: int) -> None:
        self._x, self._c, self.within = x, c, within
        start_s = time.process_time()
        self.made = augpe.cells_of(c, cells, 1)
        self.cells_cpu_s = time.process_time() - start_s
        self.cells = len(self.made.centres)
        near, self._first_s = nearest(x, self.made.centres)
        self._votes = votes_of(near, self.cells)
        self._second_s: list[float] = []
        self._asked: dict[bytes, Float64] = {}

    @property
    def votes_cpu_s(self) -> float:
        return self._first_s + float(np.mean(self._second_s))

    def choice(self, sigmas: tuple[float, float], kept: int, noise: np.random.Generator) -> Int64:
        """Votes in both levels with noise; returns the candidates with the most noisy votes, int64 [kept]."""
        noisy_votes = self._votes + noise.normal(0.0, sigmas[0], self.cells)
        positions = augpe.members(self.made, self._c, augpe.outstanding_cells(noisy_votes, sigmas[0]), self.within)
        key = positions.tobytes()
        if key not in self._asked:
            near, seconds = nearest(self._x, np.ascontiguousarray(self._c[positions]))
            self._second_s.append(seconds)
            self._asked[key] = votes_of(near, len(positions))
        exact_votes = self._asked[key]
        return positions[_best(exact_votes, sigmas[1], kept, noise)]


def _best(votes: Float64, sigma: float, kept: int, noise: np.random.Generator) -> Int64:
    positions: Int64 = np.argsort(-(votes + noise.normal(0.0, sigma, len(votes))), kind="stable")[:kept]
    return positions


def measure(candidates: int, records: int, seeds: int) -> dict[str, Any]:
    """Returns the JSON figures of the module's docstring."""
    topic_count, kept_count, within = candidates // 100, candidates // 100, candidates // 10
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(topic_count, DIMENSION))
    topics /= np.linalg.norm(topics, axis=1, keepdims=True)
    values, topic_of_candidate = invent_vectors(candidates, topics, rng)
    c = publishable(values)
    x = quantise(invent_vectors(records, topics[: topic_count // 20], rng)[0])
    del values
    forget_peak()  # memory for inventing the data does not count
    peak_before = resident_peak()
    near, vote_s = nearest(x, c)
    peak = resident_peak() - peak_before
    check_exact(x, c, near, rng.choice(records, 5, replace=False))
    start_s = time.process_time()
    left, right = torch.from_numpy(c), torch.from_numpy(x)
    for start in range(0, records, 512):
        left @ right[start : start + 512].T
    product_s = time.process_time() - start_s
    flat_votes = votes_of(near, candidates)
    levels = [TwoLevels(x, c, cells, within) for cells in (candidates // 400, candidates // 100, candidates // 25)]
    best_votes = np.sort(flat_votes)[::-1][:kept_count].sum()
    is_relevant = topic_of_candidate < topic_count // 20
    sample = c[:1000]
    row_bytes = len(encode_embeddings(sample, np.full(len(sample), -1, dtype=np.int64))) / len(sample)

    def line(epsilon: float, cells: int, choices: list[Int64], plan: Plan) -> dict[str, float]:
        held_shares = [float(flat_votes[chosen].sum() / best_votes) for chosen in choices]
        coordinates = sum(planned.dimension for planned in plan.sums)
        return {
            **{"epsilon": epsilon, "cells": cells, "sigma": plan.sums[-1].sigma, "held": float(np.mean(held_shares))},
            "held_interval": 1.96 * float(np.std(held_shares, ddof=1)) / math.sqrt(len(held_shares)),
            "near": float(np.mean([is_relevant[chosen].mean() for chosen in choices])),
            "down_bytes": row_bytes * coordinates,
            "up_bytes": sum(planned.dimension * planned.modulus_bits / 8 for planned in plan.sums),
        }

    level_rows = []
    for epsilon in (1.0, 4.0):
        privacy = Privacy(epsilon, 1e-5)
        vote = SumRequest("votes", TopQVotes(q=Q, candidates=candidates, furthest=False))
        flat_plan = plan_sums([vote], privacy, QUORUM)
        choices = [
            _best(flat_votes, flat_plan.sums[0].sigma, kept_count, np.random.default_rng(seed)) for seed in range(seeds)
        ]
        level_rows.append(line(epsilon, 0, choices, flat_plan))
        for level in levels:
            level_plan = plan_sums(
                augpe.plan_cell_votes("votes", cell_count=level.cells, within=within, q=Q), privacy, QUORUM
            )
            sigmas = (level_plan.sums[0].sigma, level_plan.sums[1].sigma)
            choices = [level.choice(sigmas, kept_count, np.random.default_rng(seed)) for seed in range(seeds)]
            level_rows.append(line(epsilon, level.cells, choices, level_plan))
    return {
        **{"candidates": candidates, "records": records, "seeds": seeds, "vote_cpu_s": vote_s, "vote_peak_bytes": peak},
        "product_cpu_s": product_s,
        "levels": [
            {"cells": each.cells, "cells_cpu_s": each.cells_cpu_s, "votes_cpu_s": each.votes_cpu_s} for each in levels
        ],
        "at": level_rows,
    }


def _named(cells: float) -> str:
    return f"{cells:.0f} cells" if cells else "flat"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_levels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the candidates and of the records")
    parser.add_argument("--seeds", type=int, default=20, help="of the noise")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    divisor = 10 if options.quick else 1
    figures = measure(100_000 // divisor, 10_000 // divisor, options.seeds)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(
        f"{figures['candidates']:,} candidates, {figures['records']:,} records: {figures['vote_cpu_s']:.1f} s of"
        f" processor time ({figures['vote_cpu_s'] / figures['product_cpu_s']:.2f} of the bare product),"
        f" {figures['vote_peak_bytes'] / 1e6:.0f} MB beside them"
    )
    for each in figures["levels"]:
        print(
            f"{each['cells']} cells: both votes {each['votes_cpu_s']:.1f} s, clustering at the coordinator"
            f" {each['cells_cpu_s']:.1f} s"
        )
    for one in figures["at"]:
        print(
            f"epsilon {one['epsilon']:g}, {_named(one['cells']):<10} noise"
            f" {one['sigma']:.2f} votes; the chosen hold {one['held']:.1%} +- {one['held_interval']:.1%} of the best's"
            f" votes, {one['near']:.1%} are of the records' topics; down {one['down_bytes'] / 1e6:.2f} MB, up"
            f" {one['up_bytes'] / 1e3:.0f} kB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
