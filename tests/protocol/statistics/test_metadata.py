"""Metadata histograms and embedding sums: what a record counts for, and that none counts for more than its bound."""

import math

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.example_records import Records
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import quantise
from undersong_protocol import statistics
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.histogram import MetadataHistograms

EDGES = np.array([2.0, 4.0, 10.0])


def counts(statistic, records, public):
    return contribute(statistic, statistic.rows(records, public, {}), scale=256).values / 256


def public(vectors, labels):
    keywords = LabelledEmbeddings(np.asarray(vectors, dtype=np.float32), np.asarray(labels, dtype=np.int64))
    return PublicInputs(embeddings={"keywords": keywords}, numbers={"length_edges": EDGES})


def test_each_record_counts_once_in_each_histogram():
    records = Records(["one", "a b", "a b c d", "w " * 50], [0, 1, 1, -1], [[1, 0], [1, 0], [0, 1], [1, 0]])
    # keyword 1 is exactly record 0's direction but belongs to label 1
    given_public = public([[0.5, 0.5], [1, 0], [0, 1]], [0, 1, 1])
    statistic = MetadataHistograms(labels=2, length_bins=4, keywords=4)
    labels, lengths, keywords = statistic.split(counts(statistic, records, given_public))
    assert labels.tolist() == [1, 2]
    assert lengths.tolist() == [2, 2, 0, 0]  # too short counts in the first bin, too long in the last published one
    assert keywords.tolist() == [1, 1, 1, 0]  # the record without label votes for none


def test_without_labels_every_record_counts_and_votes():
    records = Records(["a b c"] * 3, [-1, -1, -1], [[1, 0], [0, 1], [0, 1]])
    statistic = MetadataHistograms(labels=0, keywords=2)
    labels, lengths, keywords = statistic.split(counts(statistic, records, public([[1, 0], [0, 1]], [-1, -1])))
    assert (labels.tolist(), lengths.tolist(), keywords.tolist()) == ([3], [], [1, 2])


@pytest.mark.parametrize(
    ("statistic", "histograms"),
    [
        (MetadataHistograms(labels=3, length_bins=100, keywords=30), 3),
        (MetadataHistograms(labels=3, length_bins=100), 2),
        (MetadataHistograms(labels=3, keywords=30, count_labels=False), 1),
        (MetadataHistograms(labels=0, length_bins=100, count_labels=False), 1),
    ],
)
def test_metadata_sums_have_the_documented_sensitivity(statistic, histograms):
    bound = statistic.sensitivity
    assert (bound.l1, bound.l2, bound.linf) == (histograms, math.sqrt(histograms), 1)
    assert statistics.build(statistic.name, statistics.parameters(statistic)) == statistic


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_the_embedding_sum_gives_the_mean_pairwise_cosine():
    x = quantise(unit(np.random.default_rng(0).normal(size=(40, 8)) + 1))
    statistic = EmbeddingSum(8)
    rows = statistic.rows(Records(embeddings=x), PublicInputs(), {})
    total = contribute(statistic, rows, scale=statistic.base_scale).values / statistic.base_scale
    assert total == pytest.approx(x.sum(axis=0), abs=1e-9)  # the grid holds every coordinate exactly
    products = x.astype(float) @ x.T
    mean = (products.sum() - np.trace(products)) / (40 * 39)
    assert (total @ total - 40) / (40 * 39) == pytest.approx(mean, abs=1e-4)


def test_embedding_sum_is_separate_by_label_and_skips_unlabelled_records():
    rng = np.random.default_rng(0)
    records = Records(embeddings=quantise(rng.normal(size=(30, 6))), labels=rng.integers(-1, 3, 30))
    statistic = EmbeddingSum(size=6, labels=3)
    expected = np.stack([records.embeddings[records.labels == label].sum(axis=0) for label in range(3)])
    opened = contribute(statistic, statistic.rows(records, PublicInputs(), {}), scale=statistic.base_scale).values
    assert np.array_equal(opened.reshape(3, 6), expected * statistic.base_scale)
    assert statistic.sensitivity == EmbeddingSum(size=6).sensitivity
    assert statistics.build("embedding_sum", {"size": 6}) == EmbeddingSum(size=6)


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (MetadataHistograms(labels=2, length_bins=1, keywords=2), "increasing"),
        (MetadataHistograms(labels=2, length_bins=2, keywords=1), "plan for more"),
        (MetadataHistograms(labels=1, length_bins=2, keywords=2), "the task has 2"),
        (MetadataHistograms(labels=2, keywords=2), "no public numbers named 'length_edges'"),
        (EmbeddingSum(3), "no public embeddings"),
    ],
)
def test_metadata_input_that_was_not_planned_is_refused(statistic, message):
    given_public, facts = public([[1, 0], [0, 1]], [0, 1]), PublicFacts(embedding_size=2, labels=2)
    MetadataHistograms(labels=2, length_bins=2, keywords=2).check_inputs(given_public, facts)
    with pytest.raises(ConfigurationError, match=message):
        statistic.check_inputs(given_public, facts)


def test_a_statistic_without_any_histogram_is_refused():
    with raises(ConfigurationError, "no-histogram"):
        MetadataHistograms(labels=2, count_labels=False)
