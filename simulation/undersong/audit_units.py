"""Neighbouring data sets of an audit: which unit comes and goes, and how far it may move a vector.

Mistakes about units show where a unit is of a kind that few data sets hold, or where there are many units. An audit of
any number of runs therefore removes units of its own making too: one of two records, one of a record more than a unit
may count, one whose records alternate with others', and one that is the opposite of 40 to 199 nearly equal others.

They are removed twice. *Real* neighbours have texts, so that rows that depend on other records move. *Aligned* ones
have rows that all reach the bound in one coordinate, up or down, so that what becomes of rows shows whole.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from undersong.audit_parts import Canary
from undersong_client.answering import grid_vectors
from undersong_client.records.private import PrivateRecords
from undersong_common.arrays import Float64
from undersong_common.table import Table, concatenate
from undersong_protocol.agreement.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs, RecordView, Rows, Statistic

NEIGHBOURS = 500  # records of a party among which units come and go, at most
CROWDS = (41, 47, 54, 62, 71, 82, 94, 108, 124, 143, 164, 189, 200)  # units of a data set, steps of 15 % at most
VARIANTS = ("today", "again", "since then")  # ends of the texts of nearly equal units
ALTERNATING = 4  # records of the unit that alternates with others, at most
DOWN = "opposite: "  # begins the texts of aligned records whose rows point down

Neighbours = list[Table]
"""A table, and the same without one unit, for each of several units."""


def real_neighbours(
    table: Table, canary: Canary, labels: Sequence[str], rng: np.random.Generator, *, privacy: Privacy, number: int
) -> list[Neighbours]:
    """Returns neighbours of a party's records, and of a crowd whose size follows from the ``number`` of the run.

    The units that go are the canary, one of the party's own, two that copy records of the party, at its front and at
    its end (a build that compares records with each other finds them), and the units of :func:`odd_units`.
    """
    by_user = privacy.unit == "user"

    def units(rows: Table) -> Sequence[object]:
        return (rows.users or ()) if by_user else range(len(rows))

    table = table.take(range(min(len(table), NEIGHBOURS)))
    sizes, names = Counter(units(table)), units(table)
    order = sorted(rng.permutation(len(names)).tolist(), key=lambda row: sizes[names[row]])
    front, end = (_copies(table.take(order[at::2][: len(canary.rows)]), f"copy-{at}", labels) for at in range(2))
    odd = odd_units(canary.rows, table, labels, privacy.max_per_unit)
    whole = concatenate([front, table, canary.rows, *odd, end])
    names, last = units(whole), len(whole) - 1
    before_odd = len(front) + len(table) + len(canary.rows)
    ends = before_odd + np.cumsum([len(rows) for rows in odd]) - 1
    removed = (0, len(front) + int(rng.integers(max(1, len(table)))), before_odd - 1, *ends.tolist(), last)
    many = crowd(table.take([0]), canary.rows.take([0]), CROWDS[number % len(CROWDS)])
    return [[whole, *(_without(whole, names, row) for row in removed)], many]


def odd_units(rows: Table, others: Table, labels: Sequence[str], cap: int) -> tuple[Table, Table, Table]:
    """Returns a unit of two records, one of ``cap`` + 1, and one whose records alternate with the first of ``others``.

    All records of these units have the text of ``rows``; a unit's labels differ where there are several.
    """
    text = rows.take([0])

    def unit(user: str, size: int) -> Table:
        repeated = text.take([0] * size)
        named = repeated.labels and tuple((labels or repeated.labels)[row % len(labels or (1,))] for row in range(size))
        return replace(repeated, labels=named, users=repeated.users and (user,) * size)

    size = max(2, min(cap, ALTERNATING))
    alternating = unit("alternating", size)
    parts = [part for row in range(size) for part in (others.take([row % len(others)]), alternating.take([row]))]
    return unit("pair", 2), unit("over the cap", cap + 1), concatenate(parts)


def crowd(equal: Table, opposite: Table, size: int) -> Neighbours:
    """Returns ``size`` units, nearly equal but for one in their middle, and the same without that one."""
    others = equal.take([0] * (size - 1))
    texts = tuple(f"{text} {VARIANTS[row % len(VARIANTS)]}" for row, text in enumerate(others.texts))
    others = replace(others, texts=texts, users=others.users and tuple(f"equal-{row}" for row in range(size - 1)))
    opposite = replace(opposite, users=opposite.users and ("opposite",))
    middle = size // 2
    whole = concatenate([others.take(range(middle)), opposite, others.take(range(middle, size - 1))])
    return [whole, others]


def aligned_neighbours(labels: Sequence[str], privacy: Privacy) -> list[Neighbours]:
    """Returns neighbours of records whose rows :func:`aligned_rows` makes."""
    by_user = privacy.unit == "user"
    label = tuple(labels[:1]) or None
    up, down = (Table((text,), label, ("user",)) for text in ("the same", DOWN + "the same"))
    others = replace(up.take([0] * ALTERNATING), users=tuple(f"other-{row}" for row in range(ALTERNATING)))
    found = []
    for rows in odd_units(down, others, labels, privacy.max_per_unit):
        whole = concatenate([others, rows])
        names = (whole.users or ()) if by_user else range(len(whole))
        found.append([whole, _without(whole, names, len(whole) - 1)])
    return [*found, *(crowd(up, down, size) for size in CROWDS)]


def aligned_rows(statistic: Statistic, records: RecordView, length: float = 1.0) -> Rows:
    """Returns rows of ``length`` bounds in the first coordinate, down for the texts that begin with ``DOWN``."""
    bound = statistic.sensitivity
    size = min(bound.l1, bound.l2, bound.linf) * length
    signs = [-size if text.startswith(DOWN) else size for text in records.texts]
    places = np.arange(len(signs)), np.zeros(len(signs), dtype=np.int64)
    return Rows(sp.csr_array((signs, places), shape=(len(signs), statistic.dimension)), records.units)


def moves(
    planned: PlannedSum,
    neighbours: Sequence[PrivateRecords],
    public: PublicInputs,
    privacy: Privacy,
    rows: Callable[[PrivateRecords], Rows] | None = None,
) -> Float64:
    """Returns how far each unit that is missing from all but the first of ``neighbours`` moves a party's vector.

    Args:
        rows: makes the rows; None asks the statistic for them.

    Returns:
        integer units, float64 [units, dimension].
    """
    made = None if rows is None else lambda _statistic, records, *_: rows(records)
    whole, *without = (
        grid_vectors.grid_vector(
            planned, records, public, privacy, coins=bytes(32), memory={}, rows=made
        ).values.astype(np.float64)
        for records in neighbours
    )
    return np.asarray(whole - np.array(without), dtype=np.float64)


def _without(whole: Table, names: Sequence[object], row: int) -> Table:
    """The table without the unit that the row with this number is of."""
    return whole.take([other for other, name in enumerate(names) if name != names[row]])


def _copies(rows: Table, user: str, labels: Sequence[str]) -> Table:
    """The same texts as another unit, every second of them with another label."""
    found = rows.labels
    if found and labels:
        others = (labels[-1] if label == labels[0] else labels[0] for label in found)
        found = tuple(each if at % 2 else other for at, (each, other) in enumerate(zip(found, others, strict=True)))
    return replace(rows, labels=found, users=rows.users and (user,) * len(rows))
