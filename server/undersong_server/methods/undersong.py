"""Undersong: the records say who writes, what is written, and which texts stay; docs/method.md has the pseudo-code.

A text that the records do not support is not published, and what is missing is written anew. A choice stands if the
records' verdict finds it better than all texts that are left, cleaned, by half a standard error. Otherwise those are
the corpus: a label goes only if embeddings and words contradict it, where the method ``cleaned-mixture`` asks
embeddings alone. One generator leaves nobody to choose: there, and where more is written than published, the records
judge the labels of the texts, by where those of each label lie. The verdict's sum also tells how good the corpus is.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_common.printable import joined
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.statistics import EmbeddingSum
from undersong_protocol.statistics.classifier_votes import (
    SQUARE,
    ClassifierVotesInBlocks,
    CorpusComparison,
    ScoredComparison,
)
from undersong_protocol.statistics.histogram import COLUMNS, VALUES, AttributeMarginals, LabelHistogram
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.similarity import ScoredSimilarity
from undersong_protocol.statistics.votes import EqualVotes, hubness_correction
from undersong_server import learning
from undersong_server.methods.cleaned_mixture import DROPPED, cleaned
from undersong_server.methods.interface import (
    Input,
    Method,
    MethodOptions,
    NoisySum,
    Order,
    RunContext,
    Sample,
    Setting,
    SumRequest,
)
from undersong_server.methods.parts import form, private_score, shares, support
from undersong_server.methods.parts.constants import constant
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.schedules import Counts, one_value_a_round, total
from undersong_server.methods.parts.selection import (
    highest,
    largest_remainder,
    places_by_label,
    sample_without_replacement,
)
from undersong_server.methods.parts.weighing import weigh_generators
from undersong_server.methods.parts.words import STRENGTH, word_classifier, word_rows

CLEANED = "without those whose label is doubtful"  # in the report's words


class Options(MethodOptions):
    """Options of the method ``undersong``: its [method] keys.

    Attributes:
        samples: texts published, at most; or a list with those of each round, whose sum is published at most.
        written: texts ordered for each text published, at least. It multiplies the calls and their price.
        rounds: of writing, of equally many texts; with the last, what is then missing. After each but the last,
            generators or examples are chosen.
        score: measures on the records how good the corpus is, in the verdict's sum; without labels in its own.
        label_shares: of the corpus: half-way between equal shares and the records' ("half"), the "records"' own,
            "even", or a table with a number for each label.
        lengths: orders texts as long as the records' are, by a histogram beside that of the labels.
        words: orders texts with words that the records of their label have, of those that public texts name.
        voted_examples: texts of its label in a prompt, which the records vote for; 0 for none. Without labels, 0 means
            four.
    """

    samples: Counts = 6000  # type: ignore[assignment] # a schedule may stand for the number
    written: Annotated[int, Field(ge=1, le=20)] = 1
    rounds: Annotated[int, Field(ge=2)] = 3
    score: bool = True
    label_shares: shares.LabelShares = "half"
    lengths: bool = False
    words: bool = False
    voted_examples: Annotated[int, Field(ge=0, le=16)] = 0

    _schedules = one_value_a_round

    @property
    def published(self) -> int:
        """Most texts of the corpus."""
        return total(self.samples)

    @property
    def examples(self) -> int:
        """Most texts in a prompt, by which a plan estimates what prompts cost."""
        return self.voted_examples

    def per_round(self, growing: bool = False) -> list[int]:
        """Number of texts to order in each round; ``growing`` if the first ones serve to choose words.

        A schedule decides it in any case.
        """
        if isinstance(self.samples, tuple):
            return [count * self.written for count in self.samples]
        parts = np.arange(1.0, self.rounds + 1) if growing else np.ones(self.rounds)
        return [int(n) for n in largest_remainder(parts, self.samples * self.written)]

    def most_anew(self, generators: int) -> int:
        """Largest number of texts to order in place of those that are set aside, dropped or never came."""
        share = TUNING.anew_of_several if generators > 1 else TUNING.anew_of_one
        return round(share * self.published)


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the sums of a run, with their parts of the budget.

    The expected number of records decides only if words and examples are asked for: an answer that would be noise is
    not.
    """
    shares.check_named(options.label_shares, setting.labels)
    return list(form.heard(partial(requests, options, setting), options, setting))


def requests(options: Options, setting: Setting, wanted: Collection[str]) -> list[SumRequest]:
    """Returns the sums of a run that asks the ``wanted`` questions about form."""
    generators, labels = len(setting.generators), len(setting.labels)
    asked: list[SumRequest] = []
    if form.LENGTHS in wanted:
        part = TUNING.part_labels * bool(labels) + form.FORM.part_lengths
        asked.append(SumRequest("labels", form.counted(setting), part))
    elif labels or setting.attributes:
        counted = attribute_marginals(setting) if setting.attributes else LabelHistogram(labels)
        asked.append(SumRequest("labels", counted, TUNING.part_labels))
    several = labels > 1 and generators > 1
    if labels > 1 and (generators == 1 or options.written > 1):
        located = EmbeddingSum(embedders.dimension(setting.embedder), labels)
        asked.append(SumRequest("centres", located, TUNING.part_centres))
    sizes = options.per_round(form.WORDS in wanted)
    shown = range(form.WORDS in wanted, options.rounds - 1) if form.EXAMPLES in wanted else range(0)
    for t, size in enumerate(np.cumsum(sizes)[:-1].tolist()):
        if not t and generators > 1:
            asked.append(SumRequest("support", support.statistic(setting, size), TUNING.part_support))
        if several and size >= TUNING.texts_judged * generators * labels:
            judged = ClassifierVotesInBlocks(generators, labels)
            asked.append(SumRequest(f"who/{t + 1}", judged, TUNING.part_who / (options.rounds - 1)))
        if form.WORDS in wanted and not t:
            asked.append(form.words_request(setting))
        if t in shown:
            asked.append(form.votes_request(setting, f"votes/{t + 1}", size, len(shown)))
        if labels < 2:
            part = TUNING.part_examples / (options.rounds - 1)
            q = max(1, min(TUNING.votes, size // TUNING.texts_per_vote))
            asked.append(SumRequest(f"votes/{t + 1}", EqualVotes(q=q, candidates=size, labels=labels), part))
    if labels > 1 and (options.score or len(asked) > 1):  # there is a corpus to score, or a choice to judge
        compared = ScoredComparison(labels) if options.score else CorpusComparison(labels)
        asked.append(SumRequest("verdict", compared, TUNING.part_verdict))
    elif labels < 2 and options.score:
        most = options.published * options.written + options.most_anew(generators)
        asked.append(SumRequest("score", ScoredSimilarity(most), TUNING.part_score))
    return asked


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the corpus."""
    return publish(RunState(options, run, [request.name for request in plan(options, run.setting)]))


def publish(state: "RunState") -> Sequence[Sample]:
    """Takes all steps of a run. Returns the corpus. The comments have the numbers of the steps in docs/method.md."""
    # 1. What: the labels' shares, those of the attributes' values, and where the records of each label lie.
    state.count_labels()
    state.open_centres()
    for t, count in enumerate(state.options.per_round(form.WORDS in state.asked)):
        # 2. Write: all generators alike first, later the chosen ones, with examples where votes were asked.
        state.run.record("weights", t, (state.weights @ state.shares).tolist())
        state.write(f"round {t + 1}", t, count)
        # 2.4. Support: generators whose texts lie where no record lies write no more, and their texts are set aside.
        if not t and "support" in state.asked:
            state.ask_support()
        # 3. Who: the generators that the records cannot tell from the best.
        if f"who/{t + 1}" in state.asked:
            state.choose_generators(f"who/{t + 1}")
        # 4. What it looks like: words of the records, and examples among the texts that have them.
        if not t and form.WORDS in state.asked:
            state.count_words()
        if f"votes/{t + 1}" in state.asked:
            state.choose_examples(f"votes/{t + 1}", t)
    # 5., 6. Which, for the corpus: the chosen generators' texts, under the labels that the records' centres find
    # likeliest, or cleaned in public. What is missing is written anew.
    ours = state.completed()
    # 5. Public cleaning of everything that is not set aside: this run's mixture.
    mixture = state.at_most(state.cleaned(state.not_aside()))
    # 7. The verdict: the choice stands if it is better than all texts that are left, cleaned.
    if "verdict" in state.asked:
        ours = state.by_verdict(mixture, ours)
    elif "score" in state.asked:
        state.score_by_similarity(ours)
    state.report_set_aside(ours)
    return state.samples(ours)


@dataclass
class LabelRows:
    """Positions of texts in the pool, int64 [n], and the label of each, int64 [n]."""

    position: Int64
    label_of: Int64


class RunState:
    """Decisions of one run of the method so far, and the steps that make them.

    Attributes:
        asked: names of the planned sums.
        shares: share of each label, float64 [C]; rare: labels that lose no text by a choice, bool [C].
        records: estimated number of records of each label, float64 [C].
        chosen: generators for each label, bool [K, C]; weights: their parts of what is written, float64 [K, C].
        spent: the generator has no more texts of the label, bool [K, C].
        examples: texts for the next round's prompts, of each label.
    """

    def __init__(self, options: Options, run: RunContext, asked: Sequence[str]) -> None:
        self.options, self.run, self.asked = options, run, asked
        self.form = form.wanted(options, run.setting)
        generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
        self.shares, self.records = np.full(labels, 1.0 / labels), np.ones(labels)
        self.rare: Bools = np.zeros(labels, dtype=np.bool_)
        self.values: list[list[Float64]] = [[]] * labels  # of each label, the shares of each attribute's values
        self.chosen = np.ones((generators, labels), dtype=np.bool_)
        self.weights = np.full((generators, labels), 1.0 / generators)
        self.by_label = True  # holds until the records show that generators differ alike on all labels
        self.spent: Bools = np.zeros((generators, labels), dtype=np.bool_)
        self.examples: list[list[str]] = [[] for _ in range(labels)]
        self.frequent = [form.Frequent()] * labels  # words of each label, which the records have
        self.draw_length: Callable[[np.random.Generator], int] | None = None
        self.centres: NoisySum | None = None
        self.support: support.Support | None = None
        # Of the pool at the last judgement; it has no text before the first one.
        self._judgement = support.Judgement([], np.zeros(generators, dtype=np.bool_))
        # The number of records of the parties of a sum that counted them, with its standard deviation.
        self.counted: dict[frozenset[str], tuple[float, float]] = {}

    def count_labels(self) -> None:
        """Opens the histogram of labels, and of attributes beside it."""
        if "labels" not in self.asked:
            return
        labels = len(self.run.setting.labels)
        if form.LENGTHS in self.form:
            opened = self.run.private_sum("labels", [form.length_edges(self.run)])
            self.draw_length = form.length_drawer(self.run, opened, labels)
        else:
            opened = self.run.private_sum("labels", attribute_inputs(self.run))
            self.values = [attribute_shares(self.run, opened.natural[labels:])] * max(1, labels)
        if labels:
            self.take_label_counts(replace(opened, values=opened.values[:labels]))

    def take_label_counts(self, counts: NoisySum) -> None:
        """Takes the noisy number of records of each label for the shares of the corpus."""
        half = shares.label_shares(counts)
        self.shares = shares.wanted_shares(self.options.label_shares, half, self.run.setting.labels)
        self.rare = self.shares < TUNING.rare / len(half)
        self.records = shares.records_shares(half) * shares.records_of(counts)
        error = float(counts.sigma * np.sqrt(len(half)))
        self.counted[frozenset(counts.survivors)] = float(self.records.sum()), error
        self.run.record("label shares", 0, self.shares.tolist())

    def open_centres(self) -> None:
        """Opens the sum of the embeddings of each label's records."""
        if "centres" in self.asked:
            self.centres = self.run.private_sum("centres", [])

    def write(self, step: str, t: int, count: int) -> None:
        """Orders ``count`` texts in round ``t``, so that all texts come near to the shares of labels and generators."""
        run, published = self.run, self._table(self.not_aside()) * self.chosen
        wanted = shares.to_write(published, self.weights, self._shares_with_rare(published, count), self.spent, count)
        before, rng = self._table(), run.rng(step)
        run.generate(step, t, self._orders(wanted, rng))
        self._drop(~self.judgement().left_out[:, None])
        run.state_corpus(t, self.samples_left())
        self.spent |= shares.spent(wanted, self._table() - before)
        if not len(run.pool):
            raise ConfigurationError("the generators wrote no text in the first round", "look at their counts above")

    def _shares_with_rare(self, published: Int64, count: int) -> Float64:
        """Label shares of what is published after ``count`` more texts: a rare label has as many as in the mixture."""
        after, planned = published.sum() + count, len(self.run.pool) + count
        found = self.shares.copy()
        found[self.rare] *= planned / after
        found[~self.rare] *= (1.0 - found[self.rare].sum()) / max(1e-9, float(found[~self.rare].sum()))
        return found.clip(min=0.0)

    def _orders(self, wanted: Int64, rng: np.random.Generator) -> list[Order]:
        return [
            self._order(generator, label, rng)
            for k, generator in enumerate(self.run.setting.generators)
            for label in np.repeat(np.arange(wanted.shape[1]), wanted[k]).tolist()
        ]

    def _order(self, generator: str, label: int, rng: np.random.Generator) -> Order:
        setting, recorded = self.run.setting, generator in self.run.setting.recorded
        name, worded = (setting.labels or ("",))[label], bool(self.form) and len(setting.labels) > 1
        if worded and recorded:
            return Order(generator, "zero_shot", name)
        named = drawn_attributes(setting, self.values[label], rng)
        terms = attribute_terms(setting, named) or self.frequent[label].draw(rng)
        good = sample_without_replacement(rng, self.examples[label], self.options.voted_examples or TUNING.examples)
        kind = "worded" if worded else "contrast" if good else "metadata"
        words = None if self.draw_length is None or recorded else self.draw_length(rng)
        return Order(
            *(generator, kind if terms or good else "zero_shot", name),
            good=good,
            terms=terms,
            attributes=named,
            words=words,
            bounded=words is not None,
        )

    def ask_support(self) -> None:
        """Opens the votes for each generator's texts; those that the records do not support write no more."""
        self.support = support.ask(self.run, "support", self.records / self.records.sum())
        counted = self.support.records, self.support.records_error
        self.counted.setdefault(frozenset(self.support.survivors), counted)
        self._drop(~self.judgement().left_out[:, None])

    def _drop(self, stays: Bools) -> None:
        """Keeps the chosen generators that stay, bool [K, C] or [K, 1], with equal weights; of none, all that stay."""
        left = self.chosen & stays
        if (left != self.chosen).any():
            self.chosen = np.where(left.any(axis=0), left, stays)
            self.weights = self.chosen / self.chosen.sum(axis=0)

    def judgement(self) -> support.Judgement:
        """Texts so far that are set aside."""
        pool = self.run.pool
        if self.support is None:
            return support.Judgement([""] * len(pool), np.zeros(len(self.chosen), dtype=np.bool_))
        if len(self._judgement.reasons) != len(pool):
            texts, rng = [sample.text for sample in pool.samples], self.run.rng("support folds")
            self._judgement = support.judgement(self.support, texts, pool.generator_of, rng)
        return self._judgement

    def not_aside(self) -> Int64:
        """Positions of the texts that are not set aside."""
        return np.array([row for row, reason in enumerate(self.judgement().reasons) if not reason], dtype=np.int64)

    def samples_left(self) -> list[Sample]:
        """The samples that are not set aside."""
        return [self.run.pool.samples[row] for row in self.not_aside()]

    def completed(self) -> LabelRows:
        """The chosen texts; where they are fewer than ``samples``, the chosen generators write what is missing."""
        ours, left = self.chosen_texts(), self.options.most_anew(len(self.chosen))
        turn = 0
        while left > 0 and (missing := self.options.published - len(ours.position)) > 0:
            turn += 1
            before, count = len(self.run.pool), min(left, missing + turn)  # a few of the new ones are dropped too
            self.write(f"anew {turn}", self.options.rounds - 1, count)
            if len(self.run.pool) == before:
                break
            ours, left = self.chosen_texts(), left - count
        return self.at_most(ours)

    def report_set_aside(self, ours: LabelRows) -> None:
        """Records the texts that are set aside, with their reasons, and what is missing, for the files and the card."""
        if self.support is not None:
            support.record_set_aside(self.run, self.support, self.run.pool.samples, self.judgement().reasons)
        if (missing := self.options.published - len(ours.position)) > 0:
            why = "the generators gave no more different texts that fit"
            self.run.record("remarks", 0, f"{missing} of {self.options.published} texts are missing: {why}.")

    def choose_generators(self, name: str) -> None:
        """Opens how often each generator's classifier is right on the records; drops those clearly below the best.

        It also decides whether the choice is made label by label. ``name``: of the planned sum.
        """
        run, generators, labels = self.run, *self.chosen.shape
        x, label_of, author = self._texts()
        heads = learning.classifiers(x, label_of, author, generators, self.shares, TUNING.strength)
        block_of = np.arange(labels) * self.by_label
        inputs = [run.publish_numbers("classifiers", heads), run.publish_numbers("blocks", block_of.astype(float))]
        found = usefulness(run.private_sum(name, inputs), block_of, self.records, self._table())
        self.by_label = found.by_label
        self._drop(found.chosen(self.chosen))

    def count_words(self) -> None:
        """Opens the counts of the public words of each label; what is no noise enters prompts."""
        self.frequent = form.counted_words(self.run, self.samples_left(), self.chosen, self.records)

    def choose_examples(self, name: str, t: int) -> None:
        """Opens votes for texts so far and chooses examples by them; without labels, weights of generators too.

        ``t`` is the round whose texts were written last.
        """
        if len(self.shares) > 1:
            first = int(form.WORDS in self.asked)
            self.examples = form.voted_examples(self.run, name, self.samples_left(), first)
            return
        correction, author = hubness_correction(*self._texts()[:2]), self.run.pool.generator_of
        inputs = [self.run.publish_pool(), self.run.publish_numbers("hubness correction", correction)]
        opened = self.run.private_sum(name, inputs)
        votes = opened.natural[: len(author)]  # later coordinates, of texts that were not written, hold noise only
        size = min(TUNING.shortlist, round(TUNING.kept_share * len(votes)))
        heard = float(votes.std()) >= opened.sigma
        self.examples = [self.run.pool.texts_of(highest(votes, np.arange(len(votes)), size)) if heard else []]
        weighed = weigh_generators(votes, author, self.chosen[:, 0], opened.sigma)
        if weighed is not None:
            self.weights = weighed[0][:, None]
            self.run.record("weights noise", t + 1, weighed[1].tolist())

    def chosen_texts(self) -> LabelRows:
        """The chosen generators' texts: under the labels that the centres find likeliest, or cleaned in public.

        Of more texts than may be published the likeliest of each label are kept.
        """
        position = self.published()
        if self.centres is None:
            return self.cleaned(position)
        x, label_of, _ = self._texts(position)
        judged = by_centres(self.centres, self.records, x, label_of, self.rare)
        kept = np.arange(len(position))
        if len(position) > self.options.published:
            there = np.bincount(judged.label_of, minlength=len(self.shares))
            most = places_by_label(there, self.shares, self.options.published)
            of_label = [np.flatnonzero(judged.label_of == label) for label in range(len(most))]
            likeliest = [highest(judged.probability, own, size) for own, size in zip(of_label, most, strict=True)]
            kept = np.sort(np.concatenate(likeliest))
        return LabelRows(position[kept], judged.label_of[kept])

    def by_verdict(self, mixture: LabelRows, ours: LabelRows) -> LabelRows:
        """Opens the verdict on ``ours`` against the mixture. Returns the one to publish, and says why in the report."""
        labels, heads, by_words = len(self.shares), [], []
        for rows in (mixture, ours):
            embeddings, words = self._texts(rows.position)[0], word_rows(self.run.pool.texts_of(rows.position))
            heads.append(learning.classifier(embeddings, rows.label_of, labels, strength=TUNING.strength))
            by_words.append(word_classifier(words, rows.label_of, labels))
        # Both classifiers of each corpus, on the public grid.
        inputs = [
            self.run.publish_numbers("heads", COEFFICIENTS.quantised(np.stack(heads))),
            self.run.publish_numbers("word classifiers", COEFFICIENTS.quantised(np.stack(by_words))),
        ]
        opened = self.run.private_sum("verdict", inputs)
        counted = self.counted.get(frozenset(opened.survivors))
        records, records_error = counted or (float(self.records.sum()), 0.0)
        gain = gain_of(opened, records)
        differ = not (
            np.array_equal(mixture.position, ours.position) and np.array_equal(mixture.label_of, ours.label_of)
        )
        facts = {"gain": gain.value, "error": gain.error, "taken": gain.certain(), "compared": differ}
        self.run.record("verdict", 0, facts)
        # The sum of fewer hospitals than were counted, over the number of all of them, would be no share of records.
        if self.options.score and counted:
            measured = private_score.score_of(opened, records, records_error, second=gain.certain())
            self.run.record(private_score.RECORD, 0, measured.to_json())
        self.run.record("remarks", 0, self._remark(gain if differ else None, records))
        if gain.certain():
            return ours
        return mixture

    def score_by_similarity(self, ours: LabelRows) -> None:
        """Opens how near the records' nearest texts are: of ``ours``, and of round 1, which no record has steered."""
        samples = self.run.pool.samples
        published = np.isin(np.arange(len(samples)), ours.position)
        unsteered = np.array([sample.round == 0 for sample in samples])
        measured = private_score.similarity_score(self.run, "score", published, unsteered)
        self.run.record(private_score.RECORD, 0, measured.to_json())

    def _remark(self, gain: "Gain | None", records: float) -> str:
        """Notes for the report: the change that the private records made, beside its noise.

        Args:
            gain: of the records' choice over the mixture; None if both are the same texts under the same labels, where
                the opened sum holds noise only.
            records: estimated number of records in that sum.
        """
        left = "all texts that are not set aside" if any(self.judgement().reasons) else "all texts"
        if gain is None:
            return (
                f"Published: {left}, {CLEANED}. The last question compares the texts and labels that the records choose"
                " with all that are left; here both are the same, so that it compared nothing."
            )
        inside: Bools = self.chosen.max(axis=1)
        names = [name for name, chosen in zip(self.run.setting.generators, inside.tolist(), strict=True) if chosen]
        choice = left if self.chosen.all() else f"the texts of {joined(names)}"
        if not (self.chosen == inside[:, None]).all():
            choice += ", chosen label by label"
        if self.centres is not None:
            choice += ", under the labels that the records find likeliest"
        published = choice if gain.certain() else f"{left}, {CLEANED}"
        more, error = gain.value * records, gain.error * records
        chance = ": this is within chance, so neither is shown to be better" if abs(more) <= 2 * error else ""
        beside = left if self.centres is None else f"{left}, under the labels that they were ordered under, {CLEANED}"
        return (
            f"Published: {published}. Of about {records:.0f} hospital records, a program labels {abs(more):.0f}"
            f" {'more' if more >= 0 else 'fewer'} rightly when it learns from {choice}, than when it learns from"
            f" {beside}, give or take {error:.0f}{chance}."
        )

    def at_most(self, rows: LabelRows) -> LabelRows:
        """Returns as many of the rows as may be published (``samples``), drawn by chance, in ascending order."""
        if len(rows.position) <= self.options.published:
            return rows
        kept = np.sort(self.run.rng("corpus").permutation(len(rows.position))[: self.options.published])
        return LabelRows(rows.position[kept], rows.label_of[kept])

    def published(self) -> Int64:
        """Positions of the chosen generators' texts; a rare label has others too, up to the mixture's number."""
        left = self.not_aside()
        _, label_of, author = self._texts(left)
        inside = self.chosen[author, label_of]
        found = [np.flatnonzero(inside)]
        for label in np.flatnonzero(self.rare):
            missing = round(self.shares[label] * len(inside)) - int((inside & (label_of == label)).sum())
            found.append(np.flatnonzero(~inside & (label_of == label))[: max(0, missing)])
        return left[np.sort(np.concatenate(found))]

    def cleaned(self, position: Int64) -> LabelRows:
        """The texts at ``position`` with their labels after public cleaning; without labels, all of them."""
        x, label_of, author = self._texts(position)
        if len(self.run.setting.labels) < 2:
            return LabelRows(position, label_of)
        words = word_rows(self.run.pool.texts_of(position)), word_classifier
        found = cleaned(x, label_of, author, len(self.shares), self.run.rng("folds"), words)
        return LabelRows(position[found != DROPPED], found[found != DROPPED])

    def samples(self, rows: LabelRows) -> list[Sample]:
        """The samples at ``rows``, under the labels of the rows."""
        names, pool = self.run.setting.labels or ("",), self.run.pool.samples
        return [replace(pool[n], label=names[c]) for n, c in zip(rows.position, rows.label_of, strict=True)]

    def _texts(self, position: Int64 | None = None) -> tuple[Float32, Int64, Int64]:
        """Embeddings, labels and generators of the texts at ``position``; of all if it is None."""
        pool = self.run.pool
        at = np.arange(len(pool)) if position is None else position
        return self.run.embeddings(pool.samples)[at], pool.label_of[at], pool.generator_of[at]

    def _table(self, position: Int64 | None = None) -> Int64:
        pool = self.run.pool
        rows = np.arange(len(pool)) if position is None else position
        return shares.table(pool.generator_of[rows], pool.label_of[rows], *self.chosen.shape)


def generator_calls(options: Options, setting: Setting) -> int:
    """Returns how many texts are ordered at most, one request for words of each label among them."""
    asks_words = form.WORDS in {request.name for request in plan(options, setting)}
    texts = options.published * options.written + options.most_anew(len(setting.generators))
    return texts + asks_words * len(setting.labels)


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
    reads_attributes=True,
    asks_first=lambda options, setting: bool(setting.labels) or options.lengths,
    measures_lengths=lambda options: options.lengths,
    notes=lambda options, setting: form.notes(partial(requests, options, setting), options, setting),
)


# A task's attributes in a method: the sum that counts them, and the values that orders name.


def attribute_marginals(setting: Setting) -> AttributeMarginals:
    """Returns the statistic that counts the records' labels and attributes."""
    sizes = [tuple(len(each.possible) for each in setting.attributes if each.column is kind) for kind in (False, True)]
    return AttributeMarginals(len(setting.labels), *sizes)


def attribute_inputs(run: RunContext) -> list[Input]:
    """Returns the inputs of the sum of :func:`attribute_marginals`: list values embedded, column names and values."""
    inputs, writer = [], run.setting.generators[0]
    lists = [each for each in run.setting.attributes if not each.column]
    texts = [part for each in run.setting.attributes if each.column for part in (each.name, *each.values)]
    if lists:
        values = [Sample(value, "", writer, 0, "value") for each in lists for value in each.values]
        numbers = np.repeat(np.arange(len(lists)), [len(each.values) for each in lists])
        inputs.append(run.publish_vectors(VALUES, "attribute values", run.embeddings(values), numbers))
    if texts:
        return [*inputs, run.publish_texts(COLUMNS, texts)]
    return inputs


def attribute_shares(run: RunContext, counts: Float64) -> list[Float64]:
    """Returns and records each attribute's shares.

    Args:
        counts: noisy counts of all attributes' values, in the sum's order.
    """
    found, before = [], 0
    for each in run.setting.attributes:
        found.append(shares_of_counts(counts[before : before + len(each.possible)]))
        before += len(each.possible)
        run.record(f"shares of {each.name}", 0, found[-1].tolist())
    return found


def drawn_attributes(setting: Setting, of: Sequence[Float64], rng: np.random.Generator) -> tuple[tuple[str, str], ...]:
    """Draws one value of each attribute: (name, value) each; "" is a column's missing value.

    ``of``: shares of each attribute's values, in the order of ``setting.attributes``.
    """
    numbers = [int(rng.choice(len(share), p=share)) for share in of]
    return tuple((each.name, each.possible[n]) for each, n in zip(setting.attributes, numbers, strict=True))


def attribute_terms(setting: Setting, chosen: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the words of a prompt: a list's value, a column's name with its value, nothing of a missing one."""
    columns = {each.name for each in setting.attributes if each.column}
    return tuple(f"{name} {value}" if name in columns else value for name, value in chosen if value)


# Choices of the method, and their constants.


@dataclass(frozen=True)
class Constants:
    """Constants of the method. ``TUNING`` is the only instance that runs use."""

    part_labels: float = constant(2.0, "part", "label shares need little precision")
    part_who: float = constant(5.0, "part", "its noise is spread over labels")
    part_verdict: float = constant(3.0, "part", "noise below the chance of 300 records' answers")
    part_score: float = constant(1.0, "part", "a mean of all records needs little")
    part_support: float = constant(2.0, "part", "a quarter of a generator's share is far from none")
    part_examples: float = constant(2.0, "part, over all rounds", "examples only steer the prompts")
    part_centres: float = constant(6.0, "part", "its noise is spread over coordinates")
    axes: int = constant(80, "directions", "40 gave a point less, 20 three")
    trust: float = constant(0.5, "probability", "of the label that a text was ordered for")
    votes: int = constant(8, "votes per record", "the noise per vote is 1 / sqrt(8)")
    texts_per_vote: int = constant(5, "texts", "a record votes for a fifth of them at most")
    texts_judged: int = constant(3, "texts of a generator and label", "with fewer a classifier tells of luck")
    tie: float = constant(1.0, "standard errors", "a generator nearer to the best is not told from it and stays")
    answer_variance: float = constant(
        0.12, "per record", "of a centred answer; classifiers differ on about half of the records"
    )
    training_variance: float = constant(
        0.08, "of accuracy, times the generator's texts", "which texts it happened to write"
    )
    by_label_variance: float = constant(0.1, "of accuracy", "0.02 to 0.03 where a label tied to a style harmed")
    certainty: float = constant(0.5, "standard errors of the gain", "below it all texts stay, cleaned")
    anew_of_several: float = constant(0.5, "of `samples`", "most texts written anew, of several generators")
    anew_of_one: float = constant(0.1, "of `samples`", "most texts written anew, of one generator")
    kept_share: float = constant(0.3, "of the texts", "the best share in a live prototype")
    rare: float = constant(0.5, "of an equal share", "a label below it loses no text to the choice")
    examples: int = constant(4, "texts in a prompt", "fits the context of a small model")
    shortlist: int = constant(32, "texts", "that examples are drawn from")
    strength: float = constant(STRENGTH, "inverse regularisation (C)", "that of the panel's words")


TUNING = Constants()


# Choice of generators by how well the classifiers of their texts label the records; docs/method.md, step 3.


class GeneratorUsefulness(NamedTuple):
    """Accuracy of each generator's classifier less the generators' mean, and its variance: float64 [K, C] each.

    ``by_label`` is True if generators differ so much from label to label that each label chooses its own.
    """

    gains: Float64
    variance: Float64
    by_label: bool

    def chosen(self, among: Bools) -> Bools:
        """Marks the generators of ``among``, bool [K, C], that are not clearly worse than its best of each label."""
        gains = np.where(among, self.gains, -np.inf)
        best, column = gains.argmax(axis=0), np.arange(gains.shape[1])
        apart = self.variance + self.variance[best, column]
        found: Bools = among & (gains[best, column] - gains <= TUNING.tie * np.sqrt(apart))
        return found


def usefulness(opened: NoisySum, block_of: Int64, records_of_label: Float64, texts: Int64) -> GeneratorUsefulness:
    """Estimates the generators' usefulness from the opened sum of centred answers, C blocks of K.

    Args:
        block_of: the block of each label, int64 [C]: 0 for every label, or the label's own number.
        records_of_label: estimated number of records of each label, float64 [C], positive.
        texts: number of texts that each generator wrote of each label, int64 [K, C].
    """
    labels, records = len(records_of_label), float(records_of_label.sum())
    blocks = int(block_of.max()) + 1
    answers = opened.natural.reshape(labels, -1).T[:, :blocks]  # the other blocks hold noise alone
    noise_variance = (opened.sigma / records) ** 2
    whole = answers.sum(axis=1) / records
    written = np.maximum(texts, 1)
    luck = TUNING.training_variance / written.sum(axis=1)
    variance = blocks * noise_variance + TUNING.answer_variance / records + luck
    if blocks > 1:
        each = answers / records_of_label
        apart = (opened.sigma / records_of_label) ** 2 + TUNING.answer_variance / records_of_label
        apart = apart + TUNING.training_variance / written
        left = each - whole[:, None]
        different = float((left**2 - apart).mean())
        if different > TUNING.by_label_variance:
            return GeneratorUsefulness(each, apart, True)
    return GeneratorUsefulness(
        np.repeat(whole[:, None], labels, axis=1), np.repeat(variance[:, None], labels, axis=1), False
    )


# Labels of texts, by where the records of each label lie; docs/method.md, step 6.


class JudgedLabels(NamedTuple):
    """Likeliest label of each text, int64 [n], and its probability, float64 [n]."""

    label_of: Int64
    probability: Float64


@one_library_thread()
def by_centres(centres: NoisySum, records: Float64, x: Float32, label_of: Int64, rare: Bools) -> JudgedLabels:
    """Judges texts by noisy sums of the embeddings of each label's records, and by the label they were ordered for.

    A label's texts are normal around its centre, alike in all directions. A centre is the mean of its records, less the
    mean of all, along the main axes of the texts, and is shrunk by its noise.

    Args:
        centres: the opened sums, [C x d]; ``records`` of each label, float64 [C].
        x, label_of: embeddings of the texts, float32 [n, d], and the labels that they were ordered for, int64 [n].
        rare: labels whose texts keep them, bool [C].
    """
    from scipy.special import softmax

    labels, rows = len(records), np.arange(len(label_of))
    sums = centres.natural.reshape(labels, -1)
    apart = x - x.mean(axis=0, dtype=np.float64)
    axes = np.linalg.eigh(apart.T @ apart)[1][:, ::-1][:, : min(TUNING.axes, max(1, len(x) - 1))]
    centre = (sums / records[:, None] - sums.sum(axis=0) / records.sum()) @ axes
    noise = ((centres.sigma / records) ** 2)[:, None]
    signal = max(0.0, float((centre**2 - noise).mean()))
    centre *= signal / np.maximum(signal + noise, 1e-12)
    at = apart @ axes
    spread = max(float(((at - centre[label_of]) ** 2).mean()), 1e-12)
    share = np.bincount(label_of, minlength=labels) / len(label_of)
    ordered = np.repeat((1 - TUNING.trust) * share[label_of, None], labels, axis=1)
    ordered[rows, label_of] += TUNING.trust
    near = (at @ centre.T - (centre**2).sum(axis=1) / 2) / spread
    found = softmax(near + np.log(np.maximum(share, 1e-9)) + np.log(ordered), axis=1)
    likeliest = np.where(rare[label_of], label_of, found.argmax(axis=1))
    return JudgedLabels(likeliest, found[rows, likeliest])


# The records' verdict on two corpora, by a head and a word classifier of each; docs/method.md, step 7.


class Gain(NamedTuple):
    """Gain in accuracy of one corpus over another, and its standard error."""

    value: float
    error: float

    def certain(self) -> bool:
        return self.value > TUNING.certainty * self.error


def gain_of(opened: NoisySum, records: float) -> Gain:
    """Estimates the gain from the opened comparison; its error is from the noise and from ``records`` as a sample."""
    value, square = opened.natural[[0, -1]] / records
    among = max(0.0, float(square) / SQUARE - float(value) ** 2) / records
    return Gain(float(value), float(np.sqrt((opened.sigma / records) ** 2 + among)))
