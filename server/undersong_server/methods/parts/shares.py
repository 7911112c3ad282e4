"""Label shares of a corpus: what a task names, or from a noisy histogram of the records' labels."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from undersong_common.arrays import Bools, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.selection import largest_remainder

LABEL_CAUTION = 2.0  # factor of the noise's variance, with which chance is seldom taken for a difference of labels
LEAST_LABEL_SHARE = 0.1  # smallest estimated share of a label, as a share of an equal part

SharesTable = dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
LabelShares = Literal["half", "records", "even"] | SharesTable
"""The option ``label_shares``: half-way between equal shares and the records', the records', equal ones, or a table."""


def check_named(wanted: LabelShares, labels: Sequence[str]) -> None:
    """Raises ConfigurationError unless a table of label shares names every label of the task and nothing else."""
    if isinstance(wanted, Mapping) and set(wanted) != set(labels):
        unmatched_labels = sorted(set(wanted) ^ set(labels))
        raise ConfigurationError(
            f"method.label_shares: {', '.join(unmatched_labels)} stands in it or in task.labels, not in both",
            "give every label of task.labels one positive number; they are scaled to sum 1",
            code="label-shares",
        )


def wanted_shares(wanted: LabelShares, half: Float64, labels: Sequence[str]) -> Float64:
    """Shares that the corpus is to have, float64 [C], sum 1; ``half`` are those of :func:`label_shares`."""
    if isinstance(wanted, Mapping):
        stated_weights = np.array([wanted[label] for label in labels], dtype=np.float64)
        return np.asarray(stated_weights / stated_weights.sum())
    shares_by_option = {"half": half, "records": records_shares(half), "even": np.full(len(half), 1.0 / len(half))}
    return shares_by_option[wanted]


def shares_beside(wanted: LabelShares, records: Float64, labels: Sequence[str]) -> Float64:
    """Shares that the corpus is to have, float64 [C], sum 1, where a method follows the ``records``' own, unshrunk."""
    if wanted == "records":
        return records
    root_shares = np.sqrt(records)
    return wanted_shares(wanted, root_shares / root_shares.sum(), labels)


def label_shares(counts: NoisySum) -> Float64:
    """Shares of the labels, float64 [C], sum 1: the geometric mean of equal shares and the records' estimated ones.

    Differences from equal shares are pulled to zero as far as noise explains them.

    They are half-way, because a task model trained on the records' own shares gains its accuracy from the common labels
    alone: on clinical notes of twenty headers, balanced accuracy fell by a third.
    """
    equal_share = 1.0 / len(counts.natural)
    record_count = max(float(counts.natural.sum()), counts.sigma, 1.0)
    record_shares = counts.natural / record_count
    noise = np.sqrt((counts.sigma / record_count) ** 2 + equal_share / record_count)
    share_differences = shrink_to_mean(record_shares, float(noise), LABEL_CAUTION)
    halfway_shares: Float64 = np.sqrt(np.maximum(equal_share + share_differences, LEAST_LABEL_SHARE * equal_share))
    halfway_shares /= halfway_shares.sum()
    return halfway_shares


def records_of(counts: NoisySum) -> float:
    """Returns the noisy number of records of a label histogram: at least the deviation of its noise, and at least 1."""
    return max(float(counts.natural.sum()), counts.sigma * float(np.sqrt(len(counts.natural))), 1.0)


def records_shares(label_shares: Float64) -> Float64:
    """Undoes :func:`label_shares`, whose shares are the geometric mean of equal and the records' ones.

    float64 [C] -> float64 [C], the squares of ``label_shares`` rescaled to sum 1.
    """
    record_shares: Float64 = label_shares**2 / (label_shares**2).sum()
    return record_shares


# Estimates of the true coordinates of a noisy low-dimensional sum, by empirical Bayes with the known noise.


def signal_fraction(values: Float64, noise: float, caution: float = 1.0) -> float:
    """Share of the observed variance of ``values``, float64 [K], that noise of deviation ``noise`` does not explain.

    Empirical Bayes with the known noise (Efron and Morris 1973): the variance of the true values is estimated by
    moments, as the observed one minus ``caution`` times ``noise`` squared and at least 0. The observed variance of a
    few values varies itself: with a caution above 1, chance is seldom taken for evidence.

    >>> import numpy as np
    >>> signal_fraction(np.array([1.0, -1.0]), 1.0)
    0.5
    """
    deviations = values - values.mean()
    observed_variance = float(deviations @ deviations) / max(1, len(values) - 1)
    if observed_variance > 0:
        return max(0.0, 1.0 - caution * noise * noise / observed_variance)
    return 0.0


def shrink_to_mean(values: Float64, noise: float, caution: float = 1.0) -> Float64:
    """Deviations from the mean, shrunk as far as noise alone explains them: float64 [K], sum 0.

    >>> import numpy as np
    >>> shrink_to_mean(np.array([1.0, -1.0, 0.0]), 10.0).tolist()
    [0.0, 0.0, 0.0]
    >>> shrink_to_mean(np.array([3.0, 1.0]), 0.0).tolist()
    [1.0, -1.0]
    """
    # Adding 0.0 turns minus zero to zero.
    shrunk_values: Float64 = (values - values.mean()) * signal_fraction(values, noise, caution) + 0.0
    return shrunk_values


def shrunk_rates(rates: Float64, fraction: float) -> Float64:
    """Rates of votes for the generators' texts, with ``fraction`` of their differences, float64 [K], at least 0.

    With :func:`signal_fraction` weights in proportion to them are equal where noise explains every difference.

    >>> import numpy as np
    >>> shrunk_rates(np.array([5.0, -1.0]), 0.5).tolist(), shrunk_rates(np.array([5.0, -1.0]), 1.0).tolist()
    ([3.5, 0.5], [5.0, 0.0])
    """
    shrunk: Float64 = rates.mean() + (rates - rates.mean()) * fraction
    return shrunk.clip(min=0.0)


# Numbers of texts per generator and label, such that the whole corpus comes near to given shares.

# Share of the ordered texts; a generator that gives less of a label is not asked for that label again.
LEAST_YIELD = 0.5


def to_write(written: Int64, weights: Float64, label_shares: Float64, spent: Bools, order_count: int) -> Int64:
    """Divides ``order_count`` orders over generators and labels, int64 [K, C]; all texts then come near both shares.

    A label that a generator has no more of is ordered from the others with a weight. If none of them has more, they are
    asked once again; a generator without a weight gets no orders.

    Args:
        written: numbers of texts so far, int64 [K, C].
        weights: of the generators for each label, float64 [K, C]; ``label_shares`` of the labels, float64 [C].
        spent: which generator has no more of which label, bool [K, C].
    """
    total_count = written.sum() + order_count
    count_of_label = largest_remainder(np.maximum(label_shares * total_count - written.sum(axis=0), 0.0), order_count)
    order_counts = np.zeros_like(written)
    for label, label_total in enumerate(count_of_label):
        can_write = (weights[:, label] > 0) & ~spent[:, label]
        if can_write.any():
            generator_weights = np.where(can_write, weights[:, label], 0.0)
        else:
            generator_weights = weights[:, label]
        total_of_label = written[generator_weights > 0, label].sum() + label_total
        missing_counts = np.where(
            generator_weights > 0,
            np.maximum(generator_weights / generator_weights.sum() * total_of_label - written[:, label], 0.0),
            0.0,
        )
        # The generator that gets a remainder changes from label to label.
        generator_turns = np.roll(np.arange(len(weights)), -label)
        order_counts[generator_turns, label] = largest_remainder(
            (missing_counts if missing_counts.sum() > 0.0 else generator_weights)[generator_turns], int(label_total)
        )
    return order_counts


def table(generator_of: Int64, label_of: Int64, generator_count: int, label_count: int) -> Int64:
    """Counts the texts of each generator and label, int64 [K, C].

    Args:
        generator_of, label_of: the generator's and the label's number of each text, int64 [n].
    """
    return np.bincount(generator_of * label_count + label_of, minlength=generator_count * label_count).reshape(
        generator_count, label_count
    )


def spent(orders: Int64, received: Int64) -> Bools:
    """Marks the generators and labels that yielded less than ``LEAST_YIELD`` of their orders, bool [K, C]."""
    return (orders > 0) & (received < LEAST_YIELD * orders)
