"""A database in one SQLite file on the coordinator's own disk."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import WRITE_AGAIN_S, is_busy, open_database, transaction
from undersong_common.program.machine import fault_of, named_faults
from undersong_server.database.interface import AHEAD_S, FOR_GOOD, LEASE, Database, Statements

WRITE_S = 10.0  # longest wait for another process to end its transaction


class Sqlite(Database):
    """One SQLite file in WAL mode; what is written is on the disk.

    Args:
        schema: SQL that makes missing tables.
        version: of the schema, which another program's file may not have; 0 for a file without.
        alone: True if no other process writes the file.
    """

    now = "((julianday('now') - 2440587.5) * 86400.0)"
    remote = False

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
                f"{path}: is a registry of version {stored_version}, but this program writes {version}",
                "use the release of Undersong that made this folder",
                code="registry-version",
            )
        if epoch is not None:
            with self.writing() as transaction:  # This database refuses an earlier holder from now on.
                take_lease = "UPDATE lease SET epoch = ?, until = ? WHERE epoch < ? OR epoch > ?"
                transaction.execute(take_lease, (epoch, FOR_GOOD, epoch, epoch + AHEAD_S))

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        with self._lock, named_faults(self.place):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    # No two transactions of a SQLite file ever write at once.
    def writing(self, *, alone: bool = False) -> Iterator[Statements]:
        try:
            with ExitStack() as open_contexts:
                self._begin_transaction(open_contexts)
                yield self._connection
                self.fence(self._connection)
        except sqlite3.OperationalError as error:
            raise fault_of(error, self.place) from None

    def _begin_transaction(self, stack: ExitStack) -> None:
        """Begins a transaction; waits without the lock while another process writes, so that other threads can read."""
        give_up_at = time.monotonic() + WRITE_S
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
                if not is_busy(error) or time.monotonic() > give_up_at:
                    raise
            finally:
                self._connection.execute(f"PRAGMA busy_timeout={round(WRITE_S * 1000)}")
            stack.close()
            time.sleep(WRITE_AGAIN_S)

    def has_table(self, name: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))

    def mark(self) -> object:
        return self.rows("PRAGMA data_version")[0][0], self._connection.total_changes

    def close(self) -> None:
        with self._lock:  # SQLite crashes where a thread closes the connection that another one reads from
            self._connection.close()
