"""FuseGen (Zou et al. 2024): several generators, no private data; task models' disagreement chooses the examples.

In each round a small task model is trained on every generator's own texts. A text's variability is the standard
deviation, over these models, of the probability of its label: candidates are the least variable (easy) and the most
variable (ambiguous) texts, and of those the ones with the highest self-boosted weights are shown to all generators.
Deviation from the paper: the task models are linear heads on the embeddings, refitted to the weights, where the paper
fine-tunes BERT and moves the weights between its epochs; the
corpus has no weights, its texts are drawn by them.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_server import learning
from undersong_server.methods.interface import Method, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.papers import PresetOptions
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.schedules import Counts, divided, one_value_a_round, total
from undersong_server.methods.parts.selection import drawn_by_weight, highest, largest_remainder
from undersong_server.methods.parts.shares import check_named

STRENGTH = 3.0  # inverse regularisation of its classifiers


class Options(PresetOptions):
    """Options of FuseGen: its [method] keys.

    Attributes:
        samples: N, texts in all; or a list with the texts of each round.
        rounds: T.
        candidates, examples: R candidates per label, of which S are shown.
        easy: share of the candidates that are the least variable texts.
        boosts: rounds of self-boosting, with ``rate``.
        label_shares: of the texts that are written: "even", or a table with a number for each label.
    """

    method: ClassVar[str] = "fusegen"

    samples: Counts = 6000  # type: ignore[assignment] # a schedule may stand for the number
    rounds: Annotated[int, Field(ge=1)] = 5
    candidates: Annotated[int, Field(ge=2)] = 40
    examples: Annotated[int, Field(ge=1)] = 8
    easy: Annotated[float, Field(ge=0, le=1)] = 0.5
    boosts: Annotated[int, Field(ge=0)] = 3
    rate: Annotated[float, Field(gt=0)] = 0.2
    label_shares: PublicShares = "even"

    _schedules = one_value_a_round


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns no private sum. Raises ConfigurationError for a task without labels."""
    if len(setting.labels) < 2:
        raise ConfigurationError("method fusegen needs task.labels", "name the labels, or choose another method")
    check_named(options.label_shares, setting.labels)
    return []


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs FuseGen. Returns the corpus, drawn by the last weights."""
    names, labels = run.setting.generators, run.setting.labels
    shares = public_shares(options.label_shares, labels)
    examples: list[list[str]] = [[] for _ in labels]
    weights = np.ones(0)
    for t, count in enumerate(divided(options.samples, options.rounds)):
        rng, orders = run.rng(f"round {t + 1}"), []
        written = np.zeros(len(labels), dtype=np.int64)
        for name, share in zip(names, largest_remainder(np.ones(len(names)), count), strict=True):
            wanted = deal_labels(int(share), shares, written)
            written += np.bincount(wanted, minlength=len(labels))
            orders += [_example_order(name, labels[label], examples[label], rng) for label in wanted]
        # Cross-model data generation: every generator is shown the examples chosen from all generators' texts.
        run.generate(f"round {t + 1}", t, orders)
        run.state_corpus(t, run.pool.samples)
        embeddings, label_of = run.embeddings(run.pool.samples), run.pool.label_of
        spread = variability(_classifier_opinions(run, embeddings, label_of))
        # Self-boosting weight adjustment
        weights = self_boosted(embeddings, label_of, len(labels), boosts=options.boosts, rate=options.rate)
        for label in range(len(labels)):
            members = run.pool.of_label(label)
            examples[label] = run.pool.texts_of(
                cross_selected(spread, weights, members, options.candidates, options.examples, options.easy)
            )
    return [run.pool.samples[i] for i in drawn_by_weight(weights, run.rng("corpus"))]


def variability(opinions: Float64) -> Float64:
    """Standard deviation over K task models of the probability of each text's label: float64 [K, n] -> float64 [n]."""
    found: Float64 = opinions.std(axis=0)
    return found


def cross_selected(spread: Float64, weights: Float64, members: Int64, candidates: int, size: int, easy: float) -> Int64:
    """Positions of the ``size`` heaviest of the candidates among ``members``, int64.

    Candidates are the members with the least spread, for the share ``easy``, and those with the most.

    Args:
        spread, weights: variability and weight of each text, float64 [n].
        members: positions to choose from, int64.
    """
    count = min(candidates, len(members))
    low = highest(-spread, members, round(easy * count))
    high = highest(spread, np.setdiff1d(members, low), count - len(low))
    return highest(weights, np.sort(np.concatenate([low, high])), size)


def self_boosted(embeddings: Float32, labels: Int64, classes: int, *, boosts: int, rate: float) -> Float64:
    """Weighs texts by whether a model trained with the weights agrees with their labels: float64 [n] of mean 1.

    After each of ``boosts`` trainings a weight becomes w exp(rate) if it agrees, w exp(-rate) if not, normalised.
    """
    weights = np.ones(len(labels))
    for _ in range(boosts):
        head = learning.classifier(embeddings, labels, classes, strength=STRENGTH, weights=weights)
        right = learning.probabilities(head, embeddings).argmax(axis=1) == labels
        weights = weights * np.exp(np.where(right, rate, -rate))
        weights /= weights.mean()
    return weights


def _classifier_opinions(run: RunContext, embeddings: Float32, label_of: Int64) -> Float64:
    author, classes = run.pool.generator_of, len(run.setting.labels)
    rows = np.arange(len(label_of))
    heads = [
        learning.classifier(embeddings[author == k], label_of[author == k], classes, strength=STRENGTH)
        for k in range(len(run.setting.generators))
    ]
    return np.stack([learning.probabilities(head, embeddings)[rows, label_of] for head in heads])


def _example_order(generator: str, label: str, examples: Sequence[str], rng: np.random.Generator) -> Order:
    if not examples:
        return Order(generator, "zero_shot", label)
    order = rng.permutation(len(examples))
    return Order(generator, "examples", label, good=tuple(examples[i] for i in order))


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=lambda options, _setting: total(options.samples),
    run=run,
    makes_private_sums=False,
)
