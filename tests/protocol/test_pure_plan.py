"""Plans with Laplace sums: pure epsilon by L1 sensitivity, alone and beside Gaussian ones under one calibration."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy import accounting, noise
from undersong_common.privacy.noise import DiscreteGaussian, DiscreteLaplaceShare
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.agreement import plan as plan_module
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg import noise_share
from undersong_protocol.secagg.noise_share import NoisePlan, NoiseSeeds, add_noise
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.statistics.vectors import GridVector

QUORUM = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)
COUNTS = LabelHistogram(labels=3)


def laplace(name, **fields):
    return SumRequest(name, COUNTS, law="laplace", **fields)


def test_laplace_sums_divide_epsilon_by_their_shares_and_spend_it_whole():
    plan = plan_sums([laplace("a"), laplace("b", budget_share=3.0)], Privacy(2.0, 1e-9), QUORUM)
    assert [planned.sigma for planned in plan.sums] == pytest.approx([math.sqrt(2) / 0.5, math.sqrt(2) / 1.5])
    assert plan.epsilon() == pytest.approx(2.0, rel=1e-6)
    assert accounting.epsilon(plan.charged_events(), 0.0) == pytest.approx(2.0)  # delta is not needed
    plan.verify()
    assert Plan.from_json(plan.to_json()) == plan


def test_a_laplace_sum_is_charged_by_its_integer_l1_sensitivity():
    planned = plan_sums([laplace("a")], Privacy(0.5, 1e-6), QUORUM).sums[0]
    event = planned.event()
    assert isinstance(event, accounting.DiscreteLaplace)
    assert event.sensitivity == planned.scale
    assert event.sensitivity * event.epsilon == pytest.approx(0.5)


@pytest.mark.slow
def test_gaussian_sums_get_the_epsilon_that_fixed_laplace_sums_leave():
    """The joint plan of docs/privacy.md, number 3, with the two pure releases as Laplace sums of their own epsilon."""
    delta = 1.31818e-5
    requests = [laplace(f"pure/{t}", epsilon=0.1) for t in range(2)]
    requests += [laplace(f"metadata/{t}", epsilon=0.1) for t in range(3)]
    requests += [SumRequest(f"votes/{t}", COUNTS, sampling_rate=0.8) for t in range(10)]
    plan = plan_sums(requests, Privacy(1.0, delta), QUORUM)
    assert plan["votes/0"].sigma == pytest.approx(13.406, rel=0.01)
    assert plan.epsilon() == pytest.approx(1.0, rel=1e-5)
    assert [planned.name for planned in plan.sums] == [request.name for request in requests]
    plan.verify()


@pytest.mark.slow
def test_spare_attempts_are_priced_as_the_costliest_sums_of_each_kind():
    spare = dataclasses.replace(QUORUM, spare_attempts=2)
    plan = plan_sums([laplace("a"), laplace("b", budget_share=3.0)], Privacy(2.0, 1e-9), spare)
    # less the rounding of the loss distributions that a plan is checked with
    assert accounting.epsilon(plan.charged_events(), 0.0) == pytest.approx(2.0, rel=1e-4)
    own = plan_sums([laplace("a", epsilon=1.0), laplace("b")], Privacy(4.0, 1e-9), spare)
    assert accounting.epsilon(own.charged_events(), 0.0) == pytest.approx(4.0)
    assert own["b"].event().epsilon * own["b"].scale == pytest.approx(1.0)
    sampled = plan_sums(
        [SumRequest("a", COUNTS, budget_share=2.0, sampling_rate=0.1), SumRequest("b", COUNTS)], Privacy(2, 1e-6), spare
    )
    last = sampled.charged_events()[-1]
    assert last.sampling_rate == 1.0
    assert last.noise_multiplier == sampled["a"].event().noise_multiplier


def test_laplace_sum_without_privacy_has_only_the_method_s_fixed_noise():
    """A paper's noise, whose own accounting promises more than it keeps, is run without a promise."""
    fixed = plan_sums([laplace("b", epsilon=0.1)], Privacy(4.0, 1e-6), QUORUM)["b"]
    plan = plan_sums([laplace("a"), laplace("b", epsilon=0.1)], Privacy(math.inf, 1e-6), QUORUM)
    assert (plan["a"].sigma, plan["b"].sigma) == (0.0, fixed.sigma)
    plan.verify()
    assert math.isinf(plan.epsilon())


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([laplace("a"), SumRequest("b", COUNTS)], "epsilon of its own"),
        ([laplace("a", epsilon=3.0), laplace("b")], "leave"),
        ([laplace("a", sampling_rate=0.5)], "subsampling"),
        ([laplace("a", epsilon=-1.0)], "above 0"),
    ],
)
def test_plans_with_impossible_laplace_shares_or_epsilons_are_refused(requests, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_sums(requests, Privacy(2.0, 1e-6), QUORUM)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"law": "cauchy"}, "law"),
        ({"sampling_rate": 0.5}, "sampling rate"),
        ({"sigma_integer": 0.0}, "spends epsilon"),
        ({"law": "gaussian"}, "spends epsilon"),
    ],
)
def test_party_refuses_a_laplace_sum_with_one_changed_field(changes, message):
    plan = plan_sums([laplace("a")], Privacy(0.5, 1e-6), QUORUM)
    forged = dataclasses.replace(plan, sums=(dataclasses.replace(plan.sums[0], **changes),))
    with pytest.raises(PrivacyRefusal, match=message):
        forged.verify()


def on_scale(planned, scale, plan):
    """The same sum on another grid, as a coordinator would write it."""
    moved = dataclasses.replace(planned, scale=scale, sigma_integer=planned.sigma * scale)
    bits = plan_module._compute_modulus_bits(COUNTS, moved, plan.privacy, plan.quorum)
    return dataclasses.replace(moved, modulus_bits=bits)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("bits", [30, 41])
def test_noise_that_no_sampler_draws_is_refused_before_it_is_priced(law, bits, monkeypatch):
    plan = plan_sums([SumRequest("a", COUNTS, law=law)], Privacy(0.5, 1e-6, max_records=10), QUORUM)
    forged = dataclasses.replace(plan, sums=(on_scale(plan.sums[0], 2**bits, plan),))
    monkeypatch.setattr(accounting, "epsilon", pytest.fail)
    with pytest.raises(PrivacyRefusal, match="a: discrete"):
        forged.verify()


@pytest.mark.parametrize(
    ("sigma", "quorum", "law"),
    [
        (2.0 * DiscreteGaussian.LARGEST_SIGMA, (5, 1, 1), "gaussian"),  # component 0 has a quarter of the variance
        (2.0**0.5 * DiscreteLaplaceShare.LARGEST_SCALE * (1 - 1e-15), (5, 1, 1), "laplace"),
        (1.0 * DiscreteGaussian.LARGEST_SIGMA, (1, 0, 0), "gaussian"),
    ],
)
def test_a_noise_plan_accepts_what_the_sampler_draws_and_nothing_beyond(sigma, quorum, law):
    plan = NoisePlan(sigma, *quorum, law=law)
    if law == "gaussian":
        assert [plan.component_law(index).sample(KeyStream(bytes(32)), 2) for index in range(len(plan.components))]
    with pytest.raises(ConfigurationError):
        NoisePlan(sigma * (1 + 1e-9), *quorum, law=law)


def test_a_plan_of_laplace_sums_is_checked_without_building_their_tables(monkeypatch):
    plan = plan_sums([laplace("a")], Privacy(0.5, 1e-6), QUORUM)
    monkeypatch.setattr(noise, "_polya_table", pytest.fail)
    noise_share.noise_plan.cache_clear()
    plan.verify()


def test_one_laplace_share_gives_infinite_epsilon_unless_it_is_all_noise():
    assert math.isinf(plan_sums([laplace("a")], Privacy(2.0, 1e-6), QUORUM).epsilon_if_all_others_collude())
    whole = plan_sums([laplace("a")], Privacy(2.0, 1e-6), Quorum(1, 1, 0, 0))
    assert whole.epsilon_if_all_others_collude() == pytest.approx(2.0, rel=1e-4)


def test_shares_of_the_fewest_honest_survivors_are_laplace_noise():
    """Kolmogorov-Smirnov on 60 000 sums of three shares: false alarms below 1e-4 at 2.23 / sqrt(n)."""
    sigma, count = 40.0 * math.sqrt(2), 60_000
    plan = NoisePlan(sigma, 5, 1, 1, law="laplace")
    assert not plan.removal
    assert list(plan.opened_components(1)) == []
    total = sum(
        add_noise(GridVector(np.zeros(count, dtype=np.int64)), plan, NoiseSeeds(bytes([p]) * 32, bytes(32))).values
        for p in range(3)
    )
    whole = DiscreteLaplaceShare(Fraction(40), 1).sample(KeyStream(bytes(32)), count)
    grid = np.arange(-400, 400)
    gap = np.abs(
        np.searchsorted(np.sort(total), grid, side="right") - np.searchsorted(np.sort(whole), grid, side="right")
    ).max()
    assert gap / count < 2.23 * math.sqrt(2 / count)
    assert float(plan.opened_variance(0)) == pytest.approx(5 / 3 * total.var(), rel=0.03)
    assert 1000 * DiscreteLaplaceShare(Fraction(40), 3).distance < 2.0**-90


@pytest.mark.slow
def test_sum_keeps_its_paper_s_noise_and_others_share_remaining_epsilon():
    fixed = SumRequest("votes", COUNTS, sampling_rate=0.8, noise_multiplier=20.0)
    plan = plan_sums([fixed, SumRequest("rest", COUNTS), laplace("pure", epsilon=0.3)], Privacy(1.0, 1e-5), QUORUM)
    assert plan["votes"].sigma == pytest.approx(20.0)
    assert plan.epsilon() == pytest.approx(1.0, rel=1e-5)
    alone = plan_sums([fixed], Privacy(1.0, 1e-5), QUORUM)
    assert alone.epsilon() < 0.5
    alone.verify()
    with pytest.raises(ConfigurationError, match="above 0"):
        plan_sums([SumRequest("votes", COUNTS, noise_multiplier=0.0)], Privacy(1.0, 1e-5), QUORUM)
    with pytest.raises(ConfigurationError, match="only a Gaussian sum takes"):
        plan_sums([laplace("votes", epsilon=0.1, noise_multiplier=2.0)], Privacy(1.0, 1e-5), QUORUM)
    with raises(PrivacyRefusal, "over-epsilon"):  # a paper's noise that spends more than is promised
        plan_sums([SumRequest("votes", COUNTS, noise_multiplier=1.0)], Privacy(1.0, 1e-5), QUORUM).verify()
