"""A classifier of the corpus, moved by the records' own gradient; docs/method.md, section 5.

The records say by :class:`ClassifierGradients` which way the classifier errs on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from undersong_common.arrays import Float32, Float64
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import COUNT, PLACE, places
from undersong_protocol.vectors import NoisySum
from undersong_server.methods.parts.places import Directions, principal_axes, radius_of

DIRECTIONS, MORE_DIRECTIONS = 64, 128  # few, and where the records are very many
CURVATURE = 0.5  # p (1 - p) summed over labels at most, for each label's coefficients (Boehning 1992)
# Deviation of a coefficient of what the classifier has still to learn; the likeliest is taken. No more than the last:
# records vary where texts do not, and a longer step there overshoots.
DEVIATIONS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3)
LEAST_SIGMA = 1e-9  # of the opened noise: without any, what no text varies in would have no likeliest change

Ask = Callable[[Float64, Float64], NoisySum]  # a sum, with what is published: classifier and projections


def moved(
    head: Float64, embeddings: Float32, weights: Float64, records: float, directions: int, asked: Sequence[Ask]
) -> Float64:
    """The classifier after a step for each sum, float64 [d + 1, C], the bias last.

    Args:
        head: the classifier that the texts teach, float64 [d + 1, C].
        embeddings: of the texts, unit [n, d]; weights: of the corpus, float64 [n].
        records: how many they are, about.
        directions: P, along which they are asked.
        asked: the sums, in their order.
    """
    classes = head.shape[1]
    frame = _frame(embeddings, weights, directions)
    projections = frame.published()
    seen = places(embeddings.astype(np.float64), projections[:-1], projections[-1])
    curvature = seen.T @ seen / len(seen)
    curvature += np.trace(curvature[1:, 1:]) / directions * np.eye(len(curvature))
    values, axes = np.linalg.eigh(curvature)
    values *= CURVATURE * records
    for ask in asked:
        opened = ask(COEFFICIENTS.quantised(head), projections)
        gradient = opened.natural.reshape(directions + 1, classes)
        gradient = axes.T @ (gradient - gradient.mean(axis=1, keepdims=True))
        head = head + _lifted(
            axes @ _likely_step(gradient, values, max(opened.sigma, LEAST_SIGMA), classes), projections
        )
    return head


def _frame(embeddings: Float32, weights: Float64, count: int) -> Directions:
    """The directions in which the corpus varies most, around its centre."""
    x, w = embeddings.astype(np.float64), weights / weights.sum()
    centre = w @ x
    left = x - centre
    directions = principal_axes((left * w[:, None]).T @ left, count)
    return Directions(directions, centre[None, :], radius_of(left @ directions))


def _likely_step(gradient: Float64, curvature: Float64, sigma: float, classes: int) -> Float64:
    """The expected change of the coefficients, float64 [P + 1, C], along the curvature's axes.

    The gradient is curvature times change plus noise; the change is normal with one deviation, the likeliest one.
    """

    def log_likelihood(deviation: float) -> float:
        variance = curvature**2 * deviation**2 + sigma**2
        squares = (gradient**2).sum(axis=1)
        return float(-0.5 * ((classes - 1) * np.log(variance) + squares / variance).sum())

    deviation = max(DEVIATIONS, key=log_likelihood)
    gain = deviation**2 * curvature / (curvature**2 * deviation**2 + sigma**2)
    step: Float64 = gain[:, None] * gradient
    return step


def _lifted(change: Float64, projections: Float64) -> Float64:
    """A change of coefficients along the directions as one of a classifier's, float64 [d + 1, C]."""
    weights = projections[:-1] @ (PLACE * change[1:])
    bias = COUNT * change[0] - projections[-1] @ (PLACE * change[1:])
    return np.vstack([weights, bias])
