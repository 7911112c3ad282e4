"""The party's journal: what it must not forget between two messages, encrypted with a key that it holds.

SQLite in WAL mode with full synchronisation: a value is on disk when ``put`` returns, so a reply that was sent can
always be sent again, byte for byte.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from undersong_common.errors import ConfigurationError

_NONCE_BYTES = 12


class Store:
    """A durable encrypted map; one file may serve several (simulated) parties, each with its own scope and key.

    Args:
        path: the SQLite file.
        scope: whose values; part of what is authenticated.
        key: 32 bytes, AES-256-GCM.
    """

    def __init__(self, path: Path, scope: str, key: bytes) -> None:
        self._path = path
        self._scope = scope
        self._cipher = AESGCM(key)
        self._database = _open(path)

    def __repr__(self) -> str:
        return f"Store({self._scope!r})"

    def get(self, key: str) -> bytes | None:
        with self._database.lock:
            row = self._database.connection.execute(
                "SELECT value FROM entry WHERE scope = ? AND key = ?", (self._scope, key)
            ).fetchone()
        if row is None:
            return None
        nonce, sealed = row[0][:_NONCE_BYTES], row[0][_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, self._associated(key))
        except InvalidTag:
            raise ConfigurationError(
                f"{self._path}: the entry {key!r} of {self._scope} does not open with this party's key",
                "restore the key that belongs to this file",
            ) from None

    def put(self, key: str, value: bytes) -> None:
        self.put_all({key: value})

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Keeps several values, all or none, replacing what was there; on disk when this returns."""
        rows = [(self._scope, key, self._sealed(key, value)) for key, value in values.items()]
        self._write("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", rows)

    def forget(self, keys: Iterable[str]) -> None:
        self._write("DELETE FROM entry WHERE scope = ? AND key = ?", [(self._scope, key) for key in keys])

    def _write(self, statement: str, rows: list[tuple[str, str, bytes]] | list[tuple[str, str]]) -> None:
        with self._database.lock:
            connection = self._database.connection
            try:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.executemany(statement, rows)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                raise ConfigurationError(
                    f"{self._path}: cannot be written: {error}", "free space, check permissions, run again"
                ) from None

    def _sealed(self, key: str, value: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, value, self._associated(key))

    def _associated(self, key: str) -> bytes:
        return f"{self._scope}\0{key}".encode()


class _Database:
    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            os.close(descriptor)
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self.connection.execute("PRAGMA journal_mode=WAL")
            self.connection.execute("PRAGMA synchronous=FULL")
            self.connection.execute("PRAGMA secure_delete=ON")
            self.connection.execute(
                "CREATE TABLE IF NOT EXISTS entry"
                " (scope TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (scope, key)) WITHOUT ROWID"
            )
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigurationError(
                f"{path}: cannot be opened: {error}", "check the folder and its permissions"
            ) from None


_DATABASES: dict[Path, _Database] = {}
_DATABASES_LOCK = threading.Lock()


def _open(path: Path) -> _Database:
    # One connection a file and process: a thousand simulated parties must not hold a thousand files open.
    with _DATABASES_LOCK:
        resolved = path.absolute()
        if resolved not in _DATABASES:
            _DATABASES[resolved] = _Database(resolved)
        return _DATABASES[resolved]


def close(path: Path) -> None:
    """Closes the file's connection, if one is open (before the file is deleted)."""
    with _DATABASES_LOCK:
        database = _DATABASES.pop(path.absolute(), None)
    if database is not None:
        database.connection.close()
