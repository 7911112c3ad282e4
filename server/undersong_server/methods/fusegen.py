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
from undersong_protocol.limits import LARGEST_SUMS
from undersong_server import learning
from undersong_server.methods.interface import Method, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.papers import PresetOptions
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.schedules import Counts, divided, one_value_a_round, total
from undersong_server.methods.parts.selection import draw_by_weight, highest, largest_remainder
from undersong_server.methods.parts.shares import check_named

STRENGTH = 3.0  # inverse regularisation of the task models


class Options(PresetOptions):
    """Options of FuseGen: its [method] keys.

    Attributes:
        samples: texts in all (N); or a list with the texts of each round.
        rounds: number of rounds (T).
        candidates, examples: R candidates per label, of which S are shown.
        easy: share of the candidates that are the least variable texts.
        boosts: rounds of self-boosting of the texts' weights, each by a factor of at most exp(``rate``).
        label_shares: of the texts that are written: "even", or a table with a number for each label.
    """

    method: ClassVar[str] = "fusegen"

    samples: Counts = 6000  # type: ignore[assignment] # a schedule may stand for the number
    rounds: Annotated[int, Field(ge=1, le=LARGEST_SUMS)] = 5
    candidates: Annotated[int, Field(ge=2)] = 40
    examples: Annotated[int, Field(ge=1, le=100)] = 8
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
    generator_names, task_labels = run.setting.generators, run.setting.labels
    shares = public_shares(options.label_shares, task_labels)
    examples: list[list[str]] = [[] for _ in task_labels]
    sample_weights = np.ones(0)
    for round_index, round_size in enumerate(divided(options.samples, options.rounds)):
        rng, round_orders = run.rng(f"round {round_index + 1}"), []
        written_count_of_label = np.zeros(len(task_labels), dtype=np.int64)
        for generator_name, order_count in zip(
            generator_names, largest_remainder(np.ones(len(generator_names)), round_size), strict=True
        ):
            ordered_labels = deal_labels(int(order_count), shares, written_count_of_label)
            written_count_of_label += np.bincount(ordered_labels, minlength=len(task_labels))
            round_orders += [
                _example_order(generator_name, task_labels[label], examples[label], rng) for label in ordered_labels
            ]
        # Cross-model data generation: every generator is shown the examples chosen from all generators' texts.
        run.generate(f"round {round_index + 1}", round_index, round_orders)
        run.state_corpus(round_index, run.pool.samples)
        embeddings, label_of = run.embeddings(run.pool.samples), run.pool.label_of
        opinion_spread = variability(_classifier_opinions(run, embeddings, label_of))
        # Self-boosting, the paper's name, raises the weights of texts with whose labels a task model agrees.
        sample_weights = boost_weights(
            embeddings, label_of, len(task_labels), boost_count=options.boosts, rate=options.rate
        )
        for label in range(len(task_labels)):
            label_rows = run.pool.of_label(label)
            examples[label] = run.pool.texts_of(
                select_examples(
                    opinion_spread, sample_weights, label_rows, options.candidates, options.examples, options.easy
                )
            )
    return [run.pool.samples[i] for i in draw_by_weight(sample_weights, run.rng("corpus"))]


def variability(opinions: Float64) -> Float64:
    """Standard deviation over K task models of the probability of each text's label: float64 [K, n] -> float64 [n]."""
    label_spread: Float64 = opinions.std(axis=0)
    return label_spread


def select_examples(
    spread: Float64, weights: Float64, members: Int64, candidate_limit: int, example_count: int, easy_share: float
) -> Int64:
    """Positions of the ``example_count`` heaviest of the candidates among ``members``, int64.

    Candidates are the members with the least spread, for the share ``easy_share``, and those with the most.

    Args:
        spread, weights: variability and weight of each text, float64 [n].
        members: positions to choose from, int64.
    """
    candidate_count = min(candidate_limit, len(members))
    easy_rows = highest(-spread, members, round(easy_share * candidate_count))
    ambiguous_rows = highest(spread, np.setdiff1d(members, easy_rows), candidate_count - len(easy_rows))
    return highest(weights, np.sort(np.concatenate([easy_rows, ambiguous_rows])), example_count)


def boost_weights(embeddings: Float32, labels: Int64, class_count: int, *, boost_count: int, rate: float) -> Float64:
    """Weighs texts by whether a model trained with the weights agrees with their labels: float64 [n] of mean 1.

    After each of ``boost_count`` trainings a weight becomes w exp(rate) if it agrees, w exp(-rate) if not, normalised.
    """
    sample_weights = np.ones(len(labels))
    for _ in range(boost_count):
        head = learning.classifier(embeddings, labels, class_count, strength=STRENGTH, weights=sample_weights)
        is_right = learning.probabilities(head, embeddings).argmax(axis=1) == labels
        sample_weights = sample_weights * np.exp(np.where(is_right, rate, -rate))
        sample_weights /= sample_weights.mean()
    return sample_weights


def _classifier_opinions(run: RunContext, embeddings: Float32, label_of: Int64) -> Float64:
    generator_of, class_count = run.pool.generator_of, len(run.setting.labels)
    text_numbers = np.arange(len(label_of))
    heads = [
        learning.classifier(
            embeddings[generator_of == generator_number],
            label_of[generator_of == generator_number],
            class_count,
            strength=STRENGTH,
        )
        for generator_number in range(len(run.setting.generators))
    ]
    return np.stack([learning.probabilities(head, embeddings)[text_numbers, label_of] for head in heads])


def _example_order(generator: str, label: str, examples: Sequence[str], rng: np.random.Generator) -> Order:
    if not examples:
        return Order(generator, "zero_shot", label)
    example_order = rng.permutation(len(examples))
    return Order(generator, "examples", label, good=tuple(examples[i] for i in example_order))


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=lambda options, _setting: total(options.samples),
    run=run,
    makes_private_sums=False,
)
