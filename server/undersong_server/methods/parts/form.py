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
PRIOR = 0.5  # texts with a word and texts without it, beside those of a label and of the others


@dataclass(frozen=True)
class Form:
    """Constants of the three questions. ``FORM`` is the only instance that runs use."""

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
        name for name in (LENGTHS, WORDS, EXAMPLES) if getattr(options, name) and (setting.labels or name != EXAMPLES)
    )


def wanted(options: FormOptions, setting: Setting) -> frozenset[str]:
    """Returns the names of the questions about form that the options want and the generators can follow.

    Raises ConfigurationError for an option that cannot hold.
    """
    names = _named(options, setting)
    if not names:
        return names
    first = f"method.{min(names)}"
    if setting.attributes:
        raise ConfigurationError(
            f"{first}: the task has [[attributes]], and a prompt names either those or form",
            f"take the attributes out, or {first}; privacy.lengths measures lengths beside attributes",
            code="form-with-attributes",
        )
    if names & {WORDS, EXAMPLES} and len(setting.labels) < 2:
        raise ConfigurationError(
            f"method.{min(names & {WORDS, EXAMPLES})} asks by label, and the task has fewer than two",
            "name task.labels, or take it out",
            code="form-without-labels",
        )
    if names >= {WORDS, EXAMPLES} and options.rounds < LEAST_ROUNDS:
        raise ConfigurationError(
            f"method.voted_examples are chosen among texts with the records' words; method.rounds is {options.rounds}",
            f"set method.rounds to {LEAST_ROUNDS} or more, or words = false",
            code="form-rounds",
        )
    if any(name not in setting.recorded for name in setting.generators):
        return names
    return frozenset()


def counted(setting: Setting) -> MetadataHistograms:
    """Returns the statistic that counts labels and lengths in one release; lengths alone without labels."""
    return MetadataHistograms(len(setting.labels), BINS, count_labels=bool(setting.labels))


def length_edges(run: RunContext) -> Input:
    """Returns the public input of :func:`counted`."""
    return run.publish_numbers("length_edges", np.array(RANGE_EDGES, dtype=np.float64))


def length_drawer(run: RunContext, opened: NoisySum, labels: int) -> Callable[[np.random.Generator], int]:
    """Returns a function that draws a length in words by the opened histogram, which stands behind counts of labels."""
    draw = draw_lengths(run, replace(opened, values=opened.values[labels:]))
    return lambda rng: draw(Random(int(rng.integers(2**62))))


def words_request(setting: Setting) -> SumRequest:
    """Returns the request that counts words."""
    labels = len(setting.labels)
    cells = min(FORM.words_of_label * labels, max(FORM.most_words, labels))
    return SumRequest(WORDS, LabelWords(cells, labels, FORM.distinct), FORM.part_words)


def votes_request(setting: Setting, name: str, texts: int, sums: int) -> SumRequest:
    """Returns one of ``sums`` requests that vote on examples, among as many of ``texts`` as are voted on."""
    labels = len(setting.labels)
    q = max(1, int(FORM.voted_for * min(texts // labels, FORM.voted_on)))
    votes = EqualVotes(q=q, candidates=min(texts, FORM.voted_on * labels), labels=labels)
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
    found: dict[str, Signal] = {}
    names = wanted(options, setting)
    for part in (WORDS, EXAMPLES):  # Examples get the words' budget if words are not asked.
        if part in names:
            planned = requests(names - found.keys())
            signals = zip(planned, _signals(planned, setting), strict=True)
            noise = [signal for request, signal in signals if _part(request) == part and signal.is_noise]
            if noise:
                found[part] = noise[0]
    return found


def heard(requests: Requests, options: FormOptions, setting: Setting) -> Sequence[SumRequest]:
    """Returns the sums to ask: without the questions about form whose answers would be noise."""
    return requests(wanted(options, setting) - left_out(requests, options, setting).keys())


def _part(request: SumRequest) -> str:
    if request.name.startswith("votes/"):
        return EXAMPLES
    return request.name


def notes(requests: Requests, options: FormOptions, setting: Setting) -> list[str]:
    """Returns a sentence on each question about form that is wanted and not asked, for whoever plans a run."""
    records = setting.expected_records
    told = [
        f"method.{part}: not asked, its answer would be noise ({signal}, of {records} records in"
        f" {len(setting.labels)} labels). It is asked from {signal.least_records(records)} records on"
        " (privacy.expected_records)."
        for part, signal in left_out(requests, options, setting).items()
    ]
    if _named(options, setting) and not wanted(options, setting):
        told.append("No lengths, words or examples are asked: all texts were written before, whatever a prompt says.")
    return told


# Words: a public list for each label, ordered by public texts.


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
        """True if the ``records`` of each label, float64 [C], are expected to tell any word from noise of ``sigma``.

        A word that tells of a label is expected in a quarter of the records of the labels that read it.
        """
        readers = np.zeros(len(self.listed))
        for row, of_label in zip(self.order, records, strict=True):
            readers[row[row != NOTHING]] += of_label
        return bool(self.listed) and TELLING * float(readers.max()) >= least_count(sigma, len(self.listed))

    def inputs(self, run: RunContext) -> list[Input]:
        """Returns the public inputs of the sum that counts them."""
        order = run.publish_numbers("order", self.order.astype(np.float64))
        return [run.publish_texts("words", self.listed), order]

    def frequent(self, opened: NoisySum) -> "list[Frequent]":
        """Returns each label's words whose counts are above what noise alone reaches, with their counts."""
        counts = opened.natural[: len(self.listed)]
        stand = counts >= max(1.0, least_count(opened.sigma, len(self.listed)))
        cells = [[int(cell) for cell in row if cell != NOTHING and stand[cell]] for row in self.order]
        return [Frequent(tuple(self.listed[cell] for cell in own), counts[own]) for own in cells]


@dataclass(frozen=True, eq=False)
class Frequent:
    """Frequent words of a label, and their noisy counts, float64, positive."""

    terms: tuple[str, ...] = ()
    counts: Float64 = field(default_factory=lambda: np.zeros(0))

    def draw(self, rng: np.random.Generator) -> tuple[str, ...]:
        """Draws words of a prompt without replacement, by their counts."""
        if not self.terms:
            return ()
        size = min(FORM.terms, len(self.terms))
        chosen = rng.choice(len(self.terms), size, replace=False, p=self.counts / self.counts.sum())
        return tuple(self.terms[place] for place in chosen)


def telling(texts: Sequence[str], label_of: Int64, labels: int) -> tuple[list[str], Float64]:
    """Returns the words of labelled public texts and how much each tells about each label, float64 [words, C].

    It is the log-odds that a text of the label has the word, over those of the other labels' texts, in standard errors
    (Monroe, Colaresi, Quinn 2008); minus infinity where its odds are not ``least_odds`` times the others'.
    """
    number: dict[str, int] = {}
    places: list[tuple[int, int]] = []
    for text, label in zip(texts, label_of.tolist(), strict=True):
        mine = sorted({word for word in words(text) if _is_listed(word)})
        places += [(number.setdefault(word, len(number)), label) for word in mine]
    having = np.zeros((len(number), labels))
    np.add.at(having, tuple(np.array(places, dtype=np.int64).reshape(-1, 2).T), 1.0)
    of_label = np.bincount(label_of, minlength=labels)
    others, of_others = having.sum(axis=1, keepdims=True) - having, of_label.sum() - of_label
    odds = np.log((having + PRIOR) / (of_label - having + PRIOR))
    odds -= np.log((others + PRIOR) / (of_others - others + PRIOR))
    scores = odds / np.sqrt(1.0 / (having + PRIOR) + 1.0 / (others + PRIOR))
    return list(number), np.where((having > 0) & (odds >= np.log(FORM.least_odds)), scores, -np.inf)


def _is_listed(word: str) -> bool:
    """True for letters alone that a party reads as this one word: a few letters fold into others when read twice."""
    return len(word) >= SHORTEST_WORD and word.isalpha() and (word.isascii() or words(word) == [word])


def word_lists(texts: Sequence[str], label_of: Int64, apart: Bools, cells: int) -> WordLists:
    """Chooses the words to count: those that tell for a label in public texts, the most telling first.

    Args:
        apart: labels that have a list of their own, bool [C]; the others share one.
        cells: words to count in all, at most.
    """
    labels = len(apart)
    vocabulary, scores = telling(texts, label_of, labels)
    ranked = [[int(n) for n in np.argsort(-scores[:, label], kind="stable")] for label in range(labels)]
    told = [[n for n in row if scores[n, label] > -np.inf] for label, row in enumerate(ranked)]
    first = [row[: cells // labels] for row in told]
    shared = {n for label in np.flatnonzero(~apart) for n in first[label]}
    place: dict[tuple[int, int], int] = {}
    rows = []
    for label in range(labels):
        mine = first[label] if apart[label] else [n for n in told[label] if n in shared][: LARGEST_ORDER // labels]
        group = label if apart[label] else NOTHING
        rows.append([place.setdefault((group, n), len(place)) for n in mine])
    order = np.full((labels, max(1, max(map(len, rows)))), NOTHING)
    for label, row in enumerate(rows):
        order[label, : len(row)] = row
    return WordLists(tuple(vocabulary[n] for _, n in place), order)


def labels_apart(records: Float64, sigma: float, cells: int) -> Bools:
    """Marks the labels whose ``records``, float64 [C], are enough for a list of their own, bool [C]."""
    enough: Bools = TELLING * records >= least_count(sigma, cells)
    return enough


def counted_words(run: RunContext, samples: Sequence[Sample], chosen: Bools, records: Float64) -> list[Frequent]:
    """Opens the counts of words of ``samples``, of one answer and the name of each label; returns what is no noise.

    Args:
        chosen: generators of each label, bool [K, C], the first of which that writes to order is asked for words.
        records: estimated number of records of each label, float64 [C].
    """
    setting, planned = run.setting, run.planned(WORDS)
    writing = np.array([name not in setting.recorded for name in setting.generators])[:, None]
    asked = np.where((chosen & writing).any(axis=0), chosen & writing, writing).argmax(axis=0)
    orders = [
        Order(setting.generators[writer], "vocabulary", label, words=FORM.words_of_label)
        for writer, label in zip(asked.tolist(), setting.labels, strict=True)
    ]
    public = [*samples, *(answer for answer in run.write("words", 0, orders) if answer is not None)]
    names = [readable_label(name) for name in setting.labels]  # words of its name tell about a label
    texts = [*(each.text for each in public), *names]
    label_of = np.concatenate([run.label_numbers(public), np.arange(len(names))])
    apart = labels_apart(records, planned.sigma, planned.dimension)
    lists = word_lists(texts, label_of, apart, planned.dimension)
    if lists.are_told(records, planned.sigma):
        frequent = lists.frequent(run.private_sum(WORDS, lists.inputs(run)))
        remark = words_remark(lists, frequent, int(apart.sum()))
    else:
        frequent = [Frequent() for _ in setting.labels]
        remark = (
            f"Words: not asked. Of about {records.sum():.0f} records, too few read one of the {len(lists.listed)} words"
            " that public texts name for its count to stand above the noise."
        )
    run.record("words", 0, {name: list(own.terms) for name, own in zip(setting.labels, frequent, strict=True)})
    run.record("remarks", 0, remark)
    return frequent


def words_remark(lists: WordLists, frequent: Sequence[Frequent], apart: int) -> str:
    """Returns the sentence for the report on how many words the records have."""
    different = {term for own in frequent for term in own.terms}
    shared = len(frequent) - apart
    who = "Labels with few records share" if apart else "All labels share"
    sharing = f" {who} one list." if shared else ""
    return (
        f"Words: of {len(lists.listed)} that public texts name, {len(different)} stand in more of the hospitals'"
        f" records than noise explains, and prompts name some of them.{sharing}"
    )


# Examples: votes of the records among texts that have form and words.


def voted_examples(run: RunContext, name: str, samples: Sequence[Sample], first: int) -> list[list[str]]:
    """Opens the votes for texts of each label and returns those with the most; none where the votes are noise.

    Args:
        first: round from which on texts have form. Earlier ones are voted on where a label has few.
    """
    labels, rng = len(run.setting.labels), run.rng(name)
    label_of = run.label_numbers(samples)
    candidates: list[Sample] = []
    for label in range(labels):
        own = rng.permutation(np.flatnonzero(label_of == label)).tolist()
        own.sort(key=lambda row: samples[row].round < first)
        candidates += [samples[row] for row in sorted(own[: FORM.voted_on])]
    inputs, shown = run.publish_samples("candidates", name, candidates[: run.planned(name).dimension])
    label_of = run.label_numbers(shown)
    correction = hubness_correction(run.embeddings(shown), label_of)
    opened = run.private_sum(name, [inputs, run.publish_numbers("hubness correction", correction)])
    votes = opened.natural[: len(shown)]
    if float(votes.std()) < opened.sigma:
        return [[] for _ in range(labels)]
    rows = [np.flatnonzero(label_of == label) for label in range(labels)]
    return [[shown[row].text for row in highest(votes, own, round(FORM.best * len(own)))] for own in rows]
