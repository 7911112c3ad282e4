"""Checks of the noise that an audit finds: it is compared with the planned noise in its law, place and independence.

Every check reads normal scores: the quantile of a value under the planned law, as the same quantile of N(0, 1). They
are independent standard normals in a sound build, whichever the law. ``alarm`` bounds the chance of a false accusation
by one check over all sums, runs and parties. The tails are exact (binomial, chi-square, normal), or are bounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import fft
from scipy.special import ndtri
from scipy.stats import binom, chi2, norm

from undersong_common.arrays import Bools, Float32, Float64, Int64

WIDEST_TABLE = 1 << 12  # integer deviation above which a discrete Gaussian is compared with the continuous one
SMALLEST_TAIL = 1e-16  # Quantiles are clipped to it, so scores end at 8.2.
REACH = 80  # scales of Laplace noise in a table; e^-40 is beyond either end
COMPARED_AT_SHIFTS = 4_000_000_000  # pairs of sums times shifts that are compared at most, one or two minutes
MOST_NAMED = 3  # places that one check names at most
FEWEST_COMPARED = 64  # coordinates; smaller sums are not compared with each other
_TAILS = np.array([1e-4, 1e-3, 1e-2])
_LEVELS = np.sort(np.concatenate([_TAILS, np.arange(1, 32) / 32, 1.0 - _TAILS]))
_EDGES: Float64 = ndtri(_LEVELS)
_MASSES: Float64 = np.diff(_LEVELS, prepend=0.0, append=1.0)


def gaussian_scores(noise: Int64, variance: float) -> Float32:
    """Normal scores of noise that should be discrete Gaussian of this variance, float32, of the shape of ``noise``."""
    deviation = math.sqrt(variance)
    if deviation > WIDEST_TABLE:
        return (noise / deviation).astype(np.float32)
    return _score_integers(noise, _gaussian_table(variance))


def laplace_scores(noise: Int64, scale: float, shares: float) -> Float32:
    """Normal scores, float32, of noise that should be discrete Laplace of this scale, or a fraction of it.

    Args:
        shares: fraction of the planned noise shares that ``noise`` is the sum of; 1.0 is all.
    """
    return _score_integers(noise, _laplace_table(scale, shares))


def largest_laplace_mass(scale: float, shares: float) -> float:
    """Returns the largest probability of one integer under the law of :func:`laplace_scores`."""
    return float(_laplace_table(scale, shares).max())


@lru_cache(maxsize=16)
def _gaussian_table(variance: float) -> Float64:
    reach = math.ceil(12.0 * math.sqrt(variance))
    weights: Float64 = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2.0 * variance))
    weights /= weights.sum()
    return weights


@lru_cache(maxsize=4)
def _laplace_table(scale: float, shares: float) -> Float64:
    """Inverts the characteristic function of NB(shares, p) - NB(shares, p), p = exp(-1 / scale)."""
    size = 1 << math.ceil(math.log2(REACH * max(scale, 1.0)))
    p = math.exp(-1.0 / scale)
    cosines = np.cos(2.0 * np.pi * np.arange(size // 2 + 1) / size)
    masses: Float64 = fft.irfft(((1.0 - p) ** 2 / (1.0 - 2.0 * p * cosines + p * p)) ** shares, size)
    return np.clip(np.roll(masses, size // 2), 0.0, None)[1:]


def _score_integers(noise: Int64, weights: Float64) -> Float32:
    """Scores under a law on the integers around 0; within one integer's mass the quantile is uniform."""
    place = np.clip(noise + len(weights) // 2, 0, len(weights) - 1)
    below = (np.cumsum(weights) - weights)[place] + np.random.default_rng().random(len(noise)) * weights[place]
    return ndtri(np.clip(below, SMALLEST_TAIL, 1.0 - SMALLEST_TAIL)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Shape:
    """Counts and energy of scores; they add up over runs and sums.

    Attributes:
        counts: scores between the quantiles, int64.
        energies, sizes: sum of squares and number of the coordinates in each block: all, halves, quarters, and
            residues modulo 2 to 8.
        reach: largest absolute score; 0 of no score.
    """

    counts: Int64
    energies: Float64
    sizes: Int64
    reach: float

    def __add__(self, addend: "Shape") -> "Shape":
        return Shape(
            self.counts + addend.counts,
            self.energies + addend.energies,
            self.sizes + addend.sizes,
            max(self.reach, addend.reach),
        )


def shape_of(scores: Float32) -> Shape:
    """Shape of the scores of one sum or of one party's share in it."""
    n = len(scores)
    squares = scores.astype(np.float64) ** 2
    blocks = [
        *(slice(n * part // parts, n * (part + 1) // parts) for parts in (1, 2, 4) for part in range(parts)),
        *(slice(residue, None, modulus) for modulus in range(2, 9) for residue in range(modulus)),
    ]
    counts = np.bincount(np.searchsorted(_EDGES, scores), minlength=len(_MASSES))
    energies = np.array([squares[block].sum() for block in blocks])
    sizes = np.array([len(squares[block]) for block in blocks])
    return Shape(counts, energies, sizes, float(np.abs(scores).max(initial=0.0)))


def other_law(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise whose scores do not fall between the quantiles as often as planned."""
    counts = np.array([shape.counts for shape in shapes.values()]).reshape(-1, len(_MASSES))
    totals = counts.sum(axis=1, keepdims=True)
    tail = np.minimum(binom.cdf(counts, totals, _MASSES), binom.sf(counts - 1, totals, _MASSES))
    return _name_faulty(shapes, tail.min(axis=1, initial=1.0) < alarm / (2 * max(counts.size, 1)))


def without_tails(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise that never goes as far from 0 as so many values of the planned law do."""
    totals = np.array([shape.counts.sum() for shape in shapes.values()])
    within = 1.0 - 2.0 * norm.sf(np.array([shape.reach for shape in shapes.values()]))
    return _name_faulty(shapes, within**totals < alarm / max(len(shapes), 1))


def uneven(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Names, of ``shapes`` by name, of noise that is too large or too small in a block of coordinates."""
    energies = np.array([shape.energies for shape in shapes.values()])
    sizes = np.array([shape.sizes for shape in shapes.values()])
    freedom = np.maximum(sizes, 1)
    tail = np.minimum(chi2.cdf(energies, freedom), chi2.sf(energies, freedom))
    tail = np.where(sizes > 0, tail, 1.0).reshape(len(shapes), -1)
    return _name_faulty(shapes, tail.min(axis=1, initial=1.0) < alarm / (2 * max(tail.size, 1)))


def repeated_within(series: Mapping[str, Sequence[Float32]], alarm: float) -> list[str]:
    """Names of the sums whose noise, in one run or in all together, is correlated with itself at some lag.

    ``series``: the scores of each sum by its name, one array per run. ``alarm``: chance of a false alarm, over all
    sums and lags together.

    A lag's sum over N products is a quadratic form of norm 1: beyond sqrt(2 N t) + 2 t with a chance of e^-t (Laurent
    and Massart 2000, lemma 1).
    """
    scores_by_sum = {name: np.array(rows, dtype=np.float64) for name, rows in series.items() if len(rows[0]) > 1}
    tests = sum((len(rows) + 1) * rows.shape[1] for rows in scores_by_sum.values())
    t = math.log(2 * max(tests, 1) / alarm)
    is_repeated = []
    for rows in scores_by_sum.values():
        runs, n = rows.shape
        spectra = np.abs(fft.rfft(rows, fft.next_fast_len(2 * n, real=True))) ** 2
        lags = fft.irfft(spectra, fft.next_fast_len(2 * n, real=True))[:, 1:n]
        one_run_bound, all_runs_bound = (math.sqrt(2 * many * n * t) + 2 * t for many in (1, runs))
        is_repeated.append(np.abs(lags).max() > one_run_bound or np.abs(lags.sum(axis=0)).max() > all_runs_bound)
    return _name_faulty(scores_by_sum, np.array(is_repeated, dtype=bool))


def repeated_between(series: Sequence[tuple[str, Float32]], alarm: float) -> list[str]:
    """Pairs of sums, of (name, scores) in ``series``, whose noise is correlated at some shift, over all coordinates.

    Given one of the two, their product is normal, of the norm of what overlaps. Each sum is compared with the
    following ones, in order of length, as far as ``COMPARED_AT_SHIFTS`` goes; all pairs are compared unshifted.
    """
    by_length = sorted(
        (named_scores for named_scores in series if len(named_scores[1]) >= FEWEST_COMPARED),
        key=lambda named_scores: len(named_scores[1]),
    )
    if len(by_length) < 2:
        return []
    names = [name for name, _ in by_length]
    many = len(by_length)
    rows = np.zeros((many, len(by_length[-1][1])), dtype=np.float32)
    for row, (_, scores) in zip(rows, by_length, strict=True):
        row[: len(scores)] = scores
    norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-30)
    length = fft.next_fast_len(2 * rows.shape[1], real=True)
    following = min(many - 1, max(1, COMPARED_AT_SHIFTS // (many * length)))
    above = norm.isf(alarm / (2 * many * (many + following * length)))
    pairs = np.argwhere(np.triu(np.abs(rows @ rows.T) > above * norms[:, None], 1)).tolist()
    spectra = fft.rfft(rows, length)
    for first in range(many - 1):
        if len(pairs) >= MOST_NAMED:
            break
        products = fft.irfft(spectra[first].conj() * spectra[first + 1 : first + 1 + following], length)
        partners = np.flatnonzero(np.abs(products).max(axis=1) > above * norms[first]) + first + 1
        for partner in partners.tolist():
            if [first, partner] not in pairs:
                pairs.append([first, partner])
    return [f"{names[first]} and {names[second]}" for first, second in pairs[:MOST_NAMED]]


def _name_faulty(names: Mapping[str, object], at_fault: Bools) -> list[str]:
    return [name for name, fault in zip(names, at_fault, strict=True) if fault][:MOST_NAMED]
