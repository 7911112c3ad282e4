"""The noise laws: distribution against the exact law, determinism, rules of the charge.

Statistical tests in the default suite run on fixed seeds, so they are deterministic; the level at which a fresh seed
would raise a false alarm is stated with each. The slow ones draw fresh seeds at false-alarm rates near 1e-9.
"""

import math
import os
from bisect import bisect_right
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples, slow_after
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.privacy import noise
from undersong_common.privacy.noise import (
    STATISTICAL_DISTANCE,
    TABLE_BITS,
    TAIL_BITS,
    CumulativeTable,
    DiscreteGaussian,
    DiscreteLaplaceShare,
    IntegerNoise,
    exp_fixed,
)
from undersong_common.privacy.stream import KeyStream

SEED = bytes(range(32))


def _gaussian_law(variance: float) -> tuple[np.ndarray, np.ndarray]:
    reach = math.ceil(9 * math.sqrt(variance)) + 2
    support = np.arange(-reach, reach + 1)
    mass = np.exp(-(support**2) / (2.0 * variance))
    return support, mass / mass.sum()


def _laplace_law(scale: float) -> tuple[np.ndarray, np.ndarray]:
    reach = math.ceil(30 * scale) + 2
    support = np.arange(-reach, reach + 1)
    mass = np.exp(-np.abs(support) / scale)
    return support, mass / mass.sum()


def _goodness_of_fit(drawn: np.ndarray, law: tuple[np.ndarray, np.ndarray]) -> float:
    """p-value of Pearson's chi-square over values, the rare ones joined until each cell expects at least 10."""
    support, mass = law
    observed = np.bincount(np.clip(drawn, support[0], support[-1]) - support[0], minlength=len(support))
    expected = mass * len(drawn)
    cells = np.minimum(np.cumsum(expected) // max(10.0, len(drawn) / 2000), 10**9)
    _, first = np.unique(cells, return_index=True)
    seen, due = np.add.reduceat(observed, first), np.add.reduceat(expected, first)
    if due[-1] < 10:
        seen[-2] += seen[-1]
        due[-2] += due[-1]
        seen, due = seen[:-1], due[:-1]
    statistic = float(((seen - due) ** 2 / due).sum())
    return float(scipy.stats.chi2.sf(statistic, len(due) - 1))


@pytest.mark.heavy
@pytest.mark.parametrize("sigma", [0.5, 1, 3, 7.25, 120, 452, 4095, 4097, 9000, 50_000])
def test_discrete_gaussian_draws_follow_their_distribution(sigma: float) -> None:
    """A fresh seed would fail one case in 1000; the seed is fixed."""
    drawn = DiscreteGaussian(sigma).sample(KeyStream(SEED), 200_000)
    if sigma <= 452:
        assert _goodness_of_fit(drawn, _gaussian_law(float(sigma) ** 2)) > 1e-3
    else:
        # At this width the rounded continuous law is the discrete one to 1e-9.
        assert (
            scipy.stats.kstest(drawn + np.random.default_rng(1).uniform(-0.5, 0.5, len(drawn)), "norm", (0, sigma))[1]
            > 1e-3
        )


def test_last_bit_of_a_gaussian_draw_s_block_decides_only_the_sign() -> None:
    words = np.frombuffer(KeyStream(SEED).read(16 * 500), dtype="<u8").reshape(500, 2).copy()
    law = DiscreteGaussian(9)
    drawn = law._draw(words)
    assert np.array_equal(np.sign(drawn) < 0, (words[:, 1] & np.uint64(1) == 1) & (drawn != 0))
    flipped = words.copy()
    flipped[:, 1] ^= np.uint64(1)
    assert np.array_equal(law._draw(flipped), -drawn)


def test_wide_gaussian_s_residues_modulo_its_stride_are_uniform() -> None:
    """A + k B must not show k: residues modulo the stride are uniform. A fresh seed would fail once in 1000."""
    law = DiscreteGaussian(20_000)
    assert law._stride > 1
    drawn = law.sample(KeyStream(SEED), 200_000)
    counts = np.bincount(drawn % law._stride, minlength=law._stride)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.heavy
@pytest.mark.parametrize("sigma", [5000, 50_000, 10**6, 8_388_608])
def test_wide_gaussian_splits_its_variance_exactly_and_smoothly(sigma: int) -> None:
    law = DiscreteGaussian(sigma)
    stride, variance = law._stride, Fraction(sigma) ** 2
    coarse = math.floor(variance / stride**2) - 5
    fine = variance - coarse * stride**2
    assert 5 * stride**2 <= fine < 6 * stride**2
    smoothing = 1 / (1 / coarse + stride**2 / float(fine))
    assert 4 * math.exp(-2 * math.pi**2 * smoothing) < 2**-139
    assert law.distance < STATISTICAL_DISTANCE


def test_wide_gaussian_probabilities_equal_the_law_in_exact_arithmetic() -> None:
    """The convolution's own mass function, summed at 300 bits, against N_Z: within 2^-139 relative."""
    with mpmath.workprec(300):
        stride, coarse, fine = 3, mpmath.mpf(400), mpmath.mpf(45)
        total = fine + stride**2 * coarse

        def unnormalised(x: int) -> mpmath.mpf:
            return mpmath.fsum(
                mpmath.exp(-(mpmath.mpf(y) ** 2) / (2 * coarse) - mpmath.mpf(x - stride * y) ** 2 / (2 * fine))
                for y in range(-150, 151)
            )

        at_zero = unnormalised(0)
        for x in (1, 2, 3, 17, 60, 149):
            ratio = unnormalised(x) / at_zero / mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * total))
            assert abs(ratio - 1) < mpmath.mpf(2) ** -137


@pytest.mark.parametrize("scale", [0.5, 2, 25.5, 300])
def test_discrete_laplace_draws_follow_their_distribution(scale: float) -> None:
    """A fresh seed would fail one case in 1000."""
    drawn = DiscreteLaplaceShare(scale, 1).sample(KeyStream(SEED), 200_000)
    assert _goodness_of_fit(drawn, _laplace_law(scale)) > 1e-3


@pytest.mark.parametrize(("scale", "parties"), [(2, 3), (25.5, 10)])
def test_shares_of_discrete_laplace_noise_sum_to_its_distribution(scale: float, parties: int) -> None:
    """A fresh seed would fail one case in 1000."""
    law = DiscreteLaplaceShare(scale, parties)
    total = np.zeros(100_000, dtype=np.int64)
    for party in range(parties):
        law.add_to(total, KeyStream(bytes([party]) * 32))
    assert _goodness_of_fit(total, _laplace_law(scale)) > 1e-3
    assert abs(law.deviation * math.sqrt(parties) - DiscreteLaplaceShare(scale, 1).deviation) < 1e-12


@pytest.mark.parametrize(
    "law", slow_after([DiscreteGaussian(3), DiscreteGaussian(5000), DiscreteLaplaceShare(4000, 3)], 1), ids=repr
)
def test_same_seed_gives_the_same_noise_in_parts_of_any_size(
    law: IntegerNoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = law.sample(KeyStream(SEED), 5_000)
    stream = KeyStream(SEED)
    parts = np.concatenate([law.sample(stream, n) for n in (0, 1, 999, 4_000)])
    monkeypatch.setattr(noise, "_CHUNK", 7)
    assert np.array_equal(whole, parts)
    assert np.array_equal(whole, law.sample(KeyStream(SEED), 5_000))


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_adding_then_subtracting_the_same_noise_restores_the_vector(dtype: type) -> None:
    law = DiscreteGaussian(452)
    target: Any = np.arange(40_000).astype(dtype)
    law.add_to(target, KeyStream(SEED))
    lifted = (target - np.arange(40_000).astype(dtype)).view(np.int32 if dtype is np.uint32 else np.int64)
    assert np.array_equal(lifted, law.sample(KeyStream(SEED), 40_000))
    law.add_to(target, KeyStream(SEED), sign=-1)
    assert np.array_equal(target, np.arange(40_000).astype(dtype))
    with raises(InternalError, "noise-sign"):
        law.add_to(target, KeyStream(SEED), sign=0)


@settings(max_examples=30, deadline=None)
@given(st.fractions(min_value=Fraction(1, 8), max_value=2000, max_denominator=50))
def test_every_gaussian_s_stated_distance_is_below_the_allowed_one(sigma: Fraction) -> None:
    law = DiscreteGaussian.of_variance(sigma)
    assert 0 < law.distance < STATISTICAL_DISTANCE
    assert abs(law.deviation**2 - sigma) < 1e-9 * sigma


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("scale", "parties", "bits"), [pytest.param(2**14, 1, 106, marks=pytest.mark.slow), (1000, 10, 110)]
)
def test_stated_distance_of_laplace_shares_is_below_its_bound(scale: int, parties: int, bits: int) -> None:
    assert DiscreteLaplaceShare(scale, parties).distance < Fraction(1, 2**bits)


@given(st.fractions(min_value=0, max_value=40, max_denominator=10**6))
def test_integer_exponential_is_within_one_unit_of_the_exact_value(exponent: Fraction) -> None:
    with mpmath.workprec(600):
        exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator) * mpmath.mpf(2) ** 256
        assert 0 <= exact - exp_fixed(exponent) <= 1 or (exponent == 0 and exp_fixed(exponent) == 2**256)


@pytest.mark.parametrize("sigma", [0, -1, 0.2, 2.0**23 + 1, math.inf, math.nan])
def test_gaussian_scale_out_of_range_is_refused(sigma: float) -> None:
    with raises(ConfigurationError, "sigma-out-of-range"):
        DiscreteGaussian(sigma)


@pytest.mark.parametrize("scale", [0, -2, 0.01, 2.0**21, math.nan])
def test_laplace_scale_out_of_range_is_refused(scale: float) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DiscreteLaplaceShare(scale, 5)
    assert refused.value.code == "scale-out-of-range"
    with raises(ConfigurationError, "no-survivor"):
        DiscreteLaplaceShare(5, 0)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1, 3, 30.5, 452, 3500, 20_000])
def test_five_million_draws_of_fresh_seeds_follow_their_distribution(sigma: float) -> None:
    """False alarm 1e-9 a test, two tests a case."""
    law = DiscreteGaussian(sigma)
    drawn = law.sample(KeyStream(os.urandom(32)), 5_000_000)
    if sigma <= 4000:
        assert _goodness_of_fit(drawn, _gaussian_law(float(sigma) ** 2)) > 1e-9
    # The mean square of N draws deviates by sigma^2 sqrt(2/N); 6.1 deviations are 1e-9.
    exact = float(np.dot(*(x.astype(float) for x in (_gaussian_law(sigma**2)[0] ** 2, _gaussian_law(sigma**2)[1]))))
    assert abs(np.mean(drawn.astype(float) ** 2) / exact - 1) < 6.2 * math.sqrt(2 / len(drawn)) * 1.1


# The cumulative table: exact comparison of 127 bits, whatever the guide and the search do

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


@pytest.mark.slow
@pytest.mark.parametrize("table", [GAUSSIAN, SMALL, POLYA, TINY], ids=["gaussian", "small", "polya", "tiny"])
def test_table_draws_at_and_around_every_boundary_follow_the_definition(table: CumulativeTable) -> None:
    # Below, at and above each boundary, in its last usable bit and in its high word; the sign bit both ways.
    words = [w for edge in _boundaries(table) for w in (edge - 1, edge, edge + 1, edge - 2**64, edge + 2**64)]
    words += [0, 1, 2**128 - 1, 2**128 - 2, 2**127, *(g << 114 for g in range(1 << 14))]
    words = [w for w in words if 0 <= w < 2**128]
    shifted = [boundary >> 1 for boundary in _boundaries(table)]
    expected = [bisect_right(shifted, word >> 1) for word in words]
    assert table.draw(*_words(words)).tolist() == expected


def test_single_draw_at_a_table_boundary_equals_the_definition() -> None:
    """One draw a call: in a guided bucket, in a searched one, in the last one."""
    for table in (GAUSSIAN, SMALL):
        edges = _boundaries(table)
        for edge in (*edges[:3], *edges[len(edges) // 2 :][:10], *edges[-200::7]):
            for word in (edge - 1, edge):
                assert table.draw(*_words([word])).tolist() == [_draw_plainly(table, word)]


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    st.lists(st.integers(0, 2**70), min_size=1, max_size=40).filter(any),
    st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=20),
)
def test_cumulative_table_draws_any_distribution_by_its_definition(weights: list[int], words: list[int]) -> None:
    table = CumulativeTable.of_weights(weights, Fraction(0))
    words += _boundaries(table)[:5]
    assert table.draw(*_words(words)).tolist() == [_draw_plainly(table, word) for word in words]


@pytest.mark.heavy
def test_distance_from_an_independent_exact_law_is_as_stated() -> None:
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


def test_distribution_of_one_value_always_draws_that_value() -> None:
    assert CumulativeTable.of_weights([5], Fraction(0)).draw(*_words([0, 2**128 - 1])).tolist() == [0, 0]


def test_weights_that_are_no_distribution_are_refused() -> None:
    for weights in ([0, 0], [1, -1, 2]):
        with raises(InternalError, "no-law"):
            CumulativeTable.of_weights(weights, Fraction(0))


@pytest.mark.parametrize("law", [DiscreteGaussian(30.0), DiscreteLaplaceShare(30.0, 3)])
def test_random_bytes_of_the_noise_leave_no_trace_in_memory(law: IntegerNoise) -> None:
    target = np.zeros(1000, dtype=np.int64)
    law.add_to(target, KeyStream(b"\x01" * 32))
    assert target.any()
    assert not any(noise._SCRATCH.room)
