"""Estimates with their 95 % intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float64

CONFIDENCE_LEVEL = 0.95
CHANCE_ERRORS = 2.0  # standard errors within which a difference is chance
DIFFERENCE_WORDS: Mapping[int | None, str] = {1: "better", 0: "within chance", -1: "worse", None: "not measured"}
"""The word that every page has for a difference, by its sign (:func:`difference_sign`); None for one not measured."""


def difference_sign(difference: float, standard_error: float) -> int:
    """Returns the sign of a difference beyond ``CHANCE_ERRORS`` standard errors; 0 where chance explains it.

    >>> difference_sign(-17.0, 7.0), difference_sign(13.0, 7.0), difference_sign(17.0, 7.0)
    (-1, 0, 1)
    """
    if abs(difference) <= CHANCE_ERRORS * standard_error:
        return 0
    return 1 if difference > 0 else -1


def compare_words(sign: int, other: str) -> str:
    """Returns in words how a figure compares with that of ``other``, by the sign of their difference.

    >>> compare_words(0, "all texts"), compare_words(-1, "all texts")
    ('within chance of all texts', 'worse than all texts')
    """
    return f"{DIFFERENCE_WORDS[sign]} {'than' if sign else 'of'} {other}"


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided 95 % confidence interval."""

    value: float
    low: float
    high: float

    def in_words(self, show: Callable[[float], str], unit: str = "") -> str:
        """Writes the estimate with its unit, and the interval where there is one; a dash for NaN.

        Args:
            show: writes a number without its unit.
        """
        if math.isnan(self.value):
            return "–"
        if math.isnan(self.low):
            interval_words = ""
        else:
            interval_words = f" ({show(self.low)} to {show(self.high)})"
        return f"{show(self.value)}{unit}{interval_words}"

    @property
    def percent_words(self) -> str:
        """The estimate, a share, and its interval in per cent, as :meth:`in_words` writes them.

        >>> Interval(0.7, 0.6, 0.8).percent_words
        '70.0 % (60.0 to 80.0)'
        """
        return self.in_words(lambda share: f"{100 * share:.1f}", " %")


def clopper_pearson(successes: int, trials: int, level: float = CONFIDENCE_LEVEL) -> Interval:
    """Returns the share of successes and the exact (Clopper-Pearson) interval of their probability.

    >>> clopper_pearson(0, 10).low, round(clopper_pearson(0, 10).high, 4)
    (0.0, 0.3085)
    """
    from scipy.special import betaincinv

    failures, tail_share = trials - successes, (1.0 - level) / 2
    if successes:
        low_share = float(betaincinv(successes, failures + 1, tail_share))
    else:
        low_share = 0.0
    if failures:
        high_share = float(betaincinv(successes + 1, failures, 1.0 - tail_share))
    else:
        high_share = 1.0
    return Interval(successes / trials, low_share, high_share)


def over_seeds(values: Sequence[float]) -> Interval:
    """Returns the mean of a figure that was computed with several seeds, and Student's interval of that mean.

    The interval covers the variation by seed (split, starting weights, order), not that by test texts. Values that are
    not finite are left out. The mean is NaN without a value; the interval is NaN for fewer than two.

    >>> over_seeds([1.0, 2.0, 3.0]).value, round(over_seeds([1.0, 2.0, 3.0]).high, 3)
    (2.0, 4.484)
    """
    from scipy.stats import t

    finite_values = [value for value in values if math.isfinite(value)]
    if len(finite_values) < 2:
        return Interval(finite_values[0] if finite_values else math.nan, math.nan, math.nan)
    mean = float(np.mean(finite_values))
    # scipy's t-test is not used, because it warns of equal values, and seeds often have the same figure.
    standard_error = float(np.std(finite_values, ddof=1)) / math.sqrt(len(finite_values))
    interval_radius = float(t.ppf(0.5 + CONFIDENCE_LEVEL / 2, len(finite_values) - 1)) * standard_error
    return Interval(mean, mean - interval_radius, mean + interval_radius)


def auc_interval(positive: Float64, negative: Float64) -> Interval:
    """Returns the area under the ROC curve, ties counted half, with DeLong's interval (DeLong et al. 1988).

    Args:
        positive, negative: scores of the positive and of the negative cases, float64 [n] and [m].

    >>> auc_interval(np.array([3.0, 2.0, 1.0, 0.0]), np.array([-1.0, -2.0])).value
    1.0
    """
    from scipy.stats import norm, rankdata

    positive_count = len(positive)
    negative_count = len(negative)
    score_ranks = rankdata(np.concatenate([positive, negative]))
    # Each share counts the negatives below a positive, or the positives above a negative.
    shares_below = (score_ranks[:positive_count] - rankdata(positive)) / negative_count
    shares_above = 1.0 - (score_ranks[positive_count:] - rankdata(negative)) / positive_count
    auc = float(shares_below.mean())
    variance = shares_below.var(ddof=1) / positive_count + shares_above.var(ddof=1) / negative_count
    interval_radius = float(norm.ppf(0.5 + CONFIDENCE_LEVEL / 2)) * math.sqrt(variance)
    return Interval(auc, max(0.0, auc - interval_radius), min(1.0, auc + interval_radius))
