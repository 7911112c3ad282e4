"""A file that one process holds while it owns a folder; the system lets it go when that process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Holds the lock ``path`` (made with mode 0600). Raises BlockingIOError where another process holds it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now."""
    try:
        with holding(path):
            return False
    except BlockingIOError:
        return True
