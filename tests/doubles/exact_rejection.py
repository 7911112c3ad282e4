"""The oracle beside the tables: exact rejection samplers, integers and fractions only (Canonne, Kamath, Steinke 2020).

Algorithms 1 to 3 of "The Discrete Gaussian for Differential Privacy", read off the paper and kept slow and plain.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

RandBelow = Callable[[int], int]


def bernoulli(probability: Fraction, randbelow: RandBelow) -> bool:
    return randbelow(probability.denominator) < probability.numerator


def bernoulli_exp(gamma: Fraction, randbelow: RandBelow) -> bool:
    """True with probability exp(-gamma), gamma >= 0 (algorithm 1)."""
    while gamma > 1:
        if not bernoulli_exp(Fraction(1), randbelow):
            return False
        gamma -= 1
    k = 1
    while bernoulli(gamma / k, randbelow):
        k += 1
    return k % 2 == 1


def discrete_laplace(scale: int, randbelow: RandBelow) -> int:
    """P(x) proportional to exp(-|x| / scale) (algorithm 2)."""
    while True:
        low = randbelow(scale)
        if not bernoulli_exp(Fraction(low, scale), randbelow):
            continue
        high = 0
        while bernoulli_exp(Fraction(1), randbelow):
            high += 1
        magnitude = low + scale * high
        negative = randbelow(2) == 1
        if negative and magnitude == 0:
            continue
        return -magnitude if negative else magnitude


def discrete_gaussian(variance: Fraction, randbelow: RandBelow) -> int:
    """P(x) proportional to exp(-x^2 / (2 variance)) (algorithm 3)."""
    scale = 1
    while scale * scale <= variance:
        scale += 1
    while True:
        candidate = discrete_laplace(scale, randbelow)
        gamma = (abs(candidate) - variance / scale) ** 2 / (2 * variance)
        if bernoulli_exp(gamma, randbelow):
            return candidate
