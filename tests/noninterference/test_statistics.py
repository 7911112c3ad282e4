"""Every registered statistic: two copies of a party answer alike, and one unit moves the vector by its bound at most.

A new statistic is tested here by being registered, with the examples that it draws of itself.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples, slow_but
from tests.noninterference.bodies import QUIET, one_aligned_unit, one_sum, one_unit
from tests.noninterference.hospital import MakePair
from undersong_protocol import statistics

Body = Callable[..., Counter[str]]
pytestmark = pytest.mark.heavy

EXAMPLES = examples(1, 5)  # per statistic and test; a soak tries many more

every = pytest.mark.parametrize("name", statistics.names())


class Enough(Exception):
    """What was to be tried has been tried."""


def played(
    body: Body, make_pair: MakePair, name: str, enough: Callable[[Counter[str]], bool], most: int
) -> Counter[str]:
    """Examples until ``enough`` of what was counted; ``most`` of them."""
    counted: Counter[str] = Counter()

    @settings(QUIET, max_examples=most, phases=[Phase.generate], report_multiple_bugs=False)
    @given(data=st.data())
    def tried(data: st.DataObject) -> None:
        counted.update(body(make_pair, data.draw, name))
        counted["examples"] += 1
        if enough(counted):
            raise Enough

    with contextlib.suppress(Enough):
        tried()
    return counted


@every
def test_the_answers_are_alike_whatever_the_records_and_the_inputs_are(make_pair: MakePair, name: str) -> None:
    counted = played(one_sum, make_pair, name, lambda so_far: so_far["examples"] >= EXAMPLES, EXAMPLES)
    assert counted["messages"] >= 4 * EXAMPLES


# A unit that is drawn moves others only in tens of examples. The aligned unit of the last test moves every one at once.
OFTEN_MOVED = ["label_histogram", "top_q_votes", "embedding_sum", "scored_comparison"]


@pytest.mark.parametrize("name", slow_but(statistics.names(), OFTEN_MOVED))
def test_one_unit_moves_the_vector_by_no_more_than_is_declared(make_pair: MakePair, name: str) -> None:
    moved = f"{name}: moved by a unit"
    good = partial(one_unit, good=True)
    counted = played(good, make_pair, name, lambda so_far: so_far["examples"] >= EXAMPLES and so_far[moved] > 0, 60)
    assert counted[moved] >= 1, "no unit moved the vector, so that its bound was never tried"


@every
def test_an_aligned_unit_moves_the_vector_by_no_more_than_declared(make_pair: MakePair, name: str) -> None:
    counted = played(one_aligned_unit, make_pair, name, lambda so_far: so_far["examples"] >= EXAMPLES, EXAMPLES)
    assert counted[f"{name}: moved by a unit"] == counted["examples"] >= EXAMPLES
