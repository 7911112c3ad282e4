"""Exact discrete noise from a cryptographic stream, and the rules that tie it to what is charged.

Same seed, same noise on every machine: the tables come from integer arithmetic with 256 fractional bits and the words
are little-endian. Nothing is ever computed from a floating-point draw (Mironov 2012). Every law states a bound on its
statistical distance per sample, which the accounting adds to delta; for the discrete Gaussian it is below 2^-110.

Known limit: a table look-up is not constant-time, see docs/threat-model.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Int64, UInt64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.privacy.stream import KeyStream, wipe
from undersong_common.privacy.table import BLOCK_BYTES, CumulativeTable

# A bound for every discrete Gaussian here: add it, times the number of samples of a run, to delta.
STATISTICAL_DISTANCE = Fraction(1, 2**110)
# Mass left beyond a table.
TAIL_BITS = 113
# docs/privacy.md, "Noise": N_Z(0, s^2) is a randomised rounding of N(0, s^2 - 4), up to exp(+-4 exp(-2 pi^2 4)) a
# coordinate.
ROUNDING_VARIANCE = 4
SMALLEST_SHARE_SIGMA = 3.0

_FRACTION_BITS = 256
_ONE = 1 << _FRACTION_BITS
# Draws handled at once: stream, words and values stay in the second-level cache.
_CHUNK = 1 << 14
_CACHED_TABLES = 64

Target = Int64 | npt.NDArray[np.uint32] | UInt64


class IntegerNoise(ABC):
    """A symmetric law on the integers that turns a fixed number of stream blocks into each sample."""

    blocks: int
    """16-byte stream blocks a sample consumes; sample i reads blocks ``i * blocks`` onwards, whatever the chunking."""
    distance: Fraction
    """Bound on one sample's statistical distance from the exact law."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation in integer units."""

    @abstractmethod
    def _draw(self, words: UInt64) -> Int64:
        """Samples int64 [m] from stream words uint64 [m, 2 * blocks]."""

    def sample(self, stream: KeyStream, n: int) -> Int64:
        """The next ``n`` samples of the stream, int64 [n]."""
        out = np.zeros(n, dtype=np.int64)
        self.add_to(out, stream)
        return out

    def add_to(self, target: Target, stream: KeyStream, sign: int = 1) -> None:
        """Add (``sign`` = 1) or subtract (-1) the stream's next ``len(target)`` samples, in place and in chunks.

        ``target`` is int64, uint32 or uint64 [d]; unsigned words wrap around.
        """
        if sign not in (1, -1):
            raise InternalError(f"noise is added (1) or subtracted (-1), got sign {sign!r}")
        width = BLOCK_BYTES * self.blocks
        scratch = bytearray(width * min(_CHUNK, len(target)))
        window = memoryview(scratch)
        for start in range(0, len(target), _CHUNK):
            part = target[start : start + _CHUNK]
            used = window[: width * len(part)]
            stream.fill(used)
            words = np.frombuffer(used, dtype="<u8").astype(np.uint64, copy=False).reshape(len(part), 2 * self.blocks)
            drawn = self._draw(words)
            if sign == 1:
                part += drawn.astype(part.dtype, copy=False)
            else:
                part -= drawn.astype(part.dtype, copy=False)
        wipe(window)


class DiscreteGaussian(IntegerNoise):
    """N_Z(0, sigma^2): P(x) proportional to exp(-x^2 / (2 sigma^2)) on the integers (Canonne, Kamath, Steinke 2020).

    Up to ``TABLE_SIGMA`` one folded table gives |x| and the spare bit its sign. Above, and below ``LARGEST_SIGMA``, a
    sample is A + k B with two tabled discrete Gaussians, var A + k^2 var B = sigma^2 exactly and var A >= 5 k^2. By
    Poisson summation over B its probabilities equal those of N_Z(0, sigma^2) up to a factor 1 +- 4 exp(-2 pi^2 t^2),
    t^2 = 1 / (1/var B + k^2/var A) > 4.99, that is 2^-139 (Peikert 2010, Micciancio and Walter 2017).

    >>> DiscreteGaussian(452).sample(KeyStream(bytes(32)), 4).tolist()
    [-332, -492, -258, -273]
    """

    TABLE_SIGMA = 1 << 12
    LARGEST_SIGMA = 1 << 23
    SMALLEST_SIGMA = Fraction(1, 4)

    def __init__(self, sigma: float | Fraction) -> None:
        """``sigma`` in integer units; a float stands for its exact binary value.

        Raises ConfigurationError for a sigma outside [1/4, 2^23].
        """
        if not math.isfinite(sigma) or sigma <= 0:
            raise ConfigurationError(f"noise of standard deviation {sigma}", "sigma must be a positive number")
        self._set_variance(Fraction(sigma) ** 2)

    @classmethod
    def of_variance(cls, variance: float | Fraction) -> DiscreteGaussian:
        """The law of parameter sigma^2 = ``variance``, which a share's sigma seldom hits exactly."""
        law = cls.__new__(cls)
        law._set_variance(Fraction(variance))
        return law

    def _set_variance(self, variance: Fraction) -> None:
        if not self.SMALLEST_SIGMA**2 <= variance <= self.LARGEST_SIGMA**2:
            raise ConfigurationError(
                f"discrete noise of variance {float(variance):.4g} in squared integer units",
                "choose the integer scale so that sigma lies between 1/4 and 2^23 integer units",
            )
        self.variance = variance
        self._stride = 0
        self._coarse: CumulativeTable | None = None
        fine = variance
        if variance > self.TABLE_SIGMA**2:
            # A coarse variance of at most 2^24 keeps both tables below 2^16 entries.
            stride = math.isqrt(math.ceil(variance / (1 << 24)) - 1) + 1
            coarse = math.floor(variance / stride**2) - 5
            fine = variance - coarse * stride**2
            self._stride = stride
            self._coarse = _gaussian_table(coarse, 1)
        self._fine = _gaussian_table(fine.numerator, fine.denominator)
        self.blocks = 1 if self._coarse is None else 2
        self.distance = self._fine.distance
        if self._coarse is not None:
            self.distance += self._coarse.distance + Fraction(1, 2**139)
        if self.distance >= STATISTICAL_DISTANCE:
            raise InternalError("a noise table misses its stated statistical distance")

    def __repr__(self) -> str:
        return f"DiscreteGaussian(sigma={self.deviation:g})"

    @property
    def deviation(self) -> float:
        """sigma in integer units; the variance of N_Z(0, sigma^2) is below sigma^2 by a factor e^(-19 sigma^2)."""
        return math.sqrt(self.variance)

    def _draw(self, words: UInt64) -> Int64:
        value = _signed_draw(self._fine, words[:, 0], words[:, 1])
        if self._coarse is not None:
            value += self._stride * _signed_draw(self._coarse, words[:, 2], words[:, 3])
        return value


class DiscreteLaplace(IntegerNoise):
    """Two-sided geometric noise: P(x) proportional to exp(-|x| / scale) (Ghosh, Roughgarden, Sundararajan 2009).

    Full local noise for the pure-epsilon mode: an integer sum of L1 sensitivity ``s`` is (s / scale)-private for each
    party's own noise alone. Chosen over :class:`DiscreteLaplaceShare` where simplicity counts; the noise of a sum then
    grows with the number of parties. Above ``TABLE_SCALE`` a sample is a difference of two geometric ones, each
    B * high + low with low < B, which is exact (a geometric law has no memory).
    """

    TABLE_SCALE = 1 << 11
    LARGEST_SCALE = 1 << 20

    def __init__(self, scale: float | Fraction) -> None:
        """``scale`` = L1 sensitivity / epsilon in integer units. Raises ConfigurationError outside [1/8, 2^20]."""
        self.scale = _checked_scale(scale, self.LARGEST_SCALE)
        self._low: CumulativeTable | None = None
        self._base = 1
        if self.scale <= self.TABLE_SCALE:
            self._high = _laplace_table(self.scale)
            self.blocks = 1
            self.distance = self._high.distance
        else:
            self._base = 1 << 11
            self._high = _geometric_table(self.scale / self._base, 0)
            self._low = _geometric_table(self.scale, self._base)
            self.blocks = 4
            self.distance = 2 * (self._high.distance + self._low.distance)

    def __repr__(self) -> str:
        return f"DiscreteLaplace(scale={float(self.scale):g})"

    @property
    def deviation(self) -> float:
        """Standard deviation in integer units: sqrt(2 p) / (1 - p) with p = exp(-1 / scale)."""
        return _laplace_deviation(self.scale)

    def _draw(self, words: UInt64) -> Int64:
        if self._low is None:
            return _signed_draw(self._high, words[:, 0], words[:, 1])
        value = self._high.draw(words[:, 0], words[:, 1])
        value -= self._high.draw(words[:, 4], words[:, 5])
        value *= self._base
        value += self._low.draw(words[:, 2], words[:, 3])
        value -= self._low.draw(words[:, 6], words[:, 7])
        return value


class DiscreteLaplaceShare(IntegerNoise):
    """One party's share of discrete Laplace noise: NB(r, p) - NB(r, p), r = 1/n_min, p = exp(-1 / scale).

    The negative binomial (Polya) law is infinitely divisible: ``n_min`` shares sum to exactly the law of
    :class:`DiscreteLaplace` and further shares only add independent noise (Goryczka and Xiong 2017). Both terms come
    from one table; the bound on the distance grows with the scale and is 2^-106 at ``LARGEST_SCALE``.
    """

    LARGEST_SCALE = 1 << 14

    def __init__(self, scale: float | Fraction, n_min: int) -> None:
        """``scale`` = L1 sensitivity / epsilon in integer units, ``n_min`` the honest survivors counted on.

        Raises ConfigurationError for a scale outside [1/8, 2^14] or ``n_min`` below 1.
        """
        if n_min < 1:
            raise ConfigurationError(f"noise shared among {n_min} parties", "count on at least one honest survivor")
        self.scale = _checked_scale(scale, self.LARGEST_SCALE)
        self.n_min = n_min
        self._table = _polya_table(self.scale, n_min)
        self.blocks = 2
        self.distance = 2 * self._table.distance

    def __repr__(self) -> str:
        return f"DiscreteLaplaceShare(scale={float(self.scale):g}, n_min={self.n_min})"

    @property
    def deviation(self) -> float:
        """Standard deviation of the share in integer units."""
        return _laplace_deviation(self.scale) / math.sqrt(self.n_min)

    def _draw(self, words: UInt64) -> Int64:
        value = self._table.draw(words[:, 0], words[:, 1])
        value -= self._table.draw(words[:, 2], words[:, 3])
        return value


def closure_gap(variances: Iterable[float]) -> float:
    """Bound tau on how far a sum of discrete Gaussians is from one discrete Gaussian, for the given ``variances``.

    tau = 10 sum over k of exp(-2 pi^2 s_k^2 v_k / (s_k^2 + v_k)), s_k^2 the sum of the variances before v_k. For n
    equal variances this is Kairouz, Liu, Steinke 2021, theorem 8: 10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k+1)).

    >>> f"{closure_gap([1.0] * 10):.2e} {closure_gap([9.0] * 10):.1e}"
    '5.44e-04 2.6e-38'
    """
    total = gap = 0.0
    for variance in variances:
        if total:
            gap += math.exp(-2 * math.pi**2 * total * variance / (total + variance))
        total += variance
    return 10 * gap


def _signed_draw(table: CumulativeTable, high: UInt64, low: UInt64) -> Int64:
    """A folded table's magnitude with the low word's spare bit as sign; zero keeps its mass under either sign."""
    value = table.draw(high, low)
    flip = -(low & np.uint64(1)).view(np.int64)
    value ^= flip
    value -= flip
    return value


def _checked_scale(scale: float | Fraction, largest: int) -> Fraction:
    if not math.isfinite(scale) or not Fraction(1, 8) <= Fraction(scale) <= largest:
        raise ConfigurationError(
            f"discrete Laplace noise of scale {float(scale):g} integer units",
            f"choose the integer scale so that L1 sensitivity / epsilon lies between 1/8 and {largest}",
        )
    return Fraction(scale)


def _laplace_deviation(scale: Fraction) -> float:
    rate = 1 / float(scale)
    return math.sqrt(2 * math.exp(-rate)) / -math.expm1(-rate)


def exp_fixed(exponent: Fraction) -> int:
    """exp(-exponent), exponent >= 0, in units of 2^-256 and within one of them, by integer arithmetic alone.

    The Taylor series of exp(exponent / 2^h) < e has positive terms only; its reciprocal is squared h times.
    """
    bits = _FRACTION_BITS + 64
    halvings = math.ceil(exponent).bit_length()
    reduced = (exponent.numerator << bits) // (exponent.denominator << halvings)
    term = total = 1 << bits
    order = 1
    while term:
        term = (term * reduced >> bits) // order
        total += term
        order += 1
    value = (1 << 2 * bits) // total
    for _ in range(halvings):
        value = value * value >> bits
    return value >> (bits - _FRACTION_BITS)


# The tables' weights are fixed-point numbers with 256 fractional bits. Each recurrence truncates, so a cumulative sum
# of N weights is off by less than N^3 2^-256, far below the 2^-128 to which a boundary is rounded.


@lru_cache(maxsize=_CACHED_TABLES)
def _gaussian_table(numerator: int, denominator: int) -> CumulativeTable:
    """Folded N_Z(0, v), v = numerator / denominator: weights 1, 2 e^(-1/2v), 2 e^(-4/2v), ..."""
    variance = Fraction(numerator, denominator)
    ratio = exp_fixed(1 / (2 * variance))
    shrink = exp_fixed(1 / variance)
    weight = total = _ONE
    weights = [_ONE]
    while 2 * weight * ratio > (total >> TAIL_BITS) * (_ONE - ratio):
        # Sixteen at a time: the test for the tail costs more than a step.
        for _ in range(16):
            weight = weight * ratio >> _FRACTION_BITS
            ratio = ratio * shrink >> _FRACTION_BITS
            weights.append(2 * weight)
            total += 2 * weight
    return CumulativeTable.of_weights(weights, Fraction(1, 1 << TAIL_BITS))


@lru_cache(maxsize=_CACHED_TABLES)
def _laplace_table(scale: Fraction) -> CumulativeTable:
    """Folded discrete Laplace: weights 1, 2 p, 2 p^2, ... with p = exp(-1 / scale)."""
    ratio = exp_fixed(1 / scale)
    weight = total = _ONE
    weights = [_ONE]
    while 2 * weight * ratio > (total >> TAIL_BITS) * (_ONE - ratio):
        weight = weight * ratio >> _FRACTION_BITS
        weights.append(2 * weight)
        total += 2 * weight
    return CumulativeTable.of_weights(weights, Fraction(1, 1 << TAIL_BITS))


@lru_cache(maxsize=_CACHED_TABLES)
def _geometric_table(scale: Fraction, limit: int) -> CumulativeTable:
    """Geometric law, weights p^k with p = exp(-1 / scale); with a ``limit`` only k < limit, which is then exact."""
    ratio = exp_fixed(1 / scale)
    weight = total = _ONE
    weights = [_ONE]
    while len(weights) < limit or (not limit and weight * ratio > (total >> TAIL_BITS) * (_ONE - ratio)):
        weight = weight * ratio >> _FRACTION_BITS
        weights.append(weight)
        total += weight
    return CumulativeTable.of_weights(weights, Fraction(0) if limit else Fraction(1, 1 << TAIL_BITS))


@lru_cache(maxsize=_CACHED_TABLES)
def _polya_table(scale: Fraction, n: int) -> CumulativeTable:
    """Negative binomial NB(1/n, p), p = exp(-1 / scale): successive weights in the ratio p (k + 1/n) / (k + 1)."""
    ratio = exp_fixed(1 / scale)
    weight = total = _ONE
    weights = [_ONE]
    while weight * ratio > (total >> TAIL_BITS) * (_ONE - ratio):
        k = len(weights) - 1
        weight = (weight * ratio >> _FRACTION_BITS) * (k * n + 1) // ((k + 1) * n)
        weights.append(weight)
        total += weight
    return CumulativeTable.of_weights(weights, Fraction(1, 1 << TAIL_BITS))
