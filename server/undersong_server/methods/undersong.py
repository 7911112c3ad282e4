"""Undersong: the records say who writes, what is written, and which texts stay; docs/method.md has the pseudo-code.

A text that the records do not support is not published, and what is missing is written anew. A last private sum, the
verdict, compares the chosen texts with all texts that are left, cleaned. The choice stands if it is better by half a
standard error. Otherwise all texts that are left are the corpus, cleaned: a label goes only if embeddings and words
contradict it, where the method ``cleaned-mixture`` asks embeddings alone. With one generator there is none to choose:
then, and if more is written than published, the records judge the labels of the texts by where the records of each
label lie. The verdict also tells how good the corpus is.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.intervals import DIFFERENCE_WORDS, difference_sign
from undersong_common.models import embedders
from undersong_common.printable import joined
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.limits import LARGEST_SUMS
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
    ANEW,
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
    herded_by_label,
    highest,
    largest_remainder,
    places_by_label,
    sample_without_replacement,
)
from undersong_server.methods.parts.weighing import weigh_generators
from undersong_server.methods.parts.words import STRENGTH, word_classifier, word_rows
from undersong_server.pool import no_texts_error

CLEANED = "without those whose label models of words and of embeddings both contradict"  # in the report's words


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
    rounds: Annotated[int, Field(ge=2, le=LARGEST_SUMS)] = 3
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
        """Number of texts to order in each round, by the schedule if ``samples`` is a list.

        Args:
            growing: True if each round orders more than the one before it, because the first serves to choose words.
        """
        if isinstance(self.samples, tuple):
            return [sample_count * self.written for sample_count in self.samples]
        relative_sizes = np.arange(1.0, self.rounds + 1) if growing else np.ones(self.rounds)
        return [int(n) for n in largest_remainder(relative_sizes, self.samples * self.written)]

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
    return list(form.sums_to_ask(partial(requests, options, setting), options, setting))


def requests(options: Options, setting: Setting, wanted: Collection[str]) -> list[SumRequest]:
    """Returns the sums of a run that asks the ``wanted`` questions about form."""
    generators, label_count = len(setting.generators), len(setting.labels)
    sum_requests: list[SumRequest] = []
    if form.LENGTHS in wanted:
        label_share = TUNING.part_labels * bool(label_count) + form.FORM.part_lengths
        sum_requests.append(SumRequest("labels", form.counted(setting), label_share))
    elif label_count or setting.attributes:
        count_statistic = attribute_marginals(setting) if setting.attributes else LabelHistogram(label_count)
        sum_requests.append(SumRequest("labels", count_statistic, TUNING.part_labels))
    has_labels_and_choice = label_count > 1 and generators > 1
    if label_count > 1 and (generators == 1 or options.written > 1):
        centre_statistic = EmbeddingSum(embedders.dimension(setting.embedder), label_count)
        sum_requests.append(SumRequest("centres", centre_statistic, TUNING.part_centres))
    round_sizes = options.per_round(form.WORDS in wanted)
    if form.EXAMPLES in wanted:
        example_rounds = range(form.WORDS in wanted, options.rounds - 1)
    else:
        example_rounds = range(0)
    for t, text_count in enumerate(np.cumsum(round_sizes)[:-1].tolist()):
        if not t and generators > 1:
            sum_requests.append(SumRequest("support", support.statistic(setting, text_count), TUNING.part_support))
        if has_labels_and_choice and text_count >= TUNING.texts_judged * generators * label_count:
            block_votes = ClassifierVotesInBlocks(generators, label_count)
            sum_requests.append(SumRequest(f"who/{t + 1}", block_votes, TUNING.part_who / (options.rounds - 1)))
        if form.WORDS in wanted and not t:
            sum_requests.append(form.words_request(setting))
        if t in example_rounds:
            sum_requests.append(form.votes_request(setting, f"votes/{t + 1}", text_count, len(example_rounds)))
        if label_count < 2:
            votes_part = TUNING.part_examples / (options.rounds - 1)
            votes_per_record = max(1, min(TUNING.votes, text_count // TUNING.texts_per_vote))
            sum_requests.append(
                SumRequest(
                    f"votes/{t + 1}",
                    EqualVotes(q=votes_per_record, candidates=text_count, labels=label_count),
                    votes_part,
                )
            )
    if label_count > 1 and (options.score or len(sum_requests) > 1):  # there is a corpus to score, or a choice to judge
        corpus_statistic = ScoredComparison(label_count) if options.score else CorpusComparison(label_count)
        sum_requests.append(SumRequest("verdict", corpus_statistic, TUNING.part_verdict))
    elif label_count < 2 and options.score:
        most_texts = options.published * options.written + options.most_anew(generators)
        sum_requests.append(SumRequest("score", ScoredSimilarity(most_texts), TUNING.part_score))
    return sum_requests


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the corpus."""
    return publish(RunState(options, run, [request.name for request in plan(options, run.setting)]))


def publish(state: "RunState") -> Sequence[Sample]:
    """Takes all steps of a run. Returns the corpus. The comments have the numbers of the steps in docs/method.md."""
    # 1. What is to be written: shares of labels and attributes' values, and where the records of each label lie.
    state.count_labels()
    state.open_centres()
    for round_index, round_size in enumerate(state.options.per_round(form.WORDS in state.asked)):
        # 2. Write: all generators alike first, later the chosen ones, with examples where votes were asked.
        state.run.record("weights", round_index, (state.weights @ state.shares).tolist())
        state.write(f"round {round_index + 1}", round_index, round_size)
        # 2.4. Generators whose texts lie where no record lies write no more, and their texts are set aside.
        if not round_index and "support" in state.asked:
            state.ask_support()
        # 3. Who writes on: the generators that the records cannot tell from the best.
        if f"who/{round_index + 1}" in state.asked:
            state.choose_generators(f"who/{round_index + 1}")
        # 4. What it looks like: words of the records, and examples among the texts that have them.
        if not round_index and form.WORDS in state.asked:
            state.count_words()
        if f"votes/{round_index + 1}" in state.asked:
            state.choose_examples(f"votes/{round_index + 1}", round_index)
    # Steps 5 and 6. The corpus has the chosen generators' texts, under the labels that the records' centres find
    # likeliest, or cleaned in public. Texts that are missing are written anew.
    chosen_corpus = state.completed()
    # Step 5. This run's mixture is everything that is not set aside, cleaned in public.
    mixture_rows = state.at_most(state.cleaned(state.not_aside()))
    # Step 7, the verdict. The chosen texts are published if they are better than all texts that are left, cleaned.
    if "verdict" in state.asked:
        chosen_corpus = state.by_verdict(mixture_rows, chosen_corpus)
    elif "score" in state.asked:
        state.score_by_similarity(chosen_corpus)
    state.report_set_aside(chosen_corpus)
    return state.samples(chosen_corpus)


@dataclass
class LabelRows:
    """Positions of texts in the pool, int64 [n], and the label of each, int64 [n].

    ``contradicted`` and ``surplus`` count the texts that are missing: for a label that models contradict, and because
    they are more than may be published.
    """

    position: Int64
    label_of: Int64
    contradicted: int = 0
    surplus: int = 0


class RunState:
    """Decisions of one run of the method so far, and the steps that make them.

    Attributes:
        asked: names of the planned sums.
        shares: share of each label, float64 [C]; rare: labels that lose no text by a choice, bool [C].
        records: estimated number of records of each label, float64 [C].
        chosen: generators for each label, bool [K, C]; weights: their parts of what is written, float64 [K, C].
        spent: True where the generator has no more new texts of the label, bool [K, C].
        examples: texts for the next round's prompts, of each label.
    """

    def __init__(self, options: Options, run: RunContext, asked: Sequence[str]) -> None:
        self.options, self.run, self.asked = options, run, asked
        self.form = form.wanted(options, run.setting)
        generator_count, label_count = len(run.setting.generators), max(1, len(run.setting.labels))
        self.shares, self.records = np.full(label_count, 1.0 / label_count), np.ones(label_count)
        self.rare: Bools = np.zeros(label_count, dtype=np.bool_)
        self.values: list[list[Float64]] = [[]] * label_count  # of each label, the shares of each attribute's values
        self.chosen = np.ones((generator_count, label_count), dtype=np.bool_)
        self.weights = np.full((generator_count, label_count), 1.0 / generator_count)
        self.by_label = True  # holds until the records show that generators differ alike on all labels
        self.spent: Bools = np.zeros((generator_count, label_count), dtype=np.bool_)
        self.examples: list[list[str]] = [[] for _ in range(label_count)]
        self.frequent = [form.Frequent()] * label_count  # words of each label, which the records have
        self.draw_length: Callable[[np.random.Generator], int] | None = None
        self.centres: NoisySum | None = None
        self.support: support.Support | None = None
        # The judgement of the pool as it was at the last judgement; at first it judges no text.
        self._judgement = support.Judgement([], np.zeros(generator_count, dtype=np.bool_))
        # The number of records of the parties of a sum that counted them, with its standard deviation.
        self.counted: dict[frozenset[str], tuple[float, float]] = {}

    def count_labels(self) -> None:
        """Opens the histogram of labels, and of attributes beside it."""
        if "labels" not in self.asked:
            return
        label_count = len(self.run.setting.labels)
        if form.LENGTHS in self.form:
            labels_sum = self.run.private_sum("labels", [form.length_edges(self.run)])
            self.draw_length = form.length_drawer(self.run, labels_sum, label_count)
        else:
            labels_sum = self.run.private_sum("labels", attribute_inputs(self.run))
            self.values = [attribute_shares(self.run, labels_sum.natural[label_count:])] * max(1, label_count)
        if label_count:
            self.take_label_counts(replace(labels_sum, values=labels_sum.values[:label_count]))

    def take_label_counts(self, counts: NoisySum) -> None:
        """Computes the shares of the corpus from the noisy number of records of each label."""
        halfway_shares = shares.label_shares(counts)
        self.shares = shares.wanted_shares(self.options.label_shares, halfway_shares, self.run.setting.labels)
        self.rare = self.shares < TUNING.rare / len(halfway_shares)
        self.records = shares.records_shares(halfway_shares) * shares.records_of(counts)
        error = float(counts.sigma * np.sqrt(len(halfway_shares)))
        self.counted[frozenset(counts.survivors)] = float(self.records.sum()), error
        self.run.record("label shares", 0, self.shares.tolist())

    def open_centres(self) -> None:
        """Opens the sum of the embeddings of each label's records."""
        if "centres" in self.asked:
            self.centres = self.run.private_sum("centres", [])

    def write(self, step: str, t: int, count: int) -> None:
        """Orders ``count`` texts in round ``t``, so that all texts come near to the shares of labels and generators."""
        run, published_counts = self.run, self._table(self.not_aside()) * self.chosen
        order_counts = shares.to_write(
            published_counts, self.weights, self._shares_with_rare(published_counts, count), self.spent, count
        )
        counts_before, rng = self._table(), run.rng(step)
        run.generate(step, t, self._orders(order_counts, rng))
        self._drop_unsupported()
        run.state_corpus(t, self.samples_left())
        self.spent |= shares.spent(order_counts, self._table() - counts_before)
        if not len(run.pool):
            raise no_texts_error("first round")

    def _shares_with_rare(self, published: Int64, count: int) -> Float64:
        """Label shares of what is published after ``count`` more texts: a rare label has as many as in the mixture."""
        published_after, mixture_after = published.sum() + count, len(self.not_aside()) + count
        adjusted_shares = self.shares.copy()
        adjusted_shares[self.rare] *= mixture_after / published_after
        adjusted_shares[~self.rare] *= (1.0 - adjusted_shares[self.rare].sum()) / max(
            1e-9, float(adjusted_shares[~self.rare].sum())
        )
        return adjusted_shares.clip(min=0.0)

    def _orders(self, wanted: Int64, rng: np.random.Generator) -> list[Order]:
        return [
            self._order(generator, label, rng)
            for k, generator in enumerate(self.run.setting.generators)
            for label in np.repeat(np.arange(wanted.shape[1]), wanted[k]).tolist()
        ]

    def _order(self, generator: str, label: int, rng: np.random.Generator) -> Order:
        setting, is_recorded = self.run.setting, generator in self.run.setting.recorded
        label_name, has_form = (setting.labels or ("",))[label], bool(self.form) and len(setting.labels) > 1
        if has_form and is_recorded:
            return Order(generator, "zero_shot", label_name)
        attributes = draw_attributes(setting, self.values[label], rng)
        terms = attribute_terms(setting, attributes) or self.frequent[label].draw(rng)
        voted_texts = sample_without_replacement(
            rng, self.examples[label], self.options.voted_examples or TUNING.examples
        )
        prompt_kind = "worded" if has_form else "contrast" if voted_texts else "metadata"
        if self.draw_length is None or is_recorded:
            word_count = None
        else:
            word_count = self.draw_length(rng)
        return Order(
            *(generator, prompt_kind if terms or voted_texts else "zero_shot", label_name),
            good=voted_texts,
            terms=terms,
            attributes=attributes,
            words=word_count,
            bounded=word_count is not None,
        )

    def ask_support(self) -> None:
        """Opens the votes for each generator's texts; those that the records do not support write no more."""
        self.support = support.ask(self.run, "support", self.records / self.records.sum())
        count_and_error = self.support.records, self.support.records_error
        self.counted.setdefault(frozenset(self.support.survivors), count_and_error)
        self._drop_unsupported()

    def _drop_unsupported(self) -> None:
        """Drops the generators of which nothing is published, and records why."""
        judgement = self.judgement()
        if self.support is not None and self.chosen[judgement.left_out].any():
            support.record_left_out(self.run, self.support, judgement)
        self._drop(~judgement.left_out[:, None])

    def _drop(self, stays: Bools) -> None:
        """Keeps those of the chosen generators that ``stays`` marks, bool [K, C] or [K, 1], with equal weights.

        A label that would lose all of them gets all generators that ``stays`` marks.
        """
        remaining_generators = self.chosen & stays
        if (remaining_generators != self.chosen).any():
            self.chosen = np.where(remaining_generators.any(axis=0), remaining_generators, stays)
            self.weights = self.chosen / self.chosen.sum(axis=0)

    def judgement(self) -> support.Judgement:
        """Returns which texts, of all written so far, are set aside and which generators are left out."""
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
        chosen_corpus, anew_left = self.chosen_texts(), self.options.most_anew(len(self.chosen))
        attempt = 0
        while anew_left > 0 and (missing_count := self.options.published - len(chosen_corpus.position)) > 0:
            attempt += 1
            # A few more than are missing are ordered, because some of the new texts are dropped too.
            pool_size, ordered_count = len(self.run.pool), min(anew_left, missing_count + attempt)
            self.write(f"{ANEW}{attempt}", self.options.rounds - 1, ordered_count)
            if len(self.run.pool) == pool_size:
                break
            chosen_corpus, anew_left = self.chosen_texts(), anew_left - ordered_count
        return self.at_most(chosen_corpus)

    def report_set_aside(self, chosen_corpus: LabelRows) -> None:
        """Records, for files and dataset card, which texts are set aside or unpublished and how many are missing."""
        if self.support is not None:
            support.record_set_aside(self.run, self.support, self.run.pool.samples, self.judgement())
        not_chosen = (
            len(self.not_aside()) - len(chosen_corpus.position) - chosen_corpus.contradicted - chosen_corpus.surplus
        )
        self.run.record(
            support.UNPUBLISHED,
            0,
            {"contradicted": chosen_corpus.contradicted, "not chosen": not_chosen, "surplus": chosen_corpus.surplus},
        )
        if (missing_count := self.options.published - len(chosen_corpus.position)) > 0:
            missing_reason = "the generators gave no more different texts that fit"
            self.run.record(
                "remarks", 0, f"{missing_count} of {self.options.published} texts are missing: {missing_reason}."
            )

    def choose_generators(self, name: str) -> None:
        """Opens how often each generator's classifier is right on the records; drops generators clearly below the best.

        It also decides whether the choice is made label by label. ``name`` is that of the planned sum.
        """
        run, generator_count, label_count = self.run, *self.chosen.shape
        embeddings, label_of, generator_of = self._texts()
        classifier_heads = learning.classifiers(
            embeddings, label_of, generator_of, generator_count, self.shares, TUNING.strength
        )
        block_of_label = np.arange(label_count) * self.by_label
        sum_inputs = [
            run.publish_numbers("classifiers", classifier_heads),
            run.publish_numbers("blocks", block_of_label.astype(float)),
        ]
        usefulness_estimate = usefulness(run.private_sum(name, sum_inputs), block_of_label, self.records, self._table())
        self.by_label = usefulness_estimate.by_label
        chosen_before = self.chosen
        self._drop(usefulness_estimate.chosen(chosen_before))
        is_dropped = chosen_before & ~self.chosen
        names = run.setting.generators
        reason_by_name = {
            names[generator]: usefulness_estimate.shortfall(
                generator, is_dropped[generator], chosen_before, self.records
            )
            for generator in np.flatnonzero(is_dropped.any(axis=1)).tolist()
        }
        if reason_by_name:
            run.record(support.LEFT_OUT, int(name.partition("/")[2]) - 1, reason_by_name)

    def count_words(self) -> None:
        """Opens how often each label's records have public words; prompts use the words that stand out of the noise."""
        self.frequent = form.counted_words(self.run, self.samples_left(), self.chosen, self.records)

    def choose_examples(self, name: str, t: int) -> None:
        """Opens votes for texts so far and chooses examples by them; without labels, weights of generators too.

        ``t`` is the round whose texts were written last.
        """
        if len(self.shares) > 1:
            first_example_index = int(form.WORDS in self.asked)
            self.examples = form.voted_examples(self.run, name, self.samples_left(), first_example_index)
            return
        hubness, generator_of = hubness_correction(*self._texts()[:2]), self.run.pool.generator_of
        sum_inputs = [self.run.publish_pool(), self.run.publish_numbers("hubness correction", hubness)]
        votes_sum = self.run.private_sum(name, sum_inputs)
        # Later coordinates, of planned texts that were not written, hold noise only.
        votes = votes_sum.natural[: len(generator_of)]
        open_positions = self.not_aside()
        shortlist_size = min(TUNING.shortlist, round(TUNING.kept_share * len(open_positions)))
        is_above_noise = float(votes.std()) >= votes_sum.sigma
        self.examples = [
            self.run.pool.texts_of(highest(votes, open_positions, shortlist_size)) if is_above_noise else []
        ]
        weights_and_noise = weigh_generators(votes, generator_of, self.chosen[:, 0], votes_sum.sigma)
        if weights_and_noise is not None:
            self.weights = weights_and_noise[0][:, None]
            self.run.record("weights noise", t + 1, weights_and_noise[1].tolist())

    def chosen_texts(self) -> LabelRows:
        """The chosen generators' texts: under the labels that the centres find likeliest, or cleaned in public.

        Of more texts than may be published, those of each label stay that together lie towards its records' centre.
        """
        position = self.published()
        if self.centres is None:
            return self.cleaned(position)
        embeddings, label_of, _ = self._texts(position)
        judged_labels = by_centres(self.centres, self.records, embeddings, label_of, self.rare)
        kept_rows = np.arange(len(position))
        if len(position) > self.options.published:
            kept_count_of_label = places_by_label(
                np.bincount(judged_labels.label_of, minlength=len(self.shares)), self.shares, self.options.published
            )
            kept_rows = herded_by_label(
                judged_labels.offsets,
                judged_labels.label_of,
                TUNING.reach * judged_labels.centres,
                kept_count_of_label,
            )
        return LabelRows(position[kept_rows], judged_labels.label_of[kept_rows], surplus=len(position) - len(kept_rows))

    def by_verdict(self, mixture: LabelRows, chosen_corpus: LabelRows) -> LabelRows:
        """Opens the verdict: is the choice better than the mixture? Returns the corpus to publish, and reports why."""
        label_count, embedding_classifiers, word_classifiers = len(self.shares), [], []
        for corpus_rows in (mixture, chosen_corpus):
            embeddings, word_features = (
                self._texts(corpus_rows.position)[0],
                word_rows(self.run.pool.texts_of(corpus_rows.position)),
            )
            embedding_classifiers.append(
                learning.classifier(embeddings, corpus_rows.label_of, label_count, strength=TUNING.strength)
            )
            word_classifiers.append(word_classifier(word_features, corpus_rows.label_of, label_count))
        # Both classifiers of each corpus, on the public grid.
        verdict_inputs = [
            self.run.publish_numbers("heads", COEFFICIENTS.quantised(np.stack(embedding_classifiers))),
            self.run.publish_numbers("word classifiers", COEFFICIENTS.quantised(np.stack(word_classifiers))),
        ]
        verdict_sum = self.run.private_sum("verdict", verdict_inputs)
        record_count = self.counted.get(frozenset(verdict_sum.survivors))
        records, records_error = record_count or (float(self.records.sum()), 0.0)
        gain = gain_of(verdict_sum, records)
        corpora_differ = not (
            np.array_equal(mixture.position, chosen_corpus.position)
            and np.array_equal(mixture.label_of, chosen_corpus.label_of)
        )
        verdict_record = {"gain": gain.value, "error": gain.error, "taken": gain.certain(), "compared": corpora_differ}
        self.run.record("verdict", 0, verdict_record)
        # The sum of fewer hospitals than were counted, over the number of all of them, would be no share of records.
        if self.options.score and record_count:
            private_figure = private_score.score_of(verdict_sum, records, records_error, second=gain.certain())
            self.run.record(private_score.RECORD, 0, private_figure.to_json())
        self.run.record("remarks", 0, self._remark(gain if corpora_differ else None, records))
        if gain.certain():
            return chosen_corpus
        return mixture

    def score_by_similarity(self, corpus: LabelRows) -> None:
        """Opens how near the records' nearest texts are, in the corpus and in round 1, which no record has steered."""
        samples = self.run.pool.samples
        is_published = np.isin(np.arange(len(samples)), corpus.position)
        is_unsteered = np.array([sample.round == 0 for sample in samples])
        private_figure = private_score.similarity_score(self.run, "score", is_published, is_unsteered)
        self.run.record(private_score.RECORD, 0, private_figure.to_json())

    def _remark(self, gain: "Gain | None", records: float) -> str:
        """Returns a sentence for the report: the change that the private records made, beside its noise.

        Args:
            gain: of the records' choice over the mixture; None if both are the same texts under the same labels, where
                the opened sum holds noise only.
            records: estimated number of records in that sum.
        """
        if any(self.judgement().reasons):
            remaining_words = "all texts that are not set aside"
        else:
            remaining_words = "all texts"
        if gain is None:
            return (
                f"Published: {remaining_words}, {CLEANED}. The last sum compares the texts that the records choose with"
                " all that are left. Here both are the same: beyond what was set aside and what was ordered, the"
                " records changed nothing."
            )
        is_chosen_author: Bools = self.chosen.max(axis=1)
        author_names = [
            author_name
            for author_name, is_chosen in zip(self.run.setting.generators, is_chosen_author.tolist(), strict=True)
            if is_chosen
        ]
        if self.chosen.all():
            choice_words = remaining_words
        else:
            choice_words = f"the texts of {joined(author_names)}"
        if not (self.chosen == is_chosen_author[:, None]).all():
            choice_words += ", chosen label by label"
        if self.centres is not None:
            choice_words += ", under the labels that the records find likeliest"
        published_words = choice_words if gain.certain() else f"{remaining_words}, {CLEANED}"
        more_right, more_right_error = gain.value * records, gain.error * records
        chance_clause = (
            ""
            if difference_sign(gain.value, gain.error)
            else f": this is {DIFFERENCE_WORDS[0]}, so neither is shown to be better"
        )
        mixture_words = (
            remaining_words
            if self.centres is None
            else f"{remaining_words}, under the labels that they were ordered under, {CLEANED}"
        )
        return (
            f"Published: {published_words}. Of about {records:.0f} hospital records, a program labels"
            f" {abs(more_right):.0f}"
            f" {'more' if more_right >= 0 else 'fewer'} rightly when it learns from {choice_words}, than when it"
            " learns from"
            f" {mixture_words}, give or take {more_right_error:.0f}{chance_clause}."
        )

    def at_most(self, rows: LabelRows) -> LabelRows:
        """Returns as many of the rows as may be published (``samples``), drawn by chance, in ascending order."""
        if len(rows.position) <= self.options.published:
            return rows
        kept_rows = np.sort(self.run.rng("corpus").permutation(len(rows.position))[: self.options.published])
        return LabelRows(
            rows.position[kept_rows],
            rows.label_of[kept_rows],
            contradicted=rows.contradicted,
            surplus=rows.surplus + len(rows.position) - len(kept_rows),
        )

    def published(self) -> Int64:
        """Positions of the chosen generators' texts; a rare label has others too, up to the mixture's number."""
        open_positions = self.not_aside()
        _, label_of, generator_of = self._texts(open_positions)
        is_chosen = self.chosen[generator_of, label_of]
        published_rows = [np.flatnonzero(is_chosen)]
        for label in np.flatnonzero(self.rare):
            missing_count = round(self.shares[label] * len(is_chosen)) - int((is_chosen & (label_of == label)).sum())
            published_rows.append(np.flatnonzero(~is_chosen & (label_of == label))[: max(0, missing_count)])
        return open_positions[np.sort(np.concatenate(published_rows))]

    def cleaned(self, position: Int64) -> LabelRows:
        """The texts at ``position`` with their labels after public cleaning; without labels, all of them."""
        embeddings, label_of, generator_of = self._texts(position)
        if len(self.run.setting.labels) < 2:
            return LabelRows(position, label_of)
        word_model = word_rows(self.run.pool.texts_of(position)), word_classifier
        cleaned_labels = cleaned(
            embeddings, label_of, generator_of, len(self.shares), self.run.rng("folds"), word_model
        )
        is_kept = cleaned_labels != DROPPED
        return LabelRows(position[is_kept], cleaned_labels[is_kept], contradicted=int((~is_kept).sum()))

    def samples(self, rows: LabelRows) -> list[Sample]:
        """The samples at ``rows``, under the labels of the rows."""
        label_names, pool = self.run.setting.labels or ("",), self.run.pool.samples
        return [
            replace(pool[position], label=label_names[label])
            for position, label in zip(rows.position, rows.label_of, strict=True)
        ]

    def _texts(self, position: Int64 | None = None) -> tuple[Float32, Int64, Int64]:
        """Embeddings, labels and generators of the texts at ``position``; of all if it is None."""
        pool = self.run.pool
        positions = np.arange(len(pool)) if position is None else position
        return self.run.embeddings(pool.samples)[positions], pool.label_of[positions], pool.generator_of[positions]

    def _table(self, position: Int64 | None = None) -> Int64:
        pool = self.run.pool
        positions = np.arange(len(pool)) if position is None else position
        return shares.table(pool.generator_of[positions], pool.label_of[positions], *self.chosen.shape)


def generator_calls(options: Options, setting: Setting) -> int:
    """Returns how many texts are ordered at most, one request for words of each label among them."""
    asks_words = form.WORDS in {request.name for request in plan(options, setting)}
    most_texts = options.published * options.written + options.most_anew(len(setting.generators))
    return most_texts + asks_words * len(setting.labels)


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    published=lambda options: options.published,
    unpublished="write texts in place of those that are set aside, and what the choice needs besides",
    run=run,
    reads_attributes=True,
    asks_first=lambda options, setting: bool(setting.labels) or options.lengths,
    measures_lengths=lambda options: options.lengths,
    notes=lambda options, setting: form.notes(partial(requests, options, setting), options, setting),
)


# A task's attributes in a method: the sum that counts them, and the values that orders name.


def attribute_marginals(setting: Setting) -> AttributeMarginals:
    """Returns the statistic that counts the records' labels and attributes."""
    value_counts = [
        tuple(len(attribute.possible) for attribute in setting.attributes if attribute.column is is_column)
        for is_column in (False, True)
    ]
    return AttributeMarginals(len(setting.labels), *value_counts)


def attribute_inputs(run: RunContext) -> list[Input]:
    """Returns the inputs of the sum of :func:`attribute_marginals`.

    They are the embedded values of the attributes without a column, and the others' names and values as texts.
    """
    sum_inputs, writer = [], run.setting.generators[0]
    listed_attributes = [attribute for attribute in run.setting.attributes if not attribute.column]
    column_texts = [
        text for attribute in run.setting.attributes if attribute.column for text in (attribute.name, *attribute.values)
    ]
    if listed_attributes:
        value_samples = [
            Sample(value, "", writer, 0, "value") for attribute in listed_attributes for value in attribute.values
        ]
        attribute_numbers = np.repeat(
            np.arange(len(listed_attributes)), [len(attribute.values) for attribute in listed_attributes]
        )
        sum_inputs.append(
            run.publish_vectors(VALUES, "attribute values", run.embeddings(value_samples), attribute_numbers)
        )
    if column_texts:
        return [*sum_inputs, run.publish_texts(COLUMNS, column_texts)]
    return sum_inputs


def attribute_shares(run: RunContext, value_counts: Float64) -> list[Float64]:
    """Returns, and records for the report, the shares of each attribute's values.

    Args:
        value_counts: noisy counts of all attributes' values, in the order of the opened sum.
    """
    shares_by_attribute, first_position = [], 0
    for attribute in run.setting.attributes:
        shares_by_attribute.append(
            shares_of_counts(value_counts[first_position : first_position + len(attribute.possible)])
        )
        first_position += len(attribute.possible)
        run.record(f"shares of {attribute.name}", 0, shares_by_attribute[-1].tolist())
    return shares_by_attribute


def draw_attributes(
    setting: Setting, shares_by_attribute: Sequence[Float64], rng: np.random.Generator
) -> tuple[tuple[str, str], ...]:
    """Draws one value of each attribute. Returns pairs (name, value); "" is a column's missing value.

    ``shares_by_attribute``: shares of each attribute's values, in the order of ``setting.attributes``.
    """
    value_numbers = [int(rng.choice(len(value_shares), p=value_shares)) for value_shares in shares_by_attribute]
    return tuple(
        (attribute.name, attribute.possible[value_number])
        for attribute, value_number in zip(setting.attributes, value_numbers, strict=True)
    )


def attribute_terms(setting: Setting, attribute_values: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the words of a prompt for (name, value) pairs: the value, after its column's name if it has a column."""
    column_names = {attribute.name for attribute in setting.attributes if attribute.column}
    return tuple(f"{name} {value}" if name in column_names else value for name, value in attribute_values if value)


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
    reach: float = constant(2.0, "of a centre's distance", "with 300 records 3 does as well, with 1400 1 and 3 do less")
    votes: int = constant(8, "votes per record", "the noise per vote is 1 / sqrt(8)")
    texts_per_vote: int = constant(5, "texts", "a record votes for a fifth of them at most")
    texts_judged: int = constant(3, "texts of a generator and label", "with fewer a classifier tells of luck")
    tie: float = constant(1.0, "standard errors", "a generator nearer to the best is not told from it and stays")
    answer_variance: float = constant(
        0.12, "squared accuracy, per record", "of a centred answer; classifiers differ on about half of the records"
    )
    training_variance: float = constant(0.08, "squared accuracy, times texts", "which texts it happened to write")
    by_label_variance: float = constant(0.1, "squared accuracy", "0.02 to 0.03 where a label tied to a style harmed")
    certainty: float = constant(0.5, "standard errors", "of the gain; below it all texts stay, cleaned")
    anew_of_several: float = constant(0.5, "of `samples`", "most texts written anew, of several generators")
    anew_of_one: float = constant(0.1, "of `samples`", "most texts written anew, of one generator")
    kept_share: float = constant(0.3, "of the texts", "the best share in a live prototype")
    rare: float = constant(0.5, "of an equal share", "a label below it loses no text to the choice of generators")
    examples: int = constant(4, "texts in a prompt", "fits the context of a small model")
    shortlist: int = constant(32, "texts", "that examples are drawn from")
    strength: float = constant(STRENGTH, "inverse regularisation", "that of the panel's words")


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
        """Marks the generators of ``among``, bool [K, C], that are not clearly worse than the label's best of them."""
        gains = np.where(among, self.gains, -np.inf)
        best_generator_numbers, label_numbers = gains.argmax(axis=0), np.arange(gains.shape[1])
        difference_variance = self.variance + self.variance[best_generator_numbers, label_numbers]
        is_near_best: Bools = among & (
            gains[best_generator_numbers, label_numbers] - gains <= TUNING.tie * np.sqrt(difference_variance)
        )
        return is_near_best

    def shortfall(self, generator: int, dropped: Bools, among: Bools, records_of_label: Float64) -> str:
        """Returns a sentence on how many records fewer than the best of ``among`` a generator labels right.

        Args:
            dropped: the labels for which the generator was dropped, bool [C]; the sentence is about these.
            among: the generators that were chosen before, bool [K, C].
            records_of_label: estimated number of records of each label, float64 [C].
        """
        gains = np.where(among, self.gains, -np.inf)
        label_numbers, best_generator_numbers = np.flatnonzero(dropped), gains.argmax(axis=0)[dropped]
        records = records_of_label[dropped]
        fewer_right = records @ (gains[best_generator_numbers, label_numbers] - gains[generator, label_numbers])
        errors = records * np.sqrt(
            self.variance[generator, label_numbers] + self.variance[best_generator_numbers, label_numbers]
        )
        # Unless estimated by label, the labels share one error, which adds up; else the errors add in squares.
        right_answers_error = np.sqrt(np.square(errors).sum()) if self.by_label else errors.sum()
        if dropped.all():
            labels_clause = ""
        else:
            labels_clause = f", for {len(label_numbers)} of {len(dropped)} labels"
        return (
            f"a classifier that its texts taught labels {fewer_right:.0f} fewer of the hospitals' records right than"
            f" one that the best writer's taught, give or take {right_answers_error:.0f}{labels_clause}"
        )


def usefulness(opened: NoisySum, block_of: Int64, records_of_label: Float64, texts: Int64) -> GeneratorUsefulness:
    """Estimates the generators' usefulness from the opened sum of right answers, C blocks of K.

    Args:
        opened: the sum: how often each of K classifiers is right, less their mean, in each block.
        block_of: the block of each label, int64 [C]: 0 for every label, or the label's own number.
        records_of_label: estimated number of records of each label, float64 [C], positive.
        texts: number of texts that each generator wrote of each label, int64 [K, C].
    """
    label_count, record_count = len(records_of_label), float(records_of_label.sum())
    block_count = int(block_of.max()) + 1
    right_answers = opened.natural.reshape(label_count, -1).T[:, :block_count]  # the other blocks hold noise alone
    noise_variance = (opened.sigma / record_count) ** 2
    right_share = right_answers.sum(axis=1) / record_count
    text_counts = np.maximum(texts, 1)
    training_variance = TUNING.training_variance / text_counts.sum(axis=1)
    variance = block_count * noise_variance + TUNING.answer_variance / record_count + training_variance
    if block_count > 1:
        right_by_label = right_answers / records_of_label
        answer_variance = (opened.sigma / records_of_label) ** 2 + TUNING.answer_variance / records_of_label
        answer_variance = answer_variance + TUNING.training_variance / text_counts
        label_differences = right_by_label - right_share[:, None]
        label_effect = float((label_differences**2 - answer_variance).mean())
        if label_effect > TUNING.by_label_variance:
            return GeneratorUsefulness(right_by_label, answer_variance, True)
    return GeneratorUsefulness(
        np.repeat(right_share[:, None], label_count, axis=1), np.repeat(variance[:, None], label_count, axis=1), False
    )


# Labels of texts, by where the records of each label lie; docs/method.md, step 6.


class JudgedLabels(NamedTuple):
    """Texts under the labels that the records find likeliest.

    Attributes:
        label_of: likeliest label of each text, int64 [n].
        offsets: embeddings of the texts about their mean, along their main axes, float64 [n, a].
        centres: estimated centre of each label's records about that of all, along the same axes, float64 [C, a].
    """

    label_of: Int64
    offsets: Float64
    centres: Float64


@one_library_thread()
def by_centres(centres: NoisySum, record_counts: Float64, x: Float32, label_of: Int64, rare: Bools) -> JudgedLabels:
    """Finds each text's likeliest label by the records' noisy sums of embeddings and the label it was ordered for.

    A label's texts are normal around its centre, alike in all directions. A centre is the mean of its records, less the
    mean of all, along the main axes of the texts, and is shrunk by its noise.

    Args:
        centres: the opened sums, [C x d]; ``record_counts`` of each label, float64 [C].
        x, label_of: embeddings of the texts, float32 [n, d], and the labels that they were ordered for, int64 [n].
        rare: labels whose texts keep them, bool [C].
    """
    from scipy.special import softmax

    label_count, text_numbers = len(record_counts), np.arange(len(label_of))
    sums = centres.natural.reshape(label_count, -1)
    centred = x - x.mean(axis=0, dtype=np.float64)
    axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, : min(TUNING.axes, max(1, len(x) - 1))]
    label_centres = (sums / record_counts[:, None] - sums.sum(axis=0) / record_counts.sum()) @ axes
    noise = ((centres.sigma / record_counts) ** 2)[:, None]
    centre_variance = max(0.0, float((label_centres**2 - noise).mean()))
    label_centres *= centre_variance / np.maximum(centre_variance + noise, 1e-12)
    projected_texts = centred @ axes
    within_variance = max(float(((projected_texts - label_centres[label_of]) ** 2).mean()), 1e-12)
    text_shares = np.bincount(label_of, minlength=label_count) / len(label_of)
    order_probabilities = np.repeat((1 - TUNING.trust) * text_shares[label_of, None], label_count, axis=1)
    order_probabilities[text_numbers, label_of] += TUNING.trust
    log_likelihoods = (projected_texts @ label_centres.T - (label_centres**2).sum(axis=1) / 2) / within_variance
    label_probabilities = softmax(
        log_likelihoods + np.log(np.maximum(text_shares, 1e-9)) + np.log(order_probabilities), axis=1
    )
    likeliest_labels = np.where(rare[label_of], label_of, label_probabilities.argmax(axis=1))
    return JudgedLabels(likeliest_labels, projected_texts, label_centres)


# The records' verdict on two corpora, by a head and a word classifier of each; docs/method.md, step 7.


class Gain(NamedTuple):
    """Gain in accuracy of one corpus over another, and its standard error."""

    value: float
    error: float

    def certain(self) -> bool:
        return self.value > TUNING.certainty * self.error


def gain_of(opened: NoisySum, record_count: float) -> Gain:
    """Estimates the gain from the opened comparison; its error is from the noise and from the records as a sample."""
    mean_gain, mean_square = opened.natural[[0, -1]] / record_count
    sampling_variance = max(0.0, float(mean_square) / SQUARE - float(mean_gain) ** 2) / record_count
    return Gain(float(mean_gain), float(np.sqrt((opened.sigma / record_count) ** 2 + sampling_variance)))
