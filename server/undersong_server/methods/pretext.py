"""PrE-Text (Hou et al. 2024): private evolution over a federation, then expansion of all texts that were voted for.

Phase 1 (algorithm 1), collection of seeds: a thresholded nearest-neighbour histogram per round, from which the next
texts are drawn and varied by filled gaps. Phase 2, their expansion: every text that ever passed the threshold is an
example from which new ones are written. Users are protected where the task says unit = "user" (or "party");
user_contribution = "sum" is the paper's form.
Deviations: noise by exact accounting over all rounds; the threshold (line 16 of algorithm 2) counts standard deviations
of the noise, so that it means the same at every epsilon (the published code: multiples of four noise scales).
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64
from undersong_protocol.limits import LARGEST_SUMS
from undersong_protocol.statistics import TopQVotes
from undersong_server.methods.augpe import by_sampling
from undersong_server.methods.interface import Method, Order, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts.papers import PresetOptions
from undersong_server.methods.parts.public_shares import PublicShares, deal_labels, public_shares
from undersong_server.methods.parts.schedules import Count, Rates, by_round, one_value_a_round
from undersong_server.methods.parts.shares import check_named
from undersong_server.prompts.rendering import MASK_RATE


class Options(PresetOptions):
    """Options of PrE-Text: its [method] keys.

    Attributes:
        samples: generator calls in all; ``seeds`` is the share of them for phase 1. A list has the texts of each round
            of phase 1 instead, and its sum is that share.
        threshold: of the histogram, in standard deviations of its noise.
        examples: seeds that a prompt of phase 2 shows.
        mask_rate: chance of a word of phase 1 to be hidden and filled; a list has one value a round, the first of which
            fills nothing.
        label_shares: of the corpus: "even", or a table with a number for each label.
    """

    method: ClassVar[str] = "pretext"

    samples: Annotated[int, Field(ge=2)] | tuple[Count, ...] = 6000  # type: ignore[assignment] # a schedule
    rounds: Annotated[int, Field(ge=2, le=LARGEST_SUMS)] = 5
    seeds: Annotated[float, Field(gt=0, lt=1)] = 0.5
    threshold: Annotated[float, Field(ge=0)] = 1.0
    examples: Annotated[int, Field(ge=1, le=100)] = 4
    mask_rate: Rates = MASK_RATE
    label_shares: PublicShares = "even"

    _schedules = one_value_a_round

    @property
    def populations(self) -> tuple[int, ...]:
        """Number of texts in each round of phase 1."""
        if isinstance(self.samples, tuple):
            return self.samples
        return (max(1, int(self.samples * self.seeds) // self.rounds),) * self.rounds

    @property
    def calls(self) -> int:
        """Number of texts ordered, both phases together."""
        if isinstance(self.samples, tuple):
            return round(sum(self.samples) / self.seeds)
        return self.samples


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns one private sum per round: a nearest vote per record for the round's texts."""
    check_named(options.label_shares, setting.labels)
    label_count = len(setting.labels)
    return [
        SumRequest(f"histogram/{t}", TopQVotes(q=1, candidates=population_size, labels=label_count, furthest=False))
        for t, population_size in enumerate(options.populations, start=1)
    ]


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs PrE-Text. Returns the seeds and the texts that were written from them."""
    generator_names, task_labels = run.setting.generators, run.setting.labels or ("",)
    shares = public_shares(options.label_shares, run.setting.labels)
    population_sizes, mask_rates = options.populations, by_round(options.mask_rate, options.rounds)
    ordered_labels = deal_labels(population_sizes[0], shares, np.zeros(len(task_labels), dtype=np.int64))
    round_orders = [
        Order(generator_names[order_number % len(generator_names)], "random", task_labels[label])
        for order_number, label in enumerate(ordered_labels)
    ]
    seeds: dict[Sample, None] = {}
    # Phase 1 (algorithm 1): texts are written, voted for and varied; those above the threshold become seeds.
    for t in range(options.rounds):
        written_samples = [sample for sample in run.write(f"round {t + 1}", t, round_orders) if sample is not None]
        label_numbers = run.label_numbers(written_samples)
        candidates_input = run.publish_vectors(
            "candidates", f"round/{t + 1}", run.embeddings(written_samples), label_numbers
        )
        histogram_sum = run.private_sum(f"histogram/{t + 1}", [candidates_input])
        histogram = subtract_threshold(
            histogram_sum.natural[: len(written_samples)], options.threshold * histogram_sum.sigma
        )
        seeds |= dict.fromkeys(written_samples[text_number] for text_number in np.flatnonzero(histogram))
        run.state_corpus(t, list(seeds))
        if t + 1 == options.rounds:
            break
        drawn_positions = by_sampling(
            histogram, label_numbers, population_sizes[t + 1], run.rng(f"selection {t + 1}"), shares
        )
        parent_samples, mask_rate = (
            [written_samples[position] for position in drawn_positions],
            mask_rates[t + 1],
        )
        round_orders = [
            Order(
                generator_names[(order_number + t) % len(generator_names)],
                "fill_in",
                parent.label,
                parents=(parent.text,),
                mask_rate=mask_rate,
            )
            for order_number, parent in enumerate(parent_samples)
        ]
    # Phase 2: new texts are written with the seeds as examples.
    run.pool.extend(seeds)
    run.generate("expansion", options.rounds, _expansion_orders(options, run, list(seeds)))
    run.state_corpus(options.rounds, run.pool.samples)
    return run.pool.samples


def subtract_threshold(histogram: Float64, threshold: float) -> Float64:
    """Subtracts the threshold from every count and sets negative rests to zero: float64 of the same shape.

    >>> subtract_threshold(np.array([3.0, 1.0, -2.0]), 1.5).tolist()
    [1.5, 0.0, 0.0]
    """
    return np.maximum(histogram - threshold, 0.0)


def _expansion_orders(options: Options, run: RunContext, seeds: Sequence[Sample]) -> list[Order]:
    generator_names, task_labels = run.setting.generators, run.setting.labels or ("",)
    rng = run.rng("expansion")
    call_count = options.calls - sum(options.populations)
    shares = public_shares(options.label_shares, run.setting.labels)
    ordered_labels = deal_labels(call_count, shares, np.zeros(len(task_labels), dtype=np.int64))
    texts_by_label = {label: [sample.text for sample in seeds if sample.label == label] for label in task_labels}
    expansion_orders = []
    for i, label in enumerate(ordered_labels):
        label_name, examples = task_labels[label], texts_by_label[task_labels[label]]
        if not examples:
            expansion_orders.append(Order(generator_names[i % len(generator_names)], "random", label_name))
            continue
        example_positions = rng.choice(len(examples), size=min(options.examples, len(examples)), replace=False)
        expansion_orders.append(
            Order(
                generator_names[i % len(generator_names)],
                "cross",
                label_name,
                parents=tuple(examples[position] for position in example_positions),
            )
        )
    return expansion_orders


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=lambda options, _setting: options.calls,
    run=run,
)
