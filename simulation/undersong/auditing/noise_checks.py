"""Checks of the noise that an audit finds, against the plan: its law, its size in each part of a vector, independence.

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
MOST_NAMED = 3  # largest number of faulty noises that one check names
FEWEST_COMPARED = 64  # coordinates; smaller sums are not compared with each other
# Scores are counted between the quantiles at these levels; ``_EDGES`` are the quantiles.
_TAILS = np.array([1e-4, 1e-3, 1e-2])
_LEVELS = np.sort(np.concatenate([_TAILS, np.arange(1, 32) / 32, 1.0 - _TAILS]))
_EDGES: Float64 = ndtri(_LEVELS)
_MASSES: Float64 = np.diff(_LEVELS, prepend=0.0, append=1.0)


def gaussian_scores(noise: Int64, variance: float) -> Float32:
    """Returns normal scores of noise that should be discrete Gaussian of ``variance``; float32, shaped as ``noise``."""
    deviation = math.sqrt(variance)
    if deviation > WIDEST_TABLE:
        return (noise / deviation).astype(np.float32)
    return _score_integers(noise, _gaussian_table(variance))


def laplace_scores(noise: Int64, scale: float, share_fraction: float) -> Float32:
    """Returns normal scores, float32, of noise that should be discrete Laplace of ``scale``, or a fraction of it.

    Args:
        share_fraction: fraction of the planned noise shares of which ``noise`` is the sum; 1.0 for all of them.
    """
    return _score_integers(noise, _laplace_table(scale, share_fraction))


def largest_laplace_mass(scale: float, share_fraction: float) -> float:
    """Returns the largest probability of one integer under the law of :func:`laplace_scores`."""
    return float(_laplace_table(scale, share_fraction).max())


@lru_cache(maxsize=16)
def _gaussian_table(variance: float) -> Float64:
    largest_value = math.ceil(12.0 * math.sqrt(variance))
    value_weights: Float64 = np.exp(-(np.arange(-largest_value, largest_value + 1.0) ** 2) / (2.0 * variance))
    value_weights /= value_weights.sum()
    return value_weights


@lru_cache(maxsize=4)
def _laplace_table(scale: float, share_fraction: float) -> Float64:
    """Inverts the characteristic function of NB(shares, p) - NB(shares, p), p = exp(-1 / scale)."""
    table_size = 1 << math.ceil(math.log2(REACH * max(scale, 1.0)))
    success_probability = math.exp(-1.0 / scale)
    frequency_cosines = np.cos(2.0 * np.pi * np.arange(table_size // 2 + 1) / table_size)
    value_masses: Float64 = fft.irfft(
        (
            (1.0 - success_probability) ** 2
            / (1.0 - 2.0 * success_probability * frequency_cosines + success_probability * success_probability)
        )
        ** share_fraction,
        table_size,
    )
    return np.clip(np.roll(value_masses, table_size // 2), 0.0, None)[1:]


def _score_integers(noise: Int64, weights: Float64) -> Float32:
    """Returns normal scores of integers whose law around 0 is ``weights``; quantiles are drawn within a mass."""
    weight_indices = np.clip(noise + len(weights) // 2, 0, len(weights) - 1)
    lower_ranks = (np.cumsum(weights) - weights)[weight_indices]
    uniform_ranks = lower_ranks + np.random.default_rng().random(len(noise)) * weights[weight_indices]
    return ndtri(np.clip(uniform_ranks, SMALLEST_TAIL, 1.0 - SMALLEST_TAIL)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Shape:
    """Counts and energy of scores; they add up over runs and sums.

    Attributes:
        counts: number of scores between each two neighbouring quantiles (``_EDGES``), int64.
        energies, sizes: sum of squares and number of the coordinates in each block: all, halves, quarters, and
            residues modulo 2 to 8.
        reach: largest absolute score; 0 without any score.
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
    """Returns the :class:`Shape` of the scores of one sum or of one party's share in it."""
    score_count = len(scores)
    squared_scores = scores.astype(np.float64) ** 2
    score_slices = [
        *(
            slice(score_count * part_number // part_count, score_count * (part_number + 1) // part_count)
            for part_count in (1, 2, 4)
            for part_number in range(part_count)
        ),
        *(slice(residue, None, modulus) for modulus in range(2, 9) for residue in range(modulus)),
    ]
    bin_counts = np.bincount(np.searchsorted(_EDGES, scores), minlength=len(_MASSES))
    slice_energies = np.array([squared_scores[score_slice].sum() for score_slice in score_slices])
    slice_sizes = np.array([len(squared_scores[block]) for block in score_slices])
    return Shape(bin_counts, slice_energies, slice_sizes, float(np.abs(scores).max(initial=0.0)))


def other_law(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Returns the names of noises in ``shapes`` whose scores fall between two quantiles too often or too seldom."""
    bin_counts = np.array([shape.counts for shape in shapes.values()]).reshape(-1, len(_MASSES))
    shape_totals = bin_counts.sum(axis=1, keepdims=True)
    tail_probabilities = np.minimum(
        binom.cdf(bin_counts, shape_totals, _MASSES), binom.sf(bin_counts - 1, shape_totals, _MASSES)
    )
    return _name_faulty(shapes, tail_probabilities.min(axis=1, initial=1.0) < alarm / (2 * max(bin_counts.size, 1)))


def without_tails(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Returns the names of noises in ``shapes`` that stay closer to 0 than so many values of the planned law would."""
    shape_totals = np.array([shape.counts.sum() for shape in shapes.values()])
    within_probabilities = 1.0 - 2.0 * norm.sf(np.array([shape.reach for shape in shapes.values()]))
    return _name_faulty(shapes, within_probabilities**shape_totals < alarm / max(len(shapes), 1))


def uneven(shapes: Mapping[str, Shape], alarm: float) -> list[str]:
    """Returns the names of noises in ``shapes`` that are too large or too small in a block of coordinates."""
    slice_energies = np.array([shape.energies for shape in shapes.values()])
    slice_sizes = np.array([shape.sizes for shape in shapes.values()])
    degrees_of_freedom = np.maximum(slice_sizes, 1)
    tail_probabilities = np.minimum(
        chi2.cdf(slice_energies, degrees_of_freedom), chi2.sf(slice_energies, degrees_of_freedom)
    )
    tail_probabilities = np.where(slice_sizes > 0, tail_probabilities, 1.0).reshape(len(shapes), -1)
    return _name_faulty(
        shapes, tail_probabilities.min(axis=1, initial=1.0) < alarm / (2 * max(tail_probabilities.size, 1))
    )


def repeated_within(series: Mapping[str, Sequence[Float32]], alarm: float) -> list[str]:
    """Returns the names of sums whose noise, in one run or in all together, is correlated with itself at some lag.

    ``series``: the scores of each sum by its name, one array per run. ``alarm``: chance of a false alarm, over all
    sums and lags together.

    A lag's sum over N products is a quadratic form of norm 1: beyond sqrt(2 N t) + 2 t with a chance of e^-t (Laurent
    and Massart 2000, lemma 1).
    """
    scores_by_sum = {name: np.array(rows, dtype=np.float64) for name, rows in series.items() if len(rows[0]) > 1}
    test_count = sum((len(rows) + 1) * rows.shape[1] for rows in scores_by_sum.values())
    log_tests = math.log(2 * max(test_count, 1) / alarm)
    is_repeated = []
    for rows in scores_by_sum.values():
        observed_count, score_count = rows.shape
        power_spectra = np.abs(fft.rfft(rows, fft.next_fast_len(2 * score_count, real=True))) ** 2
        lag_products = fft.irfft(power_spectra, fft.next_fast_len(2 * score_count, real=True))[:, 1:score_count]
        one_run_bound, all_runs_bound = (
            math.sqrt(2 * run_count * score_count * log_tests) + 2 * log_tests for run_count in (1, observed_count)
        )
        is_repeated.append(
            np.abs(lag_products).max() > one_run_bound or np.abs(lag_products.sum(axis=0)).max() > all_runs_bound
        )
    return _name_faulty(scores_by_sum, np.array(is_repeated, dtype=bool))


def repeated_between(series: Sequence[tuple[str, Float32]], alarm: float) -> list[str]:
    """Returns the pairs of sums whose noise is correlated at some shift, over all coordinates.

    Given one of the two, their inner product is normal, with the norm of the overlapping part as its deviation. Each
    sum is compared with the following ones, in order of length, as far as ``COMPARED_AT_SHIFTS`` goes; all pairs are
    compared unshifted.

    Args:
        series: (name, scores) of each sum.
        alarm: chance of a false alarm, over all pairs and shifts together.
    """
    series_by_length = sorted(
        (named_scores for named_scores in series if len(named_scores[1]) >= FEWEST_COMPARED),
        key=lambda named_scores: len(named_scores[1]),
    )
    if len(series_by_length) < 2:
        return []
    series_names = [name for name, _ in series_by_length]
    series_count = len(series_by_length)
    score_rows = np.zeros((series_count, len(series_by_length[-1][1])), dtype=np.float32)
    for row, (_, scores) in zip(score_rows, series_by_length, strict=True):
        row[: len(scores)] = scores
    norms = np.maximum(np.linalg.norm(score_rows, axis=1), 1e-30)
    transform_length = fft.next_fast_len(2 * score_rows.shape[1], real=True)
    compared_count = min(series_count - 1, max(1, COMPARED_AT_SHIFTS // (series_count * transform_length)))
    largest_correlation = norm.isf(alarm / (2 * series_count * (series_count + compared_count * transform_length)))
    alike_pairs = np.argwhere(
        np.triu(np.abs(score_rows @ score_rows.T) > largest_correlation * norms[:, None], 1)
    ).tolist()
    score_spectra = fft.rfft(score_rows, transform_length)
    for first_place in range(series_count - 1):
        if len(alike_pairs) >= MOST_NAMED:
            break
        lag_products = fft.irfft(
            score_spectra[first_place].conj() * score_spectra[first_place + 1 : first_place + 1 + compared_count],
            transform_length,
        )
        alike_places = (
            np.flatnonzero(np.abs(lag_products).max(axis=1) > largest_correlation * norms[first_place])
            + first_place
            + 1
        )
        for alike_place in alike_places.tolist():
            if [first_place, alike_place] not in alike_pairs:
                alike_pairs.append([first_place, alike_place])
    return [f"{series_names[first]} and {series_names[second]}" for first, second in alike_pairs[:MOST_NAMED]]


def _name_faulty(names: Mapping[str, object], at_fault: Bools) -> list[str]:
    return [name for name, fault in zip(names, at_fault, strict=True) if fault][:MOST_NAMED]
