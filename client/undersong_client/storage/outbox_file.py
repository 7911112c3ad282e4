"""Format of the outbox's file: the sent messages in order, each under a line of JSON that describes it.

    {"number": 7, "at": 1764000000.0, "answer_to": "sum_step", ..., "bytes": 812, "sha256": "...", "stored": 640}
    640 bytes: the message, deflated (zlib) where ``stored`` is less than ``bytes``
    {"again": 7, "at": 1764000060.0}

The second line counts a repeat. Zeros follow what was written last: they are written ahead, because a disk that
overwrites what is there has no new length of the file to keep, which halves the work of bringing a message onto it.

At most one line, with its message, is under way at a time. One that a crash cut off, or of which a crash of the machine
left holes, stands where the zeros begin: nobody was told that it is kept, and nobody reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from undersong_common.errors import ConfigurationError

AHEAD_BYTES = 2**18
FIELDS = ("number", "at", "answer_to", "kind", "run", "query", "attempt", "bytes", "sha256", "stored")
AGAIN = ("again", "at")

_BEGINNINGS = (b'{"number": ', b'{"again": ')
_LATER_LINE = re.compile(rb'\{"(?:number|again)": ')
_LONGEST_BEGINNING = 16
_READ_BYTES = 4096
_SEARCHED_BYTES = 2**20


class Line(NamedTuple):
    """One line of JSON that is there whole, with the message below it.

    Attributes:
        content: FIELDS of a message, or AGAIN.
        begin, end: its bytes in the file, the message included.
        stored_at: where the stored bytes of its message begin.
    """

    content: dict[str, Any]
    begin: int
    stored_at: int
    end: int


def line(content: dict[str, Any]) -> bytes:
    """Encodes one line of FIELDS or AGAIN, in this order."""
    return json.dumps(content).encode() + b"\n"


def lines(file: int, path: Path, place: int = 0) -> Iterator[Line]:
    """The whole ones from ``place`` on. Raises ConfigurationError where the file is damaged, OSError.

    Args:
        file: a descriptor that can be read, locked.
        path: for errors.
        place: where a line begins.
    """
    last = None
    while (found := _line(file, path, place)) is not None:
        if last is not None:
            yield last
        last, place = found, found.end
    if _goes_on(file, path, place):
        raise _damaged(path, place)
    # A machine that loses its power may have written a message's end and not its middle.
    if last is not None and ("again" in last.content or message(file, last) is not None):
        yield last


def message(file: int, found: Line) -> bytes | None:
    """The message of a line that has one; None where the bytes are not those that its line names."""
    content = found.content
    data = os.pread(file, content["stored"], found.stored_at)
    if content["stored"] < content["bytes"]:
        try:
            data = zlib.decompress(data)
        except zlib.error:
            return None
    return data if hashlib.sha256(data).hexdigest() == content["sha256"] else None


def stored_message(file: int, path: Path, found: Line) -> bytes:
    """Reads the message of a line. Raises ConfigurationError if it is damaged."""
    data = message(file, found)
    if data is None:
        raise _damaged(path, found.stored_at)
    return data


def is_blank(file: int, place: int) -> bool:
    """Returns True if the file holds only zeros from there on."""
    return all(piece == bytes(len(piece)) for piece in _pieces(file, place, 0))


def _line(file: int, path: Path, place: int) -> Line | None:
    head = os.pread(file, _READ_BYTES, place)
    if not head.startswith(_BEGINNINGS):
        return None
    while b"\n" not in head:
        more = os.pread(file, len(head), place + len(head))
        if not more:
            return None
        head += more
    text = head[: head.index(b"\n")]
    try:
        content = json.loads(text)
    except ValueError:
        return None
    stored_at = place + len(text) + 1
    if not isinstance(content, dict) or not all(_is_right(name, value) for name, value in content.items()):
        raise _damaged(path, place)
    if tuple(content) == AGAIN:
        return Line(content, place, stored_at, stored_at)
    if tuple(content) != FIELDS:
        raise _damaged(path, place)
    end = stored_at + content["stored"] + 1
    return Line(content, place, stored_at, end) if os.pread(file, 1, end - 1) == b"\n" else None


def _is_right(name: str, value: object) -> bool:
    if name in ("number", "again", "attempt", "bytes", "stored"):
        return type(value) is int and -1 <= value < 2**62
    return isinstance(value, (int, float) if name == "at" else str)


def _goes_on(file: int, path: Path, place: int) -> bool:
    """Returns True if the rest is neither zeros nor a last line that a crash cut off."""
    begun = os.pread(file, _LONGEST_BEGINNING, place).rstrip(b"\0")
    cut_off = any(each.startswith(begun) or begun.startswith(each) for each in _BEGINNINGS)
    if not cut_off and not begun.startswith(b"\0"):
        return True
    at = place + 1
    for piece in _pieces(file, at, _LONGEST_BEGINNING):
        for later in _LATER_LINE.finditer(piece):
            if _line(file, path, at + later.start()) is not None:
                return True
        at += _SEARCHED_BYTES
    return False


def _pieces(file: int, place: int, overlap: int) -> Iterator[bytes]:
    while piece := os.pread(file, _SEARCHED_BYTES + overlap, place):
        yield piece
        place += _SEARCHED_BYTES


def _damaged(path: Path, place: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: is damaged at byte {place}, or another version wrote it",
        "restore it from a copy, or move it away and keep it: a new one is begun",
    )
