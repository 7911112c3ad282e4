"""Sums of embeddings by label and of outer products: exact, within their bounds, and back into a matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undersong_common.embedding import quantise
from undersong_common.errors import ConfigurationError
from undersong_protocol import statistics
from undersong_protocol.statistics import PublicFacts, PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_protocol.statistics.outer_products import MEANS, PROJECTION, OuterProducts, symmetric


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.1, 10.0))
def test_outer_products_stay_within_their_bounds_and_are_the_matrix_s_norm(seed, size, scale):
    records = Records(seed)
    rng = np.random.default_rng(seed)
    projection = PROJECTION.quantised(scale * rng.normal(size=(size, 6)))
    means = MEANS.quantised(0.1 * rng.normal(size=(3, 6)))
    statistic = OuterProducts(size=size, labels=3)
    matrix = dense(statistic.rows(records, PublicInputs(numbers={"projection": projection, "means": means}), {}))
    assert matrix.shape == (30, statistic.dimension)
    bound = statistic.sensitivity
    assert (np.abs(matrix).sum(axis=1) <= bound.l1 + 1e-9).all()
    assert (np.linalg.norm(matrix, axis=1) <= bound.l2 + 1e-9).all()
    assert np.abs(matrix).max() <= bound.linf + 1e-9
    assert not matrix[records.labels < 0].any()
    y = (records.embeddings - means[records.labels]) @ projection.T
    y /= np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1.0)
    y[records.labels < 0] = 0.0
    assert np.allclose(symmetric(matrix.sum(axis=0), size), y.T @ y)
    assert np.allclose(np.linalg.norm(matrix, axis=1), np.linalg.norm(y, axis=1) ** 2)


def test_the_longest_row_of_outer_products_reaches_its_l1_bound():
    y = np.ones(5) / np.sqrt(5)
    row = np.outer(y, y)[np.triu_indices(5)] * np.where(np.equal(*np.triu_indices(5)), 1.0, np.sqrt(2.0))
    assert np.abs(row).sum() == pytest.approx(OuterProducts(size=5).sensitivity.l1)


def test_a_projection_that_does_not_fit_is_refused():
    statistic, facts = OuterProducts(size=2), PublicFacts(embedding_size=6, labels=0)
    for wrong in ("projection", "means"):
        numbers = {"projection": np.zeros((2, 6)), "means": np.zeros((1, 6))}
        statistic.check_inputs(PublicInputs(numbers=numbers), facts)
        numbers[wrong] = numbers[wrong][:, :5]
        with pytest.raises(ConfigurationError, match=f"{wrong!r} of shape"):
            statistic.check_inputs(PublicInputs(numbers=numbers), facts)
