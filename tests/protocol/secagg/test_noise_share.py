"""XNoise: exact variances for every number of dropouts, what an opening opens, what it does not."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg.noise_share import (
    NoisePlan,
    NoiseSeeds,
    add_noise,
    check_opening,
    remove_opened,
    smallest_sigma,
)
from undersong_protocol.secagg.ring import ring_dtype, to_signed
from undersong_protocol.statistics.vectors import GridVector


def _seeds(party: int) -> NoiseSeeds:
    drawn = KeyStream(bytes([party]) * 32)
    return NoiseSeeds(drawn.read(32), drawn.read(32))


@given(st.integers(1, 40), st.data())
def test_noise_components_left_after_any_dropouts_have_planned_variance(parties: int, data: st.DataObject) -> None:
    colluders = data.draw(st.integers(0, parties - 1))
    dropouts = data.draw(st.integers(0, parties - 1 - colluders))
    sigma = smallest_sigma(parties, dropouts, colluders, removal=True) + 1
    plan = NoisePlan(sigma, parties, dropouts, colluders)
    variance = Fraction(sigma) ** 2
    assert plan.removal == (dropouts > 0)
    assert plan.components[0] == variance / (parties - colluders)
    for r in range(dropouts + 1):
        assert sum(plan.components[: r + 1]) == variance / (parties - colluders - r)
        assert plan.opened_variance(r) == variance * Fraction(parties - r, parties - r - colluders)
        # Honest survivors alone, once the colluders have taken their shares away, reach sigma^2 exactly.
        assert plan.opened_variance(r) * Fraction(parties - r - colluders, parties - r) == variance
        assert list(plan.opened_components(r)) == list(range(r + 1, dropouts + 1))
    assert plan.share_variance == variance / (parties - colluders - dropouts)


def test_noise_shares_of_ten_parties_equal_the_documented_example() -> None:
    """docs/privacy.md, number 6: any 7 survivors reach sigma^2; two dropped: the share is sigma^2/8."""
    plan = NoisePlan(452, 10, 3, 0)
    assert plan.removal
    assert 7 * plan.share_variance == 452**2
    assert sum(plan.components[:3]) == Fraction(452**2, 8)
    assert [plan.opened_variance(r) for r in range(4)] == [452**2] * 4
    with raises(InternalError, "too-many-dropouts"):
        plan.opened_variance(4)


def test_noise_components_too_small_to_draw_are_merged_into_one() -> None:
    edge = smallest_sigma(10, 3, 1, removal=True)
    assert NoisePlan(edge, 10, 3, 1).removal
    assert NoisePlan(smallest_sigma(10, 3, 1), 10, 3, 1).share_variance >= 9
    plan = NoisePlan(edge * 0.999, 10, 3, 1)
    assert not plan.removal
    assert plan.components == (plan.variance / 6,)
    assert [plan.opened_variance(r) for r in range(4)] == [plan.variance * Fraction(10 - r, 6) for r in range(4)]
    assert list(plan.opened_components(1)) == []
    seeds = _seeds(1)
    assert seeds.opening(plan, 1) is None
    with raises(PeerFault, "noise-not-taken-back"):
        check_opening(bytes(32), plan, 1, seeds.anchor(plan), "clinic-1")
    total = np.arange(5)
    remove_opened(total, plan, 1, bytes(32))
    assert total.tolist() == [0, 1, 2, 3, 4]


def test_noise_seed_that_is_missing_leaves_its_excess_variance() -> None:
    plan = NoisePlan(452, 10, 3, 1)
    excess = sum(plan.components[2:], Fraction(0))
    assert plan.opened_variance(1, unopened_count=2) == plan.opened_variance(1) + 2 * excess
    with raises(InternalError, "too-many-missing-values"):
        plan.opened_variance(1, unopened_count=10)


@pytest.mark.parametrize(
    ("sigma", "parties", "dropouts", "colluders"),
    [
        (100, 3, 2, 1),
        (100, 0, 0, 0),
        (100, 3, -1, 0),
        (100, 3, 0, -1),
        (-1, 3, 0, 0),
        (math.nan, 3, 0, 0),
        (7, 10, 3, 0),
    ],
)
def test_plans_without_enough_noise_are_refused(sigma: float, parties: int, dropouts: int, colluders: int) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        NoisePlan(sigma, parties, dropouts, colluders)
    assert refusal.value.remedy


def test_plan_without_noise_has_no_noise_components() -> None:
    plan = NoisePlan(0, 5, 1, 1)
    grid = GridVector(np.arange(4))
    assert plan.components == ()
    assert plan.opened_variance(1) == 0
    assert add_noise(grid, plan, _seeds(1)).values.tolist() == [0, 1, 2, 3]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 5), st.integers(1, 200), st.sampled_from([np.int64, np.uint32, np.uint64]))
def test_removing_opened_noise_equals_never_having_added_it(dropped: int, count: int, dtype: type) -> None:
    """Removing from the noisy vector equals never having added components r+1..D, in integers and in the ring."""
    plan = NoisePlan(500, 12, 5, 1)
    kept = NoisePlan(500, 12, 5, 1)
    seeds = _seeds(7)
    grid = GridVector(np.arange(count) * 3)
    before = grid.values.copy()
    noisy = add_noise(grid, plan, seeds).values
    assert np.array_equal(grid.values, before)
    opening = seeds.opening(plan, dropped)
    assert (opening is None) == (dropped == 5)
    object.__setattr__(kept, "components", plan.components[: dropped + 1])
    expected = add_noise(grid, kept, seeds).values
    bits = 60 if dtype is np.uint64 else 32
    total: Any = noisy.copy() if dtype is np.int64 else noisy.astype(ring_dtype(bits))
    if opening is not None:
        check_opening(opening, plan, dropped, seeds.anchor(plan), "clinic-1")
        remove_opened(total, plan, dropped, opening)
    left = total if dtype is np.int64 else to_signed(total, bits)
    assert np.array_equal(left, expected)


def test_noise_component_0_follows_from_its_own_seed_alone() -> None:
    plan = NoisePlan(500, 12, 5, 1)
    grid = GridVector(np.zeros(40, dtype=np.int64))

    def component_0(seeds: NoiseSeeds) -> list[int]:
        noise = add_noise(grid, plan, seeds).values.copy()
        remove_opened(noise, plan, 0, seeds.root)
        return noise.tolist()

    first, second = _seeds(1), _seeds(2)
    assert component_0(NoiseSeeds(first.own, second.root)) == component_0(first)
    assert component_0(NoiseSeeds(second.own, first.root)) != component_0(first)


def test_opened_noise_seed_is_accepted_only_for_its_component_and_party() -> None:
    plan = NoisePlan(500, 12, 5, 1)
    seeds, other = _seeds(1), _seeds(2)
    anchor = seeds.anchor(plan)
    for dropped in range(5):
        right = seeds.opening(plan, dropped)
        assert right is not None
        check_opening(right, plan, dropped, anchor, "clinic-1")
        wrong = [
            *(seeds.opening(plan, r) for r in range(5) if r != dropped),
            other.opening(plan, dropped),
            anchor,
            seeds.own,
            right[:31],
            right + b"\x00",
            bytes([right[0] ^ 1]) + right[1:],
        ]
        for value in wrong:
            assert value is not None
            with raises(PeerFault, "noise-off-its-anchor"):
                check_opening(value, plan, dropped, anchor, "clinic-1")
    with raises(PeerFault, "noise-not-taken-back"):
        check_opening(anchor, plan, 5, anchor, "clinic-1")


def test_opened_noise_seed_reveals_no_earlier_components() -> None:
    """V_{r+1} is a one-way image of V_r: two roots that differ share no later value, and no value is a stream seed."""
    plan = NoisePlan(500, 12, 5, 1)
    seeds = _seeds(1)
    values = [seeds.root, *(seeds.opening(plan, r) for r in range(1, 5)), seeds.anchor(plan), seeds.own]
    assert len(set(values)) == 7
    assert seeds.opening(plan, 0) == seeds.root


def test_noise_seeds_are_hidden_in_repr_and_checked_for_length() -> None:
    seeds = _seeds(1)
    assert repr(seeds) == "NoiseSeeds(hidden)"
    with raises(InternalError, "seed-length"):
        NoiseSeeds(bytes(31), bytes(32))
    with raises(InternalError, "seed-length"):
        NoiseSeeds(bytes(32), bytes(33))
