"""Reads the declared source of a data set into one table, and names each row that was not read with the reason.

A reader knows one kind of source, yields its rows and calls ``skip(place, reason)`` for each row that it does not read.
This module holds the steps for all kinds: the hospital's own filter, dotted column names, the mapping of labels, and
the list of patients to leave out.
"""

import json
import os
import re
import shlex
import stat
import subprocess
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_client.home import VARIABLE, Declared
from undersong_client.records import fhir
from undersong_client.records.declared import Skip, Skipped, json_lines, value_at
from undersong_common import extras
from undersong_common.errors import ConfigurationError
from undersong_common.table import Table, rows_of, table_of, user_id

ANY_LABEL = "*"  # in a label map: every label that it does not name
LONGEST_EXAMPLE = 100  # characters of a masked example


@dataclass(frozen=True, repr=False)
class Exclusion:
    """The list of patients to leave out.

    Attributes:
        identifiers: the patients' identifiers.
        patients, records: numbers of these patients and of their records that the source has.
    """

    identifiers: frozenset[str]
    patients: int
    records: int


@dataclass(frozen=True)
class Reading:
    """Result of reading a source.

    Attributes:
        table: the records.
        rows: number of rows of the source, including those that were not read.
        empty: number of rows without text.
        skipped: rows that were not read, with the reason.
        exclusion: the list of patients to leave out; None without a list.
        refused: number of rows that a dry run names, at which :func:`read` would stop otherwise.
    """

    table: Table
    rows: int
    empty: int
    skipped: tuple[Skipped, ...]
    exclusion: Exclusion | None
    refused: int = 0


@extras.named()
def read(declared: Declared, *, dry: bool = False) -> Reading:
    """Reads the declared source.

    Args:
        dry: True lists each row without a label or patient id and goes on, instead of stopping at the first one.

    Raises ConfigurationError that names the faulty row and the remedy, and shows no content.
    """
    skipped: list[Skipped] = []
    rows = left_out = refused = 0

    def table(given: Iterable[dict[str, Any] | None]) -> Table:
        fields = declared.text_field, declared.label_field or None, declared.user_field or None
        return table_of(given, declared.data, *fields, columns=declared.attribute_fields, skip_empty=True)

    def kept() -> Iterator[dict[str, Any] | None]:
        nonlocal rows, left_out, refused
        found = _rows(declared, lambda where, why: skipped.append(Skipped(where, why)))
        for number, given in enumerate(found, start=1):
            row = None if given is None else _shaped(given, declared)
            rows += row is not None
            if row is not None and declared.label_field and row.get(declared.label_field) is _LEFT_OUT:
                left_out += 1
                skipped.append(Skipped(f"{declared.data}: row {number}", "the label map leaves its label out"))
                row = {**row, declared.text_field: None, declared.label_field: ""}
            elif dry and row is not None and row.keys() >= set(declared.columns):
                try:
                    table([row])
                except ConfigurationError as error:
                    refused += 1
                    why = error.problem.removeprefix(f"{declared.data}: row 1: ")
                    skipped.append(Skipped(f"{declared.data}: row {number}", why))
                    row = None
            yield row

    records = table(kept())
    empty = rows - left_out - refused - len(records)
    rows = rows - left_out - refused + len(skipped)
    exclusion = None
    if declared.exclusions:
        records, exclusion = _without(records, declared)
    return Reading(records, rows, empty, tuple(skipped), exclusion, refused)


def masked(text: str) -> str:
    """Returns the shape of a text: letters become x or X, digits 0, and unusual characters a question mark.

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

    return "".join(map(shape, text[:LONGEST_EXAMPLE])) + ("..." if len(text) > LONGEST_EXAMPLE else "")


_LEFT_OUT = object()


def _rows(declared: Declared, skip: Skip) -> Iterator[dict[str, Any] | None]:
    path = declared.path
    if declared.database and path.suffix != ".sql":
        raise ConfigurationError(
            f"{declared.data}: --database needs a query", "write the query to a file that ends in .sql", code="no-query"
        )
    if path.suffix == ".sql":
        rows: Iterator[dict[str, Any] | None] = iter(select(path, declared.database))
    elif path.is_dir() or (set(path.suffixes) & {".ndjson", ".jsonl"} and _is_fhir(path)):
        rows = fhir.rows(declared, skip)
    else:
        rows = rows_of(path, declared.encoding)
    return filtered(declared, filter(None, rows)) if declared.row_filter else rows


def _is_fhir(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        first = json.loads(next(json_lines(path), (0, b"null"))[1])
    except (ValueError, RecursionError):
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
        label = declared.label_map.get(name, declared.label_map.get(ANY_LABEL) if name else None)
        if label is not None:
            shaped[declared.label_field] = label or _LEFT_OUT
    return shaped


def _without(table: Table, declared: Declared) -> tuple[Table, Exclusion]:
    if table.users is None:
        raise ConfigurationError(
            "an exclusion list needs the column of patient ids", "name it: --user-field", code="no-user-field"
        )
    identifiers = _identifiers(declared)
    kept = [row for row, user in enumerate(table.users) if user not in identifiers]
    excluded = identifiers.intersection(table.users)
    return table.take(kept), Exclusion(identifiers, len(excluded), len(table) - len(kept))


def _identifiers(declared: Declared) -> frozenset[str]:
    path = Path(declared.exclusions)
    if path.suffix == ".sql":
        found = [str(next(iter(row.values()))) for row in select(path, declared.database)]
    else:
        try:
            found = path.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ConfigurationError(
                f"{path}: the exclusion list cannot be read",
                "one identifier a line, in UTF-8; nothing is sealed without it",
                code="no-exclusions",
            ) from None
    return frozenset(map(user_id, found)) - {""}


# A hospital's own filter as a source: every row in as a line of JSON, the rows that count out.


def filtered(declared: Declared, given: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Passes rows through the hospital's filter command, as lines of JSON, and yields the rows that it writes.

    The command is started without a shell. Its standard error is not shown, because it may hold a record. Raises
    ConfigurationError if the command cannot be started, fails, or writes anything but one JSON object per line.
    """
    command = shlex.split(declared.row_filter)
    lines = b"".join(json.dumps(row, default=str).encode("utf-8") + b"\n" for row in given)
    try:
        done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - the hospital's own command
    except (OSError, IndexError) as error:
        said = getattr(error, "strerror", None) or "it names no program"
        raise ConfigurationError(f"the filter cannot be started: {said}", "check --filter", code="filter") from None
    if done.returncode:
        raise ConfigurationError(
            f"the filter ended with code {done.returncode}", "run it by hand with one row", code="filter"
        )
    for number, line in enumerate(done.stdout.splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ConfigurationError(
                f"the filter's line {number} is not a JSON object", "one object a line, in UTF-8", code="filter"
            )
        yield row


# A database as a source, through SQLAlchemy: one query, read only and streamed.

ROWS_AT_ONCE = 1000
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# Statements that make the transaction read only, by the dialect; PostgreSQL has an option of SQLAlchemy's for it.
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
}


def select(query: Path, database: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a database query, in a transaction that is read only and rolled back.

    Args:
        query: file with one SELECT statement.
        database: file that holds the database's URL, or ``env:NAME`` of a variable that holds it.

    Raises ConfigurationError if the query fails; it holds neither the URL nor the database's message.
    """
    statement = _statement(query)
    import sqlalchemy

    url = _url(query, database)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)
    except ImportError as error:
        raise ConfigurationError(
            f"{query}: the database's driver {error.name!r} is not installed",
            "the extra sql brings PostgreSQL's (postgresql+psycopg://); install any other one beside undersong",
            code="no-package",
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, ValueError):
        raise ConfigurationError(
            f"{query}: the database's URL cannot be read",
            "write it as, for example, postgresql+psycopg://reader@host/omop",
            code="database-url",
        ) from None
    try:
        with engine.connect() as opened:
            dialect = engine.dialect.name
            options = {"postgresql_readonly": True} if dialect == "postgresql" else {}
            connection = opened.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
            if dialect in _READ_ONLY:
                connection.exec_driver_sql(_READ_ONLY[dialect])
            for row in connection.execute(sqlalchemy.text(statement)).mappings():
                yield dict(row)
            connection.rollback()
    except sqlalchemy.exc.SQLAlchemyError as error:
        # `from None`: the database's words may hold a value of the query
        raise ConfigurationError(
            f"{query}: the database refused the query or the connection ({type(error).__name__})",
            "run the query with the database's own program, with the same account",
            code="database",
        ) from None


def _statement(query: Path) -> str:
    try:
        text = query.read_text("utf-8").strip().rstrip(";")
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(f"{query}: cannot be read", "one SELECT, in UTF-8", code="no-query") from None
    bare = _COMMENTS.sub(" ", text).lstrip("( \n\t").upper()
    if not bare.startswith(("SELECT", "WITH")):
        raise ConfigurationError(f"{query}: is no SELECT", "write one query that reads", code="no-query")
    return text.replace(":", r"\:")  # SQLAlchemy would read it as the name of a parameter


def _url(query: Path, database: str) -> str:
    if database.startswith(VARIABLE):
        url = os.environ.get(database.removeprefix(VARIABLE), "")
    else:
        path = Path(database)
        try:
            loose = bool(database) and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
            url = path.read_text("utf-8").strip() if database else ""
        except (OSError, UnicodeDecodeError):
            url, loose = "", False
        if loose:
            raise ConfigurationError(
                f"{path}: others may read the database's URL", f"chmod 600 {path}", code="database-url"
            )
    if not url:
        raise ConfigurationError(
            f"{query}: no URL of the database",
            "name a file that holds it, or env:NAME of a variable: --database",
            code="database-url",
        )
    return url
