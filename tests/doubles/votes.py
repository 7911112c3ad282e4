"""Top-Q votes of records for candidates, without a plan: what tests and benchmarks compare with."""

import numpy as np

from undersong_common.arrays import Float32, Int64
from undersong_protocol.statistics.nearest import NONE, NearestFurthest


def top_q_votes(
    private: Float32, private_labels: Int64 | None, candidates: Float32, candidate_labels: Int64 | None, q: int
) -> tuple[Int64, Int64]:
    """Returns the nearest and the furthest votes for each candidate, int64 [N] each, of weights 2^(Q-q).

    A record with k < q candidates of its label casts k. Exact where every score is exact in float32.
    """
    compared = NearestFurthest(private, private_labels, q)
    compared.extend(candidates, candidate_labels)
    return _counted(compared.near, len(candidates), q), _counted(compared.far, len(candidates), q)


def _counted(chosen: Int64, candidates: int, q: int) -> Int64:
    votes = np.zeros(candidates, dtype=np.int64)
    for rank in range(q):
        column = chosen[:, rank]
        votes += np.bincount(column[column != NONE], minlength=candidates) << (q - 1 - rank)
    return votes
