"""Undersong: generators judged by low-dimensional private sums, examples chosen by hub-corrected votes.

docs/method.md derives it. What differs from WASP (Zou et al. 2025): the records judge the K generators directly, in
2 K coordinates and not through N candidates: whose classifiers are right, and which mixture of generators lies where
they lie; most of the budget goes there, after the first round, since all later ones gain from it; what the sums say is
shrunk by their known noise, so that without evidence the corpus is the plain mixture; bad examples come from public
data alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from protocol.plan import SumRequest
from protocol.statistics.classifier_votes import ClassifierVotes
from protocol.statistics.corrected_votes import CorrectedVotes
from protocol.statistics.hubness import reach
from protocol.statistics.projections import Projections
from protocol.vectors import NoisySum
from server import consistency, matching
from server.generation import Order
from server.pool import Sample
from server.run import Run, Setting
from server.selection import balanced_labels, highest, largest_remainder, standing_out
from server.trust import shrunk

Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]
STRENGTH = 3.0  # inverse regularisation of the generators' classifiers
SAMPLING_VARIANCE = 0.12  # of a record's centred answer, for classifiers that differ on about half of the records
LEAST_SHARE = 0.03  # of an equal share: where a generator's texts lie alone never silences it


class Options(BaseModel):
    """[method] keys: ``samples`` N and ``rounds`` T. The others switch parts off for ablations; none needs tuning.

    ``votes`` Q nearest candidates, ``examples`` a prompt drawn from the ``shortlist`` best (and worst); ``vote_share``
    of the budget is for candidate votes (all rounds), ``match_share`` of the rest for matching, what is left for
    usefulness. ``certain`` examples have votes that stand out of the noise; where none does the prompt shows none.
    Weights are matched ** ``matching`` * exp(``usefulness`` * gain). ``prune`` leaves out what the generators wrote
    beyond their weights before those were known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: Annotated[int, Field(ge=1)] = 6000
    rounds: Annotated[int, Field(ge=2)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=1)] = 4
    shortlist: Annotated[int, Field(ge=1)] = 32
    vote_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    match_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    matching: Annotated[float, Field(ge=0)] = 1.0
    usefulness: Annotated[float, Field(ge=0)] = 40.0
    hubs: bool = True
    shrink: bool = True
    bad: bool = True
    certain: bool = True
    prune: bool = True

    def per_round(self) -> list[int]:
        counts: list[int] = largest_remainder(np.ones(self.rounds), self.samples).tolist()
        return counts


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """After the first round how useful each generator is and where the records lie; after all but the last, votes."""
    generators, labels = len(setting.generators), len(setting.labels)
    rest = 1.0 - options.vote_share
    judged = generators > 1 and labels > 1
    requests = []
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


def run(options: Options, run: Run) -> Sequence[Sample]:
    """The method. Returns the synthetic corpus."""
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    judged = generators > 1 and labels > 1
    weights = np.full(generators, 1.0 / generators)
    trust = weights
    good: list[list[str]] = [[] for _ in range(labels)]
    bad: list[list[str]] = [[] for _ in range(labels)]
    for t, count in enumerate(options.per_round()):
        run.record("weights", t, weights.tolist())
        run.generate(f"round {t + 1}", t, _orders(options, run, t, _counts(run, weights, count), good, bad))
        if t == options.rounds - 1:
            break
        embeddings, label_of, author = run.embeddings(run.pool.samples), run.pool.label_of, run.pool.generator_of
        written = embeddings, label_of, author, generators
        heads = consistency.classifiers(*written, labels, strength=STRENGTH) if judged else np.zeros(0)
        if t == 0 and generators > 1:
            basis = matching.Basis.of(*written, len(run.setting.labels))
            places = run.private_sum("places", [run.publish_numbers("projections", basis.published())])
        if t == 0 and judged:
            useful = run.private_sum("useful", [run.publish_numbers("classifiers", heads)])
            luck = consistency.luck(*written, labels, run.rng("luck"), strength=STRENGTH)
            trust = trusted(options, matching.records_of(places), useful, luck)
            run.record("trust", t, trust.tolist())
        if generators > 1:
            # The generators' means are better known with every round.
            matched = matching.shares(places, basis, basis.means(*written), trust, shrink=options.shrink)
            run.record("matched", t, matched.tolist())
            weights = believed(options, matched, trust)
        support = np.zeros(len(run.pool))
        if judged:
            support = consistency.support(heads, weights, embeddings, label_of, author)
        correction = reach(embeddings, label_of) if options.hubs else np.zeros(len(run.pool))
        shown = [run.publish_pool(), run.publish_numbers("reach", correction)]
        opened = run.private_sum(f"votes/{t + 1}", shown)
        votes = opened.natural[: len(run.pool)]
        for label in range(labels):
            members = run.pool.of_label(label)
            sound = members[support[members] >= 0]  # others would give these texts the same label
            chosen = standing_out(votes, sound, opened.sigma) if options.certain else sound
            good[label] = run.pool.texts_of(highest(votes, chosen, options.shortlist))
            if options.bad and judged:
                bad[label] = run.pool.texts_of(highest(-support, members, options.shortlist))
        run.record("examples", t, [len(texts) for texts in good])
    return _pruned(run, weights) if options.prune else run.pool.samples


def trusted(options: Options, records: float, useful: NoisySum, luck: float) -> Float:
    """Shares of the generators by usefulness alone, float64 [K], sum 1: exponential in what is believed of it.

    Usefulness is a mean a record; ``records`` is how many there are (noisy: :func:`matching.records_of`), ``luck`` the
    variance that no number of records lessens (:func:`consistency.luck`).
    """
    right = useful.natural / records
    right_noise = np.sqrt((useful.sigma / records) ** 2 + SAMPLING_VARIANCE / records + luck)
    gain = shrunk(right, float(right_noise)) if options.shrink else right - right.mean()
    found: Float = np.exp(np.clip(options.usefulness * gain, -20.0, 20.0))
    found /= found.sum()
    return found


def believed(options: Options, matched: Float, trust: Float) -> Float:
    """Weights of the generators, float64 [K], sum 1: matched shares times trust."""
    weights: Float = np.maximum(matched * len(matched), LEAST_SHARE) ** options.matching * trust
    weights /= weights.sum()
    return weights


def _counts(run: Run, weights: Float, count: int) -> Int:
    """``count`` texts over the generators so that the whole corpus comes as near to ``weights`` as it can."""
    written = np.bincount(run.pool.generator_of, minlength=len(weights))
    return largest_remainder(np.maximum(weights * (written.sum() + count) - written, 0.0), count)


def _pruned(run: Run, weights: Float) -> list[Sample]:
    """The corpus without what each generator wrote beyond its weight's share of it; labels are thinned alike."""
    rng, label_of = run.rng("prune"), run.pool.label_of
    keep: list[Int] = []
    for generator, share in enumerate(weights):
        mine = rng.permutation(np.flatnonzero(run.pool.generator_of == generator))
        allowed = int(np.ceil(share * len(run.pool)))
        # In turns over the labels: the first of each label, then the second of each.
        turn = np.zeros(len(mine), dtype=np.int64)
        for label in np.unique(label_of[mine]):
            members = np.flatnonzero(label_of[mine] == label)
            turn[members] = np.arange(len(members))
        keep.append(mine[np.argsort(turn, kind="stable")[:allowed]])
    return [run.pool.samples[i] for i in sorted(np.concatenate(keep).tolist())]


def _orders(
    options: Options, run: Run, t: int, counts: Int, good: list[list[str]], bad: list[list[str]]
) -> list[Order]:
    rng = run.rng(f"round {t + 1}")
    written = np.zeros(len(good), dtype=np.int64)
    orders = []
    for generator, count in zip(run.setting.generators, counts, strict=True):
        wanted = balanced_labels(int(count), len(good), written)
        written += np.bincount(wanted, minlength=len(good))
        for label in wanted:
            name = run.setting.labels[label] if run.setting.labels else ""
            half = options.examples // 2 if good[label] and bad[label] else 0
            shown, avoided = _drawn(rng, good[label], options.examples - half), _drawn(rng, bad[label], half)
            orders.append(Order(generator, "contrast" if shown else "zero_shot", name, good=shown, bad=avoided))
    return orders


def _drawn(rng: np.random.Generator, texts: list[str], count: int) -> tuple[str, ...]:
    if not texts or not count:
        return ()
    return tuple(texts[i] for i in rng.choice(len(texts), size=min(count, len(texts)), replace=False))
