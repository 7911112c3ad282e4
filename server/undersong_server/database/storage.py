"""One object for all that a coordinator keeps: in its own folder, or in a database that several machines share."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

from undersong_server.database.interface import ENTRIES, LEASE, Database
from undersong_server.database.journal import Journal
from undersong_server.database.postgres import Postgres
from undersong_server.database.shared_files import FILES, SharedFiles
from undersong_server.database.sqlite import Sqlite

_OWNER = "INSERT INTO entry VALUES ('coordinator', ?)"  # records the owner of the database by its fingerprint


class Storage:
    """Keeps a coordinator's registry, the journals of its runs and the files that another machine goes on with.

    Its callers need not know where that is, nor which process serves.

    Args:
        folder: the coordinator's folder.
        address: connection string of the database that machines share; "" for the folder alone.
        schema: SQL that makes the registry's tables, of the version ``version``.

    Attributes:
        epoch: what this process writes is refused once a later epoch has begun; None while it does not serve.
    """

    def __init__(self, folder: Path, address: str = "", schema: str = "", version: int = 0) -> None:
        self.folder = folder
        self.address = address
        self.epoch: int | None = None
        self._schema = schema
        self._version = version

    @cached_property
    def shared(self) -> Postgres | None:
        """The database that machines share; None for the folder alone."""
        if self.address:
            return Postgres(self.address)
        return None

    def create(self) -> None:
        """Makes the tables of a shared database. Raises ConfigurationError if it holds a coordinator already."""
        if self.address:
            Postgres.create(self.address, LEASE + ENTRIES + FILES + self._schema)

    def record_owner(self, fingerprint: str) -> None:
        """Writes down whose storage this is, by the fingerprint of the coordinator's authority."""
        if not self.address:
            self.registry().close()
            return
        with closing(Postgres(self.address)) as database, database.writing() as transaction:
            transaction.execute(_OWNER, (fingerprint.encode(),))

    def registry(self) -> Database:
        """Opens the tables of the registry."""
        if self.address:
            return Postgres(self.address, self.epoch)
        path = self.folder / "registry.sqlite"
        return Sqlite(path, LEASE + self._schema, version=self._version, epoch=self.epoch)

    def journal(self, path: Path, epoch: int | None = None) -> Journal:
        """Opens the journal of a run, a file in the run's folder or a part of the database.

        Raises ConfigurationError if it is in use.
        """
        if self.shared is None:
            return Journal(path, epoch=epoch)
        return Journal(Postgres(self.address, epoch or self.epoch), f"{path.parent.name}/")

    def has_journal(self, path: Path) -> bool:
        """True if that journal was begun."""
        return self.shared is not None or os.path.lexists(path)

    def put(self, run: str, files: Mapping[str, bytes]) -> None:
        """Stores files of a run in the database that machines share; does nothing for the folder alone."""
        if self._shared_files is not None:
            self._shared_files.put(run, files)

    def put_tree(self, run: Path, folder: Path) -> None:
        """Stores every file of a folder of the run as :meth:`put` does."""
        if self._shared_files is not None:
            paths = [path for path in folder.rglob("*") if path.is_file()]
            self.put(run.name, {path.relative_to(run).as_posix(): path.read_bytes() for path in paths})

    def get(self, run: str, name: str) -> bytes | None:
        """A file of a run as it was stored last in the shared database; None if it has no such file."""
        if self._shared_files is None:
            return None
        return self._shared_files.get(run, name)

    def changed(self, runs_folder: Path, *names: str) -> Iterator[tuple[Path, bytes]]:
        """Yields path and data of each file of a run that another machine has changed; statuses come last.

        Args:
            runs_folder: the folder that holds the folders of all runs.
            names: names of the files that are compared in each run; none compares all.
        """
        if self._shared_files is None:
            return iter(())
        return self._shared_files.changed(runs_folder, *names)

    @property
    def last_turn(self) -> tuple[int, str, bool]:
        """The last epoch under which a process served, that process, and True while its turn lasts."""
        with closing(self.registry()) as database:
            return database.last

    @property
    def is_served_elsewhere(self) -> bool:
        """True while a process of any machine serves from the database that machines share."""
        return self.shared is not None and self.last_turn[2]

    @cached_property
    def _shared_files(self) -> SharedFiles | None:
        if self.shared is None:
            return None
        return SharedFiles(self.shared)
