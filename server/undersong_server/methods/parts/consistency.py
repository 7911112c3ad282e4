"""Classifiers of the generators' texts, and which texts' labels they support. Public data only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_server.methods.parts.matching import cell_means
from undersong_server.methods.parts.shares import table

STRENGTH = 3.0  # inverse regularisation
ALIKE = 3.0
SMALLEST_TRUST = 1e-6  # added to each trust: where a text's author has all of it, the others count equally


def classifier(
    embeddings: Float32, labels: Int64, classes: int, *, strength: float = STRENGTH, weights: Float64 | None = None
) -> Float64:
    """A linear classifier, float64 [d + 1, classes], bias last; a label without texts has the bias ``NEVER``.

    Args:
        strength: inverse regularisation.
        weights: non-negative, one per text; only their ratios matter.
    """
    from undersong_server.evaluation.task_model import fit_linear

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


def classifiers(
    embeddings: Float32,
    labels: Int64,
    author: Int64,
    generators: int,
    classes: int,
    *,
    strength: float = STRENGTH,
    label_shares: Float64 | None = None,
) -> Float64:
    """One classifier per generator, trained on its own texts alone: float64 [K, d + 1, classes].

    On the grid on which parties take them (undersong_protocol.statistics.classifier_votes). With ``label_shares``,
    float64 [classes], labels weigh as those say, so that a classifier is tried on records as common as it learnt.
    """
    heads = []
    for k in range(generators):
        mine, own = embeddings[author == k], labels[author == k]
        weights = None
        if label_shares is not None and len(own):
            weights = (label_shares / np.maximum(np.bincount(own, minlength=classes), 1))[own]
        heads.append(classifier(mine, own, classes, strength=strength, weights=weights))
    return COEFFICIENTS.quantised(np.stack(heads))


def probabilities(head: Float64, embeddings: Float32) -> Float64:
    """The classifier's probability of each label, float64 [n, classes]."""
    logits = embeddings @ head[:-1] + head[-1]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Float64 = odds / odds.sum(axis=1, keepdims=True)
    return result


def support(
    heads: Sequence[Float64] | Float64, trust: Float64, embeddings: Float32, labels: Int64, author: Int64
) -> Float64:
    """How far the other generators' classifiers, weighted by trust, support each text's label, float64 [n].

    The log-odds of the text's own label against the best other one: below 0 they would give it another label. The
    classifier of a text's own author does not count, so that none judges what it was trained on.

    Args:
        heads: one classifier per generator (:func:`classifier`).
        trust: non-negative, one per generator.
        author: the generator of each text, int64 [n].
    """
    n = len(labels)
    opinion = np.zeros((n, heads[0].shape[1]))
    for k, head in enumerate(heads):
        opinion += (trust[k] + SMALLEST_TRUST) * (author != k)[:, None] * probabilities(head, embeddings)
    rows = np.arange(n)
    logs = np.log(np.maximum(opinion, 1e-12))
    own = logs[rows, labels].copy()
    logs[rows, labels] = -np.inf
    result: Float64 = own - logs.max(axis=1)
    return result


def training_sample_variance(
    embeddings: Float32,
    labels: Int64,
    author: Int64,
    generators: int,
    classes: int,
    rng: np.random.Generator,
    *,
    strength: float = STRENGTH,
) -> float:
    """Variance of a generator's accuracy that comes from which of its texts its classifier was trained on.

    Each generator's texts are halved, a classifier is trained on either half, and both are tried on what the other
    generators wrote. A classifier of all the texts varies half as much as one of a half: a quarter of the mean
    squared difference. It is the same for every record, so more records do not lessen it.
    """
    squares = []
    for k in range(generators):
        mine, others = rng.permutation(np.flatnonzero(author == k)), np.flatnonzero(author != k)
        halves = mine[::2], mine[1::2]
        if min(len(half) for half in halves) == 0 or not len(others):
            continue
        tried, truth = embeddings[others], labels[others]
        right = [
            np.mean(
                probabilities(classifier(embeddings[half], labels[half], classes, strength=strength), tried).argmax(
                    axis=1
                )
                == truth
            )
            for half in halves
        ]
        squares.append((right[0] - right[1]) ** 2 / 4.0)
    return float(np.mean(squares)) if squares else 0.0


def alike(embeddings: Float32, labels: Int64, author: Int64, generators: int, classes: int) -> Int64:
    """Generators whose texts cannot be told apart have one number, int64 [K]; public data only.

    Two generators are alike where the distance of their means, labels weighed alike, is no more than chance makes it:
    within ``ALIKE`` deviations of its expectation for two samples of one source.
    """
    group = np.arange(generators)
    counts = table(author, labels, generators, classes)
    means = cell_means(embeddings, labels, author, generators, classes)
    left = embeddings - means[author, labels]
    covariance = left.T @ left / max(1, len(left) - generators * classes)
    trace, square = float(np.trace(covariance)), float((covariance**2).sum())
    for k in range(generators):
        for other in range(k):
            both = (counts[k] > 1) & (counts[other] > 1)
            if not both.any():
                continue
            size = 1.0 / counts[k][both] + 1.0 / counts[other][both]
            distance = float(((means[k] - means[other])[both] ** 2).sum())
            if distance <= trace * size.sum() + ALIKE * np.sqrt(2.0 * square * (size**2).sum()):
                group[group == group[k]] = group[other]
    return group


def averaged(values: Float64, group: Int64) -> Float64:
    """Each value replaced by the mean of its group's: float64 [n], of groups numbered from 0, int64 [n]."""
    found: Float64 = (np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1))[group]
    return found
