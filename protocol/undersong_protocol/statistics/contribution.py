"""Makes a party's integer vector from rows: clips each row, combines each unit's rows, rounds, sums the units.

A unit's rows count by their mean or their sum. Votes of a unit with several records are scaled to the whole bound
instead of averaged: votes of different records fall on different candidates, and their mean would use 0.354 to 0.468 of
the norm that is charged at eight records (docs/privacy.md, "Votes of a user").

A unit's integer contribution is bounded by ``scale x`` :func:`unit_sensitivity`, whatever the rows hold. So a statistic
with a wrong formula loses utility, never privacy (docs/privacy.md, "Statistics").

No records are refused, since a refusal would reveal something of them. A coordinate that is not finite counts as zero.
A unit that would still exceed its bound, or has too many rows, contributes nothing. A unit's contribution depends on
its own rows alone, to the last bit.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models.workers import row_norms, row_sums
from undersong_common.privacy.noise import Law
from undersong_protocol.statistics.interface import Matrix, Rows, Sensitivity, Statistic
from undersong_protocol.statistics.vectors import GridVector

CHUNK_ELEMENTS = 1 << 21  # elements of a dense matrix at a time, 16 MiB of float64
BLOCK_ROWS = 4096  # rows of one call of a function, which bounds its working memory
# A norm may pass its bound by this much: the last bits of the float64 that states the bound, such as sqrt(43690) / 128.
TOLERANCE = 2.0**-40
LARGEST_INTEGER = 2.0**53  # float64 holds every integer below, so scaling and rounding are exact there
LARGEST_COORDINATE = 2.0**400  # bound of a row's coordinate before clipping, so that sums of squares stay finite
SMALLEST_NORM = 2.0**-400  # A shorter vector of votes counts as zero, because its squares are not exact.
TRUNCATION = 0.01  # largest share of a unit's norm that rounding toward zero may take

UnitContribution = Literal["mean", "sum"]


def is_scaled(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int) -> bool:
    """True where the votes of a unit's records are scaled to the whole bound."""
    return unit_contribution == "mean" and max_per_unit > 1 and statistic.votes_of_a_record > 0


def unit_sensitivity(
    statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law
) -> Sensitivity:
    """Returns the largest norms of one unit's contribution, in natural units.

    Scaled votes have the norm that the noise is charged by: L2 for Gaussian noise, L1 for Laplace noise. All of it may
    lie in one coordinate.
    """
    bound = statistic.sensitivity
    if not is_scaled(statistic, unit_contribution, max_per_unit):
        factor = max_per_unit if unit_contribution == "sum" else 1
        return Sensitivity(bound.l1 * factor, bound.l2 * factor, bound.linf * factor)
    if law == "laplace":
        return Sensitivity(bound.l1, bound.l1, bound.l1)
    return Sensitivity(bound.l2 * math.sqrt(_most_votes(statistic, max_per_unit)), bound.l2, bound.l2)


def largest_coordinate(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law) -> float:
    """Returns what one record may add to a coordinate: clamp and modulus allow ``max_records`` times as much."""
    if is_scaled(statistic, unit_contribution, max_per_unit):
        return unit_sensitivity(statistic, unit_contribution, max_per_unit, law).linf
    return statistic.sensitivity.linf


def least_scale(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law) -> int:
    """Returns the least number of integer units per natural unit at which little is lost by rounding toward zero."""
    scale = statistic.base_scale * (max_per_unit if unit_contribution == "mean" else 1)
    if is_scaled(statistic, unit_contribution, max_per_unit):
        # Rounding takes less than one unit of each coordinate that has votes.
        votes = _most_votes(statistic, max_per_unit)
        bound = statistic.sensitivity
        if law == "laplace":
            loss = votes / bound.l1
        else:
            loss = math.sqrt(votes) / bound.l2
        while scale < loss / TRUNCATION:
            scale *= 2
    return scale


def _most_votes(statistic: Statistic, max_per_unit: int) -> int:
    """Largest number of coordinates that a unit's records vote for."""
    return min(statistic.dimension, statistic.votes_of_a_record * max_per_unit)


def contribute(
    statistic: Statistic,
    rows: Rows,
    *,
    scale: int,
    unit_contribution: UnitContribution = "mean",
    max_per_unit: int = 1,
    max_records: int | None = None,
    law: Law = "gaussian",
) -> GridVector:
    """Returns one party's exact integer vector for a private sum, before noise.

    Args:
        statistic: the statistic, to whose bound every row is clipped.
        rows: R rows in natural units, with the unit of each; R = 0 gives zeros.
        scale: integer units per natural unit; for means, a multiple of ``max_per_unit``.
        unit_contribution: how a unit's rows count together. A mean of rows within the bound stays within it, and so do
            votes that are scaled to it.
        max_per_unit: largest number of rows of a unit; a unit with more contributes nothing.
        max_records: each coordinate is clamped to what so many rows at the bound reach, for which the modulus is
            large enough. Clamping moves two vectors that differ by one unit no further apart, in any norm. Dropping
            records instead would let one unit displace another and double the distance.
        law: of the noise, which decides in which norm a unit's votes are scaled.

    Returns:
        int64 [dimension]; the sum over units of trunc(scale x mean, sum or scaled votes of the unit's clipped rows),
        clamped.

    Raises:
        InternalError: rows of a wrong number of columns.
        ConfigurationError: a scale at which float64 would not be exact.
    """
    if unit_contribution not in ("mean", "sum"):
        raise ConfigurationError(f"unit contribution {unit_contribution!r} is neither 'mean' nor 'sum'")
    bound = unit_sensitivity(statistic, unit_contribution, max_per_unit, law)
    if not 0 < bound.linf * scale < LARGEST_INTEGER:
        raise ConfigurationError(f"{statistic.name}: integer scale {scale} is not usable", "lower the scale")
    scaled = is_scaled(statistic, unit_contribution, max_per_unit)
    total = np.zeros(statistic.dimension, dtype=np.int64)
    order = np.argsort(rows.units, kind="stable")
    counts = np.unique(rows.units[order], return_counts=True)[1]
    allowed = counts <= max_per_unit
    order = order[np.repeat(allowed, counts)]
    counts = counts[allowed]
    for block, sizes in _unit_sums(statistic, rows, order, counts):
        if scaled:
            norms = _row_norms(block)[0 if law == "laplace" else 1]
            charged = bound.l1 if law == "laplace" else bound.l2
            divisor = np.where(norms < SMALLEST_NORM, np.inf, norms)
            _add_rounded(total, block, scale * charged * (1.0 - TOLERANCE), divisor, _integer_limits(bound, scale, 0.0))
        else:
            divisor = sizes if unit_contribution == "mean" else np.ones_like(sizes)
            _add_rounded(total, block, float(scale), divisor, _integer_limits(bound, scale, 4 * TOLERANCE))
    if max_records is not None:
        reach = largest_coordinate(statistic, unit_contribution, max_per_unit, law)
        largest = math.floor(Fraction(reach) * scale * max_records)
        np.clip(total, -largest, largest, out=total)
    return GridVector(total)


def _unit_sums(statistic: Statistic, rows: Rows, order: Int64, counts: Int64) -> Iterator[tuple[Matrix, Int64]]:
    """Sums of clipped rows per unit, [u, dimension], with the rows of each unit, in blocks of whole units."""
    per_block = max(1, CHUNK_ELEMENTS // (rows.width or statistic.dimension))
    if callable(rows.matrix):
        per_block = min(per_block, BLOCK_ROWS)
    elif sp.issparse(rows.matrix):
        per_block = max(per_block, 1 << 20)
    ends = np.cumsum(counts)
    first = 0  # unit
    while first < len(counts):
        start = int(ends[first] - counts[first])
        last = max(first + 1, int(np.searchsorted(ends, start + per_block, side="right")))
        stop = int(ends[last - 1])
        sizes = counts[first:last]
        if stop - start <= per_block:
            yield _sum_units(_clip_rows(statistic, rows.take(order[start:stop])), sizes), sizes
        else:  # one unit larger than a block: its rows are added block by block
            parts = (rows.take(order[begin : min(begin + per_block, stop)]) for begin in range(start, stop, per_block))
            # One sum is kept, not one of every block: a plan chooses how wide a sum is and how many blocks there are.
            yield (
                reduce(add, (_sum_units(_clip_rows(statistic, part), np.array([part.shape[0]])) for part in parts)),
                sizes,
            )
        first = last


def _sum_units(matrix: Matrix, sizes: Int64) -> Matrix:
    """The rows of each unit added up."""
    if len(sizes) == matrix.shape[0]:
        return matrix
    starts = np.concatenate([[0], np.cumsum(sizes)])
    if isinstance(matrix, np.ndarray):
        # The order of addition depends on a unit's number of rows alone.
        return np.add.reduceat(matrix, starts[:-1], axis=0)
    members = sp.csr_array(
        (np.ones(matrix.shape[0]), np.arange(matrix.shape[0]), starts), shape=(len(sizes), matrix.shape[0])
    )
    return members @ matrix


def _clip_rows(statistic: Statistic, matrix: Matrix) -> Matrix:
    """Rows of finite numbers, scaled down to the statistic's bounds where they exceed one of them."""
    if matrix.ndim != 2 or matrix.shape[1] != statistic.dimension:
        raise InternalError(f"{statistic.name}: rows have {matrix.shape[-1]} columns, not {statistic.dimension}")
    if not isinstance(matrix, np.ndarray):
        matrix = sp.csr_array(matrix)
        matrix.sum_duplicates()
    if not (np.abs(_stored_elements(matrix)) <= LARGEST_COORDINATE).all():  # false for NaN
        matrix = matrix.copy()
        data = _stored_elements(matrix)
        data[~np.isfinite(data)] = 0.0
        np.clip(data, -LARGEST_COORDINATE, LARGEST_COORDINATE, out=data)
    bound = statistic.sensitivity
    shrink = np.ones(matrix.shape[0])
    for norm, limit in zip(_row_norms(matrix), (bound.l1, bound.l2, bound.linf), strict=True):
        over = norm > limit * (1.0 + TOLERANCE)
        shrink[over] = np.minimum(shrink[over], limit / norm[over] * (1.0 - TOLERANCE))
    if (shrink == 1.0).all():
        return matrix
    if isinstance(matrix, np.ndarray):
        return matrix * shrink[:, None]
    return sp.csr_array(sp.diags_array(shrink) @ matrix)


def _integer_limits(bound: Sensitivity, scale: int, tolerance: float) -> tuple[float, float, float]:
    """Largest L1, L2 and Linf norm of a unit's integers."""
    units = scale * (1.0 + tolerance)
    return bound.l1 * units, bound.l2 * units, bound.linf * units


def _add_rounded(
    total: Int64, sums: Matrix, scale: float, divisor: Int64 | Float64, limits: tuple[float, float, float]
) -> None:
    """Adds trunc(scale x sums / divisor) of each unit to ``total``; nothing where that exceeds the integer bound."""
    if isinstance(sums, np.ndarray):
        integers: Matrix = np.trunc(sums * scale / divisor[:, None])
    else:
        rows = np.repeat(divisor, np.diff(sums.indptr))
        integers = sp.csr_array((np.trunc(sums.data * scale / rows), sums.indices, sums.indptr), sums.shape)
    within = np.ones(integers.shape[0], dtype=np.bool_)
    for norm, limit in zip(_row_norms(integers), limits, strict=True):
        within &= norm <= limit
    if isinstance(integers, np.ndarray):
        total += integers[within].astype(np.int64).sum(axis=0)
    else:
        kept = np.repeat(within, np.diff(integers.indptr))
        np.add.at(total, integers.indices[kept], integers.data[kept].astype(np.int64))


def _row_norms(matrix: Matrix) -> tuple[Float64, Float64, Float64]:
    """L1, L2 and Linf norm of each row."""
    if isinstance(matrix, np.ndarray):
        dense = np.abs(matrix)
        return row_sums(dense), row_norms(dense), dense.max(axis=1, initial=0.0)
    size: Float64 = np.abs(matrix.data)
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    largest: Float64 = np.zeros(matrix.shape[0])
    np.maximum.at(largest, row, size)
    # bincount adds one number after the other: a row's sum does not depend on the other rows.
    total: Float64 = np.bincount(row, weights=size, minlength=matrix.shape[0]).astype(np.float64)
    squares: Float64 = np.bincount(row, weights=size * size, minlength=matrix.shape[0]).astype(np.float64)
    return total, np.sqrt(squares), largest


def _stored_elements(matrix: Matrix) -> Any:
    if isinstance(matrix, np.ndarray):
        return matrix
    return matrix.data
