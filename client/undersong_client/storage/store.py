"""The party's journal: its state between two messages, encrypted with keys that it holds, and the outbox.

SQLite in WAL mode with full synchronisation. A value is on disk when ``put`` returns, or, inside
:meth:`PartyJournal.together`, when that ends or :meth:`Store.commit` is called. So a reply that was sent can always be
sent again, byte for byte.

Secrets that must not outlive their use stand in a *compartment*: a key of its own, sealed under the store's key in a
file of its own, seals the compartment's values. Its end overwrites and removes that file and empties the database's
write-ahead log, so that neither the file nor the log nor an old page of the database can be opened again by whoever has
the store's key. What a disk keeps of files that are gone is not in a program's hands (docs/threat-model.md, "Disks").
"""

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from undersong_common.errors import ConfigurationError
from undersong_common.files import create_file, destroy_file, file_state, open_database, transaction
from undersong_common.program.machine import fault_of, named_faults

VERSION = 4
# ``sent`` is the outbox: ``head`` begins a message, and the journal's entry ``reply`` ends it ("" if ``head`` is all).
SCHEMA = (
    "CREATE TABLE entry (scope TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (scope, key)) WITHOUT ROWID",
    "CREATE TABLE sent (number INTEGER PRIMARY KEY, at REAL NOT NULL, answer_to TEXT NOT NULL, kind TEXT NOT NULL,"
    " run TEXT NOT NULL, query TEXT NOT NULL, attempt INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,"
    " times INTEGER NOT NULL, head BLOB NOT NULL, reply TEXT NOT NULL,"
    " UNIQUE (sha256, answer_to, run, query, attempt))",
    "CREATE INDEX reply ON sent (reply) WHERE reply <> ''",
)
KEY_BYTES = 32
_NONCE_BYTES = 12
_COMPARTMENT = "compartment"


class Store:
    """A durable encrypted map; one file may serve several (simulated) parties, each with its own scope and key.

    Args:
        path: the SQLite file.
        scope: name of the party whose values these are, which is authenticated with each value.
        key: 32 bytes, AES-256-GCM.
        compartment_keys: the folder of the compartments' keys. None keeps none: in a simulation, whose folder holds
            every party's keys and records, a compartment's values are sealed under the store's key and deleted.

    Raises ConfigurationError for a file that cannot be opened or that another version wrote.
    """

    def __init__(self, path: Path, scope: str, key: bytes, compartment_keys: Path | None = None) -> None:
        self._path = path
        self._scope = scope
        self._cipher = AESGCM(key)
        self._database = journal(path)
        self._compartment_keys = compartment_keys
        self._key_folder = str(compartment_keys)
        if compartment_keys is not None:
            compartment_keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep(compartment_keys)

    def get(self, key: str) -> bytes | None:
        return self._read(key, self._cipher)

    def put(self, key: str, value: bytes) -> None:
        self.put_all({key: value})

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Stores several values in one transaction, in place of earlier ones; they are on the disk on return."""
        self._write(
            sealed_rows=[
                (entry_key, self._seal(entry_key, entry_value, self._cipher))
                for entry_key, entry_value in values.items()
            ]
        )

    def commit(self) -> None:
        """Puts everything that was written onto the disk, inside :meth:`PartyJournal.together` too."""
        self._database.commit()

    # These methods begin and read compartments.

    def compartment(self, name: str) -> "Compartment | None":
        """Returns the open compartment ``name``; None if none is open.

        Raises ConfigurationError if its key was sealed under another key than this store's.
        """
        compartment_id = _hash_name(self._scope, name)
        if self._compartment_keys is None:
            if self._holds(compartment_id):
                return Compartment(self, compartment_id, self._cipher)
            return None
        try:
            with open(self._key_file(compartment_id), "rb", buffering=0) as file:
                sealed_key = file.read()
        except FileNotFoundError:
            return None
        return Compartment(
            self, compartment_id, AESGCM(self._unseal(f"{_COMPARTMENT}/{compartment_id}", sealed_key, self._cipher))
        )

    def begin_compartment(self, name: str) -> "Compartment":
        """Returns a new compartment; its fresh key is on the disk. Values of an earlier one of this name are lost."""
        compartment_id = _hash_name(self._scope, name)
        self._end_compartment(compartment_id, {}, "")
        if self._compartment_keys is None:
            return Compartment(self, compartment_id, self._cipher)
        self.commit()
        compartment_key = os.urandom(KEY_BYTES)
        create_file(
            self._key_file(compartment_id),
            self._seal(f"{_COMPARTMENT}/{compartment_id}", compartment_key, self._cipher),
        )
        return Compartment(self, compartment_id, AESGCM(compartment_key))

    def empty_log_again(self) -> None:
        """Empties the write-ahead log where a compartment's end could not, because another process read the file."""
        if self._database.log_left:
            self._database.empty_log()

    def compartments(self) -> "list[Compartment]":
        """Returns every compartment that has not ended and whose key this store opens; [] if they have no keys."""
        if self._compartment_keys is None:
            return []
        open_compartments = []
        for path in sorted(self._compartment_keys.glob("*.key")):
            with suppress(ConfigurationError):  # It is another store's key, and that store may be put back.
                secret_key = self._unseal(f"{_COMPARTMENT}/{path.stem}", path.read_bytes(), self._cipher)
                open_compartments.append(Compartment(self, path.stem, AESGCM(secret_key)))
        return open_compartments

    def _end_compartment(self, compartment_id: str, final_values: Mapping[str, bytes], deleted_prefix: str) -> None:
        sealed_entries = [
            (entry_key, self._seal(entry_key, entry_value, self._cipher))
            for entry_key, entry_value in final_values.items()
        ]
        if sealed_entries or deleted_prefix or self._holds(compartment_id):
            prefix = f"{_COMPARTMENT}/{compartment_id}/"
            self._write(
                sealed_rows=sealed_entries, deleted_prefixes=[prefix, deleted_prefix] if deleted_prefix else [prefix]
            )
        if self._compartment_keys is not None:
            self._database.after_commit(partial(self._destroy, self._key_file(compartment_id)))

    def _destroy(self, key_file: str) -> None:
        if destroy_file(key_file):
            self._database.empty_log()

    def _key_file(self, compartment_id: str) -> str:
        return f"{self._key_folder}/{compartment_id}.key"

    def _holds(self, compartment_id: str) -> bool:
        lowest_key, highest_key = _key_bounds(f"{_COMPARTMENT}/{compartment_id}/")
        return bool(
            self._database.read(
                "SELECT 1 FROM entry WHERE scope = ? AND key >= ? AND key < ? LIMIT 1",
                (self._scope, lowest_key, highest_key),
            )
        )

    def _sweep(self, folder: Path) -> None:
        """Finishes what a crash interrupted: destroys keys whose compartment holds no value, and empties the log."""
        orphan_paths = [path for path in folder.glob("*.key") if not self._holds(path.stem)]
        for path in orphan_paths:
            destroy_file(path)
        # An earlier process may have ended after it destroyed a key and before it emptied the log.
        if orphan_paths or self._database.log_left:
            self._database.empty_log()

    # These methods read and write rows.

    def _read(self, key: str, cipher: AESGCM) -> bytes | None:
        entry_rows = self._database.read("SELECT value FROM entry WHERE scope = ? AND key = ?", (self._scope, key))
        if entry_rows:
            return self._unseal(key, entry_rows[0][0], cipher)
        return None

    def _write(self, sealed_rows: Iterable[tuple[str, bytes]] = (), deleted_prefixes: Iterable[str] = ()) -> None:
        """Deletes the keys that start with one of ``deleted_prefixes`` and stores ``sealed_rows``, in one transaction.

        A reply that has left stays, because the outbox refers to it.
        """
        with self._database.writing() as connection:
            for prefix in deleted_prefixes:
                lowest_key, highest_key = _key_bounds(prefix)
                connection.execute(
                    "DELETE FROM entry WHERE scope = ? AND key >= ? AND key < ? AND key NOT IN"
                    " (SELECT reply FROM sent WHERE reply <> '' AND reply >= ? AND reply < ?)",
                    (self._scope, lowest_key, highest_key, lowest_key, highest_key),
                )
            connection.executemany(
                "INSERT OR REPLACE INTO entry VALUES (?, ?, ?)",
                [(self._scope, entry_key, sealed_value) for entry_key, sealed_value in sealed_rows],
            )

    def _seal(self, key: str, value: bytes, cipher: AESGCM) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + cipher.encrypt(nonce, value, self._associated(key))

    def _unseal(self, key: str, sealed_value: bytes, cipher: AESGCM) -> bytes:
        try:
            return cipher.decrypt(sealed_value[:_NONCE_BYTES], sealed_value[_NONCE_BYTES:], self._associated(key))
        except (InvalidTag, ValueError, TypeError):
            raise ConfigurationError(
                f"{self._path}: the entry {key!r} of {self._scope} does not open with this party's key",
                "restore the key that belongs to this file",
                code="other-key",
            ) from None

    def _associated(self, key: str) -> bytes:
        return f"{self._scope}\0{key}".encode()


class Compartment:
    """Values under a key of their own; see the module. Made by :meth:`Store.begin_compartment`."""

    def __init__(self, store: Store, compartment_id: str, cipher: AESGCM) -> None:
        self._store = store
        self._compartment_id = compartment_id
        self._cipher = cipher

    def get(self, key: str) -> bytes | None:
        return self._store._read(self._full_key(key), self._cipher)

    def put_all(self, values: Mapping[str, bytes], beside: Mapping[str, bytes] | None = None) -> None:
        """Stores ``values`` here and those of ``beside`` in the store, in one transaction, on the disk on return."""
        party_store = self._store
        placed_values = {self._full_key(entry_key): entry_value for entry_key, entry_value in values.items()}
        compartment_rows = [
            (entry_key, party_store._seal(entry_key, entry_value, self._cipher))
            for entry_key, entry_value in placed_values.items()
        ]
        store_rows = [
            (entry_key, party_store._seal(entry_key, entry_value, party_store._cipher))
            for entry_key, entry_value in (beside or {}).items()
        ]
        party_store._write(sealed_rows=[*compartment_rows, *store_rows])

    def end(self, final_values: Mapping[str, bytes], deleted_prefix: str = "") -> None:
        """Destroys key and values for good, and stores ``final_values`` in the store in the same transaction.

        Args:
            deleted_prefix: keys of the store that begin with it, and with its last slash, are deleted too; "" for none.
        """
        self._store._end_compartment(self._compartment_id, final_values, deleted_prefix)

    def _full_key(self, key: str) -> str:
        return f"{_COMPARTMENT}/{self._compartment_id}/{key}"


def _hash_name(scope: str, name: str) -> str:
    return hashlib.sha256(f"{scope}\0{name}".encode()).hexdigest()[:40]


def _key_bounds(prefix: str) -> tuple[str, str]:
    """Returns the lower and the upper bound of all keys that start with ``prefix``, which ends with a slash."""
    return prefix, prefix[:-1] + chr(ord("/") + 1)


class PartyJournal:
    """One SQLite file, with one connection per process."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        # True while the write-ahead log may hold values that were deleted.
        self.log_left = file_state(Path(f"{path}-wal"))[2] > 0
        self._path = path
        self._joining: set[int] = set()  # ids of threads whose writes are joined into one transaction
        self._is_open = False  # True while a joined transaction is open; its thread holds the lock
        self.undone = 0  # number of joined transactions that an error has rolled back
        self._queued_acts: list[Callable[[], None]] = []  # called after the commit of the joined transaction
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = open_database(path)
            self.connection.execute("PRAGMA secure_delete=ON")
            self._prepare_file()
        except (sqlite3.DatabaseError, OSError) as error:
            raise fault_of(error, path) from None

    def _prepare_file(self) -> None:
        version = self.connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return
        if version or self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entry'").fetchone():
            raise ConfigurationError(
                f"{self._path}: the journal is of version {version}, and this program reads version {VERSION} only",
                "run the version that wrote it until its runs have ended, then move the journal away",
                code="other-version",
            )
        with transaction(self.connection):
            if (
                self.connection.execute("PRAGMA user_version").fetchone()[0] != VERSION
            ):  # no other process has just made it
                for sql_statement in SCHEMA:
                    self.connection.execute(sql_statement)
                self.connection.execute(f"PRAGMA user_version = {VERSION}")

    def read(self, sql_query: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Returns the rows of an SQL query."""
        with self.lock, named_faults(self._path):
            return self.connection.execute(sql_query, parameters).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction, or takes part in this thread's transaction of :meth:`together`.

        Raises ConfigurationError if it cannot be written; then nothing of the whole transaction is kept.
        """
        with self.lock:
            try:
                if threading.get_ident() not in self._joining:
                    with transaction(self.connection):
                        yield self.connection
                    return
                if not self._is_open:
                    self.connection.execute("BEGIN IMMEDIATE")
                    self.lock.acquire()  # it is released when the transaction ends
                    self._is_open = True
                yield self.connection
            except BaseException as error:
                self._end()
                if isinstance(error, sqlite3.OperationalError):
                    raise fault_of(error, self._path) from None
                raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Joins this thread's writes into one transaction; nothing of it is kept after an error.

        The transaction begins with the first write, so that other threads write until then. Raises ConfigurationError
        if it cannot be written.
        """
        self._joining.add(threading.get_ident())
        try:
            yield
            self.commit()
        finally:
            self._joining.discard(threading.get_ident())
            self._end()

    def commit(self) -> None:
        """Commits to the disk what this thread has written within :meth:`together` so far.

        Raises MachineFault or ConfigurationError if SQLite cannot write the file.
        """
        try:
            self._end(keep=True)
        except sqlite3.OperationalError as error:
            raise fault_of(error, self._path) from None

    def after_commit(self, act: Callable[[], None]) -> None:
        """Calls ``act`` once all that was written so far is on the disk: at once, or when this transaction is kept."""
        with self.lock:
            if self._is_open:
                self._queued_acts.append(act)
            else:
                act()

    def _end(self, *, keep: bool = False) -> None:
        with self.lock:
            if not self._is_open:
                return
            queued_acts = self._queued_acts
            self._queued_acts = []
            try:
                if keep:
                    self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:  # A full disk may have ended the transaction already.
                    self.connection.execute("ROLLBACK")
                self._is_open = False
                self.undone += not keep
                self.lock.release()
            for queued_act in queued_acts if keep else ():
                queued_act()

    def empty_log(self) -> None:
        """Writes the log into the database and truncates it: older pages, deleted values among them, are gone.

        Where another process reads the file just then, the log stays, and ``log_left`` says so.
        """
        with self.lock, named_faults(self._path):
            is_busy, _, _ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.log_left = bool(is_busy)


_JOURNALS: dict[Path, PartyJournal] = {}
_JOURNALS_LOCK = threading.Lock()


def journal(path: Path) -> PartyJournal:
    """Returns the journal in this file, which is made if it is missing; one journal per file and process.

    Raises ConfigurationError if the file cannot be opened or is no journal of this version.
    """
    # One connection per file and process: a thousand simulated parties must not hold a thousand files open.
    with _JOURNALS_LOCK:
        absolute_path = path.absolute()
        if absolute_path not in _JOURNALS:
            _JOURNALS[absolute_path] = PartyJournal(absolute_path)
        return _JOURNALS[absolute_path]


def discard(path: Path, compartment_keys: Path) -> None:
    """Destroys the keys of a store's compartments and all its values; the outbox keeps the messages that have left.

    The caller sees to it that no other process answers meanwhile. A file that cannot be read is destroyed.
    """
    for key_path in compartment_keys.glob("*.key"):
        destroy_file(key_path)
    if not path.exists():
        return
    try:
        journal_file = journal(path)
        with journal_file.writing() as connection:
            connection.execute("DELETE FROM entry WHERE key NOT IN (SELECT reply FROM sent)")
        journal_file.empty_log()
    except (ConfigurationError, sqlite3.DatabaseError):
        close(path)
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            destroy_file(file)


def close(path: Path) -> None:
    """Closes the file's connection, if one is open (before the file is deleted)."""
    with _JOURNALS_LOCK:
        journal_file = _JOURNALS.pop(path.absolute(), None)
    if journal_file is not None:
        with journal_file.lock:  # SQLite crashes where a thread closes the connection that another one reads from
            journal_file.connection.close()
