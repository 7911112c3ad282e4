"""When a masked vector may leave: rungs that are public, few, and never early."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undersong_common.errors import PrivacyRefusal
from undersong_protocol import limits
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram


@given(st.floats(0, 1e6), st.floats(limits.FIRST_S, limits.LARGEST_FIRST_S))
def test_vector_leaves_at_a_power_of_two_times_the_first_time_never_early(elapsed, first):
    rung = limits.leaving_s(elapsed, first)
    assert rung >= elapsed
    assert rung == first or rung < 2 * elapsed * (1 + 1e-9)
    assert math.log2(rung / first) == round(math.log2(rung / first)) >= 0


def test_vector_done_just_after_a_public_time_leaves_at_the_next_one():
    for step in range(limits.LOOKS):
        rung = limits.FIRST_S * 2.0**step
        assert limits.leaving_s(rung) == rung
        assert limits.leaving_s(math.nextafter(rung, math.inf)) == 2 * rung


@given(st.floats(0, 1e5), st.floats(limits.FIRST_S, limits.LARGEST_FIRST_S))
def test_vector_is_looked_for_in_time_for_the_next_public_time(elapsed, first):
    look = limits.handover_s(elapsed, first)
    assert look >= elapsed - 1e-9 * first  # a difference of two floats
    assert limits.leaving_s(look, first) - look >= first / 2 * (1 - 1e-9) or look == first
    assert look == first or limits.leaving_s(look, first) == limits.leaving_s(elapsed + first / 2, first)


def test_leaving_time_shows_the_logarithm_of_the_number_of_looks_in_bits():
    for steps in range(limits.LOOKS):
        first = limits.FIRST_S * 2.0**steps
        last = limits.FIRST_S * 2.0 ** (limits.LOOKS - 2)
        looks, now = set(), 0.0
        while (look := limits.handover_s(now, first)) < max(last, first):
            looks.add(look)
            now = look * (1 + 1e-9)
        assert limits.bits(first) == math.log2(len(looks)), steps
    assert limits.bits() == math.log2(limits.LOOKS)


def plan_with(first_rung_s):
    request = SumRequest("labels", LabelHistogram(2), first_rung_s=first_rung_s)
    return plan_sums([request], Privacy(1.0, 1e-5), Quorum(1, 1, 0, 0))


def test_plan_fixes_the_public_leaving_times_and_the_party_checks_them():
    plan = plan_with(1.0)
    plan.verify()
    assert Plan.from_json(plan.to_json())["labels"].first_rung_s == 1.0


@pytest.mark.parametrize("first_rung_s", [0.0, -1.0, 1e-9, 0.019, 1e9, math.nan, math.inf, "0.02", None, True])
def test_plan_whose_first_leaving_time_is_out_of_range_is_refused(first_rung_s):
    plan = plan_with(limits.FIRST_S)
    changed = dataclasses.replace(plan.sums[0], first_rung_s=first_rung_s)
    with pytest.raises(PrivacyRefusal, match="rung"):
        dataclasses.replace(plan, sums=(changed,)).verify()
