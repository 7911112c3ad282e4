"""Statistics that judge generators: rows within tight bounds, equal to plain references, and refusals."""

import math
from itertools import product

import numpy as np
import pytest

from tests.doubles.example_records import Records, dense
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs
from undersong_protocol.statistics.classifier_votes import (
    BUCKETS,
    ClassifierVotes,
    ClassifierVotesInBlocks,
    CorpusComparison,
    word_features,
    word_labels,
)
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.support import SupportVotes
from undersong_protocol.statistics.votes import (
    CORRECTION,
    EqualVotes,
    hubness_correction,
    nearest,
)

FACTS = PublicFacts(embedding_size=12, labels=3)


def unit(rng, count, width=12):
    return quantise(rng.normal(size=(count, width)))


def draw_inputs(seed, records=20, candidates=30, generators=3, labels=3):
    rng = np.random.default_rng(seed)
    shown, of = unit(rng, candidates), rng.integers(0, labels, candidates)
    public = PublicInputs(
        {"candidates": LabelledEmbeddings(shown, of)},
        {
            "hubness correction": hubness_correction(shown, of),
            "classifiers": COEFFICIENTS.quantised(rng.normal(size=(generators, 13, labels))),
            "blocks": rng.integers(0, labels, labels).astype(np.float64),
        },
    )
    return Records(embeddings=unit(rng, records), labels=rng.integers(-1, labels, records)), public


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7])
def test_bound_of_centred_classifier_answers_is_reached_never_exceeded(k):
    answers = np.array(list(product([0.0, 1.0], repeat=k)))
    centred = answers - answers.mean(axis=1, keepdims=True)
    bound = ClassifierVotes(classifiers=k, labels=2).sensitivity
    assert np.linalg.norm(centred, axis=1).max() == pytest.approx(bound.l2, rel=1e-12)
    assert np.abs(centred).sum(axis=1).max() == pytest.approx(bound.l1, rel=1e-12)
    assert np.abs(centred).max() == pytest.approx(bound.linf, rel=1e-12)
    assert bound.l2 <= math.sqrt(k) / 2 + 1e-12


def test_classifier_rows_are_the_centred_correct_answers():
    records, public = draw_inputs(3)
    matrix = dense(ClassifierVotes(classifiers=3, labels=3).rows(records, public, {}))
    heads = public.numbers["classifiers"]
    for row, embedding, label in zip(matrix, records.embeddings, records.labels, strict=True):
        right = [float(np.argmax(embedding @ head[:-1] + head[-1]) == label) for head in heads]
        expected = np.array(right) - np.mean(right) if label >= 0 else np.zeros(3)
        assert row == pytest.approx(expected)


@pytest.mark.parametrize("blocks", [(0, 0, 0), (0, 1, 2), (2, 0, 2)])
def test_record_counts_in_its_label_s_block_and_one_block_is_the_plain_sum(blocks):
    records, public = draw_inputs(3)
    public.numbers["blocks"] = np.array(blocks, dtype=np.float64)
    plain = ClassifierVotes(classifiers=3, labels=3)
    statistic = ClassifierVotesInBlocks(classifiers=3, labels=3)
    statistic.check_inputs(PublicInputs(numbers={k: public.numbers[k] for k in ("classifiers", "blocks")}), FACTS)
    found = dense(statistic.rows(records, public, {})).reshape(20, 3, 3)
    for row, centred, label in zip(found, dense(plain.rows(records, public, {})), records.labels, strict=True):
        expected = np.zeros((3, 3))
        expected[blocks[label] if label >= 0 else 0] = centred
        assert row.tolist() == expected.tolist()
    assert statistic.sensitivity == plain.sensitivity  # which is reached: a row of the plain sum is one of its blocks


@pytest.mark.parametrize("blocks", [(0, 1), (0, 1, 3), (0, -1, 0), (0, 0.5, 1), (0, np.nan, 1)])
def test_block_numbers_that_are_no_labels_are_refused(blocks):
    _, public = draw_inputs(3)
    numbers = {"classifiers": public.numbers["classifiers"], "blocks": np.array(blocks, dtype=np.float64)}
    with pytest.raises(ConfigurationError, match="blocks"):
        ClassifierVotesInBlocks(classifiers=3, labels=3).check_inputs(PublicInputs(numbers=numbers), FACTS)


def test_nearest_candidates_equal_a_plain_sort_of_corrected_similarity():
    records, public = draw_inputs(5)
    given_, correction = public.embeddings["candidates"], public.numbers["hubness correction"]
    found = nearest(records.embeddings, records.labels, public, 4)
    for row, embedding, label in zip(found, records.embeddings, records.labels, strict=True):
        members = [i for i in range(30) if given_.labels[i] == label and label >= 0]
        order = sorted(members, key=lambda i: (-(2 * float(embedding @ given_.values[i]) - correction[i]), i))[:4]
        assert row.tolist() == order + [-1] * (4 - len(order))


def test_a_record_gives_its_nearest_candidates_a_whole_vote_each():
    records, public = draw_inputs(6)
    found = nearest(records.embeddings, records.labels, public, 4)
    statistic = EqualVotes(q=4, candidates=30, labels=3)
    for row, chosen in zip(dense(statistic.rows(records, public, {})), found, strict=True):
        expected = np.zeros(30)
        expected[chosen[chosen >= 0]] = 1
        assert row.tolist() == expected.tolist()
    bound = statistic.sensitivity
    assert (bound.l1, bound.l2, bound.linf) == (4.0, 2.0, 1.0)
    assert statistic.base_scale == 256


def test_of_equally_near_texts_the_first_ones_get_a_record_s_vote():
    records, public = draw_inputs(7)
    shown = public.embeddings["candidates"]
    candidates = LabelledEmbeddings(np.repeat(shown.values[:6], 5, axis=0), np.repeat(shown.labels[:6], 5))
    authors = np.random.default_rng(7).integers(0, 3, 30)
    public = PublicInputs({"candidates": candidates}, {"authors": authors.astype(np.float64)})
    votes = dense(SupportVotes(generators=3, candidates=30, labels=3).rows(records, public, {}))
    for row, embedding, label in zip(votes, records.embeddings, records.labels, strict=True):
        members = np.flatnonzero(candidates.labels == label).tolist() if label >= 0 else []
        similarities = {i: float(embedding @ candidates.values[i]) for i in members}
        nearest_third = sorted(members, key=lambda i: (-similarities[i], i))[: math.ceil(len(members) / 3)]
        expected = np.bincount(authors[nearest_third], minlength=3) / max(1, len(nearest_third))
        assert row.tolist() == pytest.approx(expected.tolist())


def test_hubness_correction_is_the_mean_similarity_to_nearest_of_a_label():
    rng = np.random.default_rng(1)
    shown, labels = unit(rng, 25), rng.integers(0, 2, 25)
    labels[7] = 9  # alone
    found = hubness_correction(shown, labels, neighbour_count=3)
    assert found[7] == 0.0
    for i in range(25):
        fellows = sorted(
            (float(shown[i] @ shown[j]) for j in range(25) if j != i and labels[j] == labels[i]), reverse=True
        )
        if fellows:
            assert found[i] == pytest.approx(np.mean(fellows[:3]), abs=1e-6)
    CORRECTION.check("hubness correction", found)


def test_hub_candidate_loses_votes_to_truly_near_ones():
    # the first candidate lies between all others, so that without the correction it wins every record
    shown = quantise(np.array([[1, 0, 0], [0.8, 0.6, 0], [0.8, -0.6, 0], [0.8, 0, 0.6]], dtype=np.float64))
    public = PublicInputs(
        {"candidates": LabelledEmbeddings(shown, np.zeros(4, dtype=np.int64))},
        {"hubness correction": hubness_correction(shown, np.zeros(4, dtype=np.int64), neighbour_count=3)},
    )
    records = Records(labels=[0], embeddings=quantise(np.array([[0.94, 0.34, 0.0]])))
    plain = PublicInputs(public.embeddings, {"hubness correction": np.zeros(4)})
    assert (
        nearest(records.embeddings, records.labels, plain, 1)[0, 0] == 0
        or nearest(records.embeddings, records.labels, public, 1)[0, 0] == 1
    )
    assert nearest(records.embeddings, records.labels, public, 1)[0, 0] == 1


LABELS, WIDTH = 3, 4
COMPARED = PublicFacts(WIDTH, LABELS)


def records(texts, labels):
    """Records that the first label's classifiers get right, or not."""
    return Records(texts, labels, quantise(np.eye(WIDTH)[np.arange(len(texts)) % WIDTH]))


def always(label, size):
    """A classifier, float64 [size + 1, LABELS], that answers one label."""
    found = np.zeros((size + 1, LABELS))
    found[-1, label] = 1.0
    return found


def public(heads, by_words):
    return PublicInputs(
        {},
        {
            "heads": np.stack([always(label, WIDTH) for label in heads]),
            "word classifiers": np.stack([always(label, BUCKETS) for label in by_words]),
        },
    )


@pytest.mark.parametrize(
    ("heads", "by_words", "gain"),
    [
        ((0, 1), (0, 1), 1.0),
        ((1, 0), (1, 0), -1.0),
        ((0, 1), (0, 0), 0.5),
        ((0, 1), (1, 0), 0.0),
        ((2, 2), (2, 0), 0.0),
    ],
)
def test_corpus_gain_is_the_mean_over_embedding_and_word_classifiers(heads, by_words, gain):
    rows = CorpusComparison(LABELS).rows(records(["one text"], [1]), public(heads, by_words), {})
    assert np.asarray(rows.take(np.array([0]))).tolist() == [[gain, 0.5 * gain**2]]


def test_unlabelled_record_casts_no_vote_and_no_row_exceeds_the_bound():
    statistic = CorpusComparison(LABELS)
    rows = statistic.rows(records(["a", "b", "", "d"], [-1, 1, 9, 0]), public((0, 1), (0, 1)), {})
    found = np.asarray(rows.take(np.arange(4)))
    assert found.tolist() == [[0.0, 0.0], [1.0, 0.5], [0.0, 0.0], [-1.0, 0.5]]
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(statistic.sensitivity.l2)


def test_word_features_ignore_case_and_punctuation_and_have_word_pairs():
    assert word_features("Top-up FAILED!").tolist() == word_features("top up failed").tolist()
    assert set(word_features("failed")) <= set(word_features("top up failed"))
    assert set(word_features("up top")) != set(word_features("top up"))
    classifier = np.zeros((BUCKETS + 1, LABELS))
    classifier[word_features("heart"), 2] = 1.0
    assert word_labels(classifier, ["a heart attack", "nothing", ""]).tolist() == [2, 0, 0]


@pytest.mark.parametrize("name", ["heads", "word classifiers"])
def test_inputs_of_another_shape_or_off_the_grid_are_refused(name):
    statistic = CorpusComparison(LABELS)
    good = public((0, 1), (0, 1)).numbers
    statistic.check_inputs(PublicInputs({}, good), COMPARED)
    for worse in (good[name][:1], good[name] + 0.3 / 2**COEFFICIENTS.bits):
        with pytest.raises(ConfigurationError):
            statistic.check_inputs(PublicInputs({}, {**good, name: worse}), COMPARED)
