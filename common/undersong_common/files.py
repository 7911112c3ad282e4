"""Writes files whole or not at all, readable by their owner only; also file locks and SQLite transactions."""

import fcntl
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

# Flushes a file's content to the disk, but not its times. macOS has only fsync, which flushes both.
sync_data = getattr(os, "fdatasync", os.fsync)

FileState = tuple[int, int, int]  # time of the last change (ns), inode and size
MISSING: FileState = (-1, -1, -1)
HIDDEN: FileState = (-2, -2, -2)  # state of a file in a folder that this account may not search
FileIdentity = tuple[int, int]

LOST_AND_FOUND = "lost+found"
WRITE_AGAIN_S = 0.02  # pause between two attempts to write a database
ASKING_S = 0.2  # longest time for which a process holds a lock only to learn if another process holds it


def is_empty(folder: Path) -> bool:
    """Returns True for a folder without entries but ``lost+found``, which a file system makes in its root itself."""
    return all(path.name == LOST_AND_FOUND for path in folder.iterdir())


def file_state(path: str | Path) -> FileState:
    """Returns a value that changes whenever the file is written, replaced, created or removed."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except PermissionError:
        return HIDDEN
    return status.st_mtime_ns, status.st_ino, status.st_size


def file_identity(file_status: os.stat_result) -> FileIdentity:
    """Returns a file's identity (device, inode): writing to the file keeps it, replacing the file changes it."""
    return file_status.st_dev, file_status.st_ino


def create_private(path: str | Path) -> None:
    """Creates an empty file of mode 0600 where there is none.

    It does not open a file that exists, because closing it would drop every lock of this process on it (POSIX), also
    SQLite's. Another process would then take itself for the last user, and delete the log that this one still writes.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def create_file(path: str | Path, data: bytes) -> None:
    """Writes a new file of mode 0600, on the disk on return. Raises FileExistsError if there is one."""
    with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Writes or replaces a file whole or not at all. With ``durable`` it is on the disk on return.

    Raises OSError, which names the file itself: the temporary one has another name each time, and nobody looks for it.
    """
    try:
        _replace_whole(path, data, durable=durable, mode=mode)
    except OSError as error:
        error.filename = str(path)
        error.filename2 = None
        raise


def _replace_whole(path: Path, data: bytes, *, durable: bool, mode: int) -> None:
    descriptor, temporary_path = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary_path, path)
    except BaseException:
        Path(temporary_path).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_where_possible(paths: Iterable[Path], data: bytes) -> list[Path]:
    """Writes the same data to every path as :func:`replace_file` does; returns the paths that could be written."""
    written_paths = []
    for path in paths:
        with suppress(OSError):
            replace_file(path, data)
            written_paths.append(path)
    return written_paths


def destroy_file(path: str | Path) -> bool:
    """Overwrites a file with zeros, on the disk, and removes it; returns False if it does not exist. Raises OSError.

    It does not reach old blocks that an SSD or a copy-on-write file system keeps.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return False
    try:
        remaining_bytes = os.fstat(descriptor).st_size
        while remaining_bytes:
            remaining_bytes -= os.write(descriptor, bytes(min(remaining_bytes, 1 << 20)))
        sync_data(descriptor)
    finally:
        os.close(descriptor)
    os.unlink(path)
    return True


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk; without this a crash may undo the creation or renaming of a file."""
    folder_descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_descriptor)
    finally:
        os.close(folder_descriptor)


@contextmanager
def holding(path: Path, otherwise: Exception) -> Iterator[None]:
    """Holds the lock file ``path`` (mode 0600) in the block. Raises ``otherwise`` if another process holds it.

    It first waits for ``ASKING_S``, because a process in :func:`is_held` holds the lock for an instant.
    """
    lock_descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        give_up_at_s = time.monotonic() + ASKING_S
        while not _try_lock(lock_descriptor, fcntl.LOCK_EX):
            if time.monotonic() > give_up_at_s:
                raise otherwise
            time.sleep(0.005)
        yield
    finally:
        os.close(lock_descriptor)


def is_held(path: Path) -> bool:
    """Returns True if a process is in :func:`holding` with this lock file now; it makes no file where there is none."""
    try:
        lock_descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(lock_descriptor, fcntl.LOCK_SH)
    finally:
        os.close(lock_descriptor)


def _try_lock(descriptor: int, lock_operation: int) -> bool:
    try:
        fcntl.flock(descriptor, lock_operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_database(path: Path, *, synchronous: str = "FULL", timeout_s: float = 5.0) -> sqlite3.Connection:
    """Opens a SQLite file in WAL mode, for several threads; makes it with mode 0600 if it is missing.

    Args:
        synchronous: SQLite's mode; "FULL" has every transaction on the disk when it ends.
        timeout_s: longest wait for another process to end its transaction.

    Raises what SQLite and the system raise.
    """
    if str(path) != ":memory:":
        create_private(path)
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=timeout_s)
    _set_wal_mode(database, time.monotonic() + timeout_s)
    database.execute(f"PRAGMA synchronous={synchronous}")
    return database


def _set_wal_mode(database: sqlite3.Connection, deadline_s: float) -> None:
    """Sets WAL mode; waits, as SQLite does not here, while another process makes the same file."""
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(WRITE_AGAIN_S)


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Returns True if another process keeps a database from being used, by a write or by a repair (BUSY_RECOVERY)."""
    # Every extended code has the lowest byte of its basic code.
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Runs the block in one transaction, during which nobody else writes; an error in the block rolls it back.

    Raises what SQLite and the block raise. The connection must have ``isolation_level`` None, so that nothing else
    begins or ends a transaction.
    """
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have ended it already
            database.execute("ROLLBACK")
        raise
