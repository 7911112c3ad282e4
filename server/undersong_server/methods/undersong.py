"""Undersong: a menu of corpora from the same texts, judged by the private records through small private sums.

docs/method.md derives it; the comments name its sections. It differs from WASP (Zou et al. 2025) in four ways:
- The records judge the K generators directly and not through N candidates.
- They then judge several corpora made of the texts, so that no single rule has to be right on every task.
- Every estimate is shrunk by its known noise. Without evidence the corpus is the plain mixture.
- Bad examples come from public data alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics.classifier_gradients import ClassifierGradients
from undersong_protocol.statistics.classifier_probabilities import ClassifierProbabilities
from undersong_protocol.statistics.classifier_votes import ClassifierVotes, ClassifierVotesInBlocks
from undersong_protocol.statistics.corrected_votes import CorrectedVotes, EqualVotes
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.statistics.hubness import hubness_correction
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.interface import Statistic
from undersong_protocol.statistics.projections import Projections
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.generators.orders import Order
from undersong_server.methods.interface import Method, MethodOptions, RunContext, Setting
from undersong_server.methods.parts import (
    consistency,
    corpora,
    judging,
    matching,
    moments,
    record_gradients,
    shares,
    shrinkage,
    soft_labels,
    thresholds,
)
from undersong_server.methods.parts.authors import Authors
from undersong_server.methods.parts.doubt import noise_effect_of_sums
from undersong_server.methods.parts.selection import (
    drawn_by_weight,
    effective_size,
    highest,
    largest_remainder,
    sample_without_replacement,
    significant_votes,
)
from undersong_server.pool import Sample

UNKNOWN_MU = 0.925  # of the budget where a plan is made without one: epsilon 4 at delta 1e-5
SHARES = {
    "useful": 0.3,
    "moments": 0.3,
    "verdict": 0.2,
    "places": 0.05,
    "authors": 0.1,
    "labels": 0.05,
    "votes": 0.05,
    "last votes": 0.4,
    "errors": 1.5,
    "last verdict": 0.1,
    "thresholds": 0.1,
}
STEPS = 3  # gradients that the records are asked for
REGIONS = 8  # of a label, between which its votes should tell
MOST_VOTE_NOISE = 1.0  # of the votes that the texts of one region are expected to get
TEXTS_PER_VOTE = 15  # of a label: a record votes for at most one in so many, or places near to it do not stand out
MOST_LABEL_NOISE = 1.0  # of a label's expected count
MOST_MOMENT_NOISE = 0.1  # of a label's mean place, in units of the texts' radius
MOST_ERROR_NOISE = 0.0035  # of a gradient, of a label's expected records
MOST_THRESHOLD_NOISE = 0.08  # of where the records lie along a classifier, in deviations of a label's texts
TEXTS_OF_RECORDS = 2.0  # near texts for each of an embedding's components, where they teach the records' classifier
MOST_VERDICT_NOISE = 0.05  # of a corpus's accuracy
MOST_LABELS_NOISE = 0.001  # of the accuracy of a corpus's labels


class Options(MethodOptions):
    """[method] keys. Users set ``samples`` and ``rounds``; the others are for ablations and need no tuning.

    Attributes:
        samples, rounds: N texts in all, and T.
        votes: Q, nearest candidates that a record votes for; at most so many in the last votes.
        examples, shortlist: texts that a prompt shows, drawn from so many best (and worst) texts per label.
        usefulness: strength of usefulness in trust.
        verdict: without it the corpus is the trusted one.
        without: a row of the menu that is left out; the soft labels, or of them the texts that read like records (whose
            sum is asked all the same), the thresholds, or the records' gradients.
    """

    samples: Annotated[int, Field(ge=1)] = 6000
    rounds: Annotated[int, Field(ge=2)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=1)] = 4
    shortlist: Annotated[int, Field(ge=1)] = 32
    usefulness: Annotated[float, Field(ge=0)] = 40.0
    verdict: bool = True
    without: Literal["", "trusted", "matched", "own-labels", "voted", "soft", "near", "thresholds", "gradients"] = ""

    def per_round(self) -> list[int]:
        counts: list[int] = largest_remainder(np.ones(self.rounds), self.samples).tolist()
        return counts


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the sums that the expected number of records can pay for, with their budget shares (section 2)."""
    generators, labels = len(setting.generators), len(setting.labels)
    several, labelled = generators > 1, labels > 1
    budget = setting.privacy
    mu = UNKNOWN_MU if budget is None else accounting.gaussian_mu(budget.epsilon, budget.delta)

    def noise(name: str, parts: int = labels) -> float:
        """Returns sigma of a sum of sensitivity 1, divided by the expected records of one of ``parts`` equal parts."""
        return parts / (mu * math.sqrt(SHARES[name]) * setting.expected_records)

    sums: dict[str, Statistic] = {}
    if labelled and noise("moments") < MOST_MOMENT_NOISE:
        sums["moments"] = Projections(directions=moments.DIRECTIONS, labels=labels, by_label=True)
    elif labelled and noise("labels") < MOST_LABEL_NOISE:
        sums["labels"] = LabelHistogram(labels)
    if several:
        sums["places"] = Projections(directions=generators - 1, labels=labels)
        sums["authors"] = ClassifierProbabilities(classes=generators)
    if several and labelled:
        sums["useful"] = ClassifierVotesInBlocks(classifiers=generators, labels=labels)
    asked = [SumRequest(name, statistic, SHARES[name]) for name, statistic in sums.items()]
    sizes = np.cumsum(options.per_round())
    votes = [CorrectedVotes(q=options.votes, candidates=int(size), labels=labels) for size in sizes[:-1]]
    verdict = labelled and options.verdict and noise("verdict", 1) < MOST_VERDICT_NOISE
    reached = max(1, min(options.votes, options.samples // (TEXTS_PER_VOTE * max(1, labels))))
    last = EqualVotes(q=reached, candidates=options.samples, labels=labels)
    deviation = last.sensitivity.l2 / (mu * math.sqrt(SHARES["last votes"]))
    regions = REGIONS * max(1, labels)
    deviation *= math.sqrt(options.samples / regions)
    expected = last.sensitivity.l1 * setting.expected_records / regions
    voted = verdict and options.without != "voted" and deviation < MOST_VOTE_NOISE * expected
    asked += [SumRequest(_votes(t), each, SHARES["votes"] / len(votes)) for t, each in enumerate(votes)]
    if voted:
        asked.append(SumRequest(_votes(options.rounds - 1), last, SHARES["last votes"]))
    if verdict:
        judged = ClassifierVotes(classifiers=len(corpora.menu(options.without, voted=voted)), labels=labels)
        asked.append(SumRequest("verdict", judged, SHARES["verdict"]))
    if verdict and options.without != "soft":
        asked += _label_sums(options, generators, labels, noise)
    return asked


def _label_sums(options: Options, generators: int, labels: int, noise: Callable[..., float]) -> list[SumRequest]:
    """Returns the sums for labels that the expected records can pay for: gradients, thresholds, verdict (section 5)."""
    errors = ClassifierGradients(directions=record_gradients.DIRECTIONS, labels=labels)
    judged = ClassifierVotes(classifiers=2, labels=labels)
    last = SumRequest("last verdict", judged, SHARES["last verdict"])
    steps_noise = errors.sensitivity.l2 * math.sqrt(STEPS) * noise("errors")
    if options.without != "gradients" and steps_noise <= MOST_ERROR_NOISE:
        return [*(SumRequest(_errors(step), errors, SHARES["errors"] / STEPS) for step in range(STEPS)), last]
    asked = []
    places = Projections(directions=labels - 1, labels=labels)
    far = 1.0 + math.sqrt(places.directions)  # about where all but a few of a label's texts lie
    wanted = generators > 1 and options.without != "thresholds"
    if wanted and far * noise("thresholds", 1) <= MOST_THRESHOLD_NOISE:
        asked.append(SumRequest("thresholds", places, SHARES["thresholds"]))
    if judged.sensitivity.l2 * noise("last verdict", 1) <= MOST_LABELS_NOISE:
        asked.append(last)
    return asked


def _errors(step: int) -> str:
    """The name of a gradient, counted from 0."""
    return f"errors/{step + 1}"


def _votes(t: int) -> str:
    """The name of the votes after round t, counted from 0."""
    return f"votes/{t + 1}"


def generator_calls(options: Options, setting: Setting) -> int:
    return options.samples


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """The method of docs/method.md. Returns the corpus."""
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    asked = {request.name: request.statistic for request in plan(options, run.setting)}
    weights, label_shares = np.full((generators, labels), 1.0 / generators), np.full(labels, 1.0 / labels)
    spent = np.zeros((generators, labels), dtype=np.bool_)
    examples = Examples([[] for _ in range(labels)], [[] for _ in range(labels)])
    judgement, noise = None, None
    for t, count in enumerate(options.per_round()):
        run.record("weights", t, (weights @ label_shares).tolist())
        if noise is not None:
            run.record("weights noise", t, noise.tolist())
        orders = shares.to_write(_written_table(run), weights, label_shares, spent, count)
        spent |= _write(options, run, t, orders, examples)
        if not len(run.pool):
            raise ConfigurationError("the generators wrote no text in the first round", "look at their counts above")
        written = _written(run)
        if judgement is None:
            judgement = _judge(options, run, asked, written)
            label_shares, weights = judgement.label_shares, _writing_weights(judgement, judgement.shares)
            noise = _noise(judgement, partial(_shares_written, judgement))
        if t < options.rounds - 1:
            examples = _choose(options, run, t, written, judgement)
    assert judgement is not None  # there are at least two rounds
    return _corpus(options, run, asked, written, judgement)


class Written(NamedTuple):
    """The texts written so far: unit embeddings, float32 [N, d]; labels and generators, int64 [N]; numbers of both."""

    embeddings: Float32
    label_of: Int64
    generator_of: Int64
    generators: int
    labels: int


class Judgement(NamedTuple):
    """Estimates from the private sums that are opened after the first round.

    Attributes:
        records: approximate number of records.
        label_shares: float64 [C].
        moments: of the labels; None where they were not asked for.
        shares: of the generators; equal ones where nothing was asked.
        evidence: the sums behind ``shares``; None if no sum was opened for them.
        heads: the generators' classifiers; None where there is one label or one generator.
        rightness: of the first texts at each strength (:func:`soft_labels.rightness_for_others`); None where it was
            not tried.
    """

    records: float
    label_shares: Float64
    moments: moments.LabelMoments | None
    shares: judging.Shares
    evidence: judging.Evidence | None
    heads: Float64 | None
    rightness: Float64 | None

    @property
    def careful(self) -> bool:
        """True if the first texts call for stronger regularisation than a task model would choose (section 5)."""
        return self.rightness is not None and soft_labels.surely_careful(self.rightness)


class Examples(NamedTuple):
    """Texts that prompts show as good and as bad ones, best first, per label."""

    good: list[list[str]]
    bad: list[list[str]]


def _written(run: RunContext) -> Written:
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    return Written(run.embeddings(run.pool.samples), run.pool.label_of, run.pool.generator_of, generators, labels)


def _judge(options: Options, run: RunContext, asked: Mapping[str, Statistic], written: Written) -> Judgement:
    """Opens the sums on labels, places and usefulness (section 1). Once is enough, since generators do not change."""
    generators, labels = written.generators, written.labels
    label_shares, found, records = np.full(labels, 1.0 / labels), None, float(run.setting.expected_records)
    if "moments" in asked:
        frame = moments.Frame.of(written.embeddings, written.label_of, labels)
        opened = _ask_places(run, "moments", frame.published())
        found = moments.LabelMoments.of(frame, opened)
    if found is not None or "labels" in asked:
        counts = found.label_counts if found is not None else run.private_sum("labels", [])
        label_shares, records = judging.label_shares(counts), judging.records_of(counts)
        run.record("label shares", 0, label_shares.tolist())
    equal = np.full((generators, labels), 1.0 / generators)
    read, evidence, heads = judging.Shares(np.zeros_like(equal), equal, equal, equal), None, None
    if "places" in asked:
        evidence, heads = _evidence(options, run, asked, written, label_shares)
        records, read = matching.records_of(evidence.sums[0]), evidence.shares(*evidence.sums)
        if heads is not None:
            run.record("blocks", 0, evidence.block_of.tolist())
            run.record("trust", 0, (read.trust @ label_shares).tolist())
        run.record("matched", 0, (read.matched @ label_shares).tolist())
        run.record("near", 0, (read.near @ label_shares).tolist())
    rightness = None
    enough = len(written.embeddings) > written.embeddings.shape[1]
    judged = evidence is not None and heads is not None and not evidence.block_of.any()
    if judged and enough and options.without != "soft":
        rightness = soft_labels.rightness_for_others(*written, np.ones(len(written.label_of)))
    return Judgement(records, label_shares, found, read, evidence, heads, rightness)


def _evidence(
    options: Options, run: RunContext, asked: Mapping[str, Statistic], written: Written, label_shares: Float64
) -> tuple[judging.Evidence, Float64 | None]:
    """Opens the sums that compare generators; returns them, and the generators' classifiers (None without "useful")."""
    embeddings, label_of, author, generators, labels = written
    basis = matching.Basis.of(*written)
    authors = Authors.of(*written[:4], judging.records_shares(label_shares), run.rng("folds"))
    sums = [
        _ask_places(run, "places", basis.published()),
        run.private_sum("authors", [run.publish_numbers("classifier", authors.classifier)]),
    ]
    heads, sample_variance, block_of = None, 0.0, np.zeros(labels, dtype=np.int64)
    if "useful" in asked:
        halved = consistency.halvings(*written, run.rng("training sample variance"))
        sample_variance = consistency.training_sample_variance(halved[0], embeddings, label_of, author)
        block_of = consistency.blocks(halved, embeddings)
        heads = consistency.classifiers(*written, label_shares=label_shares)
        published = [
            run.publish_numbers("classifiers", heads),
            run.publish_numbers("blocks", block_of.astype(np.float64)),
        ]
        opened = run.private_sum("useful", published)
        sums.append(replace(opened, values=opened.values[: generators * (block_of.max() + 1)]))  # the rest is noise
    evidence = judging.Evidence(
        sums=tuple(sums),
        basis=basis,
        means=basis.means(embeddings, label_of, author, generators),
        authors=authors,
        alike=consistency.alike(*written),
        block_of=block_of,
        label_shares=label_shares,
        sample_variance=sample_variance,
        strength=options.usefulness,
        rng=partial(run.rng, "trust"),
    )
    return evidence, heads


def _writing_weights(judgement: Judgement, read: judging.Shares) -> Float64:
    """Returns the writing weights, float64 [K, C]: the mean of the shares that possible corpora need (section 3)."""
    wanted = [np.full_like(read.trust, 1.0 / len(read.trust)), read.trust, read.matched]
    if judgement.careful:
        wanted.append(read.near)
    weights: Float64 = np.mean(wanted, axis=0)
    return weights


def _shares_written(judgement: Judgement, read: judging.Shares) -> Float64:
    """The generators' shares of what is written, labels together, float64 [K]."""
    return _writing_weights(judgement, read) @ judgement.label_shares


def _noise(judgement: Judgement, weigh: Callable[..., Float64], *verdict: NoisySum) -> Float64 | None:
    """Standard deviation that the opened noise gives the generators' weights, float64 [K].

    Classifiers and the last votes are held. None where nothing was asked of the generators.

    Args:
        weigh: the weights by the generators' shares and, where the corpora were judged, by that ``verdict``.
    """
    evidence = judgement.evidence
    if evidence is None:
        return None
    asked = len(evidence.sums)
    return noise_effect_of_sums(
        lambda *sums: weigh(evidence.shares(*sums[:asked]), *sums[asked:]), *evidence.sums, *verdict
    )


def _corpus(
    options: Options, run: RunContext, asked: Mapping[str, Statistic], written: Written, judgement: Judgement
) -> Sequence[Sample]:
    """Builds the menu's corpora, opens the records' verdict and returns the mixture it implies (sections 3 and 4)."""
    last = _votes(options.rounds - 1)
    read, menu = judgement.shares, corpora.menu(options.without, voted=last in asked)
    facts = corpora.Facts(written.label_of, written.generator_of, judgement.label_shares, read.trust, read.matched)
    verdict: list[NoisySum] = []
    answers = np.zeros((0, len(menu)), dtype=np.bool_)
    if "verdict" in asked:
        plain = corpora.MENU["mixture"].weigh(facts)
        own, leverage = moments.posterior(
            written.embeddings, written.label_of, plain, written.labels, judgement.moments
        )
        facts = facts._replace(own=own, leverage=leverage)
        if last in asked:
            votes, sigma = _voted(run, last, written)
            smoothed = shrinkage.smoothed_counts(votes, sigma, written.embeddings, written.label_of)
            facts = facts._replace(voted=shrinkage.expected_counts(*smoothed))
        weighed = corpora.weighed(menu, facts)
        heads = corpora.classifiers(written.embeddings, written.label_of, written.labels, weighed)
        verdict.append(run.private_sum("verdict", [run.publish_numbers("classifiers", heads)]))
        answers = corpora.right(heads, written.embeddings, written.label_of)

    def chosen(read: judging.Shares, *opened: NoisySum) -> tuple[Float64, Float64, Float64]:
        """The corpora's shares, their gains, float64 [J] each, and the texts' weights, float64 [n]."""
        seen = facts._replace(trust=read.trust, matched=read.matched)
        weighed = corpora.weighed(menu, seen)
        if not opened:
            wanted = "trusted" if len(run.setting.labels) > 1 else "matched"  # without labels nothing can be judged
            kept_row = wanted if wanted in menu else "mixture"
            only = np.array([name == kept_row for name in menu], dtype=np.float64)
            return only, np.zeros(len(menu)), corpora.blended(weighed, only)
        expected = corpora.expected_gains(menu, seen, read.usefulness)
        flattery = corpora.flattery(menu, seen)
        found, gains = corpora.verdict(menu, opened[0], judgement.records, answers, expected, flattery)
        return found, gains, corpora.blended(weighed, found)

    def of_generators(weights: Float64, author: Int64) -> Float64:
        found = np.bincount(author, weights=weights, minlength=written.generators)
        result: Float64 = found / found.sum()
        return result

    by_corpus, gains, weights = chosen(read, *verdict)
    if verdict:
        run.record("corpora", options.rounds - 1, dict(zip(menu, by_corpus.tolist(), strict=True)))
        run.record("gains", options.rounds - 1, dict(zip(menu, gains.tolist(), strict=True)))
    taught = _taught(options, run, asked, written, judgement, weights)

    near = corpora.by_shares(facts, read.near)
    enough = _can_teach(near, written.embeddings.shape[1], of_records=_errors(0) in asked)
    by_texts = taught.careful and enough and options.without != "near"

    def final(read: judging.Shares, *opened: NoisySum) -> Float64:
        """Returns the texts' weights, float64 [n]: by the shares "near" if the soft labels allow any texts."""
        return corpora.by_shares(facts, read.near) if by_texts else chosen(read, *opened)[2]

    noise = _noise(judgement, lambda *seen: of_generators(final(*seen), written.generator_of), *verdict)
    kept = drawn_by_weight(near if by_texts else weights, run.rng("corpus"))
    likely = taught.labels(written.embeddings[kept], written.label_of[kept], np.ones(len(kept)), written.labels)
    label_of = likely.argmax(axis=1)
    run.record("weights", options.rounds, of_generators(np.ones(len(kept)), written.generator_of[kept]).tolist())
    if noise is not None:
        run.record("weights noise", options.rounds, noise.tolist())
    return [_labelled(run, text, label) for text, label in zip(kept.tolist(), label_of.tolist(), strict=True)]


def _can_teach(weights: Float64, components: int, *, of_records: bool) -> bool:
    """Returns True if soft labels of texts with these weights, float64 [n], can teach any classifier.

    The effective number of texts must exceed the embedding's components. A classifier moved by the records' gradients
    contains information that is in no text, and needs ``TEXTS_OF_RECORDS`` times as many.
    """
    return effective_size(weights) > (TEXTS_OF_RECORDS if of_records else 1.0) * components


class Teacher(NamedTuple):
    """A classifier, float64 [d + 1, C], and the strength of the task model that learns it from the labels."""

    head: Float64
    strength: float


class Taught(NamedTuple):
    """Mixture of labels for the corpus: shares of soft labels that teach a classifier, and of ordered labels (None)."""

    parts: list[tuple[float, Teacher | None]]

    @property
    def careful(self) -> bool:
        """True if all labels are soft labels made for the strength ``STRONGEST``; any texts can then teach the same."""
        return all(teacher is not None and teacher.strength == soft_labels.STRONGEST for _, teacher in self.parts)

    def labels(self, embeddings: Float32, label_of: Int64, weights: Float64, classes: int) -> Float64:
        """Probability of each label for each text, float64 [n, C], for texts with these weights, of mean 1."""
        found = np.zeros((len(label_of), classes))
        for share, teacher in self.parts:
            if teacher is None:
                found += share * np.eye(classes)[label_of]
            else:
                found += share * soft_labels.labels_that_teach(
                    teacher.head, embeddings, label_of, weights, teacher.strength
                )
        return found


AS_ORDERED = Taught([(1.0, None)])


def _taught(
    options: Options,
    run: RunContext,
    asked: Mapping[str, Statistic],
    written: Written,
    judgement: Judgement,
    weights: Float64,
) -> Taught:
    """Returns labels from which a task model learns what generalises beyond these texts (section 5)."""
    embeddings, label_of, _, _, labels = written
    if options.without == "soft" or labels == 1:
        return AS_ORDERED
    learn = partial(consistency.classifier, embeddings, label_of, labels, weights=weights)
    strength, closest = _strength(run, written, judgement, weights), None
    if strength is not None:
        run.record("strength", 0, strength)
        if strength in (*soft_labels.CAREFUL, *soft_labels.CLOSE):
            head = learn(strength=strength)
            if "thresholds" in asked and strength in soft_labels.CAREFUL:
                told = partial(_ask_places, run, "thresholds")
                head = thresholds.at_thresholds(head, embeddings, label_of, weights, judgement.records, told)
            closest = Teacher(head, soft_labels.STRONGEST if strength in soft_labels.CAREFUL else soft_labels.SURE)
    if "last verdict" not in asked:
        return Taught([(1.0, closest)])
    careful = closest if strength in soft_labels.CAREFUL else None
    first = careful.head if careful is not None else learn()
    second: Teacher | None
    if _errors(0) in asked:
        ask = [partial(_ask, run, _errors(step)) for step in range(STEPS)]
        other = record_gradients.moved(first, embeddings, weights, judgement.records, ask)
        kind = "records"
        second = Teacher(other, soft_labels.STRONGEST)
    else:
        kind, second = "sure", None if careful is not None else closest
        likely = Taught([(1.0, second)]).labels(embeddings, label_of, weights, labels)
        other = consistency.classifier(embeddings, likely.argmax(axis=1), labels, weights=weights)
    found = _last_verdict(run, kind, np.stack([first, other]), written, judgement.records)
    return Taught(list(zip(found.tolist(), (careful, second), strict=True)))


def _ask_places(run: RunContext, name: str, projections: Float64) -> NoisySum:
    """Publishes projections and opens the sum of the records' places along them."""
    return run.private_sum(name, [run.publish_numbers("projections", projections)])


def _ask(run: RunContext, name: str, classifier: Float64, projections: Float64) -> NoisySum:
    """Publishes a classifier and opens the gradient of the records' log-likelihood under it, along the projections."""
    published = [run.publish_numbers("classifier", classifier), run.publish_numbers("projections", projections)]
    return run.private_sum(name, published)


def _last_verdict(run: RunContext, kind: str, heads: Float64, written: Written, records: float) -> Float64:
    """Opens the records' verdict on two classifiers; returns the shares of the two kinds of labels, float64 [2]."""
    rows = {name: corpora.LABELLED[name] for name in ("texts", kind)}
    heads = COEFFICIENTS.quantised(heads)
    opened = run.private_sum("last verdict", [run.publish_numbers("classifiers", heads)])
    answers = corpora.right(heads, written.embeddings, written.label_of)
    expected = np.array([-each.cost for each in rows.values()])
    found, gains = corpora.verdict(rows, opened, records, answers, expected, np.zeros(len(heads)))
    run.record("labels", 0, dict(zip(rows, found.tolist(), strict=True)))
    run.record("label gains", 0, dict(zip(rows, gains.tolist(), strict=True)))
    return found


def _strength(run: RunContext, written: Written, judgement: Judgement, weights: Float64) -> float | None:
    """Returns the regularisation strength for the texts; None if generators cannot be validated on each other."""
    evidence = judgement.evidence
    if evidence is None or evidence.block_of.any():
        return None
    halved = consistency.halvings(*written, run.rng("halves of all texts"))
    if consistency.blocks(halved, written.embeddings).any():
        return None
    rightness = soft_labels.rightness_for_others(*written, weights)
    if rightness is None:
        return None
    found = soft_labels.strength_for_others(judgement.rightness, rightness)
    one_source = len(np.unique(evidence.alike)) == 1
    return None if one_source and found not in soft_labels.CAREFUL else found


def _labelled(run: RunContext, text: int, label: int) -> Sample:
    """A text of the pool under a label, its own or another."""
    sample = run.pool.samples[text]
    name = run.setting.labels[label] if run.setting.labels else sample.label
    return sample if name == sample.label else replace(sample, label=name)


def _choose(options: Options, run: RunContext, t: int, written: Written, judgement: Judgement) -> Examples:
    """Chooses good examples by significant votes and bad ones by the public classifiers, at no cost (section 6)."""
    size = len(written.label_of)
    support = np.zeros(size)  # below 0 the other generators' classifiers contradict a text's label
    if judgement.heads is not None:
        support = consistency.support(
            judgement.heads, judgement.shares.trust, written.embeddings, written.label_of, written.generator_of
        )
    votes, sigma = _voted(run, _votes(t), written)
    good, bad = [], []
    for label in range(written.labels):
        members = run.pool.of_label(label)
        sound = members[support[members] >= 0]
        good.append(run.pool.texts_of(highest(votes, significant_votes(votes, sound, sigma), options.shortlist)))
        contradicted = highest(-support, members, options.shortlist if judgement.heads is not None else 0)
        bad.append(run.pool.texts_of(contradicted))
    run.record("examples", t, [len(texts) for texts in good])
    return Examples(good, bad)


def _voted(run: RunContext, name: str, written: Written) -> tuple[Float64, float]:
    """Opens the records' votes for the texts, corrected for hubness, float64 [N]; returns them and their sigma."""
    correction = hubness_correction(written.embeddings, written.label_of)
    opened = run.private_sum(name, [run.publish_pool(), run.publish_numbers("hubness correction", correction)])
    return opened.natural[: len(written.label_of)], opened.sigma


def _write(options: Options, run: RunContext, t: int, wanted: Int64, examples: Examples) -> Bools:
    """Orders ``wanted`` texts, int64 [K, C], each with newly drawn examples; returns the cells that yielded too few."""
    rng, rng_of_others = run.rng(f"round {t + 1}"), run.rng(f"round {t + 1}, in place of bad examples")
    orders = []
    for k, generator in enumerate(run.setting.generators):
        for label in np.repeat(np.arange(wanted.shape[1]), wanted[k]):
            good, bad = examples.good[label], examples.bad[label]
            half = options.examples // 2 if good and bad else 0
            shown = sample_without_replacement(rng, good, options.examples - half)
            avoided = sample_without_replacement(rng, bad, half)
            others = [text for text in good if text not in shown]
            instead = sample_without_replacement(rng_of_others, others, len(avoided))
            name = run.setting.labels[label] if run.setting.labels else ""
            kind = "contrast" if shown else "zero_shot"
            order = Order(generator, kind, name, shown, avoided, bad_reason="mislabelled", good_for_bad=instead)
            orders.append(order)
    before = _written_table(run)
    run.generate(f"round {t + 1}", t, orders)
    return shares.spent(wanted, _written_table(run) - before)


def _written_table(run: RunContext) -> Int64:
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    return shares.table(run.pool.generator_of, run.pool.label_of, generators, labels)


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
)
