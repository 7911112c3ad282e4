"""Files of a page: people, sessions and finished actions in SQLite, with secrets as hashes only, and the audit log."""

import hashlib
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError
from undersong_common.files import open_database, replace_file, transaction
from undersong_common.program.chain import HashChain
from undersong_common.program.machine import fault_of

PAGE_FILE = "page.sqlite"
ACTION_KEPT_S = 24 * 3600.0  # time for which the result of an action is kept for a second sending of its form
PATIENCE_S = 5.0  # longest wait of a repeated form for the first one, which goes on after that
LONGEST_KEY = 64  # characters of a form's key
RUNNING = "action-running"  # error code that says that the same action is under way; it is no failure
STILL_RUNNING = "wait for it: the screen shows the result, and nothing is done twice"
DOWNLOAD_S = 15 * 60.0  # time for which a file waits for its owner
MOST_DOWNLOADS = 100

_SCHEMA = """
CREATE TABLE IF NOT EXISTS account (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, password TEXT NOT NULL DEFAULT '', created_at REAL NOT NULL,
    person TEXT NOT NULL DEFAULT '', let_in_by TEXT NOT NULL DEFAULT '', let_in_at REAL NOT NULL DEFAULT 0,
    let_in_boot TEXT NOT NULL DEFAULT '', let_in_up REAL NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS link (
    secret TEXT PRIMARY KEY, account TEXT NOT NULL, expires_at REAL NOT NULL, made_by TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS session (
    secret TEXT PRIMARY KEY, number INTEGER NOT NULL, account TEXT NOT NULL, csrf TEXT NOT NULL,
    created_at REAL NOT NULL,
    seen_at REAL NOT NULL, address TEXT NOT NULL, message TEXT NOT NULL DEFAULT '',
    log_in TEXT NOT NULL DEFAULT '', issuer TEXT NOT NULL DEFAULT '', subject TEXT NOT NULL DEFAULT '',
    grade TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS token (
    secret TEXT PRIMARY KEY, account TEXT NOT NULL, label TEXT NOT NULL, created_at REAL NOT NULL,
    expires_at REAL NOT NULL, used_at REAL
);
CREATE TABLE IF NOT EXISTS failure (source TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS action (key TEXT PRIMARY KEY, at REAL NOT NULL, location TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS offer (name TEXT PRIMARY KEY, made_at REAL NOT NULL, fetched_at REAL);
CREATE TABLE IF NOT EXISTS duty (account TEXT PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS act (
    actor TEXT NOT NULL, at REAL NOT NULL, boot TEXT NOT NULL DEFAULT '', up REAL NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
# Columns that files of earlier versions lack, with their declarations.
_ADDED = {
    "account": {
        "person": "TEXT NOT NULL DEFAULT ''",
        "let_in_by": "TEXT NOT NULL DEFAULT ''",
        "let_in_at": "REAL NOT NULL DEFAULT 0",
        "let_in_boot": "TEXT NOT NULL DEFAULT ''",
        "let_in_up": "REAL NOT NULL DEFAULT 0",
    },
    "act": {"boot": "TEXT NOT NULL DEFAULT ''", "up": "REAL NOT NULL DEFAULT 0"},
    "link": {"made_by": "TEXT NOT NULL DEFAULT ''"},
    "session": dict.fromkeys(("log_in", "issuer", "subject", "grade"), "TEXT NOT NULL DEFAULT ''"),
}


Grade = Literal["done", "news", "warn", "bad"]  # kind of a box: success, plain news, warning or failure


@dataclass(frozen=True)
class Message:
    """A message that a session's next page shows once."""

    words: str
    grade: Grade = "done"


class StillRunning(ConfigurationError):
    """An action that was sent twice, whose first sending is still being carried out. Nothing is wrong with it."""


@dataclass(frozen=True)
class Offer:
    """A file that was made for somebody to fetch once; ``fetched_at`` is None until then. Seconds since the epoch."""

    made_at: float
    fetched_at: float | None


class PageStore:
    """The SQLite file of a page; several processes and threads may use it at once.

    Raises ConfigurationError if the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.RLock()
        self._running_keys: set[str] = set()  # keys of the actions that this process carries out now
        path = self._path = folder / PAGE_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = open_database(path, synchronous="NORMAL", timeout_s=10.0)
            self._database.row_factory = sqlite3.Row
            self._database.executescript(_SCHEMA)
            if self._missing_columns():
                with transaction(self._database):  # another process may have added them since
                    for table_name, column in self._missing_columns():
                        self._database.execute(
                            f"ALTER TABLE {table_name} ADD COLUMN {column} {_ADDED[table_name][column]}"
                        )
        except (sqlite3.Error, OSError) as error:
            raise fault_of(error, path) from None

    def _missing_columns(self) -> list[tuple[str, str]]:
        """Returns (table, column) of each column of this version that the file lacks."""
        missing_columns = []
        for table_name, declarations in _ADDED.items():
            columns = {row["name"] for row in self._database.execute(f"PRAGMA table_info({table_name})")}
            missing_columns += [(table_name, column) for column in declarations if column not in columns]
        return missing_columns

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Runs the block in one transaction; an error in the block rolls it back.

        Raises ConfigurationError if the file cannot be written.
        """
        with self._lock:
            try:
                with transaction(self._database):
                    yield self._database
            except sqlite3.OperationalError as error:
                raise fault_of(error, self._path) from None

    def rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        """Executes one statement in a transaction of its own; returns its rows."""
        with self.transaction() as database:
            return database.execute(query, values).fetchall()

    def once(self, key: str, act: Callable[[], str], *, of: str) -> str:
        """Calls ``act`` at the first call with a key and returns its result; later calls return the same result.

        A call that comes while the first still runs waits for it a few seconds. If ``act`` raises, the key is free
        again.

        Args:
            of: session and address of the action; keys count for one of these only.

        Raises StillRunning if the first call runs for longer, ConfigurationError for a missing key, and what ``act``
        raises.
        """
        if not key or len(key) > LONGEST_KEY:
            raise ConfigurationError(
                f"the form has no key, or one of more than {LONGEST_KEY} characters",
                "open the page again, and send its form",
                code="no-key",
            )
        key = digest(f"{of}\n{key}")
        now_s = time.time()
        with self.transaction() as database:
            database.execute("DELETE FROM action WHERE at < ?", (now_s - ACTION_KEPT_S,))
            is_first = database.execute("INSERT OR IGNORE INTO action (key, at) VALUES (?, ?)", (key, now_s)).rowcount
        if not is_first:
            return self._first_location(key)
        self._running_keys.add(key)
        try:
            act_location = act()
        except BaseException:
            self.rows("DELETE FROM action WHERE key = ?", key)
            raise
        finally:
            self._running_keys.discard(key)
        self.rows("UPDATE action SET location = ? WHERE key = ?", act_location, key)
        return act_location

    def note_offer(self, name: str) -> None:
        """Notes that a file was made for somebody to fetch, in place of an earlier one of this name."""
        self.rows(
            "INSERT INTO offer (name, made_at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET"
            " made_at = excluded.made_at, fetched_at = NULL",
            *(name, time.time()),
        )

    def note_fetched(self, name: str) -> None:
        """Notes that the file of this name was fetched."""
        self.rows("UPDATE offer SET fetched_at = ? WHERE name = ?", time.time(), name)

    def offers(self) -> dict[str, Offer]:
        """Returns every file that was made to be fetched, by its name."""
        return {row["name"]: Offer(row["made_at"], row["fetched_at"]) for row in self.rows("SELECT * FROM offer")}

    def _first_location(self, action_key: str) -> str:
        """Returns the address that the first request with this key led to."""
        give_up_at_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at_s and (
            location_rows := self.rows("SELECT location FROM action WHERE key = ?", action_key)
        ):
            if location_rows[0]["location"]:
                return str(location_rows[0]["location"])
            time.sleep(0.05)
        if action_key in self._running_keys:
            raise StillRunning("this was sent before, and is still under way", STILL_RUNNING, code=RUNNING)
        problem = "the same action was sent before and has not succeeded"
        raise ConfigurationError(problem, "look at the page, then try again", code="action-failed")


class WorkUnderWay:
    """Long actions that this program carries out now, by their subject: none is begun twice. Threads may share it."""

    def __init__(self) -> None:
        self._begin_times: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def only(self, subject: str) -> Iterator[None]:
        """Marks the subject as under way within the block. Raises StillRunning if it already is."""
        with self._lock:
            if subject in self._begin_times:
                since_words = time.strftime("%H:%M:%S", time.gmtime(self._begin_times[subject]))
                raise StillRunning(f"{subject} has been under way since {since_words} UTC", STILL_RUNNING, code=RUNNING)
            self._begin_times[subject] = time.time()
        try:
            yield
        finally:
            with self._lock:
                del self._begin_times[subject]

    def since(self, subject: str) -> float | None:
        """Returns when the subject was begun, seconds since the epoch; None if it is not under way."""
        return self._begin_times.get(subject)


@dataclass(frozen=True)
class Download:
    """A file that an action has made for the account ``owner`` to fetch once, before the time ``until``."""

    owner: str
    name: str
    data: bytes = field(repr=False)
    until: float


class Downloads:
    """Keeps files in memory, for a short time, until their owners fetch them. Threads may share an object."""

    def __init__(self) -> None:
        self._files: dict[str, Download] = {}
        self._lock = threading.Lock()

    def keep(self, owner: str, name: str, data: bytes) -> str:
        """Keeps a file; returns the key under which its owner fetches it once."""
        download_key = new_key()
        now_s = time.monotonic()
        with self._lock:
            live_files = [(file_key, file) for file_key, file in self._files.items() if file.until > now_s]
            self._files = {
                **dict(live_files[-MOST_DOWNLOADS + 1 :]),
                download_key: Download(owner, name, data, now_s + DOWNLOAD_S),
            }
        return download_key

    def waits(self, key: str, owner: str) -> bool:
        """Returns True if ``owner`` can still fetch the file with this key."""
        file = self._files.get(key)
        return file is not None and file.owner == owner and file.until > time.monotonic()

    def key_of(self, name: str, owner: str) -> str:
        """Returns the key of the file of this name that ``owner`` can still fetch; "" if there is none."""
        return next((key for key, file in [*self._files.items()] if file.name == name and self.waits(key, owner)), "")

    def take(self, key: str, owner: str) -> Download:
        """Returns and forgets a file. Raises ConfigurationError if it was fetched, has expired or has another owner."""
        with self._lock:
            if not self.waits(key, owner):
                problem = "this file was fetched already, or has been forgotten"
                raise ConfigurationError(problem, "make it again", code="download-gone")
            return self._files.pop(key)


def new_key() -> str:
    return secrets.token_urlsafe(16)


def digest(secret: str) -> str:
    """Returns the hash (hex) under which a secret of 256 random bits is stored."""
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()


FILE_NAME = "audit.jsonl"  # The file stands in the folder of a page.
TAG = "undersong audit"
LONGEST = 1_000  # characters of an entry's subject


@dataclass(frozen=True)
class AuditEntry:
    """One line of the audit log: an action of a person.

    Attributes:
        entry: number of the line, from 1.
        at: time, seconds since the epoch.
        who: name of the account, or "terminal".
        what: the action, such as "run start".
        about: name of what the action concerned, such as a run.
        previous, hash: SHA-256 (hex) of the entry before this one, and of this one.
    """

    entry: int
    at: float
    who: str
    what: str
    about: str
    previous: str
    hash: str


class AuditLog:
    """The audit log, a hash-chained file to which several processes append.

    Logs that came back from a backup stand beside it, in a file of whole chains.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._restored_path = path.with_name(f"restored-{path.name}")
        self._chain = HashChain(path, TAG)
        self._lock = threading.Lock()

    def note(self, who: str, what: str, about: str = "") -> None:
        """Appends an entry and flushes it to the disk. The arguments must hold no secret."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock, self._chain.locked():
            self._chain.append(at=time.time(), who=who, what=what, about=about[:LONGEST])

    def entries(self) -> list[AuditEntry]:
        """Reads all entries, oldest first. Raises PrivacyRefusal that names the first line whose hash is wrong."""
        entry_by_hash = {entry["hash"]: entry for chain in self._saved_chains(self.saved()) for entry in chain}
        return [AuditEntry(**entry) for entry in entry_by_hash.values()]

    def saved(self) -> bytes:
        """Returns the log as one file of whole chains, those that came back from a backup first."""
        return _file_bytes(self._restored_path) + _file_bytes(self.path)

    def bring_back(self, saved: bytes) -> int:
        """Adds the chains of a saved log that this log lacks; returns the number of entries that were added.

        Raises PrivacyRefusal as :meth:`entries`, for the saved log too.
        """
        local_hashes = {entry["hash"] for chain in self._saved_chains(_file_bytes(self.path)) for entry in chain}
        restored_chains = {chain[0]["hash"]: chain for chain in self._saved_chains(_file_bytes(self._restored_path))}
        added_entries = 0
        for chain in self._saved_chains(saved):
            first_hash = chain[0]["hash"]
            last_hash = chain[-1]["hash"]
            known_length = len(restored_chains.get(first_hash, ()))
            if last_hash not in local_hashes and len(chain) > known_length:
                restored_chains[first_hash] = chain
                added_entries += len(chain) - known_length
        if added_entries:
            chain_lines = [canonical_json(entry) + b"\n" for chain in restored_chains.values() for entry in chain]
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._restored_path, b"".join(chain_lines))
        return added_entries

    def _saved_chains(self, saved: bytes) -> list[list[dict[str, Any]]]:
        """Returns the chains of a file, each checked, without an incomplete last line, which a crash leaves."""
        saved_chains = []
        for chain_bytes in re.split(rb"(?m)^(?=\{[^\n]*\"previous\":\"0{64}\")", saved):
            chain = HashChain(self.path, TAG)
            chain.take(chain_bytes)
            if chain.entries:
                saved_chains.append(chain.entries)
        return saved_chains


def _file_bytes(path: Path) -> bytes:
    if path.exists():
        return path.read_bytes()
    return b""
