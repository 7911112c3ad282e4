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
        self._known_digests: dict[tuple[str, str], str] = {}

    def put(self, run: str, files: Mapping[str, bytes]) -> None:
        """Stores or replaces files of one run, all or none."""
        file_rows = [
            (run, file_name, _content_digest(file_bytes), file_bytes) for file_name, file_bytes in files.items()
        ]

        def write(statements: Statements) -> None:
            statements.executemany(
                "INSERT INTO file VALUES (?, ?, ?, ?) ON CONFLICT (run, name)"
                " DO UPDATE SET digest = excluded.digest, data = excluded.data",
                file_rows,
            )

        self.database.keep(write)

    def get(self, run: str, name: str) -> bytes | None:
        """The file as it was stored last; None if there is none."""
        data_rows = self.database.rows("SELECT data FROM file WHERE run = ? AND name = ?", (run, name))
        if data_rows:
            return bytes(data_rows[0]["data"])
        return None

    def changed(self, runs_folder: Path, *names: str) -> Iterator[tuple[Path, bytes]]:
        """Yields path and data of each file that differs from the one below ``runs_folder``; statuses come last.

        Args:
            names: the files of a run that are looked at; none for all.
        """
        file_rows = self.database.rows("SELECT run, name, digest FROM file")
        for file_row in sorted(file_rows, key=lambda row: (row["name"] == "status.json", row["run"], row["name"])):
            run_and_name = file_row["run"], file_row["name"]
            if (names and file_row["name"] not in names) or self._known_digests.get(run_and_name) == file_row["digest"]:
                continue
            if any(not path_part or path_part.startswith(".") for path_part in "/".join(run_and_name).split("/")):
                raise ConfigurationError(
                    f"the shared database names a file outside the runs: {'/'.join(run_and_name)!r}",
                    "find out who has written it; nothing of it was copied",
                    code="shared-name",
                )
            path = runs_folder.joinpath(*run_and_name)
            if not path.is_file() or _content_digest(path.read_bytes()) != file_row["digest"]:
                yield path, self.get(*run_and_name) or b""
            self._known_digests[run_and_name] = file_row["digest"]


def _content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
