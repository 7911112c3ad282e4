"""Support: which generators' texts lie where the records lie, and which texts are therefore not published.

The records' votes judge generators (:mod:`undersong_protocol.statistics.support`). A public classifier of
words, which learns supported against unsupported generators' texts, then judges the others' and costs no budget.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, joined
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics.support import SupportVotes
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.learning import probabilities
from undersong_server.methods.interface import RunContext, Sample, Setting
from undersong_server.methods.parts.distance import append_sum
from undersong_server.methods.parts.words import windows, word_classifier, word_rows

RECORD = "set aside"  # name under which a run records the texts that it sets aside
HALF = 0.5  # share of the best support: that of a weak generator on the subject
LIKELIER = 3.0  # a generator is unsupported if no support is so many times as likely as the support HALF
LEAST = 0.25  # support; the votes tell nothing if the lower bound of the best generator's support is below it
ENOUGH = 0.75  # share of the best support; a generator is supported if the lower bound of its support is above it
MOST = 2.0  # the largest support that counts of the best generator, beside which others are judged
ERRORS = 2.0  # standard errors from an estimated support to each of its bounds
NO_VOTES = 1e-9  # expected votes of a generator without texts
LENIENCE = 0.02  # share of the supported generators' texts that may look like texts to set aside
FOLDS = 5  # folds of the public classifier's texts; each text is judged by a classifier that did not see it
TEXTS_BY_LABEL = 3  # mean texts of a generator and label; with fewer the votes are not by label
FEW = 0.1  # largest share of texts off the subject; a generator neither supported nor unsupported is left out above it
MOST_STANDINGS = 3  # generators in between whose figures a sentence states
RECALL = 0.5  # share of the unsupported generators' texts that a classifier must recognise before it judges others
CORPUS = "support/corpus"  # name of the sum that a task asks for beside a method's own
LEFT_OUT = "left out"  # names a run's record of the reason why a generator writes no more, by generator
UNPUBLISHED = "unpublished"  # names a run's counts, by reason, of texts that are not set aside and are in no file
GENERATOR, SUBJECT, DOUBT, UNJUDGED = "generator", "subject", "doubt", "unjudged"
"""Reasons: of an unsupported generator; unlike the supported ones' texts; of a generator in between of which many are
unlike them, or which no classifier can judge."""
COUNTS = "The counts:"  # begins the sentences on the records near each generator's texts
WORD_FILTER = "The word filter is a program"  # begins the sentences on how far its judgement is to be trusted
NOT_CLEARED = "the records' counts do not clear it"
TOO_FEW_NEAR = "too few records are near its texts"
STRAY = "texts of a generator that too few records are near"
BECAUSE = {
    GENERATOR: "too few hospital records are near this generator's texts ({ratio})",
    SUBJECT: f"the word filter takes them for {STRAY}",
    DOUBT: f"the records' counts do not clear this generator ({{standing}}), and more than {100 * FEW:.0f} % of its"
    " texts are such ones",
    UNJUDGED: "the records' counts neither clear this generator nor speak against it ({standing}), and no word filter"
    " could judge its texts",
}


@dataclass(frozen=True)
class Support:
    """The records' verdict on each generator.

    Attributes:
        records: estimated number of records that voted.
        votes: noisy votes for each generator's texts, float64 [K]; expected: by its share of the texts, float64 [K].
        error: standard error of ``votes / expected``, of the noise and of the records as a sample, float64 [K].
        records_error: standard deviation of ``records``; survivors: the parties whose records voted. Neither is
            recorded.
    """

    records: float
    votes: Float64
    expected: Float64
    error: Float64
    records_error: float = 0.0
    survivors: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> "Support":
        """Reads what :func:`ask` recorded of a run."""
        votes, expected, error = (np.array(recorded[name], dtype=np.float64) for name in ("votes", "expected", "error"))
        return cls(recorded["records"], votes, expected, error)

    @property
    def unsupported(self) -> Bools:
        """Marks generators that the votes refuse, bool [K]; none if even the best could be one without any votes."""
        support_ratio, error = self._beside_best(MOST)
        # Of two normal laws with means 0 and HALF, the first is so many times as likely.
        is_unsupported: Bools = HALF * (HALF / 2 - support_ratio) > np.log(LIKELIER) * error**2
        return is_unsupported & self.supported.any()

    @property
    def supported(self) -> Bools:
        """Marks generators that the votes clear, bool [K]; the best one, if the votes tell it from one without any."""
        support_ratio, error = self._beside_best(np.inf)
        is_supported: Bools = (support_ratio - ERRORS * error > ENOUGH) & (self.shares - ERRORS * self.error > LEAST)
        return is_supported

    @property
    def in_between(self) -> Bools:
        """Marks generators that the votes neither clear nor refuse, bool [K]."""
        is_in_between: Bools = ~self.supported & ~self.unsupported
        return is_in_between

    @property
    def shares(self) -> Float64:
        """Votes over the expected ones, float64 [K]; 0 without texts, where noise alone would be the best support."""
        return np.where(self.expected > NO_VOTES, self.votes / self.expected, 0.0)

    def standing(self, generator_number: int, names: Sequence[str]) -> str:
        """Says how near a generator in between is to the best one, and what it would need to be cleared."""
        ratio_words = self.ratio_words(generator_number, names)
        return f"{ratio_words}, and to be cleared it needs more than {ENOUGH} plus twice that error"

    def ratio_words(self, generator_number: int, names: Sequence[str]) -> str:
        """Says how many records are near a text of a generator, in multiples of those near a text of the best one."""
        support_ratio, error = self._beside_best(np.inf)
        best_author = names[int(self.shares.argmax())]
        record_multiple = max(0.0, float(support_ratio[generator_number]))
        return (
            f"a text of it has on average {record_multiple:.2f} times as many records near it as a text of"
            f" {best_author}, give or take {float(error[generator_number]):.2f}"
        )

    def counts_words(self, generator_numbers: Sequence[int], names: Sequence[str]) -> str:
        """Says how many records are nearest to the texts of these generators, and how many would be by chance."""
        nearest_words = [
            f"{max(0.0, float(self.votes[number])):.0f} (give or take"
            f" {float(self.error[number] * self.expected[number]):.0f}) to {names[number]}"
            for number in generator_numbers
        ]
        expected_words = [f"{float(self.expected[number]):.0f} to {names[number]}" for number in generator_numbers]
        return (
            f"if the texts of all generators were equally near, about {joined(expected_words)} of about"
            f" {self.records:.0f} hospital records would be nearest; counted were {joined(nearest_words)}."
        )

    def _beside_best(self, most: float) -> tuple[Float64, Float64]:
        """The generators' support over the best one's, which counts as ``most`` at most, and its errors: float64 [K].

        A generator is compared with the best one, and not with its share of the texts: the fewer texts of a pool are on
        topic, the larger a part of them is in the nearest third. Where a third is, half of a generator's texts suffice
        for the votes of its whole share.
        """
        best_author_index = int(self.shares.argmax())
        top_share = min(max(float(self.shares[best_author_index]), 1e-9), most)
        support_ratio = self.shares / top_share
        error = np.sqrt(self.error**2 + (support_ratio * self.error[best_author_index]) ** 2) / top_share
        error[best_author_index] = 0.0
        return support_ratio, error


@dataclass(frozen=True)
class Judgement:
    """Which texts of a pool are set aside, and which generators are left out.

    Attributes:
        reasons: reason for which each text is set aside; "" for a text that is not.
        left_out: generators of which nothing is published, and that write no more, bool [K].
        trial: how the classifier did on texts that it did not learn from; None if no classifier judged.
        too_few: True if no classifier judged because there were too few texts to teach one.
    """

    reasons: list[str]
    left_out: Bools
    trial: "ClassifierTrial | None" = None
    too_few: bool = False


@dataclass(frozen=True)
class ClassifierTrial:
    """Texts that a public classifier marked, of those whose generators the records have judged.

    Attributes:
        bad, marked_bad: texts of unsupported generators, and how many of them it marked.
        good, marked_good: texts of supported generators, and how many of them it marked.
        unsupported, supported: numbers of these generators.
    """

    bad: int
    marked_bad: int
    good: int
    marked_good: int
    unsupported: int = 1
    supported: int = 1

    @property
    def sentence(self) -> str:
        """Sentence on how far the classifier's judgement is to be trusted."""
        bad_generators, good_generators = (
            "the generator" if count == 1 else f"the {count} generators" for count in (self.unsupported, self.supported)
        )
        mistake_words = ": these may be mistakes" if self.marked_good else ""
        return (
            f"{WORD_FILTER} that sorts texts by their words: what it says is a guess, and no fact about a text. Of"
            f" texts that it did not learn from, it marked {self.marked_bad} of the {counted(self.bad, 'text')} of"
            f" {bad_generators} that too few records are near, and {self.marked_good} of the"
            f" {counted(self.good, 'text')} of {good_generators} that the records clear{mistake_words}."
        )


def statistic(setting: Setting, candidates: int) -> SupportVotes:
    """Returns the statistic that asks the records about at most ``candidates`` texts.

    A record votes among the nearest third of the texts. If a generator writes few texts of a label, chance decides
    whose texts these are; records are then compared with the texts of all labels.
    """
    generators, labels = len(setting.generators), len(setting.labels)
    return SupportVotes(generators, candidates, labels * (candidates >= TEXTS_BY_LABEL * generators * labels))


def ask(run: RunContext, name: str, label_shares: Float64) -> Support:
    """Opens the planned sum ``name`` over all texts so far. ``label_shares``: of the records, float64 [C]."""
    authors = run.pool.generator_of
    sum_inputs = [run.publish_pool(), run.publish_numbers("authors", authors.astype(np.float64))]
    generators, label_of = len(run.setting.generators), run.pool.label_of
    if not run.planned(name).parameters["labels"]:
        label_of, label_shares = np.zeros_like(label_of), np.ones(1)
    support = support_of(run.private_sum(name, sum_inputs), label_of, authors, generators, label_shares)
    return _recorded(run, support)


def _recorded(run: RunContext, support: Support) -> Support:
    columns = {name: getattr(support, name).tolist() for name in ("votes", "expected", "error")}
    run.record("support", 0, {"records": support.records, **columns})
    return support


def support_of(
    opened: NoisySum, label_of: Int64, generator_of: Int64, generators: int, label_shares: Float64
) -> Support:
    """Estimates support from the opened votes; label and generator of each text are int64 [n]."""
    label_count = len(label_shares)
    text_counts = np.bincount(generator_of * label_count + label_of, minlength=generators * label_count).reshape(
        generators, label_count
    )
    author_shares = (text_counts / np.maximum(text_counts.sum(axis=0), 1)) @ label_shares
    votes = opened.natural
    records_error = float(opened.sigma * np.sqrt(generators))
    record_count = max(float(votes.sum()), records_error, 1.0)
    vote_shares = np.clip(votes / record_count, 1.0 / record_count, 1.0)
    expected_votes = np.maximum(record_count * author_shares / max(float(author_shares.sum()), 1e-9), NO_VOTES)
    error = np.sqrt(opened.sigma**2 + record_count * vote_shares * (1 - vote_shares)) / expected_votes
    return Support(record_count, votes, expected_votes, error, records_error, opened.survivors)


def judgement(support: Support, texts: Sequence[str], generator_of: Int64, rng: np.random.Generator) -> Judgement:
    """Judges texts by their generators, and those of generators in between one by one, in public.

    Of a generator in between nothing is published where no classifier can judge it, or finds many of its texts off the
    subject: it overlooks some, and a supported generator writes instead.

    Args:
        generator_of: generator of each text, int64 [n].
        rng: public randomness, which deals texts to folds.
    """
    left_out, trial, too_few = support.unsupported, None, False
    reason_of_text = np.where(left_out[generator_of], GENERATOR, "").astype(object)
    if left_out.any():
        is_good, is_bad = support.supported[generator_of], left_out[generator_of]
        too_few = are_too_few(is_good, is_bad)
        is_off_subject = off_subject(texts, is_good, is_bad, rng)
        is_doubtful = support.in_between
        if is_off_subject is not None:
            marked_bad, marked_good = is_off_subject[is_bad].sum(), is_off_subject[is_good].sum()
            trial = ClassifierTrial(
                *(int(is_bad.sum()), int(marked_bad), int(is_good.sum()), int(marked_good)),
                *(int(left_out.sum()), int(support.supported.sum())),
            )
            reason_of_text[is_off_subject & (reason_of_text == "")] = SUBJECT
            generator_count = len(left_out)
            text_count_of_generator = np.maximum(np.bincount(generator_of, minlength=generator_count), 1)
            is_doubtful &= (
                np.bincount(generator_of, weights=is_off_subject, minlength=generator_count)
                > FEW * text_count_of_generator
            )
        doubt_reason = UNJUDGED if is_off_subject is None else DOUBT
        reason_of_text[is_doubtful[generator_of] & (reason_of_text == "")] = doubt_reason
        left_out = left_out | is_doubtful
    return Judgement([str(reason) for reason in reason_of_text], left_out, trial, too_few)


def are_too_few(good: Bools, bad: Bools) -> bool:
    """True if the texts marked good or bad, bool [n] each, are too few to teach a classifier that may judge others."""
    return bool((good.sum() + 1) * LENIENCE < 1 or bad.sum() < FOLDS)


def off_subject(texts: Sequence[str], good: Bools, bad: Bools, rng: np.random.Generator) -> Bools | None:
    """Marks the texts that look like bad ones, and like at most ``LENIENCE`` of the good ones, bool [n].

    A text is as good as its least likely window of words: half of it may be of another subject, and a classifier of the
    whole text sees the mean of both halves. It is compared with good texts as classifiers see them that did not learn
    from them (a conformal p-value, Vovk et al. 2005), so that a few texts, which a classifier learns by heart, judge
    nothing: with n good texts the smallest value is 1 / (n + 1). A classifier that overlooks bad texts judges nothing
    either. Returns None if no classifier can judge.
    """
    if are_too_few(good, bad):
        return None
    fold_of_text = np.zeros(len(texts), dtype=np.int64)
    for taught_texts in (good, bad):
        fold_of_text[taught_texts] = rng.permutation(int(taught_texts.sum())) % FOLDS
    supported_chances = _least_chances(texts, good, bad, fold_of_text)
    usual_chances = np.sort(supported_chances[good])
    # A good text counts among those that it is compared with. Any other text is counted in by adding 1.
    unlike_counts = np.searchsorted(usual_chances, supported_chances, side="right") + ~good
    is_unlike: Bools = (supported_chances < 0.5) & (unlike_counts <= LENIENCE * (len(usual_chances) + ~good))
    if is_unlike[bad].mean() >= RECALL:
        return is_unlike
    return None


def _least_chances(texts: Sequence[str], good: Bools, bad: Bools, fold: Int64) -> Float64:
    """The lowest probability that a window of each text is of a good text and not of a bad one, float64 [n].

    Good and bad texts are judged by a classifier of the other folds' texts, all others by one of all of them.
    """
    windows_by_text = [windows(text) for text in texts]
    text_of_window = np.repeat(np.arange(len(texts)), [len(text_windows) for text_windows in windows_by_text])
    window_rows = word_rows([window for text_windows in windows_by_text for window in text_windows])
    is_taught = good | bad
    least_chances = np.ones(len(texts))
    for held_out_fold in (None, *range(FOLDS)):
        if held_out_fold is None:
            is_judged = ~is_taught
        else:
            is_judged = is_taught & (fold == held_out_fold)
        if not is_judged.any():  # no generator is in between
            continue
        is_learnt = (is_taught & ~is_judged)[text_of_window]
        is_good = good[text_of_window][is_learnt]
        window_weights = np.where(is_good, 0.5 / is_good.mean(), 0.5 / (~is_good).mean())
        classifier = word_classifier(window_rows[is_learnt], is_good.astype(np.int64), 2, window_weights)
        window_chances = probabilities(classifier, window_rows[is_judged[text_of_window]])[:, 1]
        np.minimum.at(least_chances, text_of_window[is_judged[text_of_window]], window_chances)
    return least_chances


def with_support(requests: Sequence[SumRequest], generators: int, texts: int, share: float) -> list[SumRequest]:
    """Returns the requests and, after them, one for votes on at most ``texts`` texts, with ``share`` of the budget.

    Raises ConfigurationError for a task with one generator: there is none to compare it with.
    """
    if generators < 2:
        raise ConfigurationError(
            "privacy.support compares several generators, and the task has only one",
            "take privacy.support out, or add a generator",
            code="support-of-one",
        )
    return append_sum(requests, SumRequest(CORPUS, SupportVotes(generators, texts)), share, "privacy.support")


def supported_samples(run: RunContext, samples: Sequence[Sample]) -> list[Sample]:
    """Opens the votes for a method's corpus; returns the samples that are not set aside, and records the others.

    Records are compared with texts of all labels: a method that counts no labels does not know their shares. Texts of
    no generator of the task, and those beyond the planned number, are not voted on.
    """
    author_index = {name: number for number, name in enumerate(run.setting.generators)}
    task_samples = [sample for sample in samples if sample.generator in author_index]
    most_candidates = int(run.planned(CORPUS).parameters["candidates"])
    candidates, voted_samples = run.publish_samples("candidates", CORPUS, task_samples[:most_candidates])
    authors = np.array([author_index[sample.generator] for sample in voted_samples], dtype=np.int64)
    votes_sum = run.private_sum(CORPUS, [candidates, run.publish_numbers("authors", authors.astype(np.float64))])
    support = _recorded(run, support_of(votes_sum, np.zeros_like(authors), authors, len(author_index), np.ones(1)))
    task_texts = [sample.text for sample in task_samples]
    author_of = np.array([author_index[sample.generator] for sample in task_samples], dtype=np.int64)
    support_judgement = judgement(support, task_texts, author_of, run.rng("support folds"))
    record_left_out(run, support, support_judgement)
    record_set_aside(run, support, task_samples, support_judgement)
    texts_aside = {text for text, reason in zip(task_texts, support_judgement.reasons, strict=True) if reason}
    return [sample for sample in samples if sample.text not in texts_aside]


def record_left_out(run: RunContext, support: Support, verdict: Judgement) -> None:
    """Adds to the run's records, by generator that writes no more, the reason; card and report show it."""
    generator_names, classifier_words = run.setting.generators, "no word filter told the other generators' texts apart"
    if verdict.too_few:
        classifier_words = "there were too few texts to teach a word filter, which would judge its texts"
    elif verdict.trial is not None:
        classifier_words = f"the word filter takes more than {100 * FEW:.0f} % of its texts for {STRAY}"
    reason_by_name = {}
    for generator in np.flatnonzero(verdict.left_out).tolist():
        reason_by_name[generator_names[generator]] = TOO_FEW_NEAR
        if not support.unsupported[generator]:
            reason_by_name[generator_names[generator]] = (
                f"{support.standing(generator, generator_names)}; and {classifier_words}"
            )
    if reason_by_name:
        run.record(LEFT_OUT, 0, reason_by_name)


def record_set_aside(run: RunContext, support: Support, samples: Sequence[Sample], verdict: Judgement) -> None:
    """Records the samples that have a reason to be set aside, for the files, the card and the report."""
    samples_aside = [(sample, reason) for sample, reason in zip(samples, verdict.reasons, strict=True) if reason]
    if samples_aside:
        count_by_reason = Counter((sample.generator, reason) for sample, reason in samples_aside)
        run.record(RECORD, 0, [[*astuple(sample)[:5], reason] for sample, reason in samples_aside])
        run.record("remarks", 0, remark(support, count_by_reason, run.setting.generators, verdict.trial))
    elif unjudged_words := unjudged_remark(support, [sample.generator for sample in samples], run.setting.generators):
        run.record("remarks", 0, unjudged_words)


def unjudged_remark(support: Support, authors: Sequence[str], generators: Sequence[str]) -> str:
    """Says which generators in between have texts that nothing judged, as no generator was refused; "" for none.

    Args:
        authors: generator of each text that was kept.
    """
    unjudged = unjudged_generators(support, authors, generators)
    if not unjudged:
        return ""
    if len(unjudged) > MOST_STANDINGS:
        standings = [joined(unjudged)]
    else:
        standings = [f"{name}: {support.standing(generators.index(name), generators)}" for name in unjudged]
    return (
        "The records' counts neither clear nor refuse every generator, and no refused one's texts could teach a word"
        " filter that judges texts one by one: any text of theirs in the corpus is there without such a judgement, so"
        f" read some first. {'. '.join(standings)}."
    )


def unjudged_generators(support: Support, authors: Sequence[str], generators: Sequence[str]) -> list[str]:
    """Returns the generators among ``authors`` that the votes neither clear nor refuse."""
    return [name for number, name in enumerate(generators) if name in authors and support.in_between[number]]


def remark(
    support: Support,
    set_aside: Mapping[tuple[str, str], int],
    generators: Sequence[str],
    trial: ClassifierTrial | None = None,
) -> str:
    """Returns the sentences for the report, in counts. ``set_aside``: number of texts by generator and reason."""
    count_by_author = {name: count for name, count in set_aside.items() if count}
    if not count_by_author:
        return ""
    authors = {name for name, _ in count_by_author}
    text_count, model_count = sum(count_by_author.values()), len(authors)
    author_rows = [number for number, name in enumerate(generators) if name in authors]
    clauses = [
        f"{count_by_author[generators[number], reason]} of {generators[number]} because"
        f" {_because(reason, support, number, generators)} ({reason!r})"
        for reason in BECAUSE
        for number in author_rows
        if (generators[number], reason) in count_by_author
    ]
    texts_noun, models_noun = (
        ("text" if text_count == 1 else "texts"),
        ("one generator" if model_count == 1 else f"{model_count} generators"),
    )
    judged_by_words = {reason for _, reason in count_by_author} & {SUBJECT, DOUBT}
    classifier_words = f" {trial.sentence}" if trial and judged_by_words else ""
    return (
        f"{text_count} {texts_noun} of {models_noun} {'is' if text_count == 1 else 'are'} set aside, in"
        " set-aside.jsonl and in no other file,"
        f" and no part of the corpus: {'; '.join(clauses)}. {COUNTS}"
        f" {support.counts_words(author_rows, generators)}{classifier_words}"
    )


def _because(reason: str, support: Support, generator_number: int, names: Sequence[str]) -> str:
    ratio_words, standing_words = (
        support.ratio_words(generator_number, names),
        support.standing(generator_number, names),
    )
    return BECAUSE[reason].format(ratio=ratio_words, standing=standing_words)
