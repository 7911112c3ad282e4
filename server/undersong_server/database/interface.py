"""Storage of a coordinator: SQLite files on its own disk, or one PostgreSQL database that machines share.

Both speak the same SQL here. Who serves holds the *lease* under an *epoch*, which rises with every holder. Each write
of the holder checks its epoch in the write's own transaction (a fence): of a holder that was stopped, replaced and
woken again, nothing is kept. In SQLite a lock file decides who serves, and each file notes its last holder's epoch.
"""

import hashlib
import logging
import math
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from undersong_common.errors import ConfigurationError, TransportError, UndersongError
from undersong_common.files import open_database, transaction
from undersong_common.program.machine import fault_of, named_faults

log = logging.getLogger(__name__)

WRITE_S = 10.0  # longest wait for another process to end its transaction
WRITE_AGAIN_S = 0.02  # pause between two attempts to write
LEASE_S = 4.0  # a holder that has not renewed its lease for so long may be replaced
RENEW_S = 1.0
LONGEST_LEASE_S = 60.0  # one that ends later was given before the database's clock was set back, and holds nobody off
AHEAD_S = 86400.0  # a larger epoch, by this machine's clock, is taken by nobody
LOST_S = 15.0  # a holder that reaches no database for so long ends, so that its parties find the one that does
PATIENCE_S = 20.0  # longest time in which a write is tried again while the database is away
AGAIN_S = 0.1
LEASE = (
    "CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, until REAL NOT NULL,"
    " holder TEXT NOT NULL);"
    "INSERT INTO lease VALUES (1, 0, 0, '') ON CONFLICT DO NOTHING;"
)
ENTRIES = "CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value BLOB NOT NULL);"
FILES = (
    "CREATE TABLE IF NOT EXISTS file (run TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (run, name));"
)
_HELD = "SELECT epoch, until > :now AS held FROM lease WHERE id = 1"
# An epoch that was taken while the clock was ahead is not gone on from: parties hear none so far ahead.
_TAKE = (
    "UPDATE lease SET epoch = CASE WHEN epoch + 1 >= :now AND epoch + 1 <= :now + ? THEN epoch + 1"
    " ELSE CAST(:now AS BIGINT) END,"
    " until = :now + ?, holder = ? WHERE id = 1 AND (until <= :now OR until > :now + ? OR ? = 1)"
)
_RENEW = "UPDATE lease SET until = :now + ? WHERE id = 1 AND epoch = ?"
_FOR_GOOD = 1e18  # seconds of a lease that only a lock file ends

Kept = TypeVar("Kept")


class Superseded(UndersongError):
    """Another process serves the coordinator now: this one keeps and sends nothing any more.

    Its service manager starts it again, to stand by: there is nothing that a person must correct.
    """

    exit_code = 75

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"another process has taken over this coordinator, which was served here under epoch {epoch}",
            "nothing is lost; to stand by again: undersong coordinator serve --standby",
            code="superseded",
        )


class Away(TransportError):
    """The database does not answer, or the lease has run out and is not renewed yet."""


class Statements(Protocol):
    """The statements of one transaction, with ``?`` for values."""

    def execute(self, sql: str, values: Any = (), /) -> Any: ...

    def executemany(self, sql: str, values: Any, /) -> Any: ...


class Database(ABC):
    """SQL tables of one place; safe between threads.

    Args:
        place: names it in errors.
        epoch: every write is kept only while this epoch is the last one; None for who holds no lease.
    """

    now: str  # the database's clock in SQL, seconds since the epoch of Unix
    share = ""  # ends a SELECT whose row must stay as it is until the transaction has ended
    leased = True  # False where a lock file, and no time, ends a lease

    def __init__(self, place: str, epoch: int | None = None) -> None:
        self.place = place
        self.epoch = epoch
        self._lock = threading.RLock()

    @abstractmethod
    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        """Reads rows, whose values are found by column."""

    @abstractmethod
    def writing(self, *, alone: bool = False) -> AbstractContextManager[Statements]:
        """One transaction, all or none, on the disk on return. Raises Superseded, Away or ConfigurationError.

        Args:
            alone: True for one that decides by what it reads: no other such one runs meanwhile.
        """

    @abstractmethod
    def mark(self) -> object:
        """A value that is another one after any write."""

    @abstractmethod
    def close(self) -> None: ...

    def keep(self, write: Callable[[Statements], Kept]) -> Kept:
        """Runs ``write`` in one transaction, again while the database is away. Raises as :meth:`writing` does."""
        until = math.inf
        while True:
            try:
                with self.writing() as statements:
                    return write(statements)
            except Away:  # its first time may be long after the start: this process may have been stopped
                until = min(until, time.monotonic() + PATIENCE_S)
                if time.monotonic() > until:
                    raise
                time.sleep(AGAIN_S)

    def fence(self, statements: Statements) -> None:
        """Raises Superseded, or Away where only the time has run out, unless the lease is this epoch's."""
        if self.epoch is None:
            return
        row = statements.execute(self._timed(_HELD) + self.share).fetchone()
        if row is None or row["epoch"] != self.epoch:
            raise Superseded(self.epoch)
        if not row["held"]:
            raise Away(f"{self.place}: the lease has run out", "it is renewed as soon as the database answers")

    def take(self, holder: str, lease_s: float = LEASE_S) -> int | None:
        """Takes the lease where it is free; returns its new epoch, None while another process holds it.

        An epoch is the database's time where that is larger than the last one plus one, so that a coordinator that was
        restored from a backup has a higher one than its parties have heard. Raises ConfigurationError, and takes
        nothing, where that would shut out all later holders.
        """
        given = (AHEAD_S, lease_s if self.leased else _FOR_GOOD, holder, LONGEST_LEASE_S, int(not self.leased))
        with self.writing() as statements:
            before = int(statements.execute("SELECT epoch FROM lease WHERE id = 1").fetchone()["epoch"])
            taken = statements.execute(self._timed(_TAKE), given)
            if not taken.rowcount:
                return None
            epoch = int(statements.execute("SELECT epoch FROM lease WHERE id = 1").fetchone()["epoch"])
            if epoch < before:
                log.warning("the last epoch, %d, lies more than a day ahead and is not gone on from", before)
            if epoch > time.time() + AHEAD_S:
                raise ConfigurationError(
                    f"the database's epoch, {epoch}, would be more than a day ahead of this machine's clock",
                    "correct the clock that is wrong: this machine's, or the database's",
                    code="epoch-ahead",
                )
            return epoch

    def renew(self, epoch: int, lease_s: float = LEASE_S) -> bool:
        """Holds the lease for ``lease_s`` from now on, 0 gives it back; False if another process has taken it."""
        with self.writing() as statements:
            return bool(statements.execute(self._timed(_RENEW), (lease_s, epoch)).rowcount)

    def _timed(self, sql: str) -> str:
        return sql.replace(":now", self.now)

    def end_others(self, epoch: int) -> None:
        """Ends what processes with earlier epochs have left open; in a file a dead process leaves nothing."""
        return None

    @property
    def last(self) -> tuple[int, str, bool]:
        """The last epoch, who took the lease under it, and True if that lease has not run out."""
        found = self.rows(self._timed("SELECT epoch, holder, until > :now AS held FROM lease WHERE id = 1"))[0]
        return int(found["epoch"]), str(found["holder"]), bool(found["held"])


class Sqlite(Database):
    """One SQLite file in WAL mode; what is written is on the disk.

    Args:
        schema: SQL that makes missing tables.
        version: of the schema, which another program's file may not have; 0 for a file without.
        alone: True if no other process writes the file.
    """

    now = "((julianday('now') - 2440587.5) * 86400.0)"
    leased = False

    def __init__(
        self, path: Path, schema: str, *, version: int = 0, epoch: int | None = None, alone: bool = False
    ) -> None:
        super().__init__(str(path), epoch)
        self._alone = alone
        try:
            self._connection = open_database(path, timeout_s=WRITE_S)
            self._connection.row_factory = sqlite3.Row
            stored_version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if stored_version in (0, version):  # another release's file stays as it is, without tables of this one
                self._connection.executescript(schema if epoch is None else LEASE + schema)
            if version and not stored_version:
                self._connection.execute(f"PRAGMA user_version={version}")
        except (sqlite3.Error, OSError) as error:
            raise fault_of(error, path) from None
        if stored_version not in (0, version):
            self._connection.close()
            raise ConfigurationError(
                f"{path}: registry of version {stored_version}, this program writes {version}",
                "use the release of Undersong that made this folder",
                code="registry-version",
            )
        if epoch is not None:
            with self.writing() as statements:  # This database refuses an earlier holder from now on.
                taken = "UPDATE lease SET epoch = ?, until = ? WHERE epoch < ? OR epoch > ?"
                statements.execute(taken, (epoch, _FOR_GOOD, epoch, epoch + AHEAD_S))

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        with self._lock, named_faults(self.place):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Statements]:  # no two ever run
        try:
            with ExitStack() as stack:
                self._begin(stack)
                yield self._connection
                self.fence(self._connection)
        except sqlite3.OperationalError as error:
            raise fault_of(error, self.place) from None

    def _begin(self, stack: ExitStack) -> None:
        """Begins a transaction; this process's other threads can read while another process writes."""
        until = time.monotonic() + WRITE_S
        while True:
            stack.enter_context(self._lock)
            if self._alone:
                stack.enter_context(transaction(self._connection))
                return
            try:
                self._connection.execute("PRAGMA busy_timeout=0")
                stack.enter_context(transaction(self._connection))
                return
            except sqlite3.OperationalError as error:
                # The lowest byte: it is also busy while another process repairs what a third one left (BUSY_RECOVERY).
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            finally:
                self._connection.execute(f"PRAGMA busy_timeout={round(WRITE_S * 1000)}")
            stack.close()
            time.sleep(WRITE_AGAIN_S)

    def mark(self) -> object:
        return self.rows("PRAGMA data_version")[0][0], self._connection.total_changes

    def close(self) -> None:
        with self._lock:  # SQLite crashes where a thread closes the connection that another one reads from
            self._connection.close()


class Lease:
    """Renews the lease of a serving process, in a thread.

    Args:
        lost: called once, from the thread, when another process has the lease or the database stays away.
    """

    def __init__(self, database: Database, epoch: int, lost: Callable[[], None]) -> None:
        self._database = database
        self.epoch = epoch
        self._lost = lost
        self._stopping = threading.Event()
        self.lost_by: UndersongError | None = None
        self._thread = threading.Thread(target=self._work, name="lease", daemon=True)
        if database.leased:
            self._thread.start()

    def _work(self) -> None:
        renewed = time.monotonic()
        while not self._stopping.wait(RENEW_S):
            begun = time.monotonic()
            try:
                if self._database.renew(self.epoch):
                    renewed = begun
                    continue
                self.lost_by = Superseded(self.epoch)
            except UndersongError as error:
                log.warning("the lease was not renewed: %s", error.problem)
                if time.monotonic() - renewed < LOST_S:
                    continue
                self.lost_by = error
            self._lost()
            return

    def end(self) -> None:
        """Gives the lease back, so that another process need not wait."""
        self._stopping.set()
        if self._database.leased:
            self._thread.join(WRITE_S)
            for _ in range(2):  # the first may learn only that its connection had ended
                with suppress(UndersongError):
                    self._database.renew(self.epoch, 0.0)
                    break
        self._database.close()


class SharedFiles:
    """The small files of runs, and their outputs, in the database that several machines share."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._known: dict[tuple[str, str], str] = {}

    def put(self, run: str, files: Mapping[str, bytes]) -> None:
        """Keeps or replaces files of one run, all or none."""
        kept = [(run, name, _digest(data), data) for name, data in files.items()]

        def write(statements: Statements) -> None:
            statements.executemany(
                "INSERT INTO file VALUES (?, ?, ?, ?) ON CONFLICT (run, name)"
                " DO UPDATE SET digest = excluded.digest, data = excluded.data",
                kept,
            )

        self.database.keep(write)

    def get(self, run: str, name: str) -> bytes | None:
        """The file as it was kept last; None if there is none."""
        found = self.database.rows("SELECT data FROM file WHERE run = ? AND name = ?", (run, name))
        return bytes(found[0]["data"]) if found else None

    def changed(self, folder: Path, *names: str) -> Iterator[tuple[Path, bytes]]:
        """Yields path and data of each file that differs from the one below ``folder``; statuses come last.

        Args:
            names: the files of a run that are looked at; none for all.
        """
        rows = self.database.rows("SELECT run, name, digest FROM file")
        for row in sorted(rows, key=lambda row: (row["name"] == "status.json", row["run"], row["name"])):
            place = row["run"], row["name"]
            if (names and row["name"] not in names) or self._known.get(place) == row["digest"]:
                continue
            if any(not part or part.startswith(".") for part in "/".join(place).split("/")):
                raise ConfigurationError(
                    f"the shared database names a file outside the runs: {'/'.join(place)!r}",
                    "find out who has written it; nothing of it was copied",
                    code="shared-name",
                )
            path = folder.joinpath(*place)
            if not path.is_file() or _digest(path.read_bytes()) != row["digest"]:
                yield path, self.get(*place) or b""
            self._known[place] = row["digest"]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
