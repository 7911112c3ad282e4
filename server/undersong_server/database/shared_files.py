"""The small files of runs in a database that several machines share."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_server.database.interface import Database, Statements

FILES = (
    "CREATE TABLE IF NOT EXISTS file (run TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (run, name));"
)


class SharedFiles:
    """The small files of runs, and their outputs, in the database that several machines share."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._known: dict[tuple[str, str], str] = {}

    def put(self, run: str, files: Mapping[str, bytes]) -> None:
        """Keeps or replaces files of one run, all or none."""
        kept = [(run, name, _content_digest(data), data) for name, data in files.items()]

        def write(statements: Statements) -> None:
            statements.executemany(
                "INSERT INTO file VALUES (?, ?, ?, ?) ON CONFLICT (run, name)"
                " DO UPDATE SET digest = excluded.digest, data = excluded.data",
                kept,
            )

        self.database.keep(write)

    def get(self, run: str, name: str) -> bytes | None:
        """The file as it was kept last; None if there is none."""
        rows = self.database.rows("SELECT data FROM file WHERE run = ? AND name = ?", (run, name))
        if rows:
            return bytes(rows[0]["data"])
        return None

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
            if not path.is_file() or _content_digest(path.read_bytes()) != row["digest"]:
                yield path, self.get(*place) or b""
            self._known[place] = row["digest"]


def _content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
