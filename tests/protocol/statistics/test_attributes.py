"""Attributes of records: tables as counted by hand, tight bounds, votes among the same attributes only."""

import math

import numpy as np
import pytest

from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import LabelledEmbeddings, PublicFacts, PublicInputs
from undersong_protocol.statistics.attributes import AttributeMarginals, Attributes, AttributeVotes

# Two lists: along the first axis and along the second one; values are unit vectors of the plane's four directions.
DIRECTIONS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
VALUES = LabelledEmbeddings(DIRECTIONS, np.array([0, 0, 1, 1]))
FACTS = PublicFacts(embedding_size=2, labels=3)


class Records:
    """What the statistics read."""

    def __init__(self, embeddings, labels, columns=None):
        self.columns = columns or {}
        self.embeddings = np.array(embeddings, dtype=np.float32)
        self.labels = np.array(labels)
        self.units = np.arange(len(labels))

    def __len__(self):
        return len(self.labels)


RECORDS = Records([[0.5, 0.25], [0.5, -0.25], [-0.5, 0.25], [0.5, 0.25]], [0, 2, 2, -1])


def counted(statistic, candidates=None):
    public = PublicInputs(embeddings={"values": VALUES} | ({} if candidates is None else {"candidates": candidates}))
    statistic.check_inputs(public, FACTS)
    return statistic.rows(RECORDS, public, {}).take(np.arange(4)).toarray()


def test_marginals_are_counted_by_hand():
    one = AttributeMarginals(3, (2, 2))
    assert counted(one).tolist() == [
        [1, 0, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 0, 1],
        [0, 0, 1, 0, 1, 1, 0],
        [0, 0, 0, 1, 0, 1, 0],  # without a label it counts in the lists alone
    ]
    two = AttributeMarginals(3, (2, 2), ways=2)
    assert two.shapes == ((3, 2), (3, 2), (2, 2))
    assert np.flatnonzero(counted(two)[1]).tolist() == [4, 6 + 5, 12 + 1]
    assert np.flatnonzero(counted(two)[3]).tolist() == [12 + 0]


@pytest.mark.parametrize("lists", [1, 2, 4])
def test_bounds_are_the_root_of_the_tables_and_reached(lists):
    for ways, tables in ((1, lists + 1), (2, (lists + 1) * lists // 2)):
        statistic = AttributeMarginals(3, (2,) * lists, ways=ways)
        bound = statistic.sensitivity
        assert (bound.l1, bound.l2, bound.linf) == (tables, math.sqrt(tables), 1.0)
        assert len(statistic.tables) == tables
    rows = counted(AttributeMarginals(3, (2, 2)))
    assert np.linalg.norm(rows, axis=1).max() == AttributeMarginals(3, (2, 2)).sensitivity.l2


def test_a_vote_goes_to_the_nearest_text_of_the_same_attributes():
    votes = AttributeVotes(4, 3, (2, 2))
    same = Attributes(3, (2, 2)).combination([np.array([2]), np.array([0]), np.array([1])])[0]
    other = Attributes(3, (2, 2)).combination([np.array([2]), np.array([0]), np.array([0])])[0]
    texts = np.array([[0.5, -0.25], [0.25, -0.5], [0.5, -0.5]], dtype=np.float32)
    candidates = LabelledEmbeddings(texts, np.array([other, same, same]))
    # The nearest of all is another combination's; the record without a label and those of other ones cast none.
    assert counted(votes, candidates).tolist() == [[0] * 4, [0, 0, 1, 0], [0] * 4, [0] * 4]
    assert votes.sensitivity.l2 == 1.0


def test_values_of_other_lists_or_in_another_order_are_refused():
    statistic = AttributeMarginals(3, (2, 2))
    for numbers in ([0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, -1], [0, 0, 0, 1]):
        public = PublicInputs(embeddings={"values": LabelledEmbeddings(DIRECTIONS, np.array(numbers))})
        with pytest.raises(ConfigurationError, match="list after list"):
            statistic.check_inputs(public, FACTS)
    with pytest.raises(ConfigurationError, match="no pairs"):
        AttributeMarginals(3, ways=2)
    with pytest.raises(ConfigurationError, match="combinations"):
        AttributeMarginals(3, (2**16, 2**16))
    with pytest.raises(ConfigurationError, match="lists has 0 entries"):
        AttributeVotes(4, 0)


@pytest.mark.parametrize("lists", [(1,) * 3000, (2,) * 30000, (2**31,), (2**16, 2**16)])
def test_a_peer_s_many_attributes_are_refused_before_they_are_paired(lists):
    with pytest.raises(ConfigurationError, match="at most"):
        AttributeMarginals(labels=2, lists=lists, ways=2)


def test_a_column_s_value_counts_and_a_missing_one_is_a_value():
    columns = {"sex": ["Female", "male", "", "?"], "age": ["1", "2", "3", "1"]}
    records = Records([[0.5, 0.25]] * 4, [0, 1, 2, -1], columns)
    public = PublicInputs(texts={"columns": ("sex", "female", "male", "ward", "a", "b")})
    statistic = AttributeMarginals(3, columns=(3, 3))
    statistic.check_inputs(public, FACTS)
    rows = statistic.rows(records, public, {}).take(np.array([3, 0, 1, 2])).toarray()
    # No record has a ward: all count as missing. A value that is not listed is missing too.
    assert rows[:, 3:].tolist() == [[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1]]
    assert statistic.sensitivity.l2 == math.sqrt(3)
    pairs = AttributeMarginals(0, (2,), 2, (3,))
    assert pairs.shapes == ((2, 3),)


def test_a_vote_stays_within_a_column_s_value():
    columns = {"sex": ["female", "male"]}
    records = Records([[0.5, 0.25]] * 2, [0, 0], columns)
    votes = AttributeVotes(2, 0, columns=(3,))
    texts = np.array([[0.5, 0.25], [0.25, 0.25]], dtype=np.float32)
    inputs = {"candidates": LabelledEmbeddings(texts, np.array([1, 0]))}
    public = PublicInputs(embeddings=inputs, texts={"columns": ("sex", "female", "male")})
    votes.check_inputs(public, FACTS)
    assert votes.rows(records, public, {}).take(np.arange(2)).toarray().tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("published", [(), ("sex", "female"), ("sex", "female", "male", "other")])
def test_columns_of_other_numbers_of_values_are_refused(published):
    with pytest.raises(ConfigurationError):
        AttributeMarginals(3, columns=(3,)).check_inputs(PublicInputs(texts={"columns": published}), FACTS)
