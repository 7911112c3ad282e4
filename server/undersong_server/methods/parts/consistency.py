"""Classifiers of the generators' texts, and the support that they give to texts' labels. Public data only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_server.methods.parts.places import cell_means
from undersong_server.methods.parts.shares import table

STRENGTH = 3.0  # inverse regularisation
ALIKE = 3.0
HALVINGS = 4  # of the texts, before generators are judged label by label
BY_LABEL, LEAST_BY_LABEL = 3.0, 0.005  # of variances of agreement; the second is that of seven points
SMALLEST_TRUST = 1e-6  # added to each trust: where a text's author has all of it, the others count equally


def classifier(
    embeddings: Float32,
    labels: Int64,
    classes: int,
    *,
    strength: float = STRENGTH,
    weights: Float64 | None = None,
    start: Float64 | None = None,
) -> Float64:
    """A linear classifier, float64 [d + 1, classes], bias last; a label without texts has the bias ``NEVER``.

    Args:
        strength: inverse regularisation.
        weights: non-negative, one per text; only their ratios matter.
        start: a classifier of the same texts of another strength; the way from it is shorter.
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
    begin = None if start is None else start[:, present]
    found[:, present] = fit_linear(embeddings, numbered.ravel().astype(np.int64), w, len(present), strength, begin)
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
    """Returns the log-odds of each text's label by the other generators' classifiers, float64 [n].

    The probabilities are averaged with trust as the weight. The odds compare the text's own label with the likeliest
    other one: below 0, another label is likelier. The classifier of a text's own author is left out, because it was
    trained on the text.

    Args:
        heads: one classifier per generator (:func:`classifier`).
        trust: of the generators for each label, non-negative, float64 [K, C].
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


class Halves(NamedTuple):
    """Each generator's texts in two halves by chance, and a classifier trained on either.

    Attributes:
        heads: float64 [2, K, d + 1, C].
        half_of: of each text, 0 or 1, int64 [n].
    """

    heads: Float64
    half_of: Int64

    @classmethod
    def of(
        cls,
        embeddings: Float32,
        labels: Int64,
        author: Int64,
        generators: int,
        classes: int,
        rng: np.random.Generator,
        *,
        strength: float = STRENGTH,
    ) -> Halves:
        half_of = np.zeros(len(author), dtype=np.int64)
        heads = np.zeros((2, generators, embeddings.shape[1] + 1, classes))
        for k in range(generators):
            mine = rng.permutation(np.flatnonzero(author == k))
            half_of[mine[1::2]] = 1
            for half in range(2):
                texts = mine[half::2]
                heads[half, k] = classifier(embeddings[texts], labels[texts], classes, strength=strength)
        return cls(heads, half_of)


def halvings(
    embeddings: Float32, labels: Int64, author: Int64, generators: int, classes: int, rng: np.random.Generator
) -> list[Halves]:
    """Several ways of halving the same texts: one alone may halve a generator's few texts of a label badly."""
    return [Halves.of(embeddings, labels, author, generators, classes, rng) for _ in range(HALVINGS)]


def training_sample_variance(halves: Halves, embeddings: Float32, labels: Int64, author: Int64) -> float:
    """Variance of a generator's accuracy that comes from which of its texts its classifier was trained on.

    The classifiers of either half are tried on what the other generators wrote. A classifier of all the texts varies
    half as much as one of a half: a quarter of the mean squared difference. It is the same for every record, so more
    records do not lessen it.
    """
    squares = []
    for k, pair in enumerate(halves.heads.swapaxes(0, 1)):
        others = author != k
        if min(np.bincount(halves.half_of[~others], minlength=2)) == 0 or not others.any():
            continue
        tried, truth = embeddings[others], labels[others]
        right = [np.mean(probabilities(head, tried).argmax(axis=1) == truth) for head in pair]
        squares.append((right[0] - right[1]) ** 2 / 4.0)
    return float(np.mean(squares)) if squares else 0.0


def blocks(halved: Sequence[Halves], embeddings: Float32) -> Int64:
    """Returns the label group of each label, int64 [C]: 0 for all labels, or a group of its own for each.

    The records judge the generators once per label group. One group has less noise. It is wrong if generators are good
    at different labels, so each label gets its own group if the pairs' agreement varies much from label to label: by
    more than ``BY_LABEL`` times its variance over all labels and by more than ``LEAST_BY_LABEL`` (:func:`agreement`).

    Args:
        halved: the same texts, in several ways (:func:`halvings`).
    """
    whole, by_label = np.mean([agreement(halves, embeddings) for halves in halved], axis=0)
    classes = halved[0].heads.shape[-1]
    apart = by_label > max(BY_LABEL * whole, LEAST_BY_LABEL)
    return np.arange(classes) if apart else np.zeros(classes, dtype=np.int64)


def agreement(halves: Halves, embeddings: Float32) -> tuple[float, float]:
    """Variances of how far pairs of generators agree on what a label is: over all labels, and from label to label.

    The agreement of two classifiers on a label is the F1 score of one's answers by the other's, on texts of the half
    that neither learnt from. Each logit counts around its mean over these texts: an answer that one gives too often
    for all texts is no other opinion of a label. The pairs' mean is taken off, label by label, since labels are not
    equally hard. Variances are products of the two halves', so that the luck of the training texts adds nothing to
    their mean. A label that one of a pair did not write in either half says nothing.
    """
    generators, classes = halves.heads.shape[1], halves.heads.shape[-1]
    first, second = np.triu_indices(generators, 1)
    if len(first) < 2 or classes < 2:
        return 0.0, 0.0
    written: Bools = np.all(halves.heads[:, :, -1] > NEVER, axis=0)
    known = written[first] & written[second]  # [pairs, C]
    parts = []
    for half, heads in enumerate(halves.heads):
        tried = embeddings[halves.half_of != half]
        answers = np.stack([_centred_answers(head, tried) for head in heads])
        found = np.zeros(known.shape)
        for label in range(classes):
            given = (answers == label).astype(np.float64)
            both, each = (given @ given.T)[first, second], given.sum(axis=1)
            found[:, label] = 2.0 * both / np.maximum(each[first] + each[second], 1.0)
        found = (found - _mean(found, known, axis=0)) * known
        over_all = _mean(found, known, axis=1)
        parts.append((over_all, (found - over_all) * known))
    (whole, by_label), (other_whole, other_by_label) = parts
    pairs = len(first) - 1
    return (
        float((whole * other_whole).sum()) / pairs,
        float((by_label * other_by_label).sum()) / (pairs * (classes - 1)),
    )


def _centred_answers(head: Float64, embeddings: Float32) -> Int64:
    logits = embeddings @ head[:-1] + head[-1]
    centred: Int64 = np.where(head[-1] > NEVER, logits - logits.mean(axis=0), NEVER).argmax(axis=1)
    return centred


def _mean(values: Float64, known: Bools, axis: int) -> Float64:
    found: Float64 = (values * known).sum(axis, keepdims=True) / np.maximum(known.sum(axis, keepdims=True), 1)
    return found


def alike(rows: Float32 | Float64, labels: Int64, author: Int64, generators: int, classes: int) -> Int64:
    """Numbers the generators so that those with indistinguishable texts share a number, int64 [K]; public data only.

    Two generators are alike where the distance of their means, labels weighed alike, is no more than chance makes it:
    within ``ALIKE`` deviations of its expectation for two samples of one source.
    """
    group = np.arange(generators)
    counts = table(author, labels, generators, classes)
    means = cell_means(rows, labels, author, generators, classes)
    left = rows - means[author, labels]
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
