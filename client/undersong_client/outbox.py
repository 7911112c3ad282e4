"""The exact bytes that left the building, in order, kept before they are sent; readable by people and programs."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_client.state import FILE_MODE
from undersong_common.errors import ConfigurationError
from undersong_common.files import FileIdentity, file_identity

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS sent (number INTEGER PRIMARY KEY, at REAL, answer_to TEXT, kind TEXT, run TEXT,"
    " query TEXT, attempt INTEGER, bytes INTEGER, sha256 TEXT, times INTEGER, data BLOB)"
)
_COLUMNS = "number, at, answer_to, kind, run, query, attempt, bytes, sha256, times"


@dataclass(frozen=True)
class Entry:
    """One message that left.

    Attributes:
        number: counts from 1.
        at: seconds since the epoch, of the first time.
        answer_to: what the coordinator asked for.
        kind: what left.
        run, query, attempt: what it belongs to; empty and -1 where it belongs to no sum.
        bytes: its length.
        sha256: of the message, hex.
        times: how often it was made ready to be sent (again after a reconnect, always the same bytes).
    """

    number: int
    at: float
    answer_to: str
    kind: str
    run: str
    query: str
    attempt: int
    bytes: int
    sha256: str
    times: int


class Outbox:
    """The journal of what left. Raises ConfigurationError where its file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = f"{path}-wal"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._abandoned: list[sqlite3.Connection] = []
        self._wal: FileIdentity | None = None
        try:
            # Only where there is none: closing any descriptor of the file would drop the locks that another outbox of
            # this process holds on it, and a third party could then take the log away under its feet.
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, FILE_MODE))
            with self._database() as database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute(_SCHEMA)
                database.execute("CREATE INDEX IF NOT EXISTS by_sha256 ON sent (sha256)")
        except (sqlite3.DatabaseError, OSError) as error:
            raise ConfigurationError(f"{path}: cannot be used: {error}", "free space, check permissions") from None

    def __repr__(self) -> str:
        return f"Outbox({str(self._path)!r})"

    def record(
        self,
        data: bytes,
        *,
        at: float,
        kind: str,
        answer_to: str = "",
        run: str = "",
        query: str = "",
        attempt: int = -1,
    ) -> None:
        """Keeps a message, on the disk when this returns. The same message for the same purpose is counted, not kept
        twice."""
        digest = hashlib.sha256(data).hexdigest()
        same = (digest, answer_to, run, query, attempt)
        try:
            with self._database() as database:
                changed = database.execute(
                    "UPDATE sent SET times = times + 1"
                    " WHERE sha256 = ? AND answer_to = ? AND run = ? AND query = ? AND attempt = ?",
                    same,
                ).rowcount
                if not changed:
                    database.execute(
                        "INSERT INTO sent (at, answer_to, kind, run, query, attempt, bytes, sha256, times, data)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
                        (at, answer_to, kind, run, query, attempt, len(data), digest, _packed(kind, data)),
                    )
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be written: {error}", "make room; nothing was sent"
            ) from None

    def entries(self, *, run: str | None = None, last: int | None = None) -> list[Entry]:
        """Oldest first; of one run, or the last ones only."""
        query = f"SELECT {_COLUMNS} FROM sent"  # noqa: S608 - a constant
        values: tuple[Any, ...] = ()
        if run is not None:
            query, values = f"{query} WHERE run = ?", (run,)
        query += " ORDER BY number DESC"
        if last is not None:
            query, values = f"{query} LIMIT ?", (*values, last)
        with self._database() as database:
            return [Entry(*row) for row in database.execute(query, values)][::-1]

    def data(self, number: int) -> bytes:
        """The message itself. Raises ConfigurationError for a number that is not there."""
        with self._database() as database:
            row = database.execute("SELECT data FROM sent WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise ConfigurationError(f"the outbox has no entry {number}", "see `undersong-party outbox`")
        return zlib.decompress(row[0])

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        # One connection for good: opening and closing it for each reply cost more than the reply. It is made anew
        # where somebody has replaced the files under it, for what it wrote then would be lost.
        with self._lock:
            if self._connection is not None and self._written_to() != self._wal:
                # Never closed: closing would write its pages over whatever lies there now.
                self._abandoned.append(self._connection)
                self._connection = None
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=30.0, check_same_thread=False)
                self._connection.execute("PRAGMA synchronous=FULL")
                self._wal = None
            with self._connection:
                yield self._connection
            if self._wal is None:
                self._wal = self._written_to()

    def _written_to(self) -> FileIdentity | None:
        try:
            return file_identity(os.stat(self._log))
        except FileNotFoundError:
            return None


def _packed(kind: str, data: bytes) -> bytes:
    # In zlib's format in any case. No time is lost on a private sum's replies, keys, sealed shares and masked vectors,
    # which do not shrink: nothing looks back, so the window is the smallest there is.
    if kind != "sum_reply":
        return zlib.compress(data, 1)
    stored = zlib.compressobj(0, zlib.DEFLATED, 9, 1)
    return stored.compress(data) + stored.flush()


def decode(kind: str, data: bytes) -> dict[str, Any]:
    """A message as names and values; bytes as hex, long ones as their length and hash."""
    from google.protobuf.message import DecodeError

    from undersong_protocol.messages import federation_pb2, secagg_pb2

    if kind in ("hello", "renewal"):
        return {"text": data.decode("utf-8", "replace")}
    try:
        reply = federation_pb2.Reply.FromString(data)
        shown = _shown(reply)
        if reply.WhichOneof("body") == "sum_reply":
            shown["sum_reply"] = _shown(secagg_pb2.Reply.FromString(reply.sum_reply.payload))
    except DecodeError:
        raise ConfigurationError("the entry cannot be decoded", "read it with the version that sent it") from None
    return shown


def _shown(message: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            result[field.name] = {str(key): _value(field, item) for key, item in value.items()}
        elif hasattr(value, "ListFields"):
            result[field.name] = _shown(value)
        elif not isinstance(value, (bytes, str)) and hasattr(value, "__len__"):
            result[field.name] = [
                _shown(item) if hasattr(item, "ListFields") else _value(field, item) for item in value
            ]
        else:
            result[field.name] = _value(field, value)
    return result


def _value(field: Any, value: Any) -> Any:
    if hasattr(value, "ListFields"):
        return _shown(value)
    if isinstance(value, bytes):
        if value[:1] == b"{":
            return value.decode("utf-8", "replace")
        if len(value) > 64:
            return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
        return value.hex()
    return value
