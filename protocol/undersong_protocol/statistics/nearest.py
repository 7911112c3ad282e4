"""The Q nearest and Q furthest candidates of every record: exact, ties to the lower index, close to a bare product.

The score of candidate c for record x is 2 x.c - |c|^2 = |x|^2 - |x - c|^2: higher is nearer. It comes out of one
matrix product with an extra column. Per record, contiguous groups of candidates are reduced to their best score, and
only the Q best groups, by (score, lower index), are looked into: they hold the Q best candidates under that order.
"""

import math
from collections.abc import Iterator

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.embedding import GRID
from undersong_common.errors import ConfigurationError
from undersong_common.workers import for_each, in_order

NONE = -1  # in place of a candidate's index where a record has fewer than Q candidates
GROUP = 32  # candidates per group
BLOCK_SCORES = 3 << 19  # a block of records has about so many: 6 MiB, which stay in the last-level cache
BLOCK_ROWS = 64  # a block is a multiple of it; a ragged product is a quarter slower
CHECKED_ROWS = 512
_EMPTY = np.iinfo(np.int64).min  # below every key: no candidate
_INDEX = 0xFFFFFFFF  # bits of a key that hold an index, negated


class NearestFurthest:
    """The Q nearest and furthest candidates of fixed records, kept while candidates are added.

    Exact where every score is exact in float32, as for quantised embeddings of norm at most 1; the result after any
    sequence of :meth:`extend` then equals that of one call with all candidates.

    Args:
        private: float32 [M, d].
        labels: int64 [M] or None; a record is compared with candidates of its own label only, and with none at -1.
        q: how many to keep.
        furthest: whether the furthest are kept too.

    Attributes:
        candidates: how many have been compared.
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
        """Candidate indices, int64 [M, q], best first, ``NONE`` where there are fewer."""
        return _indices(self._near)

    @property
    def far(self) -> Int64:
        """The same of the furthest; all ``NONE`` without ``furthest``."""
        return _indices(self._far)

    def extend(self, candidates: Float32, labels: Int64 | None) -> None:
        """Compares with further candidates, float32 [n, d] (labels int64 [n] or None), indexed after those before."""
        if (labels is None) != (self._labels is None):
            raise ConfigurationError("labels are given for candidates or for records, but not for both")
        if candidates.ndim != 2 or candidates.shape[1] != self._private.shape[1]:
            raise ConfigurationError(
                f"candidates of shape {candidates.shape} cannot be compared with records of dimension "
                f"{self._private.shape[-1]}",
                "embed both with the same model",
            )
        # The fewest records that are compared at once meet no more candidates than a block of scores has room for.
        for start in range(0, len(candidates), BLOCK_SCORES // BLOCK_ROWS):
            part = slice(start, start + BLOCK_SCORES // BLOCK_ROWS)
            values, names = candidates[part], None if labels is None else labels[part]
            for rows, columns in by_label(self._labels, names, len(self._private), len(values)):
                self._compare(rows, columns, values)
            self.candidates += len(values)

    def _compare(self, rows: Int64, columns: Int64, candidates: Float32) -> None:
        chosen = candidates if len(columns) == len(candidates) else candidates[columns]
        right = _with_norms(chosen)
        total = columns + self.candidates
        size = max(1, BLOCK_SCORES // len(columns) // BLOCK_ROWS) * BLOCK_ROWS

        def compare(start: int) -> None:
            block = rows[start : start + size]
            scores = right @ _doubled(self._private[block]).T  # [n, b]
            self._keep(block, _best(scores, total, self._q), self._near)
            if self._furthest:
                self._keep(block, _best(np.negative(scores, out=scores), total, self._q), self._far)

        for_each(compare, range(0, len(rows), size))

    def _keep(self, block: Int64, best: Int64, kept: Int64) -> None:
        if self.candidates:
            best = _highest(np.concatenate([kept[block], best], axis=1), self._q)
        kept[block, : best.shape[1]] = best


def top_q(
    private: Float32, private_labels: Int64 | None, candidates: Float32, candidate_labels: Int64 | None, q: int
) -> tuple[Int64, Int64]:
    """Nearest and furthest candidates of each record in one call: int64 [M, q] each, ``NONE`` where there are fewer.

    Unlike :class:`NearestFurthest` it is exact also where scores need more than float32's 24 bits, as long as the
    products are exact in float32.

    Raises:
        ConfigurationError: shapes that do not fit.
    """
    private, candidates = np.asarray(private, dtype=np.float32), np.asarray(candidates, dtype=np.float32)
    if private.ndim != 2 or candidates.ndim != 2 or private.shape[1] != candidates.shape[1]:
        raise ConfigurationError(
            f"records of shape {private.shape} cannot be compared with candidates of shape {candidates.shape}",
            "give [M, d] and [N, d]",
        )
    labels = [
        None if given is None else np.asarray(given, dtype=np.int64).reshape(-1)
        for given in (private_labels, candidate_labels)
    ]
    for rows, given in ((private, labels[0]), (candidates, labels[1])):
        if given is not None and len(given) != len(rows):
            raise ConfigurationError(f"{len(given)} labels for {len(rows)} rows", "give one label per row")
    if not (_is_quantised(private) and _is_quantised(candidates)):
        integers = _as_integers(private, candidates)
        if integers is not None:
            return _top_q_of_integers(*integers, labels[0], labels[1], q)
    state = NearestFurthest(private, labels[0], q)
    state.extend(candidates, labels[1])
    return state.near, state.far


def by_label(
    row_labels: Int64 | None, column_labels: Int64 | None, rows: int, columns: int
) -> Iterator[tuple[Int64, Int64]]:
    """Positions of the records and of the candidates of each label that both have."""
    if row_labels is None or column_labels is None:
        if rows and columns:
            yield np.arange(rows), np.arange(columns)
        return
    for label in np.intersect1d(row_labels, column_labels):
        if label != NONE:
            yield np.flatnonzero(row_labels == label), np.flatnonzero(column_labels == label)


def _is_quantised(values: Float32) -> bool:
    """True if all rows lie on the embeddings' grid in the unit ball, where every partial sum has at most 24 bits."""

    def fits(start: int) -> bool:
        given = values[start : start + CHECKED_ROWS]
        grid = given * np.float32(GRID)
        return bool((grid == np.rint(grid)).all() and (np.einsum("nd,nd->n", given, given) <= 1.0).all())

    return all(in_order(fits, range(0, len(values), CHECKED_ROWS)))


def _as_integers(private: Float32, candidates: Float32) -> tuple[Float64, Float64, int] | None:
    """Records and candidates as integers (float64 [., d]) over grids 2^a and 2^b, with a - b.

    None where float32 is exact all the same (scores of 24 bits), or where nothing is promised because 62 bits cannot
    hold every score: then no product of a general pair is exact in float32 either.
    """
    if not (np.isfinite(private).all() and np.isfinite(candidates).all()):
        return None
    for rows in (8, None):  # a few rows settle the matter for arbitrary numbers
        a, b = (_finest_bit(values[:rows]) for values in (private, candidates))
        x, c = (np.ldexp(v[:rows].astype(np.float64), -bit) for v, bit in ((private, a), (candidates, b)))
        x_norm, c_norm = (math.sqrt(float(np.einsum("nd,nd->n", v, v).max(initial=0.0))) for v in (x, c))
        unit = min(a + 1, b)  # scores are 2 x.c 2^(a+b) - |c|^2 2^2b: multiples of 2^(b + unit)
        largest = math.ldexp(x_norm * c_norm, a + 1 - unit) + math.ldexp(c_norm * c_norm, b - unit)
        if largest >= 2.0**62:
            return None
    return None if largest < 2.0**24 else (x, c, a - b)


def _finest_bit(values: Float32) -> int:
    """The largest e for which every value is a multiple of 2^e."""
    mantissa, exponent = np.frexp(values[values != 0])
    if not mantissa.size:
        return 0
    whole = np.abs(np.ldexp(mantissa, 24)).astype(np.int64)
    zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int((exponent - 24 + zeros).min())


def _top_q_of_integers(
    x: Float64, c: Float64, shift: int, row_labels: Int64 | None, column_labels: Int64 | None, q: int
) -> tuple[Int64, Int64]:
    """Computes :func:`top_q` for integer vectors x 2^shift and c of any size: scores are exact int64."""
    near, far = (np.full((len(x), q), NONE, dtype=np.int64) for _ in range(2))
    double, square = (1 << max(0, shift + 1)), (1 << max(0, -shift - 1))
    norms = np.einsum("nd,nd->n", c.astype(np.int64), c.astype(np.int64)) * square
    for rows, columns in by_label(row_labels, column_labels, len(x), len(c)):
        kept = min(q, len(columns))
        size = max(16, BLOCK_SCORES // len(columns))
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            scores = _exact_product(x[block], c[columns]) * double - norms[columns]
            near[block, :kept] = columns[np.argsort(-scores, axis=1, kind="stable")[:, :kept]]
            far[block, :kept] = columns[np.argsort(scores, axis=1, kind="stable")[:, :kept]]
    return near, far


def _exact_product(x: Float64, c: Float64) -> Int64:
    """x @ c.T of integer-valued matrices as int64; the larger is split until each product fits float64's 53 bits."""
    x_norm, c_norm = (math.sqrt(float(np.einsum("nd,nd->n", v, v).max(initial=0.0))) for v in (x, c))
    if x_norm * c_norm < 2.0**52:
        return (x @ c.T).astype(np.int64)
    if x_norm > c_norm:
        return _exact_product(c, x).T
    bits = max(0, 52 - math.ceil(math.log2(x_norm * math.sqrt(x.shape[1]) + 1)))  # of the lower part
    high = np.floor(np.ldexp(c, -bits))
    low = c - np.ldexp(high, bits)
    return (_exact_product(x, high) << bits) + (x @ low.T).astype(np.int64)


def _with_norms(candidates: Float32) -> Float32:
    """[c, -|c|^2], float32 [n, d + 1]."""
    extended = np.empty((len(candidates), candidates.shape[1] + 1), dtype=np.float32)
    extended[:, :-1] = candidates
    np.einsum("nd,nd->n", candidates, candidates, out=extended[:, -1])
    extended[:, -1] *= -1
    return extended


def _doubled(records: Float32) -> Float32:
    """[2x, 1], float32 [b, d + 1]."""
    extended = np.ones((len(records), records.shape[1] + 1), dtype=np.float32)
    np.multiply(records, np.float32(2), out=extended[:, :-1])
    return extended


def _best(scores: Float32, indices: Int64, q: int) -> Int64:
    """Keys of the q highest scores of each column of [n, b], int64 [b, min(q, n)], best first.

    Args:
        indices: of the rows, int64 [n], ascending.
    """
    n, b = scores.shape
    groups = n // GROUP
    if groups <= 2 * q:
        return _highest(_keys(scores.T, indices), q)
    extreme = scores[: groups * GROUP].reshape(groups, GROUP, b).max(axis=1)
    keys = np.partition(_keys(extreme.T, np.arange(groups)), groups - q, axis=1)[:, groups - q :]
    rows = np.empty((b, q * GROUP + n - groups * GROUP), dtype=np.int64)
    np.add((-keys & _INDEX)[:, :, None] * GROUP, np.arange(GROUP), out=rows[:, : q * GROUP].reshape(b, q, GROUP))
    rows[:, q * GROUP :] = np.arange(groups * GROUP, n)
    best = _highest(_keys(scores[rows, np.arange(b)[:, None]], rows), q)
    rows = -best & _INDEX
    found: Int64 = best + rows - indices[rows]
    return found


def _keys(scores: Float32, indices: Int64) -> Int64:
    """int64 keys whose descending order is that of (score descending, index ascending)."""
    bits = (np.ascontiguousarray(scores) + np.float32(0)).view(np.int32)  # + 0: minus zero equals zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # two's complement order of the floats
    return (ordered.astype(np.int64) << 32) - indices


def _indices(keys: Int64) -> Int64:
    """The indices in keys, ``NONE`` for ``_EMPTY``."""
    return np.where(keys == _EMPTY, NONE, -keys & _INDEX)


def _highest(keys: Int64, q: int) -> Int64:
    """The q highest keys of each row, the highest first."""
    count = keys.shape[1]
    if q < count:
        keys = np.partition(keys, count - q, axis=1)[:, count - q :]
    return np.sort(keys, axis=1)[:, ::-1]
