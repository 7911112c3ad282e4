"""Noisy means of each label's records along public directions, and the label probabilities of texts they imply.

A text bears the label that was ordered, not always the one that a record like it would have. The class model here is a
Gaussian one with a common covariance (linear discriminant analysis): its means are those of the texts, moved towards
the records' own as far as the known noise lets them (empirical Bayes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.projections import COUNT, PLACE
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.consistency import probabilities
from undersong_server.methods.parts.places import Directions, class_means, principal_axes, radius_of

DIRECTIONS = 64
TURNS = 2
RIDGE = 0.05  # of the mean variance, added to the texts' covariance
LEAST_PROBABILITY = 1e-30  # of a text's own label: where all labels seem wrong, the texts are still a corpus
# Variance of (records' mean - texts' mean) relative to the covariance within a label; the likeliest is taken.
LEVELS = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)


class Frame(Directions):
    """The directions in which texts vary most, labels together; zeros for those beyond the embeddings' rank."""

    @classmethod
    def of(cls, embeddings: Float32, labels: Int64, classes: int) -> Frame:
        """Computes the frame of the first texts: unit embeddings, float32 [n, d], with labels, int64 [n]."""
        x = embeddings.astype(np.float64)
        centres = class_means(x, labels, np.ones(len(x)), classes)
        directions = principal_axes(np.cov(x.T, ddof=min(1, len(x) - 1)), DIRECTIONS)  # one text varies not at all
        return cls(directions, centres, radius_of((x - centres[labels]) @ directions))


@dataclass(frozen=True, eq=False)
class LabelMoments:
    """Noisy label counts of the records, and each label's noisy mean around its public centre.

    Attributes:
        frame: as it was asked.
        counts: in natural units, float64 [C]; ``count_sigma`` their noise.
        means: float64 [C, P] along the frame's directions; ``noise`` of each label's coordinates, float64 [C].
    """

    frame: Frame
    counts: Float64
    count_sigma: float
    means: Float64
    noise: Float64

    @classmethod
    def of(cls, frame: Frame, opened: NoisySum) -> LabelMoments:
        table = opened.natural.reshape(len(frame.centres), -1)
        counts, sigma = table[:, 0] / COUNT, opened.sigma / COUNT
        fewest = np.maximum(counts, max(sigma, 1.0))
        unit = frame.radius / PLACE
        return cls(frame, counts, sigma, table[:, 1:] * unit / fewest[:, None], opened.sigma * unit / fewest)

    @property
    def label_counts(self) -> NoisySum:
        """The counts as a label histogram."""
        return NoisySum(np.rint(self.counts * 1024).astype(np.int64), 1024, self.count_sigma, ())


def posterior(
    embeddings: Float32, labels: Int64, weights: Float64, classes: int, moments: LabelMoments | None
) -> tuple[Float64, float]:
    """Returns the probability of each text's own label, in (0, 1], float64 [n], and the records' leverage on it.

    The class model is fitted ``TURNS`` times. Each later fit weights a text by the probability of its label in the
    fit before. The leverage is the sum of the shrinkage factors of a label's mean, divided by the label's records and
    averaged over the labels. A corpus weighted by these probabilities looks better to the same records than it is, in
    proportion to the leverage. It is 0 without moments.

    Args:
        weights: of the texts in the class model, non-negative, float64 [n].
        moments: of the records; None fits the class model to public texts alone.
    """
    x = embeddings.astype(np.float64)
    found, leverage = np.ones(len(x)), 0.0
    for _ in range(TURNS):
        means, covariance = _class_model(x, labels, weights * found, classes)
        if moments is not None:
            means, leverage = _moved(means, covariance, moments)
        direction = np.linalg.solve(covariance, means.T)
        head = np.vstack([direction, -0.5 * np.einsum("cd,dc->c", means, direction)])
        found = probabilities(head, embeddings)[np.arange(len(x)), labels].clip(LEAST_PROBABILITY)
    return found, leverage


def _class_model(x: Float64, labels: Int64, weights: Float64, classes: int) -> tuple[Float64, Float64]:
    """Means of the labels, float64 [C, d], and the covariance around them, with a ridge."""
    means = class_means(x, labels, weights, classes)
    left = x - means[labels]
    covariance = (left * (weights / weights.sum())[:, None]).T @ left
    return means, covariance + RIDGE * max(float(np.trace(covariance)) / len(covariance), 1e-9) * np.eye(x.shape[1])


def _moved(means: Float64, covariance: Float64, moments: LabelMoments) -> tuple[Float64, float]:
    """The texts' means, moved towards the records' as far as noise and sampling error let them, and the leverage."""
    frame = moments.frame
    within, axes = np.linalg.eigh(frame.directions.T @ covariance @ frame.directions)
    within = np.maximum(within, 1e-9)
    observed = (moments.means - (means - frame.centres) @ frame.directions) @ axes
    records = np.maximum(moments.counts, max(moments.count_sigma, 1.0))[:, None]
    error = moments.noise[:, None] ** 2 + within / records

    def log_likelihood(level: float) -> float:
        variance = level * within + error
        return float(-0.5 * (np.log(variance) + observed**2 / variance).sum())

    level = max(LEVELS, key=log_likelihood)
    believed = level * within / (level * within + error)
    moved = means + (believed * observed) @ axes.T @ frame.directions.T
    return moved, float((believed.sum(axis=1) / records[:, 0]).mean())
