"""Databases of a coordinator: SQLite files on its own disk, or one PostgreSQL database of many machines.

Both speak the same SQL here. Who serves holds the *lease* under an *epoch*, which rises with every holder. Each write
of the holder checks its epoch in the write's own transaction (a fence): of a holder that was stopped, replaced and
woken again, nothing is kept. In SQLite a lock file decides who serves, and each file notes its last holder's epoch.
"""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from undersong_common.errors import ConfigurationError, TransportError, UndersongError

log = logging.getLogger(__name__)

LEASE_S = 4.0  # a holder that has not renewed its lease for so long may be replaced
LONGEST_LEASE_S = 60.0  # A lease that ends later dates from before the clock was set back, and does not count.
AHEAD_S = 86400.0  # largest time by which an epoch may lie ahead of this machine's clock
PATIENCE_S = 20.0  # longest time for which a write is repeated while the database cannot be reached
AGAIN_S = 0.1  # pause before a statement is repeated
LEASE = (
    "CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, epoch BIGINT NOT NULL, until REAL NOT NULL,"
    " holder TEXT NOT NULL);"
    "INSERT INTO lease VALUES (1, 0, 0, '') ON CONFLICT DO NOTHING;"
)
ENTRIES = "CREATE TABLE IF NOT EXISTS entry (key TEXT PRIMARY KEY, value BLOB NOT NULL);"
_HELD = "SELECT epoch, until > :now AS held FROM lease WHERE id = 1"
# No epoch follows one that was taken while the clock was ahead: parties refuse an epoch so far ahead.
_TAKE = (
    "UPDATE lease SET epoch = CASE WHEN epoch + 1 >= :now AND epoch + 1 <= :now + ? THEN epoch + 1"
    " ELSE CAST(:now AS BIGINT) END,"
    " until = :now + ?, holder = ? WHERE id = 1 AND (until <= :now OR until > :now + ? OR ? = 1)"
)
_RENEW = "UPDATE lease SET until = :now + ? WHERE id = 1 AND epoch = ?"
FOR_GOOD = 1e18  # seconds of a lease that only a lock file ends

Kept = TypeVar("Kept")


class Superseded(UndersongError):
    """Another process serves the coordinator now: this one stores and sends nothing any more.

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
        place: name of the database in errors.
        epoch: writes are refused once a later epoch has begun; None for a process that holds no lease.
    """

    now: str  # the database's clock in SQL, seconds since the epoch of Unix
    share = ""  # end of a SELECT statement whose row must not change until the transaction has ended
    remote = True  # False for a file, whose lease ends with its lock and not after a time

    def __init__(self, place: str, epoch: int | None = None) -> None:
        self.place = place
        self.epoch = epoch
        self._lock = threading.RLock()

    @abstractmethod
    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        """Reads rows, whose values are found by column."""

    @abstractmethod
    def writing(self, *, alone: bool = False) -> AbstractContextManager[Statements]:
        """Runs the block in one transaction, which is on the disk when the block ends; an error undoes all of it.

        Args:
            alone: True for a transaction that decides by what it reads; no other such transaction runs meanwhile.

        Raises:
            Superseded: another process serves this coordinator now.
            Away: the database cannot be reached.
            ConfigurationError: the database refuses the transaction.
        """

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """True if the database has a table of that name."""

    @abstractmethod
    def mark(self) -> object:
        """Returns a value that differs after any write."""

    @abstractmethod
    def close(self) -> None: ...

    def keep(self, write: Callable[[Statements], Kept]) -> Kept:
        """Runs ``write`` in one transaction; repeats it while the database is away. Raises as :meth:`writing` does."""
        give_up_at = math.inf
        while True:
            try:
                with self.writing() as transaction:
                    return write(transaction)
            except Away:  # Time counts from the first failure: the process may have been stopped for long before that.
                give_up_at = min(give_up_at, time.monotonic() + PATIENCE_S)
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(AGAIN_S)

    def fence(self, statements: Statements) -> None:
        """Raises Superseded if another epoch has the lease, and Away if the lease of this epoch has run out."""
        if self.epoch is None:
            return
        lease_row = statements.execute(self._with_time(_HELD) + self.share).fetchone()
        if lease_row is None or lease_row["epoch"] != self.epoch:
            raise Superseded(self.epoch)
        if not lease_row["held"]:
            raise Away(f"{self.place}: the lease has run out", "it is renewed as soon as the database answers")

    def take(self, holder: str, lease_s: float = LEASE_S) -> int | None:
        """Takes the lease where it is free; returns its new epoch, None while another process holds it.

        An epoch is the database's time where that is larger than the last one plus one, so that a coordinator that was
        restored from a backup has a higher one than its parties have heard. Raises ConfigurationError, and takes
        nothing, where that would shut out all later holders.
        """
        parameters = (AHEAD_S, lease_s if self.remote else FOR_GOOD, holder, LONGEST_LEASE_S, int(not self.remote))
        with self.writing() as transaction:
            epoch_before = int(transaction.execute("SELECT epoch FROM lease WHERE id = 1").fetchone()["epoch"])
            update_cursor = transaction.execute(self._with_time(_TAKE), parameters)
            if not update_cursor.rowcount:
                return None
            epoch = int(transaction.execute("SELECT epoch FROM lease WHERE id = 1").fetchone()["epoch"])
            if epoch < epoch_before:
                log.warning("the last epoch, %d, lies more than a day ahead and is not gone on from", epoch_before)
            if epoch > time.time() + AHEAD_S:
                raise ConfigurationError(
                    f"the database's epoch, {epoch}, would be more than a day ahead of this machine's clock",
                    "correct the clock that is wrong: this machine's, or the database's",
                    code="epoch-ahead",
                )
            return epoch

    def renew(self, epoch: int, lease_s: float = LEASE_S) -> bool:
        """Holds the lease for ``lease_s`` from now on, 0 gives it back; False if another process has taken it."""
        with self.writing() as transaction:
            return bool(transaction.execute(self._with_time(_RENEW), (lease_s, epoch)).rowcount)

    def _with_time(self, sql: str) -> str:
        return sql.replace(":now", self.now)

    def end_others(self, epoch: int) -> None:
        """Ends what processes with earlier epochs have left open; in a file a dead process leaves nothing."""
        return None

    @property
    def last(self) -> tuple[int, str, bool]:
        """The last epoch, who took the lease under it, and True if that lease has not run out."""
        lease_row = self.rows(self._with_time("SELECT epoch, holder, until > :now AS held FROM lease WHERE id = 1"))[0]
        return int(lease_row["epoch"]), str(lease_row["holder"]), bool(lease_row["held"])
