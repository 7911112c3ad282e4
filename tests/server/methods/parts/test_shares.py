"""The whole corpus comes near to given shares of generators and labels, whatever was written before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from undersong_server.methods.parts import shares

NOTHING_SPENT = np.zeros((3, 2), dtype=bool)


def for_both_labels(*weights):
    return np.tile(np.array(weights)[:, None], 2)


def test_orders_for_a_label_follow_the_generators_weights_for_it():
    weights = np.array([[0.6, 0.0], [0.3, 0.2], [0.1, 0.8]])
    orders = shares.to_write(np.zeros((3, 2), dtype=np.int64), weights, np.array([0.5, 0.5]), NOTHING_SPENT, 40)
    assert orders.tolist() == [[12, 0], [6, 4], [2, 16]]


def test_generator_that_wrote_more_than_its_share_gets_fewer_orders():
    weights, labels = for_both_labels(0.6, 0.3, 0.1), np.array([0.5, 0.5])
    orders = shares.to_write(np.full((3, 2), 10), weights, labels, NOTHING_SPENT, 40)
    assert orders.sum(axis=1).tolist() == [32, 8, 0]
    assert orders.sum(axis=0).tolist() == [20, 20]


def test_orders_of_an_exhausted_generator_go_to_others_of_the_label():
    weights, labels = for_both_labels(0.8, 0.1, 0.1), np.array([0.7, 0.3])
    written, spent = np.zeros((3, 2), dtype=np.int64), NOTHING_SPENT.copy()
    spent[0, 0] = True
    orders = shares.to_write(written, weights, labels, spent, 100)
    assert orders[0].tolist() == [0, 24]
    assert orders[1:, 0].tolist() == [35, 35]
    assert orders.sum(axis=0).tolist() == [70, 30]  # the label keeps its share
    spent[:, 0] = True  # nobody has more: all are asked again
    assert shares.to_write(written, weights, labels, spent, 100).sum(axis=0).tolist() == [70, 30]


def test_generator_of_zero_weight_never_replaces_an_exhausted_one():
    weights, spent = for_both_labels(0.5, 0.5, 0.0), NOTHING_SPENT.copy()
    spent[0] = True
    assert shares.to_write(np.zeros((3, 2), dtype=np.int64), weights, np.full(2, 0.5), spent, 40)[2].sum() == 0
    spent[1] = True
    orders = shares.to_write(np.zeros((3, 2), dtype=np.int64), weights, np.full(2, 0.5), spent, 40)
    assert orders.sum(axis=1).tolist() == [20, 20, 0]


def test_generator_and_label_are_exhausted_below_half_of_the_ordered_texts():
    orders, received = np.array([[10, 10], [0, 10]]), np.array([[4, 5], [0, 10]])
    assert shares.spent(orders, received).tolist() == [[True, False], [False, False]]


@given(
    written=st.lists(st.integers(0, 60), min_size=6, max_size=6),
    spent=st.lists(st.booleans(), min_size=6, max_size=6),
    count=st.integers(0, 90),
)
def test_orders_sum_to_the_count_and_no_label_exceeds_its_share(written, spent, count):
    share = np.array([0.7, 0.3])
    before = np.array(written).reshape(3, 2)
    orders = shares.to_write(before, for_both_labels(0.6, 0.3, 0.1), share, np.array(spent).reshape(3, 2), count)
    assert orders.min() >= 0
    assert orders.sum() == count
    total = before.sum(axis=0) + orders.sum(axis=0)
    assert (total <= np.maximum(before.sum(axis=0), np.ceil(share * total.sum() + 1e-9))).all()
