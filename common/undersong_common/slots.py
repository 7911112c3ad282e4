"""A small file that is overwritten in place, durably: two slots, written by turns.

To replace a file by another one takes a second file and two changes of its folder, each of which goes onto the disk; to
write over what is there takes neither. Here a write never touches the slot that matters more, so what a crash cuts off
leaves the content before it. A slot is a line: SHA-256 (hex) of what follows, the content's order, the content. It
begins on a page of its own, and the file keeps its size, so that a write brings nothing onto the disk but itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from undersong_common.files import file_identity, sync_data

PAGE = 4096
_HEADER_BYTES = 64 + 1 + 16 + 1


def blank(order: int, content: bytes) -> bytes:
    """A whole new file with one content, and room for longer ones."""
    line = _line(order, content)
    size = -(-(len(line) + PAGE) // PAGE) * PAGE
    return line.ljust(2 * size, b" ")


def contents(file: bytes) -> list[bytes]:
    """Contents of the valid slots of a file, the highest order first."""
    found = [slot for slot in _slots(file) if slot is not None]
    return [content for _, content in sorted(found, key=lambda slot: slot[0], reverse=True)]


class TwoSlots:
    """Overwrites one file. Several processes may do so at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._seen: tuple[object, ...] = ()  # which file it is and how its slots begin, as this object left them
        self._orders = [-1, -1]  # of the slots then; -1: not whole

    def overwrite(self, order: int, content: bytes, *, beside: Callable[[bytes], bool]) -> bool:
        """Writes one slot, the one of the lower order; it is on the disk when this returns.

        False if that cannot be done, and the file has to be replaced by a new one (:func:`blank`): there is none, it
        is a link or has another name, the content is too long, or what the file holds may not stay.

        Args:
            order: of ``content`` among those of the file: the highest of them is never overwritten.
            beside: whether a content of the file may stay there. Asked of each when a file is first met, and when
                somebody else has written to it.
        """
        try:
            file = os.open(self._name, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            return self._overwrite(file, _line(order, content), order, beside)
        except OSError:
            return False
        finally:
            os.close(file)

    def _overwrite(self, file: int, line: bytes, order: int, beside: Callable[[bytes], bool]) -> bool:
        found = os.fstat(file)
        size = found.st_size // 2
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or len(line) > size:
            return False
        seen = [os.pread(file, _HEADER_BYTES, place) for place in (0, size)]
        if (file_identity(found), found.st_size, *seen) != self._seen:
            slots = _slots(os.pread(file, found.st_size, 0))
            whole = [slot for slot in slots if slot is not None]
            if not whole or not all(beside(content) for _, content in whole):
                return False
            self._orders = [-1 if slot is None else slot[0] for slot in slots]
        chosen = self._orders.index(min(self._orders))
        seen[chosen] = line[:_HEADER_BYTES]
        self._seen = (file_identity(found), found.st_size, *seen)
        self._orders[chosen] = -1  # until it is on the disk: a write that fails is written again to the same slot
        if os.pwrite(file, line, chosen * size) != len(line):
            return False
        sync_data(file)
        self._orders[chosen] = order
        # Whoever replaced the file meanwhile has not seen what was written to the former one.
        return file_identity(os.stat(self._name, follow_symlinks=False)) == file_identity(found)


def _line(order: int, content: bytes) -> bytes:
    ordered = b"%016d %s" % (order, content)
    return hashlib.sha256(ordered).hexdigest().encode() + b" " + ordered + b"\n"


def _slots(file: bytes) -> list[tuple[int, bytes] | None]:
    """Order and content of both slots; None for one that is not whole."""
    size = len(file) // 2
    return [_slot(file[:size]), _slot(file[size:])] if size and size % PAGE == 0 else [None, None]


def _slot(data: bytes) -> tuple[int, bytes] | None:
    digest, _, ordered = data.partition(b"\n")[0].partition(b" ")
    if hashlib.sha256(ordered).hexdigest().encode() != digest:
        return None
    order, _, content = ordered.partition(b" ")
    with suppress(ValueError):
        return int(order), content
    return None
