"""A hostile coordinator reads the same from two copies of a party, whatever their records are."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from tests.noninterference.bodies import QUIET, conversation, one_subsample, play_until
from tests.noninterference.hospital import MakePair

pytestmark = pytest.mark.heavy

# Vectors came and were different, and sums were opened: otherwise nothing was compared.
LEAST = {"different vectors": 4, "opened sums": 4, "stage unmask": 2, "pending": 1, "refusal": 9}


def test_all_sent_bytes_but_masked_vectors_are_equal_for_any_records(make_pair: MakePair) -> None:
    def went_far(counted: Counter[str]) -> bool:
        return counted["examples"] >= examples(12, 72) and all(counted[what] >= LEAST[what] for what in LEAST)

    counted = play_until(went_far, 90, conversation, make_pair)
    assert went_far(counted), counted


@settings(QUIET, max_examples=examples(1, 2))
@given(data=st.data())
def test_random_coins_of_a_subsample_change_only_the_vector(make_pair: MakePair, data: st.DataObject) -> None:
    assert one_subsample(make_pair, data.draw)["different vectors"] == 1
