"""Agreement of predicted and true labels, and how well scores tell real texts from synthetic ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Float64, Int64

FIGURES = ("accuracy", "balanced_accuracy", "macro_f1", "rarest_recall")


@dataclass(frozen=True, eq=False)
class Scores:
    """Agreement of predicted and true labels.

    Attributes:
        labels: names, in the order of the confusion matrix.
        confusion: int64 [L, L], rows true, columns predicted.
    """

    labels: tuple[str, ...]
    confusion: Int64

    @property
    def rows(self) -> int:
        """Number of judged texts."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of texts with the right label; NaN without texts."""
        return float(np.trace(self.confusion) / self.rows) if self.rows else float("nan")

    @property
    def recall(self) -> Float64:
        """Recall of each label, float64 [L]; NaN where the test set has no such text."""
        true = self.confusion.sum(axis=1)
        return np.where(true > 0, np.diag(self.confusion) / np.maximum(true, 1), np.nan)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the labels that occur in the test set: as if it held equally many texts of each."""
        return float(np.nanmean(self.recall)) if self.rows else float("nan")

    @property
    def rarest_recall(self) -> float:
        """Recall of the label with the fewest test texts, the first by name of several; NaN without texts."""
        true = self.confusion.sum(axis=1)
        return float(self.recall[np.where(true > 0, true, self.rows + 1).argmin()]) if self.rows else float("nan")

    @property
    def f1(self) -> Float64:
        """F1 of each label, float64 [L]; NaN where a label is neither true nor predicted."""
        denominator = self.confusion.sum(axis=0) + self.confusion.sum(axis=1)
        return np.where(denominator > 0, 2 * np.diag(self.confusion) / np.maximum(denominator, 1), np.nan)

    @property
    def precision(self) -> Float64:
        """Precision of each label, float64 [L]; NaN where it is never predicted."""
        predicted = self.confusion.sum(axis=0)
        return np.where(predicted > 0, np.diag(self.confusion) / np.maximum(predicted, 1), np.nan)

    def averages(self) -> dict[str, float]:
        """Precision, recall and F1 over all labels: macro, and weighted by the test texts; undefined ones count as 0.

        As scikit-learn's averages with ``zero_division=0``. Empty without texts.
        """
        found: dict[str, float] = {}
        true = self.confusion.sum(axis=1)
        for name in ("precision", "recall", "f1") if self.rows else ():
            values = np.nan_to_num(getattr(self, name))
            found[f"macro_{name}_of_all_labels"] = float(values.mean())
            found[f"weighted_{name}"] = float((values * true).sum() / self.rows)
        return found

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the labels that are true or predicted at least once (as scikit-learn's macro average)."""
        return float(np.nanmean(self.f1)) if self.rows else float("nan")

    def figures(self) -> dict[str, float]:
        """The figures that are stated of every task model, by name (:data:`FIGURES`)."""
        return {name: getattr(self, name) for name in FIGURES}

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self.figures(), "rows": self.rows, "labels": list(self.labels), "confusion": self.confusion.tolist()}


def score(true: Sequence[str], predicted: Sequence[str]) -> Scores:
    """Compares two equally long label sequences; the labels are those of both, sorted.

    >>> score(["a", "b", "b"], ["a", "b", "a"]).accuracy
    0.6666666666666666
    """
    if len(true) != len(predicted):
        raise ValueError(f"{len(true)} true labels, {len(predicted)} predicted ones")
    names = sorted(set(true) | set(predicted))
    number = {name: index for index, name in enumerate(names)}
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    rows = np.array([number[name] for name in true], dtype=np.int64)
    columns = np.array([number[name] for name in predicted], dtype=np.int64)
    np.add.at(confusion, (rows, columns), 1)
    return Scores(tuple(names), confusion)


def discrimination(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64
) -> tuple[float, float]:
    """Accuracy, when the upper half of an equal mixture of both is called real, and area under the ROC curve.

    Both are means over the classes that both have texts of, weighted by the real texts, and 0.5 without any.

    >>> one = np.zeros(2, dtype=np.int64)
    >>> discrimination(np.array([3.0, 2.0]), one, np.array([1.0, 0.0]), one)
    (0.875, 1.0)
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


def precision_and_recall(
    real: Float64, real_classes: Int64, synthetic: Float64, synthetic_classes: Int64, share: float
) -> tuple[float, float, float]:
    """Precision, recall and F1 of "real" in an equal mixture of both, where the upper ``share`` of each class is real.

    A level of its own is needed for them: at the one that halves the mixture all three are the accuracy. Here it is the
    level that leaves ``share`` of the synthetic texts of the class above it; 0 for what has no value.

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
