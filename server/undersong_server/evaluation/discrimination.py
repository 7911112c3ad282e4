"""How well scores tell real texts from synthetic ones, within each class."""

from __future__ import annotations

import numpy as np

from undersong_common.arrays import Float64, Int64


def discrimination(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64
) -> tuple[float, float]:
    """Accuracy, when the upper half of an equal mixture of both is called real, and area under the ROC curve.

    Both are means over the classes that both have texts of, weighted by the real texts, and 0.5 without any.

    >>> one = np.zeros(2, dtype=np.int64)
    >>> discrimination(np.array([3.0, 2.0]), one, np.array([1.0, 0.0]), one)
    (1.0, 1.0)
    """
    accuracies, areas, sizes = [], [], []
    for label in np.intersect1d(real_classes, synthetic_classes):
        high, low = real[real_classes == label], synthetic[synthetic_classes == label]
        accuracies.append(_accuracy(high, low))
        below = np.searchsorted(np.sort(low), high, side="left") + np.searchsorted(np.sort(low), high, side="right")
        areas.append(float(below.mean()) / (2 * len(low)))
        sizes.append(len(high))
    if not sizes:
        return 0.5, 0.5
    return float(np.average(accuracies, weights=sizes)), float(np.average(areas, weights=sizes))


def _accuracy(high: Float64, low: Float64) -> float:
    """At the level above which half of the weight lies, each side weighing 1/2; ties at the level count half."""
    both = np.concatenate([high, low])
    weight = np.concatenate([np.full(len(high), 0.5 / len(high)), np.full(len(low), 0.5 / len(low))])
    order = np.argsort(both, kind="stable")
    level = both[order][np.searchsorted(np.cumsum(weight[order]), 0.5 - 1e-12)]
    above = float((high > level).mean() + 0.5 * (high == level).mean())
    under = float((low < level).mean() + 0.5 * (low == level).mean())
    return 0.5 * (above + under)
