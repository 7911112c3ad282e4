"""Which synthetic texts carry a label that the rest of the corpus, weighted by trust, would give them. Public data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

NEVER = -1e9  # bias of a label that a classifier has not seen


def classifier(
    embeddings: Float32, labels: Int, classes: int, *, strength: float, weights: Float | None = None
) -> Float:
    """A linear classifier, float64 [d + 1, classes], bias last; a label without texts has the bias ``NEVER``.

    Args:
        strength: inverse regularisation.
        weights: non-negative, one a text; only their ratios matter.
    """
    from server.evaluation.task_model import fit_linear

    found = np.zeros((embeddings.shape[1] + 1, classes))
    found[-1] = NEVER
    present, numbered = np.unique(labels, return_inverse=True)
    if len(present) == 1:
        found[-1, present[0]] = 0.0
    if len(present) < 2:
        return found
    w = np.ones(len(labels)) if weights is None else weights * (len(weights) / weights.sum())
    found[:, present] = fit_linear(embeddings, numbered.ravel().astype(np.int64), w, len(present), strength)
    return found


def probabilities(head: Float, embeddings: Float32) -> Float:
    """float64 [n, classes] of a classifier of :func:`classifier`."""
    logits = embeddings @ head[:-1] + head[-1]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Float = odds / odds.sum(axis=1, keepdims=True)
    return result


def support(
    embeddings: Float32,
    labels: Int,
    classes: int,
    weights: Float,
    rng: np.random.Generator,
    *,
    strength: float,
    folds: int,
) -> Float:
    """How probable each text's own label is to a weighted classifier that did not see it, over the best other label.

    Log-odds, float64 [n]: below 0 the classifier would give another label.
    """
    result = np.zeros(len(labels))
    part = rng.permutation(len(labels)) % folds
    at = np.arange(len(labels))
    for fold in range(folds):
        held = part == fold
        fit = ~held
        if weights[fit].sum() <= 0 or not held.any():
            continue
        head = classifier(embeddings[fit], labels[fit], classes, strength=strength, weights=weights[fit])
        logs = np.log(np.maximum(probabilities(head, embeddings[held]), 1e-12))
        rows, own = np.arange(int(held.sum())), labels[held]
        mine = logs[rows, own]
        logs[rows, own] = -np.inf
        result[at[held]] = mine - logs.max(axis=1)
    return result
