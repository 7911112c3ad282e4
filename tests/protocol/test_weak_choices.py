"""What promises little is said in one sentence each."""

import math

import pytest

from undersong_protocol.agreement.bounds import weak_plan
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram


@pytest.mark.parametrize(
    ("parties", "delta", "words"),
    [
        (3, 1e-6, []),
        (3, 0.5, ["delta 0.5 allows anything to happen once in 2 times"]),
        (3, 1e-3, ["delta 0.001 allows anything to happen once in 1,000 times"]),
        (2, 1e-6, ["there are only two parties"]),
        (1, 1e-6, ["there is only one party: the sum that opens is its own"]),
    ],
)
def test_each_weak_choice_in_a_plan_gives_a_warning(parties, delta, words):
    quorum = Quorum(parties=parties, threshold=min(2, parties), tolerated_dropouts=0, colluders=0)
    found = weak_plan(plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(1.0, delta), quorum))
    assert len(found) == len(words)
    assert all(part in sentence for part, sentence in zip(words, found, strict=True))


def test_plan_with_infinite_epsilon_gets_no_warning_about_delta():
    quorum = Quorum(parties=3, threshold=2, tolerated_dropouts=0, colluders=0)
    assert weak_plan(plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(math.inf, 0.5), quorum)) == []
