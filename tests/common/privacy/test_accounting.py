"""The accountant against the reference numbers of docs/privacy.md, closed forms and its own promises."""

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples, slow_but
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy import accounting
from undersong_common.privacy.accounting import (
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Pure,
    calibrate,
    charged_sigma,
    composed_mu,
    delta,
    epsilon,
    gaussian_mu,
    is_one_gaussian,
    sampled_variance,
    usable_delta,
)

NEAR_AND_FAR = math.sqrt(43690) / 128  # L2 sensitivity of Top-8 nearest + furthest votes, vote units
DPGA_DELTA = 1 / (8396 * math.log(8396))


def z(target: float, at: float = 1e-5) -> float:
    return 1 / gaussian_mu(target, at)


@pytest.mark.parametrize(
    ("target", "at", "sigma"), [(4, 1e-5, 3.5310), (4, 4e-5, 3.295), (1, 1e-5, 12.184), (8, 1e-5, 1.960)]
)
def test_wasp_plan_is_calibrated_to_the_documented_sigma(target: float, at: float, sigma: float) -> None:
    found = calibrate(lambda s: [Gaussian(s / NEAR_AND_FAR, count=4)], target, at)
    assert found == pytest.approx(sigma, rel=2e-4)
    assert found == pytest.approx(2 * NEAR_AND_FAR * z(target, at), rel=1e-6)
    if (target, at) == (4, 1e-5):
        assert found * 128 == pytest.approx(451.97, abs=0.01)


def test_sigma_of_the_paper_spends_less_epsilon_than_the_paper_says() -> None:
    assert epsilon([Gaussian(9.6896 / NEAR_AND_FAR)] * 4, 1e-5) == pytest.approx(1.287, abs=5e-4)
    assert epsilon([Gaussian(9.6896 / NEAR_AND_FAR)] * 5, 1e-5) == pytest.approx(1.456, abs=5e-4)


@pytest.mark.heavy
@given(st.floats(-3.0, 2.5), st.floats(-12.0, -0.01))
def test_a_gaussian_is_converted_to_the_bits_of_dp_accounting(log_epsilon: float, log_delta: float) -> None:
    from dp_accounting import gaussian_mechanism as reference

    target, at = 10.0**log_epsilon, 10.0**log_delta
    assert gaussian_mu(target, at) == 1.0 / float(reference.get_sigma_gaussian(target, at))
    assert accounting.gaussian_epsilon(target, at) == float(reference.get_epsilon_gaussian(1.0 / target, at))
    assert (accounting.gaussian_epsilon(target, 0.0), accounting.gaussian_epsilon(target, 1.0)) == (math.inf, 0.0)


HALF = [(1, 17.566), (2, 9.389), (4, 5.079)]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "sigma"), slow_but(HALF, HALF[2:]))
def test_dpga_votes_at_half_the_budget_have_the_documented_sigma(target: float, sigma: float) -> None:
    found = calibrate(lambda s: [Gaussian(s, 0.8, 10)], target / 2, DPGA_DELTA)
    assert found == pytest.approx(sigma, rel=1e-4)


JOINTLY = [(1, 13.406), (2, 7.454), (4, 4.222)]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "sigma"), slow_but(JOINTLY, JOINTLY[2:]))
def test_dpga_plan_composed_jointly_has_the_documented_sigma(target: float, sigma: float) -> None:
    def build(s: float) -> list[Event]:
        return [Pure(0.1 * target, 2), Laplace(10 / target, 3), Gaussian(s, 0.8, 10)]

    begun = time.process_time()
    assert calibrate(build, target, DPGA_DELTA) == pytest.approx(sigma, rel=1e-4)
    assert time.process_time() - begun < 8, "a plan is calibrated while somebody waits"


@pytest.mark.slow
def test_dpga_events_compose_to_the_stated_epsilon() -> None:
    votes = Gaussian(13.406, 0.8, 10)
    assert epsilon([Pure(0.1), Pure(0.1), Laplace(10, 3), votes], 1.31818e-5) == pytest.approx(1.0, abs=5e-4)
    assert epsilon([Pure(0.1, 2), DiscreteLaplace(0.1, count=3), votes], 1.31818e-5) == pytest.approx(1.004, abs=5e-4)


@settings(max_examples=examples(10, 40), deadline=None)
@given(st.floats(0.01, 30), st.floats(1e-12, 0.1))
def test_epsilon_and_delta_of_a_gaussian_are_inverse(target: float, at: float) -> None:
    event = [Gaussian(z(target, at))]
    assert epsilon(event, at) == pytest.approx(target, rel=1e-6, abs=1e-9)
    assert delta(event, target) == pytest.approx(at, rel=1e-6)


@settings(max_examples=examples(10, 30), deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 50), st.integers(0, 20)), min_size=1, max_size=6))
def test_squared_mu_of_composed_gaussians_adds_up(parts: list[tuple[float, int]]) -> None:
    events = [Gaussian(multiplier, count=count) for multiplier, count in parts]
    mu = composed_mu(events)
    assert mu == pytest.approx(math.sqrt(sum(count / multiplier**2 for multiplier, count in parts)))
    one_by_one = [Gaussian(multiplier) for multiplier, count in parts for _ in range(count)]
    assert epsilon(events, 1e-6) == pytest.approx(epsilon(one_by_one, 1e-6))


@pytest.mark.heavy
def test_loss_distribution_agrees_with_the_closed_form() -> None:
    """A Gaussian forced through the loss distribution (by an event that costs next to nothing) keeps its price."""
    assert epsilon([Gaussian(2.0, count=5), Pure(1e-9)], 1e-5) == pytest.approx(
        epsilon([Gaussian(2.0, count=5)], 1e-5), rel=1e-4
    )
    assert composed_mu([Gaussian(2.0), Pure(0.1)]) is None
    assert composed_mu([]) == 0.0


@pytest.mark.slow
def test_subsampling_lowers_epsilon_down_to_zero_at_rate_zero() -> None:
    full = epsilon([Gaussian(2.0, count=10)], 1e-5)
    half = epsilon([Gaussian(2.0, 0.5, 10)], 1e-5)
    assert half < full
    assert epsilon([Gaussian(2.0, 1.0 - 1e-9, 10)], 1e-5) == pytest.approx(full, rel=1e-3)
    assert epsilon([Gaussian(2.0, 0.0, 10)], 1e-5) == 0.0


def exact_delta(one: float, sensitivity: int, target: float) -> float:
    """Of one discrete Laplace release, by summation: P and e^epsilon Q, which is P shifted by the sensitivity."""
    at = np.arange(-int(60 / one), int(60 / one) + sensitivity)
    law = np.exp(-one * abs(at)) * math.tanh(one / 2)
    shifted = np.exp(-one * abs(at - sensitivity)) * math.tanh(one / 2)
    return float(np.maximum(law - math.exp(target) * shifted, 0).sum())


@pytest.mark.parametrize(("one", "sensitivity"), [(1.0, 1), (0.5, 3), (0.1, 10), (0.003, 700), (0.01, 512)])
def test_discrete_laplace_cost_equals_the_exact_sum_and_is_never_less(one: float, sensitivity: int) -> None:
    for part in (0.0, 0.3, 0.5, 0.77, 1.0):
        exact = exact_delta(one, sensitivity, part * one * sensitivity)
        found = delta([DiscreteLaplace(one, sensitivity)], part * one * sensitivity)
        assert exact - 1e-12 <= found <= exact + 1e-4


@pytest.mark.heavy
@pytest.mark.parametrize("sensitivity", [10**6, 2**41, 2**53])
def test_time_to_price_discrete_laplace_ignores_its_sensitivity(sensitivity: int) -> None:
    epsilon([DiscreteLaplace(0.1, 3)], 1e-6)  # libraries are loaded
    begun = time.process_time()
    assert epsilon([DiscreteLaplace(0.5 / sensitivity, sensitivity, count=3)], 1e-6) == pytest.approx(1.5, rel=1e-4)
    assert time.process_time() - begun < 1.0  # some 0.05 s; it took minutes and gigabytes


@pytest.mark.heavy
def test_pure_and_laplace_events_compose_to_their_epsilon() -> None:
    assert epsilon([Pure(0.3), Laplace(2.0), DiscreteLaplace(0.01, sensitivity=10)], 0.0) == pytest.approx(0.9)
    assert epsilon([Pure(0.3)], 1e-12) == pytest.approx(0.3, rel=1e-6)
    assert epsilon([Laplace(1.0)], 1e-3) == pytest.approx(1 + 2 * math.log1p(-1e-3), abs=1e-4)
    fine = epsilon([DiscreteLaplace(1 / 256, sensitivity=256)], 1e-3)
    assert fine == pytest.approx(epsilon([Laplace(1.0)], 1e-3), abs=1e-2)


def test_event_without_noise_costs_infinite_epsilon() -> None:
    assert calibrate(lambda s: [Gaussian(s)], math.inf, 1e-5) == 0.0
    assert epsilon([Gaussian(0.0)], 1e-5) == math.inf
    assert epsilon([Gaussian(1.0), Pure(math.inf)], 1e-5) == math.inf
    assert epsilon([Gaussian(0.0, 0.5), Laplace(1.0)], 1e-5) == math.inf
    assert delta([Gaussian(0.0)], 3.0) == 1.0
    assert delta([Gaussian(1.0)], math.inf) == 0.0
    assert gaussian_mu(math.inf, 1e-5) == math.inf
    assert epsilon([Gaussian(math.inf), Gaussian(1.0, count=0)], 1e-5) == 0.0 == epsilon([], 1e-5)


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    Gaussian(z, rate, count)
                    for z in (0.0, 2.0, math.inf)
                    for rate in (0.0, 0.5, 1.0)
                    for count in (0, 2)
                ),
                *(Laplace(b, count) for b in (0.0, 2.0, math.inf) for count in (0, 1)),
                *(kind(e, count=count) for kind in (DiscreteLaplace, Pure) for e in (0.0, 0.1) for count in (0, 1)),
            ]
        ),
        max_size=3,
    )
)
def test_events_have_a_mu_exactly_if_they_are_one_gaussian(events: list[Event]) -> None:
    assert is_one_gaussian(events) == (composed_mu(events) is not None)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.05, 20), st.floats(1e-9, 1e-3), st.integers(1, 400))
def test_calibrated_noise_is_sufficient_and_within_2e_6_of_the_smallest(target: float, at: float, count: int) -> None:
    scale = calibrate(lambda s: [Gaussian(s, count=count)], target, at)
    assert epsilon([Gaussian(scale, count=count)], at) <= target * (1 + 1e-12)
    assert epsilon([Gaussian(scale * (1 - 2e-6), count=count)], at) > target


@pytest.mark.slow
def test_calibrated_noise_is_the_same_in_any_unit_of_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale in integer units, thousands of times the sensitivity's, ends at the same noise."""
    monkeypatch.setattr(accounting, "_GRID", 5_000)
    natural = calibrate(lambda s: [Gaussian(s, 0.8, 10), Pure(0.1)], 1.0, 1e-5)
    integer = calibrate(lambda s: [Gaussian(s / 30_000, 0.8, 10), Pure(0.1)], 1.0, 1e-5)
    assert integer == pytest.approx(30_000 * natural, rel=2e-6)
    assert calibrate(lambda s: [Gaussian(s * 3_000, 0.8, 10), Pure(0.1)], 1.0, 1e-5) * 3_000 == pytest.approx(
        natural, rel=2e-6
    )


def test_calibration_to_an_unreachable_epsilon_is_refused() -> None:
    with raises(PrivacyRefusal, "no-noise-suffices"):
        calibrate(lambda s: [Pure(2.0), Gaussian(s)], 1.0, 1e-5)
    assert calibrate(lambda s: [Pure(0.5)], 1.0, 1e-5) == 0.0


def test_discrete_noise_is_charged_below_its_sampled_variance() -> None:
    assert charged_sigma(9.0 + 4.0) == pytest.approx(3.0)
    assert charged_sigma(math.inf) == math.inf
    assert sampled_variance(3.0) == pytest.approx(13.0)
    assert charged_sigma(sampled_variance(7.5)) == pytest.approx(7.5)
    assert sampled_variance(0.0) == 0.0
    for variance in (4.0, 0.0, math.nan):
        with raises(PrivacyRefusal, "variance-too-small"):
            charged_sigma(variance)


def test_sampler_s_statistical_distance_is_subtracted_from_delta() -> None:
    left = usable_delta(1e-5, sample_count=10**9, epsilon=4.0)
    assert 0 < 1e-5 - left < 1e-20
    assert usable_delta(1e-5, sample_count=10**9, epsilon=math.inf) == 1e-5
    with raises(PrivacyRefusal, "delta-too-small"):
        usable_delta(1e-30, sample_count=10**9, epsilon=4.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Gaussian(-1.0),
        lambda: Gaussian(math.nan),
        lambda: Gaussian(1.0, 1.5),
        lambda: Gaussian(1.0, count=-1),
        lambda: Laplace(-1.0),
        lambda: DiscreteLaplace(0.1, sensitivity=0),
        lambda: Pure(-0.1),
        lambda: epsilon([Gaussian(1.0)], 1.5),
        lambda: delta([Gaussian(1.0)], -1.0),
        lambda: calibrate(lambda s: [Gaussian(s)], 0.0, 1e-5),
        lambda: calibrate(lambda s: [Gaussian(s)], 1.0, 1.0),
        lambda: gaussian_mu(1.0, 0.0),
    ],
)
def test_accounting_values_out_of_range_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ConfigurationError, match="give"):
        wrong()


@pytest.mark.slow
def test_a_plan_with_subsampled_votes_is_calibrated_from_few_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess that a calibration starts from is good; a loss distribution on the fine grid takes its tenth."""
    asked: list[int] = []
    true = accounting._loss_distribution

    def noted(merged: Any, grid: int) -> Any:
        asked.append(grid)
        return true(merged, grid)

    monkeypatch.setattr(accounting, "_loss_distribution", noted)
    calibrate(
        lambda s: [Gaussian(4.0 * s), Gaussian(2.0 * s), Gaussian(3.0 * s), Gaussian(4.0 * s, 0.8, 10)],
        2.0,
        3.217e-6,
    )
    assert len(asked) <= 8
    assert asked.count(50_000) <= 4


def test_canonical_events_do_not_depend_on_the_order_of_sums():
    sampled = [Gaussian(2.0, sampling_rate=0.5), Gaussian(1.0, sampling_rate=0.25), Gaussian(2.0, sampling_rate=0.5)]
    whole = [Gaussian(3.0), Gaussian(math.inf), Gaussian(4.0)]
    orders = [
        [*sampled, *whole],
        [*whole, *reversed(sampled)],
        [sampled[1], whole[2], sampled[0], *whole[:2], sampled[2]],
    ]
    canonical = {accounting._merge_events(events) for events in orders}
    assert len(canonical) == 1
    (events,) = canonical
    assert math.isclose(events[0].noise_multiplier, 1.0 / math.sqrt(1.0 / 9.0 + 1.0 / 16.0))
    assert events[1:] == (Gaussian(1.0, sampling_rate=0.25), Gaussian(2.0, sampling_rate=0.5, count=2))
