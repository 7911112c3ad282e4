"""That a statistic's rows, and what a unit of several records contributes in integers, keep its declared bounds."""

from __future__ import annotations

import numpy as np

from undersong_protocol import statistics
from undersong_protocol.statistics.contribution import contribute


def units_within_bounds(statistic, rows, matrix, base_scale, most, way, *, longest_square):
    """Yields of each unit its rows' numbers, its integers, and how much the sum of its rows is in them.

    Args:
        matrix: the same rows, float64 [n, D].
        most, way: records of a unit, and whether it contributes their "sum" or "mean".
        longest_square: of a row, a whole number, so that in integers nothing is rounded.
    """
    bound, sizes = statistic.sensitivity, np.abs(matrix)
    assert sizes.sum(axis=1).max() <= bound.l1 * (1 + 1e-14)
    assert np.linalg.norm(sizes, axis=1).max() <= bound.l2 * (1 + 1e-14)
    assert sizes.max() <= bound.linf * (1 + 1e-14)
    scale, factor = base_scale * most, most if way == "sum" else 1
    for start in range(0, len(matrix) - most, most):
        asked = np.arange(start, start + most)
        rows_of_unit = statistics.Rows(rows.take(asked), np.zeros(most, dtype=np.int64))
        row = contribute(statistic, rows_of_unit, scale=scale, unit_contribution=way, max_per_unit=most).values
        whole = [abs(value) for value in row.tolist()]
        assert sum(whole) <= bound.l1 * factor * scale * (1 + 1e-14)  # 2 may be 1.9999999999999998
        assert sum(value**2 for value in whole) <= longest_square * (factor * scale) ** 2
        assert max(whole) <= bound.linf * factor * scale * (1 + 1e-14)
        yield asked, row, scale / (most if way == "mean" else 1)
