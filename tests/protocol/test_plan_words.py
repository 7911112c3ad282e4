"""The sentence on what a run asks names exactly its plan's questions, for every statistic and every method."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from undersong_protocol import statistics
from undersong_protocol.agreement import words
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.examples import Chooser
from undersong_protocol.statistics.interface import PublicFacts

QUORUM = Quorum(parties=3, threshold=2, tolerated_dropouts=1, colluders=0)
CASES = Path(__file__).parent / "sentences.jsonl"
FACTS = PublicFacts(embedding_size=8, labels=3)


def example(name: str, seed: int = 0) -> statistics.Statistic:
    registered, rng = statistics.known(name), np.random.default_rng(seed)
    assert registered is not None
    drawn: statistics.Statistic = registered.example(Chooser(lambda below: int(rng.integers(below))), FACTS)[0]
    return drawn


def plan_of(*asked: statistics.Statistic) -> Plan:
    requests = [SumRequest(f"sum/{number}", statistic) for number, statistic in enumerate(asked)]
    return plan_sums(requests, Privacy(math.inf, 1e-5), QUORUM)


@pytest.mark.parametrize(
    "case", [json.loads(line) for line in CASES.read_text().splitlines()], ids=lambda c: c["method"]
)
def test_request_sentence_has_the_plan_s_questions_and_no_others(case):
    votes = {"top_q_votes": statistics.TopQVotes(q=2, candidates=4)}  # WASP's, with the furthest ones
    sentence = words.asked(words.questions(plan_of(*(votes.get(name) or example(name) for name in case["statistics"]))))
    assert all(root in sentence for root in case["says"]), sentence
    assert not any(root in sentence for root in case["never"]), sentence


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", statistics.names())
def test_request_sentence_has_a_distinct_clause_for_each_statistic(name, seed):
    statistic = example(name, seed)
    assert words.asked(words.questions(plan_of(statistic, statistic))) == statistic.asks
    assert all(example(other).asks != statistic.asks for other in statistics.names() if other != name)


def test_more_than_three_questions_are_counted_in_the_plan_s_order():
    names = ("label_histogram", "length_histogram", "term_histogram", "embedding_sum", "top_q_votes")
    clauses = words.questions(plan_of(*map(example, names)))
    sentence = words.asked(clauses)
    assert sentence.startswith(f"{clauses[0]}; {clauses[1]}; {clauses[2]}; ")
    assert sentence.endswith("; and 2 more, below")
    assert clauses[3] not in sentence


@pytest.mark.parametrize(
    ("statistic", "says", "never"),
    [
        (statistics.TopQVotes(q=2, candidates=4, furthest=False), "nearest", "furthest"),
        (statistics.MetadataHistograms(labels=3, keywords=2, count_labels=False), "keywords", "label"),
        (statistics.MetadataHistograms(labels=3), "each label", "length"),
        (statistics.build("attribute_marginals", {"labels": 0, "columns": [3]}), "columns", "label"),
        (statistics.build("term_histogram", {"vocabulary": 4, "distinct": 2}), "in how many", "how often"),
    ],
)
def test_question_omits_what_the_statistic_s_parameters_leave_out(statistic, says, never):
    sentence = words.asked(words.questions(plan_of(statistic)))
    assert says in sentence
    assert never not in sentence


def test_examples_of_questions_are_listed_in_the_plan_s_order():
    def examples_of(names):
        return words.examples(names, ["cardiac"], ["handbook"])

    names = [name for name in statistics.names() if examples_of([name])]
    assert len(names) > 5
    for ordered_names in (names, names[::-1]):
        expected = dict.fromkeys(example for name in ordered_names for example in examples_of([name]))
        assert examples_of(ordered_names) == tuple(expected)


def test_number_of_other_hospitals_is_the_fewest_with_which_a_sum_opens():
    assert words.others(plan_of(example("label_histogram"))) == 1
    assert "1 other hospital, which can subtract its own" in words.together(1)


def test_each_sum_of_a_plan_has_a_distinct_title_made_of_its_question():
    asked = [example(name) for name in ("label_histogram", "top_q_votes", "top_q_votes")]
    titles = words.sum_titles(plan_of(*asked).sums)
    assert titles["sum/0"] == "how many of their records have each label"
    assert titles["sum/1"].endswith(" (1 of 2)")
    assert titles["sum/2"].endswith(" (2 of 2)")


@pytest.mark.parametrize("name", statistics.names())
def test_title_of_a_sum_is_short_and_speaks_of_the_hospitals_records(name):
    (title,) = words.sum_titles(plan_of(example(name)).sums).values()
    assert "records" in title or "text" in title
    assert "your" not in title.replace("yours", "")
    assert len(title) <= 150
    assert not set("(;") & set(title)
