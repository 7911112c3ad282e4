"""Sums of embeddings by label and of outer products: exact, within their bounds, and back into a matrix."""

import numpy as np

from undersong_common.embedding import quantise
from undersong_protocol import statistics
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.embedding_sum import EmbeddingSum


class Records:
    def __init__(self, seed, count=30, width=6, labels=3):
        rng = np.random.default_rng(seed)
        self.embeddings = quantise(rng.normal(size=(count, width)))
        self.labels = rng.integers(-1, labels, count)
        self.units = np.arange(count)

    def __len__(self):
        return len(self.labels)


def dense(rows):
    matrix = rows.take(np.arange(len(rows)))
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def test_each_label_has_its_own_sum_and_no_label_has_none():
    records = Records(0)
    statistic = EmbeddingSum(size=6, labels=3)
    opened = contribute(statistic, statistic.rows(records, PublicInputs(), {}), scale=statistic.base_scale).values
    expected = np.stack([records.embeddings[records.labels == label].sum(axis=0) for label in range(3)])
    assert np.array_equal(opened.reshape(3, 6), expected * statistic.base_scale)
    assert statistic.sensitivity == EmbeddingSum(size=6).sensitivity
    assert statistic.dimension == 18


def test_the_sum_over_all_is_as_it_was_and_its_parameters_are_read_without_labels():
    records = Records(1)
    matrix = dense(EmbeddingSum(size=6).rows(records, PublicInputs(), {}))
    assert np.array_equal(matrix, records.embeddings)
    assert statistics.build("embedding_sum", {"size": 6}) == EmbeddingSum(size=6)
