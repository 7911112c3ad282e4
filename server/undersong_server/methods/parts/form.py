"""Form of the records' texts, for prompts: how long they are, which words people use, and which texts are like them.

The records answer three questions on public texts: a histogram of lengths, counts of words from a public list, and
votes for the texts that were written with these words. What is noise enters no prompt.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import MetadataHistograms
from undersong_protocol.statistics.label_words import LARGEST_ORDER, NOTHING, LabelWords
from undersong_protocol.statistics.terms import words
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.statistics.votes import EqualVotes, hubness_correction
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import Input, RunContext, Sample, Setting, SumRequest, plan_sums
from undersong_server.methods.parts.constants import constant
from undersong_server.methods.parts.metadata import RANGE_EDGES, draw_lengths
from undersong_server.methods.parts.selection import highest
from undersong_server.methods.parts.signal import TELLING, Signal, expected_signal, least_count
from undersong_server.prompts.rendering import readable_label

BINS = len(RANGE_EDGES) - 1
LENGTHS, WORDS, EXAMPLES = "lengths", "words", "voted_examples"  # names of the method's options
LEAST_ROUNDS = 3  # the first texts, those with words, and those with examples
SHORTEST_WORD = 3  # letters
PRIOR = 0.5  # added to each count of texts with a word and without it, so that no odds are 0 or infinite


@dataclass(frozen=True)
class Form:
    """Constants of the three questions about the form of texts. ``FORM`` is the only instance that runs use."""

    part_lengths: float = constant(2.0, "part of the budget", "joined with the labels, each with the noise of one")
    part_words: float = constant(5.0, "part of the budget", "its noise is spread over many words")
    part_shown: float = constant(5.0, "part of the budget, over all rounds", "votes for examples of each label")
    least_odds: float = constant(
        3.0, "times the others' odds", "of a word that tells of a label; less is any text's word"
    )
    distinct: int = constant(4, "words of a record", "those that tell most about its label")
    words_of_label: int = constant(40, "words", "counted of a label")
    most_words: int = constant(2000, "words", "counted in all")
    terms: int = constant(3, "words in a prompt", "drawn by their counts")
    voted_on: int = constant(16, "texts of a label", "more would have few votes each")
    voted_for: float = constant(0.25, "of these", "that a record votes for; votes for all of them would tell nothing")
    best: float = constant(0.5, "of these", "that examples are drawn from, so that prompts differ")


FORM = Form()


class FormOptions(Protocol):
    """The options that ask about form."""

    @property
    def lengths(self) -> bool: ...

    @property
    def words(self) -> bool: ...

    @property
    def voted_examples(self) -> int: ...

    @property
    def rounds(self) -> int: ...


def _named(options: FormOptions, setting: Setting) -> frozenset[str]:
    """Returns the names of the questions about form that the options name; without labels nobody votes on examples."""
    return frozenset(
        option_name
        for option_name in (LENGTHS, WORDS, EXAMPLES)
        if getattr(options, option_name) and (setting.labels or option_name != EXAMPLES)
    )


def wanted(options: FormOptions, setting: Setting) -> frozenset[str]:
    """Returns the names of the questions about form that the options want and the generators can follow.

    Raises ConfigurationError for an option that cannot hold.
    """
    option_names = _named(options, setting)
    if not option_names:
        return option_names
    first_option = f"method.{min(option_names)}"
    if setting.attributes:
        raise ConfigurationError(
            f"{first_option}: the task has [[attributes]], and a prompt names these or lengths, words and examples",
            f"take the attributes out, or {first_option}; privacy.lengths measures lengths beside attributes",
            code="form-with-attributes",
        )
    if option_names & {WORDS, EXAMPLES} and len(setting.labels) < 2:
        raise ConfigurationError(
            f"method.{min(option_names & {WORDS, EXAMPLES})} asks by label, and the task has fewer than two labels",
            "name two labels or more in task.labels, or take this option out",
            code="form-without-labels",
        )
    if option_names >= {WORDS, EXAMPLES} and options.rounds < LEAST_ROUNDS:
        raise ConfigurationError(
            f"method.voted_examples are chosen among texts with the records' words; method.rounds is {options.rounds}",
            f"set method.rounds to {LEAST_ROUNDS} or more, or words = false",
            code="form-rounds",
        )
    if any(generator_name not in setting.recorded for generator_name in setting.generators):
        return option_names
    return frozenset()


def counted(setting: Setting) -> MetadataHistograms:
    """Returns the statistic that counts labels and lengths in one release; lengths alone without labels."""
    return MetadataHistograms(len(setting.labels), BINS, count_labels=bool(setting.labels))


def length_edges(run: RunContext) -> Input:
    """Returns the public input of :func:`counted`."""
    return run.publish_numbers("length_edges", np.array(RANGE_EDGES, dtype=np.float64))


def length_drawer(run: RunContext, opened: NoisySum, labels: int) -> Callable[[np.random.Generator], int]:
    """Returns a function that draws a length in words by the opened histogram, which stands behind counts of labels."""
    draw_length = draw_lengths(run, replace(opened, values=opened.values[labels:]))
    return lambda rng: draw_length(Random(int(rng.integers(2**62))))


def words_request(setting: Setting) -> SumRequest:
    """Returns the request that counts words."""
    label_count = len(setting.labels)
    word_count = min(FORM.words_of_label * label_count, max(FORM.most_words, label_count))
    return SumRequest(WORDS, LabelWords(word_count, label_count, FORM.distinct), FORM.part_words)


def votes_request(setting: Setting, name: str, texts: int, sums: int) -> SumRequest:
    """Returns one of ``sums`` requests for votes on examples, which are chosen among at most ``texts`` texts."""
    label_count = len(setting.labels)
    votes_per_record = max(1, int(FORM.voted_for * min(texts // label_count, FORM.voted_on)))
    votes = EqualVotes(q=votes_per_record, candidates=min(texts, FORM.voted_on * label_count), labels=label_count)
    return SumRequest(name, votes, FORM.part_shown / sums)


Requests = Callable[[Collection[str]], Sequence[SumRequest]]
"""The sums of a method that asks these questions about form."""


def _signals(requests: Sequence[SumRequest], setting: Setting) -> list[Signal]:
    """Returns the expected signal of each sum beside its noise, for the number of records that is expected."""
    plan = plan_sums(requests, setting.privacy, setting.quorum)
    return [
        expected_signal(request.statistic, plan[request.name].sigma, setting.expected_records) for request in requests
    ]


def left_out(requests: Requests, options: FormOptions, setting: Setting) -> dict[str, Signal]:
    """Returns the signals of the wanted questions that are not asked, because their answers would be noise."""
    signal_by_part: dict[str, Signal] = {}
    part_names = wanted(options, setting)
    for form_part in (WORDS, EXAMPLES):  # Examples get the words' budget if words are not asked.
        if form_part in part_names:
            part_requests = requests(part_names - signal_by_part.keys())
            signals = zip(part_requests, _signals(part_requests, setting), strict=True)
            hidden_signals = [signal for request, signal in signals if _part(request) == form_part and signal.is_noise]
            if hidden_signals:
                signal_by_part[form_part] = hidden_signals[0]
    return signal_by_part


def sums_to_ask(requests: Requests, options: FormOptions, setting: Setting) -> Sequence[SumRequest]:
    """Returns the sums to ask: without the questions about form whose answers would be noise."""
    return requests(wanted(options, setting) - left_out(requests, options, setting).keys())


def _part(request: SumRequest) -> str:
    if request.name.startswith("votes/"):
        return EXAMPLES
    return request.name


def notes(requests: Requests, options: FormOptions, setting: Setting) -> list[str]:
    """Returns a sentence on each question about form that is wanted and not asked, for whoever plans a run."""
    expected_records = setting.expected_records
    note_lines = [
        f"method.{form_part}: not asked, its answer would be noise ({signal}, of {expected_records} records in"
        f" {len(setting.labels)} labels). It is asked from {signal.least_records(expected_records)} records on"
        " (privacy.expected_records)."
        for form_part, signal in left_out(requests, options, setting).items()
    ]
    if _named(options, setting) and not wanted(options, setting):
        note_lines.append(
            "No lengths, words or examples are asked: all texts were written before, whatever a prompt says."
        )
    return note_lines


# Words: a public list for each label, in an order that public texts decide.


@dataclass(frozen=True, eq=False)
class WordLists:
    """Words to count.

    Attributes:
        listed: the word of each cell.
        order: the cells of each label, the most telling first, int64 [C, widest], filled up with -1.
    """

    listed: tuple[str, ...]
    order: Int64

    def are_told(self, records: Float64, sigma: float) -> bool:
        """True if, with so many ``records`` of each label, float64 [C], any word is expected to stand out of the noise.

        A word that tells of a label is expected in a quarter of the records of the labels that read it.
        """
        records_by_word = np.zeros(len(self.listed))
        for word_row, label_records in zip(self.order, records, strict=True):
            records_by_word[word_row[word_row != NOTHING]] += label_records
        return bool(self.listed) and TELLING * float(records_by_word.max()) >= least_count(sigma, len(self.listed))

    def inputs(self, run: RunContext) -> list[Input]:
        """Returns the public inputs of the sum that counts them."""
        order_input = run.publish_numbers("order", self.order.astype(np.float64))
        return [run.publish_texts("words", self.listed), order_input]

    def frequent(self, opened: NoisySum) -> "list[Frequent]":
        """Returns each label's words whose counts are above what noise alone reaches, with their counts."""
        word_counts = opened.natural[: len(self.listed)]
        is_significant = word_counts >= max(1.0, least_count(opened.sigma, len(self.listed)))
        frequent_words = [[int(cell) for cell in row if cell != NOTHING and is_significant[cell]] for row in self.order]
        return [
            Frequent(tuple(self.listed[cell] for cell in label_words), word_counts[label_words])
            for label_words in frequent_words
        ]


@dataclass(frozen=True, eq=False)
class Frequent:
    """Frequent words of a label, and their noisy counts, float64, positive."""

    terms: tuple[str, ...] = ()
    counts: Float64 = field(default_factory=lambda: np.zeros(0))

    def draw(self, rng: np.random.Generator) -> tuple[str, ...]:
        """Draws words of a prompt without replacement, by their counts."""
        if not self.terms:
            return ()
        term_count = min(FORM.terms, len(self.terms))
        term_numbers = rng.choice(len(self.terms), term_count, replace=False, p=self.counts / self.counts.sum())
        return tuple(self.terms[number] for number in term_numbers)


def telling(texts: Sequence[str], label_of: Int64, labels: int) -> tuple[list[str], Float64]:
    """Returns the words of labelled public texts and how much each tells about each label, float64 [words, C].

    It is the log-odds that a text of the label has the word, over those of the other labels' texts, in standard errors
    (Monroe, Colaresi, Quinn 2008); minus infinity where its odds are not ``least_odds`` times the others'.
    """
    index_of_word: dict[str, int] = {}
    word_occurrences: list[tuple[int, int]] = []
    for text, label in zip(texts, label_of.tolist(), strict=True):
        text_words = sorted({word for word in words(text) if _is_listed(word)})
        word_occurrences += [(index_of_word.setdefault(word, len(index_of_word)), label) for word in text_words]
    text_counts = np.zeros((len(index_of_word), labels))
    np.add.at(text_counts, tuple(np.array(word_occurrences, dtype=np.int64).reshape(-1, 2).T), 1.0)
    text_count_of_label = np.bincount(label_of, minlength=labels)
    other_counts, other_text_count = (
        text_counts.sum(axis=1, keepdims=True) - text_counts,
        text_count_of_label.sum() - text_count_of_label,
    )
    log_odds = np.log((text_counts + PRIOR) / (text_count_of_label - text_counts + PRIOR))
    log_odds -= np.log((other_counts + PRIOR) / (other_text_count - other_counts + PRIOR))
    z_scores = log_odds / np.sqrt(1.0 / (text_counts + PRIOR) + 1.0 / (other_counts + PRIOR))
    return list(index_of_word), np.where((text_counts > 0) & (log_odds >= np.log(FORM.least_odds)), z_scores, -np.inf)


def _is_listed(word: str) -> bool:
    """True if the word has letters only, and a party reads it as the same word: reading changes a few letters."""
    return len(word) >= SHORTEST_WORD and word.isalpha() and (word.isascii() or words(word) == [word])


def word_lists(texts: Sequence[str], label_of: Int64, apart: Bools, cell_count: int) -> WordLists:
    """Chooses the words to count: those that tell for a label in public texts, the most telling first.

    Args:
        apart: labels that have a list of their own, bool [C]; the others share one.
        cell_count: words to count in all, at most.
    """
    label_count = len(apart)
    vocabulary, scores = telling(texts, label_of, label_count)
    words_by_label = [
        [int(word_number) for word_number in np.argsort(-scores[:, label], kind="stable")]
        for label in range(label_count)
    ]
    telling_words = [
        [word_number for word_number in word_numbers if scores[word_number, label] > -np.inf]
        for label, word_numbers in enumerate(words_by_label)
    ]
    label_lists = [word_numbers[: cell_count // label_count] for word_numbers in telling_words]
    shared_words = {word_number for label in np.flatnonzero(~apart) for word_number in label_lists[label]}
    cell_of_word: dict[tuple[int, int], int] = {}
    cell_rows = []
    for label in range(label_count):
        if apart[label]:
            list_words = label_lists[label]
        else:
            list_words = [word_number for word_number in telling_words[label] if word_number in shared_words][
                : LARGEST_ORDER // label_count
            ]
        list_label = label if apart[label] else NOTHING
        cell_rows.append(
            [cell_of_word.setdefault((list_label, word_number), len(cell_of_word)) for word_number in list_words]
        )
    cell_order = np.full((label_count, max(1, max(map(len, cell_rows)))), NOTHING)
    for label, label_cells in enumerate(cell_rows):
        cell_order[label, : len(label_cells)] = label_cells
    return WordLists(tuple(vocabulary[word_number] for _, word_number in cell_of_word), cell_order)


def labels_apart(records: Float64, sigma: float, cell_count: int) -> Bools:
    """Marks the labels whose ``records``, float64 [C], are enough for a list of their own, bool [C]."""
    has_enough: Bools = TELLING * records >= least_count(sigma, cell_count)
    return has_enough


def counted_words(run: RunContext, samples: Sequence[Sample], chosen: Bools, records: Float64) -> list[Frequent]:
    """Opens how often records have words of ``samples``, of labels' names and of one answer per label.

    Returns each label's words that are more frequent than noise explains.

    Args:
        chosen: generators of each label, bool [K, C], the first of which that writes to order is asked for words.
        records: estimated number of records of each label, float64 [C].
    """
    setting, planned_sum = run.setting, run.planned(WORDS)
    is_writer = np.array([generator_name not in setting.recorded for generator_name in setting.generators])[:, None]
    writer_of_label = np.where((chosen & is_writer).any(axis=0), chosen & is_writer, is_writer).argmax(axis=0)
    word_orders = [
        Order(setting.generators[writer], "vocabulary", label, words=FORM.words_of_label)
        for writer, label in zip(writer_of_label.tolist(), setting.labels, strict=True)
    ]
    public_samples = [*samples, *(answer for answer in run.write("words", 0, word_orders) if answer is not None)]
    readable_labels = [readable_label(label) for label in setting.labels]  # each counts as a text of its label
    public_texts = [*(sample.text for sample in public_samples), *readable_labels]
    label_of = np.concatenate([run.label_numbers(public_samples), np.arange(len(readable_labels))])
    has_own_list = labels_apart(records, planned_sum.sigma, planned_sum.dimension)
    word_list = word_lists(public_texts, label_of, has_own_list, planned_sum.dimension)
    if word_list.are_told(records, planned_sum.sigma):
        frequent_words = word_list.frequent(run.private_sum(WORDS, word_list.inputs(run)))
        words_note = words_remark(word_list, frequent_words, int(has_own_list.sum()))
    else:
        frequent_words = [Frequent() for _ in setting.labels]
        words_note = (
            f"Words: not asked. Of about {records.sum():.0f} records, too few read one of the {len(word_list.listed)}"
            " words"
            " that public texts name for its count to stand above the noise."
        )
    run.record(
        "words",
        0,
        {label: list(label_words.terms) for label, label_words in zip(setting.labels, frequent_words, strict=True)},
    )
    run.record("remarks", 0, words_note)
    return frequent_words


def words_remark(lists: WordLists, frequent: Sequence[Frequent], apart_count: int) -> str:
    """Returns the sentence for the report on how many words the records have."""
    distinct_terms = {term for label_words in frequent for term in label_words.terms}
    sharing_label_count = len(frequent) - apart_count
    sharing_subject = "Labels with few records share" if apart_count else "All labels share"
    sharing_sentence = f" {sharing_subject} one list." if sharing_label_count else ""
    return (
        f"Words: of {len(lists.listed)} that public texts name, {len(distinct_terms)} stand in more of the hospitals'"
        f" records than noise explains, and prompts name some of them.{sharing_sentence}"
    )


# Examples: votes of the records among texts that were ordered with lengths and words.


def voted_examples(run: RunContext, name: str, samples: Sequence[Sample], first_round: int) -> list[list[str]]:
    """Opens the votes for texts of each label and returns those with the most; none where the votes are noise.

    Args:
        first_round: first round whose texts were ordered with the records' words. Earlier texts are voted on if a
            label has few of these.
    """
    label_count, rng = len(run.setting.labels), run.rng(name)
    label_of = run.label_numbers(samples)
    candidates: list[Sample] = []
    for label in range(label_count):
        numbers_of_label = rng.permutation(np.flatnonzero(label_of == label)).tolist()
        numbers_of_label.sort(key=lambda text_number: samples[text_number].round < first_round)
        candidates += [samples[text_number] for text_number in sorted(numbers_of_label[: FORM.voted_on])]
    candidates_input, shown_samples = run.publish_samples("candidates", name, candidates[: run.planned(name).dimension])
    label_of = run.label_numbers(shown_samples)
    correction = hubness_correction(run.embeddings(shown_samples), label_of)
    votes_sum = run.private_sum(name, [candidates_input, run.publish_numbers("hubness correction", correction)])
    votes = votes_sum.natural[: len(shown_samples)]
    if float(votes.std()) < votes_sum.sigma:
        return [[] for _ in range(label_count)]
    rows_by_label = [np.flatnonzero(label_of == label) for label in range(label_count)]
    return [
        [
            shown_samples[text_number].text
            for text_number in highest(votes, numbers_of_label, round(FORM.best * len(numbers_of_label)))
        ]
        for numbers_of_label in rows_by_label
    ]
