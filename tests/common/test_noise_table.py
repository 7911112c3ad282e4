"""The cumulative table: exact comparison of 127 bits, whatever the guide and the search do."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.errors import InternalError
from undersong_common.privacy import noise
from undersong_common.privacy.noise import TABLE_BITS, TAIL_BITS, CumulativeTable

GAUSSIAN = noise._gaussian_table(452**2, 1)
POLYA = noise._polya_table(Fraction(60), 7)
SMALL = noise._gaussian_table(14**2, 1)  # narrow
TINY = CumulativeTable.of_weights([3, 0, 1], Fraction(0))


@cache
def _boundaries(table: CumulativeTable) -> list[int]:
    return [(int(h) << 64 | int(low)) for h, low in zip(table.high[:-1], table.low[:-1], strict=True)]


def _draw_plainly(table: CumulativeTable, word: int) -> int:
    """The definition: how many boundaries do not exceed the upper 127 bits."""
    return bisect_right(_boundaries(table), word >> 1, key=lambda boundary: boundary >> 1)


def _words(values: list[int]) -> tuple[np.ndarray, np.ndarray]:
    high = np.array([value >> 64 for value in values], dtype=np.uint64)
    low = np.array([value & (2**64 - 1) for value in values], dtype=np.uint64)
    return high, low


@pytest.mark.parametrize("table", [GAUSSIAN, SMALL, POLYA, TINY], ids=["gaussian", "small", "polya", "tiny"])
def test_draws_at_and_around_every_boundary_follow_the_definition(table: CumulativeTable) -> None:
    # Below, at and above each boundary, in its last usable bit and in its high word; the sign bit both ways.
    words = [w for edge in _boundaries(table) for w in (edge - 1, edge, edge + 1, edge - 2**64, edge + 2**64)]
    words += [0, 1, 2**128 - 1, 2**128 - 2, 2**127, *(g << 114 for g in range(1 << 14))]
    words = [w for w in words if 0 <= w < 2**128]
    shifted = [boundary >> 1 for boundary in _boundaries(table)]
    expected = [bisect_right(shifted, word >> 1) for word in words]
    assert table.draw(*_words(words)).tolist() == expected


def test_a_tie_is_settled_without_another_tie_beside_it() -> None:
    """One draw a call: in a guided bucket, in a searched one, in the last one."""
    for table in (GAUSSIAN, SMALL):
        edges = _boundaries(table)
        for edge in (*edges[:3], *edges[len(edges) // 2 :][:10], *edges[-200::7]):
            for word in (edge - 1, edge):
                assert table.draw(*_words([word])).tolist() == [_draw_plainly(table, word)]


@settings(max_examples=examples(60, quick=20), deadline=None)
@given(
    st.lists(st.integers(0, 2**70), min_size=1, max_size=40).filter(any),
    st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=20),
)
def test_any_law_is_drawn_by_the_definition(weights: list[int], words: list[int]) -> None:
    table = CumulativeTable.of_weights(weights, Fraction(0))
    words += _boundaries(table)[:5]
    assert table.draw(*_words(words)).tolist() == [_draw_plainly(table, word) for word in words]


def test_statistical_distance_from_an_independent_high_precision_law_is_as_stated() -> None:
    """mpmath at 400 bits against the integer recurrence and the 127-bit rounding."""
    with mpmath.workprec(400):
        variance = mpmath.mpf(452) ** 2
        masses = [mpmath.mpf(1)]
        masses += [2 * mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * variance)) for k in range(1, 452 * 15)]
        total = mpmath.fsum(masses)
        edges = [0, *(boundary >> 1 for boundary in _boundaries(GAUSSIAN)), 1 << TABLE_BITS]
        tabled = [mpmath.mpf(after - before) for before, after in pairwise(edges)]
        tabled += [mpmath.mpf(0)] * (len(masses) - len(tabled))
        unit = mpmath.mpf(2) ** -TABLE_BITS
        errors = [abs(drawn * unit - mass / total) for drawn, mass in zip(tabled, masses, strict=True)]
        distance = mpmath.fsum(errors) / 2
        assert mpmath.mpf(2) ** -125 < distance
        assert distance < mpmath.mpf(GAUSSIAN.distance.numerator) / GAUSSIAN.distance.denominator
        # Beyond rounding, the only error is the mass left out, spread over the others in proportion.
        tail = mpmath.mpf(2) ** -TAIL_BITS
        kept = len(edges) - 1
        assert mpmath.fsum(errors[kept:]) <= tail
        assert all(error <= unit + mass / total * tail for error, mass in zip(errors[:kept], masses, strict=False))


def test_polya_probabilities_agree_with_the_binomial_formula() -> None:
    with mpmath.workprec(300):
        r, p = mpmath.mpf(1) / 7, mpmath.exp(-mpmath.mpf(1) / 60)
        edges = [0, *_boundaries(POLYA)]
        for k in (0, 1, 2, 10, 500, 3000):
            exact = mpmath.binomial(k + r - 1, k) * (1 - p) ** r * p**k
            assert abs(mpmath.mpf(edges[k + 1] - edges[k]) / mpmath.mpf(2) ** 128 - exact) < mpmath.mpf(2) ** -112


def test_a_sure_value_needs_no_boundary() -> None:
    assert CumulativeTable.of_weights([5], Fraction(0)).draw(*_words([0, 2**128 - 1])).tolist() == [0, 0]


def test_weights_that_are_no_law_are_refused() -> None:
    for weights in ([0, 0], [1, -1, 2]):
        with raises(InternalError, "no-law"):
            CumulativeTable.of_weights(weights, Fraction(0))
