"""Intervals over seeds, against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from undersong_common.intervals import clopper_pearson, over_seeds


def test_interval_over_seeds_equals_scipys_t_interval_of_the_mean() -> None:
    values = [0.91, 0.88, 0.93, 0.9, 0.87]
    low, high = scipy.stats.t.interval(0.95, 4, loc=np.mean(values), scale=scipy.stats.sem(values))
    found = over_seeds(values)
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high))


@pytest.mark.filterwarnings("error")
def test_interval_over_equal_figures_has_zero_width_without_a_warning() -> None:
    found = over_seeds([0.1, 0.1, 0.1])
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_one_seed_has_no_interval_and_gaps_are_left_out() -> None:
    found = over_seeds([0.5])
    assert found.value == 0.5
    assert math.isnan(found.low)
    assert over_seeds([0.5, math.nan, 0.7]).value == pytest.approx(0.6)
    assert math.isnan(over_seeds([]).value)


@pytest.mark.parametrize(("successes", "trials"), [(0, 9), (3, 17), (40, 40), (81, 133)])
def test_interval_of_a_share_equals_scipys_exact_binomial_interval(successes: int, trials: int) -> None:
    reference = scipy.stats.binomtest(successes, trials).proportion_ci(0.95, "exact")
    found = clopper_pearson(successes, trials)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
