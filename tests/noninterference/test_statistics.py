"""Every registered statistic: two copies of a party answer alike, and one unit moves the vector by its bound at most.

A new statistic is tested here by being registered, with the examples that it draws of itself.
"""

from collections import Counter
from functools import partial

import pytest

from tests.doubles.pace import examples, slow_but
from tests.noninterference.bodies import one_aligned_unit, one_sum, one_unit, play_until
from tests.noninterference.hospital import MakePair
from undersong_protocol import statistics

pytestmark = pytest.mark.heavy

EXAMPLES = examples(1, 5)  # per statistic and test; a soak tries many more

every = pytest.mark.parametrize("name", statistics.names())


def enough(counted: Counter[str]) -> bool:
    return counted["examples"] >= EXAMPLES


@every
def test_every_reply_is_alike_whatever_records_and_public_inputs_are(make_pair: MakePair, name: str) -> None:
    counted = play_until(enough, EXAMPLES, one_sum, make_pair, name)
    assert counted["messages"] >= 4 * EXAMPLES


# A unit that is drawn moves others only in tens of examples. The aligned unit of the last test moves every one at once.
OFTEN_MOVED = ["label_histogram", "top_q_votes", "embedding_sum", "scored_comparison"]


@pytest.mark.parametrize("name", slow_but(statistics.names(), OFTEN_MOVED))
def test_one_privacy_unit_moves_the_vector_by_at_most_its_declared_bound(make_pair: MakePair, name: str) -> None:
    moved = f"{name}: moved by a unit"

    def moved_one(counted: Counter[str]) -> bool:
        return enough(counted) and counted[moved] > 0

    counted = play_until(moved_one, 60, partial(one_unit, good=True), make_pair, name)
    assert counted[moved] >= 1, "no unit moved the vector, so that its bound was never tried"


@every
def test_worst_case_unit_moves_the_vector_by_at_most_its_declared_bound(make_pair: MakePair, name: str) -> None:
    counted = play_until(enough, EXAMPLES, one_aligned_unit, make_pair, name)
    assert counted[f"{name}: moved by a unit"] == counted["examples"] >= EXAMPLES
