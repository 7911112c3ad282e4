"""Vector: the records' mean hidden states steer the model that writes (after EPSVec); docs/vector.md has the steps.

Deviations from EPSVec (Banayeeanzade et al. 2026): the states are a run's embeddings, a text's mean over its tokens at
one layer, as unit vectors on public principal axes; the sum of each label is opened; what is opened is shrunk by its
known noise; and the public side of the difference is the mean of the texts that the model's folder was prepared from.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import EmbeddingSum, LabelHistogram, LengthHistogram
from undersong_server.methods.interface import (
    Method,
    MethodOptions,
    Order,
    RunContext,
    Sample,
    Setting,
    SumRequest,
    plan_sums,
)
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.methods.parts.shares import (
    LabelShares,
    check_named,
    label_shares,
    records_of,
    records_shares,
    wanted_shares,
)

PART_COUNTS, PART_VECTORS = 1.0, 9.0  # parts of the budget
# Edges of a length histogram, in words, whose one bin counts every record of a task without labels.
EVERYONE = (0, 1 << 30)


class Options(MethodOptions):
    """Options of the method ``vector``: its [method] keys.

    Attributes:
        samples: texts to order.
        label_shares: of the corpus: half-way between equal shares and the records' ("half"), the "records"' own,
            "even", or a table with a number for each label.
        strength: of the steering: 1 adds the estimated mean difference, 0 writes zero-shot texts.
        embedding_size: coordinates of an embedding, as the model's folder was prepared.
    """

    samples: Annotated[int, Field(ge=1)] = 6000
    label_shares: LabelShares = "half"
    strength: Annotated[float, Field(ge=0, le=100)] = 1.0
    embedding_size: Annotated[int, Field(ge=1)] = 64


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns two private sums: the number of records of each label, and the sum of their embeddings.

    Raises ConfigurationError unless every generator can be steered by the run's embedder, and if the noise would be
    longer than the sum of all expected records can be.
    """
    check_named(options.label_shares, setting.labels)
    for generator_name, folder in zip(setting.generators, setting.steerable, strict=True):
        if not folder or (setting.folder / folder).resolve() != Path(setting.embedder).resolve():
            raise ConfigurationError(
                f"generator {generator_name} cannot be steered by the embedder {setting.embedder}:"
                ' method "vector" adds what the'
                " records' hidden states say to the states of that same model",
                'name one prepared folder as embedder.model and as path of a generator of kind = "transformers"',
                code="not-steerable",
            )
    label_count = len(setting.labels)
    count_statistic = LabelHistogram(label_count) if label_count else LengthHistogram(EVERYONE)
    sum_requests = [
        SumRequest("labels", count_statistic, PART_COUNTS),
        SumRequest("vectors", EmbeddingSum(options.embedding_size, label_count), PART_VECTORS),
    ]
    noise = _noise_length(options, setting, sum_requests)
    if noise >= setting.expected_records:
        most_coordinates = math.floor(options.embedding_size * (setting.expected_records / noise) ** 2)
        raise ConfigurationError(
            f"the noise of {options.embedding_size} coordinates of each label is {noise:.0f} long; the sum of"
            f" {setting.expected_records} expected records is shorter",
            f"prepare a folder of at most {most_coordinates} coordinates, or raise privacy.epsilon"
            if most_coordinates
            else "raise privacy.epsilon",
            code="noise-drowns",
        )
    return sum_requests


def _noise_length(options: Options, setting: Setting, sum_requests: Sequence[SumRequest]) -> float:
    """Returns the expected length of the noise of all labels' vectors added up."""
    sigma = plan_sums(sum_requests, setting.privacy, setting.quorum)["vectors"].sigma
    return sigma * math.sqrt(options.embedding_size * max(1, len(setting.labels)))


def notes(options: Options, setting: Setting) -> list[str]:
    """Returns a sentence that compares the length of the noise with that of the expected records' summed vectors."""
    noise = _noise_length(options, setting, plan(options, setting))
    if not noise:
        return []
    noise_share = noise / setting.expected_records
    if noise_share < 0.25:
        noise_advice = ""
    else:
        noise_advice = "; fewer coordinates, or records of fewer labels, have less"
    return [f"the noise of the records' common vector is {noise_share:.2f} of its largest length{noise_advice}"]


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the method. Returns the corpus. The comments have the numbers of the steps in docs/vector.md."""
    run.check_embedding_size(options.embedding_size)
    # 1. Records of each label.
    labels_sum, label_names = run.private_sum("labels", []), run.setting.labels or ("",)
    halfway_shares = label_shares(labels_sum)
    records_of_label = records_shares(halfway_shares) * records_of(labels_sum)
    wanted_label_shares = wanted_shares(options.label_shares, halfway_shares, label_names)
    run.record("label shares", 0, wanted_label_shares.tolist())
    # 2. The sum of the records' embeddings, one per label.
    vectors_sum = run.private_sum("vectors", [])
    # 3. Mean differences from public texts, as far as noise does not explain them.
    vectors = shrunk(vectors_sum.natural.reshape(len(label_names), -1), records_of_label, vectors_sum.sigma)
    run.record("vectors", 0, vectors.tolist())
    # 4. Every text is steered by its label's vector.
    steering_vectors = [tuple(map(float, vector)) for vector in options.strength * vectors]
    ordered_labels = np.repeat(np.arange(len(label_names)), largest_remainder(wanted_label_shares, options.samples))
    writer_names = run.setting.generators
    run.generate(
        "steered",
        0,
        [
            Order(
                writer_names[order_number % len(writer_names)],
                "zero_shot",
                label_names[label],
                steering=steering_vectors[label],
            )
            for order_number, label in enumerate(ordered_labels)
        ],
    )
    return run.pool.samples


def shrunk(sums: Float64, records: Float64, sigma: float) -> Float64:
    """Estimates each label's mean vector, float64 [C, d], from noisy sums [C, d] over so many records [C].

    The mean of all records is scaled by its signal fraction, 1 - noise / (its square), at least 0. Each label's
    difference from it is scaled by signal / (signal + its noise), where the signal is one for all labels.
    """
    label_count, coordinate_count = sums.shape
    common_mean = sums.sum(axis=0) / records.sum()
    noise_of_common = label_count * coordinate_count * (sigma / records.sum()) ** 2
    differences = sums / np.maximum(records, 1.0)[:, None] - common_mean
    noise = coordinate_count * (sigma / np.maximum(records, 1.0)) ** 2
    signal_variance = max(0.0, float(((differences**2).sum(axis=1) - noise).mean()))
    common_fraction = max(0.0, 1.0 - noise_of_common / max(float(common_mean @ common_mean), 1e-12))
    steering_directions: Float64 = (
        common_fraction * common_mean
        + (signal_variance / np.maximum(signal_variance + noise, 1e-12))[:, None] * differences
    )
    return steering_directions


METHOD = Method(
    Options=Options,
    plan=plan,
    run=run,
    asks_first=lambda _options, _setting: True,
    notes=notes,
)
