"""Which synthetic texts carry a label that the rest of the corpus, weighted by trust, would give them. Public data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

SMALLEST_TRUST = 1e-6  # where the whole trust lies with a text's author, the others count equally
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


def support(heads: Sequence[Float], trust: Float, embeddings: Float32, labels: Int, author: Int) -> Float:
    """What the other generators' classifiers, weighted by trust, make of each text's label.

    Log-odds of its own label against the best other one, float64 [n]: below 0 they would give it another label. A
    text's own author has no say, so that no classifier judges what it was trained on.

    Args:
        heads: one classifier a generator (:func:`classifier`).
        trust: non-negative, one a generator.
        author: the generator of each text.
    """
    n = len(labels)
    opinion = np.zeros((n, heads[0].shape[1]))
    for k, head in enumerate(heads):
        opinion += (trust[k] + SMALLEST_TRUST) * (author != k)[:, None] * probabilities(head, embeddings)
    rows = np.arange(n)
    logs = np.log(np.maximum(opinion, 1e-12))
    own = logs[rows, labels].copy()
    logs[rows, labels] = -np.inf
    result: Float = own - logs.max(axis=1)
    return result


def agreement(heads: Sequence[Float], embeddings: Float32, labels: Int, author: Int) -> Float:
    """Share of the others' texts to which each generator's classifier gives the label they carry, float64 [K].

    The mean over the other generators, each counting the same.
    """
    count = len(heads)
    found = np.zeros((count, count))
    for k, head in enumerate(heads):
        right = probabilities(head, embeddings).argmax(axis=1) == labels
        found[k] = [right[author == j].mean() if (author == j).any() else 0.0 for j in range(count)]
    result: Float = (found.sum(axis=1) - np.diag(found)) / max(1, count - 1)
    return result
