"""Declared sources of a data set: rows in, one table out, and every row that was not read is named with its reason.

A reader knows one kind of source, yields its rows and calls ``skip(place, reason)`` for each that it does not read.
What all kinds share is here: the hospital's own filter, dotted column names, the mapping of labels, and the list of
patients who take no part.
"""

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_client.records import command, fhir, sql
from undersong_client.records.declared import Declared, Skip, Skipped, json_lines, value_at
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table, rows_of, table_of

ANY_LABEL = "*"  # in a label map: every label that it does not name
LONGEST_EXAMPLE = 100  # characters of a masked example
_ID_PREFIX = "Patient/"


@dataclass(frozen=True, repr=False)
class Exclusion:
    """Patients who take no part: their identifiers, and how many of them and of their records were found."""

    identifiers: frozenset[str]
    patients: int
    records: int

    def __repr__(self) -> str:
        return "Exclusion(hidden)"


@dataclass(frozen=True)
class Reading:
    """A source that was read.

    Attributes:
        rows: of the source, those included that were not read.
        empty: rows without text.
    """

    table: Table
    rows: int
    empty: int
    skipped: tuple[Skipped, ...]
    exclusion: Exclusion | None


def read(declared: Declared) -> Reading:
    """Reads the source. Raises ConfigurationError that names the row and the remedy, and shows no content."""
    skipped: list[Skipped] = []
    counts = {"rows": 0, "left out": 0}

    def shaped() -> Iterator[dict[str, Any]]:
        for row in _rows(declared, lambda where, why: skipped.append(Skipped(where, why))):
            counts["rows"] += 1
            yield _shaped(row, declared)

    def leave_out(row: dict[str, Any]) -> dict[str, Any]:
        if declared.label_field and row.get(declared.label_field) is _LEFT_OUT:
            counts["left out"] += 1
            skipped.append(Skipped(f"{declared.data}: row {counts['rows']}", "the label map leaves its label out"))
            return {**row, declared.text_field: None, declared.label_field: ""}
        return row

    table = table_of(
        (leave_out(row) for row in shaped()),
        declared.data,
        declared.text_field,
        declared.label_field or None,
        declared.user_field or None,
        columns=declared.attribute_fields,
        skip_empty=True,
    )
    empty = counts["rows"] - counts["left out"] - len(table)
    rows = counts["rows"] - counts["left out"] + len(skipped)
    exclusion = None
    if declared.exclusions:
        table, exclusion = _without(table, declared)
    return Reading(table, rows, empty, tuple(skipped), exclusion)


def masked(text: str) -> str:
    """Shape of a text: letters become x or X, digits 0, and whatever else is unusual a question mark.

    >>> masked("Pain since 3 days, Mr. Ó")
    'Xxxx xxxxx 0 xxxx, Xx. X'
    """

    def shape(character: str) -> str:
        kind = unicodedata.category(character)[0]
        if kind in "LM":
            return "X" if character.isupper() else "x"
        if kind == "N":
            return "0"
        return " " if character.isspace() else character if character.isascii() and character.isprintable() else "?"

    shown = "".join(map(shape, text[:LONGEST_EXAMPLE]))
    return shown + ("..." if len(text) > LONGEST_EXAMPLE else "")


_LEFT_OUT = object()


def _rows(declared: Declared, skip: Skip) -> Iterator[dict[str, Any]]:
    path = declared.path
    if declared.database and path.suffix != ".sql":
        raise ConfigurationError(
            f"{declared.data}: --database needs a query", "write the query to a file that ends in .sql", code="no-query"
        )
    if path.suffix == ".sql":
        rows = sql.select(path, declared.database)
    elif path.is_dir() or (set(path.suffixes) & {".ndjson", ".jsonl"} and _is_fhir(path)):
        rows = fhir.rows(declared, skip)
    else:
        rows = rows_of(path, declared.encoding)
    return command.rows(declared, rows) if declared.row_filter else rows


def _is_fhir(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        first = json.loads(next(json_lines(path), (0, b"null"))[1])
    except ValueError:
        return False
    return isinstance(first, dict) and "resourceType" in first


def _shaped(row: dict[str, Any], declared: Declared) -> dict[str, Any]:
    """The row with its nested values under their dotted names, and its label as the map has it."""
    shaped = dict(row)
    for column in declared.columns:
        first, dot, _ = column.partition(".")
        if column not in row and dot and first in row:
            found = value_at(row, column.split("."))
            shaped[column] = None if isinstance(found, (dict, list)) else found
    if declared.label_map and declared.label_field in shaped:
        found = shaped[declared.label_field]
        name = "" if found is None else str(found)
        label = declared.label_map.get(name)
        if label is None and name:
            label = declared.label_map.get(ANY_LABEL)
        if label is not None:
            shaped[declared.label_field] = label or _LEFT_OUT
    return shaped


def _without(table: Table, declared: Declared) -> tuple[Table, Exclusion]:
    if table.users is None:
        raise ConfigurationError(
            "an exclusion list needs the column of patient ids", "name it: --user-field", code="no-user-field"
        )
    identifiers = _identifiers(declared)
    kept = [row for row, user in enumerate(table.users) if user.strip().removeprefix(_ID_PREFIX) not in identifiers]
    excluded = {user for user in table.users if user.strip().removeprefix(_ID_PREFIX) in identifiers}
    return table.take(kept), Exclusion(identifiers, len(excluded), len(table) - len(kept))


def _identifiers(declared: Declared) -> frozenset[str]:
    path = Path(declared.exclusions)
    if path.suffix == ".sql":
        found = [str(next(iter(row.values()))) for row in sql.select(path, declared.database)]
    else:
        try:
            found = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ConfigurationError(
                f"{path}: the exclusion list cannot be read",
                "one identifier a line, in UTF-8; nothing is sealed without it",
                code="no-exclusions",
            ) from None
    return frozenset(name.strip().removeprefix(_ID_PREFIX) for name in found if name.strip())
