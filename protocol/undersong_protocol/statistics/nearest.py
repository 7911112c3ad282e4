"""Finds the Q nearest and Q furthest candidates of every record, exactly, with ties to the lower index.

The score of candidate c for record x is 2 x.c - |c|^2 = |x|^2 - |x - c|^2: higher is nearer. It comes out of one
matrix product with an extra column, which may hold another correction of a candidate than |c|^2. Per record,
contiguous groups of candidates are reduced to their best score, and contiguous groups of groups to theirs. Only the Q
best of each, by (score, lower index), are looked into: they hold the Q best candidates under that order. The product
is so fast that gathering scores one by one costs as much as reading all in order: small groups gather few.
"""

from collections.abc import Iterator

import numpy as np

from undersong_common.arrays import Float32, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.workers import for_each

NONE = -1  # stands for a missing candidate's index if a record has fewer than Q candidates
GROUPS = (8, 4)  # candidates per group, and groups per group of groups
BLOCK_SCORES = 3 << 20  # a block of records has about so many: 12 MiB; below that the product itself is slower
BLOCK_ROWS = 64  # a block is a multiple of it; a ragged product is a quarter slower
# The fewest records that are compared at once meet no more candidates than a block of scores has room for.
MOST_AT_ONCE = BLOCK_SCORES // BLOCK_ROWS
_EMPTY = np.iinfo(np.int64).min  # below every key: no candidate
_INDEX = 0xFFFFFFFF  # bits of a key that hold an index, negated


class NearestFurthest:
    """Keeps the Q nearest and furthest candidates of fixed records while candidates are added.

    It is exact if every score is exact in float32, as for quantised embeddings of norm at most 1. The result after any
    sequence of :meth:`extend` then equals that of one call with all candidates.

    Args:
        private: the records' embeddings, float32 [M, d].
        labels: the records' labels, int64 [M], or None. A record is compared with candidates of its own label only; a
            record with label -1 is compared with no candidate.
        q: number of candidates to keep per record.
        furthest: True keeps the furthest candidates too.

    Attributes:
        candidates: number of candidates compared so far.
    """

    def __init__(self, private: Float32, labels: Int64 | None, q: int, *, furthest: bool = True) -> None:
        self._private = private
        self._labels = labels
        self._q = q
        self.candidates = 0
        self._furthest = furthest
        self._near, self._far = (np.full((len(private), q), _EMPTY) for _ in range(2))

    def __repr__(self) -> str:
        return f"NearestFurthest(q={self._q}, candidates={self.candidates})"

    @property
    def near(self) -> Int64:
        """Indices of each record's nearest candidates, int64 [M, q], nearest first, filled up with ``NONE``."""
        return _key_indices(self._near)

    @property
    def far(self) -> Int64:
        """Indices of each record's furthest candidates, int64 [M, q], furthest first; filled up with ``NONE``."""
        return _key_indices(self._far)

    def extend(self, candidates: Float32, labels: Int64 | None, correction: Float32 | None = None) -> None:
        """Compares the records with n further candidates, float32 [n, d]; their indices follow the earlier ones.

        ``labels`` are the candidates' labels, int64 [n], or None; ``correction`` is as in :class:`Candidates`.
        """
        for start in range(0, max(1, len(candidates)), MOST_AT_ONCE):
            part = slice(start, start + MOST_AT_ONCE)
            of_labels = None if labels is None else labels[part]
            self.add(Candidates(candidates[part], of_labels, None if correction is None else correction[part]))

    def add(self, candidates: "Candidates") -> None:
        """Compares the records with further candidates, at most ``MOST_AT_ONCE``, as :meth:`extend` does."""
        values, labels = candidates.values, candidates.labels
        if (labels is None) != (self._labels is None):
            raise ConfigurationError("labels are given for candidates or for records, but not for both")
        if values.ndim != 2 or values.shape[1] != self._private.shape[1]:
            raise ConfigurationError(
                f"candidates of shape {values.shape} cannot be compared with records of dimension "
                f"{self._private.shape[-1]}",
                "embed both with the same model",
            )
        for rows, columns in by_label(self._labels, labels, len(self._private), len(values)):
            self._compare_blocks(rows, columns, candidates.with_norms(columns))
        self.candidates += len(values)

    def _compare_blocks(self, rows: Int64, columns: Int64, right: Float32) -> None:
        total = columns + self.candidates
        size = max(1, BLOCK_SCORES // len(columns) // BLOCK_ROWS) * BLOCK_ROWS

        def compare(start: int) -> None:
            block = rows[start : start + size]
            scores = right @ _double_records(self._private[block]).T  # [n, b]
            self._keep_best(block, _best_keys(scores, total, self._q, np.maximum), self._near)
            if self._furthest:
                self._keep_best(block, _best_keys(scores, total, self._q, np.minimum), self._far)

        for_each(compare, range(0, len(rows), size))

    def _keep_best(self, block: Int64, best: Int64, kept: Int64) -> None:
        if self.candidates:
            best = _highest_keys(np.concatenate([kept[block], best], axis=1), self._q)
        kept[block, : best.shape[1]] = best


class Candidates:
    """Embeddings that records are compared with, float32 [n, d], and their labels, int64 [n], or None.

    What the records of a label are multiplied with is made once, for every party that is shown this object.
    ``correction``, float32 [n], is subtracted from a candidate's scores in place of |c|^2.
    """

    def __init__(self, values: Float32, labels: Int64 | None, correction: Float32 | None = None) -> None:
        self.values, self.labels = values, labels
        self._correction = np.einsum("nd,nd->n", values, values) if correction is None else correction
        self._ready: dict[int, Float32] = {}  # keyed by the label's first candidate

    def with_norms(self, columns: Int64) -> Float32:
        """Returns [c, -correction] of a label's candidates, float32 [n, d + 1]; ``columns`` are their numbers."""
        first = int(columns[0])
        if first not in self._ready:
            chosen = slice(None) if len(columns) == len(self.values) else columns
            self._ready[first] = _with_norms(self.values[chosen], self._correction[chosen])
        return self._ready[first]


def by_label(
    row_labels: Int64 | None, column_labels: Int64 | None, rows: int, columns: int
) -> Iterator[tuple[Int64, Int64]]:
    """Yields, for each label of both records and candidates, the row numbers of its records and of its candidates.

    Without labels it yields all rows once.
    """
    if row_labels is None or column_labels is None:
        if rows and columns:
            yield np.arange(rows), np.arange(columns)
        return
    for label in np.intersect1d(row_labels, column_labels):
        if label != NONE:
            yield np.flatnonzero(row_labels == label), np.flatnonzero(column_labels == label)


def _with_norms(candidates: Float32, correction: Float32) -> Float32:
    """[c, -correction], float32 [n, d + 1]."""
    extended = np.empty((len(candidates), candidates.shape[1] + 1), dtype=np.float32)
    extended[:, :-1] = candidates
    np.negative(correction, out=extended[:, -1])
    return extended


def _double_records(records: Float32) -> Float32:
    """[2x, 1], float32 [b, d + 1]."""
    extended = np.ones((len(records), records.shape[1] + 1), dtype=np.float32)
    np.multiply(records, np.float32(2), out=extended[:, :-1])
    return extended


def _best_keys(scores: Float32, indices: Int64, q: int, extreme: np.ufunc) -> Int64:
    """Keys of the q best scores of each column of [n, b], int64 [b, min(q, n)], best first.

    Args:
        indices: of the rows, int64 [n], ascending.
        extreme: ``np.maximum`` finds the highest scores, ``np.minimum`` the lowest, whose keys are of negated scores.
    """
    levels = [scores]
    for size in GROUPS:
        groups = len(levels[-1]) // size
        if groups <= 2 * q:
            break
        levels.append(_reduce_groups(levels[-1], size, extreme))
    top = np.arange(len(levels[-1]))
    best = _highest_keys(_score_keys(_signed_scores(levels[-1].T, extreme), top), q)
    for level in range(len(levels) - 2, -1, -1):
        rows = _group_rows(-best & _INDEX, GROUPS[level], len(levels[level]))
        below = levels[level]
        columns = np.arange(below.shape[1])[:, None]
        best = _highest_keys(
            _score_keys(_signed_scores(below.reshape(-1).take(rows * below.shape[1] + columns), extreme), rows), q
        )
    rows = -best & _INDEX
    keys: Int64 = best + rows - indices[rows]
    return keys


def _reduce_groups(scores: Float32, size: int, extreme: np.ufunc) -> Float32:
    """The best score of each whole group of ``size`` rows, float32 [n // size, b]."""
    groups, columns = len(scores) // size, scores.shape[1]
    reduced: Float32 = extreme.reduce(scores[: groups * size].reshape(groups, size, columns), axis=1)
    return reduced


def _group_rows(groups: Int64, size: int, rows: int) -> Int64:
    """The rows in groups of ``size``, and those after the last whole group, int64 [b, k].

    Args:
        groups: int64 [b, q].
        rows: number of rows of which there are groups.
    """
    columns, q = groups.shape
    rest = np.arange(rows // size * size, rows)
    inside = np.empty((columns, q * size + len(rest)), dtype=np.int64)
    np.add(groups[:, :, None] * size, np.arange(size), out=inside[:, : q * size].reshape(columns, q, size))
    inside[:, q * size :] = rest
    return inside


def _signed_scores(scores: Float32, extreme: np.ufunc) -> Float32:
    """The scores, higher for better."""
    return scores if extreme is np.maximum else np.negative(scores)


def _score_keys(scores: Float32, indices: Int64) -> Int64:
    """int64 keys whose descending order is that of (score descending, index ascending)."""
    # A pass over many scores is paid for by its memory: every step but two writes over what it reads.
    bits = np.add(scores, np.float32(0), order="C").view(np.int32)  # + 0: minus zero equals zero
    flips = bits >> 31
    flips &= 0x7FFFFFFF
    bits ^= flips  # two's complement order of the floats
    keys: Int64 = bits.astype(np.int64)
    keys <<= 32
    keys -= indices
    return keys


def _key_indices(keys: Int64) -> Int64:
    """The indices in keys, ``NONE`` for ``_EMPTY``."""
    return np.where(keys == _EMPTY, NONE, -keys & _INDEX)


def _highest_keys(keys: Int64, q: int) -> Int64:
    """The q highest keys of each row, the highest first."""
    count = keys.shape[1]
    if q < count:
        keys = np.partition(keys, count - q, axis=1)[:, count - q :]
    return np.sort(keys, axis=1)[:, ::-1]
