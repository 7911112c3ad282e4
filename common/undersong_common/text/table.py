"""Makes tables of labelled text from rows, or refuses a row with its place and the reason, never its content."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from undersong_common.errors import ConfigurationError
from undersong_common.printable import is_blank
from undersong_common.text.patient_ids import (
    HALF_CHARACTER,
    PatientId,
    clean_text,
    has_half_character,
    is_database_null,
    patient_id,
)
from undersong_common.text.row_files import UTF_8, FileForm, Row, absent_column, read_rows

LARGEST_TEXT_BYTES = 4 * 2**20
WARNED_SHARE = 0.05  # share of a test file's texts; in fewer cases chance may have written a short text twice
EMPTY = "its text is empty"
EMPTY_CELL = f"{EMPTY}, or a formula without a stored value: open and save the workbook"


@dataclass(frozen=True, repr=False)
class Table:
    """Rows of a file. ``repr`` shows counts only, because the rows may be private.

    Attributes:
        texts: one text per row, non-empty after stripping.
        labels: one label per row, or None if no label column was named.
        users: one user id per row, as text, or None if no user column was named.
        columns: further columns by the attribute that they stand for, one text per row; "" if the value is missing.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...] | None
    users: tuple[str, ...] | None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"Table(rows={len(self.texts)})"

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int]) -> "Table":
        """Returns the table of the rows with these numbers (from 0), in that order."""
        return Table(
            tuple(self.texts[row_number] for row_number in rows),
            None if self.labels is None else tuple(self.labels[row_number] for row_number in rows),
            None if self.users is None else tuple(self.users[row_number] for row_number in rows),
            {name: tuple(column[row_number] for row_number in rows) for name, column in self.columns.items()},
        )


def concatenate(tables: Sequence[Table]) -> Table:
    """Returns one table with all rows of several tables that name the same columns."""
    return Table(
        tuple(text for table in tables for text in table.texts),
        None if any(t.labels is None for t in tables) else tuple(x for t in tables for x in t.labels or ()),
        None if any(t.users is None for t in tables) else tuple(x for t in tables for x in t.users or ()),
        {
            name: tuple(value for table in tables for value in table.columns.get(name, ("",) * len(table)))
            for name in dict.fromkeys(name for table in tables for name in table.columns)
        },
    )


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are used; None for no column. ``a.b`` names a value in a nested row."""

    text: str
    label: str | None = None
    user: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def check_roles(self) -> None:
        """Raises ConfigurationError if the column of texts or of ids has a second role, because people see labels."""
        for role, column in self._column_roles.items():
            first_role = next(name for name, other_column in self._column_roles.items() if other_column == column)
            if column is not None and first_role != role and {first_role, role} & {"text", "user"}:
                raise ConfigurationError(
                    f"the column {column!r} is named as the {first_role} column and as the {role} column",
                    "name another column for one of them",
                    code="column-of-two-roles",
                )

    @property
    def names(self) -> tuple[str, ...]:
        column_names = (self.text, self.label, self.user, *self.attributes.values())
        return tuple(dict.fromkeys(name for name in column_names if name is not None))

    @property
    def _column_roles(self) -> dict[str, str | None]:
        attributes = {f"attribute {name}": column for name, column in self.attributes.items()}
        return {"text": self.text, "label": self.label, "user": self.user, **attributes}

    def check(self, row: Row) -> None:
        """Raises ConfigurationError that names every column, by its role, that the row lacks."""
        missing_columns = {
            column: f" (the {role} column)"
            for role, column in self._column_roles.items()
            if column is not None and column not in row.values
        }
        if missing_columns:
            raise absent_column(row.place, missing_columns, row.values)


@dataclass(frozen=True, repr=False)
class Record:
    """One row with a text; ``repr`` shows nothing of it."""

    text: str
    label: str
    user: PatientId | None
    attributes: Mapping[str, str]


class RefusedRow(ConfigurationError):
    """A row that cannot be used; ``reason`` says why, without its place."""

    def __init__(self, place: str, reason: str, remedy: str) -> None:
        super().__init__(f"{place}: {reason}", remedy, code="refused-row")
        self.reason = reason


class NoText(RefusedRow):
    """A row without a text that can be used; a source with such rows can be read without them."""


class NoLabel(RefusedRow):
    """A row without a label, where a column of labels was named."""


def empty_reason(source: str) -> str:
    """Returns the reason to show for a row without a text; in a workbook a formula may be without a stored value.

    Args:
        source: path of the file that holds the row.
    """
    if source.lower().endswith(".xlsx"):
        return EMPTY_CELL
    return EMPTY


def read_record(row: Row, columns: Columns, empty: str = EMPTY) -> Record:
    """Returns the record of a row that has all ``columns``.

    Args:
        empty: the reason for a row without a text.

    Raises RefusedRow for a row without an id, NoLabel for one without a label, and NoText for one without a text.
    """
    if columns.user is None:
        user = None
    else:
        user = read_user(row, columns.user)
    text = _text_value(row, columns.text, empty)
    if columns.label is None:
        label = ""
    else:
        label = _label_value(row, columns.label)
    attributes = {name: _attribute_value(row, column) for name, column in columns.attributes.items()}
    return Record(text, label, user, attributes)


def read_user(row: Row, column: str) -> PatientId:
    """Reads the patient's id of a row. Raises RefusedRow if the value is missing or is no id."""
    try:
        user_id = patient_id(row.values[column])
    except ConfigurationError as error:
        raise RefusedRow(row.place, f"the user column {column!r}: {error.problem}", error.remedy) from None
    if user_id is None:
        raise RefusedRow(row.place, f"the user column {column!r} is empty or not an id", "fill the row")
    return user_id


def _text_value(row: Row, column: str, no_text_reason: str) -> str:
    value = row.values[column]
    if value is None or value != value or (isinstance(value, str) and (is_blank(value) or is_database_null(value))):
        raise NoText(row.place, no_text_reason, "remove or fill the row")
    if not isinstance(value, str):
        raise NoText(row.place, f"the text column {column!r} holds no text", "write the text as text")
    if len(value) > LARGEST_TEXT_BYTES // 4 and len(value.encode("utf-8", "surrogatepass")) > LARGEST_TEXT_BYTES:
        raise NoText(row.place, "its text is longer than 4 MiB", "divide it")
    return value


def _label_value(row: Row, column: str) -> str:
    value = row.values[column]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        label = ""
    else:
        # A Mac writes letters with marks as two characters, and a spreadsheet copies invisible ones.
        label = clean_text(str(value))
    if isinstance(value, bool | float | bytes | Mapping | list) or not label or is_database_null(label):
        is_missing = value is None or value != value or not label or is_database_null(label)
        refusal_class = NoLabel if is_missing else RefusedRow
        raise refusal_class(row.place, f"the label column {column!r} is empty or not a label", "fill the row")
    return _whole_characters(label, row, column)


def _attribute_value(row: Row, column: str) -> str:
    """Returns the value of an attribute's column as text; "" for a missing one (None, or NaN of a data frame)."""
    value = row.values[column]
    if value is None or value != value:
        return ""
    return _whole_characters(clean_text(str(value)), row, column)


def _whole_characters(text: str, row: Row, column: str) -> str:
    if has_half_character(text):
        raise RefusedRow(row.place, f"the column {column!r}: {HALF_CHARACTER}", "write whole characters of Unicode")
    return text


class TableBuilder:
    """Collects records into the columns of a table, without a second copy of them."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._texts: list[str] = []
        self._labels: list[str] = []
        self._users: list[str] = []
        self._attributes: dict[str, list[str]] = {name: [] for name in columns.attributes}

    def add(self, record: Record, user: str | None) -> None:
        """Adds a record of the privacy unit ``user``; None where the table has no column of users."""
        self._texts.append(record.text)
        self._labels.append(record.label)
        if user is not None:
            self._users.append(sys.intern(user))
        for name, value in record.attributes.items():
            self._attributes[name].append(value)

    def table(self) -> Table:
        return Table(
            tuple(self._texts),
            None if self._columns.label is None else tuple(self._labels),
            None if self._columns.user is None else tuple(self._users),
            {name: tuple(values) for name, values in self._attributes.items()},
        )


def read_table(
    path: Path,
    text: str,
    label: str | None = None,
    user: str | None = None,
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
    labels: Sequence[str] = (),
    encoding: str = UTF_8,
) -> Table:
    """Reads a file of labelled text; its suffix, one of ``SUFFIXES``, decides the format.

    Args:
        text, label, user: names of the columns with these contents.
        columns: names of further columns, by the attribute of each; only in these may a value be missing.
        labels: the allowed labels; () allows any.
        encoding: encoding of a JSONL, CSV or TSV file that does not start with a byte order mark.

    Raises ConfigurationError that names the file, the row and the remedy.
    """
    column_roles = Columns(text, label, user, columns)
    return table_of(read_rows(path, FileForm(encoding), column_roles.names), str(path), column_roles, labels)


def table_of(rows: Iterable[Row], source: str, columns: Columns, labels: Sequence[str] = ()) -> Table:
    """Makes the table that :func:`read_table` reads, from rows in memory; errors name them ``source``."""
    columns.check_roles()
    builder = TableBuilder(columns)
    allowed = set(labels)
    no_text_reason = empty_reason(source)
    for row in rows:
        columns.check(row)
        record = read_record(row, columns, no_text_reason)
        if allowed and columns.label is not None and record.label not in allowed:
            raise ConfigurationError(
                f"{row.place}: its label is not in task.labels", "add the label to task.labels, or remove the row"
            )
        builder.add(record, None if record.user is None else record.user.text)
    table = builder.table()
    if not table:
        raise ConfigurationError(f"{source}: has no rows", "name a file with at least one record")
    return table


def fold_texts(texts: Iterable[str]) -> frozenset[str]:
    """Returns the different texts, without regard to case and spaces."""
    return frozenset(" ".join(text.split()).casefold() for text in texts)


def count_shared(test_texts: frozenset[str], other_texts: frozenset[str]) -> int:
    """Returns how many folded texts of a test file are among the others; 0 up to ``WARNED_SHARE``, by chance."""
    shared_count = len(test_texts & other_texts)
    return shared_count if shared_count > WARNED_SHARE * len(test_texts) else 0


def read_column(path: Path, column: str) -> tuple[str, ...]:
    """Reads one column of a file, such as the group of every row, as text.

    Raises ConfigurationError if the file has no such column or a row is empty there.
    """
    values = []
    for row in read_rows(path, columns=[column]):
        Columns(column).check(row)
        value = row.values[column]
        if value is None or str(value) == "":
            raise ConfigurationError(f"{row.place}: the column {column!r} is empty", "fill the row")
        values.append(str(value))
    return tuple(values)
