"""Neighbourhoods: shape, uniform permutation, the stated failure probabilities, connectivity."""

import time
from collections import Counter
from fractions import Fraction
from math import comb, log2

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol.secagg import graph
from undersong_protocol.secagg.graph import (
    MaskGraph,
    Neighbourhood,
    choose_neighbourhood,
    complete,
    graph_seed,
    permutation,
)


def test_graph_of_a_thousand_parties_has_documented_degree_and_threshold() -> None:
    """docs/secagg.md, "The k-regular graph": 10 % adversaries, 10 % dropouts in all: k = 96, T = 67."""
    best = choose_neighbourhood(1000, 100, 100)
    assert (best.degree, best.threshold) == (96, 67)
    secrecy, recovery = (1000 * _tail(999, 100, 96, least) for least in (2 * 67 - 96, 96 - 67 + 1))
    assert log2(secrecy) == pytest.approx(-43.11, abs=0.01)
    assert log2(recovery) == pytest.approx(-20.63, abs=0.01)


def _tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    ways = sum(comb(marked, x) * comb(population - marked, drawn - x) for x in range(least, drawn + 1))
    return Fraction(ways, comb(population, drawn))


@pytest.mark.heavy
@settings(deadline=None, max_examples=40)
@given(st.integers(150, 600), st.integers(0, 12), st.integers(0, 12))
def test_chosen_mask_graph_degree_meets_its_bounds_and_is_the_smallest(parties: int, hostile: int, lost: int) -> None:
    adversaries, dropouts = parties * hostile // 100, parties * lost // 100
    try:
        best = choose_neighbourhood(parties, adversaries, dropouts)
    except ConfigurationError:
        return

    def meets(k: int, t: int) -> bool:
        both = parties * _tail(parties - 1, adversaries, k, 2 * t - k)
        stuck = parties * _tail(parties - 1, dropouts, k, k - t + 1)
        parted = parties * Fraction(comb(adversaries + dropouts, k // 2), comb(parties, k // 2))
        return max(both, parted) <= Fraction(1, 2**40) and stuck <= Fraction(1, 2**20)

    k, t = best.degree, best.threshold
    assert k % 2 == 0
    assert meets(k, t)
    assert t - 1 <= k // 2 or not meets(k, t - 1)
    assert not any(meets(k - 2, other) for other in range(k // 2, k - 1))


@given(st.integers(1, 40), st.data())
def test_hypergeometric_tails_equal_counts_of_draws(population: int, data: st.DataObject) -> None:
    marked, drawn = (data.draw(st.integers(0, population)) for _ in range(2))
    ways = [comb(marked, x) * comb(population - marked, drawn - x) for x in range(drawn + 1)]
    assert graph.upper_tails(population, marked, drawn) == [sum(ways[x:]) for x in range(drawn + 2)]


@pytest.mark.slow
def test_impossible_mask_graph_of_many_parties_is_refused_in_seconds() -> None:
    """All degrees of 10 000 parties took hours, when an attempt at a sum was opened."""
    begun = time.process_time()
    with raises(ConfigurationError, "no-neighbourhood"):
        choose_neighbourhood(10_000, 3333, 3333)
    assert time.process_time() - begun < 60.0


def test_mask_graph_with_impossible_dropout_rates_is_refused() -> None:
    with raises(ConfigurationError, "no-neighbourhood"):
        choose_neighbourhood(201, 90, 70)
    for adversaries, dropouts in ((500, 500), (-1, 0), (0, -1)):
        with raises(ConfigurationError, "impossible-graph"):
            choose_neighbourhood(1000, adversaries, dropouts)


def regular(parties: int, degree: int, seed: bytes) -> MaskGraph:
    return graph.regular(parties, 0, Neighbourhood(degree, degree), seed)


@pytest.mark.heavy
@settings(deadline=None, max_examples=40)
@given(st.integers(5, 80), st.data())
def test_neighbourhoods_are_symmetric_regular_and_without_loops(parties: int, data: st.DataObject) -> None:
    degree = 2 * data.draw(st.integers(1, (parties - 2) // 2))
    graph = regular(parties, degree, data.draw(st.binary(min_size=32, max_size=32)))
    around = {party: graph.neighbours(party, range(parties)) for party in range(parties)}
    for party, others in around.items():
        assert len(set(others)) == degree
        assert list(others) == sorted(others)
        assert party not in others
        assert all(party in around[other] for other in others)


def test_complete_graph_makes_all_others_neighbours() -> None:
    assert complete(5).neighbours(2, range(5)) == (0, 1, 3, 4)
    assert complete(5).holders(2, range(5)) == complete(5).dealers(2, range(5)) == (0, 1, 2, 3, 4)
    assert complete(1).neighbours(0, range(1)) == ()


@pytest.mark.parametrize("degree", [0, 1, 3, 9, 10, -2])
def test_degree_that_makes_no_circulant_graph_is_an_internal_error(degree: int) -> None:
    with raises(InternalError, "degree-out-of-range"):
        regular(10, degree, bytes(32))


@pytest.mark.heavy
def test_permutations_are_uniform_over_seeds() -> None:
    """All 24 orders of 4 parties over 4800 fixed seeds; fresh seeds would fail once in 1000."""
    counts = Counter(permutation(4, number.to_bytes(32, "little")) for number in range(4800))
    assert len(counts) == 24
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_permutation_skips_random_words_above_the_largest_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 3 choices 2^64 - 1 is the one word to skip; taken modulo 3 it would favour 0."""

    class Scripted:
        words = iter([2**64 - 1, 1, 2**64 - 1])

        def __init__(self, seed: bytes) -> None:
            pass

        def read(self, size: int) -> bytes:
            return next(self.words).to_bytes(size, "little")

    monkeypatch.setattr("undersong_protocol.secagg.graph.KeyStream", Scripted)
    # i = 2: the first word is skipped, 1 swaps places 1 and 2; i = 1: 2^64 - 1 is odd, so place 1 stays.
    assert permutation(3, bytes(32)) == (0, 2, 1)


def test_mask_graph_seed_depends_on_every_nonce_and_on_the_session() -> None:
    nonces = [bytes([i]) * 32 for i in range(4)]
    seeds = {graph_seed(b"sid", nonces), graph_seed(b"sid2", nonces), graph_seed(b"sid", nonces[::-1])}
    for index in range(4):
        seeds.add(graph_seed(b"sid", [*nonces[:index], bytes(31) + b"\x01", *nonces[index + 1 :]]))
    assert len(seeds) == 7
    with raises(InternalError, "nonce-length"):
        graph_seed(b"sid", [bytes(31)])
