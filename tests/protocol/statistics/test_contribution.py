"""No unit ever exceeds its bound, whatever the rows say; exact rows come through exactly."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.example_records import Records
from tests.doubles.pace import examples
from undersong_common.arrays import Bools, Float64, Int64
from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol import statistics
from undersong_protocol.statistics import (
    LabelHistogram,
    LengthHistogram,
    PublicInputs,
    Rows,
    Sensitivity,
    register,
)
from undersong_protocol.statistics import contribution as module
from undersong_protocol.statistics.contribution import contribute


@dataclass(frozen=True)
class Anything:
    """A statistic with a bound and no formula."""

    name: ClassVar[str] = "anything"
    dimension: int
    sensitivity: Sensitivity
    base_scale: int = 64
    votes_of_a_record: int = 0

    def rows(self, records: Any, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        raise NotImplementedError


def anything(dimension: int, sensitivity: Sensitivity) -> Any:
    return Anything(dimension, sensitivity)


Form = Callable[[Float64], Any]
FORMS: dict[str, Form] = {
    "dense": lambda matrix: matrix,
    "sparse": sp.csr_array,
    "lazy": lambda matrix: lambda positions: matrix[positions],
    "lazy sparse": lambda matrix: lambda positions: sp.csr_array(matrix[positions]),
}


def sum_contributions(
    matrix: Float64, units: Int64, bound: Sensitivity, scale: int, mean: bool
) -> tuple[Int64, list[Float64]]:
    """Sum of the units' integer contributions, and each of them."""
    clipped = matrix.copy()
    for row in clipped:
        norms = np.abs(row).sum(), np.linalg.norm(row), np.abs(row).max(initial=0.0)
        row *= min([1.0, *(b / n for n, b in zip(norms, (bound.l1, bound.l2, bound.linf), strict=True) if n > b)])
    parts = []
    for unit in np.unique(units):
        mine = clipped[units == unit]
        parts.append(np.trunc(mine.sum(axis=0) * scale / (len(mine) if mean else 1)))
    return np.sum(parts, axis=0).astype(np.int64), parts


@pytest.mark.heavy
@settings(max_examples=examples(30, 120), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    form=st.sampled_from(sorted(FORMS)),
    mean=st.booleans(),
    size=st.sampled_from([0.1, 1.0, 50.0]),
    chunk=st.sampled_from([1, 20, 10_000]),
)
def test_every_unit_stays_within_its_bound(seed: int, form: str, mean: bool, size: float, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    rows, d, cap = int(rng.integers(1, 25)), int(rng.integers(1, 9)), 6
    units = np.repeat(rng.permutation(rows), rng.integers(1, cap + 1, rows))
    units = units[rng.permutation(len(units))] if seed % 2 else units
    matrix = rng.standard_normal((len(units), d)) * size * (rng.random((len(units), d)) < 0.7)
    bound = Sensitivity(*rng.uniform(0.3, 2.0, 3))
    statistic, scale = anything(d, bound), int(rng.integers(1, 1000))
    expected, parts = sum_contributions(matrix, units, bound, scale, mean)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        found = contribute(
            statistic,
            Rows(FORMS[form](matrix), units),
            scale=scale,
            unit_contribution="mean" if mean else "sum",
            max_per_unit=cap,
        ).values
    # a float64 sum in another order may fall on the other side of an integer
    assert np.abs(found - expected).max() <= len(parts)
    factor = (1 if mean else cap) * scale * (1 + 1e-9)
    for part in parts:
        assert np.abs(part).sum() <= bound.l1 * factor
        assert np.linalg.norm(part) <= bound.l2 * factor
        assert np.abs(part).max() <= bound.linf * factor
    if len(parts) == 1:
        assert np.linalg.norm(found) <= bound.l2 * factor


@given(seed=st.integers(0, 10_000), cap=st.integers(1, 12), sign=st.sampled_from([1.0, -1.0]))
def test_neighbour_stays_within_the_bound_above_the_cap_on_records(seed: int, cap: int, sign: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.where(rng.random((20, 4)) < 0.9, sign, -sign) * rng.uniform(0.5, 1.0, (20, 4))
    bound = Sensitivity(4.0, 2.0, 1.0)

    def of(rows: int) -> np.ndarray:
        taken = Rows(matrix[:rows], np.arange(rows))
        return contribute(anything(4, bound), taken, scale=16, max_records=cap).values

    whole, neighbour = of(20), of(19)
    assert np.abs(whole).max() <= 16 * cap
    assert np.linalg.norm(whole - neighbour) <= 2.0 * 16
    assert np.abs(whole - neighbour).max() <= 16


@pytest.mark.parametrize("form", sorted(FORMS))
def test_rows_at_the_bound_are_not_changed_by_clipping(form: str) -> None:
    matrix = np.array([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0], [0.25, 1.0, -0.5]])
    bound = Sensitivity(1.75, float(np.sqrt(1 + 0.25 + 0.0625)), 1.0)
    rows = Rows(FORMS[form](matrix), np.array([2, 0, 1]))
    assert contribute(anything(3, bound), rows, scale=4).values.tolist() == [5, 2, -1]
    together = Rows(FORMS[form](matrix), np.array([3, 3, 3]))
    mean = contribute(anything(3, bound), together, scale=12, max_per_unit=3)
    assert mean.values.tolist() == [5, 2, -1], "a mean keeps every record's weight at scale x max_per_unit"
    total = contribute(anything(3, bound), together, scale=4, unit_contribution="sum", max_per_unit=3)
    assert total.values.tolist() == [5, 2, -1]


def test_rounding_to_the_grid_goes_toward_zero() -> None:
    rows = Rows(np.array([[0.999, -0.999, 0.5]]), np.array([0]))
    assert contribute(anything(3, Sensitivity(3, 3, 1)), rows, scale=1).values.tolist() == [0, 0, 0]
    assert contribute(anything(3, Sensitivity(3, 3, 1)), rows, scale=10).values.tolist() == [9, -9, 5]


def test_the_integer_bound_is_checked_again_after_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_clip_rows", lambda _statistic, matrix: matrix)
    for form in (np.array, sp.csr_array):
        rows = Rows(form(np.array([[5.0, 0.0], [0.5, -0.5]])), np.array([0, 1]))
        assert contribute(anything(2, Sensitivity(1, 1, 1)), rows, scale=4).values.tolist() == [2, -2]


WEIRD = [0.0, -0.0, 5e-324, -1e-310, 1e-160, 1.0, -3.0, 1e100, 1e155, -1e200, 1.7e308, np.inf, -np.inf, np.nan]


@pytest.mark.heavy
@settings(max_examples=examples(40, 200), deadline=None)
@given(
    rows=st.lists(st.lists(st.sampled_from(WEIRD), min_size=3, max_size=3), max_size=7),
    form=st.sampled_from(sorted(FORMS)),
    mean=st.booleans(),
    data=st.data(),
)
def test_any_row_has_a_contribution_within_the_bound(
    rows: list[list[float]], form: str, mean: bool, data: st.DataObject
) -> None:
    """Huge, denormal and not finite: nothing raises, and one row more moves the sum by no more than its bound."""
    matrix = np.array(rows, dtype=np.float64).reshape(-1, 3)
    units = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))), dtype=np.int64)
    bound = Sensitivity(1.5, 1.2, 1.0)

    def of(kept: Bools) -> Int64:
        taken = Rows(FORMS[form](matrix[kept]), units[kept])
        contribution: Any = "mean" if mean else "sum"
        options = {"scale": 64, "unit_contribution": contribution, "max_per_unit": 4}
        return contribute(anything(3, bound), taken, **options).values

    whole = of(np.ones(len(rows), dtype=np.bool_))
    factor = 64 * (1 if mean else 4) * (1 + 1e-9)
    for unit in np.unique(units):
        difference = whole - of(units != unit)
        assert np.abs(difference).sum() <= bound.l1 * factor
        assert np.linalg.norm(difference) <= bound.l2 * factor
        assert np.abs(difference).max() <= bound.linf * factor


@pytest.mark.parametrize("form", sorted(FORMS))
def test_coordinate_that_is_not_finite_is_zero_and_the_others_stay(form: str) -> None:
    matrix = np.array([[np.nan, 0.5, np.inf], [0.25, -np.inf, 0.0]])
    rows = Rows(FORMS[form](matrix), np.array([0, 1]))
    assert contribute(anything(3, Sensitivity(1, 1, 1)), rows, scale=8).values.tolist() == [2, 4, 0]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_clipped_huge_row_keeps_its_direction(form: str) -> None:
    rows = Rows(FORMS[form](np.array([[3e100, -4e100]])), np.array([0]))
    assert contribute(anything(2, Sensitivity(2, 1, 1)), rows, scale=1000).values.tolist() == [599, -799]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_unit_with_too_many_rows_contributes_nothing(form: str) -> None:
    rows = Rows(FORMS[form](np.eye(3)), np.array([0, 1, 0]))
    assert contribute(anything(3, Sensitivity(1, 1, 1)), rows, scale=8).values.tolist() == [0, 8, 0]


@pytest.mark.parametrize(
    ("rows", "options", "error", "match"),
    [
        (Rows(np.ones((1, 4)), np.array([0])), {}, InternalError, "4 columns, not 3"),
        (Rows(np.ones((1, 3)), np.array([0])), {"scale": 2**53}, ConfigurationError, "scale"),
        (Rows(np.ones((1, 3)), np.array([0])), {"unit_contribution": "max"}, ConfigurationError, "max"),
    ],
)
def test_rows_of_a_wrong_shape_or_with_wrong_options_are_refused(
    rows: Rows, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        contribute(anything(3, Sensitivity(3, 2, 1)), rows, **{"scale": 8, **options})


def test_a_party_without_rows_contributes_zeros() -> None:
    for matrix in (np.zeros((0, 3)), sp.csr_array((0, 3))):
        rows = Rows(matrix, np.zeros(0, dtype=np.int64))
        assert contribute(anything(3, Sensitivity(1, 1, 1)), rows, scale=8).values.tolist() == [0, 0, 0]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_subsample_keeps_whole_units(form: str) -> None:
    matrix, units = np.eye(5) / 2, np.array([0, 1, 2, 1, 0])
    kept = Rows(FORMS[form](matrix), units).keep_units(np.array([True, False, True]))
    assert kept.units.tolist() == [0, 2, 0]
    values = contribute(anything(5, Sensitivity(1, 1, 1)), kept, scale=8, unit_contribution="sum", max_per_unit=2)
    assert values.values.tolist() == [4, 0, 4, 0, 4]


def test_rows_are_neither_in_repr_nor_pickled() -> None:
    rows = Rows(np.full((1, 3), 0.123), np.array([0]))
    assert "123" not in repr(rows)
    with pytest.raises(TypeError):
        pickle.dumps(rows)


def test_label_histogram_counts_each_known_label_once() -> None:
    records = Records(labels=[0, 2, -1, 2, 7])
    histogram = LabelHistogram(3)
    values = contribute(histogram, histogram.rows(records, PublicInputs(), {}), scale=256).values
    assert values.tolist() == [256, 0, 512]
    assert histogram.sensitivity == Sensitivity(1, 1, 1)


def test_length_histogram_counts_words_by_its_edges() -> None:
    lengths = [0, 1, 4, 5, 9, 10, 25]
    records = Records([" word\n" * n for n in lengths])
    histogram = LengthHistogram((1, 5, 10, 20))
    values = contribute(histogram, histogram.rows(records, PublicInputs(), {}), scale=1).values
    assert values.tolist() == [3, 2, 2]
    assert statistics.build("length_histogram", {"edges": [1, 5, 10, 20]}) == histogram
    assert statistics.parameters(histogram) == {"edges": [1, 5, 10, 20]}


@pytest.mark.parametrize("edges", [[3], [1, 1], [5, 2], [-1, 3], [1.0, 2.0], "ab", 7])
def test_malformed_histogram_edges_are_refused(edges: Any) -> None:
    with pytest.raises(ConfigurationError):
        statistics.build("length_histogram", {"edges": edges})


def test_registry_refuses_a_doubled_name_and_a_plain_class() -> None:
    with pytest.raises(InternalError, match="two statistics"):
        register(LabelHistogram)

    class Plain:
        name: ClassVar[str] = "plain"

    with pytest.raises(InternalError, match="dataclass"):
        register(Plain)  # type: ignore[type-var]
