"""Linear teachers: classifiers on embeddings, one per shard of a party's records, that tell private from public texts.

Song et al. 2024 train one discriminator per shard, private texts against generated ones. Here it is logistic regression
on embeddings. Teachers live in one call of :func:`votes` and nowhere else: nothing keeps or writes one.

A shard has a handful of records of every class, too few for a discriminator per class and too mixed for a single one.
So each class of the shard is set against the same class of the candidates (embeddings are centred at the public mean
of their class, and the candidates' classes weigh as the shard's), by one direction common to the classes and one
deviation per class, both regularised (Evgeniou and Pontil 2004). A class that a shard lacks keeps the common
direction. Without labels there is one class.

The privacy of the votes rests on this: what a teacher computes depends on its own shard and on public data alone, to
the last bit. So teachers are numbered by shard and trained in batches of a fixed width, empty shards included: every
matrix product that several teachers share has the same shape whatever the records are, and its columns do not mix;
products with records are a shard's own; the step length follows from public bounds.
"""

from itertools import pairwise

import numpy as np

from undersong_common.arrays import Bools, Float32, Float64, Floats, Int64
from undersong_common.program.library_threads import one_library_thread

BATCH = 64  # teachers trained side by side
OWN_PART = np.float32(1.0)  # weight of a class's deviation from the common direction
RIDGE = 1.0  # added to the candidates' covariance, in units of its mean eigenvalue
LONGEST = 2.0  # largest norm of a whitened embedding; a typical candidate's is 1
REGULARISATION = 0.03  # weight of half the squared parameters beside a mean logistic loss
STEPS = 40


class Whitening:
    """Centres embeddings by class and scales them by the variation among public candidates, as teachers use them.

    Args:
        embeddings: the public candidates' embeddings, float32 [n, d], n >= 1.
        classes: the candidates' classes, int64 [n] in [0, count).

    Attributes:
        means: mean of the candidates of each class, float64 [count, d]; of all candidates for a class without any.
        axes: eigenvectors, as columns, of the covariance within the classes plus a ridge, float64 [d, d].
        variances: their eigenvalues, float64 [d].
    """

    def __init__(self, embeddings: Float32, classes: Int64, class_count: int) -> None:
        embeddings64 = embeddings.astype(np.float64)
        class_sizes = np.bincount(classes, minlength=class_count)
        self.means: Float64 = np.tile(embeddings64.mean(axis=0), (class_count, 1))
        for label in np.flatnonzero(class_sizes):
            self.means[label] = embeddings64[classes == label].mean(axis=0)
        centred_rows = embeddings64 - self.means[classes]
        covariance = centred_rows.T @ centred_rows / len(embeddings64)
        ridge = RIDGE * max(float(np.trace(covariance)) / embeddings64.shape[1], 1e-12)
        eigenvalues, eigenvectors = np.linalg.eigh(covariance + ridge * np.eye(embeddings64.shape[1]))
        self.axes: Float64 = eigenvectors
        self.variances: Float64 = eigenvalues
        # A typical candidate has norm 1, so that one regularisation suits every embedding model.
        typical_distance = max(float((((centred_rows @ eigenvectors) ** 2) / eigenvalues).sum(axis=1).mean()), 1e-12)
        self._scale = 1.0 / np.sqrt(eigenvalues * typical_distance)

    def __call__(self, embeddings: Float32, classes: Int64) -> Float32:
        """Returns embeddings, centred by class, in scaled coordinates along the axes, float32 [n, d].

        Rows longer than ``LONGEST`` are shortened to it.
        """
        scaled_rows = ((embeddings - self.means[classes]) @ self.axes) * self._scale
        norms = np.linalg.norm(scaled_rows, axis=1, keepdims=True)
        whitened: Float32 = (scaled_rows * np.minimum(1.0, LONGEST / np.maximum(norms, 1e-12))).astype(np.float32)
        return whitened

    def whitened_direction(self, directions: Float64) -> Float64:
        """Converts directions in the axes, float64 [..., d], to whitened coordinates with the same inner products."""
        return directions / self._scale


@one_library_thread()
def votes(
    records: Float32,
    classes: Int64,
    shards: Int64,
    contrast: Float32,
    contrast_classes: Int64,
    queries: Float32,
    query_classes: Int64,
    *,
    teachers: int,
    class_count: int,
    half: bool,
    probabilities: bool = False,
) -> Float64:
    """Trains a linear teacher per shard and returns its answers on the queries, float64 [teachers, queries] in [0, 1].

    An answer is 1 if the teacher takes the query for private, else 0; with ``probabilities`` it is the probability. A
    shard without records answers 0.

    Args:
        records: private embeddings, float32 [M, d].
        classes: class (label) of each record, int64 [M] in [0, class_count).
        shards: number of each record's teacher, int64 [M] in [0, teachers).
        contrast, contrast_classes: at least one public embedding, from which teachers learn to tell their records.
        queries, query_classes: other public embeddings, on which teachers answer.
        half: True makes a teacher vote for the better half of the queries of each class (those above the median of
            its scores); False makes it vote for those on the private side of its boundary.
    """
    whiten = Whitening(contrast, contrast_classes, class_count)
    whitened_contrast = whiten(contrast, contrast_classes)
    whitened_queries = whiten(queries, query_classes)
    contrast_labels = np.unique(contrast_classes).tolist()
    contrast_by_class = [whitened_contrast[contrast_classes == label] for label in range(class_count)]
    contrast_by_class = [
        class_contrast if len(class_contrast) else whitened_contrast for class_contrast in contrast_by_class
    ]  # All candidates stand for a class that has none.
    cast_votes = np.zeros((teachers, len(whitened_queries)))
    shard_order = np.argsort(shards, kind="stable")
    for teacher_start in range(0, teachers, BATCH):
        shard_bounds = np.searchsorted(shards[shard_order], np.arange(teacher_start, teacher_start + BATCH + 1))
        rows_by_teacher = [shard_order[start:stop] for start, stop in pairwise(shard_bounds)]
        records_by_teacher = [
            (whiten(records[teacher_rows], classes[teacher_rows]), classes[teacher_rows])
            for teacher_rows in rows_by_teacher
        ]
        directions, bias = _train_batch(records_by_teacher, contrast_by_class, contrast_labels)
        query_scores = np.zeros((len(whitened_queries), BATCH), dtype=np.float32)
        for label in np.unique(query_classes):
            query_scores[query_classes == label] = whitened_queries[query_classes == label] @ directions[label].T + bias
        batch_ballots = np.array(
            logistic(query_scores) if probabilities else ballot(query_scores, query_classes, half), dtype=np.float64
        ).T
        batch_ballots[[len(rows) == 0 for rows in rows_by_teacher]] = 0.0
        cast_votes[teacher_start : teacher_start + BATCH] = batch_ballots[: teachers - teacher_start]
    return cast_votes


def ballot(scores: Float32 | Float64, classes: Int64, half: bool) -> Bools:
    """Returns True for the queries that each teacher votes for, bool [queries, teachers], from scores of that shape.

    Args:
        classes: classes of the queries, int64 [queries].
        half: True takes queries above the median of the teacher's scores in their class; False takes those above 0,
            the teacher's boundary.

    >>> ballot(np.array([[1.0], [2.0], [-3.0], [-4.0]]), np.array([0, 0, 1, 1]), half=True)[:, 0].tolist()
    [False, True, True, False]
    """
    if not half:
        return scores > 0.0
    yes_votes = np.zeros(scores.shape, dtype=np.bool_)
    for label in np.unique(classes):
        is_of_class = classes == label
        yes_votes[is_of_class] = scores[is_of_class] > np.median(scores[is_of_class], axis=0)
    return yes_votes


def _train_batch(
    records_by_teacher: list[tuple[Float32, Int64]], contrast_by_class: list[Float32], contrast_labels: list[int]
) -> tuple[Float32, Float32]:
    """Trains a batch of teachers: returns directions, float32 [classes, BATCH, d], and biases, float32 [BATCH].

    The classes that candidates have (``contrast_labels``) are computed for every batch, whichever its records have, so
    that shards without records are as much work as others.

    It is accelerated gradient descent (Nesterov 1983), a fixed number of steps from zero, on half the mean loss of the
    shard's records plus half that of the candidates, plus ``REGULARISATION`` / 2 times the squared parameters.
    """
    class_count = len(contrast_by_class)
    width = contrast_by_class[0].shape[1]
    contrast_weights = np.zeros((class_count, BATCH), dtype=np.float32)  # one candidate's weight, by class and teacher
    class_groups = []  # a shard's records of one class: slot, class, records, weight of each
    for teacher_place, (records, classes) in enumerate(records_by_teacher):
        for label in np.unique(classes):
            class_rows = np.ascontiguousarray(records[classes == label])
            class_groups.append((teacher_place, int(label), class_rows, np.float32(0.5 / len(records))))
            contrast_weights[label, teacher_place] = (
                0.5 * len(class_rows) / len(records) / len(contrast_by_class[label])
            )
    computed_classes = sorted({*contrast_labels, *(label for _, label, _, _ in class_groups)})

    step_size = np.float32(1.0 / (0.25 * ((1.0 + OWN_PART**2) * LONGEST**2 + 1.0) + REGULARISATION))
    condition_root = float(np.sqrt(REGULARISATION * step_size))
    momentum = np.float32((1.0 - condition_root) / (1.0 + condition_root))
    weight_decay = np.float32(1.0 - step_size * REGULARISATION)
    common_direction = np.zeros((BATCH, width), np.float32)
    class_directions = np.zeros((class_count, BATCH, width), np.float32)
    teacher_bias = np.zeros(BATCH, np.float32)
    ahead_common = common_direction
    ahead_own = class_directions
    ahead_bias = teacher_bias
    for _ in range(STEPS):
        class_slopes = np.zeros_like(class_directions)
        slope_bias = np.zeros_like(teacher_bias)
        directions = ahead_common + OWN_PART * ahead_own
        for label in computed_classes:
            class_contrast = contrast_by_class[label]
            contrast_slopes = logistic(class_contrast @ directions[label].T + ahead_bias) * contrast_weights[label]
            class_slopes[label] = contrast_slopes.T @ class_contrast
            slope_bias = slope_bias + contrast_slopes.sum(axis=0)
        for teacher_place, label, class_rows, row_weight in class_groups:
            record_slopes = row_weight * logistic(
                -(class_rows @ directions[label, teacher_place] + ahead_bias[teacher_place])
            )
            class_slopes[label, teacher_place] -= record_slopes @ class_rows
            slope_bias[teacher_place] -= record_slopes.sum()
        new_common = weight_decay * ahead_common - step_size * class_slopes.sum(axis=0)
        new_own = weight_decay * ahead_own - step_size * OWN_PART * class_slopes
        new_bias = ahead_bias - step_size * slope_bias
        ahead_common = new_common + momentum * (new_common - common_direction)
        ahead_own = new_own + momentum * (new_own - class_directions)
        ahead_bias = new_bias + momentum * (new_bias - teacher_bias)
        common_direction = new_common
        class_directions = new_own
        teacher_bias = new_bias
    return common_direction + OWN_PART * class_directions, teacher_bias


def logistic(scores: Floats) -> Float32:
    """Returns the logistic function 1 / (1 + exp(-score)) of each score, float32."""
    return np.asarray(1.0 / (1.0 + np.exp(np.clip(np.negative(scores), -40.0, 40.0))), dtype=np.float32)
