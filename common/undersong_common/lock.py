"""A file that one process holds while it owns a folder; the system lets it go when that process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def holding(path: Path, otherwise: Exception) -> Iterator[None]:
    """Holds the lock ``path`` (made with mode 0600). Raises ``otherwise`` where another process holds it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise otherwise from None
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now."""
    try:
        with holding(path, BlockingIOError()):
            return False
    except BlockingIOError:
        return True
