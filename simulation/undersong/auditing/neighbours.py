"""Neighbouring data sets of an audit: which privacy unit is removed, and how far that may move a vector.

A build's mistakes about units show only with units that few data sets hold, or with many units. An audit of
any number of runs therefore removes units of its own making too: one of two records, one of a record more than a unit
may count, one whose records alternate with others', and one that is the opposite of 40 to 199 nearly equal others.

They are removed twice. *Real* neighbours have texts, so that rows that depend on other records move. *Aligned* ones
have rows that all reach the bound in one coordinate, up or down, so that a mistake with rows shows in full.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import scipy.sparse as sp

from undersong.auditing.canaries import Canary
from undersong_client.answering import grid_vectors
from undersong_client.records.private import PrivateRecords
from undersong_common.arrays import Float64
from undersong_common.text.table import Table, concatenate
from undersong_protocol.agreement.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs, RecordView, Rows, Statistic

NEIGHBOURS = 500  # largest number of a party's records from which units are removed and added
# Numbers of units of the data sets that :func:`crowd` makes; each is at most 15 % larger than the one before.
CROWDS = (41, 47, 54, 62, 71, 82, 94, 108, 124, 143, 164, 189, 200)
VARIANTS = ("today", "again", "since then")  # last words in which the texts of nearly equal units differ
ALTERNATING = 4  # records of the unit that alternates with others, at most
DOWNWARD_PREFIX = "opposite: "  # The texts of aligned records whose rows point down begin with it.

Neighbours = list[Table]
"""A table, and the same without one unit, for each of several units."""


def real_neighbours(
    table: Table, canary: Canary, labels: Sequence[str], rng: np.random.Generator, *, privacy: Privacy, run_number: int
) -> list[Neighbours]:
    """Returns neighbours of a party's records, and of a crowd whose size follows from the ``run_number``.

    The units that are removed are the canary, one of the party's own, two that copy records of the party, at its front
    and at its end (a build that compares records with each other finds them), and the units of :func:`odd_units`.
    """
    table = table.take(range(min(len(table), NEIGHBOURS)))
    row_units = _row_units(table, privacy)
    rows_of_unit = Counter(row_units)
    row_order = sorted(
        rng.permutation(len(row_units)).tolist(), key=lambda row_number: rows_of_unit[row_units[row_number]]
    )
    rows_before, rows_after = (
        _copy_unit(table.take(row_order[parity::2][: len(canary.rows)]), f"copy-{parity}", labels)
        for parity in range(2)
    )
    odd_tables = odd_units(canary.rows, table, labels, privacy.max_per_unit)
    all_rows = concatenate([rows_before, table, canary.rows, *odd_tables, rows_after])
    earlier_row_count = len(rows_before) + len(table) + len(canary.rows)
    last_row_numbers = earlier_row_count + np.cumsum([len(table) for table in odd_tables]) - 1
    removed_row_numbers = (
        0,
        len(rows_before) + int(rng.integers(max(1, len(table)))),
        earlier_row_count - 1,
        *last_row_numbers.tolist(),
        len(all_rows) - 1,
    )
    crowd_table = crowd(table.take([0]), canary.rows.take([0]), CROWDS[run_number % len(CROWDS)])
    return [
        [all_rows, *(_without_unit(all_rows, row_number, privacy) for row_number in removed_row_numbers)],
        crowd_table,
    ]


def odd_units(rows: Table, other_rows: Table, labels: Sequence[str], cap: int) -> tuple[Table, Table, Table]:
    """Returns a unit of two records, one of ``cap`` + 1, and one whose records alternate with ``other_rows``.

    All records of these units have the text of ``rows``; a unit's labels differ where there are several.
    """
    one_row = rows.take([0])

    def make_unit(user: str, size: int) -> Table:
        repeated_rows = one_row.take([0] * size)
        unit_labels = repeated_rows.labels and tuple(islice(cycle(labels or repeated_rows.labels), size))
        return replace(repeated_rows, labels=unit_labels, users=repeated_rows.users and (user,) * size)

    alternating_count = max(2, min(cap, ALTERNATING))
    alternating_unit = make_unit("alternating", alternating_count)
    unit_tables = [
        unit_table
        for row_number in range(alternating_count)
        for unit_table in (other_rows.take([row_number % len(other_rows)]), alternating_unit.take([row_number]))
    ]
    return make_unit("pair", 2), make_unit("over the cap", cap + 1), concatenate(unit_tables)


def crowd(equal: Table, opposite: Table, unit_count: int) -> Neighbours:
    """Returns ``unit_count`` units, nearly equal but for an opposite one in their middle, and the same without it."""
    equal_rows = equal.take([0] * (unit_count - 1))
    variant_texts = tuple(
        f"{text} {VARIANTS[row_number % len(VARIANTS)]}" for row_number, text in enumerate(equal_rows.texts)
    )
    equal_rows = replace(
        equal_rows,
        texts=variant_texts,
        users=equal_rows.users and tuple(f"equal-{row_number}" for row_number in range(unit_count - 1)),
    )
    opposite = replace(opposite, users=opposite.users and ("opposite",))
    half_size = unit_count // 2
    all_rows = concatenate(
        [equal_rows.take(range(half_size)), opposite, equal_rows.take(range(half_size, unit_count - 1))]
    )
    return [all_rows, equal_rows]


def aligned_neighbours(labels: Sequence[str], privacy: Privacy) -> list[Neighbours]:
    """Returns neighbours of records whose rows :func:`aligned_rows` makes."""
    label = tuple(labels[:1]) or None
    up_row, down_row = (Table((text,), label, ("user",)) for text in ("the same", DOWNWARD_PREFIX + "the same"))
    up_rows = replace(
        up_row.take([0] * ALTERNATING), users=tuple(f"other-{unit_number}" for unit_number in range(ALTERNATING))
    )
    neighbours = []
    for rows in odd_units(down_row, up_rows, labels, privacy.max_per_unit):
        all_rows = concatenate([up_rows, rows])
        neighbours.append([all_rows, _without_unit(all_rows, len(all_rows) - 1, privacy)])
    return [*neighbours, *(crowd(up_row, down_row, size) for size in CROWDS)]


def aligned_rows(statistic: Statistic, records: RecordView, length: float = 1.0) -> Rows:
    """Returns rows whose first coordinate is ``length`` times a record's bound, and whose others are 0.

    It is negative for texts that begin with ``DOWNWARD_PREFIX``.
    """
    row_bound = statistic.sensitivity
    row_length = min(row_bound.l1, row_bound.l2, row_bound.linf) * length
    signed_lengths = [-row_length if text.startswith(DOWNWARD_PREFIX) else row_length for text in records.texts]
    coordinates = np.arange(len(signed_lengths)), np.zeros(len(signed_lengths), dtype=np.int64)
    return Rows(
        sp.csr_array((signed_lengths, coordinates), shape=(len(signed_lengths), statistic.dimension)), records.units
    )


def moves(
    planned: PlannedSum,
    neighbours: Sequence[PrivateRecords],
    public: PublicInputs,
    privacy: Privacy,
    rows: Callable[[PrivateRecords], Rows] | None = None,
) -> Float64:
    """Returns how far a party's vector moves when a unit is removed.

    Args:
        neighbours: a party's records, and the same without one unit, for each of several units.
        rows: makes the rows; None asks the statistic for them.

    Returns:
        integer units, float64 [units, dimension].
    """
    row_maker = None if rows is None else lambda _statistic, records, *_: rows(records)
    full_vector, *vectors_without = (
        grid_vectors.grid_vector(
            planned, records, public, privacy, coins=bytes(32), memory={}, rows=row_maker
        ).values.astype(np.float64)
        for records in neighbours
    )
    return np.asarray(full_vector - np.array(vectors_without), dtype=np.float64)


def _row_units(rows: Table, privacy: Privacy) -> Sequence[object]:
    """Returns the privacy unit of each row: its user, or the row's number."""
    if privacy.unit == "user":
        return rows.users or ()
    return range(len(rows))


def _without_unit(table: Table, row_number: int, privacy: Privacy) -> Table:
    """Returns the table without the privacy unit to which row number ``row_number`` belongs."""
    row_units = _row_units(table, privacy)
    return table.take([kept_number for kept_number, name in enumerate(row_units) if name != row_units[row_number]])


def _copy_unit(rows: Table, user: str, labels: Sequence[str]) -> Table:
    """Returns the same texts as those of another user, every second one with another label."""
    copied_labels = rows.labels
    if copied_labels and labels:
        changed_labels = (labels[-1] if label == labels[0] else labels[0] for label in copied_labels)
        copied_labels = tuple(
            label if position % 2 else changed_label
            for position, (label, changed_label) in enumerate(zip(copied_labels, changed_labels, strict=True))
        )
    return replace(rows, labels=copied_labels, users=rows.users and (user,) * len(rows))
