"""Every registered statistic: its public inputs are checked without a record, and every record has a row of its own.

Own means: the same bits beside any other records, in any order and number, on any number of threads.
"""

import dataclasses
import math
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from tests.doubles.coded import raises
from tests.doubles.example_records import ExampleRecords, dense
from tests.doubles.pace import examples
from tests.doubles.tiny_bert import write_bert
from tests.noninterference.public_examples import FINE_TUNED, labels_of, malformed_in_every_way, names, well_formed
from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError, PeerFault
from undersong_protocol import statistics
from undersong_protocol.statistics import PublicFacts, PublicInputs, Statistic, teacher_votes
from undersong_protocol.statistics.classifier_votes import ClassifierVotes
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.examples import WORDS
from undersong_protocol.statistics.inputs import COEFFICIENTS, LARGEST_EMBEDDING

FACTS = [PublicFacts(embedding_size=24, labels=3), PublicFacts(embedding_size=1, labels=0)]
EVERY = pytest.mark.parametrize("name", names())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """For the teachers that are fine-tuned: one layer, and few steps."""
    with pytest.MonkeyPatch.context() as patched:
        few = dataclasses.replace(teacher_votes.SETTINGS, epochs=1)
        patched.setattr(teacher_votes, "SETTINGS", few)
        patched.setattr(teacher_votes, "STEPS", 2)
        yield write_bert(tmp_path_factory.mktemp("bert"), WORDS)


@contextmanager
def threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


def rows_by_unit(statistic: Statistic, records: ExampleRecords, public: PublicInputs) -> dict[int, bytes]:
    """Each row's bits; a zero row is no row, for a record that contributes nothing may have either."""
    rows = statistic.rows(records, public, {})
    matrix = dense(rows) + 0.0  # minus zero is zero
    return {int(unit): row.tobytes() for unit, row in zip(rows.units, matrix, strict=True) if row.any()}


def units_of(statistic: Statistic, records: ExampleRecords, rows: Int64) -> set[int]:
    """The units of the statistic's rows that those records can move: their own, or their shards."""
    if not statistic.whole:
        return set(records.units[rows].tolist())
    teachers: Any = statistic
    return set((records.unit_hashes[rows] % np.uint64(teachers.teachers)).astype(int).tolist())


@pytest.mark.slow
@EVERY
@settings(max_examples=examples(2, 40), deadline=None)
@given(data=st.data())
def test_well_formed_inputs_are_taken_and_every_record_has_a_row(name: str, model: Path, data: st.DataObject) -> None:
    facts = data.draw(st.sampled_from(FACTS))
    example = data.draw(well_formed(name, facts))
    public = example.check()
    count = data.draw(st.integers(0, 6 if name == FINE_TUNED else 30))
    records = records_for(data, count, facts, model)
    statistic = example.statistic
    assert statistics.build(statistic.name, statistics.parameters(statistic)) == statistic
    matrix, bound = dense(statistic.rows(records, public, {})), statistic.sensitivity
    assert np.isfinite(matrix).all()
    assert (np.abs(matrix).sum(axis=1) <= bound.l1 * (1 + 1e-9)).all()
    assert (np.linalg.norm(matrix, axis=1) <= bound.l2 * (1 + 1e-9)).all()
    assert np.abs(matrix).max(initial=0.0) <= bound.linf * (1 + 1e-9)


@pytest.mark.slow
@EVERY
@settings(max_examples=examples(1, 50), deadline=None)
@given(data=st.data())
def test_inputs_that_are_malformed_in_any_way_are_refused_without_a_record(name: str, data: st.DataObject) -> None:
    facts = data.draw(st.sampled_from(FACTS))
    for example in data.draw(malformed_in_every_way(name, facts)):
        note(example.why)
        with pytest.raises((ConfigurationError, PeerFault)):
            example.check()


@pytest.mark.slow
@EVERY
@settings(max_examples=examples(2, 20), deadline=None)
@given(data=st.data())
def test_a_row_is_the_same_beside_any_other_records(name: str, model: Path, data: st.DataObject) -> None:
    facts = PublicFacts(embedding_size=data.draw(st.sampled_from([24, 384])), labels=3)
    example = data.draw(well_formed(name, facts))
    public = example.check()
    records = records_for(data, data.draw(st.integers(0, 8 if name == FINE_TUNED else 300)), facts, model)
    kept = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(len(records))
    kept = kept[: data.draw(st.integers(0, len(records)))]
    if example.statistic.whole:
        kept = np.sort(kept)  # a shard is trained on its records in their order
    with threads(data.draw(st.integers(1, 4))):
        before = rows_by_unit(example.statistic, records, public)
    with threads(data.draw(st.integers(1, 4))):
        after = rows_by_unit(example.statistic, records.take(kept), public)
    gone = np.setdiff1d(np.arange(len(records)), kept)
    stays = units_of(example.statistic, records, kept) - (
        units_of(example.statistic, records, gone) if example.statistic.whole else set()
    )
    assert {unit: row for unit, row in before.items() if unit in stays} == {
        unit: row for unit, row in after.items() if unit in stays
    }


@pytest.mark.slow
@EVERY
@settings(max_examples=examples(2, 20), deadline=None)
@given(data=st.data())
def test_neighbouring_data_sets_differ_within_the_sensitivity(name: str, model: Path, data: st.DataObject) -> None:
    facts = data.draw(st.sampled_from(FACTS))
    example = data.draw(well_formed(name, facts))
    public, statistic = example.check(), example.statistic
    records = records_for(data, data.draw(st.integers(1, 5 if name == FINE_TUNED else 120)), facts, model)
    gone = data.draw(st.integers(0, len(records) - 1))
    left = records.take(np.delete(np.arange(len(records)), gone))
    scale = statistic.base_scale
    one, two = (contribute(statistic, statistic.rows(each, public, {}), scale=scale).values for each in (records, left))
    within(one - two, statistic, scale)
    if not statistic.whole:  # a record adds what it would add alone, to the last integer
        alone = records.take(np.array([gone]))
        np.testing.assert_array_equal(
            one - two, contribute(statistic, statistic.rows(alone, public, {}), scale=scale).values
        )


def within(difference: Int64, statistic: Statistic, scale: int) -> None:
    bound = statistic.sensitivity
    assert np.abs(difference).sum() <= bound.l1 * scale * (1 + 1e-9)
    assert math.sqrt(float((difference.astype(np.float64) ** 2).sum())) <= bound.l2 * scale * (1 + 1e-9)
    assert np.abs(difference).max(initial=0) <= bound.linf * scale * (1 + 1e-9)


def records_for(data: st.DataObject, count: int, facts: PublicFacts, model: Path) -> ExampleRecords:
    seed = data.draw(st.integers(0, 2**32))
    return ExampleRecords(seed, count, size=facts.embedding_size, labels=facts.labels, local_model=str(model))


# The attacks that were measured


@pytest.mark.parametrize("value", [1e308, -1e308, 1e200, np.nan, np.inf, 5e-324, 2.0**-17, 2.0**40])
def test_huge_or_non_finite_classifier_numbers_are_refused_by_name(value: float) -> None:
    """They overflowed where a guessed record was there, which refused: one membership question an attempt."""
    statistic, key = ClassifierVotes(classifiers=2, labels=3, hard=value < 0), "classifiers"
    numbers = {key: np.zeros((2, 25, 3))}
    facts = PublicFacts(24, 3)
    statistic.check_inputs(PublicInputs(numbers=numbers), facts)
    numbers[key].flat[5] = value
    with pytest.raises(ConfigurationError, match=key):
        statistic.check_inputs(PublicInputs(numbers=numbers), facts)


def test_one_more_record_moves_only_its_own_row_of_classifier_votes() -> None:
    """384 coordinates, ordinary classifiers: the shape of a product and of an exponential is not the others' affair."""
    rng = np.random.default_rng(0)
    statistic = ClassifierVotes(classifiers=4, labels=5, hard=False)
    public = PublicInputs(numbers={"classifiers": COEFFICIENTS.quantised(3 * rng.normal(size=(4, 385, 5)))})
    statistic.check_inputs(public, PublicFacts(384, 5))
    records = ExampleRecords(1, 300, size=384, labels=5)
    whole = rows_by_unit(statistic, records, public)
    for count in (*range(1, 40), 63, 64, 65, 127, 255, 256, 257, 299):
        part = rows_by_unit(statistic, records.take(np.arange(count)), public)
        assert part == {unit: row for unit, row in whole.items() if unit < count}


@pytest.mark.slow
@EVERY
@settings(max_examples=examples(3, 10), deadline=None)
@given(data=st.data())
def test_more_labels_than_planned_are_refused_before_any_record(name: str, data: st.DataObject) -> None:
    example = data.draw(well_formed(name, PublicFacts(24, 3)))
    more = dataclasses.replace(example, facts=PublicFacts(24, 9))
    with raises(ConfigurationError, "other-labels") if labels_of(example.statistic) else nullcontext():
        more.check()


# The grids


def test_products_on_the_grid_are_exact_in_any_order() -> None:
    """The largest numbers and the longest records there are, against integers of any size."""
    grid, record_bits, record_norm = COEFFICIENTS, 11, 1.0
    grid.check_exact(record_bits=record_bits, record_norm=record_norm)
    rng = np.random.default_rng(0)
    for size in (3, 1000, LARGEST_EMBEDDING):
        w = grid.quantised(rng.choice([-1.0, 1.0], size) * (grid.largest - rng.random(size)))
        x = rng.normal(size=size)
        x = np.trunc(x / np.linalg.norm(x) * record_norm * 2**record_bits) / 2**record_bits
        pairs = zip((w * 2**grid.bits).tolist(), (x * 2**record_bits).tolist(), strict=True)
        exact = sum(int(a) * int(b) for a, b in pairs)
        for order in (np.arange(size), rng.permutation(size), np.argsort(w * x)):
            product = float(x[order] @ w[order])
            assert int(product * 2 ** (grid.bits + record_bits)) == exact
            assert float(np.cumsum(w[order] * x[order])[-1]) == product


@pytest.mark.slow
def test_wide_rows_are_computed_block_by_block() -> None:
    """All rows at once would pass a party's memory where it has many records, and the refusal would tell."""
    records, width, size = 4_000, 40_000, 2
    statistic = ClassifierVotes(width, 2)
    public = PublicInputs(numbers={"classifiers": np.zeros((width, size + 1, 2))})
    statistic.check_inputs(public, PublicFacts(size, 2))
    view = ExampleRecords(0, records, size=size, labels=2)
    tracemalloc.start()
    try:
        rows = statistic.rows(view, public, {})
        assert rows.take(np.arange(2)).shape == (2, statistic.dimension)
        assert tracemalloc.get_traced_memory()[1] < 2**26  # one such matrix has 1.2 GiB
    finally:
        tracemalloc.stop()
