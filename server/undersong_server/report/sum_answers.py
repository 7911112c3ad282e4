"""Answers of the private sums: of each its question, what came out with its error, and what it decided, in sentences.

An opened sum is covered by the promise, so whatever is computed from it may be published. Where the noise protects
nobody, no figure of a sum is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from undersong_common.printable import counted, joined, number, printable
from undersong_protocol.agreement import words
from undersong_protocol.agreement.plan import PlannedSum
from undersong_protocol.statistics.classifier_votes import (
    ClassifierVotesInBlocks,
    CorpusComparison,
    ScoredComparison,
)
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.statistics.similarity import ScoredSimilarity
from undersong_protocol.statistics.support import SupportVotes
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import support
from undersong_server.methods.parts.shares import LabelShares

SUM_ANSWERS = "What each private sum gave"  # heading of the list
GIVE_OR_TAKE = (
    '"Give or take" is one standard error: about two figures in three are nearer than that to the true one. In this'
    " list it is of the noise alone, but where records are counted by the generator whose texts are nearest. There,"
    " and everywhere else, the chance of which records came is in it, too, so that larger counts have a larger one."
    " Figures may differ by many times the noise through that chance alone. Each sum has noise of its own, so that"
    " two sums give the same records different totals."
)
WORTH = "How good it is"  # title of the answer that has scores, and the texts set aside
NOT_OPENED = "It was planned and never opened."
NOT_SHOWN = "Its answer is not shown, because its noise protects nobody."
UNRECORDED = "What the method made of it stands in no record of the run."
SHARE_TOLERANCE = 1e-9  # Floating point alone makes smaller differences of shares.
EQUAL_LABELS = (
    "Decided: equally many texts of each label were ordered. Beside the noise, the chance of which patients came could"
    " explain the differences of the counts."
)
MOST_FIGURES = 12  # figures by name that one sentence has


@dataclass(frozen=True)
class SumAnswer:
    """One private sum in words.

    Attributes:
        name: of the planned sum; question: what it asked of each hospital.
        answer, decision: a sentence each on what came out, with its error, and on what it decided.
    """

    name: str
    question: str
    answer: str
    decision: str

    @property
    def sentence(self) -> str:
        """Question, answer and decision, without the name."""
        return " ".join(filter(None, (f"Asked: {self.question}.", self.answer, self.decision)))


@dataclass(frozen=True)
class OpenedRun:
    """Public facts of a run from which its sums are told.

    Attributes:
        labels, generators: names, in the task file's order.
        records: what the run recorded; weights: of the generators by round, those of round 0 first.
        opened: the opened sums by name.
        is_private: True if the noise of the sums protects the records.
        label_shares: the method's option of that name; None if it has none.
    """

    labels: Sequence[str]
    generators: Sequence[str]
    records: Mapping[str, Sequence[tuple[int, Any]]]
    weights: Sequence[Sequence[float]]
    opened: Mapping[str, NoisySum]
    is_private: bool
    label_shares: LabelShares | None = None

    @property
    def sets_label_shares(self) -> bool:
        """True if the task names the shares of the labels itself."""
        return self.label_shares == "even" or isinstance(self.label_shares, Mapping)

    @property
    def has_equal_label_shares(self) -> bool:
        """True if equally many texts of each of several labels were ordered."""
        recorded_shares = self.records.get("label shares", ())
        return bool(recorded_shares) and len(self.labels) > 1 and bool(np.ptp(recorded_shares[-1][1]) < SHARE_TOLERANCE)

    @property
    def frequent_label(self) -> tuple[str, float] | None:
        """The label that most records have and its share of them, by the sum of labels; None without such a sum."""
        noisy_sum = self.opened.get("labels")
        if noisy_sum is None or not self.is_private:
            return None
        counts = np.maximum(noisy_sum.natural[: len(self.labels)], 0.0)
        if len(counts) < 2 or len(counts) != len(self.labels) or not counts.any():
            return None
        return self.labels[int(counts.argmax())], float(counts.max() / counts.sum())

    @property
    def steers_label_shares(self) -> bool:
        """True if the sum of labels decided how many texts of each label were ordered."""
        is_recorded = "label shares" in self.records and "labels" in self.opened
        return is_recorded and not self.sets_label_shares and not self.has_equal_label_shares


def list_sum_answers(planned_sums: Sequence[PlannedSum], run: OpenedRun) -> tuple[SumAnswer, ...]:
    """Returns what each planned sum asked, gave and decided, in the plan's order."""
    first_names: dict[str, str] = {}
    sum_answers = []
    for planned_sum in planned_sums:
        sum_answer = _tell_sum(planned_sum, run)
        first_name = first_names.setdefault(sum_answer.question, sum_answer.name)
        if first_name != sum_answer.name:
            sum_answer = replace(sum_answer, question=f"the same as in {printable(first_name, 60)}")
        sum_answers.append(sum_answer)
    return tuple(sum_answers)


def _tell_sum(planned_sum: PlannedSum, run: OpenedRun) -> SumAnswer:
    question = words.question(planned_sum).replace("your records", "their records")
    noisy_sum = run.opened.get(planned_sum.name)
    if noisy_sum is None:
        return SumAnswer(planned_sum.name, question, NOT_OPENED, "")
    decision = _tell_decision(planned_sum, run)
    if not run.is_private:
        return SumAnswer(planned_sum.name, question, NOT_SHOWN, decision)
    return SumAnswer(planned_sum.name, question, _tell_answer(planned_sum, noisy_sum, run), decision)


def _tell_answer(planned_sum: PlannedSum, noisy_sum: NoisySum, run: OpenedRun) -> str:
    """Returns the sentence on a sum's result; for a statistic without its own sentence, the range of the values."""
    sum_values, standard_error = noisy_sum.natural, float(noisy_sum.sigma)
    match planned_sum.statistic:
        case LabelHistogram.name:
            return f"Answer: {_list_figures(run.labels, sum_values)}, each {_give_or_take(standard_error)}."
        case SupportVotes.name if "support" in run.records:
            return _tell_support(run)
        case ClassifierVotesInBlocks.name:
            # A row is centred: it counts by how much a classifier is above the generators' mean. Blocks that no label
            # uses hold noise alone, so the sum over all of them is right on average.
            by_generator = sum_values.reshape(-1, len(run.generators)).sum(axis=0)
            sum_error = standard_error * float(np.sqrt(len(sum_values) / len(run.generators)))
            figures = [
                f"{printable(name, 60)} {abs(value):.0f} {'more' if value >= 0 else 'fewer'}"
                for name, value in zip(run.generators, by_generator.tolist(), strict=True)
            ]
            return (
                "Answer: beside the mean of the classifiers, the one that each generator's texts taught labels so many"
                f" records more or fewer right: {', '.join(figures)}, each {_give_or_take(sum_error)}."
                " Each has noise of its own; without it they would add up to about 0."
            )
        case CorpusComparison.name | ScoredComparison.name | ScoredSimilarity.name:
            return f'Its answer stands under "{WORTH}".'
    if len(sum_values) <= MOST_FIGURES:
        return f"Answer: {', '.join(f'{value:.0f}' for value in sum_values)}, each {_give_or_take(standard_error)}."
    return (
        f"Answer: {len(sum_values):,} numbers from {sum_values.min():.4g} to {sum_values.max():.4g}, each"
        f" {_give_or_take(standard_error)}."
    )


def _tell_support(run: OpenedRun) -> str:
    """Returns the sentence on the generators' votes, compared with those at equal nearness."""
    votes = support.Support.from_json(run.records["support"][-1][1])
    aside_generators = _set_aside_generators(run)
    clauses = [
        f"{votes.votes[place]:.0f} are nearest to the texts of {printable(name, 60)},"
        f" {_give_or_take(votes.error[place] * votes.expected[place])}, where {votes.expected[place]:.0f} would be if"
        " the texts of all generators were equally near"
        for place, name in enumerate(run.generators)
        if name not in aside_generators and votes.expected[place] > support.NO_VOTES
    ]
    aside_words = f'The counts of {joined(aside_generators)} stand under "{WORTH}".' if aside_generators else ""
    nearest_words = f"Answer: of about {votes.records:.0f} records, {'; '.join(clauses)}." if clauses else ""
    return " ".join(filter(None, (nearest_words, aside_words)))


def _tell_decision(planned_sum: PlannedSum, run: OpenedRun) -> str:
    """The sentence on what a sum decided, as far as the run recorded it."""
    if planned_sum.name == "labels" and "label shares" in run.records:
        shares = run.records["label shares"][-1][1]
        if len(shares) == len(run.labels):
            ordered_shares = _list_figures(run.labels, 100 * np.array(shares), unit=" %")
            if run.sets_label_shares:
                return f"The task itself sets how many texts of each label were ordered: {ordered_shares}."
            if run.has_equal_label_shares:
                return EQUAL_LABELS
            return f"Decided: how many texts of each label were ordered: {ordered_shares}."
    if planned_sum.statistic == SupportVotes.name:
        return _tell_set_aside(run)
    if planned_sum.statistic in (CorpusComparison.name, ScoredComparison.name):
        return _tell_verdict(run)
    if planned_sum.statistic == ScoredSimilarity.name:
        return "Decided: nothing. It measures the finished texts."
    return _tell_next_orders(planned_sum.name, run)


def _tell_verdict(run: OpenedRun) -> str:
    """The sentence on which of the two compared sets of texts is published."""
    verdicts = run.records.get("verdict", ())
    if not verdicts:
        return UNRECORDED
    if not verdicts[-1][1].get("compared", True):
        return "Decided: nothing, because the two sets of texts are the same."
    if verdicts[-1][1]["taken"]:
        return "Decided: the texts and labels that the records choose are published."
    return "Decided: all texts that are left are published, without the records' choice."


def _tell_set_aside(run: OpenedRun) -> str:
    """The sentence on the generators whose texts the votes set aside."""
    aside_generators = _set_aside_generators(run)
    if not aside_generators:
        return "Decided: no text is set aside."
    return f'Decided: texts of {joined(aside_generators)} are set aside, with the reasons that stand under "{WORTH}".'


def _set_aside_generators(run: OpenedRun) -> list[str]:
    """Generators of which texts are set aside, in the task file's order."""
    aside_names = {row[2] for _, rows in run.records.get(support.RECORD, ()) for row in rows}
    return [name for name in run.generators if name in aside_names]


def _tell_next_orders(name: str, run: OpenedRun) -> str:
    """The sentence on the orders after a sum of a round, such as "who/1": new shares, or no change."""
    round_words = name.rpartition("/")[2]
    round_number = int(round_words) if round_words.isdecimal() else 0
    if not 0 < round_number < len(run.weights):
        return UNRECORDED
    before, after = run.weights[round_number - 1], run.weights[round_number]
    if tuple(before) == tuple(after):
        return f"Decided: the orders of round {round_number + 1} stayed as they were."
    shares = _list_figures(run.generators, 100 * np.array(after), unit=" %")
    return f"Decided: whom the texts of round {round_number + 1} were ordered from: {shares}."


def _list_figures(names: Sequence[str], values: Any, *, unit: str = "") -> str:
    """Names with a figure each, at most ``MOST_FIGURES``."""
    form = ".1f" if unit else ".0f"
    figures = [f"{printable(name, 60)} {value:{form}}{unit}" for name, value in zip(names, values, strict=True)]
    remainder = len(figures) - MOST_FIGURES
    return ", ".join(figures[:MOST_FIGURES]) + (f" and {counted(remainder, 'further figure')}" if remainder > 0 else "")


def _give_or_take(standard_error: float) -> str:
    return f"give or take {number(float(f'{standard_error:.2g}'))}"
