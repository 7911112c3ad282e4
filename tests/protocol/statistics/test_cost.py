"""What a party's vector costs is public: every number of a plan has a bound, and memory follows records or plan alone.

A plan whose buffer fits n records but not n + 1 would turn "zeros for want of memory" into an exact counter.
"""

import dataclasses
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.doubles.pace import slow_but
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol import statistics
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics import (
    LabelHistogram,
    LabelledEmbeddings,
    LengthHistogram,
    PublicFacts,
    PublicInputs,
    Statistic,
    TopQVotes,
    contribution,
    histogram,
    nearest,
    terms,
    votes,
)
from undersong_protocol.statistics.classifier_votes import (
    BUCKETS,
    ClassifierVotes,
    ClassifierVotesInBlocks,
    CorpusComparison,
    ScoredComparison,
)
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.histogram import AttributeMarginals, MetadataHistograms
from undersong_protocol.statistics.label_words import LARGEST_DISTINCT, LabelWords
from undersong_protocol.statistics.similarity import ScoredSimilarity
from undersong_protocol.statistics.support import LARGEST_GENERATORS, SupportVotes
from undersong_protocol.statistics.teacher_votes import TeacherVotes
from undersong_protocol.statistics.terms import FourierFeatures, TermHistogram
from undersong_protocol.statistics.votes import EqualVotes

WIDTH = 4
FEW, MANY = 20, 60  # records: more than a block has
SMALL, LARGE = 2, 2048  # numbers of a plan
BYTES_A_RECORD = 1024  # that a plan's numbers may cost; a buffer of records times such a number costs 8 x LARGE
TERMS = tuple(f"t{number}" for number in range(2 * LARGE))
SEED = np.random.default_rng(7)
CLOUD = quantise(SEED.normal(size=(2 * LARGE, WIDTH)))


# The long suite tries every other statistic too.
OFTEN_ASKED = ("top_q_votes", "support_votes", "term_histogram", "label_words", "teacher_votes", "scored_comparison")


class Records:
    """Some of many records, each with as many phrases as a plan can ask for."""

    def __init__(self, count: int, *, one_unit: bool = False) -> None:
        self.texts = tuple(" ".join(TERMS[row % 7 : row % 7 + 70]) for row in range(count))
        self.labels = np.arange(count) % SMALL
        self.embeddings = np.tile(CLOUD[:FEW], (MANY // FEW, 1))[:count]
        self.units = np.zeros(count, dtype=np.int64) if one_unit else np.arange(count)
        self.unit_hashes = np.arange(count).astype(np.uint64)
        self.local_model = ""
        self.columns: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.texts)


def embedded(count: int, labels: int = 1) -> LabelledEmbeddings:
    return LabelledEmbeddings(CLOUD[:count], np.arange(count) % labels)


def numbers(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def top_q_votes(size: int) -> tuple[Statistic, PublicInputs]:
    return TopQVotes(min(size, 30), size), PublicInputs({"candidates": embedded(size)})


def equal_votes(size: int) -> tuple[Statistic, PublicInputs]:
    public = PublicInputs({"candidates": embedded(size)}, {"hubness correction": numbers(size)})
    return EqualVotes(min(size, 30), size), public


def support_votes(size: int) -> tuple[Statistic, PublicInputs]:
    generators = min(size, LARGEST_GENERATORS)
    public = PublicInputs(
        {"candidates": embedded(size)}, {"authors": (np.arange(size) % generators).astype(np.float64)}
    )
    return SupportVotes(generators, size), public


def scored_similarity(size: int) -> tuple[Statistic, PublicInputs]:
    public = PublicInputs({"candidates": embedded(size)}, {"corpora": (np.arange(size) % 4).astype(np.float64)})
    return ScoredSimilarity(size), public


def attribute_marginals(size: int) -> tuple[Statistic, PublicInputs]:
    lists = (2,) * min(size, 30)
    values = LabelledEmbeddings(CLOUD[: sum(lists)], np.repeat(np.arange(len(lists)), lists))
    return AttributeMarginals(0, lists), PublicInputs({"values": values})


def classifier_votes(size: int, kind: type[ClassifierVotes] = ClassifierVotes) -> tuple[Statistic, PublicInputs]:
    classifiers, labels = min(size, 32), min(size, 400)
    public = {"classifiers": numbers(classifiers, WIDTH + 1, labels), "blocks": np.arange(labels) % SMALL}
    return kind(classifiers, labels), PublicInputs({}, public)


def corpus_comparison(size: int, kind: type[CorpusComparison] = CorpusComparison) -> tuple[Statistic, PublicInputs]:
    labels = min(size, 16)
    public = {"heads": numbers(2, WIDTH + 1, labels), "word classifiers": numbers(2, BUCKETS + 1, labels)}
    return kind(labels), PublicInputs({}, public)


def fourier_features(size: int, *, averaged: bool) -> tuple[Statistic, PublicInputs]:
    longest = min(size, 64)
    statistic = FourierFeatures(size, 2, (1,) if averaged else (longest, 1), longest, averaged=averaged, seed=3)
    return statistic, PublicInputs({"terms": embedded(100)}, {}, {"terms": TERMS[:100]})


def label_words(size: int) -> tuple[Statistic, PublicInputs]:
    listed = tuple(f"w{number}" for number in range(size))
    public = PublicInputs({}, {"order": np.tile(np.arange(float(size)), (SMALL, 1))}, {"words": listed})
    return LabelWords(size, SMALL, min(size, LARGEST_DISTINCT)), public


def teacher_votes(size: int) -> tuple[Statistic, PublicInputs]:
    public = PublicInputs({"queries": embedded(size, 1), "contrast": embedded(10, 1)})
    return TeacherVotes(size, min(size, 70)), public


def metadata(size: int) -> tuple[Statistic, PublicInputs]:
    public = PublicInputs({"keywords": embedded(size, SMALL)}, {"length_edges": np.arange(float(size + 1))})
    return MetadataHistograms(SMALL, size, size), public


# For each registered statistic: as it is planned with numbers of some size, and its public inputs.
PLANNED: dict[str, Callable[[int], tuple[Statistic, PublicInputs]]] = {
    "attribute_marginals": attribute_marginals,
    "classifier_votes": classifier_votes,
    "classifier_votes_in_blocks": lambda size: classifier_votes(size, ClassifierVotesInBlocks),
    "corpus_comparison": corpus_comparison,
    "embedding_sum": lambda size: (EmbeddingSum(WIDTH, min(size, LARGEST_LABELS)), PublicInputs()),
    "equal_votes": equal_votes,
    "fourier_features": lambda size: fourier_features(size, averaged=False),
    "fourier_features, averaged": lambda size: fourier_features(size, averaged=True),
    "label_histogram": lambda size: (LabelHistogram(min(size, LARGEST_LABELS)), PublicInputs()),
    "label_words": label_words,
    "length_histogram": lambda size: (LengthHistogram(tuple(range(min(size, 1024)))), PublicInputs()),
    "metadata_histograms": metadata,
    "scored_comparison": lambda size: corpus_comparison(size, ScoredComparison),
    "scored_similarity": scored_similarity,
    "support_votes": support_votes,
    "teacher_votes": teacher_votes,
    "term_histogram": lambda size: (
        TermHistogram(2 * size, size),
        PublicInputs(texts={"vocabulary": TERMS[: 2 * size]}),
    ),
    "top_q_votes": top_q_votes,
}
EVERY = pytest.mark.parametrize("name", PLANNED)


def test_memory_tests_cover_every_registered_statistic() -> None:
    packaged = {name for name in statistics.names() if not statistics.source(name)}
    assert {name.partition(",")[0] for name in PLANNED} == packaged


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that a few records overflow, as many records do the real ones."""
    for module, name, value in (
        (contribution, "CHUNK_ELEMENTS", 2**14),
        (contribution, "BLOCK_ROWS", 16),
        (histogram, "BLOCK_ROWS", 16),
        (nearest, "BLOCK_SCORES", 2**14),
        (nearest, "BLOCK_ROWS", 16),
        (votes, "BLOCK_ELEMENTS", 2**14),
    ):
        monkeypatch.setattr(module, name, value, raising=False)


def compute(statistic: Statistic, public: PublicInputs, records: Records) -> None:
    """A party's vector."""
    per_unit = len(records) // len(np.unique(records.units))
    rows = statistic.rows(records, public, {})
    contribution.contribute(statistic, rows, scale=statistic.base_scale, max_per_unit=per_unit)


def peak_bytes(statistic: Statistic, public: PublicInputs, records: Records) -> int:
    """Highest memory of a party's vector, of Python and NumPy, beside its records."""
    tracemalloc.start()
    try:
        compute(statistic, public, records)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "one_unit"),
    slow_but(product(PLANNED, [False, True]), [*product(OFTEN_ASKED, [False]), ("embedding_sum", True)]),
)
@pytest.mark.usefixtures("small_blocks")
def test_memory_per_record_does_not_grow_with_the_numbers_of_the_plan(name: str, one_unit: bool) -> None:
    grown = []
    for size in (SMALL, LARGE):
        statistic, public = PLANNED[name](size)
        compute(statistic, public, Records(FEW, one_unit=one_unit))  # what is kept of public inputs is there afterwards
        few, many = (peak_bytes(statistic, public, Records(count, one_unit=one_unit)) for count in (FEW, MANY))
        grown.append((many - few) / (MANY - FEW))
    assert grown[1] - grown[0] <= BYTES_A_RECORD


@pytest.mark.heavy
def test_scores_of_few_records_and_many_candidates_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, best = [], nearest._best_keys

    def watched(scores: Any, *rest: Any) -> Any:
        seen.append(scores.size)
        return best(scores, *rest)

    monkeypatch.setattr(nearest, "_best_keys", watched)
    candidates = 3 * nearest.BLOCK_SCORES // nearest.BLOCK_ROWS + 5
    shown = quantise(np.linspace(-1, 1, candidates)[:, None])
    state = nearest.NearestFurthest(shown[:: candidates // 70], None, 2)
    state.extend(shown, None)
    assert max(seen) <= nearest.BLOCK_SCORES
    expected = nearest.NearestFurthest(shown[:: candidates // 70], None, 2)
    monkeypatch.setattr(nearest, "BLOCK_SCORES", 1000 * candidates)
    monkeypatch.setattr(nearest, "MOST_AT_ONCE", candidates)
    expected.extend(shown, None)
    np.testing.assert_array_equal(state.near, expected.near)
    np.testing.assert_array_equal(state.far, expected.far)


def is_refused(statistic: str, parameters: dict[str, Any]) -> bool:
    with pytest.raises(ConfigurationError):
        statistics.build(statistic, parameters)
    return True


@pytest.mark.heavy
@EVERY
def test_every_number_in_a_statistic_s_parameters_has_a_limit(name: str) -> None:
    statistic, _ = PLANNED[name](4)
    given = statistics.parameters(statistic)
    assert statistics.build(statistic.name, given) == statistic
    tried = 0
    for field in dataclasses.fields(statistic):  # type: ignore[arg-type]
        value = given[field.name]
        if isinstance(value, list):
            too_many = list(range(1, 10**5))
            tried += is_refused(statistic.name, given | {field.name: too_many})
            tried += is_refused(statistic.name, given | {field.name: [*value[:-1], 10**12]})
        elif not isinstance(value, bool):
            tried += is_refused(statistic.name, given | {field.name: type(value)(10**17)})
    assert tried


@EVERY
def test_no_statistic_takes_more_labels_than_a_task_may_have(name: str) -> None:
    statistic, _ = PLANNED[name](4)
    given = statistics.parameters(statistic)
    if "labels" in given:
        with pytest.raises(ConfigurationError):
            statistics.build(statistic.name, given | {"labels": LARGEST_LABELS + 1})


def test_number_of_teachers_times_labels_is_bounded() -> None:
    TeacherVotes(queries=4, teachers=1048, labels=LARGEST_LABELS)
    TeacherVotes(queries=4, teachers=10_000, labels=104)
    for teachers, labels in ((1049, LARGEST_LABELS), (10_001, 0), (10_000, 105)):
        with pytest.raises(ConfigurationError):
            TeacherVotes(queries=4, teachers=teachers, labels=labels)


def test_the_lengths_and_phrases_of_fourier_features_are_bounded() -> None:
    most = FourierFeatures(1, lengths=tuple(range(33, 65)), phrases=64)
    assert len(most.weights) == 32
    for changes in (
        {"phrases": 65},
        {"lengths": tuple(range(1, 34))},
        {"lengths": (65,)},
        {"lengths": (10**12,)},
        {"lengths": ()},
        {"lengths": (1,) * 200_000},
    ):
        with pytest.raises(ConfigurationError):
            dataclasses.replace(most, **changes)


def test_number_of_fourier_phases_is_bounded_before_a_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    statistic, public = fourier_features(16, averaged=False)
    facts = PublicFacts(WIDTH, 2)
    statistic.check_inputs(public, facts)
    monkeypatch.setattr(terms, "LARGEST_PHASES", 16 * (17 * 101 + 17 * 5))
    statistic.check_inputs(public, facts)
    monkeypatch.setattr(terms, "LARGEST_PHASES", terms.LARGEST_PHASES - 1)
    with pytest.raises(ConfigurationError):
        statistic.check_inputs(public, facts)
