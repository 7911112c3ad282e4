"""Reads tables of labelled text whole, or refuses them with the number of the faulty row, never its content.

Formats are JSONL (also named NDJSON), CSV (commas, semicolons or tabs) and TSV, each also compressed by gzip, Parquet,
and Excel workbooks.
"""

import codecs
import csv
import errno
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from undersong_common import extras
from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx")
_TEXT_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv")  # of files that may be compressed
UTF_8 = "utf-8"
_DELIMITERS = ",;\t"
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
INFLATED_BYTES = 64 * 2**20  # of a gzip file or a workbook, however small
INFLATION = 100  # times the size of a larger one; notes reach 3 to 30
NO_GZIP = "it is cut off or no gzip file"
_OTHERS = {  # what people have instead, and what to do with it
    ".xls": "open it and save it as .xlsx or as CSV",
    ".ods": "open it and save it as .xlsx or as CSV",
    ".json": "write one JSON object a line, and name the file .jsonl",
    ".txt": "if it has columns, name it .csv or .tsv",
    ".gz": "name it by what is in it, for example .jsonl.gz",
    ".zip": "unpack it first",
}


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
            tuple(self.texts[row] for row in rows),
            None if self.labels is None else tuple(self.labels[row] for row in rows),
            None if self.users is None else tuple(self.users[row] for row in rows),
            {name: tuple(column[row] for row in rows) for name, column in self.columns.items()},
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


def read_table(
    path: Path,
    text: str,
    label: str | None = None,
    user: str | None = None,
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
    labels: Sequence[str] = (),
    skip_empty: bool = False,
    encoding: str = UTF_8,
) -> Table:
    """Reads a file of labelled text; its suffix, one of ``SUFFIXES``, decides the format.

    Args:
        text, label, user: names of the columns with these contents.
        columns: names of further columns, by the attribute of each; only in these may a value be missing.
        labels: the allowed labels; () allows any.
        skip_empty: True leaves out rows without text and allows a file without rows; False refuses both.
        encoding: of a JSONL, CSV or TSV file that does not start with a byte order mark.

    Raises ConfigurationError that names the file, the row and the remedy. Rows count from 1 without the header; a
    workbook's rows count as in its sheet.
    """
    rows = rows_of(path, encoding)
    return table_of(rows, str(path), text, label, user, columns=columns, labels=labels, skip_empty=skip_empty)


def table_of(
    rows: Iterable[dict[str, Any] | None],
    source: str,
    text: str,
    label: str | None = None,
    user: str | None = None,
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
    labels: Sequence[str] = (),
    skip_empty: bool = False,
) -> Table:
    """Makes the table that :func:`read_table` reads, from rows in memory; errors name them ``source``."""
    texts: list[str] = []
    found: list[str] = []
    users: list[str] = []
    user_types: set[type] = set()
    known = set(labels)
    further: dict[str, list[str]] = {name: [] for name in columns}
    roles = {"text": text, "label": label, "user": user, **{f"attribute {name}": at for name, at in columns.items()}}
    for number, row in enumerate(rows, start=1):
        if row is None:
            continue
        where = f"{source}: row {number}"
        _check_columns(row, roles, where)
        value = row[text]
        if skip_empty and (value is None or (isinstance(value, str) and not value.strip())):
            continue
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(
                f"{where}: the text column {text!r} is empty or not text", "remove or fill the row"
            )
        texts.append(value)
        if label is not None:
            name = row[label]
            if isinstance(name, bool | float) or name is None or str(name) == "":
                raise ConfigurationError(f"{where}: the label column {label!r} is empty or not a label", "fill the row")
            if known and str(name) not in known:
                raise ConfigurationError(
                    f"{where}: its label is not in task.labels", "add the label to task.labels, or remove the row"
                )
            found.append(str(name))
        if user is not None:
            identity = row[user]
            named = user_id(str(identity))
            if isinstance(identity, bool | float) or identity is None or not named:
                raise ConfigurationError(f"{where}: the user column {user!r} is empty or not an id", "fill the row")
            users.append(named)
            user_types.add(type(identity))
        for name, column in columns.items():
            given = row[column]  # a data frame's missing number is no number
            further[name].append("" if given is None or given != given else " ".join(str(given).split()))
    if len(user_types) > 1:
        # 7 and "7" would silently become one patient, or two: the file must say which.
        raise ConfigurationError(
            f"{source}: the user column {user!r} mixes numbers and text",
            "write every id in the same form",
            code="mixed-ids",
        )
    if not texts and not skip_empty:
        raise ConfigurationError(f"{source}: has no rows", "name a file with at least one record")
    return Table(
        tuple(texts),
        tuple(found) if label is not None else None,
        tuple(users) if user is not None else None,
        {name: tuple(values) for name, values in further.items()},
    )


def user_id(written: str) -> str:
    """Returns a user's id without space around it and without FHIR's "Patient/" before it.

    >>> [user_id(each) for each in ("P1", " P1", "Patient/P1 ")]
    ['P1', 'P1', 'P1']
    """
    return written.strip().removeprefix("Patient/").strip()


def read_column(path: Path, column: str) -> tuple[str, ...]:
    """Reads one column of a file, such as the group of every row, as text.

    Raises ConfigurationError if the file has no such column or a row is empty there.
    """
    found = []
    for number, row in enumerate(rows_of(path, UTF_8), start=1):
        if row is None:
            continue
        _check_columns(row, {"named": column}, f"{path}: row {number}")
        value = row[column]
        if value is None or str(value) == "":
            raise ConfigurationError(f"{path}: row {number}: the column {column!r} is empty", "fill the row")
        found.append(str(value))
    return tuple(found)


def column_names(path: Path, encoding: str = UTF_8) -> list[str]:
    """Reads the names of a file's columns from its first row. Raises ConfigurationError as :func:`read_table`."""
    for row in filter(None, rows_of(path, encoding)):
        return list(row)
    raise ConfigurationError(f"{path}: has no rows", "name a file with at least one record")


def _check_columns(row: dict[str, Any], columns: Mapping[str, str | None], where: str) -> None:
    """Raises ConfigurationError that names every column, by its role, that the row lacks."""
    missing = [(role, column) for role, column in columns.items() if column is not None and column not in row]
    if missing:
        said = ", ".join(f"no column {column!r} (the {role} column)" for role, column in missing)
        raise ConfigurationError(f"{where}: has {said}", "; ".join(nearest(column, row) for _, column in missing))


def rows_of(path: Path, encoding: str = UTF_8) -> Iterator[dict[str, Any] | None]:
    """Yields the rows of a file as mappings by column, unchecked; None for a workbook's header and each blank row.

    Raises ConfigurationError as :func:`read_table`.
    """
    suffix = path.suffix.lower()
    compressed = suffix == ".gz" and path.with_suffix("").suffix.lower() in _TEXT_SUFFIXES
    if compressed:
        suffix = path.with_suffix("").suffix.lower()
    if suffix not in SUFFIXES:
        remedy = _OTHERS.get(suffix, f"use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        raise ConfigurationError(f"{path}: unknown file type {suffix!r}", remedy, code="unknown-file-type")
    try:
        content = b"".join(gzip_lines(path)) if compressed else path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file", "check the path (relative to the task file)") from None
    except OSError as error:
        said = error.strerror or NO_GZIP
        raise ConfigurationError(f"{path}: cannot be read: {said}", "check the file and its permissions") from None
    with extras.named(str(path), "save the file as CSV"):
        match suffix:
            case ".parquet":
                yield from _parquet_rows(path, content)
            case ".xlsx":
                yield from _workbook_rows(path, content)
            case ".jsonl" | ".ndjson":
                yield from _jsonl_rows(path, _decoded(path, content, encoding))
            case _:
                yield from _csv_rows(path, _decoded(path, content, encoding), "\t" if suffix == ".tsv" else "")


def gzip_lines(path: Path) -> Generator[bytes, None, None]:
    """Yields the lines of a gzip file, line ends included.

    Raises OSError if the file is cut off or damaged (then without ``strerror``; use ``NO_GZIP``), or if it holds more
    than 64 MiB and more than 100 times its own size, because a few megabytes can inflate to gigabytes.
    """
    left = max(INFLATED_BYTES, INFLATION * path.stat().st_size)
    try:
        with gzip.open(path) as file:
            while line := file.readline(left + 1):
                left -= len(line)
                if left < 0:
                    raise OSError(errno.EFBIG, f"it inflates to more than {INFLATION} times its size: unpack it first")
                yield line
    except (EOFError, zlib.error):
        raise OSError from None


def _decoded(path: Path, content: bytes, encoding: str) -> str:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigurationError(
            f"{path}: the encoding {encoding!r} is unknown",
            "for example utf-8, latin-1, cp1252 or utf-16",
            code="unknown-encoding",
        ) from None
    named = next((name for mark, name in _BYTE_ORDER_MARKS if content.startswith(mark)), encoding)
    try:
        return content.decode(named)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        # `from None`: the decoder's error holds the whole private file
        said = "UTF-8" if named == UTF_8 else named
        remedy = (
            "save the file as UTF-8, or say how it was saved: --encoding latin-1 (Western Europe, older programs) or"
            " cp1252 (Windows)"
            if named == UTF_8
            else "name the encoding that the file was saved in: --encoding"
        )
        raise ConfigurationError(f"{path}: line {line} is not {said}", remedy, code="other-encoding") from None


def _jsonl_rows(path: Path, content: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigurationError(f"{path}: line {number} is not JSON", "write one JSON object a line") from None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{path}: line {number} is not a JSON object", "write one JSON object a line")
        yield row


def _csv_rows(path: Path, content: str, delimiter: str) -> Iterator[dict[str, Any]]:
    delimiter = delimiter or _delimiter(content)
    reader = csv.DictReader(io.StringIO(content, newline=""), strict=True, delimiter=delimiter)
    number = 0
    try:
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                separated = {",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
                raise ConfigurationError(
                    f"{path}: row {number} has not as many fields as the header, which is separated by {separated}",
                    "correct the row; a text that holds the separator needs double quotes around it",
                    code="field-count",
                )
            yield row
    except csv.Error:
        raise ConfigurationError(f"{path}: row {number + 1} is not valid CSV", "check its quotes") from None


def _delimiter(content: str) -> str:
    """Separator of the columns: of comma, semicolon and tab, the one that finds most columns in the header."""

    def columns(delimiter: str) -> int:
        try:
            return len(next(csv.reader(io.StringIO(content, newline=""), delimiter=delimiter), ()))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=columns)  # the first of those that find equally many: the comma


def _workbook_rows(path: Path, content: bytes) -> Iterator[dict[str, Any] | None]:
    import openpyxl

    try:
        parts = zipfile.ZipFile(io.BytesIO(content)).infolist()
        inflated = sum(part.file_size for part in parts)  # no part is read beyond
        if inflated > max(INFLATED_BYTES, INFLATION * len(content)):
            raise OSError
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        sheets = [list(sheet.iter_rows(values_only=True)) for sheet in book.worksheets]
    except Exception:  # noqa: BLE001 - whatever its parsers raise may hold a piece of the private file
        raise ConfigurationError(
            f"{path}: is not a readable Excel workbook, or inflates too far",
            "save it again as .xlsx",
            code="no-workbook",
        ) from None
    filled = [rows for rows in sheets if any(cell is not None for row in rows for cell in row)]
    if len(filled) > 1:
        raise ConfigurationError(
            f"{path}: has {len(filled)} sheets", "save the one that counts in a file of its own", code="several-sheets"
        )
    if not filled:
        return
    header, *rows = filled[0]
    names = ["" if cell is None else str(cell) for cell in header]
    yield None
    for row in rows:
        filled_in = any(cell is not None for cell in row)
        yield {name: cell for name, cell in zip(names, row, strict=False) if name} if filled_in else None


def _parquet_rows(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    try:
        yield from pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
    except pyarrow.ArrowException:
        raise ConfigurationError(f"{path}: is not a readable Parquet file", "write it again") from None
