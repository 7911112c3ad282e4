"""A flat map of embeddings: the two directions in which they vary most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float64, Floats


@dataclass(frozen=True, eq=False)
class Map:
    """``points`` float64 [n, 2]; ``explained``: share of the variance along each axis, and of both."""

    points: Float64
    explained: tuple[float, float]


def project(embeddings: Floats) -> Map:
    """Principal components 1 and 2 of [n, d]; the sign is fixed, so the same embeddings give the same map."""
    rows, width = embeddings.shape
    if rows == 0 or width == 0:
        return Map(np.zeros((rows, 2)), (0.0, 0.0))
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(variances)[::-1][:2]
    axes = directions[:, order]
    axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    points = np.zeros((rows, 2))
    points[:, : axes.shape[1]] = centred @ axes
    total = max(float(variances.sum()), 1e-30)
    shares = [max(0.0, float(variances[index])) / total for index in order] + [0.0, 0.0]
    return Map(points, (shares[0], shares[1]))
