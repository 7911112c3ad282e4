"""Figures of a score that tells real texts from synthetic ones: accuracy, area, precision and recall."""

import numpy as np

from undersong_common.arrays import Float64, Int64


def discrimination(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64
) -> tuple[float, float]:
    """Returns the accuracy of calling the upper half of an equal mixture real, and the area under the ROC curve.

    Both are means over the classes that both sides have texts of, weighted by the real texts; 0.5 without such a class.

    Args:
        real, synthetic: score of each text, float64 [n] and [m]; high scores stand for "real".
        real_classes, synthetic_classes: class of each text, int64 [n] and [m].

    >>> one = np.zeros(2, dtype=np.int64)
    >>> discrimination(np.array([3.0, 2.0]), one, np.array([1.0, 0.0]), one)
    (0.875, 1.0)
    """
    from sklearn.metrics import roc_auc_score

    accuracies, areas, sizes = [], [], []
    for label in np.intersect1d(real_classes, synthetic_classes):
        high, low = real[real_classes == label], synthetic[synthetic_classes == label]
        accuracies.append(_median_accuracy(high, low))
        is_real = np.repeat([1, 0], [len(high), len(low)])
        areas.append(float(roc_auc_score(is_real, np.concatenate([high, low]))))
        sizes.append(len(high))
    if not sizes:
        return 0.5, 0.5
    return float(np.average(accuracies, weights=sizes)), float(np.average(areas, weights=sizes))


def _median_accuracy(high: Float64, low: Float64) -> float:
    """Returns the accuracy at the weighted median, each side weighing 1/2; ties at that level count half."""
    scores = np.concatenate([high, low])
    weight = np.concatenate([np.full(len(high), 0.5 / len(high)), np.full(len(low), 0.5 / len(low))])
    order = np.argsort(scores, kind="stable")
    level = scores[order][np.searchsorted(np.cumsum(weight[order]), 0.5 - 1e-12)]
    above = float((high > level).mean() + 0.5 * (high == level).mean())
    below = float((low < level).mean() + 0.5 * (low == level).mean())
    return 0.5 * (above + below)


def precision_and_recall(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64, share: float
) -> tuple[float, float, float]:
    """Precision, recall and F1 of calling texts real whose score exceeds a level, in an equal mixture of both sides.

    The level of a class is the one that ``share`` of its synthetic texts exceed. (At the level that halves the mixture
    all three figures would be the accuracy.) A figure without a value is 0. Arguments as of :func:`discrimination`.

    >>> one = np.zeros(2, dtype=np.int64)
    >>> precision_and_recall(np.array([3.0, 2.0]), one, np.array([2.5, 0.0]), one, 0.5)
    (0.6666666666666666, 1.0, 0.8)
    """
    called_real, called_synthetic = np.zeros(len(real)), np.zeros(len(synthetic))
    for label in np.unique(synthetic_classes):
        level = np.quantile(synthetic[synthetic_classes == label], 1.0 - share)
        called_real[real_classes == label] = real[real_classes == label] > level
        called_synthetic[synthetic_classes == label] = synthetic[synthetic_classes == label] > level
    hits = float(called_real.mean()) if len(real) else 0.0
    alarms = float(called_synthetic.mean()) if len(synthetic) else 0.0
    precision = hits / (hits + alarms) if hits + alarms else 0.0
    return precision, hits, 2 * precision * hits / (precision + hits) if precision + hits else 0.0
