"""Lower bounds hold for what is as private as promised, and pass the promise where noise is missing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.doubles.pace import examples, slow_but
from undersong.auditing.attacks import Detection, mean_at_least, orthogonal_scores, whole_scores
from undersong_common.arrays import Bools, Float64
from undersong_common.intervals import clopper_pearson
from undersong_common.privacy.accounting import gaussian_mu

pytestmark = pytest.mark.heavy


def audited(mu: float, noise: float, runs: int, seed: int, *, alike: float = 0.0) -> list[tuple[Bools, Float64]]:
    """Runs of 20 records; ``alike``: the share of a run's noise that all of its records have in common."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        present = rng.random(20) < 0.5
        drawn = math.sqrt(1 - alike) * rng.normal(size=20) + math.sqrt(alike) * rng.normal()
        found.append((present, present * mu + noise * drawn))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", slow_but([1.0, 4.0], [4.0]))
def test_audit_accepts_correct_noise_and_detects_halved_noise(epsilon: float) -> None:
    mu = gaussian_mu(epsilon, 1e-5)
    tried = range(examples(10, 40))
    right = [Detection.of_runs(audited(mu, 1.0, 400, seed, alike=0.7), mu / 2) for seed in tried]
    assert max(detection.mu for detection in right) <= mu
    assert max(detection.epsilon_if_gaussian(1e-5) for detection in right) <= epsilon
    halved = [Detection.of_runs(audited(mu, 0.5, 400, seed), mu / 2) for seed in tried]
    assert min(detection.mu for detection in halved) > mu
    assert min(detection.epsilon_if_gaussian(1e-5) for detection in halved) > epsilon


@pytest.mark.slow
def test_bound_on_the_mean_of_dependent_guesses_keeps_its_error_rate() -> None:
    """All records of a run are found, or all are missed: 1 000 trials of 50 runs. Trial by trial, 300 seeds fail."""
    rng = np.random.default_rng(0)
    alarm, wrong, by_trial = 0.05, 0, 0
    for _ in range(300):
        right = tuple(float(found) for found in rng.random(50) < 0.6)
        wrong += mean_at_least(right, alarm) > 0.6
        by_trial += clopper_pearson(int(20 * sum(right)), 1000, 1 - 2 * alarm).low > 0.6
    assert wrong <= 15  # 5 % of 300; the bound is wrong less often
    assert by_trial > 60


def test_lower_bound_of_epsilon_holds_for_randomised_response() -> None:
    """Randomised response at epsilon = ln 3 is caught from below, near its value with many runs."""
    assert 0.9 < Detection(0, 0, 0, 0, (0.75,) * 1000).epsilon(0.0) < math.log(3)
    assert Detection(0, 10, 0, 10, (0.5,) * 10).epsilon(1e-5) == 0.0
    assert Detection(0, 0, 0, 0, ()).mu == 0.0


@pytest.mark.slow
def test_low_false_alarm_rates_detect_halved_noise_but_not_correct_noise() -> None:
    epsilon = 4.0
    mu, surest = gaussian_mu(epsilon, 1e-5), 2.326  # which one absent record in 100 passes
    true = math.erfc((surest - mu) / math.sqrt(2)) / 2
    for seed in range(examples(6, 20)):
        alike = Detection.of_runs(audited(mu, 1.0, 400, seed, alike=0.7), surest)
        right = Detection.of_runs(audited(mu, 1.0, 400, seed), surest)
        assert alike.epsilon_of_rates(1e-5, gaussian=False) <= epsilon
        assert 0.0 < right.epsilon_of_rates(1e-5, gaussian=True) <= epsilon
        for found, false in (alike.rates(independent=False), right.rates(independent=True)):
            assert found <= true
            assert false >= 0.01
    halved = Detection.of_runs(audited(2.0 * mu, 1.0, 400, 0), surest)  # scores over their deviation
    assert halved.epsilon_of_rates(1e-5, gaussian=True) > epsilon
    assert halved.rates(independent=True)[1] < 0.02


def test_lower_bound_of_epsilon_from_rates_equals_a_hand_count() -> None:
    """Half of the present records are found, and nothing else is named: ln((1/2 - delta) / (false alarms' bound))."""
    found = Detection(10000, 20000, 0, 20000, (), (0.25,) * 1000, (0.0,) * 1000)
    true, false = found.rates(independent=False)
    assert 0.4 < true < 0.5
    assert 0.0 < false < 0.03
    assert found.epsilon_of_rates(1e-5, gaussian=False) == pytest.approx(math.log((true - 1e-5) / false))
    nothing = Detection(0, 100, 0, 100, (), (0.0,) * 10, (0.0,) * 10)
    assert nothing.epsilon_of_rates(1e-5, gaussian=False) == nothing.epsilon_of_rates(1e-5, gaussian=True) == 0.0


def test_each_of_two_rate_bounds_has_half_of_the_error_probability() -> None:
    caught, alarms, alarm = (0.25,) * 50, (0.125,) * 50, 0.02
    true, false = Detection(250, 500, 125, 500, (), caught, alarms, alarm).rates(independent=False)
    assert true == 2.0 * mean_at_least(caught, 0.01)
    assert false == 2.0 * (1.0 - mean_at_least([0.875] * 50, 0.01))


@pytest.mark.slow
def test_canary_scores_of_overlapping_rows_have_independent_noise() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 8))
    rows[1] = rows[0] + 0.1 * rows[1]
    noise = rng.normal(size=(4000, 8))
    present = np.array([True, False, True])
    found = [orthogonal_scores(rows, each, present) for each in noise]
    scores, signals = np.array([each[0] for each in found]), found[0][1]
    assert signals[0] == pytest.approx(np.linalg.norm(rows[0]))
    assert scores.mean(axis=0) == pytest.approx(present * signals, abs=0.08)
    assert np.cov(scores.T) == pytest.approx(np.eye(3), abs=0.08)


def test_canary_scores_of_unprojected_rows_have_the_whole_signal() -> None:
    rng = np.random.default_rng(4)
    rows, present = rng.normal(size=(5, 2)), np.array([True, False, True, False, False])
    found = [whole_scores(rows, each, present) for each in rng.normal(size=(4000, 2))]
    scores, signals = np.array([each[0] for each in found]), found[0][1]
    assert signals == pytest.approx(np.linalg.norm(rows, axis=1))
    assert scores.mean(axis=0) == pytest.approx(present * signals, abs=0.08)
    assert scores.std(axis=0) == pytest.approx(np.ones(5), abs=0.08)
    assert whole_scores(np.zeros((1, 2)), np.ones(2), present[:1])[0].tolist() == [0.0]


def test_canary_row_in_the_span_of_other_rows_has_score_zero() -> None:
    rows = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores, signals = orthogonal_scores(rows, np.zeros(2), np.array([True, False, False, False]))
    assert (signals[1], scores[1], signals[3], scores[3]) == (0.0, 0.0, 0.0, 0.0)
    assert scores[0] == pytest.approx(1.0)


def test_subsampled_canary_scores_its_whole_signal_only_when_drawn() -> None:
    rows, present = np.eye(2) * 3.0, np.array([True, True])
    drawn_first = rows[0] - 0.8 * rows.sum(axis=0)
    scores, signals = orthogonal_scores(rows, drawn_first, present, rate=0.8)
    assert scores == pytest.approx([3.0, 0.0], abs=1e-9)
    assert signals == pytest.approx([3.0, 3.0])
