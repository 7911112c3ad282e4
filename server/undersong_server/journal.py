"""The coordinator's journal: every value a run obtains, kept under a deterministic key before it is used.

A method is a plain function; resume runs it again and the journal answers, so nothing is spent twice. Nothing is billed
or asked twice, except requests in flight when the process died. SQLite in WAL mode: a value is on disk when ``put``
returns.
"""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.files import holding, transaction

SCHEMA_VERSION = 4  # 3 had entries for requests that failed for good, which their verdicts tell now
_LAST = chr(0x10FFFF)  # no key has it: with a prefix it bounds the prefix's keys from above, so the index finds them


def json_bytes(value: Any) -> bytes:
    """Serialises a value for :meth:`Journal.get_json`."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")


class Journal:
    """A durable map from text keys to bytes. One writer process at a time (an exclusive lock names the clash).

    Others may read it meanwhile, as a backup does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = ExitStack()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            clash = ConfigurationError(
                f"{path}: another process works in this folder", "wait for it, or stop it", code="journal-in-use"
            )
            if str(path) != ":memory:":  # such a database belongs to its connection
                self._held.enter_context(holding(path.with_suffix(".lock"), clash))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
        except sqlite3.OperationalError as error:
            raise self._failure(error) from None
        version = self.get_json("journal/version")
        if version is None:
            self.put_json("journal/version", SCHEMA_VERSION)
        elif version != SCHEMA_VERSION:
            raise ConfigurationError(
                f"{path}: journal of version {version}, this program writes {SCHEMA_VERSION}",
                "finish the run with the program that began it, or start over with --fresh",
                code="journal-version",
            )

    def get(self, key: str) -> bytes | None:
        row = self._database.execute("SELECT value FROM entry WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        """Keeps ``value``. The same value again changes nothing; another one raises InternalError."""
        self.put_all([(key, value)])

    def put_all(self, entries: Iterable[tuple[str, bytes]]) -> None:
        """Keeps several (key, value) entries in one transaction: all of them or, after an error, none."""
        self.exchange((), entries)

    def exchange(self, dropped: Iterable[str], entries: Iterable[tuple[str, bytes]], forgotten: str = "") -> None:
        """Drops keys and keeps the values of ``entries``, in one transaction.

        Args:
            dropped: the keys to drop.
            forgotten: drops every key with this prefix too; "" drops none.
        """
        try:
            with transaction(self._database):
                if forgotten:
                    bounds = forgotten, forgotten + _LAST
                    self._database.execute("DELETE FROM entry WHERE key >= ? AND key < ?", bounds)
                for key in dropped:
                    self._database.execute("DELETE FROM entry WHERE key = ?", (key,))
                # One statement for what is new, which nearly everything is.
                given = list(entries)
                if self._database.executemany("INSERT OR IGNORE INTO entry VALUES (?, ?)", given).rowcount < len(given):
                    for key, value in given:
                        if self.get(key) != value:
                            raise InternalError(
                                f"{self._path}: a second value for the journal key {key!r}", code="second-value"
                            )
        except sqlite3.OperationalError as error:
            raise self._failure(error) from None

    def get_json(self, key: str) -> Any:
        value = self.get(key)
        return None if value is None else json.loads(value)

    def put_json(self, key: str, value: Any) -> None:
        self.put(key, json_bytes(value))

    def items(self, prefix: str) -> dict[str, bytes]:
        """Every entry whose key starts with ``prefix``, by key."""
        rows = self._database.execute(
            "SELECT key, value FROM entry WHERE key >= ? AND key < ? ORDER BY key", (prefix, prefix + _LAST)
        )
        return {key: bytes(value) for key, value in rows}

    def close(self) -> None:
        self._database.close()
        self._held.close()

    def _failure(self, error: sqlite3.OperationalError) -> ConfigurationError:
        text = str(error)
        if "full" in text:
            return ConfigurationError(
                f"{self._path}: the disk is full", "free space and run the same command again", code="disk-full"
            )
        return ConfigurationError(f"{self._path}: cannot be written: {text}", "check the folder and its permissions")
