"""Labels of texts from which a usual task model learns a given classifier; docs/method.md, section 5. Public data only.

The corpus has each text under its likeliest one.
"""

from __future__ import annotations

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_server.methods.parts.consistency import classifier, probabilities

CAREFUL = (0.1, 0.2, 0.3, 0.5)  # inverse regularisation with which texts are followed less closely than by validation
SURELY_CAREFUL = CAREFUL[:3]  # by the first round's texts, which are few
CLOSE = (1.0, 2.0, 3.0)
STRENGTHS = (*CAREFUL, *CLOSE, 5.0)  # weakest fit first; the last says that no strength is too close
WORTHLESS = 0.0015  # of what is right: so much does not speak against care
FALLS = 2  # steps down in a row, after which nothing better is expected
MARGIN = 0.25  # of the mean margin: how near to the boundary a text counts as half right
STRONGEST = 3.0  # that a task model may choose: labels made for it are followed no more closely than meant
SURE = 1.0  # labels made for it are followed more closely by a task model that chooses a larger strength
LIKELIEST = 3  # labels that a text may stand under
LEAST_PROBABILITY = 0.02  # below it a text is not in the corpus under a label
PASSES = 4  # of solving and cutting at zero
RIDGE = 1e-6  # of the mean eigenvalue, where texts are fewer than an embedding's components


def rightness_for_others(
    embeddings: Float32, labels: Int64, author: Int64, generators: int, classes: int, weights: Float64
) -> Float64 | None:
    """Returns the smoothed leave-one-generator-out accuracy at each of ``STRENGTHS``, float64.

    Each generator's texts are held out in turn and predicted by a classifier of the others' texts. A random held-out
    part would share the generator's quirks, so that validation on it fits them too closely. Real records do not share
    them. The accuracy is smoothed, since counts of right answers change by chance from one strength to the next: each
    text counts a logistic function of its margin, in units of ``MARGIN`` times the mean absolute margin.

    A test is weighted by the squared share of the corpus that its training texts have. If one of two generators wrote
    most of the corpus, the other's texts alone are a poor stand-in for it.

    Args:
        embeddings: unit, float32 [n, d]; labels, author: int64 [n]; weights: of the corpus, float64 [n].

    Returns: accuracies from 0 to 1, or None if no generator's texts can be predicted from the others'.
    """
    splits = []
    for k in range(generators):
        rest = (author != k) & (weights > 0)
        held = (author == k) & (weights > 0) & np.isin(labels, labels[rest])
        if held.any():
            splits.append((held, rest, float(weights[rest].sum() / weights.sum()) ** 2))
    if not splits:
        return None
    heads: list[Float64 | None] = [None] * len(splits)
    tried = sum(like * float(weights[held].sum()) for held, _, like in splits)
    found: list[float] = []
    for strength in STRENGTHS:
        right = 0.0
        for i, (held, rest, like) in enumerate(splits):
            learnt, its = embeddings[rest], labels[rest]
            heads[i] = head = classifier(learnt, its, classes, strength=strength, weights=weights[rest], start=heads[i])
            right += like * _rightness(head, embeddings[held], labels[held], weights[held])
        found.append(right / tried)
        if strength >= CLOSE[0] and len(found) - 1 - int(np.argmax(found)) >= FALLS:
            break  # the path has one hill up to noise; stopping also saves the slow, weakly regularised fits
    return np.pad(np.array(found), (0, len(STRENGTHS) - len(found)), mode="edge")


def strength_for_others(first: Float64 | None, corpus: Float64) -> float:
    """Returns the strength with the best accuracy across generators.

    Both tests together decide if it is one of ``CAREFUL``, because each alone may prefer a closer fit by chance: the
    corpus if it is mostly one generator's, and the first round because its texts are few. The corpus has many more
    texts and counts twice. The corpus alone then decides between the strengths of the chosen range.

    Args:
        first, corpus: rightness of the first round's texts, of which all generators wrote as many, and of the corpus
            (:func:`rightness_for_others`); None for the first where it was not asked.
    """
    both = corpus if first is None else (first + 2 * corpus) / 3
    careful = both[: len(CAREFUL)].max() >= both.max() - WORTHLESS
    start, end = (0, len(CAREFUL)) if careful else (len(CAREFUL), len(STRENGTHS))
    return STRENGTHS[start + int(np.argmax(corpus[start:end]))]


def surely_careful(first: Float64) -> bool:
    """Tells if the first round's accuracy is highest at a strength of ``SURELY_CAREFUL``."""
    return STRENGTHS[int(np.argmax(first))] in SURELY_CAREFUL


def _rightness(head: Float64, embeddings: Float32, labels: Int64, weights: Float64) -> float:
    """Returns the weighted sum of the texts' smoothed accuracy: a logistic function of each text's margin."""
    logits, rows = embeddings @ head[:-1] + head[-1], np.arange(len(labels))
    own = logits[rows, labels].copy()
    logits[rows, labels] = -np.inf
    margin = own - logits.max(axis=1)
    unit = MARGIN * max(float(np.abs(margin).mean()), np.finfo(np.float64).tiny)
    return float(weights @ (0.5 + 0.5 * np.tanh(0.5 * margin / unit)))


def labels_that_teach(head: Float64, embeddings: Float32, labels: Int64, weights: Float64, strength: float) -> Float64:
    """Returns soft labels t, float64 [n, C], from which a task model of strength c learns the given classifier W.

    The soft labels are near the classifier's own probabilities p. The gradient of c sum_i w_i (cross-entropy) +
    |W|^2 / 2 vanishes where sum_i w_i (t_i - p_i) x_i = W / c. The least change t_i - p_i that solves this is linear
    in x_i. Negative values are set to 0 and the rest is solved for again. Small probabilities become 0.

    Args:
        head: the classifier, float64 [d + 1, C], the bias last.
        embeddings: unit, float32 [n, d].
        labels: as ordered, int64 [n]; one that does not occur gets no text.
        weights: of the texts, float64 [n], of mean 1.
        strength: c.
    """
    found = np.zeros((len(embeddings), head.shape[1]))
    present = np.unique(labels)
    found[:, present] = _taught(head[:, present], embeddings, weights, strength)
    return found


def _taught(head: Float64, embeddings: Float32, weights: Float64, strength: float) -> Float64:
    x = np.hstack([embeddings, np.ones((len(embeddings), 1))]).astype(np.float64)
    weighed = (x * weights[:, None]).T
    curvature = weighed @ x
    curvature += RIDGE * np.trace(curvature) / len(curvature) * np.eye(len(curvature))
    centred, likely = head - head.mean(axis=1, keepdims=True), probabilities(head, embeddings)
    wanted = np.vstack([centred[:-1], np.zeros((1, head.shape[1]))]) / strength
    allowed = np.zeros(likely.shape, dtype=np.bool_)
    likeliest = np.argsort(-likely, axis=1, kind="stable")[:, :LIKELIEST]  # no more, however many are alike
    np.put_along_axis(allowed, likeliest, True, axis=1)
    found = _whole(np.where(allowed, likely, 0.0))
    for _ in range(PASSES):
        left = wanted - weighed @ (found - likely)
        changed = np.where(allowed, found + x @ np.linalg.solve(curvature, left), 0.0).clip(0.0)
        found = _whole(np.where(changed.any(axis=1, keepdims=True), changed, found))
    return _whole(np.where(found < LEAST_PROBABILITY, 0.0, found))


def _whole(values: Float64) -> Float64:
    result: Float64 = values / values.sum(axis=1, keepdims=True)
    return result
