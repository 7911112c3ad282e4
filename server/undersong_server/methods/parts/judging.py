"""Label shares and generator weights from the noisy sums that judge them; docs/method.md, sections 1 and 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import matching
from undersong_server.methods.parts.authors import Authors, near_shares
from undersong_server.methods.parts.consistency import averaged
from undersong_server.methods.parts.shrinkage import expected_shares, shrink_to_mean

SAMPLING_VARIANCE = 0.12  # of a record's centred answer, for classifiers that differ on about half of the records
DIFFERENT = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # deviations of usefulness from block to block
TRUST_EXPONENT = 0.5  # of trust beside the matched shares: a generator in the right place may still label wrongly
LABEL_CAUTION = 2.0
LEAST_LABEL_SHARE = 0.1  # of an equal share


def label_shares(counts: NoisySum) -> Float64:
    """Shares of the labels, float64 [C], sum 1: the geometric mean of equal shares and the records' estimated ones.

    Differences from equal shares are pulled to zero as far as noise explains them.

    Half-way, because a task model trained on the records' own shares gains its accuracy from the common labels alone:
    on clinical notes of twenty headers, balanced accuracy fell by a third (docs/method.md).
    """
    equal = 1.0 / len(counts.natural)
    records = max(float(counts.natural.sum()), counts.sigma, 1.0)
    shares = counts.natural / records
    noise = np.sqrt((counts.sigma / records) ** 2 + equal / records)
    different = shrink_to_mean(shares, float(noise), LABEL_CAUTION)
    found: Float64 = np.sqrt(np.maximum(equal + different, LEAST_LABEL_SHARE * equal))
    found /= found.sum()
    return found


def records_of(counts: NoisySum) -> float:
    """Returns the noisy number of records of a label histogram: at least the deviation of its noise, and at least 1."""
    return max(float(counts.natural.sum()), counts.sigma * float(np.sqrt(len(counts.natural))), 1.0)


def records_shares(label_shares: Float64) -> Float64:
    """Returns the estimated label shares of the records, float64 [C], by inverting the mean in :func:`label_shares`."""
    found: Float64 = label_shares**2 / (label_shares**2).sum()
    return found


def usefulness(
    useful: NoisySum, parts: Float64, alike: Int64, *, records: float, sample_variance: float
) -> tuple[Float64, Float64]:
    """Returns the posterior mean of the generators' usefulness, float64 [K, B], and its deviations, float64 [B].

    Usefulness is the accuracy of a generator's classifier on the records of a label group (block), around the
    generators' mean. The estimate is empirical Bayes. A figure is the sum of two normal terms: one of the generator
    over all label groups, with a variance estimated by moments, and one of the label group, with the likeliest
    deviation of ``DIFFERENT``. A single label group has no second term.

    Args:
        useful: opened centred answers, B blocks of K.
        parts: estimated share of the records in each block, float64 [B], sum 1.
        alike: generators with one number are one source (:func:`consistency.alike`): they have the mean of their
            figures.
        records: how many records there are (noisy: :func:`matching.records_of`).
        sample_variance: variance that no number of records lessens (:func:`consistency.training_sample_variance`).
    """
    size, free = parts * records, len(alike) - 1
    found = useful.natural.reshape(len(parts), -1) / size[:, None]
    found = np.stack([averaged(each - each.mean(), alike) for each in found], axis=1)
    noise = (useful.sigma / size) ** 2 + SAMPLING_VARIANCE / size + sample_variance * len(parts)
    likeliest, best = -np.inf, (found, noise)
    for different in np.square(DIFFERENT) if len(parts) > 1 else (0.0,):
        around = different + noise  # of a block's figure around what is true on the whole
        precision = (1.0 / around).sum()
        whole = (found / around).sum(axis=1) / precision
        squares = float(whole @ whole)
        among = max(0.0, squares / free - 1.0 / precision)
        seen = among + 1.0 / precision
        left = (found**2 / around).sum() - precision * squares + squares / seen
        likely = -0.5 * (free * (np.log(around).sum() + np.log(precision * seen)) + left)
        if likely > likeliest:
            part, own = among / seen, different / around
            unknown = own * noise + (1.0 - own) ** 2 * part / precision
            likeliest, best = likely, (part * whole[:, None] * (1.0 - own) + own * found, np.sqrt(unknown))
    return best


def trust(
    values: Float64, unknown: Float64, alike: Int64, *, strength: float, rng: Callable[[], np.random.Generator]
) -> Float64:
    """The generators' shares in each block by their usefulness alone (:func:`usefulness`), float64 [K, B].

    Args:
        strength: of usefulness in the exponent of a share.
        rng: gives the same draws at every call, so that what is alike has like shares.
    """
    shares = [expected_shares(*each, strength, rng()) for each in zip(values.T, unknown.tolist(), strict=True)]
    return np.stack([averaged(each, alike) for each in shares], axis=1)


def combined_weights(matched: Float64, trusted: Float64) -> Float64:
    """Returns weights of the generators for each label, float64 [K, C], columns of sum 1.

    They are proportional to the matched share, divided by the mean trust, times trust^1.5.

    Args:
        matched: shares that start from the mean of ``trusted`` over the labels, float64 [K].
        trusted: float64 [K, C].
    """
    weights: Float64 = (matched / trusted.mean(axis=1))[:, None] * trusted ** (1.0 + TRUST_EXPONENT)
    weights /= weights.sum(axis=0)
    return weights


class Shares(NamedTuple):
    """The generators' shrunk usefulness and their shares by three rules, for each label, estimated from the records.

    float64 [K, C] each; the columns of shares have the sum 1. ``near`` is by how their texts read, whatever their
    labels: the same for all labels.
    """

    usefulness: Float64
    trust: Float64
    matched: Float64
    near: Float64


@dataclass(frozen=True, eq=False)
class Evidence:
    """The opened sums that compare the generators, and the public facts needed to interpret them.

    Attributes:
        sums: the places, the author classifier's probabilities and, if the task has labels, the centred answers.
        basis: of the places; ``means`` those of the generators in it, float64 [K, K - 1].
        authors: that classifier.
        alike, sample_variance: see :func:`usefulness`.
        block_of: the block of each label in the centred answers, int64 [C]; ``label_shares`` of the labels, [C].
        strength, rng: see :func:`trust`.
    """

    sums: tuple[NoisySum, ...]
    basis: matching.Basis
    means: Float64
    authors: Authors
    alike: Int64
    block_of: Int64
    label_shares: Float64
    sample_variance: float
    strength: float
    rng: Callable[[], np.random.Generator]

    def shares(self, places: NoisySum, authors: NoisySum, useful: NoisySum | None = None) -> Shares:
        """Computes the generators' shares from the given sums, which may differ from the opened ones."""
        shape = len(self.means), len(self.block_of)
        useful_by_label, trusted = np.zeros(shape), np.full(shape, 1.0 / len(self.means))
        if useful is not None:
            parts = np.bincount(self.block_of, records_shares(self.label_shares)).astype(np.float64)
            records, luck = matching.records_of(places), self.sample_variance
            values, unknown = usefulness(useful, parts, self.alike, records=records, sample_variance=luck)
            by_block = trust(values, unknown, self.alike, strength=self.strength, rng=self.rng)
            useful_by_label, trusted = values[:, self.block_of], by_block[:, self.block_of]
        matched = matching.matched_shares(places, self.basis, self.means, trusted.mean(axis=1))
        combined = combined_weights(matched, trusted)
        matched_by_label = np.stack([averaged(each, self.alike) for each in combined.T], axis=1)
        near = np.repeat(near_shares(authors, self.authors)[:, None], shape[1], axis=1)
        return Shares(useful_by_label, trusted, matched_by_label, near)
