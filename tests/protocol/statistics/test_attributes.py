"""Attributes of records: histograms as counted by hand, and tight bounds."""

import math

import numpy as np
import pytest

from tests.doubles.example_records import Records
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs
from undersong_protocol.statistics.histogram import AttributeMarginals

# Two lists: along the first axis and along the second one; values are unit vectors of the plane's four directions.
DIRECTIONS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
VALUES = LabelledEmbeddings(DIRECTIONS, np.array([0, 0, 1, 1]))
FACTS = PublicFacts(embedding_size=2, labels=3)


RECORDS = Records(labels=[0, 2, 2, -1], embeddings=[[0.5, 0.25], [0.5, -0.25], [-0.5, 0.25], [0.5, 0.25]])


def counted(statistic):
    public = PublicInputs(embeddings={"values": VALUES})
    statistic.check_inputs(public, FACTS)
    return statistic.rows(RECORDS, public, {}).take(np.arange(4)).toarray()


def test_attribute_marginals_equal_counts_by_hand():
    one = AttributeMarginals(3, (2, 2))
    assert counted(one).tolist() == [
        [1, 0, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 0, 1],
        [0, 0, 1, 0, 1, 1, 0],
        [0, 0, 0, 1, 0, 1, 0],  # without a label it counts in the lists alone
    ]


@pytest.mark.parametrize("lists", [1, 2, 4])
def test_attribute_marginals_l2_bound_is_the_root_of_lists_and_is_reached(lists):
    bound = AttributeMarginals(3, (2,) * lists).sensitivity
    assert (bound.l1, bound.l2, bound.linf) == (lists + 1, math.sqrt(lists + 1), 1.0)
    rows = counted(AttributeMarginals(3, (2, 2)))
    assert np.linalg.norm(rows, axis=1).max() == AttributeMarginals(3, (2, 2)).sensitivity.l2


def test_attribute_values_out_of_the_order_of_lists_are_refused():
    statistic = AttributeMarginals(3, (2, 2))
    for numbers in ([0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, -1], [0, 0, 0, 1]):
        public = PublicInputs(embeddings={"values": LabelledEmbeddings(DIRECTIONS, np.array(numbers))})
        with pytest.raises(ConfigurationError):
            statistic.check_inputs(public, FACTS)


@pytest.mark.parametrize("lists", [(), (1,) * 3000, (2,) * 30000, (2**31,), (0,)])
def test_plan_with_too_many_attribute_values_is_refused_before_counting(lists):
    with pytest.raises(ConfigurationError):
        AttributeMarginals(labels=0, lists=lists)


def test_column_values_are_counted_and_missing_is_one_of_the_values():
    columns = {"sex": ["Female", "male", "", "?"], "age": ["1", "2", "3", "1"]}
    records = Records(labels=[0, 1, 2, -1], embeddings=[[0.5, 0.25]] * 4, columns=columns)
    public = PublicInputs(texts={"columns": ("sex", "female", "male", "ward", "a", "b")})
    statistic = AttributeMarginals(3, columns=(3, 3))
    statistic.check_inputs(public, FACTS)
    rows = statistic.rows(records, public, {}).take(np.array([3, 0, 1, 2])).toarray()
    # No record has a ward: all count as missing. A value that is not listed is missing too.
    assert rows[:, 3:].tolist() == [[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1]]
    assert statistic.sensitivity.l2 == math.sqrt(3)


@pytest.mark.parametrize("published", [(), ("sex", "female"), ("sex", "female", "male", "other")])
def test_attribute_columns_with_another_number_of_values_are_refused(published):
    with pytest.raises(ConfigurationError):
        AttributeMarginals(3, columns=(3,)).check_inputs(PublicInputs(texts={"columns": published}), FACTS)
