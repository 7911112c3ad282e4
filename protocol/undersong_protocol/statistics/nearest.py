"""Finds the Q nearest and Q furthest candidates of every record, exactly, with ties to the lower index.

The score of candidate c for record x is 2 x.c - |c|^2 = |x|^2 - |x - c|^2: higher is nearer. It comes out of one
matrix product with an extra column, which may hold another correction of a candidate than |c|^2. Per record, groups of
neighbouring candidates are reduced to their best score. The Q-th highest of the best scores of disjoint sets of
candidates is the record's bar, which at least Q candidates reach. Only groups whose best score reaches it are looked
into, and only scores that reach it are sorted, by (score, lower index). A record that has Q candidates from earlier
calls has a bar above the worst of them, because a later candidate loses a tie.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float32, Int32, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.models.workers import for_each

_Number = TypeVar("_Number", bound=np.number[Any])

NONE = -1  # stands for a missing candidate's index if a record has fewer than Q candidates
GROUP = 8  # candidates per group
SETS = 6  # sets of candidates to find a bar, as a multiple of Q: fewer give a lower bar, and more scores to sort
MANY = 2  # mean number of groups per record above which a higher bar is searched, as a multiple of Q
FEW = 16  # number of candidates up to which all are sorted without a bar, as a multiple of Q
BLOCK_SCORES = 3 << 20  # largest number of scores of a block of records, 12 MiB
BLOCK_ROWS = 64  # The records of a block are a multiple of it; other products are a quarter slower.
USUAL_ROWS = 512  # records of a block; more make it no faster, and leave other cores without work
LEAST_SCORES = 3 << 18  # fewest scores of a block; to hand a smaller one to a thread takes longer than its work
# The fewest records that are compared at once meet no more candidates than a block of scores has room for.
MOST_AT_ONCE = BLOCK_SCORES // BLOCK_ROWS
_EMPTY = np.iinfo(np.int64).min  # key that stands for no candidate, below every other one
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
        self._near_keys, self._far_keys = (np.full((len(private), q), _EMPTY) for _ in range(2))

    def __repr__(self) -> str:
        return f"NearestFurthest(q={self._q}, candidates={self.candidates})"

    @property
    def near(self) -> Int64:
        """Indices of each record's nearest candidates, int64 [M, q], nearest first, filled up with ``NONE``."""
        return _key_indices(self._near_keys)

    @property
    def far(self) -> Int64:
        """Indices of each record's furthest candidates, int64 [M, q], furthest first; filled up with ``NONE``."""
        return _key_indices(self._far_keys)

    def extend(self, candidates: Float32, labels: Int64 | None, correction: Float32 | None = None) -> None:
        """Compares the records with n further candidates, float32 [n, d]; their indices follow the earlier ones.

        ``labels`` are the candidates' labels, int64 [n], or None; ``correction`` is as in :class:`Candidates`.
        """
        for start_row in range(0, max(1, len(candidates)), MOST_AT_ONCE):
            candidate_slice = slice(start_row, start_row + MOST_AT_ONCE)
            slice_labels = None if labels is None else labels[candidate_slice]
            self.add(
                Candidates(
                    candidates[candidate_slice],
                    slice_labels,
                    None if correction is None else correction[candidate_slice],
                )
            )

    def add(self, candidates: "Candidates") -> None:
        """Compares the records with further candidates, at most ``MOST_AT_ONCE``, as :meth:`extend` does."""
        candidate_rows = candidates.values
        candidate_labels = candidates.labels
        if (candidate_labels is None) != (self._labels is None):
            raise ConfigurationError(
                "labels are given for candidates or for records, but not for both", "give them for both or for neither"
            )
        if candidate_rows.ndim != 2 or candidate_rows.shape[1] != self._private.shape[1]:
            raise ConfigurationError(
                f"candidates of shape {candidate_rows.shape} cannot be compared with records of dimension "
                f"{self._private.shape[-1]}",
                "embed both with the same model",
            )
        for record_numbers, candidate_numbers in by_label(
            self._labels, candidate_labels, len(self._private), len(candidate_rows)
        ):
            self._compare_blocks(record_numbers, candidate_numbers, candidates.with_norms(candidate_numbers))
        self.candidates += len(candidate_rows)

    def _compare_blocks(self, record_numbers: Int64, candidate_numbers: Int64, candidate_matrix: Float32) -> None:
        candidate_indices = _spread_groups(candidate_numbers + self.candidates, np.int64(NONE))
        usual_rows = max(USUAL_ROWS, LEAST_SCORES // len(candidate_matrix))
        block_size = max(1, min(usual_rows, BLOCK_SCORES // len(candidate_matrix)) // BLOCK_ROWS) * BLOCK_ROWS

        def compare(start: int) -> None:
            record_block = record_numbers[start : start + block_size]
            block_scores = candidate_matrix @ _double_records(self._private[record_block]).T  # [n, b]
            self._near_keys[record_block] = _best_keys(
                block_scores, candidate_indices, self._near_keys[record_block], np.maximum
            )
            if self._furthest:
                self._far_keys[record_block] = _best_keys(
                    block_scores, candidate_indices, self._far_keys[record_block], np.minimum
                )

        for_each(compare, range(0, len(record_numbers), block_size))


class Candidates:
    """Embeddings that records are compared with, float32 [n, d], and their labels, int64 [n], or None.

    The matrix with which a label's records are multiplied is made once, for all parties that share this object.
    ``correction``, float32 [n], is subtracted from a candidate's scores in place of |c|^2.
    """

    def __init__(self, values: Float32, labels: Int64 | None, correction: Float32 | None = None) -> None:
        self.values = values
        self.labels = labels
        if correction is None:
            self._correction = np.einsum("nd,nd->n", values, values)
        else:
            self._correction = correction
        self._matrices: dict[int, Float32] = {}  # finished matrices, by the first candidate of their label

    def with_norms(self, candidate_numbers: Int64) -> Float32:
        """Returns [c, -correction] of one label's candidates ``candidate_numbers``, in groups, float32 [n, d + 1]."""
        first_number = int(candidate_numbers[0])
        if first_number not in self._matrices:
            chosen_numbers: Int64 | slice = candidate_numbers
            if len(candidate_numbers) == len(self.values):
                chosen_numbers = slice(None)
            self._matrices[first_number] = _with_norms(self.values[chosen_numbers], self._correction[chosen_numbers])
        return self._matrices[first_number]


def by_label(
    row_labels: Int64 | None, column_labels: Int64 | None, row_count: int, column_count: int
) -> Iterator[tuple[Int64, Int64]]:
    """Yields, for each label of both records and candidates, the row numbers of its records and of its candidates.

    Without labels it yields all rows once.
    """
    if row_labels is None or column_labels is None:
        if row_count and column_count:
            yield np.arange(row_count), np.arange(column_count)
        return
    for label in np.intersect1d(row_labels, column_labels):
        if label != NONE:
            yield np.flatnonzero(row_labels == label), np.flatnonzero(column_labels == label)


def _with_norms(candidates: Float32, correction: Float32) -> Float32:
    """Returns [c, -correction] in groups, float32 [n, d + 1]; the last candidate is repeated to complete its group."""
    extended_rows = np.empty((len(candidates), candidates.shape[1] + 1), dtype=np.float32)
    extended_rows[:, :-1] = candidates
    np.negative(correction, out=extended_rows[:, -1])
    return _spread_groups(extended_rows, extended_rows[-1])


def _spread_groups(candidates: npt.NDArray[_Number], filler: Any) -> npt.NDArray[_Number]:
    """Returns the candidates in another order: row k g + j is candidate ``GROUP`` j + k, with g groups.

    ``filler`` completes the last group. In this order the best score of every group comes from a few passes over long
    rows.
    """
    group_count = -(-len(candidates) // GROUP)
    spread_rows = np.empty((GROUP, group_count, *candidates.shape[1:]), dtype=candidates.dtype)
    for group_place, place_members in enumerate(spread_rows):
        place_candidates = candidates[group_place::GROUP]
        place_members[: len(place_candidates)] = place_candidates
        place_members[len(place_candidates) :] = filler
    return spread_rows.reshape(-1, *candidates.shape[1:])


def _double_records(records: Float32) -> Float32:
    """Returns [2x, 1] for each record x, float32 [b, d + 1]; its product with [c, -|c|^2] is the score."""
    extended_rows = np.ones((len(records), records.shape[1] + 1), dtype=np.float32)
    np.multiply(records, np.float32(2), out=extended_rows[:, :-1])
    return extended_rows


def _best_keys(scores: Float32, indices: Int64, known_keys: Int64, extreme: np.ufunc) -> Int64:
    """Returns the keys of each record's q best candidates among scored and known ones, int64 [b, q], best first.

    A key is a score and an index in one integer (:func:`_score_keys`).

    Args:
        scores: float32 [n, b], of the candidates in groups (:func:`_spread_groups`).
        indices: of the candidates, int64 [n], above those of known candidates; ``NONE`` for a filler.
        known_keys: keys of the best earlier candidates of each record, int64 [b, q], best first.
        extreme: ``np.maximum`` finds the highest scores, ``np.minimum`` the lowest, whose keys are of negated scores.
    """
    record_count, q = known_keys.shape
    if len(indices) <= FEW * q:
        is_candidate = indices != NONE
        every_key = _score_keys(_signed_scores(scores[is_candidate].T, extreme), indices[is_candidate])
        return _highest_keys(np.concatenate([known_keys, every_key], axis=1), q)
    best_of_group = _signed_scores(extreme.reduce(scores.reshape(GROUP, -1), axis=0), extreme).reshape(-1, record_count)
    record_bars = _record_bars(best_of_group, known_keys)
    reaching_groups = _reaching_groups(best_of_group, record_bars, q)
    member_places = reaching_groups[:, None] + np.arange(0, scores.size, best_of_group.size)
    member_scores = _signed_scores(scores.reshape(-1).take(member_places), extreme)
    reaching_members = np.flatnonzero(member_scores >= record_bars[reaching_groups % record_count][:, None])
    member_rows, columns = np.divmod(member_places.reshape(-1)[reaching_members], record_count)
    is_candidate = indices[member_rows] != NONE
    reaching_keys = _score_keys(
        member_scores.reshape(-1)[reaching_members[is_candidate]], indices[member_rows[is_candidate]]
    )
    return _merge_keys(known_keys, reaching_keys, columns[is_candidate])


def _record_bars(best_of_group: Float32, known_keys: Int64) -> Float32:
    """Returns for each record a score that a candidate must reach to be among its q best, float32 [b].

    Args:
        best_of_group: best score of each group, float32 [groups, b].
        known_keys: as in :func:`_best_keys`.
    """
    record_count, q = known_keys.shape
    worst_keys = known_keys[:, -1]
    score_bars = np.where(
        worst_keys == _EMPTY, np.float32(-np.inf), np.nextafter(_key_scores(worst_keys), np.float32(np.inf))
    )
    if np.isneginf(score_bars).any() or np.count_nonzero(best_of_group >= score_bars) > MANY * q * record_count:
        # A set has groups that lie far apart, because similar candidates often follow each other. Whatever their order,
        # only groups of fewer than q sets of 6 q are above the bar.
        set_size = max(1, len(best_of_group) // (SETS * q))
        best_of_set = (
            best_of_group[: len(best_of_group) // set_size * set_size].reshape(set_size, -1, record_count).max(axis=0)
        )
        bar_rank = len(best_of_set) - q
        score_bars = np.maximum(score_bars, np.partition(best_of_set.T.copy(), bar_rank, axis=1)[:, bar_rank])
    return score_bars


def _reaching_groups(best_of_group: Float32, bars: Float32, q: int) -> Int64:
    """Returns the flat indices in ``best_of_group``, [groups, b], at which it reaches the record's bar, int64 [k].

    Of a record's groups whose best score equals the bar, the first q are enough: each holds a candidate that precedes
    all candidates of later groups.
    """
    is_reaching = best_of_group >= bars
    if np.count_nonzero(is_reaching) > MANY * q * len(bars):
        is_tied = best_of_group == bars
        is_reaching &= ~is_tied | (np.cumsum(is_tied, axis=0) <= q)
    return np.flatnonzero(is_reaching)


def _merge_keys(known_keys: Int64, keys: Int64, columns: Int64) -> Int64:
    """Returns the q highest of each record's known keys, int64 [b, q], and further ``keys`` of records ``columns``."""
    record_count, q = known_keys.shape
    # A block has fewer than 2^16 records, and numbers of 16 bits are sorted in linear time.
    column_order = np.argsort(columns.astype(np.uint16), kind="stable")
    keys_of_column = np.bincount(columns, minlength=record_count)
    place_in_column = np.arange(len(keys)) - np.repeat(np.cumsum(keys_of_column) - keys_of_column, keys_of_column)
    key_table = np.full((record_count, q + keys_of_column.max()), _EMPTY)
    key_table[:, :q] = known_keys
    key_table[columns[column_order], q + place_in_column] = keys[column_order]
    return _highest_keys(key_table, q)


def _signed_scores(scores: Float32, extreme: np.ufunc) -> Float32:
    """Returns the scores, negated where the lowest are wanted, so that a higher one is always better."""
    return scores if extreme is np.maximum else np.negative(scores)


def _score_keys(scores: Float32, indices: Int64) -> Int64:
    """Returns int64 keys whose descending order is that of (score descending, index ascending)."""
    score_bits = np.add(scores, np.float32(0), order="C").view(np.int32)  # Adding 0 turns minus zero into zero.
    ordered_keys: Int64 = _ordered_bits(score_bits).astype(np.int64)
    ordered_keys <<= 32
    ordered_keys -= indices
    return ordered_keys


def _key_scores(keys: Int64) -> Float32:
    """Returns the scores that keys hold, float32."""
    return _ordered_bits(((keys + (-keys & _INDEX)) >> 32).astype(np.int32)).view(np.float32)


def _ordered_bits(bits: Int32) -> Int32:
    """Maps the bits of floats to integers in the order of the floats; it is its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _key_indices(keys: Int64) -> Int64:
    """Returns the indices that keys hold, ``NONE`` for ``_EMPTY``."""
    return np.where(keys == _EMPTY, NONE, -keys & _INDEX)


def _highest_keys(keys: Int64, q: int) -> Int64:
    """Returns the q highest keys of each row, the highest first."""
    row_length = keys.shape[1]
    if q < row_length:
        keys = np.partition(keys, row_length - q, axis=1)[:, row_length - q :]
    return np.sort(keys, axis=1)[:, ::-1]
