"""A coordinator's storage in a PostgreSQL database that several machines share; needs the extra ``postgres``."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.program import extras
from undersong_server.database.interface import AGAIN_S, PATIENCE_S, Away, Database, Statements

SILENT_S = 10.0  # longest wait for the server's answer, connected or not
STALLED_MS = 5000  # silence of a client within a transaction after which the server ends the transaction
FORMAT = b"1"  # version of the tables
TIMELINE = "left(pg_walfile_name(pg_current_wal_lsn()), 8)"  # SQL of a text that changes when a replica is promoted
_NAME = "undersong"  # application name of every connection; a serving process adds its epoch
_END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND starts_with(application_name, ?) AND application_name <> ?"
)


class Postgres(Database):
    """A PostgreSQL database, connected when it is first used and again whenever the connection is lost.

    A COMMIT whose answer is lost is looked up by its transaction's number before anything is written again. A server
    that was promoted since numbers its own transactions as the lost ones: of those nobody can tell.

    Args:
        target: libpq's connection string.
    """

    now = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
    share = " FOR SHARE"

    def __init__(self, target: str, epoch: int | None = None) -> None:
        super().__init__("PostgreSQL", epoch)
        with extras.named():
            extras.require("psycopg")
        self.target = target
        self._connection: Any = None
        self._in_transaction = False

    def __repr__(self) -> str:
        return "Postgres(hidden)"  # a connection string may hold a password

    @classmethod
    def create(cls, target: str, schema: str) -> None:
        """Makes the tables. Raises ConfigurationError if the database cannot be used or holds a coordinator."""
        database = cls(target)
        database._connection = database._open_connection()
        with database.writing(alone=True) as transaction:
            if transaction.execute("SELECT to_regclass('lease') AS found").fetchone()["found"]:
                raise ConfigurationError(
                    "the database holds a coordinator already", "name an empty one", code="coordinator-exists"
                )
            # This collation compares keys byte by byte, as SQLite does.
            type_names = (("TEXT", 'TEXT COLLATE "C"'), ("REAL", "DOUBLE PRECISION"), ("BLOB", "BYTEA"))
            for sqlite_type, postgres_type in type_names:
                schema = schema.replace(f" {sqlite_type}", f" {postgres_type}")
            for sql_statement in filter(str.strip, schema.split(";")):
                transaction.execute(sql_statement)
            transaction.execute("INSERT INTO entry VALUES ('format', ?)", (FORMAT,))
        database.close()

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        import psycopg

        with self._lock:
            give_up_at = time.monotonic() + (0 if self._in_transaction else STALLED_MS / 1000)
            while True:
                try:
                    return list(_Translated(self._ensure_connection()).execute(sql, values).fetchall())
                except (psycopg.OperationalError, Away) as error:
                    if self._in_transaction:
                        raise
                    self._drop_connection()
                    if time.monotonic() > give_up_at:
                        raise self._away_error(error) from None
                time.sleep(AGAIN_S)

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Statements]:
        import psycopg

        with self._lock:
            transaction = _Translated(self._ensure_connection())
            transaction_number, has_sent_commit = (), False
            try:
                transaction.execute("BEGIN")
                begin_query = f"SELECT pg_current_xact_id()::text AS number, {TIMELINE} AS timeline"
                transaction_number = tuple(transaction.execute(begin_query).fetchone().values())
                self._in_transaction = True
                if alone:
                    transaction.execute("SELECT pg_advisory_xact_lock(7443)")
                yield transaction
                # The fence comes last, so that the lease's row is locked for an instant only, however much is written.
                self.fence(transaction)
                has_sent_commit = True
                transaction.execute("COMMIT")
            except BaseException as error:
                self._in_transaction = False
                is_broken = isinstance(error, psycopg.Error) and transaction.connection.closed
                if is_broken or isinstance(error, psycopg.OperationalError):
                    self._drop_connection()
                    if not (has_sent_commit and self._is_committed(transaction_number)):
                        raise self._away_error(error) from None
                    return
                with suppress(psycopg.Error):
                    transaction.execute("ROLLBACK")
                if isinstance(error, psycopg.Error):
                    raise self._storage_error(error) from None
                raise
            finally:
                self._in_transaction = False

    def _is_committed(self, transaction_number: tuple[str, ...]) -> bool:
        """Asks what became of a transaction whose COMMIT was not answered. Raises Away if nobody can tell."""
        import psycopg

        give_up_at = time.monotonic() + PATIENCE_S
        status_query = f"SELECT CASE ? WHEN {TIMELINE} THEN pg_xact_status(CAST(CAST(? AS TEXT) AS xid8)) END AS status"
        while time.monotonic() < give_up_at:
            try:
                status = (
                    _Translated(self._ensure_connection())
                    .execute(status_query, transaction_number[::-1])
                    .fetchone()["status"]
                )
                if status is None:
                    break
                if status != "in progress":
                    return bool(status == "committed")
            except psycopg.DataError:  # This server has not reached that number yet.
                break
            except (psycopg.OperationalError, Away):
                pass
            time.sleep(AGAIN_S)
        raise Away(
            "PostgreSQL did not say whether the last change was kept",
            "see whether the change is there before you repeat it",
        )

    def end_others(self, epoch: int) -> None:
        # The server's own timeout does not count while a client is silent between the messages of one statement.
        self.rows(_END_OTHERS, (f"{_NAME} ", f"{_NAME} {epoch}"))

    def has_table(self, name: str) -> bool:
        return self.rows("SELECT to_regclass(?) IS NOT NULL AS found", (name,))[0]["found"] is True

    def mark(self) -> object:
        return object()

    def close(self) -> None:
        with self._lock:
            self._drop_connection()

    def _ensure_connection(self) -> Any:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = self._open_connection()
            try:
                format_row = self._connection.execute("SELECT value FROM entry WHERE key = 'format'").fetchone()
                if format_row is None or bytes(format_row["value"]) != FORMAT:
                    raise ConfigurationError(
                        "the database of --storage was made by another release",
                        "use the release that made it",
                        code="storage-format",
                    )
            except (psycopg.Error, ConfigurationError) as error:
                self._drop_connection()
                raise self._storage_error(error) from None
        return self._connection

    def _open_connection(self) -> Any:
        import psycopg
        from psycopg.rows import dict_row

        try:
            connection: Any = psycopg.connect(
                self.target,
                autocommit=True,
                row_factory=dict_row,
                application_name=_NAME if self.epoch is None else f"{_NAME} {self.epoch}",
                connect_timeout=3,
                keepalives_idle=2,
                keepalives_interval=1,
                keepalives_count=3,
                tcp_user_timeout=STALLED_MS,
            )
            original_wait = connection.wait
            connection.wait = lambda steps, *given, **named: original_wait(_wait_for_server(steps), *given, **named)
            connection.execute(f"SET idle_in_transaction_session_timeout = {STALLED_MS}")
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            )
        except psycopg.OperationalError as error:
            raise self._away_error(error) from None
        except psycopg.Error as error:
            raise self._storage_error(error) from None
        return connection

    def _drop_connection(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def _away_error(self, error: BaseException) -> Away:
        if isinstance(error, Away):
            return error
        return Away(
            f"PostgreSQL does not answer ({type(error).__name__})", "start the PostgreSQL server, or correct --storage"
        )

    def _storage_error(self, error: BaseException) -> UndersongError:
        import psycopg

        if isinstance(error, UndersongError):
            return error
        if isinstance(error, psycopg.OperationalError):
            return self._away_error(error)
        if isinstance(error, psycopg.errors.UndefinedTable):
            problem_words, remedy = "holds no coordinator", "make one: undersong coordinator init --storage"
        else:  # an error's words may hold values
            problem_words = f"cannot be used ({type(error).__name__})"
            remedy = "see the server's log"
        return ConfigurationError(f"the database of --storage {problem_words}", remedy, code="storage")


def _wait_for_server(steps: Any) -> Any:
    """Steps of psycopg's that wait for the server; raises OperationalError once it is silent for ``SILENT_S``.

    libpq waits for ever, and the peer's kernel acknowledges what a stopped server never reads: no timeout of TCP ends.
    """
    import psycopg

    socket_state = None
    heard_at_s = time.monotonic()
    while True:
        try:
            awaited_state = steps.send(socket_state)
        except StopIteration as stop:
            return stop.value
        if socket_state := (yield awaited_state):
            heard_at_s = time.monotonic()
        elif time.monotonic() - heard_at_s > SILENT_S:
            raise psycopg.OperationalError("the server is silent")


class _Translated:
    """A connection that takes ``?`` for values."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, sql: str, values: Any = ()) -> Any:
        return self.connection.execute(sql.replace("?", "%s"), values or None)

    def executemany(self, sql: str, values: Iterable[Any]) -> Any:
        cursor = self.connection.cursor()
        cursor.executemany(sql.replace("?", "%s"), values)
        return cursor
