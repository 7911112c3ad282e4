"""Texts of a corpus whose label is probably wrong, by confident learning (Northcutt, Jiang and Chuang 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_server.evaluation.task_model import train

FOLDS = 5


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """Estimated label errors of a corpus, by confident learning.

    Attributes:
        joint: estimated number of texts by given label (rows) and true label (columns), float64 [C, C], sums to n.
        suspected: indices of the texts that most probably have another label, int64, the surest first; as many as the
            joint has off its diagonal.
    """

    joint: Float64
    suspected: Int64

    @property
    def share(self) -> float:
        """Estimated share of texts with a wrong label."""
        total = float(self.joint.sum())
        return 1.0 - float(np.trace(self.joint)) / total if total else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; rows are counted from 1, as in the corpus file."""
        return {"share": self.share, "rows": [int(index) + 1 for index in self.suspected]}


def label_errors(labels: Int64, probabilities: Float64) -> LabelErrors:
    """Estimates how many labels are wrong, and which.

    Args:
        labels: given label of each text, int64 [n], 0 to C-1.
        probabilities: probability of each label for each text, float64 [n, C], by a model not trained on that text.

    The threshold of a label is the mean probability of it among the texts that carry it (section 3.1, equation 2);
    a text counts for the likeliest label whose threshold it reaches (equation 1); counts are scaled to the labels'
    own numbers (equation 3). Suspects are pruned by noise rate, the largest margin first (section 3.2).
    Raises ValueError if shapes differ.
    """
    n, classes = probabilities.shape
    if labels.shape != (n,):
        raise ValueError(f"{len(labels)} labels for {n} rows of probabilities")
    given = np.bincount(labels, minlength=classes)
    thresholds = np.array(
        [probabilities[labels == label, label].mean() if given[label] else np.inf for label in range(classes)]
    )
    reached = probabilities >= thresholds - 1e-6
    likeliest = np.where(reached, probabilities, -1.0).argmax(axis=1)
    counted = reached.any(axis=1)
    joint = np.zeros((classes, classes))
    np.add.at(joint, (labels[counted], likeliest[counted]), 1.0)
    rows = joint.sum(axis=1, keepdims=True)
    # A label none of whose texts counts is taken at its word.
    joint = np.where(rows > 0, joint / np.maximum(rows, 1.0), np.eye(classes)) * given[:, None]
    margins = probabilities.max(axis=1) - probabilities[np.arange(n), labels]
    suspected: set[int] = set()
    for label, other in permutations(range(classes), 2):
        members = np.flatnonzero(labels == label)
        ahead = probabilities[members, other] - probabilities[members, label]
        first = members[np.argsort(-ahead, kind="stable")[: round(float(joint[label, other]))]]
        suspected.update(first[probabilities[first].argmax(axis=1) != label].tolist())
    surest = np.array(sorted(suspected, key=lambda index: (-margins[index], index)), dtype=np.int64)
    return LabelErrors(joint, surest)


def corpus_label_errors(embeddings: Float32, labels: Sequence[str], *, seed: int = 0) -> LabelErrors:
    """:func:`label_errors` of a labelled corpus, float32 [n, d], by linear task models of five folds.

    Every text is judged by the model of the four folds it is not in.
    """
    names = {name: number for number, name in enumerate(sorted(set(labels)))}
    given = np.array([names[label] for label in labels], dtype=np.int64)
    fold = np.random.default_rng([seed, 0x1E]).permutation(len(given)) % FOLDS
    probabilities = np.zeros((len(given), len(names)))
    for number in range(FOLDS):
        inside = np.flatnonzero(fold == number)
        others = np.flatnonzero(fold != number)
        known = [labels[row] for row in others.tolist()]
        if not len(inside) or len(set(known)) < 2:
            continue
        model = train(embeddings[others], known, head="linear", seed=seed)
        columns = np.array([names[label] for label in model.labels])
        probabilities[np.ix_(inside, columns)] = model.probabilities(embeddings[inside])
    return label_errors(given, probabilities)
