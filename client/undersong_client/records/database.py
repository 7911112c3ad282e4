"""Reads a database as a source, through SQLAlchemy: one query, read only and streamed."""

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from undersong_client.home import VARIABLE
from undersong_common.errors import ConfigurationError
from undersong_common.text.row_files import DottedColumns, Row, check_names, read_text

ROWS_AT_ONCE = 1000  # rows that the driver fetches from the database at a time
# The end of a statement: semicolons and the comments behind them.
_END = re.compile(r";(?:\s|;|--[^\n']*(?:\n|\Z)|/\*(?:(?!\*/)[^'])*\*/)*\Z")
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# Statements that make a transaction read only, by SQLAlchemy's name of the dialect. For PostgreSQL, SQLAlchemy has an
# option instead.
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
}


def select(query_file: Path, url_source: str, columns: Collection[str] = ()) -> Iterator[Row]:
    """Yields the rows of a database query, in a transaction that is read only and rolled back.

    Args:
        query_file: file with one SELECT statement.
        url_source: file that holds the database's URL, or ``env:NAME`` of a variable that holds it.
        columns: names of the columns that are used; none of them may stand twice.

    Raises ConfigurationError if the query fails or a value cannot be read; it holds neither the URL nor the database's
    message.
    """
    sql_statement = _statement(query_file)
    import sqlalchemy

    sql_engine = _engine(query_file, url_source)
    row_number = 0
    try:
        with _connection(sql_engine) as connection:
            sql_result = _execute(connection, sql_statement)
            column_names = [str(column_name) for column_name in sql_result.keys()]  # noqa: SIM118 - a result is no mapping
            check_names(column_names, columns, str(query_file))
            dotted_columns = DottedColumns(columns)
            for row_values in sql_result:
                row_number += 1
                yield dotted_columns.read(
                    Row(f"{query_file}: row {row_number}", dict(zip(column_names, row_values, strict=True)))
                )
            connection.rollback()
            return
    except ConfigurationError:
        raise
    except sqlalchemy.exc.SQLAlchemyError as error:
        problem = f"{query_file}: the database refused the query or the connection ({type(error).__name__})"
    except (ValueError, OverflowError, ArithmeticError, LookupError):
        # A driver raises these where a value of the database has no counterpart in Python.
        problem = f"{query_file}: a value cannot be read"
    # The error is raised outside the handler, because the exception of the database, which may hold a value, would be
    # its context.
    column = _unreadable_column(sql_engine, sql_statement)
    if column is not None:
        raise ConfigurationError(
            f"{query_file}: row {row_number + 1} or one near it: a value of the column {column!r} cannot be read",
            "turn it into text that can be read, for example by a cast or a conversion of its encoding in the query",
            code="unreadable-value",
        )
    raise ConfigurationError(
        problem, "run the query with the database's own program, with the same account", code="database"
    )


def _engine(query_file: Path, url_source: str) -> Any:
    """Returns SQLAlchemy's engine, which has opened no connection yet.

    Raises ConfigurationError if the URL cannot be used, or names an SQLite file that is missing.
    """
    import sqlalchemy

    url = _url(query_file, url_source)
    try:
        sql_engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)
    except ImportError as error:
        raise ConfigurationError(
            f"{query_file}: the database's driver {error.name!r} is not installed",
            "the extra sql brings PostgreSQL's (postgresql+psycopg://); install any other one beside undersong",
            code="no-package",
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, ValueError):
        raise ConfigurationError(
            f"{query_file}: the database's URL cannot be read",
            "write it as, for example, postgresql+psycopg://reader@host/omop",
            code="database-url",
        ) from None
    if sql_engine.dialect.name == "sqlite":
        _check_sqlite_file(query_file, sql_engine.url.database)
    return sql_engine


@contextmanager
def _connection(engine: Any) -> Iterator[Any]:
    """Opens a connection, and ignores errors when it is closed.

    If a caller stops before the last row, the garbage collector closes the connection, perhaps in another thread.
    """
    import sqlalchemy

    connection = engine.connect()
    try:
        yield connection
    finally:
        with suppress(sqlalchemy.exc.SQLAlchemyError):  # SQLite closes only in the thread that has opened
            connection.close()


def _execute(connection: Any, statement: str) -> Any:
    """Starts the query, read only and streamed."""
    import sqlalchemy

    dialect_name = connection.engine.dialect.name
    options = {"postgresql_readonly": True} if dialect_name == "postgresql" else {}
    streamed_connection = connection.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
    if dialect_name in _READ_ONLY:
        streamed_connection.exec_driver_sql(_READ_ONLY[dialect_name])
    return streamed_connection.execute(sqlalchemy.text(statement))


def _unreadable_column(engine: Any, statement: str) -> str | None:
    """Returns the first column of a query with a value that cannot be read; None if the query fails otherwise.

    A driver does not say which column it could not read, so this function queries each column by itself.
    """
    import sqlalchemy

    def fails(sql_query: str) -> bool:
        try:
            with engine.connect() as connection:
                for _ in _execute(connection, sql_query):
                    pass
        except (sqlalchemy.exc.SQLAlchemyError, ValueError, OverflowError, ArithmeticError, LookupError):
            return True
        return False

    try:
        with engine.connect() as connection:
            column_names = list(_execute(connection, f"SELECT * FROM ({statement}\n) q WHERE 1 = 0").keys())  # noqa: S608
    except (sqlalchemy.exc.SQLAlchemyError, ValueError, OverflowError, ArithmeticError, LookupError):
        return None
    quote_identifier = engine.dialect.identifier_preparer.quote
    # If every column fails, the connection or the query is at fault, and not a column.
    unreadable_columns = []
    for column_name in column_names:
        column_query = f"SELECT {quote_identifier(column_name)} FROM ({statement}\n) q"  # noqa: S608
        if fails(column_query):
            unreadable_columns.append(column_name)
    is_every_column = len(unreadable_columns) == len(column_names) > 1
    if is_every_column or not unreadable_columns:
        return None
    return str(unreadable_columns[0])


def _check_sqlite_file(query_file: Path, url_database: str | None) -> None:
    """Raises ConfigurationError for an SQLite file that is missing: SQLite would make an empty one there."""
    database_name = url_database or ""
    if database_name.startswith("file:"):
        if "mode=memory" in database_name:
            database_name = ""
        else:
            database_name = database_name.removeprefix("file:").partition("?")[0]
    if database_name not in ("", ":memory:") and not Path(database_name).is_file():
        raise ConfigurationError(
            f"{query_file}: the SQLite file that the database's URL names does not exist",
            "check the URL: sqlite:/// and the path, with a fourth / for an absolute one",
            code="database",
        )


def _statement(query_file: Path) -> str:
    query_text = _END.sub("", read_text(query_file).strip())
    bare_query = _COMMENTS.sub(" ", query_text).lstrip("( \n\t").upper()
    if not bare_query.startswith(("SELECT", "WITH")):
        raise ConfigurationError(
            f"{query_file}: its statement is no SELECT", "write one query that only reads", code="no-query"
        )
    return query_text.replace(":", r"\:")  # SQLAlchemy would read it as the name of a parameter


def _url(query_file: Path, url_source: str) -> str:
    if url_source.startswith(VARIABLE):
        url = os.environ.get(url_source.removeprefix(VARIABLE), "")
    else:
        path = Path(url_source)
        try:
            is_readable_by_others = bool(url_source) and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
        except OSError:
            is_readable_by_others = False
        url = ""
        if url_source and path.is_file():
            url = read_text(path).strip()
        if is_readable_by_others:
            raise ConfigurationError(
                f"{path}: other accounts may read this file, which holds the database's URL",
                f"chmod 600 {path}",
                code="database-url",
            )
    if not url:
        raise ConfigurationError(
            f"{query_file}: the URL of its database is not stated",
            "name a file that holds it, or env:NAME of a variable: --database",
            code="database-url",
        )
    return url
