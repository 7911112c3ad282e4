import dataclasses
import json
import math

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import PrivacyRefusal
from undersong_common.privacy import accounting
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member, SumParameters
from undersong_protocol.statistics import TopQVotes

QUORUM = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)


def wasp_plan(privacy, quorum=QUORUM, q=8, releases=4):
    requests = [
        SumRequest(f"votes/{t}", TopQVotes(q=q, candidates=1200 * t, labels=10)) for t in range(1, releases + 1)
    ]
    return plan_sums(requests, privacy, quorum)


@pytest.mark.parametrize(
    ("privacy", "sigma"),
    [
        (Privacy(4, 1e-5), 3.5310),
        (Privacy(4, 4e-5), 3.295),
        (Privacy(1, 1e-5), 12.184),
        (Privacy(8, 1e-5), 1.960),
        (Privacy(4, 1e-5, "user", 8, "mean"), 3.5310),
        (Privacy(4, 1e-5, "party", 8, "mean"), 3.5310),
        (Privacy(1, 1e-5, "user", 8, "sum"), 97.47),
        (Privacy(4, 1e-5, "user", 8, "sum"), 28.25),
        (Privacy(8, 1e-5, "user", 8, "sum"), 15.68),
    ],
)
def test_planned_sigma_of_top_q_votes_is_the_documented_one(privacy, sigma):
    plan = wasp_plan(privacy)
    assert {round(planned.sigma, 6) for planned in plan.sums} == {round(plan.sums[0].sigma, 6)}
    assert plan.sums[0].sigma == pytest.approx(sigma, rel=5e-4)
    assert plan.epsilon() == pytest.approx(privacy.epsilon, rel=1e-5)
    plan.verify()


def test_integer_sigma_and_scale_are_the_documented_ones():
    planned = wasp_plan(Privacy(4, 1e-5)).sums[0]
    assert planned.scale == 128
    assert planned.sigma_integer == pytest.approx(451.97, abs=0.05)
    assert planned.drawn_sigma_integer == pytest.approx(math.sqrt(planned.sigma_integer**2 + 4))


def test_scale_of_a_users_mean_grows_with_the_users_most_records():
    assert wasp_plan(Privacy(4, 1e-5, "user", 8, "mean")).sums[0].scale == 8 * 128
    assert wasp_plan(Privacy(4, 1e-5, "user", 8, "sum")).sums[0].scale == 128


def test_scale_is_refined_until_every_noise_share_can_be_drawn():
    plan = wasp_plan(Privacy(8, 1e-5), Quorum(1000, 600, 100, 100), q=1)
    planned = plan.sums[0]
    smallest = planned.drawn_sigma_integer / math.sqrt((1000 - 100 - 100 + 1) * (1000 - 100 - 100))
    assert smallest >= 3
    assert planned.scale & (planned.scale - 1) == 0


def test_epsilon_after_each_sum_grows_to_the_plans_epsilon():
    plan = wasp_plan(Privacy(4, 1e-5))
    spent = [plan.epsilon_after(releases) for releases in range(5)]
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert spent[4] == pytest.approx(plan.epsilon())


def test_spare_attempts_raise_sigma_and_keep_the_plans_epsilon():
    with_spare = wasp_plan(Privacy(4, 1e-5), dataclasses.replace(QUORUM, spare_attempts=2))
    assert with_spare.sums[0].sigma == pytest.approx(3.5310 * math.sqrt(6 / 4), rel=1e-3)
    assert with_spare.epsilon() == pytest.approx(4, rel=1e-5)


def test_epsilon_against_all_others_counts_void_and_spare_vectors():
    plan = wasp_plan(Privacy(4, 1e-5))
    # One party's own share has a quarter of the variance here (n - c = 4) and each of the four sums may leave four
    # times, three of them void by false certificates: mu doubles twice. Of the share the rounding's 4 is given away.
    first = plan.sums[0]
    share = (first.sigma_integer**2 + 4) / 4 - 4
    multiplier = math.sqrt(share) / (first.l2 * first.scale)
    assert plan.epsilon_if_all_others_collude() == pytest.approx(
        accounting.epsilon([accounting.Gaussian(multiplier, count=16)], plan.usable_delta), rel=1e-12
    )
    assert multiplier == pytest.approx(first.sigma / first.l2 / 2, rel=1e-4)
    spare = wasp_plan(Privacy(4, 1e-5), dataclasses.replace(QUORUM, spare_attempts=2))
    assert [event.count for event in spare.alone_events()] == [4, 4, 4, 4, 1, 1]


def test_one_colluder_beyond_the_plan_lowers_the_noise_of_each_sum():
    """Of three honest survivors two are left: their noise has two thirds of the variance, before the rounding's 4.

    The liars are too many for a void certificate, so each sum counts four times.
    """
    plan = wasp_plan(Privacy(4, 1e-5))
    first = plan.sums[0]
    left = math.sqrt((first.sigma_integer**2 + 4) * 2 / 3 - 4) / (first.l2 * first.scale)
    events = plan.events_with(QUORUM.colluders + 1)
    assert events[0].noise_multiplier == pytest.approx(left, rel=1e-12)
    assert {event.count for event in events} == {4}
    guesses = [accounting.best_guess(some) for some in (plan.charged_events(), events, plan.alone_events())]
    assert guesses == sorted(guesses)
    assert plan.events_with(QUORUM.colluders) == plan.charged_events()


@pytest.mark.parametrize("quorum", [Quorum(5, 4, 0, 2), Quorum(5, 5, 0, 4)])
def test_colluders_leaving_one_honest_party_cost_as_much_as_all_others(quorum):
    plan = wasp_plan(Privacy(4, 1e-5), quorum)
    assert plan.events_with(quorum.colluders + 1) == plan.alone_events()


@pytest.mark.parametrize(
    ("quorum", "share"),
    [
        # (n, T, D, c): the party's least share of sigma^2 + 4, then the rounding's 4 is taken from this share
        (Quorum(5, 4, 1, 1), lambda drawn: drawn / 4),
        (Quorum(10, 6, 3, 0), lambda drawn: drawn / 10),
        (Quorum(3, 3, 0, 0), lambda drawn: drawn / 3),
        (Quorum(1, 1, 0, 0), lambda drawn: drawn),
    ],
)
def test_rounding_variance_is_subtracted_from_the_remaining_share(quorum, share):
    planned = wasp_plan(Privacy(4, 1e-5), quorum).sums[0]
    drawn = planned.drawn_sigma_integer**2
    assert drawn == pytest.approx(planned.sigma_integer**2 + 4)
    alone = planned.event_alone(quorum).noise_multiplier * planned.l2 * planned.scale
    assert alone**2 == pytest.approx(share(drawn) - 4, rel=1e-12)
    # All shares together: 4 is given away once, and what is charged is the plan's sigma.
    assert accounting.charged_sigma(drawn) == pytest.approx(planned.sigma_integer, rel=1e-12)


@pytest.mark.parametrize(("variance", "percent"), [(9.0, 34.2), (21.0, 11.2), (452.0**2 / 1000, 1.0)])
def test_charge_without_rounding_understates_a_share_by_known_percent(variance, percent):
    """1000 parties: sqrt((1000 v - 4) / 1000) against sqrt(v - 4), in percent of the latter."""
    once = math.sqrt((1000 * variance - 4) / 1000)
    assert 100 * (once / accounting.charged_sigma(variance) - 1) == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize("sigma", [3.0, 4.5, 8.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_discrete_gaussian_share_costs_at_most_its_charged_gaussian(sigma, shift):
    """The exact privacy profile of one discrete Gaussian share against the continuous one of sigma^2 - 4."""
    support = np.arange(-400, 401)
    law = np.exp(-(support**2) / (2 * sigma**2))
    law /= law.sum()
    moved = np.exp(-((support - shift) ** 2) / (2 * sigma**2)) / np.exp(-(support**2) / (2 * sigma**2)).sum()
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        exact = np.maximum(law - math.exp(epsilon) * moved, 0).sum()
        charged = accounting.delta([accounting.Gaussian(accounting.charged_sigma(sigma**2) / shift)], epsilon)
        assert exact <= charged


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        ("sigma_integer", lambda value: value * 0.9, "spends epsilon"),
        ("sigma_integer", lambda value: 63.9, "in integer units, at least 64 is needed"),
        ("l2", lambda value: value / 2, "L2 sensitivity"),
        ("l1", lambda value: value / 2, "L1 sensitivity"),
        ("linf", lambda value: value / 2, "Linf sensitivity"),
        ("dimension", lambda value: value + 1, "dimension"),
        ("modulus_bits", lambda value: value - 1, "modulus"),
        ("scale", lambda value: value * 2, "modulus|spends"),
        ("sampling_rate", lambda value: 0.0, "sampling rate"),
    ],
)
def test_a_party_refuses_a_plan_with_one_figure_changed(field, change, words):
    plan = wasp_plan(Privacy(4, 1e-5))
    changed = dataclasses.replace(plan.sums[0], **{field: change(getattr(plan.sums[0], field))})
    with pytest.raises(PrivacyRefusal, match=words):
        dataclasses.replace(plan, sums=(changed, *plan.sums[1:])).verify()


def test_a_plan_with_more_sums_or_a_repeated_name_is_refused():
    plan = wasp_plan(Privacy(4, 1e-5))
    with raises(PrivacyRefusal, "over-epsilon"):
        dataclasses.replace(plan, sums=(*plan.sums, dataclasses.replace(plan.sums[0], name="more"))).verify()
    with raises(PrivacyRefusal, "sum-twice"):
        dataclasses.replace(plan, sums=(*plan.sums, plan.sums[0])).verify()


def test_plan_survives_json_and_refuses_unknown_sums():
    for privacy in (Privacy(4, 1e-5), Privacy(math.inf, 1e-5)):
        plan = wasp_plan(privacy)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with raises(PrivacyRefusal, "unknown-sum"):
        plan["votes/9"]


def test_plan_of_infinite_epsilon_draws_no_noise_and_is_not_private():
    plan = wasp_plan(Privacy(math.inf, 1e-5))
    assert plan.sums[0].drawn_sigma_integer == 0
    assert plan.epsilon() == math.inf


def test_samplers_distance_is_subtracted_from_delta_before_planning():
    plan = wasp_plan(Privacy(4, 1e-5))
    assert plan.privacy.delta * (1 - 1e-12) < plan.usable_delta < plan.privacy.delta
    assert plan.epsilon() <= 4 * (1 + 1e-9)
    # 4 sums of 12 000 numbers, 2^-110 each, (1 + e^60) times: nothing is left of delta
    with raises(PrivacyRefusal, "delta-too-small"):
        wasp_plan(Privacy(60, 1e-5))
    # a manifest's own figures are checked the same way
    with raises(PrivacyRefusal, "delta-too-small"):
        dataclasses.replace(plan, privacy=Privacy(60, 1e-5)).verify()


def test_roster_without_a_safe_mask_graph_is_refused_before_any_request():
    quorum = Quorum(parties=201, threshold=176, tolerated_dropouts=20, colluders=150)
    plan = wasp_plan(Privacy(4, 1e-5), quorum, releases=1)
    roster = tuple(Member(f"p{number:03}", (number + 2).to_bytes(32, "little")) for number in range(201))
    manifest = Manifest("a run", {"labels": []}, "wasp", "00" * 32, roster, plan)
    with raises(PrivacyRefusal, "no-neighbourhood") as refused:
        manifest.verify()
    assert "federation.colluders" in refused.value.remedy
    feasible = dataclasses.replace(quorum, threshold=102, tolerated_dropouts=1, colluders=1)
    dataclasses.replace(manifest, plan=wasp_plan(Privacy(4, 1e-5), feasible, releases=1)).verify()


def test_masks_are_post_quantum_by_default():
    assert Quorum(3, 2, 1, 0).post_quantum is True
    assert Quorum(3, 2, 1, 0, post_quantum=False).post_quantum is False
    fields = {field.name: field.default for field in dataclasses.fields(SumParameters)}
    assert fields["post_quantum"] is True
