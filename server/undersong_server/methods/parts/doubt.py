"""Propagation of the noise of opened sums to the values computed from them."""

from collections.abc import Callable

import numpy as np

from undersong_common.arrays import Float64


def noise_effect(computed: Callable[[Float64], Float64], numbers: Float64, deviations: Float64) -> Float64:
    """Standard deviation that independent noise of ``numbers`` gives each of the ``computed`` values, to first order.

    Each number is moved by its standard deviation, and the effects are added in squares.

    Args:
        computed: float64 [n] to float64 [k].
        numbers: noisy, float64 [n].
        deviations: of their noise, float64 [n].

    >>> noise_effect(lambda x: x / x.sum(), np.array([8.0, 8.0]), np.array([0.0, 0.0])).tolist()
    [0.0, 0.0]
    >>> noise_effect(lambda x: x[:1] - x[1:], np.array([8.0, 8.0]), np.array([3.0, 4.0])).tolist()
    [5.0]
    """
    centre = computed(numbers)
    moved = np.stack([computed(numbers + step) - centre for step in np.diag(deviations)])
    effect: Float64 = np.sqrt(np.square(moved).sum(axis=0))
    return effect
