"""What left while earlier versions kept it in an SQLite database, which is read and never written."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from undersong_common.errors import ConfigurationError

_COLUMNS = "number, at, answer_to, kind, run, query, attempt, bytes, sha256, times"


def entries(path: Path) -> list[tuple[Any, ...]]:
    """The values of an entry each, oldest first. Raises ConfigurationError where the file is damaged."""
    with _database(path) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sent'").fetchone():
            return []  # stopped before it held anything
        return database.execute(f"SELECT {_COLUMNS} FROM sent ORDER BY number").fetchall()  # noqa: S608 - a constant


def data(path: Path, number: int) -> bytes | None:
    """The message itself; None for a number that is not there. Raises ConfigurationError where it is damaged."""
    with _database(path) as database:
        row = database.execute("SELECT data FROM sent WHERE number = ?", (number,)).fetchone()
        return None if row is None else zlib.decompress(row[0])


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    log = Path(f"{path}-wal")
    # A log that a crash left belongs to it. Without one, SQLite would make an empty one and leave it behind.
    how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, timeout=30.0)) as database:
            yield database
    except (sqlite3.DatabaseError, zlib.error) as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error}", "restore it from a copy, or move it away and keep it: nothing needs it"
        ) from None
