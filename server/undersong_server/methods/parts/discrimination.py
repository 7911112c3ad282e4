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

    accuracies, roc_areas, label_sizes = [], [], []
    for label in np.intersect1d(real_classes, synthetic_classes):
        real_scores, synthetic_scores = real[real_classes == label], synthetic[synthetic_classes == label]
        accuracies.append(_median_accuracy(real_scores, synthetic_scores))
        is_real = np.repeat([1, 0], [len(real_scores), len(synthetic_scores)])
        roc_areas.append(float(roc_auc_score(is_real, np.concatenate([real_scores, synthetic_scores]))))
        label_sizes.append(len(real_scores))
    if not label_sizes:
        return 0.5, 0.5
    return float(np.average(accuracies, weights=label_sizes)), float(np.average(roc_areas, weights=label_sizes))


def _median_accuracy(high_scores: Float64, low_scores: Float64) -> float:
    """Returns the accuracy of calling scores above the median "high", each side weighing 1/2; ties count half."""
    scores = np.concatenate([high_scores, low_scores])
    score_weights = np.concatenate(
        [np.full(len(high_scores), 0.5 / len(high_scores)), np.full(len(low_scores), 0.5 / len(low_scores))]
    )
    score_order = np.argsort(scores, kind="stable")
    level = scores[score_order][np.searchsorted(np.cumsum(score_weights[score_order]), 0.5 - 1e-12)]
    real_above = float((high_scores > level).mean() + 0.5 * (high_scores == level).mean())
    synthetic_below = float((low_scores < level).mean() + 0.5 * (low_scores == level).mean())
    return 0.5 * (real_above + synthetic_below)


def precision_and_recall(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64, share: float
) -> tuple[float, float, float]:
    """Precision, recall and F1 of calling texts real whose score exceeds a level, in an equal mixture of both sides.

    The level of a class is the one that ``share`` of its synthetic texts exceed. (At the level that halves the mixture
    all three figures would be the accuracy.) A figure without a value is 0. Arguments as in :func:`discrimination`.

    >>> one = np.zeros(2, dtype=np.int64)
    >>> precision_and_recall(np.array([3.0, 2.0]), one, np.array([2.5, 0.0]), one, 0.5)
    (0.6666666666666666, 1.0, 0.8)
    """
    called_real, called_synthetic = np.zeros(len(real)), np.zeros(len(synthetic))
    for label in np.unique(synthetic_classes):
        level = np.quantile(synthetic[synthetic_classes == label], 1.0 - share)
        called_real[real_classes == label] = real[real_classes == label] > level
        called_synthetic[synthetic_classes == label] = synthetic[synthetic_classes == label] > level
    recall_share = float(called_real.mean()) if len(real) else 0.0
    alarm_share = float(called_synthetic.mean()) if len(synthetic) else 0.0
    if recall_share + alarm_share:
        precision = recall_share / (recall_share + alarm_share)
    else:
        precision = 0.0
    return (
        precision,
        recall_share,
        2 * precision * recall_share / (precision + recall_share) if precision + recall_share else 0.0,
    )
