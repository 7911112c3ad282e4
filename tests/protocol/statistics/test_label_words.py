"""Counts of the words that tell most about a label: exact rows, a bound that is reached, and lists that are refused."""

import numpy as np
import pytest

from tests.doubles.example_records import Records, dense
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import PublicFacts, PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.label_words import LARGEST_ORDER, LabelWords
from undersong_protocol.statistics.terms import words

FACTS = PublicFacts(embedding_size=4, labels=2)
LISTED = ("card", "lost", "fee", "card", "rate")  # the last two are cells of the second label alone


def public_words(order=((1, 0, 2), (4, 3, -1)), listed=LISTED):
    return PublicInputs(texts={"words": listed}, numbers={"order": np.array(order, dtype=np.float64)})


def statistic(distinct=2):
    return LabelWords(cells=6, labels=2, distinct=distinct)


def rows(texts, labels, distinct=2, given=None):
    return dense(statistic(distinct).rows(Records(texts=texts, labels=labels), given or public_words(), {}))


def test_a_record_counts_for_the_first_words_of_its_label_s_list():
    texts = ["Fee, FEE for a card that I lost", "card and rate", "the card", "nothing", ""]
    found = rows(texts, [0, 1, 0, 1, 0])
    assert found.tolist() == [
        [1, 1, 0, 0, 0, 0],  # "lost" and "card" come before "fee" in the order of the first label
        [0, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 0, 0],
        [0] * 6,
        [0] * 6,
    ]


def test_a_record_without_a_label_of_the_task_does_not_count():
    assert not rows(["card lost fee"] * 3, [-1, 2, 2**40]).any()


def test_labels_may_share_word_cells_in_different_orders():
    shared = public_words(order=((0, 1, 2), (2, 1, 0)), listed=("card", "lost", "fee"))
    assert rows(["card lost fee"] * 2, [0, 1], 1, shared).tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


@pytest.mark.parametrize("distinct", [1, 3, 4, 64])
def test_label_words_bound_is_reached_and_never_exceeded(distinct):
    rng = np.random.default_rng(distinct)
    listed = tuple(f"w{number}" for number in range(9))
    order = np.stack([rng.permutation(9) for _ in range(2)])
    given = PublicInputs(texts={"words": listed}, numbers={"order": order.astype(np.float64)})
    texts = [" ".join(rng.choice(listed, rng.integers(1, 40))) for _ in range(200)] + [" ".join(listed)]
    counted = LabelWords(cells=9, labels=2, distinct=distinct)
    found = dense(counted.rows(Records(texts=texts, labels=rng.integers(0, 2, 201)), given, {}))
    bound = counted.sensitivity
    assert np.linalg.norm(found, axis=1).max() == pytest.approx(bound.l2, rel=1e-12)
    assert (found.sum(axis=1).max(), found.max()) == (bound.l1, bound.linf)


def test_label_words_sum_equals_a_plain_count():
    rng = np.random.default_rng(4)
    listed = tuple(f"w{number}" for number in range(12))
    order = np.stack([rng.permutation(12)[:7] for _ in range(2)])
    given = PublicInputs(texts={"words": listed}, numbers={"order": order.astype(np.float64)})
    texts, labels = [" ".join(rng.choice(listed, 6)) for _ in range(80)], rng.integers(-1, 2, 80)
    counted = LabelWords(cells=12, labels=2, distinct=3)
    expected = np.zeros(12, dtype=np.int64)
    for text, label in zip(texts, labels, strict=True):
        if label >= 0:
            expected[[cell for cell in order[label] if listed[cell] in words(text)][:3]] += 1
    sums = contribute(counted, counted.rows(Records(texts=texts, labels=labels), given, {}), scale=256)
    assert (sums.values == 256 * expected).all()


def test_one_record_more_moves_the_sum_by_its_own_row_alone():
    texts, labels = ["card lost", "rate", "fee fee lost card"], [0, 1, 0]
    whole, fewer = rows(texts, labels), rows(texts[:2], labels[:2])
    assert (whole[:2] == fewer).all()
    assert np.linalg.norm(whole.sum(axis=0) - fewer.sum(axis=0)) <= statistic().sensitivity.l2


@pytest.mark.parametrize(
    "given",
    [
        public_words(listed=(*LISTED, "a", "b")),  # more words than planned
        public_words(listed=("two words", *LISTED[1:])),
        public_words(listed=("Card", *LISTED[1:])),
        public_words(listed=("", *LISTED[1:])),
        public_words(order=((0, 5, 2), (4, 3, -1))),  # a cell without a word
        public_words(order=((0, -2, 2), (4, 3, -1))),
        public_words(order=((0, 0, 2), (4, 3, -1))),  # a cell twice
        public_words(order=((0, 3, 2), (4, 3, -1))),  # one word in two cells
        public_words(order=((0.5, 1, 2), (4, 3, -1))),
        public_words(order=((0, 1, 2),)),  # of one label only
        public_words(order=(0, 1)),
        PublicInputs(texts={"words": ("a",)}, numbers={"order": np.full((2, LARGEST_ORDER), -1.0)}),
        PublicInputs(texts={"words": LISTED}),
    ],
)
def test_malformed_word_lists_are_refused(given):
    statistic().check_inputs(public_words(), FACTS)
    with pytest.raises(ConfigurationError):
        statistic().check_inputs(given, FACTS)


def test_a_task_with_more_labels_than_planned_is_refused():
    with pytest.raises(ConfigurationError) as raised:
        statistic().check_inputs(public_words(), PublicFacts(embedding_size=4, labels=3))
    assert raised.value.code == "other-labels"
