"""The coordinator's journal: every value a run obtains, kept under a deterministic key before it is used.

A method is a plain function; resume runs it again and the journal answers, so nothing is spent twice. Nothing is billed
or asked twice, except requests in flight when the process died. SQLite in WAL mode: a value is on disk when ``put``
returns. A coordinator whose machines share a PostgreSQL database keeps it there instead (postgres.py).
"""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.files import holding
from undersong_server.database.interface import ENTRIES, Database, Statements
from undersong_server.database.sqlite import Sqlite

SCHEMA_VERSION = 4  # 3 had entries for requests that failed for good, which their verdicts tell now
_LAST = chr(0x10FFFF)  # no key has it: with a prefix it bounds the prefix's keys from above, so the index finds them


def json_bytes(value: Any) -> bytes:
    """Serialises a value for :meth:`Journal.get_json`."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")


class Journal:
    """A durable map from text keys to bytes. One process writes at a time: a lock file refuses a second one.

    Others may read it meanwhile, as a backup does.

    Args:
        place: the SQLite file, or the database that holds the journals of many runs.
        prefix: begins every key of this journal in such a database.
        epoch: writes are refused once a process with a later epoch has opened the journal; None where no other can.
    """

    def __init__(self, place: Path | Database, prefix: str = "", *, epoch: int | None = None) -> None:
        self._path = place.place if isinstance(place, Database) else place
        self._prefix = prefix
        self._held = ExitStack()
        if isinstance(place, Path):
            in_use_error = ConfigurationError(
                f"{place}: another process works in this folder", "wait for it, or stop it", code="journal-in-use"
            )
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                if str(place) != ":memory:":  # No other process can open a database in memory.
                    self._held.enter_context(holding(place.with_suffix(".lock"), in_use_error))
                place = Sqlite(place, ENTRIES, epoch=epoch, alone=True)
            except BaseException:
                self._held.close()
                raise
        self._database = place
        version = self.get_json("journal/version")
        if version is None:
            self.put_json("journal/version", SCHEMA_VERSION)
        elif version != SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self._path}: is a journal of version {version}, but this program writes {SCHEMA_VERSION}",
                "finish the run with the program that began it, or start over with --fresh",
                code="journal-version",
            )

    def get(self, key: str) -> bytes | None:
        entry_rows = self._database.rows("SELECT value FROM entry WHERE key = ?", (self._prefix + key,))
        if entry_rows:
            return bytes(entry_rows[0]["value"])
        return None

    def put(self, key: str, value: bytes) -> None:
        """Stores ``value`` under ``key``. The same value again changes nothing; another value raises InternalError."""
        self.put_all([(key, value)])

    def put_all(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Stores several (key, value) entries in one transaction: all of them or, after an error, none."""
        self.exchange((), entries)

    def exchange(self, dropped: Iterable[str], entries: Iterable[tuple[str, bytes]], forgotten: str = "") -> None:
        """Drops keys and stores the values of ``entries``, in one transaction.

        Args:
            dropped: the keys to drop.
            forgotten: drops every key with this prefix too; "" drops none.
        """
        dropped_keys = [(self._prefix + entry_key,) for entry_key in dropped]
        entry_rows = [(self._prefix + key, entry_value) for key, entry_value in entries]
        forgotten_prefix = self._prefix + forgotten

        def write(database: Statements) -> None:
            if forgotten:
                database.execute(
                    "DELETE FROM entry WHERE key >= ? AND key < ?", (forgotten_prefix, forgotten_prefix + _LAST)
                )
            if dropped_keys:
                database.executemany("DELETE FROM entry WHERE key = ?", dropped_keys)
            # Nearly every entry is new, so one statement inserts all of them.
            insert_entry = "INSERT INTO entry VALUES (?, ?) ON CONFLICT DO NOTHING"
            if entry_rows and database.executemany(insert_entry, entry_rows).rowcount < len(entry_rows):
                for entry_key, entry_value in entry_rows:
                    if (
                        bytes(self._database.rows("SELECT value FROM entry WHERE key = ?", (entry_key,))[0]["value"])
                        != entry_value
                    ):
                        self._database.fence(database)  # It raises Superseded for a process that was replaced.
                        entry_key = entry_key.removeprefix(self._prefix)
                        raise InternalError(
                            f"{self._path}: a second value for the journal key {entry_key!r}", code="second-value"
                        )

        self._database.keep(write)

    def get_json(self, key: str) -> Any:
        stored_json = self.get(key)
        if stored_json is None:
            return None
        return json.loads(stored_json)

    def put_json(self, key: str, value: Any) -> None:
        self.put(key, json_bytes(value))

    def items(self, prefix: str) -> dict[str, bytes]:
        """Every entry whose key starts with ``prefix``, by key."""
        full_prefix = self._prefix + prefix
        entry_rows = self._database.rows(
            "SELECT key, value FROM entry WHERE key >= ? AND key < ? ORDER BY key", (full_prefix, full_prefix + _LAST)
        )
        return {entry_row["key"].removeprefix(self._prefix): bytes(entry_row["value"]) for entry_row in entry_rows}

    def close(self) -> None:
        self._database.close()
        self._held.close()
