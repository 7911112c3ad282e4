"""A classifier of the corpus, moved by the records' own gradient; docs/method.md, section 5.

The private sums are :class:`ClassifierGradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from undersong_common.arrays import Float32, Float64
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.projections import COUNT, PLACE, places
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.places import Directions, principal_axes, radius_of

DIRECTIONS = 384  # all of the packaged embedder's, the leading ones of a larger one's
FLATTENED = 0.25  # power of an axis' variance that its coordinate is divided by: half of what would make all alike
LEAST_VARIANCE = 1e-3  # of an axis, of the first one's
NO_VARIANCE = 1e-8  # of the first one, where texts are all alike
WITHIN = 0.8  # share of the texts whose places are not shortened: the noise is in units of this radius
CURVATURE = 0.5  # p (1 - p) summed over labels at most, for each label's coefficients (Boehning 1992)
ELSEWHERE = 2.0  # of the mean curvature, added on every axis: records vary where texts do not
# Deviation of a coefficient of what the classifier has still to learn; the likeliest is taken. No more than the last:
# where records vary and texts do not, a longer step overshoots.
DEVIATIONS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3)
STEP = 0.75  # of the way to the expected change, which later gradients correct
LEAST_SIGMA = 1e-9  # of the opened noise: without any, what no text varies in would have no likeliest change

Ask = Callable[[Float64, Float64], NoisySum]  # a sum, with what is published: classifier and projections


def moved(head: Float64, embeddings: Float32, weights: Float64, records: float, asked: Sequence[Ask]) -> Float64:
    """Returns the classifier after one step per opened sum, float64 [d + 1, C], the bias last.

    A gradient taken after a change equals the gradient at the start minus the curvature times that change. Each sum
    therefore estimates the gradient at the start, with independent noise. A step uses the mean of all estimates so far.

    Args:
        head: the classifier that the texts teach, float64 [d + 1, C].
        embeddings: of the texts, unit [n, d]; weights: of the corpus, float64 [n].
        records: approximate number of records.
        asked: the sums along ``DIRECTIONS`` directions, in their order.
    """
    classes = head.shape[1]
    projections = _frame(embeddings, weights).published()
    seen = places(embeddings.astype(np.float64), projections[:-1], projections[-1])
    curvature = seen.T @ seen / len(seen)
    used = min(DIRECTIONS, embeddings.shape[1])
    curvature += ELSEWHERE * np.trace(curvature[1:, 1:]) / used * np.eye(len(curvature))
    values, axes = np.linalg.eigh(curvature)
    values *= CURVATURE * records
    change = np.zeros((DIRECTIONS + 1, classes))  # along the curvature's axes, and so is what the sums told
    told = np.zeros_like(change)
    for count, ask in enumerate(asked, 1):
        opened = ask(COEFFICIENTS.quantised(head + _lifted(axes @ change, projections)), projections)
        gradient = opened.natural.reshape(DIRECTIONS + 1, classes)
        told += axes.T @ (gradient - gradient.mean(axis=1, keepdims=True)) + values[:, None] * change
        sigma = max(opened.sigma, LEAST_SIGMA) / np.sqrt(count)
        change += STEP * (_likely_change(told / count, values, sigma, classes) - change)
    return head + _lifted(axes @ change, projections)


def _frame(embeddings: Float32, weights: Float64) -> Directions:
    """The directions in which the corpus varies most, around its centre.

    Divided by the fourth root of their variance: noise is the same along all, and where they vary least it hides most.
    """
    x, w = embeddings.astype(np.float64), weights / weights.sum()
    centre = w @ x
    left = x - centre
    directions = principal_axes((left * w[:, None]).T @ left, DIRECTIONS)
    along = left @ directions
    variance = w @ along**2
    unit = np.maximum(variance, max(LEAST_VARIANCE * float(variance.max()), NO_VARIANCE)) ** FLATTENED
    return Directions(directions / unit, centre[None, :], radius_of(along / unit, WITHIN))


def _likely_change(gradient: Float64, curvature: Float64, sigma: float, classes: int) -> Float64:
    """The expected change of the coefficients, float64 [P + 1, C], along the curvature's axes.

    The gradient is curvature times change plus noise; the change is normal with one deviation, the likeliest one.
    """

    def log_likelihood(deviation: float) -> float:
        variance = curvature**2 * deviation**2 + sigma**2
        squares = (gradient**2).sum(axis=1)
        return float(-0.5 * ((classes - 1) * np.log(variance) + squares / variance).sum())

    deviation = max(DEVIATIONS, key=log_likelihood)
    gain = deviation**2 * curvature / (curvature**2 * deviation**2 + sigma**2)
    change: Float64 = gain[:, None] * gradient
    return change


def _lifted(change: Float64, projections: Float64) -> Float64:
    """A change of coefficients along the directions as one of a classifier's, float64 [d + 1, C]."""
    weights = projections[:-1] @ (PLACE * change[1:])
    bias = COUNT * change[0] - projections[-1] @ (PLACE * change[1:])
    return np.vstack([weights, bias])
