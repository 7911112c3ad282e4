"""How well predicted labels agree with the true ones: accuracy, balanced accuracy, macro-F1, confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undersong_common.arrays import Float64, Int64


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
    def macro_f1(self) -> float:
        """Mean F1 over the labels that are true or predicted at least once (as scikit-learn's macro average)."""
        return float(np.nanmean(self.f1)) if self.rows else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "rarest_recall": self.rarest_recall,
            "rows": self.rows,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }


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
