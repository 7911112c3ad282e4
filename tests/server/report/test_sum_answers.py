"""What card and report say of each private sum: its question, its answer with the error, and what it decided."""

from dataclasses import replace

import numpy as np
import pytest

from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.classifier_votes import ClassifierVotesInBlocks, ScoredComparison
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.statistics.support import SupportVotes
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.statistics.votes import EqualVotes
from undersong_server.methods.parts.shares import label_shares
from undersong_server.report.sum_answers import EQUAL_LABELS, NOT_OPENED, NOT_SHOWN, OpenedRun, list_sum_answers

LABELS, GENERATORS = ("chest", "ankle"), ("good", "mixed", "off")
STATISTICS = {
    "labels": LabelHistogram(2),
    "support": SupportVotes(3, 60, 2),
    "who/1": ClassifierVotesInBlocks(3, 2),
    "who/2": ClassifierVotesInBlocks(3, 2),
    "votes/2": EqualVotes(q=2, candidates=60, labels=2),
    "verdict": ScoredComparison(2),
}
PLAN = plan_sums(
    [SumRequest(name, statistic) for name, statistic in STATISTICS.items()],
    Privacy(4.0, 1e-5),
    Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1),
)
VALUES = {
    "labels": [60, 40],
    "support": [60, 38, 2],
    "who/1": [9, 1, -10, 3, -1, -2],
    "who/2": [1, 1, -2, 0, 0, 0],
    "votes/2": [*range(60)],
    "verdict": [1, 2, 3],
}
RUN = OpenedRun(
    labels=LABELS,
    generators=GENERATORS,
    records={
        "label shares": [(0, [0.55, 0.45])],
        "verdict": [(0, {"gain": 0.01, "error": 0.02, "taken": False, "compared": True})],
        "support": [(0, {"records": 100.0, "votes": [60.0, 38.0, 2.0], "expected": [33.0] * 3, "error": [0.2] * 3})],
        "set aside": [(0, [["a text", "", "off", 0, "zero_shot", "generator"]])],
        "left out": [(0, {"off": "too few records are near its texts"})],
    },
    weights=((1 / 3, 1 / 3, 1 / 3), (0.8, 0.2, 0.0), (0.8, 0.2, 0.0)),
    opened={name: NoisySum(np.array(values), 1, 2.5, ("a", "b")) for name, values in VALUES.items()},
    is_private=True,
)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, ("chest", 0.6)),
        ({"opened": {"labels": NoisySum(np.array([-3, 40]), 1, 2.5, ("a", "b"))}}, ("ankle", 1.0)),
        ({"opened": {}}, None),
        ({"is_private": False}, None),
    ],
)
def test_most_frequent_label_is_read_from_the_sum_of_labels(changes, label):
    assert replace(RUN, **changes).frequent_label == label


def answers_by_sum(run=RUN):
    return {sum_answer.name: sum_answer for sum_answer in list_sum_answers(PLAN.sums, run)}


@pytest.mark.parametrize(
    ("name", "answer", "decision"),
    [
        (
            "labels",
            "Answer: chest 60, ankle 40, each give or take 2.5.",
            "Decided: how many texts of each label were ordered: chest 55.0 %, ankle 45.0 %.",
        ),
        (
            "support",
            "of about 100 records, 60 are nearest to the texts of good, give or take 6.6, where 33 would be if",
            "Decided: texts of off are set aside, with the reasons that stand under",
        ),
        (
            "who/1",
            "good 12 more, mixed 0 more, off 12 fewer, each give or take 3.5.",
            "Decided: whom the texts of round 2 were ordered from: good 80.0 %, mixed 20.0 %, off 0.0 %.",
        ),
        ("who/2", "good 1 more, mixed 1 more, off 2 fewer", "Decided: the orders of round 3 stayed as they were."),
        ("votes/2", "Answer: 60 numbers from 0 to 59, each give or take 2.5.", "the orders of round 3 stayed"),
        ("verdict", 'Its answer stands under "How good it is".', "Decided: all texts that are left are published"),
    ],
)
def test_answer_on_each_sum_states_result_error_and_decision(name, answer, decision):
    sum_answer = answers_by_sum()[name]
    assert answer in sum_answer.answer
    assert decision in sum_answer.decision
    assert sum_answer.sentence.startswith(f"Asked: {sum_answer.question}. ")
    assert "your records" not in sum_answer.sentence


def test_noise_as_reason_why_differences_do_not_cancel_is_explained():
    told = {name: "would add up to about 0" in answer.answer for name, answer in answers_by_sum().items()}
    assert [name for name, is_explained in told.items() if is_explained] == ["who/1", "who/2"]


def test_question_that_two_sums_share_is_written_out_only_once():
    assert answers_by_sum()["who/2"].question == "the same as in who/1"


def test_answer_gives_counts_of_set_aside_generators_only_with_reasons():
    assert " to the texts of off" not in answers_by_sum()["support"].answer
    assert 'The counts of off stand under "How good it is".' in answers_by_sum()["support"].answer
    all_supported = answers_by_sum(replace(RUN, records={"support": RUN.records["support"]}))["support"]
    assert "2 are nearest to the texts of off" in all_supported.answer
    assert all_supported.decision == "Decided: no text is set aside."


@pytest.mark.parametrize("name", STATISTICS)
def test_sums_of_a_run_that_is_not_private_are_not_shown(name):
    assert answers_by_sum(replace(RUN, is_private=False))[name].answer == NOT_SHOWN


@pytest.mark.parametrize(
    ("taken", "compared", "decision"),
    [(True, True, "that the records choose are published"), (False, False, "nothing, because the two sets of texts")],
)
def test_answer_on_the_verdict_sum_says_which_set_of_texts_it_chose(taken, compared, decision):
    verdict = {"gain": 0.1, "error": 0.02, "taken": taken, "compared": compared}
    assert decision in answers_by_sum(replace(RUN, records={"verdict": [(0, verdict)]}))["verdict"].decision


def test_answer_on_a_sum_that_never_opened_says_so():
    assert answers_by_sum(replace(RUN, opened={}))["labels"].sentence.endswith(NOT_OPENED)


@pytest.mark.parametrize(
    ("option", "shares", "steers", "decision"),
    [
        ("half", [0.55, 0.45], True, "Decided: how many texts of each label were ordered: chest 55.0 %, ankle 45.0 %."),
        ("half", [0.5, 0.5], False, EQUAL_LABELS),
        ("even", [0.5, 0.5], False, "The task itself sets how many texts of each label were ordered: chest 50.0 %"),
        ({"chest": 3, "ankle": 1}, [0.75, 0.25], False, "The task itself sets how many texts of each label"),
    ],
)
def test_label_histogram_decides_nothing_when_shares_are_equal_or_set(option, shares, steers, decision):
    changed_run = replace(RUN, label_shares=option, records=RUN.records | {"label shares": [(0, shares)]})
    assert answers_by_sum(changed_run)["labels"].decision.startswith(decision)
    assert changed_run.steers_label_shares == steers


def test_label_shares_are_equal_when_counts_differ_only_by_noise():
    counts = NoisySum(np.array([90, 85, 76, 90, 93, 81]), 1, 3.0, ("a", "b"))
    assert np.ptp(label_shares(counts)) < 1e-9
    assert np.ptp(label_shares(replace(counts, values=np.array([190, 85, 76, 40, 93, 31])))) > 0.01
