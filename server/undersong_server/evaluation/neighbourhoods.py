"""Whether two sets of embeddings lie in one place, by the balls around their points to the k-th nearest other point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Floats

BLOCK_ROWS = 1024  # rows of a distance block: 1 024 x 50 000 float32 are 200 MB


@dataclass(frozen=True)
class Neighbourhoods:
    """How the balls of the synthetic and of the real texts cover each other.

    Attributes:
        precision: share of synthetic texts within at least one real text's ball.
        recall: share of real texts within at least one synthetic text's ball.
        density: real balls that hold a synthetic text, mean over the synthetic texts, per neighbour: about 1 where
            both sets come from one distribution, above 1 where synthetic texts crowd where real ones are dense.
        coverage: share of real texts whose own ball holds at least one synthetic text.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def neighbourhoods(
    synthetic: Floats, real: Floats, *, neighbours: int = 3, coverage_neighbours: int = 5
) -> Neighbourhoods:
    """Compares two sets of embeddings, [n, d] and [m, d]; figures compare at equal n and m only.

    Precision and recall: Kynkaanniemi et al. 2019, equations 1 and 2, with ``neighbours``. Density and coverage: Naeem
    et al. 2020, equations 4 and 5, with ``coverage_neighbours``; an outlier among the real texts makes precision large,
    and neither of these. A ball reaches to the k-th nearest other point and includes its edge. O(n + m) memory beside
    one block of distances. Raises ValueError where a set has no k-th neighbour.
    """
    needed = max(neighbours, coverage_neighbours)
    if min(len(synthetic), len(real)) <= needed:
        raise ValueError(f"{min(len(synthetic), len(real))} points have no {needed} neighbours")
    ours, theirs = np.asarray(synthetic, dtype=np.float32), np.asarray(real, dtype=np.float32)
    (real_radius, wide_radius), (own_radius,) = (
        _radii(theirs, (neighbours, coverage_neighbours)),
        _radii(ours, (neighbours,)),
    )
    inside_real, balls, covered = 0, 0, np.zeros(len(theirs), dtype=bool)
    for _, block in _blocks(ours, theirs):
        inside_real += int((block <= real_radius).any(axis=1).sum())
        held = block <= wide_radius
        balls += int(held.sum())
        covered |= held.any(axis=0)
    inside_own = sum(int((block <= own_radius).any(axis=1).sum()) for _, block in _blocks(theirs, ours))
    return Neighbourhoods(
        precision=inside_real / len(ours),
        recall=inside_own / len(theirs),
        density=balls / (coverage_neighbours * len(ours)),
        coverage=float(covered.mean()),
    )


def _radii(points: Float32, neighbours: tuple[int, ...]) -> Float32:
    """Squared distance of every point to its k-th nearest other point, float32 [len(neighbours), n]."""
    radii = np.empty((len(neighbours), len(points)), dtype=np.float32)
    for start, block in _blocks(points, points):
        rows = np.arange(len(block))
        block[rows, start + rows] = -1.0  # itself comes first, also among duplicates
        ordered = np.partition(block, neighbours, axis=1)
        for number, k in enumerate(neighbours):
            radii[number, start : start + len(block)] = ordered[:, k]
    return radii


def _blocks(first: Float32, second: Float32) -> Iterator[tuple[int, Float32]]:
    """Squared distances of a block of rows of ``first`` to all of ``second``, with the block's first row."""
    for start in range(0, len(first), BLOCK_ROWS):
        yield start, _squared_distances(first[start : start + BLOCK_ROWS], second)


def _squared_distances(a: Float32, b: Float32) -> Float32:
    block: Float32 = (a * a).sum(axis=1)[:, None] - 2 * (a @ b.T) + (b * b).sum(axis=1)
    return np.maximum(block, 0.0, out=block)
