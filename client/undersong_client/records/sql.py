"""A database as a source, through SQLAlchemy: one query, read only and streamed."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from undersong_client.records.declared import VARIABLE
from undersong_common.errors import ConfigurationError

ROWS_AT_ONCE = 1000
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
# Statements that make the transaction read only, by the dialect; PostgreSQL has an option of SQLAlchemy's for it.
_READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
}


def select(query: Path, database: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a query, one after the other, in a transaction that is read only and rolled back.

    Args:
        query: file with one SELECT.
        database: file that holds the URL, or ``env:NAME``.

    Raises ConfigurationError; neither the URL nor anything that the database says is in it.
    """
    statement = _statement(query)
    try:
        import sqlalchemy
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise ConfigurationError(
            f"{query}: databases need the package SQLAlchemy", "install undersong with the extra sql", code="no-package"
        ) from None
    url = _url(query, database)
    try:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)
    except ImportError as error:
        raise ConfigurationError(
            f"{query}: the database's driver {error.name!r} is not installed",
            "the extra sql brings PostgreSQL's (postgresql+psycopg://); install any other one beside undersong",
            code="no-package",
        ) from None
    except (SQLAlchemyError, ValueError):
        raise ConfigurationError(
            f"{query}: the database's URL cannot be read",
            "write it as, for example, postgresql+psycopg://reader@host/omop",
            code="database-url",
        ) from None
    try:
        with engine.connect() as opened:
            dialect = engine.dialect.name
            options = {"postgresql_readonly": True} if dialect == "postgresql" else {}
            connection = opened.execution_options(stream_results=True, yield_per=ROWS_AT_ONCE, **options)
            if dialect in _READ_ONLY:
                connection.exec_driver_sql(_READ_ONLY[dialect])
            for row in connection.execute(sqlalchemy.text(statement)).mappings():
                yield dict(row)
            connection.rollback()
    except SQLAlchemyError as error:
        # `from None`: the database's words may hold a value of the query
        raise ConfigurationError(
            f"{query}: the database refused the query or the connection ({type(error).__name__})",
            "run the query with the database's own program, with the same account",
            code="database",
        ) from None


def _statement(query: Path) -> str:
    try:
        text = query.read_text("utf-8").strip().rstrip(";")
    except (OSError, UnicodeDecodeError):
        raise ConfigurationError(f"{query}: cannot be read", "one SELECT, in UTF-8", code="no-query") from None
    bare = _COMMENTS.sub(" ", text).lstrip("( \n\t").upper()
    if not bare.startswith(("SELECT", "WITH")):
        raise ConfigurationError(f"{query}: is no SELECT", "write one query that reads", code="no-query")
    return text.replace(":", r"\:")  # SQLAlchemy would read it as the name of a parameter


def _url(query: Path, database: str) -> str:
    if database.startswith(VARIABLE):
        url = os.environ.get(database.removeprefix(VARIABLE), "")
    else:
        path = Path(database)
        try:
            loose = bool(database) and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
            url = path.read_text("utf-8").strip() if database else ""
        except (OSError, UnicodeDecodeError):
            url, loose = "", False
        if loose:
            raise ConfigurationError(
                f"{path}: others may read the database's URL", f"chmod 600 {path}", code="database-url"
            )
    if not url:
        raise ConfigurationError(
            f"{query}: no URL of the database",
            "name a file that holds it, or env:NAME of a variable: --database",
            code="database-url",
        )
    return url
