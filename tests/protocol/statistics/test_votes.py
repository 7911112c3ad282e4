"""Top-Q votes against a plain integer reference with many ties, and their bounds."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.example_records import Records
from tests.doubles.pace import examples
from tests.doubles.votes import top_q_votes
from undersong_common.errors import ConfigurationError
from undersong_protocol import statistics
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs, TopQVotes, nearest
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.nearest import Candidates, NearestFurthest


def vote_by_definition(
    private: Any, private_labels: Any, candidates: Any, candidate_labels: Any, q: int
) -> tuple[Any, Any]:
    """The definition, in Python integers: inputs are multiples of 2^-24."""
    x = [[int(v * 2**24) for v in row] for row in np.asarray(private, dtype=np.float64)]
    c = [[int(v * 2**24) for v in row] for row in np.asarray(candidates, dtype=np.float64)]
    near, far = np.zeros(len(c), dtype=np.int64), np.zeros(len(c), dtype=np.int64)
    for i, row in enumerate(x):
        allowed = [j for j in range(len(c)) if private_labels is None or private_labels[i] == candidate_labels[j] != -1]
        distance = {j: sum((a - b) ** 2 for a, b in zip(row, c[j], strict=True)) for j in allowed}
        for rank, j in enumerate(sorted(allowed, key=lambda j: (distance[j], j))[:q]):
            near[j] += 2 ** (q - 1 - rank)
        for rank, j in enumerate(sorted(allowed, key=lambda j: (-distance[j], j))[:q]):
            far[j] += 2 ** (q - 1 - rank)
    return near, far


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, Any, Any, Any, int]:
    """Small integer vectors: hardly any distance is unique."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m, n, d = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 7, 30, 97, 400])), draw(st.integers(1, 3))
    span = draw(st.integers(1, 3))
    x, c = (rng.integers(-span, span + 1, (rows, d)).astype(np.float32) for rows in (m, n))
    q = draw(st.integers(1, 9))
    if draw(st.booleans()):
        return x, rng.integers(-1, 3, m), c, rng.integers(-1, 3, n), q
    return x, None, c, None, q


@pytest.mark.heavy
@settings(max_examples=examples(40, 150), deadline=None)
@given(problems())
def test_votes_equal_their_definition_under_ties(problem: tuple[Any, Any, Any, Any, int]) -> None:
    near, far = top_q_votes(*problem)
    true_near, true_far = vote_by_definition(*problem)
    assert near.dtype == far.dtype == np.int64
    np.testing.assert_array_equal(near, true_near)
    np.testing.assert_array_equal(far, true_far)


@settings(max_examples=examples(15, 60), deadline=None)
@given(problems(), st.lists(st.integers(0, 400), max_size=4))
def test_votes_after_adding_candidates_equal_starting_over(
    problem: tuple[Any, Any, Any, Any, int], cuts: list[int]
) -> None:
    x, labels, c, candidate_labels, q = problem
    whole, grown = NearestFurthest(x, labels, q), NearestFurthest(x, labels, q)
    whole.extend(c, candidate_labels)
    edges = [0, *sorted(min(cut, len(c)) for cut in cuts), len(c)]
    for low, high in pairwise(edges):
        grown.extend(c[low:high], None if candidate_labels is None else candidate_labels[low:high])
    np.testing.assert_array_equal(grown.near, whole.near)
    np.testing.assert_array_equal(grown.far, whole.far)


@pytest.mark.slow
def test_votes_over_many_blocks_equal_their_definition() -> None:
    rng = np.random.default_rng(3)
    x, c = (rng.integers(-40, 41, (rows, 5)).astype(np.float32) for rows in (300, 1001))
    for found, true in zip(top_q_votes(x, None, c, None, 8), vote_by_definition(x, None, c, None, 8), strict=True):
        np.testing.assert_array_equal(found, true)


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(lambda number: np.ones_like(number), id="all alike"),
        pytest.param(lambda number: number // 100, id="copies side by side"),
        pytest.param(lambda number: (number % 8 == 3) * 9, id="one in a group ties"),
        pytest.param(lambda number: 600 - number, id="nearer and nearer"),
        pytest.param(lambda number: number, id="further and further"),
    ],
)
def test_votes_do_not_depend_on_the_order_of_many_candidates(scale: Any) -> None:
    rng = np.random.default_rng(8)
    x, directions = (rng.integers(-2, 3, (rows, 3)).astype(np.float32) for rows in (9, 2))
    c = (scale(np.arange(600))[:, None] * np.repeat(directions, 300, axis=0)).astype(np.float32)
    whole, grown = NearestFurthest(x, None, 4), NearestFurthest(x, None, 4)
    whole.extend(c, None)
    for part in np.split(c, (150, 300)):
        grown.extend(part, None)
    for found, true in zip(top_q_votes(x, None, c, None, 4), vote_by_definition(x, None, c, None, 4), strict=True):
        np.testing.assert_array_equal(found, true)
    np.testing.assert_array_equal(grown.near, whole.near)
    np.testing.assert_array_equal(grown.far, whole.far)


def test_search_reads_few_groups_if_all_candidates_tie() -> None:
    best, bars = np.ones((500, 7), dtype=np.float32), np.ones(7, dtype=np.float32)
    places = nearest._reaching_groups(best, bars, 4)
    np.testing.assert_array_equal(places, np.arange(4 * 7))


def test_votes_without_records_or_candidates_are_zero() -> None:
    nothing, some = np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32)
    assert [v.tolist() for v in top_q_votes(nothing, None, some, None, 4)] == [[0, 0], [0, 0]]
    assert [v.tolist() for v in top_q_votes(some, None, nothing, None, 4)] == [[], []]
    assert [v.tolist() for v in top_q_votes(some, np.array([0, -1]), some, np.array([-1, 1]), 4)] == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: top_q_votes(np.zeros((2, 3), "f"), None, np.zeros((2, 4), "f"), None, 1),
        lambda: top_q_votes(np.zeros((2, 3), "f"), np.zeros(2, int), np.zeros((2, 3), "f"), None, 1),
        lambda: TopQVotes(q=0, candidates=5),
        lambda: TopQVotes(q=31, candidates=5),
        lambda: TopQVotes(q=8, candidates=0),
        lambda: TopQVotes(q=8, candidates=5, labels=-1),
        lambda: TopQVotes(q=True, candidates=5),
        lambda: statistics.build("top_q_votes", {"q": 8.0, "candidates": 5}),
        lambda: statistics.build("top_q_votes", {"q": 8}),
        lambda: statistics.build("top_q_votes", {"q": 8, "candidates": 5, "sigma": 1}),
        lambda: statistics.build("bottom_q_votes", {}),
    ],
)
def test_malformed_parameters_of_votes_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


def test_sensitivities_of_votes_are_tight() -> None:
    both = TopQVotes(q=8, candidates=6000).sensitivity
    assert both.l1 * 128 == 510
    assert both.l2 * 128 == pytest.approx(math.sqrt(43690), rel=1e-15)
    assert both.l2 == pytest.approx(1.63298, abs=1e-5)
    assert both.linf * 128 == 128
    near = TopQVotes(q=8, candidates=6000, furthest=False).sensitivity
    assert (near.l1 * 128, near.linf) == (255, 1)
    assert near.l2 == pytest.approx(math.sqrt((4**8 - 1) / 3) / 128, rel=1e-15)
    one = TopQVotes(q=1, candidates=10, furthest=False).sensitivity
    assert (one.l1, one.l2, one.linf) == (1, 1, 1)


@settings(max_examples=examples(15, 60), deadline=None)
@given(problems(), st.integers(0, 5), st.booleans())
def test_a_contribution_is_the_votes_and_no_record_exceeds_the_bound(
    problem: tuple[Any, Any, Any, Any, int], spare: int, furthest: bool
) -> None:
    x, labels, c, candidate_labels, q = problem
    given_labels = np.zeros(len(c), dtype=np.int64) if candidate_labels is None else candidate_labels
    votes = TopQVotes(q=q, candidates=len(c) + spare, labels=0 if labels is None else 3, furthest=furthest)
    public = PublicInputs(embeddings={"candidates": LabelledEmbeddings(c, given_labels)})
    rows = votes.rows(Records(embeddings=x, labels=labels), public, {})
    values = contribute(votes, rows, scale=votes.base_scale).values
    near, far = top_q_votes(x, labels, c, candidate_labels, q)
    expected = np.zeros(votes.dimension, dtype=np.int64)
    expected[: len(c)] = near
    if furthest:
        expected[votes.candidates : votes.candidates + len(c)] = far
    np.testing.assert_array_equal(values, expected)
    matrix, bound = np.abs(rows.take(np.arange(len(rows))).toarray()), votes.sensitivity  # type: ignore[union-attr]
    assert matrix.sum(axis=1).max() <= bound.l1
    assert np.square(matrix).sum(axis=1).max() <= bound.l2**2 * (1 + 1e-15)
    assert matrix.max() <= bound.linf


def test_remembered_neighbours_save_work_and_never_change_votes() -> None:
    rng = np.random.default_rng(5)
    x, c = (rng.integers(-9, 10, (rows, 6)).astype(np.float32) for rows in (50, 400))
    private_labels, labels = rng.integers(0, 2, 50), rng.integers(0, 2, 400)
    records, memory = Records(embeddings=x, labels=private_labels), {}  # type: ignore[var-annotated]
    shuffled = rng.permutation(400)
    requests = [np.arange(100), np.arange(250), np.arange(400), np.arange(400), np.arange(90), shuffled, shuffled[:200]]
    for chosen in requests:
        votes = TopQVotes(q=4, candidates=400, labels=2)
        public = PublicInputs(embeddings={"candidates": LabelledEmbeddings(c[chosen], labels[chosen])})
        with_memory = contribute(votes, votes.rows(records, public, memory), scale=8).values
        without = contribute(votes, votes.rows(records, public, {}), scale=8).values
        np.testing.assert_array_equal(with_memory, without)
    other = Records(embeddings=x[::-1].copy(), labels=private_labels)
    with_memory = contribute(votes, votes.rows(other, public, memory), scale=8).values
    np.testing.assert_array_equal(with_memory, contribute(votes, votes.rows(other, public, {}), scale=8).values)


def test_later_requests_compare_new_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    original = NearestFurthest.add

    def add(self: NearestFurthest, candidates: Candidates) -> None:
        compared.append(len(candidates.values))
        original(self, candidates)

    monkeypatch.setattr(NearestFurthest, "add", add)
    rng = np.random.default_rng(6)
    records, memory = Records(embeddings=rng.integers(-3, 4, (5, 4))), dict[str, Any]()
    c = rng.integers(-3, 4, (60, 4)).astype(np.float32)
    for count in (20, 20, 60):
        public = PublicInputs(embeddings={"candidates": LabelledEmbeddings(c[:count], np.full(count, -1))})
        TopQVotes(q=3, candidates=count).rows(records, public, memory)
    assert compared == [20, 40]


def test_candidates_shown_to_several_parties_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = nearest._with_norms

    def with_norms(chosen: Any, correction: Any) -> Any:
        made.append(len(chosen))
        return original(chosen, correction)

    monkeypatch.setattr(nearest, "_with_norms", with_norms)
    rng = np.random.default_rng(7)
    c, labels = rng.integers(-3, 4, (60, 4)).astype(np.float32), np.arange(60) % 3
    parties = [
        Records(embeddings=rng.integers(-3, 4, (9, 4)), labels=own)
        for own in (np.ones(9), np.arange(9) % 3, np.arange(9) % 2)
    ]

    def votes(records: Records, public: PublicInputs) -> Any:
        rows: Any = TopQVotes(q=3, candidates=60, labels=3).rows(records, public, {}).take(np.arange(9))
        return rows.toarray()

    shared = PublicInputs(embeddings={"candidates": LabelledEmbeddings(c, labels)})
    found = [votes(records, shared) for records in parties]
    assert made == [20, 20, 20]
    for records, together in zip(parties, found, strict=True):
        alone = PublicInputs(embeddings={"candidates": LabelledEmbeddings(c, labels)})
        np.testing.assert_array_equal(together, votes(records, alone))
