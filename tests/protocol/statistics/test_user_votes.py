"""Votes of a user's records use the whole norm that is charged, and never more, whatever the records are."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.example_records import Records
from tests.doubles.pace import examples
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram, LabelledEmbeddings, PublicInputs, Rows, TopQVotes
from undersong_protocol.statistics.contribution import contribute, least_scale, unit_sensitivity
from undersong_protocol.statistics.votes import EqualVotes, hubness_correction

LABELS = 3
KINDS: dict[str, Any] = {
    "nearest and furthest": lambda n, labels: TopQVotes(8, n, labels),
    "nearest of two": lambda n, labels: TopQVotes(2, n, labels, furthest=False),
    "one nearest": lambda n, labels: TopQVotes(1, n, labels, furthest=False),
    "equal": lambda n, labels: EqualVotes(8, n, labels),
}


def public_inputs(rng: np.random.Generator, count: int) -> PublicInputs:
    values = (rng.integers(-8, 9, (count, 4)) / 16).astype(np.float32)
    labels = rng.integers(0, LABELS, count)
    candidates = LabelledEmbeddings(values, labels)
    return PublicInputs({"candidates": candidates}, {"hubness correction": hubness_correction(values, labels)})


def user_records(rng: np.random.Generator, count: int, user: int) -> tuple[Any, Any, Any]:
    """Embeddings, labels and units: some records repeat the first one, and some have no label."""
    values = (rng.integers(-8, 9, (count, 4)) / 16).astype(np.float32)
    values[rng.random(count) < 0.3] = values[0]
    return values, rng.integers(-1, LABELS, count), np.full(count, user)


def squared_norm(vector: Any) -> int:
    return sum(int(value) ** 2 for value in vector)


@pytest.mark.heavy
@settings(max_examples=examples(40, 300), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from([1, 2, 8, 50, 200]),
    labelled=st.booleans(),
    law=st.sampled_from(["gaussian", "laplace"]),
)
def test_a_user_moves_the_sum_by_the_whole_bound_and_no_more(
    seed: int, kind: str, size: int, labelled: bool, law: Any
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([1, 5, 60, 300]))
    public, statistic = public_inputs(rng, count), KINDS[kind](count, LABELS if labelled else 0)
    users = [user_records(rng, size if user == 0 else int(rng.integers(1, 9)), user) for user in range(4)]
    scale = least_scale(statistic, "mean", 200, law)

    def total(numbers: list[int]) -> Any:
        values, labels, units = (np.concatenate(part) for part in zip(*(users[n] for n in numbers), strict=True))
        order = rng.permutation(len(units))
        records = Records(embeddings=values[order], labels=labels[order], units=units[order])
        rows = statistic.rows(records, public, {})
        return contribute(statistic, rows, scale=scale, max_per_unit=200, law=law).values

    alone = total([0])
    np.testing.assert_array_equal(total([0, 1, 2, 3]) - total([1, 2, 3]), alone)
    bound = unit_sensitivity(statistic, "mean", 200, law)
    has_votes = not labelled or bool(np.isin(users[0][1], public.embeddings["candidates"].labels).any())
    if law == "gaussian":
        charged = statistic.sensitivity.l2
        norm = math.sqrt(squared_norm(alone))
        assert squared_norm(alone) <= Fraction(charged) ** 2 * scale**2
    else:
        charged = statistic.sensitivity.l1
        norm = int(np.abs(alone).sum())
        assert norm <= Fraction(charged) * scale
    assert np.abs(alone).max(initial=0) <= Fraction(bound.linf) * scale
    assert norm >= 0.99 * charged * scale if has_votes else norm == 0


def test_sum_of_a_user_s_records_keeps_the_norm_that_their_mean_loses() -> None:
    rng = np.random.default_rng(5)
    public, statistic = public_inputs(rng, 400), TopQVotes(8, 400)
    values = rng.standard_normal((8, 4)).astype(np.float32)
    records = Records(embeddings=values / 4, labels=np.full(8, -1), units=np.zeros(8, dtype=np.int64))
    rows = statistic.rows(records, public, {})
    matrix = sp.csr_array(rows.take(np.arange(8))).toarray()
    by_mean = np.linalg.norm(matrix.mean(axis=0)) / statistic.sensitivity.l2
    assert by_mean < 0.6
    scale = least_scale(statistic, "mean", 8, "gaussian")
    sent = contribute(statistic, rows, scale=scale, max_per_unit=8).values
    assert 0.99 < np.linalg.norm(sent) / (statistic.sensitivity.l2 * scale) <= 1.0
    direction = matrix.sum(axis=0)
    assert np.allclose(sent / np.linalg.norm(sent), direction / np.linalg.norm(direction), atol=0.002)


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0], [5e-324, 0.0, -5e-324], [np.nan, 1e-160, 0.0], [1e-310, 1.0, np.inf]])
def test_rows_of_zero_or_unusable_norm_count_as_zero(row: list[float]) -> None:
    statistic = TopQVotes(1, 3, furthest=False)
    forms: list[Any] = [np.array, sp.csr_array]
    for form in forms:
        sent = contribute(statistic, Rows(form([row, row]), np.array([0, 0])), scale=512, max_per_unit=2).values
        assert squared_norm(sent) <= 512**2
        assert bool(sent.any()) == (1.0 in row)


def test_plan_for_users_has_sigma_of_samples_and_at_most_two_bits_more() -> None:
    quorum = Quorum(5, 4, 1, 1)
    requests = [SumRequest("votes", TopQVotes(8, 100, 4)), SumRequest("labels", LabelHistogram(4))]
    samples = plan_sums(requests, Privacy(4.0, 1e-5), quorum)
    users = plan_sums(requests, Privacy(4.0, 1e-5, "user", 8), quorum)
    users.verify()
    votes, counted = users.sums
    assert votes.sigma == pytest.approx(samples.sums[0].sigma, rel=1e-3)
    assert (votes.linf, votes.l2) == (votes.l2, samples.sums[0].l2)
    assert (counted.l1, counted.l2, counted.linf) == (1.0, 1.0, 1.0), "a histogram keeps the mean"
    extra = votes.modulus_bits - samples.sums[0].modulus_bits - math.log2(votes.scale / samples.sums[0].scale)
    assert extra <= 2
