"""Label shares and generator weights from the noisy sums that judge them; docs/method.md, sections 1 and 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_protocol.vectors import NoisySum
from undersong_server.methods.parts import matching
from undersong_server.methods.parts.consistency import averaged
from undersong_server.methods.parts.shrinkage import expected_shares, shrink_to_mean

SAMPLING_VARIANCE = 0.12  # of a record's centred answer, for classifiers that differ on about half of the records
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
    """The noisy number of records of a label histogram: at least what noise alone would make it, and at least 1."""
    return max(float(counts.natural.sum()), counts.sigma * float(np.sqrt(len(counts.natural))), 1.0)


def trust(
    useful: NoisySum,
    alike: Int64,
    *,
    records: float,
    sample_variance: float,
    strength: float,
    rng: np.random.Generator,
) -> tuple[Float64, Float64]:
    """The generators' usefulness as far as noise does not explain it, float64 [K], and their shares by it alone.

    Args:
        useful: opened centred answers; usefulness is their mean per record.
        alike: generators with one number are one source (:func:`consistency.alike`): they have the mean of their
            figures.
        records: how many records there are (noisy: :func:`matching.records_of`).
        sample_variance: variance that no number of records lessens (:func:`consistency.training_sample_variance`).
        strength: of usefulness in the exponent of a share.
    """
    right = averaged(useful.natural / records, alike)
    variance = (useful.sigma / records) ** 2 + SAMPLING_VARIANCE / records + sample_variance
    noise = float(np.sqrt(variance))
    return shrink_to_mean(right, noise), averaged(expected_shares(right, noise, strength, rng), alike)


def combined_weights(matched: Float64, trusted: Float64) -> Float64:
    """Weights of the generators, float64 [K], sum 1: matched shares, which start from trust, times its square root."""
    weights: Float64 = matched * trusted**TRUST_EXPONENT
    weights /= weights.sum()
    return weights


class Shares(NamedTuple):
    """What the records say of the generators, float64 [K] each: usefulness (shrunk), and shares by two rules."""

    usefulness: Float64
    trust: Float64
    matched: Float64


@dataclass(frozen=True, eq=False)
class Evidence:
    """The sums that tell generators apart, as they were opened, and the public facts that they are read with.

    Attributes:
        sums: the places, and the centred answers where there are labels.
        basis: of the places; ``means`` those of the generators in it, float64 [K, K - 1].
        alike, sample_variance, strength: see :func:`trust`.
        rng: gives the same draws at every call.
    """

    sums: tuple[NoisySum, ...]
    basis: matching.Basis
    means: Float64
    alike: Int64
    sample_variance: float
    strength: float
    rng: Callable[[], np.random.Generator]

    def shares(self, places: NoisySum, useful: NoisySum | None = None) -> Shares:
        """What these sums would say in place of the opened ones."""
        trusted = np.full(len(self.means), 1.0 / len(self.means))
        usefulness = np.zeros(len(self.means))
        if useful is not None:
            usefulness, trusted = trust(
                useful,
                self.alike,
                records=matching.records_of(places),
                sample_variance=self.sample_variance,
                strength=self.strength,
                rng=self.rng(),
            )
        matched = matching.matched_shares(places, self.basis, self.means, trusted)
        return Shares(usefulness, trusted, averaged(combined_weights(matched, trusted), self.alike))
