"""Agreement of predicted and true labels, and how well scores tell real texts from synthetic ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undersong_common.arrays import Float64, Int64

FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "rarest_recall")
AVERAGES = {
    "macro_precision_of_all_labels": "macro P",
    "macro_recall_of_all_labels": "macro R",
    "macro_f1_of_all_labels": "macro F1",
    "weighted_precision": "weighted P",
    "weighted_recall": "weighted R",
    "weighted_f1": "weighted F1",
}
"""Keys of :attr:`Scores.averages`, and their headings."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Agreement of predicted and true labels, by scikit-learn's definitions; figures are NaN without texts.

    Attributes:
        labels: names, in the order of the confusion matrix.
        confusion: int64 [L, L], rows true, columns predicted.
        recall: of each label, float64 [L]; 0 if the test set has no such text.
        accuracy: share of texts with the right label.
        balanced_accuracy: mean recall over the labels that occur in the test set.
        macro_f1: mean F1 over the labels that are true or predicted at least once.
        rarest_recall: recall of the label with the fewest test texts, the first by name of several.
        averages: precision, recall and F1 over all labels: macro, and weighted by the test texts.
    """

    labels: tuple[str, ...]
    confusion: Int64
    recall: Float64
    accuracy: float = math.nan
    balanced_accuracy: float = math.nan
    macro_f1: float = math.nan
    rarest_recall: float = math.nan
    averages: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of judged texts."""
        return int(self.confusion.sum())

    def figures(self) -> dict[str, float]:
        """The figures that are stated of every task model, by name (:data:`FIGURES`)."""
        return {name: getattr(self, name) for name in FIGURES}

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.figures(),
            **self.averages,
            "rows": self.rows,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }


def score(true: Sequence[str], predicted: Sequence[str]) -> Scores:
    """Compares two equally long label sequences; ``labels`` of the result are the labels of both, sorted.

    Raises ValueError if lengths differ.

    >>> score(["a", "b", "b"], ["a", "b", "a"]).accuracy
    0.6666666666666666
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    names = sorted({*true, *predicted})
    if not names:
        return Scores((), np.zeros((0, 0), dtype=np.int64), np.zeros(0))
    confusion = confusion_matrix(true, predicted, labels=names)
    precision, recall, f1, support = precision_recall_fscore_support(true, predicted, labels=names, zero_division=0)
    averages = {}
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1)):
        averages[f"macro_{name}_of_all_labels"] = float(values.mean())
        averages[f"weighted_{name}"] = float(np.average(values, weights=support))
    occur = support > 0
    return Scores(
        tuple(names),
        confusion,
        recall,
        accuracy=float(np.trace(confusion) / len(true)),
        balanced_accuracy=float(recall[occur].mean()),
        macro_f1=float(f1.mean()),
        rarest_recall=float(recall[np.where(occur, support, len(true) + 1).argmin()]),
        averages=averages,
    )


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
        accuracies.append(_accuracy(high, low))
        is_real = np.repeat([1, 0], [len(high), len(low)])
        areas.append(float(roc_auc_score(is_real, np.concatenate([high, low]))))
        sizes.append(len(high))
    if not sizes:
        return 0.5, 0.5
    return float(np.average(accuracies, weights=sizes)), float(np.average(areas, weights=sizes))


def _accuracy(high: Float64, low: Float64) -> float:
    """Returns the accuracy at the weighted median, each side weighing 1/2; ties at that level count half."""
    both = np.concatenate([high, low])
    weight = np.concatenate([np.full(len(high), 0.5 / len(high)), np.full(len(low), 0.5 / len(low))])
    order = np.argsort(both, kind="stable")
    level = both[order][np.searchsorted(np.cumsum(weight[order]), 0.5 - 1e-12)]
    above = float((high > level).mean() + 0.5 * (high == level).mean())
    under = float((low < level).mean() + 0.5 * (low == level).mean())
    return 0.5 * (above + under)


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
