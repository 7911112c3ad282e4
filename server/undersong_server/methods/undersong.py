"""Undersong: generators judged by low-dimensional private sums, examples chosen by hub-corrected votes.

docs/method.md derives it. What differs from WASP (Zou et al. 2025): the records judge the K generators directly, in
2 K coordinates and not through N candidates: whose classifiers are right, and which mixture of generators lies where
they lie; they say how common each label is; most of the budget goes there, after the first round, since all later ones
gain from it; what the sums say is believed as far as their known noise lets it, so that without evidence the corpus is
the plain mixture; bad examples come from public data alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from undersong_common.arrays import Float64, Int64
from undersong_protocol.plan import SumRequest
from undersong_protocol.statistics.classifier_votes import ClassifierVotes
from undersong_protocol.statistics.corrected_votes import CorrectedVotes
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.statistics.hubness import hubness_correction
from undersong_protocol.statistics.projections import Projections
from undersong_protocol.vectors import NoisySum
from undersong_server.generators.author import Order
from undersong_server.methods.interface import Method, MethodOptions, RunContext, Setting
from undersong_server.methods.parts import consistency, matching
from undersong_server.methods.parts.selection import (
    highest,
    largest_remainder,
    sample_without_replacement,
    significant_votes,
)
from undersong_server.methods.parts.shrinkage import expected_shares, shrink_to_mean
from undersong_server.pool import Sample

STRENGTH = 3.0  # inverse regularisation of the generators' classifiers
SAMPLING_VARIANCE = 0.12  # of a record's centred answer, for classifiers that differ on about half of the records
AGAIN = 0.5  # trust counts so much more once places are matched: the right place does not make labels right
LABEL_CAUTION = 2.0
LEAST_LABEL_SHARE = 0.1  # of an equal share


class Options(MethodOptions):
    """[method] keys: ``samples`` N and ``rounds`` T. The others switch parts off for ablations; none needs tuning.

    ``votes`` Q nearest candidates, ``examples`` a prompt drawn from the ``shortlist`` best (and worst); ``vote_share``
    of the budget is for candidate votes (all rounds), ``label_share`` for the label histogram (0: labels are equally
    common), ``match_share`` of the rest for matching, what is left for usefulness. ``certain`` examples have votes that
    stand out of the noise; where none does the prompt shows none. ``usefulness`` is the strength of trust, which
    without ``hedge`` is that of the likeliest values alone; without ``matching`` the weights are trust; without
    ``shrink`` noisy sums are taken as they are. ``prune`` leaves out what was written beyond the weights and label
    shares before those were known.
    """

    samples: Annotated[int, Field(ge=1)] = 6000
    rounds: Annotated[int, Field(ge=2)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=1)] = 4
    shortlist: Annotated[int, Field(ge=1)] = 32
    vote_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    label_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    match_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    usefulness: Annotated[float, Field(ge=0)] = 40.0
    hedge: bool = True
    matching: bool = True
    hubs: bool = True
    shrink: bool = True
    bad: bool = True
    certain: bool = True
    prune: bool = True

    @model_validator(mode="after")
    def _something_is_left(self) -> Options:
        if self.vote_share + self.label_share >= 1.0:
            raise ValueError("vote_share and label_share leave nothing of the budget: their sum must be below 1")
        return self

    def per_round(self) -> list[int]:
        counts: list[int] = largest_remainder(np.ones(self.rounds), self.samples).tolist()
        return counts


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """After round 1: labels, where records lie, how useful generators are; after all rounds but the last, votes."""
    generators, labels = len(setting.generators), len(setting.labels)
    judged = generators > 1 and labels > 1
    counted = options.label_share if labels > 1 else 0.0
    rest = 1.0 - options.vote_share - counted
    requests = []
    if counted:
        requests.append(SumRequest("labels", LabelHistogram(labels), counted))
    if generators > 1:
        places = Projections(directions=generators - 1, labels=labels)
        requests.append(SumRequest("places", places, rest * (options.match_share if judged else 1.0)))
    if judged:
        useful = ClassifierVotes(classifiers=generators, labels=labels)
        requests.append(SumRequest("useful", useful, rest * (1.0 - options.match_share)))
    sizes = np.cumsum(options.per_round())[:-1]
    for t, size in enumerate(sizes):
        votes = CorrectedVotes(q=options.votes, candidates=int(size), labels=labels)
        requests.append(SumRequest(f"votes/{t + 1}", votes, options.vote_share / len(sizes)))
    return requests


def generator_calls(options: Options, setting: Setting) -> int:
    return options.samples


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """The method. Returns the synthetic corpus."""
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    judged = generators > 1 and labels > 1
    weights = np.full(generators, 1.0 / generators)
    trust = weights
    label_shares = np.full(labels, 1.0 / labels)
    ordered = np.zeros(labels, dtype=np.int64)
    good: list[list[str]] = [[] for _ in range(labels)]
    bad: list[list[str]] = [[] for _ in range(labels)]
    for t, count in enumerate(options.per_round()):
        run.record("weights", t, weights.tolist())
        wanted = _wanted(_counts(run, weights, count), label_shares, ordered)
        run.generate(f"round {t + 1}", t, _orders(options, run, t, wanted, good, bad))
        if t == options.rounds - 1:
            break
        embeddings, label_of, author = run.embeddings(run.pool.samples), run.pool.label_of, run.pool.generator_of
        written = embeddings, label_of, author, generators
        heads = consistency.classifiers(*written, labels, strength=STRENGTH) if judged else np.zeros(0)
        if t == 0 and labels > 1 and options.label_share:
            label_shares = common_labels(options, run.private_sum("labels", []))
            run.record("label shares", t, label_shares.tolist())
        if t == 0 and generators > 1:
            basis = matching.Basis.of(*written, len(run.setting.labels))
            places = run.private_sum("places", [run.publish_numbers("projections", basis.published())])
        if t == 0 and judged:
            useful = run.private_sum("useful", [run.publish_numbers("classifiers", heads)])
            sample_variance = consistency.training_sample_variance(
                *written, labels, run.rng("training sample variance"), strength=STRENGTH
            )
            trust = trusted(options, matching.records_of(places), useful, sample_variance, run.rng("trust"))
            run.record("trust", t, trust.tolist())
        if generators > 1:
            # The generators' means are better known with every round.
            matched = matching.shares(places, basis, basis.means(*written), trust, shrink=options.shrink)
            run.record("matched", t, matched.tolist())
            weights = believed(options, matched, trust)
        support = np.zeros(len(run.pool))
        if judged:
            support = consistency.support(heads, weights, embeddings, label_of, author)
        correction = hubness_correction(embeddings, label_of) if options.hubs else np.zeros(len(run.pool))
        shown = [run.publish_pool(), run.publish_numbers("hubness correction", correction)]
        opened = run.private_sum(f"votes/{t + 1}", shown)
        votes = opened.natural[: len(run.pool)]
        for label in range(labels):
            members = run.pool.of_label(label)
            sound = members[support[members] >= 0]  # others would give these texts the same label
            chosen = significant_votes(votes, sound, opened.sigma) if options.certain else sound
            good[label] = run.pool.texts_of(highest(votes, chosen, options.shortlist))
            if options.bad and judged:
                bad[label] = run.pool.texts_of(highest(-support, members, options.shortlist))
        run.record("examples", t, [len(texts) for texts in good])
    return _pruned(run, weights, label_shares) if options.prune else run.pool.samples


def common_labels(options: Options, counts: NoisySum) -> Float64:
    """Shares of the labels, float64 [C], sum 1: the geometric mean of equal ones and those believed of the records.

    Half-way, because a task model trained on the records' own shares gains its accuracy from the common labels alone:
    on clinical notes of twenty headers, balanced accuracy fell by a third (docs/method.md).
    """
    equal = 1.0 / len(counts.natural)
    records = max(float(counts.natural.sum()), counts.sigma, 1.0)
    shares = counts.natural / records
    noise = np.sqrt((counts.sigma / records) ** 2 + equal / records)
    different = shrink_to_mean(shares, float(noise), LABEL_CAUTION) if options.shrink else shares - shares.mean()
    found: Float64 = np.sqrt(np.maximum(equal + different, LEAST_LABEL_SHARE * equal))
    found /= found.sum()
    return found


def trusted(
    options: Options, records: float, useful: NoisySum, sample_variance: float, rng: np.random.Generator
) -> Float64:
    """Shares of the generators by usefulness alone, float64 [K], sum 1: expected under what is known of it.

    Usefulness is a mean per record; ``records`` is how many there are (noisy: :func:`matching.records_of`),
    ``sample_variance`` the variance that no number of records lessens (:func:`consistency.training_sample_variance`).
    """
    right = useful.natural / records
    noise = (
        np.sqrt((useful.sigma / records) ** 2 + SAMPLING_VARIANCE / records + sample_variance)
        if options.shrink
        else 0.0
    )
    return expected_shares(right, float(noise), options.usefulness, rng, hedge=options.hedge)


def believed(options: Options, matched: Float64, trust: Float64) -> Float64:
    """Weights of the generators, float64 [K], sum 1: matched shares, which start from trust, and trust once more."""
    weights: Float64 = matched * trust**AGAIN if options.matching else trust.copy()
    weights /= weights.sum()
    return weights


def _counts(run: RunContext, weights: Float64, count: int) -> Int64:
    """``count`` texts over the generators so that the whole corpus comes as near to ``weights`` as it can."""
    written = np.bincount(run.pool.generator_of, minlength=len(weights))
    return largest_remainder(np.maximum(weights * (written.sum() + count) - written, 0.0), count)


def _wanted(counts: Int64, label_shares: Float64, ordered: Int64) -> list[Int64]:
    """The labels that each generator is to write, so that all orders come as near to the shares as they can.

    ``ordered`` so far, a label; counts on.
    """
    wanted = []
    missing = label_shares * (ordered.sum() + counts.sum())
    for count in counts:
        table = largest_remainder(np.maximum(missing - ordered, 0.0), int(count))
        ordered += table
        wanted.append(np.repeat(np.arange(len(table)), table))
    return wanted


def _pruned(run: RunContext, weights: Float64, label_shares: Float64) -> list[Sample]:
    """The corpus without what each generator wrote beyond its weight's share of it, labels near their shares."""
    rng, label_of = run.rng("prune"), run.pool.label_of
    keep: list[Int64] = []
    for generator, share in enumerate(weights):
        mine = rng.permutation(np.flatnonzero(run.pool.generator_of == generator))
        allowed = int(np.ceil(share * len(run.pool)))
        # In turns over the labels: one with twice the share has two turns.
        turn = np.zeros(len(mine))
        for label in np.unique(label_of[mine]):
            members = np.flatnonzero(label_of[mine] == label)
            turn[members] = (np.arange(len(members)) + 0.5) / label_shares[max(label, 0)]
        keep.append(mine[np.argsort(turn, kind="stable")[:allowed]])
    return [run.pool.samples[i] for i in sorted(np.concatenate(keep).tolist())]


def _orders(
    options: Options, run: RunContext, t: int, wanted: Sequence[Int64], good: list[list[str]], bad: list[list[str]]
) -> list[Order]:
    rng = run.rng(f"round {t + 1}")
    orders = []
    for generator, labels in zip(run.setting.generators, wanted, strict=True):
        for label in labels:
            name = run.setting.labels[label] if run.setting.labels else ""
            half = options.examples // 2 if good[label] and bad[label] else 0
            shown, avoided = (
                sample_without_replacement(rng, good[label], options.examples - half),
                sample_without_replacement(rng, bad[label], half),
            )
            orders.append(Order(generator, "contrast" if shown else "zero_shot", name, good=shown, bad=avoided))
    return orders


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=generator_calls,
    run=run,
)
