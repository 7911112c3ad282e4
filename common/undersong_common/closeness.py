"""Distances of synthetic texts to the closest records, of equally many records on two sides."""

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Floats, Int64
from undersong_common.intervals import Interval, clopper_pearson

BLOCK_ROWS = 1024  # rows of a distance block: 1 024 x 50 000 float32 are 200 MB
LOW_SHARE = 0.05  # the quantile that is stated beside the median: near copies are few


@dataclass(frozen=True)
class ClosestRecords:
    """Synthetic texts between the private training records and as many held-out ones.

    Distances are 1 - cosine of the embeddings, 0 to 2.

    Attributes:
        rows: synthetic texts.
        records: records on each side.
        closer: share of the synthetic texts that are nearer to a training record than to every held-out one, ties half
            (Platzer and Reutterer 2021, section 3.3): about 0.5 where nothing was copied. The interval takes the texts
            as independent.
        training, holdout: 5 % quantile and median of the distances to the closest record of each side.
    """

    rows: int
    records: int
    closer: Interval
    training: tuple[float, float]
    holdout: tuple[float, float]


def closest_records(synthetic: Float32, training: Float32, holdout: Float32, *, seed: int = 0) -> ClosestRecords:
    """Compares the distances of unit embeddings, [n, d], to the closest row of ``training`` and of ``holdout``.

    Equally many rows of both are drawn with the seed: among more records the closest one is closer. Raises ValueError
    where a side is empty.
    """
    if not len(synthetic) or not len(training) or not len(holdout):
        raise ValueError("a side has no rows: nothing is closest")
    known, others = equal_rows(training, holdout, seed=seed)
    near, far = closest_distances(synthetic, known), closest_distances(synthetic, others)
    wins = float((near < far).sum()) + 0.5 * float((near == far).sum())
    return ClosestRecords(
        rows=len(synthetic),
        records=len(known),
        closer=clopper_pearson(round(wins), len(synthetic)),
        training=_quantiles(near),
        holdout=_quantiles(far),
    )


def closest_distances(rows: Float32, records: Float32) -> Float64:
    """1 - cosine of each row of unit embeddings [n, d] to its closest record [m, d], float64 [n].

    A block of rows at a time: memory is O(n + m).
    """
    found = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK_ROWS):
        found[start : start + BLOCK_ROWS] = (rows[start : start + BLOCK_ROWS] @ records.T).max(axis=1)
    distances: Float64 = np.maximum(1.0 - found, 0.0)
    return distances


def _quantiles(distances: Float64) -> tuple[float, float]:
    low, middle = np.quantile(distances, [LOW_SHARE, 0.5])
    return float(low), float(middle)


def equal_rows(first: Floats, second: Floats, *, rows: int | None = None, seed: int = 0) -> tuple[Floats, Floats]:
    """Equally many rows of both: those of :func:`equal_choice`."""
    ours, theirs = equal_choice(len(first), len(second), rows=rows, seed=seed)
    return first[ours], second[theirs]


def equal_choice(first: int, second: int, *, rows: int | None = None, seed: int = 0) -> tuple[Int64, Int64]:
    """Row numbers of two sets, equally many of each, drawn without replacement and sorted: int64.

    Without ``rows`` as many are drawn as the smaller set has. Raises ValueError where a set has fewer than ``rows``.
    """
    there = min(first, second)
    count = there if rows is None else rows
    if count > there:
        raise ValueError(f"cannot draw {count} rows of {first} and {second}")
    rng = np.random.default_rng([seed, 0xE9])

    def draw(size: int) -> Int64:
        return np.arange(size) if size == count else np.sort(rng.choice(size, size=count, replace=False))

    return draw(first), draw(second)
