"""Files that are written whole or not at all, for their owner only; locks; transactions of SQLite."""

import fcntl
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sync_data = getattr(os, "fdatasync", os.fsync)
"""Puts onto the disk what was written to a file, without its times; macOS has the other one only."""

FileState = tuple[int, int, int]
MISSING: FileState = (-1, -1, -1)
FileIdentity = tuple[int, int]

ASKING_S = 0.2  # for which a process may hold a lock that only asks whether another one does


def file_state(path: str | Path) -> FileState:
    """Changes whenever the file is written or replaced, or appears or goes."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return MISSING
    return found.st_mtime_ns, found.st_ino, found.st_size


def file_identity(found: os.stat_result) -> FileIdentity:
    """Identity of a file: writing to it keeps the identity, a file that replaces it has another one."""
    return found.st_dev, found.st_ino


def replace_file(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Writes or replaces a file; ``durable``: it is on the disk when this returns. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_where_possible(paths: Iterable[Path], data: bytes) -> list[Path]:
    """Writes or replaces the same file in several places as :func:`replace_file` does; returns those that succeeded."""
    done = []
    for path in paths:
        with suppress(OSError):
            replace_file(path, data)
            done.append(path)
    return done


def destroy_file(path: str | Path) -> bool:
    """Overwrites a file with zeros, on the disk, and removes it; False if there is none. Raises OSError.

    What a disk keeps beside the file (old blocks of an SSD or of a copy-on-write file system) is out of reach.
    """
    try:
        file = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        left = os.fstat(file).st_size
        while left:
            left -= os.write(file, bytes(min(left, 1 << 20)))
        sync_data(file)
    finally:
        os.close(file)
    os.unlink(path)
    return True


def sync_folder(folder: Path) -> None:
    """Puts a folder's names on the disk: without it a crash may forget a file that was renamed or made."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def holding(path: Path, otherwise: Exception) -> Iterator[None]:
    """Holds the lock ``path`` (made with mode 0600). Raises ``otherwise`` where another process holds it.

    Who asks :func:`is_held` has it for an instant: that is waited for.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end = time.monotonic() + ASKING_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > end:
                raise otherwise
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Returns True if a process holds the lock now; another one that asks this does not."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is done in it; nobody else writes meanwhile. Raises what SQLite and its body raise.

    The connection has ``isolation_level`` None: nothing but this begins and ends its transactions.
    """
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have ended it already
            database.execute("ROLLBACK")
        raise
