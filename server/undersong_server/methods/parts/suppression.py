"""Selection by votes with similarity suppression, and an estimate of the records' mean similarity (DPGA-TextSyn)."""

import math
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64

STEP = 0.01
BLOCK = 512  # candidates that are compared among themselves at a time: the largest array is [n, 512] float32


def suppressed(embeddings: Float32, votes: Float64, size: int, tau: float, step: float = STEP) -> tuple[Int64, float]:
    """The elite: in descending votes, each chosen sample excludes all others more similar to it than tau.

    When none is left, tau rises by ``step`` and the samples that are no longer too similar to any chosen one get their
    turn, until ``size`` are chosen or none is left. Similarity is the dot product; for quantised embeddings it is
    exact in float32, so that the blocks change nothing. Source: Sun et al. 2025 (DPGA-TextSyn), selection.

    Args:
        embeddings: float32 [n, d], of norm at most 1.
        votes: float64 [n]; ties go to the lower position.
        size: of the elite; all n where there are fewer.
        tau: in [-1, 1].

    Returns:
        int64 [min(size, n)] positions in the order in which they were chosen, and the last tau.
    """
    order = np.argsort(-votes, kind="stable")
    x = np.ascontiguousarray(embeddings[order])
    size = min(size, len(x))
    nearest = np.full(len(x), -np.inf, dtype=np.float32)  # largest similarity to any chosen sample
    left = np.ones(len(x), dtype=np.bool_)
    chosen: list[Int64] = []
    found, raised = 0, 0
    limit = tau
    while found < size:
        after = 0
        while found < size:
            block = after + np.flatnonzero(left[after:] & (nearest[after:] <= limit))[:BLOCK]
            if not len(block):
                break
            after = int(block[-1]) + 1
            taken = block[_apart(x[block], limit, size - found)]
            left[taken] = False
            found += len(taken)
            chosen.append(taken)
            rest = np.flatnonzero(left)
            if found < size and len(rest):
                nearest[rest] = np.maximum(nearest[rest], (x[rest] @ x[taken].T).max(axis=1))
        if found < size:
            raised += 1
            limit = tau + raised * step
    return order[np.concatenate(chosen)] if chosen else order[:0], limit


def _apart(x: Float32, limit: float, most: int) -> Int64:
    """In order, the rows that are not more similar than ``limit`` to an earlier one of the result; at most ``most``."""
    allowed = x @ x.T <= limit
    open_ = np.ones(len(x), dtype=np.bool_)
    kept: list[int] = []
    for row in range(len(x)):
        if open_[row]:
            kept.append(row)
            if len(kept) == most:
                break
            open_ &= allowed[row]
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True)
class MeanSimilarity:
    """Estimate of the mean cosine of all pairs of private records, and its standard error by noise."""

    value: float
    error: float


def mean_similarity(total: Float64, sigma: float, count: float, count_sigma: float = 0.0) -> MeanSimilarity:
    """Estimates (|S|^2 - d sigma^2 - n) / (n (n - 1)) from a noisy sum S of unit embeddings; unbiased for a known n.

    Args:
        total: S with noise of standard deviation ``sigma`` a coordinate, float64 [d], natural units.
        count: n, with noise of standard deviation ``count_sigma``; with fewer than two the error is infinite.
    """
    if count < 2.0:
        return MeanSimilarity(math.nan, math.inf)
    pairs = count * (count - 1.0)
    noise = len(total) * sigma**2
    square = float(total @ total) - noise
    deviation = math.hypot(math.sqrt(2.0 * len(total)) * sigma**2, 2.0 * sigma * math.sqrt(max(square, 0.0)))
    value = (square - count) / pairs
    # n stands squared in the denominator: a relative error of n is twice that of the value
    return MeanSimilarity(value, math.hypot(deviation / pairs, 2.0 * abs(value) * count_sigma / count))
