"""A hostile coordinator reads the same from two copies of a party, whatever their records are."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from tests.noninterference.bodies import QUIET, conversation, one_subsample
from tests.noninterference.hospital import MakePair

pytestmark = pytest.mark.heavy

TRIED: Counter[str] = Counter()


# Fewer examples open too few sums since statistics have been added.
@settings(QUIET, max_examples=examples(16, 72))
@given(data=st.data())
def test_every_byte_that_leaves_is_the_same_but_for_masked_vectors(make_pair: MakePair, data: st.DataObject) -> None:
    TRIED.update(conversation(make_pair, data.draw))


def test_the_conversations_went_far_enough_to_mean_something() -> None:
    """Vectors came and were different, and sums were opened: else nothing was compared above."""
    least = {"different vectors": 4, "opened sums": 4, "stage unmask": 2, "pending": 1, "refusal": 9}
    assert all(TRIED[what] >= count for what, count in least.items()), TRIED


@settings(QUIET, max_examples=examples(1, 2))
@given(data=st.data())
def test_the_coins_of_a_subsample_change_the_vector_and_nothing_else(make_pair: MakePair, data: st.DataObject) -> None:
    assert one_subsample(make_pair, data.draw)["different vectors"] == 1
