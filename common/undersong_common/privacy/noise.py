"""Draws exact discrete noise from a cryptographic stream.

The same seed gives the same noise on every machine: the tables come from integer arithmetic with 256 fractional bits
and the words are little-endian. Nothing is ever computed from a floating-point draw (Mironov 2012). Every law states a
bound on its statistical distance per sample, which the accounting adds to delta; for the discrete Gaussian it is below
2^-110.

Known limit: a table look-up is not constant-time, see docs/threat-model.md.
"""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Int64, UInt64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.privacy.stream import KeyStream, LongStream, wipe

# A bound for every discrete Gaussian here: add it, times the number of samples of a run, to delta.
STATISTICAL_DISTANCE = Fraction(1, 2**110)
# A table leaves a mass of at most 2^-TAIL_BITS of its law beyond its last value.
TAIL_BITS = 113
# docs/privacy.md, "Noise": N_Z(0, s^2) is a randomised rounding of N(0, s^2 - 4), up to exp(+-4 exp(-2 pi^2 4)) a
# coordinate.
ROUNDING_VARIANCE = 4
SMALLEST_SHARE_SIGMA = 3.0  # smallest deviation of one party's noise, in integer units, for the rounding above

Law = Literal["gaussian", "laplace"]

_FRACTION_BITS = 256
_ONE = 1 << _FRACTION_BITS
# Number of draws at a time, at which stream, words and values stay in the second-level cache.
_CHUNK = 1 << 14
_CACHED_TABLES = 64
BLOCK_BYTES = 16
GUIDE_BITS = 14
TABLE_BITS = 127
NARROW = 512  # boundaries, the sentinel's included: a narrow table takes 50 kB, and 1 draw in 32 is searched at most
_SEARCH = -2  # entry of a guide for a bucket in which a search finds the value
_GUIDE_SHIFT = np.uint64(64 - GUIDE_BITS)

Signed = npt.NDArray[np.signedinteger[Any]]
Target = Int64 | npt.NDArray[np.uint32] | UInt64


@dataclass(frozen=True, repr=False, eq=False)
class CumulativeTable:
    """Samples a law on 0, 1, 2, ... from a table of its cumulative boundaries F_1 <= F_2 <= ..., in units of 2^-127.

    Sampling from it is exact, vectorised, and the same on every machine. One sample consumes one 16-byte block of the
    stream, read as two little-endian 64-bit words (high, low): the upper 127 of the 128 bits choose the value, the last
    bit is a free sign. The value is the number of cumulative boundaries that do not exceed the 127 bits. A guide of
    2^14 entries answers from the top 14 bits if the bucket holds at most one boundary, and a binary search otherwise
    (Chen and Asau 1974, "guide tables"); the low word decides only if the high words tie. Of a narrow table every
    bucket with a boundary is searched: few draws fall there, and the others need no comparison.

    Attributes:
        high, low: the two words of 2 F_j, uint64 [boundaries + 1]; the last entry is a sentinel no draw passes.
        guide: int64 (int16 if narrow) [2^14], the first candidate value of a bucket, or -2 if a search is needed.
        distance: a bound on the statistical distance of one draw from the exact law.
    """

    high: UInt64
    low: UInt64
    guide: Signed
    distance: Fraction

    @staticmethod
    def of_weights(weights: Sequence[int], tail_mass: Fraction) -> "CumulativeTable":
        """Makes the table of a law proportional to ``weights``, beyond which it has a mass of at most ``tail_mass``.

        ``weights`` must be accurate to well below 2^-128 of their sum (the callers work with 256 fractional bits).
        Each boundary is rounded to 2^-127, so a value's probability is off by at most 2^-127 and the draw is within
        ``len(weights) * 2^-128 + tail`` of the exact law. Raises InternalError for weights that are no law.
        """
        total_weight = sum(weights)
        if total_weight <= 0 or min(weights) < 0:
            raise InternalError("a table needs non-negative weights with a positive sum", code="no-law")
        boundary_bytes: list[bytes] = []
        largest_boundary = 1 << TABLE_BITS
        cumulative_weight = 0
        for weight in weights:
            cumulative_weight += weight
            rounded_boundary = ((cumulative_weight << (TABLE_BITS + 1)) + total_weight) // (2 * total_weight)
            if rounded_boundary >= largest_boundary:
                break
            boundary_bytes.append((2 * rounded_boundary).to_bytes(BLOCK_BYTES, "little"))
        boundary_words = np.frombuffer(bytearray().join(boundary_bytes), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        sentinel_word = np.array([2**64 - 1], dtype=np.uint64)
        high_words = np.concatenate([boundary_words[:, 1], sentinel_word])
        low_words = np.concatenate([boundary_words[:, 0], sentinel_word])
        bucket_sizes = np.bincount((high_words[:-1] >> _GUIDE_SHIFT).view(np.int64), minlength=1 << GUIDE_BITS)
        bucket_guide = np.cumsum(bucket_sizes) - bucket_sizes
        if len(high_words) <= NARROW:
            bucket_guide = bucket_guide.astype(np.int16)
        bucket_guide[bucket_sizes > (len(high_words) > NARROW)] = _SEARCH
        for table_array in (high_words, low_words, bucket_guide):
            table_array.setflags(write=False)
        return CumulativeTable(
            high_words, low_words, bucket_guide, Fraction(len(weights), 1 << (TABLE_BITS + 1)) + tail_mass
        )

    def draw(self, high: UInt64, low: UInt64) -> Signed:
        """Returns one value per pair of words, int64 or int16 [n] as the guide; the last bit of ``low`` is not used."""
        drawn_values: Signed = np.take(self.guide, (high >> _GUIDE_SHIFT).view(np.int64), mode="clip")
        is_tied = False
        if len(self.high) > NARROW:
            high_boundary = np.take(self.high, drawn_values, mode="clip")
            drawn_values += high > high_boundary
            is_tied = bool((high == high_boundary).any())
        # A value that is still negative after the increment lies in a bucket that needs a search.
        unsettled_rows = np.flatnonzero(drawn_values < 0)
        if unsettled_rows.size:
            unsettled_words = high[unsettled_rows]
            searched_positions = np.searchsorted(self.high, unsettled_words, side="left")
            drawn_values[unsettled_rows] = searched_positions
            is_tied = is_tied or bool((self.high[searched_positions] == unsettled_words).any())
        if is_tied:
            self._settle_boundaries(drawn_values, high, low)
        return drawn_values

    def _settle_boundaries(self, drawn_values: Signed, high: UInt64, low: UInt64) -> None:
        """Corrects in place the values of draws whose high word equals a boundary's, by comparing the low words."""
        last_index = len(self.high) - 1
        for index in np.flatnonzero(self.high[np.minimum(drawn_values, last_index)] == high):
            first_equal = np.searchsorted(self.high[:last_index], high[index], side="left")
            after_equal = np.searchsorted(self.high[:last_index], high[index], side="right")
            drawn_values[index] = first_equal + np.searchsorted(
                self.low[first_equal:after_equal], low[index], side="right"
            )


class _Scratch(threading.local):
    """One buffer for a chunk of a stream per thread; with a new buffer at every use the system would map it anew."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(2 * BLOCK_BYTES * _CHUNK))


_SCRATCH = _Scratch()


class IntegerNoise(ABC):
    """A symmetric law on the integers; each sample consumes a fixed number of 16-byte blocks of the stream.

    Attributes:
        blocks: 16-byte stream blocks a sample consumes; sample i reads blocks ``i * blocks`` onwards, whatever the
            chunking.
        distance: bound on the statistical distance of one sample from the exact law.
    """

    blocks: int
    distance: Fraction

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation in integer units."""

    @abstractmethod
    def _draw(self, words: UInt64) -> Int64:
        """Returns samples, int64 [m], from stream words uint64 [m, 2 * blocks]."""

    def sample(self, stream: KeyStream, n: int) -> Int64:
        """Returns the next ``n`` samples of the stream, int64 [n]."""
        samples = np.zeros(n, dtype=np.int64)
        self.add_to(samples, stream)
        return samples

    def add_to(self, target: Target, stream: KeyStream | LongStream, sign: int = 1) -> None:
        """Adds (``sign`` 1) or subtracts (-1) the next ``len(target)`` samples of the stream, in place.

        ``target`` is int64, uint32 or uint64 [d]; unsigned words wrap around.
        """
        if sign not in (1, -1):
            raise InternalError(f"noise is added (1) or subtracted (-1), got sign {sign!r}", code="noise-sign")
        random_width = BLOCK_BYTES * self.blocks
        window = _SCRATCH.room[: random_width * min(_CHUNK, len(target))]
        for chunk_start in range(0, len(target), _CHUNK):
            target_chunk = target[chunk_start : chunk_start + _CHUNK]
            random_bytes = window[: random_width * len(target_chunk)]
            stream.fill(random_bytes)
            random_words = (
                np.frombuffer(random_bytes, dtype="<u8")
                .astype(np.uint64, copy=False)
                .reshape(len(target_chunk), 2 * self.blocks)
            )
            noise = self._draw(random_words)
            if sign == 1:
                target_chunk += noise.astype(target_chunk.dtype, copy=False)
            else:
                target_chunk -= noise.astype(target_chunk.dtype, copy=False)
        wipe(window)


class DiscreteGaussian(IntegerNoise):
    """N_Z(0, sigma^2): P(x) proportional to exp(-x^2 / (2 sigma^2)) on the integers (Canonne, Kamath, Steinke 2020).

    Up to ``TABLE_SIGMA`` one table gives |x| and a free bit its sign. Above, and below ``LARGEST_SIGMA``, a
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
        """``sigma`` is the standard deviation in integer units; a float stands for its exact binary value.

        Raises ConfigurationError for a sigma outside [1/4, 2^23].
        """
        if not math.isfinite(sigma) or sigma <= 0:
            raise ConfigurationError(
                f"the standard deviation of the noise is {sigma}, not above 0 and finite",
                "give a positive number",
                code="sigma-out-of-range",
            )
        self._set_variance(Fraction(sigma) ** 2)

    @classmethod
    def of_variance(cls, variance: float | Fraction) -> "DiscreteGaussian":
        """Makes the law whose sigma^2 is exactly ``variance``; a float sigma would be rounded."""
        gaussian_law = cls.__new__(cls)
        gaussian_law._set_variance(Fraction(variance))
        return gaussian_law

    @classmethod
    def check_variance(cls, variance: Fraction) -> None:
        """Raises ConfigurationError for a variance outside [1/16, 2^46] squared integer units."""
        if not cls.SMALLEST_SIGMA**2 <= variance <= cls.LARGEST_SIGMA**2:
            raise ConfigurationError(
                f"discrete noise of a variance of {float(variance):.4g} squared integer units is out of range",
                "choose the integer scale so that sigma lies between 1/4 and 2^23 integer units",
                code="sigma-out-of-range",
            )

    def _set_variance(self, variance: Fraction) -> None:
        self.check_variance(variance)
        self.variance = variance
        self._stride = 0
        self._coarse_table: CumulativeTable | None = None
        fine_variance = variance
        if variance > self.TABLE_SIGMA**2:
            # A coarse variance of at most 2^24 keeps both tables below 2^16 entries.
            stride = math.isqrt(math.ceil(variance / (1 << 24)) - 1) + 1
            coarse_variance = math.floor(variance / stride**2) - 5
            fine_variance = variance - coarse_variance * stride**2
            self._stride = stride
            self._coarse_table = _gaussian_table(coarse_variance, 1)
        self._fine_table = _gaussian_table(fine_variance.numerator, fine_variance.denominator)
        self.blocks = 1 if self._coarse_table is None else 2
        self.distance = self._fine_table.distance
        if self._coarse_table is not None:
            self.distance += self._coarse_table.distance + Fraction(1, 2**139)
        if self.distance >= STATISTICAL_DISTANCE:
            raise InternalError("a noise table misses its stated statistical distance")

    def __repr__(self) -> str:
        return f"DiscreteGaussian(sigma={self.deviation:g})"

    @property
    def deviation(self) -> float:
        """sigma in integer units; the variance of N_Z(0, sigma^2) is below sigma^2 by a factor e^(-19 sigma^2)."""
        return math.sqrt(self.variance)

    def _draw(self, words: UInt64) -> Int64:
        drawn_value = _signed_draw(self._fine_table, words[:, 0], words[:, 1])
        if self._coarse_table is not None:
            drawn_value += self._stride * _signed_draw(self._coarse_table, words[:, 2], words[:, 3])
        return drawn_value


class DiscreteLaplaceShare(IntegerNoise):
    """One party's share of discrete Laplace noise, the difference of two draws from NB(1/n_min, exp(-1/scale)).

    The negative binomial (Polya) law is infinitely divisible: ``n_min`` shares sum to exactly the discrete Laplace law,
    P(x) proportional to exp(-|x| / scale) (Ghosh, Roughgarden, Sundararajan 2009), and further shares only add
    independent noise (Goryczka and Xiong 2017). Both terms come from one table; the bound on the distance grows with
    the scale and is 2^-106 at ``LARGEST_SCALE``.
    """

    LARGEST_SCALE = 1 << 14

    def __init__(self, scale: float | Fraction, n_min: int) -> None:
        """``scale`` is L1 sensitivity / epsilon in integer units; ``n_min`` is the assumed number of honest survivors.

        Raises ConfigurationError for a scale outside [1/8, 2^14] or ``n_min`` below 1.
        """
        if n_min < 1:
            raise ConfigurationError(
                f"the noise is shared among {n_min} honest parties, fewer than one",
                "count on at least one honest survivor",
                code="no-survivor",
            )
        if not math.isfinite(scale) or not Fraction(1, 8) <= Fraction(scale) <= self.LARGEST_SCALE:
            raise ConfigurationError(
                f"discrete Laplace noise of a scale of {float(scale):g} integer units is out of range",
                f"choose the integer scale so that L1 sensitivity / epsilon lies between 1/8 and {self.LARGEST_SCALE}",
                code="scale-out-of-range",
            )
        self.scale = Fraction(scale)
        self.n_min = n_min
        self.blocks = 2

    @cached_property
    def _cumulative_table(self) -> CumulativeTable:
        # The table is made at the first draw, because it takes seconds, and a check of a plan needs only its figures.
        return _polya_table(self.scale, self.n_min)

    @cached_property
    def distance(self) -> Fraction:  # type: ignore[override]
        return 2 * self._cumulative_table.distance

    def __repr__(self) -> str:
        return f"DiscreteLaplaceShare(scale={float(self.scale):g}, n_min={self.n_min})"

    @property
    def deviation(self) -> float:
        """Standard deviation of the share in integer units."""
        inverse_scale = 1 / float(self.scale)
        return math.sqrt(2 * math.exp(-inverse_scale) / self.n_min) / -math.expm1(-inverse_scale)

    def _draw(self, words: UInt64) -> Int64:
        drawn_value = self._cumulative_table.draw(words[:, 0], words[:, 1])
        drawn_value -= self._cumulative_table.draw(words[:, 2], words[:, 3])
        return drawn_value.astype(np.int64, copy=False)


def _signed_draw(table: CumulativeTable, high: UInt64, low: UInt64) -> Int64:
    """Draws magnitudes from a table of |x| and gives each the low word's last bit as its sign; zero stays zero."""
    drawn_value = table.draw(high, low)
    sign_flip: Signed = -(low.astype(drawn_value.dtype) & 1)
    drawn_value ^= sign_flip
    drawn_value -= sign_flip
    return drawn_value.astype(np.int64, copy=False)


def exp_fixed(exponent: Fraction) -> int:
    """Returns exp(-exponent) for exponent >= 0, in units of 2^-256, off by at most one unit, by integer arithmetic.

    The Taylor series of exp(exponent / 2^h) < e has positive terms only; its reciprocal is squared h times.
    """
    working_bits = _FRACTION_BITS + 64
    halvings = math.ceil(exponent).bit_length()
    reduced_exponent = (exponent.numerator << working_bits) // (exponent.denominator << halvings)
    series_term = series_sum = 1 << working_bits
    series_order = 1
    while series_term:
        series_term = (series_term * reduced_exponent >> working_bits) // series_order
        series_sum += series_term
        series_order += 1
    exponential = (1 << 2 * working_bits) // series_sum
    for _ in range(halvings):
        exponential = exponential * exponential >> working_bits
    return exponential >> (working_bits - _FRACTION_BITS)


# The tables' weights are fixed-point numbers with 256 fractional bits. Each recurrence truncates, so a cumulative sum
# of N weights is off by less than N^3 2^-256, far below the 2^-128 to which a boundary is rounded.


@lru_cache(maxsize=_CACHED_TABLES)
def _gaussian_table(numerator: int, denominator: int) -> CumulativeTable:
    """Returns the table of |x| for N_Z(0, v), v = numerator / denominator: weights 1, 2 e^(-1/2v), 2 e^(-4/2v), ..."""
    variance = Fraction(numerator, denominator)
    next_ratio = exp_fixed(1 / (2 * variance))
    ratio_step = exp_fixed(1 / variance)
    next_weight = total_weight = _ONE
    table_weights = [_ONE]
    while 2 * next_weight * next_ratio > (total_weight >> TAIL_BITS) * (_ONE - next_ratio):
        # The tail is tested after sixteen weights each, because the test costs more than a weight.
        for _ in range(16):
            next_weight = next_weight * next_ratio >> _FRACTION_BITS
            next_ratio = next_ratio * ratio_step >> _FRACTION_BITS
            table_weights.append(2 * next_weight)
            total_weight += 2 * next_weight
    return CumulativeTable.of_weights(table_weights, Fraction(1, 1 << TAIL_BITS))


@lru_cache(maxsize=_CACHED_TABLES)
def _polya_table(scale: Fraction, n: int) -> CumulativeTable:
    """Returns the table of NB(1/n, p), p = exp(-1 / scale): successive weights in the ratio p (k + 1/n) / (k + 1)."""
    scale_ratio = exp_fixed(1 / scale)
    next_weight = total_weight = _ONE
    table_weights = [_ONE]
    while next_weight * scale_ratio > (total_weight >> TAIL_BITS) * (_ONE - scale_ratio):
        last_index = len(table_weights) - 1
        next_weight = (next_weight * scale_ratio >> _FRACTION_BITS) * (last_index * n + 1) // ((last_index + 1) * n)
        table_weights.append(next_weight)
        total_weight += next_weight
    return CumulativeTable.of_weights(table_weights, Fraction(1, 1 << TAIL_BITS))
