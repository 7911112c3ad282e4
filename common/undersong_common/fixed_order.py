"""Arithmetic on rows of numbers whose result for one row is the same beside any other rows, to the last bit.

Numpy's sums and products over an axis take another order, hence other last bits, for other shapes of the whole array.
Here every step is one addition, multiplication, division or square root an element, each of which IEEE 754 rounds in
one way only; and functions beyond these are looked up in tables.
"""

import numpy as np

from undersong_common.arrays import Float64, Int64

STEPS_A_TURN = 1 << 16  # resolution of an angle: half a step is 5e-5 radians
STEPS_A_UNIT = 1 << 12  # resolution of an exponent
LARGEST_EXPONENT = 16  # where e^-x, 1e-7, becomes zero

_ANGLES = np.arange(STEPS_A_TURN) * (2.0 * np.pi / STEPS_A_TURN)
_COSINES, _SINES = np.cos(_ANGLES), np.sin(_ANGLES)
_DECAY = np.append(np.exp(-np.arange(LARGEST_EXPONENT * STEPS_A_UNIT) / STEPS_A_UNIT), 0.0)


def row_sums(values: Float64) -> Float64:
    """Sums over the last axis, float64 [..., n] -> [...]; 0 for n = 0.

    Each half of the row is added to the other until one number is left.
    """
    width = values.shape[-1]
    if width == 0:
        return np.zeros(values.shape[:-1])
    while width > 1:
        half = width // 2
        kept = values[..., : width - half].copy()
        kept[..., :half] += values[..., width - half :]
        values, width = kept, width - half
    return values[..., 0]


def row_norms(values: Float64) -> Float64:
    """Euclidean norms over the last axis, float64 [..., n] -> [...]."""
    return np.sqrt(row_sums(values * values))


def cosines(steps: Int64) -> Float64:
    """Cosines of angles in steps of 1 / ``STEPS_A_TURN`` of a turn; any integers."""
    found: Float64 = _COSINES[steps & (STEPS_A_TURN - 1)]
    return found


def sines(steps: Int64) -> Float64:
    """Sines, as :func:`cosines`."""
    found: Float64 = _SINES[steps & (STEPS_A_TURN - 1)]
    return found


def decay(exponents: Float64) -> Float64:
    """e^-x for x >= 0, rounded to multiples of 1 / ``STEPS_A_UNIT``; 0 from ``LARGEST_EXPONENT`` on.

    >>> decay(np.array([0.0, 99.0])).tolist()
    [1.0, 0.0]
    """
    steps = np.rint(np.minimum(exponents, float(LARGEST_EXPONENT)) * STEPS_A_UNIT).astype(np.int64)
    found: Float64 = _DECAY[steps]
    return found


def softmax(logits: Float64) -> Float64:
    """Probabilities over the last axis, float64 [..., n] of finite numbers, n >= 1 -> the same shape.

    They are e^logit over the sum of these, with exponents as :func:`decay` rounds them: what is ``LARGEST_EXPONENT``
    below the largest has probability 0. Each is within [0, 1].

    >>> softmax(np.array([[7.0, 7.0], [0.0, 99.0]])).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    odds = decay(logits.max(axis=-1, keepdims=True) - logits)
    return odds / row_sums(odds)[..., None]
