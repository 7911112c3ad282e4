"""A record says by how much better one corpus labels it than another, and never more than its bound."""

import numpy as np
import pytest

from tests.doubles.example_records import Records
from undersong_common.embedding import quantise
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import PublicFacts, PublicInputs
from undersong_protocol.statistics.classifier_votes import BUCKETS, CorpusComparison, word_features, word_labels
from undersong_protocol.statistics.inputs import COEFFICIENTS

LABELS, WIDTH = 3, 4
FACTS = PublicFacts(WIDTH, LABELS)


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
def test_the_gain_is_the_mean_of_both_kinds_of_classifiers(heads, by_words, gain):
    rows = CorpusComparison(LABELS).rows(records(["one text"], [1]), public(heads, by_words), {})
    assert np.asarray(rows.take(np.array([0]))).tolist() == [[gain, 0.5 * gain**2]]


def test_a_record_without_label_casts_nothing_and_no_row_exceeds_the_bound():
    statistic = CorpusComparison(LABELS)
    rows = statistic.rows(records(["a", "b", "", "d"], [-1, 1, 9, 0]), public((0, 1), (0, 1)), {})
    found = np.asarray(rows.take(np.arange(4)))
    assert found.tolist() == [[0.0, 0.0], [1.0, 0.5], [0.0, 0.0], [-1.0, 0.5]]
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(statistic.sensitivity.l2)


def test_words_pairs_and_parts_of_words_are_features_whatever_stands_between_them():
    assert word_features("Top-up FAILED!").tolist() == word_features("top up failed").tolist()
    assert set(word_features("failed")) <= set(word_features("top up failed"))
    assert set(word_features("up top")) != set(word_features("top up"))
    classifier = np.zeros((BUCKETS + 1, LABELS))
    classifier[word_features("heart"), 2] = 1.0
    assert word_labels(classifier, ["a heart attack", "nothing", ""]).tolist() == [2, 0, 0]


@pytest.mark.parametrize("name", ["heads", "word classifiers"])
def test_other_shapes_and_numbers_off_the_grid_are_refused(name):
    statistic = CorpusComparison(LABELS)
    good = public((0, 1), (0, 1)).numbers
    statistic.check_inputs(PublicInputs({}, good), FACTS)
    for worse in (good[name][:1], good[name] + 0.3 / 2**COEFFICIENTS.bits):
        with pytest.raises(ConfigurationError):
            statistic.check_inputs(PublicInputs({}, {**good, name: worse}), FACTS)
