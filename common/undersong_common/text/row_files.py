"""Reads files of rows: JSONL (also named NDJSON), CSV, TSV, each also compressed by gzip, Parquet and Excel workbooks.

A row has its place ("FILE: row N") and its values by column. A fault is refused with place, column and remedy, never
with content: whatever a parser raises may hold a piece of a private file.
"""

import codecs
import csv
import difflib
import errno
import gzip
import io
import json
import re
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_common.program import extras
from undersong_common.text.patient_ids import LARGEST_WHOLE_FLOAT

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx")
QUOTINGS = ("csv", "none")
_TEXT_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv")  # suffixes of files that may be compressed
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")  # suffixes of parts; a single .json file is one value
# The word for null with which Hive and Spark name a folder of parts.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
UTF_8 = "utf-8"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# Excel writes and reads this line before the header. A program that quotes every field quotes it, too.
_SEPARATOR_LINE = re.compile(r'("?)sep=([,;\t|])\1(?:\r\n|\r|\n)')
_BYTE_ORDER_MARKS = (  # UTF-32 comes first, because its mark begins as that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
INFLATED_BYTES = 64 * 2**20  # size to which any gzip file or workbook may inflate, however small it is
INFLATION = 100  # largest inflated size of a larger file, as a multiple of its size; notes reach 3 to 30
LARGEST_SHEET_CELLS = 20_000_000  # cells of the area that a sheet's filled cells span; a reader holds all in memory
UTF_16_BYTES = 4096  # first bytes from which the encoding of a text without a byte order mark is guessed
NO_GZIP = "it is cut off or no gzip file"
ROWS_AT_ONCE = 1000
_OTHER_FORMATS = {  # remedies, by suffix, for files that are not read
    ".xls": "open it and save it as .xlsx or as CSV",
    ".ods": "open it and save it as .xlsx or as CSV",
    ".json": "write one JSON object a line, and name the file .jsonl",
    ".txt": "if it has columns, name it .csv or .tsv",
    ".gz": "name it by what is in it, for example .jsonl.gz",
    ".zip": "unpack it first",
}
# Names of columns and sheets that a message may show. In a file without a header, a "name" is a note or a patient's id.
_USUAL_NAME = re.compile(
    r"(?:note|report|document|letter|finding|record|patient|person|subject|user|case|encounter|visit|admission"
    r"|befunde?|bericht|brief|notiz|dokument|patienten|pat|fall|text|source|gender|birth)s?"
    r"(?:_?(?:id|ids|identifier|number|no|nr|nummer|reference|text|type|kind|class|date|time|title|category|art|label))?"
    r"|ids?|identifier|mrn|pid|hadm_id|row_id|text[eo]?s?|body|content|labels?|class|klasse|category|kategorie|kind|type"
    r"|typ|art|code|title|titel|topic|group|date|datum|time|station|ward|sheet ?\d?|tabelle ?\d?|table ?\d?|legend|data"
)
# Latin-1 has controls where Windows and older Macs have quotation marks, dashes and letters. U+0085 ends a line.
_LATIN_CONTROL = re.compile("[\x80-\x84\x86-\x9f]")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
# A filled cell in the XML of a sheet, with the letters of its column and the number of its row.
_CELL = re.compile(rb'<(?:\w+:)?c\s(?:[^<>]*\s)?r="([A-Z]{1,3})([0-9]{1,7})"[^<>]*(?<!/)>(?!\s*</)')


class Row(NamedTuple):
    """A row of a source: its place, for messages, and its values by column."""

    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class FileForm:
    """The form of a file, as far as the file does not show it.

    Attributes:
        encoding: encoding of a text file that does not start with a byte order mark.
        quoting: "csv" or "none" for a CSV or TSV file that can be read in both ways; "" refuses such a file.
        sheet: name of the sheet of a workbook; "" for the only one that is filled.
    """

    encoding: str = UTF_8
    quoting: str = ""
    sheet: str = ""

    def __post_init__(self) -> None:
        if self.quoting not in ("", *QUOTINGS):
            raise ConfigurationError(
                f"there is no quoting {printable(self.quoting, 60)!r}", "choose csv or none", code="unknown-quoting"
            )


class DottedColumns:
    """Reads the declared columns with a dot in their names: ``a.b`` is a key of that name, or else ``b`` inside ``a``.

    A source that has both is refused, because nobody could say which of them was meant.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = [column for column in columns if "." in column]
        self._keys: dict[str, tuple[str, ...]] = {}  # keys that lead to a column's value in the earlier rows, by column

    def read(self, row: Row) -> Row:
        """Returns the row with its nested values added under their dotted names.

        A value is None if the row has the first key of the path and not the rest. It is a :class:`Several` if a list
        on the path holds different values.

        Raises ConfigurationError if the row holds a value under ``a.b`` both as one key and as ``b`` inside ``a``.
        """
        nested_values = {
            column: self._path_value(row, column)
            for column in self._columns
            if any(key in row.values for key in _first_keys(column))
        }
        if nested_values:
            return row._replace(values={**row.values, **nested_values})
        return row

    def _path_value(self, row: Row, column: str) -> Any:
        values = _values_at(row.values, tuple(column.split(".")))
        key_paths = [self._keys.setdefault(column, keys) for keys in values][:1] + list(values)
        if len(set(key_paths)) > 1:
            path_words = " and as ".join(" in ".join(map(repr, reversed(keys))) for keys in dict.fromkeys(key_paths))
            raise ConfigurationError(
                f"{row.place}: the column {column!r} stands there as {path_words}",
                "rename or leave out the one that does not count",
                code="name-twice",
            )
        return next(iter(values.values()), None)


def read_rows(path: Path, form: FileForm | None = None, columns: Collection[str] = ()) -> Iterator[Row]:
    """Yields the rows of a file, or of a folder of parts of one table; blank rows are left out.

    Rows count from 1 without the header. A workbook's rows count as in its sheet.

    Args:
        columns: names of the columns that are used; ``a.b`` is a value inside a nested one. Only in these is a fault
            looked for, and of a Parquet file only these are read. () stands for all columns.

    Raises ConfigurationError that names the file, the row, and the column where the fault lies in one.
    """
    form = form or FileForm()
    dotted_columns = DottedColumns(columns)
    if not path.is_dir():
        yield from _file_rows(path, form, columns, dotted_columns)
        return
    keys = _Keys(columns)
    parts = folder_parts(path)
    folders = _shown_folders(path, parts)
    for part in parts:
        yield from _part_rows(folders[part.parent], part, form, columns, dotted_columns, keys)
    keys.check(path)


@dataclass(frozen=True)
class _PartFolder:
    """A folder with parts of a table.

    Attributes:
        shown: its path for messages, which show no value of a name, because it may be a patient's id.
        stated: the values that its name and those above state, by column (``label=A``).
    """

    shown: Path
    stated: Mapping[str, str | None]


def _shown_folders(folder: Path, parts: Sequence[Path]) -> dict[Path, _PartFolder]:
    """Returns the folders of the parts. In messages a number among its neighbours replaces the value in a name."""
    subfolders = {
        parent_folder for part in parts for parent_folder in part.parents if parent_folder.is_relative_to(folder)
    } - {folder}
    neighbours: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for path in sorted(subfolders):
        name, equals, _ = path.name.partition("=")
        if equals:
            neighbours[path.parent, name].append(path)
    shown_names = {
        path: f"{name}=(folder {number} of {len(paths)})"
        for (_, name), paths in neighbours.items()
        for number, path in enumerate(paths, start=1)
    }
    folders = {folder: _PartFolder(folder, {})}
    for path in sorted(subfolders):
        parent_folder = folders[path.parent]
        name, equals, value = path.name.partition("=")
        if equals:
            folder_values = {name: None if value == _HIVE_NULL else unquote(value)}
        else:
            folder_values = {}
        folders[path] = _PartFolder(
            parent_folder.shown / shown_names.get(path, path.name), {**parent_folder.stated, **folder_values}
        )
    return folders


def _part_rows(
    folder: _PartFolder,
    part: Path,
    form: FileForm,
    columns: Collection[str],
    dotted_columns: DottedColumns,
    keys: "_Keys",
) -> Iterator[Row]:
    """Yields the rows of a part of a table, with the values that its folders' names state (``label=A``)."""
    folder_values = folder.stated
    shown_path = folder.shown / part.name
    is_json = plain_suffix(part) in _JSON_SUFFIXES
    absent_values = dict.fromkeys(columns if is_json else ())  # a part may leave out a key that is null in all its rows
    try:
        for row in _file_rows(
            part, form, [name for name in columns if name not in folder_values], dotted_columns, is_part=True
        ):
            values = {**row.values, **folder_values}
            keys.add(values)
            yield Row(row.place.replace(str(part), str(shown_path)), {**absent_values, **values})
    except ConfigurationError as error:
        problem = error.problem.replace(str(part), str(shown_path))
        raise ConfigurationError(problem, error.remedy, code=error.code) from None


def _file_rows(
    path: Path, form: FileForm, columns: Collection[str], dotted_columns: DottedColumns, *, is_part: bool = False
) -> Iterator[Row]:
    suffix = plain_suffix(path)
    if suffix not in _TEXT_SUFFIXES:
        suffix = path.suffix.lower()
    if is_part and plain_suffix(path) == ".json":
        suffix = ".jsonl"
    if suffix not in SUFFIXES:
        remedy = _OTHER_FORMATS.get(suffix, f"use {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        raise ConfigurationError(f"{path}: unknown file type {suffix!r}", remedy, code="unknown-file-type")
    with extras.named(str(path), "save the file as CSV"):
        match suffix:
            case ".parquet":
                yield from _parquet_rows(path, columns, dotted_columns)
            case ".xlsx":
                yield from _workbook_rows(path, form.sheet, columns)
            case ".jsonl" | ".ndjson":
                file_text = read_text(path, form.encoding)
                rows = _jsonl_rows(path, file_text, columns, dotted_columns)
                yield from rows if is_part else _with_all_keys(path, file_text, rows, columns)
            case _:
                yield from _csv_rows(path, read_text(path, form.encoding), form, columns)


def folder_parts(folder: Path) -> list[Path]:
    """Returns the parts of one table in a folder, as Spark and others write them; [] if its files are no such parts.

    Markers (``_SUCCESS``) and checksums (``.part.crc``) are left out.
    """
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(name.startswith(("_", ".")) for name in file.relative_to(folder).parts)
    ]
    suffixes = {plain_suffix(file) for file in files}
    if len(suffixes) == 1 and suffixes <= {".parquet", ".csv", ".tsv", *_JSON_SUFFIXES}:
        return files
    return []


def column_names(path: Path, encoding: str = UTF_8) -> list[str]:
    """Reads the names of a file's columns from its first row. Raises ConfigurationError as :func:`read_rows`."""
    for row in read_rows(path, FileForm(encoding)):
        return list(row.values)
    raise ConfigurationError(f"{path}: has no rows", "name a file with at least one record")


def has_suffix(path: Path, *suffixes: str) -> bool:
    """Returns True for a name that ends in one of the suffixes, in small or capital letters."""
    return path.suffix.lower() in suffixes


def plain_suffix(path: Path) -> str:
    """Returns a name's suffix in small letters, without that of a compression.

    >>> plain_suffix(Path("NOTES.CSV.GZ"))
    '.csv'
    """
    return (path.with_suffix("") if has_suffix(path, ".gz") else path).suffix.lower()


def file_lines(path: Path) -> Generator[bytes, None, None]:
    """Yields the lines of a file, which may be compressed, line ends included. Raises OSError as :func:`gzip_lines`."""
    if has_suffix(path, ".gz"):
        yield from gzip_lines(path)
    else:
        with path.open("rb") as lines:
            yield from lines


def gzip_lines(path: Path) -> Generator[bytes, None, None]:
    """Yields the lines of a gzip file, line ends included.

    Raises OSError if the file is cut off or damaged (then without ``strerror``; use ``NO_GZIP``), or if it holds more
    than 64 MiB and more than 100 times its own size, because a few megabytes can inflate to gigabytes.
    """
    remaining_bytes = max(INFLATED_BYTES, INFLATION * path.stat().st_size)
    try:
        with gzip.open(path) as file:
            while line := file.readline(remaining_bytes + 1):
                remaining_bytes -= len(line)
                if remaining_bytes < 0:
                    raise OSError(errno.EFBIG, f"it inflates to more than {INFLATION} times its size: unpack it first")
                yield line
    except (EOFError, zlib.error):
        raise OSError from None


def read_bytes(path: Path) -> bytes:
    """Reads a file, which may be compressed. Raises ConfigurationError, which names it, if it cannot be read."""
    _check_regular(path)
    try:
        if has_suffix(path, ".gz"):
            return b"".join(gzip_lines(path))
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file", "check the path (relative to the task file)", code="no-such-file"
        ) from None
    except OSError as error:
        reason = error.strerror or NO_GZIP
        raise ConfigurationError(
            f"{path}: cannot be read: {reason}", "check the file and its permissions", code="unreadable-source"
        ) from None


def _check_regular(path: Path) -> None:
    """Raises ConfigurationError for a pipe or a device, of which a read may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigurationError(
            f"{path}: is a pipe or a device and no file", "write its content to a file", code="unreadable-source"
        )


def read_text(path: Path, encoding: str = UTF_8) -> str:
    """Reads a text file in the encoding of its byte order mark; without a mark, in ``encoding``.

    Raises ConfigurationError that names the first line that is not in that encoding.
    """
    file_bytes = read_bytes(path)
    try:
        is_text_encoding = codecs.lookup(encoding)._is_text_encoding
    except (LookupError, ValueError):
        is_text_encoding = False
    if not is_text_encoding:
        raise ConfigurationError(
            f"{path}: the encoding {encoding!r} is unknown",
            "name an encoding that Python knows, for example utf-8, latin-1, cp1252 or utf-16",
            code="unknown-encoding",
        )
    file_encoding = next((name for mark, name in _BYTE_ORDER_MARKS if file_bytes.startswith(mark)), encoding)
    # ASCII in UTF-16 is valid UTF-8 and Latin-1: every second character is NUL.
    if (unmarked_encoding := _unmarked_utf_16(file_bytes)) and "16" not in file_encoding and "32" not in file_encoding:
        raise ConfigurationError(
            f"{path}: is written in {unmarked_encoding} without a byte order mark",
            f"save the file as UTF-8, or say how it was saved: --encoding {unmarked_encoding}",
            code="other-encoding",
        )
    try:
        text = file_bytes.decode(file_encoding)
        if codecs.lookup(file_encoding).name == "iso8859-1" and (control := _LATIN_CONTROL.search(text)):
            line_number = text[: control.start()].count("\n") + 1
            raise ConfigurationError(
                f"{path}: line {line_number} holds a control character in {file_encoding}, which no program writes",
                "name the encoding that the file was saved in: --encoding cp1252 (Windows) or mac-roman (older Macs)",
                code="other-encoding",
            )
        return text
    except UnicodeError as error:
        fault_start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line_number = file_bytes[:fault_start].count(b"\n") + 1
    encoding_name = "UTF-8" if file_encoding.startswith("utf-8") else file_encoding
    if encoding_name == "UTF-8":
        remedy = (
            "save the file as UTF-8, or say how it was saved: --encoding latin-1 (Western Europe, older programs) or"
            " cp1252 (Windows)"
        )
    else:
        remedy = "name the encoding that the file was saved in: --encoding"
    # This stands outside the handler, because the decoder's error holds the whole private file.
    raise ConfigurationError(f"{path}: line {line_number} is not {encoding_name}", remedy, code="other-encoding")


def _unmarked_utf_16(file_bytes: bytes) -> str:
    """Returns the encoding of a text in UTF-16 that has no mark and begins with ASCII, as headers do; else ""."""
    first_bytes = file_bytes[:UTF_16_BYTES]
    low_bytes, high_bytes = first_bytes[::2], first_bytes[1::2]
    for zero_bytes, letter_bytes, encoding in (
        (high_bytes, low_bytes, "utf-16-le"),
        (low_bytes, high_bytes, "utf-16-be"),
    ):
        if zero_bytes.startswith(b"\0\0") and 2 * zero_bytes.count(0) > len(zero_bytes) and 0 not in letter_bytes:
            return encoding
    return ""


def check_names(names: Sequence[str], columns: Collection[str], source: str) -> None:
    """Raises ConfigurationError for a declared column whose name stands twice among ``names``."""
    for column in columns:
        if column in names:
            present_name = column
        else:
            present_name = column.partition(".")[0]
        if names.count(present_name) > 1:
            raise ConfigurationError(
                f"{source}: the column {present_name!r} stands {names.count(present_name)} times",
                "rename or remove the one that does not count",
                code="name-twice",
            )


class Several(list[Any]):
    """The values at a path through a list of which no two are equal; as an id or a text they are refused."""


def value_at(node: Any, path: Sequence[str]) -> Any:
    """Returns the value at a dotted path in nested JSON; None if there is none.

    In a list it takes the element whose number the path names, or else the first element with such a value.

    >>> value_at({"type": {"coding": [{}, {"code": "x"}]}}, ["type", "coding", "code"])
    'x'
    """
    value = next(iter(_values_at(node, tuple(path)).values()), None)
    if isinstance(value, Several):
        return value[0]
    return value


def _values_at(node: Any, path: tuple[str, ...], keys: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns each value to which a dotted path leads, by the keys on the way; the longest first key comes first.

    There may be several, because a key may itself hold a dot.
    """
    if not path:
        return {keys: node}
    if isinstance(node, list):
        if path[0].isdigit():
            if int(path[0]) < len(node):
                return _values_at(node[int(path[0])], path[1:], keys)
            return {}
        return _merge_members(_values_at(member, path, keys) for member in node)
    if not isinstance(node, Mapping):
        return {}
    values: dict[tuple[str, ...], Any] = {}
    for key, path_below in _split_path(path):
        if key in node:
            values |= _values_at(node[key], path_below, (*keys, key))
    return values


def _merge_members(members: Iterable[dict[tuple[str, ...], Any]]) -> dict[tuple[str, ...], Any]:
    """Merges the values at a path in the members of a list: one value if all are equal, else a :class:`Several`."""
    merged: dict[tuple[str, ...], Several] = {}
    for values in members:
        for keys, value in values.items():
            merged_values = merged.setdefault(keys, Several())
            member_values = value if isinstance(value, Several) else [value]
            merged_values += [
                element for element in member_values if element is not None and element not in merged_values
            ]
    return {
        keys: merged_values[0] if len(merged_values) == 1 else merged_values
        for keys, merged_values in merged.items()
        if merged_values
    }


@lru_cache(maxsize=1024)
def _split_path(path: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns each key with which a path may begin, and the rest of the path; the longest key comes first.

    The result is cached, because every row asks for the same few paths.
    """
    return tuple((".".join(path[:length]), path[length:]) for length in range(len(path), 0, -1))


def _first_keys(column: str) -> list[str]:
    """Returns the keys of a row with which the dotted path of a column may begin, the column's own name first."""
    return [key for key, _ in _split_path(tuple(column.split(".")))]


def absent_column(place: str, columns: Mapping[str, str], names: Collection[str]) -> ConfigurationError:
    """Returns the error for columns that a source does not have.

    Args:
        columns: maps each absent column to further words, such as its role; "" for none.
        names: the source's names; the remedy shows none, because they may be content.
    """
    absence = ", ".join(f"no column {column!r}{words}" for column, words in columns.items())
    remedy = "; ".join(dict.fromkeys(name_remedy(column, names) for column in columns))
    return ConfigurationError(f"{place}: has {absence}", remedy, code="no-column")


def name_remedy(word: str, names: Collection[str], noun: str = "column") -> str:
    """Returns a remedy for a name that a source does not have.

    It shows no name but the word itself in the source's letters: without a header, a "name" is a note or an id.

    >>> name_remedy("Text", ["id", "text"]), name_remedy("text", ["id", "texts"])
    ("did you mean 'text'?", 'column 2 of 2 has a similar name: is it the one?')
    >>> name_remedy("text", ["Mrs. Smith coughs", "4711"])
    'it has 2 columns; is its first row the header?'
    """
    plain_names = [_plain_name(name) for name in names]
    similar_names = difflib.get_close_matches(_plain_name(word), plain_names, n=1, cutoff=0.6)
    if similar_names == [_plain_name(word)]:
        return f"did you mean {list(names)[plain_names.index(similar_names[0])]!r}?"
    if similar_names:
        return (
            f"{noun} {plain_names.index(similar_names[0]) + 1} of {len(plain_names)} has a similar name: is it the one?"
        )
    count_words = f"it has {len(names)} {noun}{'' if len(names) == 1 else 's'}"
    if noun == "column":
        return f"{count_words}; is its first row the header?"
    return count_words


def _plain_name(name: Any) -> str:
    return re.sub(r"[\s.\-]+", "_", str(name).casefold().strip())


# The functions below read JSON lines.


class _Object(dict[str, Any]):
    """A JSON object that knows which of its keys stand twice; the last value counts as in every reader."""

    repeated: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> "_Object":
        value = cls(pairs)
        if len(value) < len(pairs):
            names = [name for name, _ in pairs]
            value.repeated = frozenset(name for name in names if names.count(name) > 1)
        return value


def _repeated_key(node: Any, path: tuple[str, ...]) -> str:
    """Returns the key on the path to a column that stands twice in its JSON object; "" if none does."""
    if isinstance(node, list):
        return next(filter(None, (_repeated_key(member, path) for member in node)), "")
    if not isinstance(node, _Object):
        return ""
    path_splits = _split_path(path)
    repeated_keys = (key for key, _ in path_splits if key in node.repeated)
    inner_keys = (_repeated_key(node.get(key), path_below) for key, path_below in path_splits if path_below)
    return next(repeated_keys, "") or next(filter(None, inner_keys), "")


def json_object(line: str | bytes, place: str, columns: Collection[str] = ()) -> dict[str, Any]:
    """Reads one JSON object. Raises ConfigurationError if it is none, or if a declared key stands twice."""
    try:
        row = json.loads(line, object_pairs_hook=_Object.of, parse_int=_whole_number)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{place} is not JSON", "write one JSON object a line", code="no-json") from None
    if not isinstance(row, _Object):
        raise ConfigurationError(f"{place} is not a JSON object", "write one JSON object a line", code="no-json")
    for name in filter(None, (_repeated_key(row, tuple(column.split("."))) for column in columns)):
        raise ConfigurationError(
            f"{place}: the key {name!r} stands twice", "remove the one that does not count", code="name-twice"
        )
    return row


def _whole_number(digits: str) -> int | float:
    """Returns a whole number of JSON; infinity, which is no id and no label, for more digits than Python reads."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _may_hold_key(file_text: str, key: str) -> bool:
    """Returns False if no JSON object in the text can have the key, and True if one may have it."""
    return "\\u" in file_text or json.dumps(key, ensure_ascii=False) in file_text


class _Keys:
    """Notes which declared keys no row has had so far, to report them after the last row."""

    def __init__(self, columns: Collection[str]) -> None:
        self._absent_columns = dict.fromkeys(columns, "")
        self._row_keys: dict[str, None] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        if self._absent_columns:
            self._row_keys.update(dict.fromkeys(values))
            for column in [name for name in self._absent_columns if name in values]:
                del self._absent_columns[column]

    def check(self, path: Path) -> None:
        """Raises ConfigurationError for keys that no row had, if there were rows."""
        if self._row_keys and self._absent_columns:
            raise absent_column(str(path), self._absent_columns, self._row_keys)


def _jsonl_rows(path: Path, file_text: str, columns: Collection[str], dotted_columns: DottedColumns) -> Iterator[Row]:
    """Yields the rows of JSON lines, each with the keys that it has."""
    for number, line in enumerate(file_text.split("\n"), start=1):
        if line.strip():
            yield dotted_columns.read(Row(f"{path}:{number}", json_object(line, f"{path}: line {number}", columns)))


def _with_all_keys(path: Path, file_text: str, rows: Iterable[Row], columns: Collection[str]) -> Iterator[Row]:
    """Yields the rows of a whole file, with None for a key that a row leaves out; some row must have the key."""
    # A column that stands nowhere in the file stays absent, so that the error names the first row that lacks it.
    absent_values = dict.fromkeys(
        name for name in columns if any(_may_hold_key(file_text, key) for key in _first_keys(name))
    )
    keys = _Keys(columns)
    for row in rows:
        keys.add(row.values)
        yield row._replace(values={**absent_values, **row.values}) if columns else row
    keys.check(path)


# The functions below read CSV and TSV.


def _csv_rows(path: Path, file_text: str, form: FileForm, columns: Collection[str]) -> Iterator[Row]:
    delimiter = "\t" if plain_suffix(path) == ".tsv" else ""
    if separator_line := _SEPARATOR_LINE.match(file_text):
        delimiter = separator_line[2]
        file_text = file_text[separator_line.end() :]
    delimiter = delimiter or _find_delimiter(file_text)
    # The csv module has one limit of a field's length for the whole process. Its default is below one long note.
    csv.field_size_limit(max(csv.field_size_limit(), min(len(file_text) + 1, sys.maxsize)))
    quoting = form.quoting or ("csv" if '"' not in file_text else _find_quoting(path, file_text, delimiter))
    if quoting == "none":
        rows = _plain_lines(file_text, delimiter)
    else:
        rows = _quoted_rows(file_text, delimiter)
    header: list[str] = []
    row_number = 0
    try:
        for row_number, fields in enumerate(rows):
            if not row_number:
                header = fields
                check_names(header, columns, str(path))
                continue
            place = f"{path}: row {row_number}"
            if len(fields) != len(header):
                raise ConfigurationError(
                    f"{place} has not as many fields as the header, which is separated by {_DELIMITERS[delimiter]}",
                    "correct the row; a text that holds the separator needs double quotes around it",
                    code="field-count",
                )
            yield Row(place, dict(zip(header, fields, strict=True)))
    except csv.Error:
        raise ConfigurationError(
            f"{path}: row {row_number + 1} is not valid CSV",
            "check its quotes; if the file's quotes are letters like any other: --quoting none",
            code="no-csv",
        ) from None


def _find_quoting(path: Path, file_text: str, delimiter: str) -> str:
    """Returns the quoting of a file that holds quotes. Raises ConfigurationError where "csv" and "none" both fit."""
    plain_count, field_count = 0, -1
    for line in _plain_lines(file_text, delimiter):
        field_count = len(line) if field_count < 0 else field_count
        if len(line) != field_count:
            return "csv"
        plain_count += 1
    quoted_count, is_valid = _count_quoted(file_text, delimiter, strict=True)
    if not is_valid:
        quoted_count, _ = _count_quoted(file_text, delimiter, strict=False)
    if quoted_count != plain_count:
        raise ConfigurationError(
            f"{path}: has {plain_count - 1} rows if its quotes are letters like any other, {quoted_count - 1} if they"
            " enclose fields",
            "say which: --quoting none or --quoting csv",
            code="quoting",
        )
    if is_valid:
        return "csv"
    return "none"


def _count_quoted(file_text: str, delimiter: str, *, strict: bool) -> tuple[int, bool]:
    """Returns the number of rows, header included, if quotes enclose fields, and True if the file is then valid CSV."""
    row_count, field_count = 0, -1
    is_valid = True
    try:
        for fields in _quoted_rows(file_text, delimiter, strict=strict):
            field_count = len(fields) if field_count < 0 else field_count
            is_valid = is_valid and len(fields) == field_count
            row_count += 1
    except csv.Error:
        return row_count, False
    return row_count, is_valid


def _quoted_rows(file_text: str, delimiter: str, *, strict: bool = True) -> Iterator[list[str]]:
    lines = (line[0] for line in _LINE.finditer(file_text))
    return filter(None, csv.reader(lines, strict=strict, delimiter=delimiter))


def _plain_lines(file_text: str, delimiter: str) -> Iterator[list[str]]:
    lines = (line[0].rstrip("\r\n") for line in _LINE.finditer(file_text))
    return (line.split(delimiter) for line in lines if line)


def _find_delimiter(file_text: str) -> str:
    """Returns the separator (comma, semicolon, tab or bar) that gives the header most columns."""

    def columns(delimiter: str) -> int:
        try:
            return len(next(_quoted_rows(file_text[: 2**20], delimiter, strict=False), ()))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=columns)  # the first of those that find equally many: the comma


# The functions below read Excel files.


def _workbook_rows(path: Path, sheet: str, columns: Collection[str]) -> Iterator[Row]:
    import python_calamine

    file_bytes = read_bytes(path)
    _check_workbook(path, file_bytes)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(file_bytes))
        names = [
            sheet_metadata.name
            for sheet_metadata in book.sheets_metadata
            if sheet_metadata.typ == python_calamine.SheetTypeEnum.WorkSheet
        ]
        if sheet and sheet not in names:
            raise ConfigurationError(
                f"{path}: has no sheet {sheet!r}", name_remedy(sheet, names, "sheet"), code="no-sheet"
            )
        sheets = [book.get_sheet_by_name(name) for name in ([sheet] if sheet else names)]
        filled_sheets = [worksheet for worksheet in sheets if worksheet.height]
    except ConfigurationError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # An interrupt goes on; a panic of the parser is no Exception either.
        # The cause is dropped (`from None`), because a parser's error may hold a piece of the private file.
        raise _no_workbook(path) from None
    if len(filled_sheets) > 1:
        raise ConfigurationError(
            f"{path}: has {len(filled_sheets)} filled sheets: "
            f"{_sheet_words(names, [worksheet.name for worksheet in filled_sheets])}",
            "choose the one that counts: --sheet NAME",
            code="several-sheets",
        )
    if not names:
        raise ConfigurationError(f"{path}: has no sheet", "save the table as a sheet of its own", code="no-sheet")
    header: list[str] | None = None
    for row_number, cells in enumerate(filled_sheets[0].iter_rows() if filled_sheets else (), start=1):
        cell_values = [_cell_value(cell) for cell in cells]
        if all(value is None for value in cell_values):
            continue
        if header is None:
            header = ["" if value is None else str(value) for value in cell_values]
            check_names(header, columns, str(path))
            continue
        yield Row(
            f"{path}: row {row_number}", {name: value for name, value in zip(header, cell_values, strict=False) if name}
        )


def _sheet_words(names: Sequence[str], filled: Sequence[str]) -> str:
    """Returns the numbers of the filled sheets in words; a usual name is shown too, another may be a patient's."""
    return ", ".join(
        f"sheet {names.index(name) + 1}" + (f" {name!r}" if _USUAL_NAME.fullmatch(name.casefold().strip()) else "")
        for name in filled
    )


def _cell_value(value: Any) -> Any:
    """Returns a cell's value; None for an empty cell.

    A sheet holds every number as a float, so that a whole one becomes an int. Beyond 2^53 a float stands for several
    whole numbers: it stays a float, which is no id.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE_FLOAT:
        return int(value)
    if isinstance(value, str) and not value.strip():
        return None
    return value


def _check_workbook(path: Path, file_bytes: bytes) -> None:
    """Raises ConfigurationError for a workbook that would not fit in memory."""
    cell_count = 0
    try:
        with zipfile.ZipFile(io.BytesIO(file_bytes)) as archive:
            archive_parts = archive.infolist()
            if sum(archive_part.file_size for archive_part in archive_parts) > max(
                INFLATED_BYTES, INFLATION * len(file_bytes)
            ):
                raise _no_workbook(path)
            for archive_part in archive_parts:
                if archive_part.filename.startswith("xl/worksheets/") and archive_part.filename.endswith(".xml"):
                    with archive.open(archive_part) as file:
                        cell_count = max(cell_count, _spanned_cells(file))
    except ConfigurationError:
        raise
    except Exception:  # noqa: BLE001 - whatever the archive's reader raises may hold a piece of the private file
        raise _no_workbook(path) from None
    if cell_count > LARGEST_SHEET_CELLS:
        raise ConfigurationError(
            f"{path}: a filled cell lies far from the table: the sheet spans {cell_count} cells, more than"
            f" {LARGEST_SHEET_CELLS}",
            "delete the rows and columns beside the table, or save the file as CSV",
            code="sheet-too-large",
        )


def _spanned_cells(file: Any) -> int:
    """Returns the number of cells from A1 to the last filled row and column of a sheet."""
    last_row_number = last_column_number = 0
    unread_bytes = b""
    while block := file.read(2**20):
        unread_bytes += block
        for column, row in _CELL.findall(unread_bytes):
            last_row_number = max(last_row_number, int(row))
            last_column_number = max(last_column_number, _column_number(column))
        unread_bytes = unread_bytes[-256:]  # A cell may lie across two blocks.
    return last_row_number * last_column_number


def _column_number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + letter - ord("A") + 1
    return number


def _no_workbook(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: is not a readable Excel workbook, or inflates to more than {INFLATION} times its size",
        "save it again as .xlsx, without a password",
        code="no-workbook",
    )


# The functions below read Parquet files.


def _parquet_rows(path: Path, columns: Collection[str], dotted_columns: DottedColumns) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    _check_regular(path)
    if not path.exists():
        read_bytes(path)  # This raises the error that names the missing file.
    row_number = 0
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        check_names(names, columns, str(path))
        nested = {field.name for field in file.schema_arrow if pyarrow.types.is_nested(field.type)}
        source_columns = {key for column in columns for key in _first_keys(column) if key == column or key in nested}
        read_columns = [name for name in names if name in source_columns or not columns]
        if not read_columns:
            yield from _rows_without_columns(path, names, columns, file.metadata.num_rows)
            return
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=read_columns):
            values = [
                _column_values(path, batch.column(name), repr(name) if columns else str(column_number), row_number)
                for column_number, name in enumerate(batch.schema.names, start=1)
            ]
            for fields in zip(*values, strict=True):
                row_number += 1
                yield dotted_columns.read(
                    Row(f"{path}: row {row_number}", dict(zip(batch.schema.names, fields, strict=True)))
                )
    except ConfigurationError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError):
        if row_number:
            problem = f"cannot be read after row {row_number}"
        else:
            problem = "is not a readable Parquet file"
        raise ConfigurationError(f"{path}: {problem}", "write it again", code="no-parquet") from None


def _rows_without_columns(path: Path, names: list[str], columns: Iterable[str], row_count: int) -> Iterator[Row]:
    if row_count:
        raise absent_column(str(path), dict.fromkeys(columns, ""), names)
    yield from ()


def _column_values(path: Path, column: Any, name: str, count_before: int) -> list[Any]:
    """Returns a column of a batch as Python values. Raises ConfigurationError that names the first unreadable row.

    Args:
        name: the declared name in quotes, or the column's number where none is declared: a name may be content.
    """
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # noqa: BLE001 - whatever a conversion raises may hold the value
        values = []
    if len(values) == len(column):
        return values
    for row_number, value in enumerate(column, start=count_before + 1):
        try:
            value.as_py()
        except Exception:  # noqa: BLE001 - as above
            raise ConfigurationError(
                f"{path}: row {row_number}: the value of column {name} cannot be read",
                "write the column as text in UTF-8, or leave the row out",
                code="unreadable-value",
            ) from None
    raise ConfigurationError(
        f"{path}: the column {name} cannot be read", "write the column as text in UTF-8", code="unreadable-value"
    )
