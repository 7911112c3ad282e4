"""Linear classifiers of public texts."""

from typing import Any

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.workers import one_numpy_thread
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.inputs import COEFFICIENTS


def classifier(
    embeddings: Float32, labels: Int64, classes: int, *, strength: float, weights: Float64 | None = None
) -> Float64:
    """Trains a linear classifier, float64 [d + 1, classes], bias last; a label without texts has the bias ``NEVER``.

    Args:
        embeddings, labels: of the texts, float32 [n, d] and int64 [n].
        strength: inverse regularisation.
        weights: non-negative, one per text; only their ratios matter.
    """
    from undersong_server.evaluation.task_model import fit_linear

    found = np.zeros((embeddings.shape[1] + 1, classes))
    found[-1] = NEVER
    present, numbered = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        found[-1, present] = 0.0
        return found
    w = np.ones(len(labels)) if weights is None else weights * (len(weights) / weights.sum())
    x = np.ascontiguousarray(embeddings, dtype=np.float32)
    with one_numpy_thread():
        found[:, present] = fit_linear(x, numbered.ravel().astype(np.int64), w, len(present), strength)
    return found


def classifiers(
    embeddings: Float32, labels: Int64, author: Int64, generators: int, label_shares: Float64, strength: float
) -> Float64:
    """Trains one classifier per generator on its own texts alone: float64 [K, d + 1, C].

    Coefficients lie on the grid on which parties take them (undersong_protocol.statistics.classifier_votes). Texts are
    weighted to the label shares of the records that the classifiers will be tried on.

    Args:
        embeddings, labels: of all texts, float32 [n, d] and int64 [n].
        author: generator of each text, int64 [n], of ``generators``.
        label_shares: share of each label, float64 [C].
        strength: inverse regularisation.
    """
    heads = []
    for k in range(generators):
        mine, own = embeddings[author == k], labels[author == k]
        weights = (label_shares / np.maximum(np.bincount(own, minlength=len(label_shares)), 1))[own]
        heads.append(classifier(mine, own, len(label_shares), strength=strength, weights=weights))
    return COEFFICIENTS.quantised(np.stack(heads))


def probabilities(head: Float64, rows: Any) -> Float64:
    """Probability of each label by a classifier ``head``, float64 [n, classes].

    ``rows`` [n, d] are features like those that it was trained on, dense or sparse.
    """
    from scipy.special import softmax

    return np.asarray(softmax(rows @ head[:-1] + head[-1], axis=1), dtype=np.float64)
