"""One file that holds a whole coordinator, made while it is served, and its way back into an empty folder."""

import json
import os
import re
import sqlite3
import tempfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.files import sync_folder
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.runs.folder import ENDED, RunFolder

VERSION = 1
_NOTE = "undersong-backup.json"
_DATABASE = b"SQLite format 3\0"
# Files that the serving process or SQLite makes anew.
_MADE_ANEW = re.compile(r"\..*|.*\.lock|serving\.json|.*-(wal|shm)")


@dataclass(frozen=True)
class Backup:
    """A backup that was read back and checked.

    Attributes:
        made_at: seconds since the epoch.
        fingerprint: the coordinator's, which the hospitals have compared.
        runs: state of each run, by name.
        paused: runs that were under way, and wait for the operator in the restored folder.
    """

    file: Path
    coordinator: str
    fingerprint: str
    made_at: float
    runs: Mapping[str, str]
    paused: tuple[str, ...]


def back_up(home: Path, file: Path) -> Backup:
    """Writes the coordinator's whole folder into one file (mode 0600), and reads that back as a check.

    Each database is copied in one transaction, so that a serving process need not stop.

    Raises ConfigurationError where ``file`` exists, or what was written does not pass :func:`check`.
    """
    opened = CoordinatorHome(home)
    if file.exists():
        raise ConfigurationError(f"{file}: exists already", "name another file", code="backup-exists")
    file.parent.mkdir(parents=True, exist_ok=True)
    if opened.settings.storage:
        raise ConfigurationError(
            f"{home}: its registry, journals and runs are in PostgreSQL, not in this folder",
            "back the database up by its own tools (pg_dump), and keep a copy of authority/ and coordinator.json",
            code="backup-elsewhere",
        )
    opened.registry().close()  # another version's is refused by name
    note = {"format": VERSION, "made_at": time.time(), "fingerprint": opened.authority().fingerprint}
    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as folder:
        made = Path(folder) / "backup"
        with zipfile.ZipFile(made, "x", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_NOTE, json.dumps(note))
            # A run's status first: what it says is finished is then copied whole.
            for path in sorted(home.rglob("*"), key=lambda each: (each.name != "status.json", each)):
                if path.is_file() and not _MADE_ANEW.fullmatch(path.name):
                    _add(archive, path, path.relative_to(home), Path(folder) / "database")
        os.chmod(made, 0o600)
        found = check(made)
        with made.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(made, file)
    sync_folder(file.parent)
    return replace(found, file=file)


def check(file: Path) -> Backup:
    """Reads a whole backup and opens its keys, registry and runs. Raises ConfigurationError if one is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        return _unpack(file, Path(folder))


def restore(file: Path, home: Path) -> Backup:
    """Makes the coordinator anew from a backup, in a folder that is empty or missing.

    A run that was under way is paused: parties may have answered more of it than the backup holds.

    Raises ConfigurationError where ``home`` holds anything, or the backup is damaged.
    """
    if home.exists() and any(home.iterdir()):
        raise ConfigurationError(
            f"{home}: is not empty, and a coordinator is never replaced", "name another --home", code="home-not-empty"
        )
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}.", dir=home.parent) as folder:
        unpacked = Path(folder) / "home"
        unpacked.mkdir(mode=0o700)
        found = _unpack(file, unpacked)
        for run in found.paused:
            RunFolder(unpacked / "runs" / run).request("pause")
        os.replace(unpacked, home)
    sync_folder(home.parent)
    return found


def _add(archive: zipfile.ZipFile, path: Path, name: Path, scratch: Path) -> None:
    try:
        with path.open("rb") as file:
            database = file.read(len(_DATABASE)) == _DATABASE
        if database:
            with (
                closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(scratch)) as target,
            ):
                source.backup(target)
        archive.write(scratch if database else path, name)
    except FileNotFoundError:  # replaced or removed since the folder was listed
        pass
    finally:
        scratch.unlink(missing_ok=True)


def _unpack(file: Path, folder: Path) -> Backup:
    damaged = ConfigurationError(f"{file}: is damaged, or no backup", "use another backup", code="backup-damaged")
    other = ConfigurationError(
        f"{file}: is of another format than {VERSION}", "restore it with the program that made it", code="backup-format"
    )
    try:
        with zipfile.ZipFile(file) as archive:
            note = json.loads(archive.read(_NOTE))
            if note["format"] != VERSION:
                raise other
            archive.extractall(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        for path in folder.rglob("*.sqlite"):
            with closing(sqlite3.connect(path)) as database:
                if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
                    raise damaged
        (folder / _NOTE).unlink()
        home = CoordinatorHome(folder)
        if home.authority().fingerprint != note["fingerprint"]:
            raise damaged
        home.registry().close()
        runs = {run.name: run.status() for run in home.runs() if run.planned()}
        under_way = [
            name
            for name, status in runs.items()
            if (wanted := home.run(name).requested()).action == "run"
            and not (status.state in ENDED and status.number >= wanted.number)
        ]
        states = {name: status.state for name, status in runs.items()}
        return Backup(file, home.settings.name, note["fingerprint"], note["made_at"], states, tuple(under_way))
    except (
        *(zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, sqlite3.DatabaseError),
        *(KeyError, TypeError, ValueError, ConfigurationError),
    ) as error:
        raise (other if error is other else damaged) from None
