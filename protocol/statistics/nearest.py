"""The Q nearest and Q furthest candidates of every record: exact, ties to the lower index, close to a bare product.

The score of candidate c for record x is 2 x.c - |c|^2 = |x|^2 - |x - c|^2: higher is nearer. It comes out of one
matrix product with an extra column. Per record, contiguous groups of candidates are reduced to their best score, and
only the Q best groups, by (score, lower index), are looked into: they hold the Q best candidates under that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from common.errors import ConfigurationError
from protocol.statistics.interface import Float32, Int64

if TYPE_CHECKING:
    from torch import Tensor

NONE = -1  # in place of a candidate's index where a record has fewer than Q candidates
GROUP = 16  # candidates a group
BLOCK = 128  # records a block: their scores stay in the last-level cache


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
        near, far: int64 [M, q] candidate indices, best first, ``NONE`` where there are fewer; ``far`` is all NONE
            without ``furthest``.
        candidates: how many have been compared.
    """

    def __init__(self, private: Float32, labels: Int64 | None, q: int, *, furthest: bool = True) -> None:
        self._private = private
        self._labels = labels
        self._q = q
        self.candidates = 0
        shape = (len(private), q)
        self.near, self.far = np.full(shape, NONE, dtype=np.int64), np.full(shape, NONE, dtype=np.int64)
        self._furthest = furthest
        self._near_scores = np.full(shape, -np.inf, dtype=np.float32)
        self._far_scores = np.full(shape, -np.inf, dtype=np.float32)

    def __repr__(self) -> str:
        return f"NearestFurthest(q={self._q}, candidates={self.candidates})"

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
        for rows, columns in _by_label(self._labels, labels, len(self._private), len(candidates)):
            self._compare(rows, columns, candidates)
        self.candidates += len(candidates)

    def _compare(self, rows: Int64, columns: Int64, candidates: Float32) -> None:
        import torch

        chosen = candidates if len(columns) == len(candidates) else candidates[columns]
        right = _with_norms(chosen)
        total = torch.from_numpy(columns + self.candidates)
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            scores = right @ _doubled(self._private[block]).T  # [n, b]
            self._keep(block, scores, total, self.near, self._near_scores)
            if self._furthest:
                self._keep(block, scores, total, self.far, self._far_scores, furthest=True)

    def _keep(
        self, block: Int64, scores: Tensor, total: Tensor, kept: Int64, kept_scores: Float32, *, furthest: bool = False
    ) -> None:
        import torch

        best, where = _best(scores, self._q, furthest=furthest)
        indices = total[where]
        if self.candidates:
            best = torch.cat([torch.from_numpy(kept_scores[block]), best], dim=1)
            indices = torch.cat([torch.from_numpy(kept[block]), indices], dim=1)
            # What was kept has lower indices and stands first: positions break ties as indices do.
            order = _keys(best, torch.arange(best.shape[1])).topk(min(self._q, best.shape[1]), dim=1).indices
            best, indices = best.gather(1, order), indices.gather(1, order)
        kept_scores[block, : best.shape[1]] = best.numpy()
        kept[block, : best.shape[1]] = indices.numpy()


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
            raise ConfigurationError(f"{len(given)} labels for {len(rows)} rows", "give one label a row")
    state = NearestFurthest(private, labels[0], q)
    state.extend(candidates, labels[1])
    return state.near, state.far


def _by_label(
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


def _with_norms(candidates: Float32) -> Tensor:
    """[c, -|c|^2], float32 [n, d + 1]."""
    import torch

    values = torch.from_numpy(np.ascontiguousarray(candidates))
    return torch.cat([values, -values.square().sum(dim=1, keepdim=True)], dim=1)


def _doubled(records: Float32) -> Tensor:
    """[2x, 1], float32 [b, d + 1]."""
    import torch

    values = torch.from_numpy(np.ascontiguousarray(records))
    return torch.cat([2 * values, torch.ones((len(values), 1))], dim=1)


def _best(scores: Tensor, q: int, *, furthest: bool) -> tuple[Tensor, Tensor]:
    """The q highest (furthest: lowest, negated) scores of each column of [n, b] and their rows, [b, min(q, n)] each."""
    import torch

    n, b = scores.shape
    groups = n // GROUP
    if groups > 2 * q:
        grouped = scores[: groups * GROUP].view(groups, GROUP, b)
        extreme = -grouped.amin(dim=1) if furthest else grouped.amax(dim=1)
        chosen = _keys(extreme.T, torch.arange(groups)).topk(q, dim=1, sorted=False).indices  # [b, q]
        rows = (chosen[:, :, None] * GROUP + torch.arange(GROUP)).view(b, -1)
        if groups * GROUP < n:
            rows = torch.cat([rows, torch.arange(groups * GROUP, n).expand(b, -1)], dim=1)
        values = scores.T.gather(1, rows)
    else:
        rows, values = torch.arange(n).expand(b, -1), scores.T
    if furthest:
        values = -values
    order = _keys(values, rows).topk(min(q, n), dim=1).indices
    return values.gather(1, order), rows.gather(1, order)


def _keys(values: Tensor, positions: Tensor) -> Tensor:
    """int64 keys that order by (value descending, position ascending) when sorted in descending order."""
    import torch

    bits = (values.contiguous() + 0.0).view(torch.int32)  # + 0.0: minus zero equals zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # two's complement order of the floats
    return (ordered.to(torch.int64) << 32) - positions
