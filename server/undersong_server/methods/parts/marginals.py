"""From noisy marginals of attributes to shares of all their combinations; post-processing alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from undersong_common.arrays import Float64

ROUNDS = 50  # of the fitting, which settles to three digits within a dozen
SMOOTHING = 0.01  # of a pair's table that is the product of its margins: a cell that noise emptied is not impossible


def joint_shares(single: Sequence[Float64], pairs: Mapping[tuple[int, int], Float64]) -> Float64:
    """Shares of all combinations, float64 [product of sizes], sum 1: the first attribute's values change slowest.

    The product of the one-way shares, fitted to the two-way ones by iterative proportional fitting (Deming and Stephan
    1940): of all joint shares with these margins the one of largest entropy relative to that product. Noisy tables
    contradict each other; one-way shares, which have the least noise, are fitted last.

    Args:
        single: shares of each attribute's values, float64 [size], sum 1.
        pairs: shares of the values of two attributes, float64 [size, size], by their numbers, the lower one first.

    >>> joint_shares([np.array([0.5, 0.5]), np.array([0.25, 0.75])], {}).tolist()
    [0.125, 0.375, 0.125, 0.375]
    """
    joint = np.ones([len(shares) for shares in single])
    axes = range(joint.ndim)

    def fit(target: Float64, kept: tuple[int, ...]) -> None:
        nonlocal joint
        others = tuple(axis for axis in axes if axis not in kept)
        now = joint.sum(axis=others, keepdims=True)
        shape = [size if axis in kept else 1 for axis, size in enumerate(joint.shape)]
        joint = joint * np.divide(target.reshape(shape), now, out=np.zeros(now.shape), where=now > 0)

    for axis, shares in enumerate(single):
        fit(shares, (axis,))
    smoothed = {
        (one, other): (1.0 - SMOOTHING) * shares + SMOOTHING * np.outer(single[one], single[other])
        for (one, other), shares in pairs.items()
    }
    for _ in range(ROUNDS if pairs else 0):
        for table, shares in smoothed.items():
            fit(shares, table)
        for axis, shares in enumerate(single):
            fit(shares, (axis,))
    flat: Float64 = (joint / joint.sum()).ravel()
    return flat
