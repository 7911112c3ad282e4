"""Undersong: generators judged by low-dimensional private sums, examples by hub-corrected votes, texts by consistency.

docs/method.md derives it. What differs from WASP (Zou et al. 2025): a record votes for generators (K coordinates) and
not only for candidates (N); what is believed of the sums is shrunk by their known noise; bad examples and the final
selection come from public data alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from protocol.plan import SumRequest
from protocol.statistics import ClassifierVotes, CorrectedVotes, GeneratorVotes
from protocol.statistics.hubness import reach
from server import consistency
from server.generation import Order
from server.pool import Sample
from server.run import Run, Setting
from server.selection import balanced_labels, highest, largest_remainder
from server.trust import Evidence, shrunk


class Options(BaseModel):
    """[method] keys: ``samples`` N and ``rounds`` T; the others exist for ablations, nobody needs to tune them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: Annotated[int, Field(ge=1)] = 6000
    rounds: Annotated[int, Field(ge=2)] = 5
    votes: Annotated[int, Field(ge=1, le=16)] = 8
    examples: Annotated[int, Field(ge=2)] = 8
    shortlist: Annotated[int, Field(ge=1)] = 32
    vote_share: float = 0.15
    front: float = 0.5
    closeness: float = 1.0
    usefulness: float = 20.0
    close_share: float = 0.2  # of what candidate votes leave
    hard: bool = True
    hubs: bool = True
    shrink: bool = True
    bad: bool = True
    prune: float = 0.0  # log-odds below which a text is dropped
    prune_on: bool = False
    prior: float = 0.0
    strength: float = 3.0

    def per_round(self) -> list[int]:
        return largest_remainder(np.ones(self.rounds), self.samples).tolist()


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """After each round but the last: votes for generators, for their classifiers, and for candidates."""
    generators, labels = len(setting.generators), len(setting.labels)
    candidates = np.cumsum(options.per_round())
    requests = []
    for t in range(options.rounds - 1):
        early = options.front**t
        rest = (1.0 - options.vote_share) * early
        size = int(candidates[t])
        if generators > 1:
            judged = labels > 1
            close = GeneratorVotes(q=options.votes, generators=generators, labels=labels)
            requests.append(SumRequest(f"close/{t + 1}", close, rest * (options.close_share if judged else 1.0)))
            if judged:
                useful = ClassifierVotes(classifiers=generators, labels=labels, hard=options.hard)
                requests.append(SumRequest(f"useful/{t + 1}", useful, rest * (1 - options.close_share)))
        votes = CorrectedVotes(q=options.votes, candidates=size, labels=labels)
        requests.append(SumRequest(f"votes/{t + 1}", votes, options.vote_share * early))
    return requests


def generator_calls(options: Options, setting: Setting) -> int:
    return options.samples


def run(options: Options, run: Run) -> Sequence[Sample]:
    """The method. Returns the synthetic corpus."""
    generators, labels = len(run.setting.generators), max(1, len(run.setting.labels))
    weights = np.full(generators, 1.0 / generators)
    prior = np.zeros(generators)
    close, useful = Evidence.none(generators), Evidence.none(generators)
    good: list[list[str]] = [[] for _ in range(labels)]
    bad: list[list[str]] = [[] for _ in range(labels)]
    for t, count in enumerate(options.per_round()):
        run.record("weights", t, weights.tolist())
        run.generate(f"round {t + 1}", t, _orders(options, run, t, largest_remainder(weights, count), good, bad))
        if t == options.rounds - 1:
            break
        embeddings, label_of, author = run.embeddings(run.pool.samples), run.pool.label_of, run.pool.generator_of
        correction = reach(embeddings, label_of) if options.hubs else np.zeros(len(label_of))
        fits = np.zeros(len(run.pool))
        shown = [run.publish_pool(), run.publish_numbers("reach", correction)]
        if generators > 1:
            by = run.publish_numbers("authors", author.astype(np.float64))
            opened = run.private_sum(f"close/{t + 1}", [*shown, by])
            close.add(opened.natural, opened.sigma)
            if len(run.setting.labels) > 1:
                heads = _heads(options, run, embeddings, label_of, author)
                opened = run.private_sum(f"useful/{t + 1}", [run.publish_numbers("classifiers", np.stack(heads))])
                useful.add(opened.natural, opened.sigma)
                prior = consistency.agreement(heads, embeddings, label_of, author)
                prior -= prior.mean()
            weights = _weights(options, close, useful, prior)
            if len(run.setting.labels) > 1:
                fits = consistency.support(heads, weights, embeddings, label_of, author)
        votes = run.private_sum(f"votes/{t + 1}", shown).natural[: len(run.pool)]
        for label in range(labels):
            members = run.pool.of_label(label)
            sound = members[fits[members] >= 0]
            good[label] = run.pool.texts_of(highest(votes, sound if len(sound) else members, options.shortlist))
            bad[label] = run.pool.texts_of(highest(-fits, members, options.shortlist)) if options.bad else []
    return _consistent(options, run, weights)


def _weights(options: Options, close: Evidence, useful: Evidence, prior: np.ndarray) -> np.ndarray:
    """Closeness times the exponential of usefulness, both relative and shrunk by their noise; sums to 1."""
    generators = len(close.mean)
    records = max(float(close.mean.sum()), close.sigma * np.sqrt(generators), 1.0)  # a noisy count of the records
    share = close.mean * generators / records
    noise = np.sqrt((close.sigma * generators / records) ** 2 + (generators - 1) / records)
    relative = shrunk(share, noise) if options.shrink else share - share.mean()
    nearness = np.maximum(1.0 + relative, 0.05)
    right = useful.mean / records
    spread = np.sqrt((useful.sigma / records) ** 2 + 0.12 / records)
    right = right - options.prior * prior
    advantage = (shrunk(right, spread) if options.shrink else right - right.mean()) + options.prior * prior
    weights = nearness**options.closeness * np.exp(np.clip(options.usefulness * advantage, -20, 20))
    return weights / weights.sum()


def _heads(options: Options, run: Run, embeddings: np.ndarray, label_of: np.ndarray, author: np.ndarray) -> list:
    return [
        consistency.classifier(
            embeddings[author == k], label_of[author == k], len(run.setting.labels), strength=options.strength
        )
        for k in range(len(run.setting.generators))
    ]


def _consistent(options: Options, run: Run, weights: np.ndarray) -> Sequence[Sample]:
    """The corpus without the texts whose label the trusted rest of it would not give them."""
    if not options.prune_on:
        return run.pool.samples
    embeddings, label_of, author = run.embeddings(run.pool.samples), run.pool.label_of, run.pool.generator_of
    heads = _heads(options, run, embeddings, label_of, author)
    fits = consistency.support(heads, weights, embeddings, label_of, author)
    return [sample for sample, fit in zip(run.pool.samples, fits, strict=True) if fit >= options.prune]


def _orders(
    options: Options, run: Run, t: int, counts: np.ndarray, good: list[list[str]], bad: list[list[str]]
) -> list[Order]:
    rng = run.rng(f"round {t + 1}")
    written = np.zeros(len(good), dtype=np.int64)
    orders = []
    for generator, count in zip(run.setting.generators, counts, strict=True):
        wanted = balanced_labels(int(count), len(good), written)
        written += np.bincount(wanted, minlength=len(good))
        for label in wanted:
            name = run.setting.labels[label] if run.setting.labels else ""
            if not good[label]:
                orders.append(Order(generator, "zero_shot", name))
                continue
            half = options.examples // 2 if bad[label] else 0
            orders.append(
                Order(
                    generator,
                    "contrast",
                    name,
                    good=_drawn(rng, good[label], options.examples - half),
                    bad=_drawn(rng, bad[label], half),
                )
            )
    return orders


def _drawn(rng: np.random.Generator, texts: list[str], count: int) -> tuple[str, ...]:
    return tuple(texts[i] for i in rng.choice(len(texts), size=min(count, len(texts)), replace=False)) if count else ()
