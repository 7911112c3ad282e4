"""Estimates of the true coordinates of a noisy low-dimensional sum, by empirical Bayes with the known noise."""

from __future__ import annotations

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.hubness import products_with_others

REACHES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1e6)  # in cosine, of neighbours whose counts are alike; the last: all


def signal_fraction(values: Float64, noise: float, caution: float = 1.0) -> float:
    """Share of the observed variance of ``values``, float64 [K], that noise of deviation ``noise`` does not explain.

    Empirical Bayes with the known noise (Efron and Morris 1973): the variance of the true values is estimated by
    moments, as the observed one minus ``caution`` times ``noise`` squared and at least 0. The observed variance of a
    few values varies itself: with a caution above 1, chance is seldom taken for evidence.

    >>> signal_fraction(np.array([1.0, -1.0]), 1.0)
    0.5
    """
    deviations = values - values.mean()
    observed = float(deviations @ deviations) / max(1, len(values) - 1)
    return max(0.0, 1.0 - caution * noise * noise / observed) if observed > 0 else 0.0


def shrink_to_mean(values: Float64, noise: float, caution: float = 1.0) -> Float64:
    """Deviations from the mean, shrunk as far as noise alone explains them: float64 [K], sum 0.

    >>> shrink_to_mean(np.array([1.0, -1.0, 0.0]), 10.0).tolist()
    [0.0, 0.0, 0.0]
    >>> shrink_to_mean(np.array([3.0, 1.0]), 0.0).tolist()
    [1.0, -1.0]
    """
    result: Float64 = (values - values.mean()) * signal_fraction(values, noise, caution) + 0.0  # + 0.0: no minus zero
    return result


def smoothed_counts(counts: Float64, noise: float, embeddings: Float32, labels: Int64) -> tuple[Float64, float]:
    """Returns counts shrunk to those of near texts of their label, float64 [n], and the remaining noise deviation.

    A count is pulled to its neighbours' weighted mean, without its own, as far as noise explains that they differ: by
    noise^2 over the mean squared difference (James and Stein 1961). How far neighbours reach is the one of ``REACHES``
    with the smallest differences, which is leave-one-out validation and what Stein's unbiased estimate of the risk
    prefers. So without evidence all are alike. Counts whose mean is above the noise stay: each text speaks for itself
    there, and beside a text that records chose lie wrong ones that they did not.

    Args:
        counts: float64 [n]; ``noise`` their known deviation.
        embeddings: of the texts, unit length, float32 [n, d]; ``labels`` int64 [n].

    >>> x = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]]
    >>> found, left = smoothed_counts(np.array([1.0, -1.0, 4.0, 6.0]), 4.0, x, np.zeros(4, dtype=np.int64))
    >>> found.round(1).tolist(), left
    ([-0.9, 1.1, 5.9, 3.9], 0.0)
    """
    if len(counts) and counts.mean() > noise:
        return counts, noise
    means = min(_neighbours(counts, embeddings, labels), key=lambda near: float(((counts - near) ** 2).sum()))
    different = float(((counts - means) ** 2).mean()) if len(counts) else 0.0
    kept = max(0.0, 1.0 - noise * noise / different) if different > 0 else 1.0
    smoothed: Float64 = means + kept * (counts - means)
    return smoothed, kept * noise


def _neighbours(counts: Float64, embeddings: Float32, labels: Int64) -> Float64:
    """Returns the weighted mean count of each text's neighbours within its label, per reach: float64 [reaches, n]."""
    found = np.tile(counts, (len(REACHES), 1))
    for rows, block, nearness in products_with_others(embeddings, labels):
        nearness -= nearness.max(axis=1, keepdims=True)
        for place, reach in enumerate(REACHES):
            weights = np.exp(nearness / np.float32(reach))
            found[place, block] = weights @ counts[rows] / weights.sum(axis=1, dtype=np.float64)
    return found
