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
TRUNCATION = 0.01  # largest share of the norm of a privacy unit's contribution that rounding toward zero may take

UnitContribution = Literal["mean", "sum"]


def is_scaled(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int) -> bool:
    """Returns True if the votes of a privacy unit's records are scaled so that their norm is the whole bound."""
    return unit_contribution == "mean" and max_per_unit > 1 and statistic.votes_of_a_record > 0


def unit_sensitivity(
    statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law
) -> Sensitivity:
    """Returns the largest norms of one unit's contribution, in natural units.

    Scaled votes have the norm that the noise is charged by: L2 for Gaussian noise, L1 for Laplace noise. All of it may
    lie in one coordinate.
    """
    record_bound = statistic.sensitivity
    if not is_scaled(statistic, unit_contribution, max_per_unit):
        records_factor = max_per_unit if unit_contribution == "sum" else 1
        return Sensitivity(
            record_bound.l1 * records_factor, record_bound.l2 * records_factor, record_bound.linf * records_factor
        )
    if law == "laplace":
        return Sensitivity(record_bound.l1, record_bound.l1, record_bound.l1)
    return Sensitivity(
        record_bound.l2 * math.sqrt(_most_votes(statistic, max_per_unit)), record_bound.l2, record_bound.l2
    )


def largest_coordinate(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law) -> float:
    """Returns the largest amount that one record adds to a coordinate, in natural units.

    Clamp and modulus allow ``max_records`` times as much.
    """
    if is_scaled(statistic, unit_contribution, max_per_unit):
        return unit_sensitivity(statistic, unit_contribution, max_per_unit, law).linf
    return statistic.sensitivity.linf


def least_scale(statistic: Statistic, unit_contribution: UnitContribution, max_per_unit: int, law: Law) -> int:
    """Returns the least scale, in grid steps per natural unit, at which rounding toward zero loses little.

    Rounding then takes at most the share ``TRUNCATION`` of the norm of one privacy unit's contribution.

    Args:
        max_per_unit: largest number of records of a privacy unit; a mean is counted on a grid so many times as fine.
        law: law of the noise; it decides in which norm the loss is measured, L1 for "laplace" and L2 for "gaussian".
    """
    grid_scale = statistic.base_scale * (max_per_unit if unit_contribution == "mean" else 1)
    if is_scaled(statistic, unit_contribution, max_per_unit):
        # Rounding takes less than one grid step from each coordinate that has votes.
        vote_count = _most_votes(statistic, max_per_unit)
        record_bound = statistic.sensitivity
        if law == "laplace":
            loss = vote_count / record_bound.l1
        else:
            loss = math.sqrt(vote_count) / record_bound.l2
        while grid_scale < loss / TRUNCATION:
            grid_scale *= 2
    return grid_scale


def _most_votes(statistic: Statistic, max_per_unit: int) -> int:
    """Returns the largest number of coordinates that a unit's records vote for."""
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
        law: law of the noise; it decides in which norm a unit's votes are scaled.

    Returns:
        int64 [dimension]; the sum over units of trunc(scale x mean, sum or scaled votes of the unit's clipped rows),
        clamped.

    Raises:
        InternalError: rows of a wrong number of columns.
        ConfigurationError: a scale at which float64 would not be exact.
    """
    if unit_contribution not in ("mean", "sum"):
        raise ConfigurationError(f"unit contribution {unit_contribution!r} is unknown", "choose 'mean' or 'sum'")
    unit_bound = unit_sensitivity(statistic, unit_contribution, max_per_unit, law)
    if not 0 < unit_bound.linf * scale < LARGEST_INTEGER:
        raise ConfigurationError(
            f"{statistic.name}: the integer scale {scale} is not above 0, or a unit's integers could reach 2^53, from"
            " which on float64 is not exact",
            "choose a scale above 0, or lower it",
        )
    are_votes_scaled = is_scaled(statistic, unit_contribution, max_per_unit)
    integer_sum = np.zeros(statistic.dimension, dtype=np.int64)
    unit_order, records_of_unit = _order_by_unit(rows, max_per_unit)
    for unit_sums, unit_sizes in _unit_sums(statistic, rows, unit_order, records_of_unit):
        if are_votes_scaled:
            norms = _row_norms(unit_sums)[0 if law == "laplace" else 1]
            unit_norm_bound = unit_bound.l1 if law == "laplace" else unit_bound.l2
            unit_divisors = np.where(norms < SMALLEST_NORM, np.inf, norms)
            _add_rounded(
                integer_sum,
                unit_sums,
                scale * unit_norm_bound * (1.0 - TOLERANCE),
                unit_divisors,
                _integer_limits(unit_bound, scale, 0.0),
            )
        else:
            unit_divisors = unit_sizes if unit_contribution == "mean" else np.ones_like(unit_sizes)
            _add_rounded(
                integer_sum, unit_sums, float(scale), unit_divisors, _integer_limits(unit_bound, scale, 4 * TOLERANCE)
            )
    if max_records is not None:
        largest_reach = largest_coordinate(statistic, unit_contribution, max_per_unit, law)
        _clamp_sum(integer_sum, Fraction(largest_reach) * scale * max_records)
    return GridVector(integer_sum)


def _clamp_sum(integer_sum: Int64, largest_reach: Fraction) -> None:
    largest_integer = math.floor(largest_reach)
    np.clip(integer_sum, -largest_integer, largest_integer, out=integer_sum)


def _order_by_unit(rows: Rows, max_per_unit: int) -> tuple[Int64, Int64]:
    """Returns row numbers ordered by unit, and each unit's number of rows; leaves out units of too many rows."""
    unit_order = np.argsort(rows.units, kind="stable")
    records_of_unit = np.unique(rows.units[unit_order], return_counts=True)[1]
    is_allowed = records_of_unit <= max_per_unit
    return unit_order[np.repeat(is_allowed, records_of_unit)], records_of_unit[is_allowed]


def _unit_sums(statistic: Statistic, rows: Rows, unit_order: Int64, counts: Int64) -> Iterator[tuple[Matrix, Int64]]:
    """Yields the sums of the units' clipped rows, [u, dimension], and their numbers of rows, in blocks of units."""
    rows_per_block = max(1, CHUNK_ELEMENTS // (rows.width or statistic.dimension))
    if callable(rows.matrix):
        rows_per_block = min(rows_per_block, BLOCK_ROWS)
    elif sp.issparse(rows.matrix):
        rows_per_block = max(rows_per_block, 1 << 20)
    unit_ends = np.cumsum(counts)
    unit_start = 0
    while unit_start < len(counts):
        row_start = int(unit_ends[unit_start] - counts[unit_start])
        unit_stop = max(unit_start + 1, int(np.searchsorted(unit_ends, row_start + rows_per_block, side="right")))
        row_stop = int(unit_ends[unit_stop - 1])
        unit_sizes = counts[unit_start:unit_stop]
        if row_stop - row_start <= rows_per_block:
            yield _sum_units(_clip_rows(statistic, rows.take(unit_order[row_start:row_stop])), unit_sizes), unit_sizes
        else:  # The rows of one unit that is larger than a block are added block by block.
            row_blocks = (
                rows.take(unit_order[block_start : min(block_start + rows_per_block, row_stop)])
                for block_start in range(row_start, row_stop, rows_per_block)
            )
            # One running sum is kept and not one per block, because a plan chooses how large and how many these are.
            yield (
                reduce(
                    add,
                    (
                        _sum_units(_clip_rows(statistic, row_block), np.array([row_block.shape[0]]))
                        for row_block in row_blocks
                    ),
                ),
                unit_sizes,
            )
        unit_start = unit_stop


def _sum_units(matrix: Matrix, sizes: Int64) -> Matrix:
    """Returns the sum of each unit's rows; ``sizes`` holds the number of rows of each unit."""
    if len(sizes) == matrix.shape[0]:
        return matrix
    unit_starts = np.concatenate([[0], np.cumsum(sizes)])
    if isinstance(matrix, np.ndarray):
        # The order of addition depends on a unit's number of rows alone.
        return np.add.reduceat(matrix, unit_starts[:-1], axis=0)
    unit_membership = sp.csr_array(
        (np.ones(matrix.shape[0]), np.arange(matrix.shape[0]), unit_starts), shape=(len(sizes), matrix.shape[0])
    )
    return unit_membership @ matrix


def _clip_rows(statistic: Statistic, matrix: Matrix) -> Matrix:
    """Returns rows of finite numbers, scaled down to the statistic's bounds where they exceed one of them."""
    if matrix.ndim != 2 or matrix.shape[1] != statistic.dimension:
        raise InternalError(f"{statistic.name}: rows have {matrix.shape[-1]} columns, not {statistic.dimension}")
    if not isinstance(matrix, np.ndarray):
        matrix = sp.csr_array(matrix)
        matrix.sum_duplicates()
    if not (np.abs(_stored_elements(matrix)) <= LARGEST_COORDINATE).all():  # false for NaN
        matrix = matrix.copy()
        stored_elements = _stored_elements(matrix)
        stored_elements[~np.isfinite(stored_elements)] = 0.0
        np.clip(stored_elements, -LARGEST_COORDINATE, LARGEST_COORDINATE, out=stored_elements)
    record_bound = statistic.sensitivity
    row_factors = np.ones(matrix.shape[0])
    norm_bounds = (record_bound.l1, record_bound.l2, record_bound.linf)
    for norms, norm_bound in zip(_row_norms(matrix), norm_bounds, strict=True):
        is_over = norms > norm_bound * (1.0 + TOLERANCE)
        row_factors[is_over] = np.minimum(row_factors[is_over], norm_bound / norms[is_over] * (1.0 - TOLERANCE))
    if (row_factors == 1.0).all():
        return matrix
    if isinstance(matrix, np.ndarray):
        return matrix * row_factors[:, None]
    return sp.csr_array(sp.diags_array(row_factors) @ matrix)


def _integer_limits(bound: Sensitivity, scale: int, tolerance: float) -> tuple[float, float, float]:
    """Returns the largest L1, L2 and Linf norm of a unit's integers."""
    scaled_units = scale * (1.0 + tolerance)
    return bound.l1 * scaled_units, bound.l2 * scaled_units, bound.linf * scaled_units


def _add_rounded(
    integer_sum: Int64, sums: Matrix, scale: float, divisor: Int64 | Float64, limits: tuple[float, float, float]
) -> None:
    """Adds trunc(scale x sums / divisor) of each unit to ``integer_sum``; nothing of a unit beyond the limits."""
    if isinstance(sums, np.ndarray):
        rounded_sums: Matrix = np.trunc(sums * scale / divisor[:, None])
    else:
        element_divisors = np.repeat(divisor, np.diff(sums.indptr))
        rounded_sums = sp.csr_array(
            (np.trunc(sums.data * scale / element_divisors), sums.indices, sums.indptr), sums.shape
        )
    is_within = np.ones(rounded_sums.shape[0], dtype=np.bool_)
    for integer_norms, norm_limit in zip(_row_norms(rounded_sums), limits, strict=True):
        is_within &= integer_norms <= norm_limit
    if isinstance(rounded_sums, np.ndarray):
        integer_sum += rounded_sums[is_within].astype(np.int64).sum(axis=0)
    else:
        is_kept = np.repeat(is_within, np.diff(rounded_sums.indptr))
        np.add.at(integer_sum, rounded_sums.indices[is_kept], rounded_sums.data[is_kept].astype(np.int64))


def _row_norms(matrix: Matrix) -> tuple[Float64, Float64, Float64]:
    """Returns the L1, L2 and Linf norm of each row."""
    if isinstance(matrix, np.ndarray):
        magnitudes = np.abs(matrix)
        return row_sums(magnitudes), row_norms(magnitudes), magnitudes.max(axis=1, initial=0.0)
    element_magnitudes: Float64 = np.abs(matrix.data)
    row_of_element = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    linf_norms: Float64 = np.zeros(matrix.shape[0])
    np.maximum.at(linf_norms, row_of_element, element_magnitudes)
    # bincount adds one number after the other, so that a row's sum does not depend on the other rows.
    l1_norms = np.bincount(row_of_element, weights=element_magnitudes, minlength=matrix.shape[0])
    squares = element_magnitudes * element_magnitudes
    squared_norms = np.bincount(row_of_element, weights=squares, minlength=matrix.shape[0])
    return l1_norms.astype(np.float64), np.sqrt(squared_norms.astype(np.float64)), linf_norms


def _stored_elements(matrix: Matrix) -> Any:
    if isinstance(matrix, np.ndarray):
        return matrix
    return matrix.data
