"""The exact bytes that left the building, in order. Each message is on the disk before it is sent."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.home import FILE_MODE
from undersong_client.storage.outbox_file import AHEAD_BYTES, FIELDS, Line, is_blank, line, lines, stored_message
from undersong_common.errors import ConfigurationError
from undersong_common.files import sync_folder

_REMEMBERED_BYTES = 64


@dataclass(frozen=True)
class Entry:
    """One message that left.

    Attributes:
        number: counts from 1.
        at: seconds since the epoch, of the first time.
        answer_to: what the coordinator asked for.
        kind: what left.
        run, query, attempt: what it belongs to; empty and -1 where it belongs to no sum.
        bytes: its length.
        sha256: of the message, hex.
        times: how often it was made ready to be sent (again after a reconnect, always the same bytes).
    """

    number: int
    at: float
    answer_to: str
    kind: str
    run: str
    query: str
    attempt: int
    bytes: int
    sha256: str
    times: int


class Outbox:
    """The journal of all sent messages; several processes may use it at once.

    Every method raises ConfigurationError where a file is damaged or cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        # What is known of the file: up to where, the bytes before that place, and which messages it holds.
        self._place = 0
        self._before: bytes | None = None
        self._numbers: dict[bytes, int] = {}
        self._last = 0
        self._is_named = False  # whether its folder is known to name it on the disk

    def __repr__(self) -> str:
        return f"Outbox({str(self._path)!r})"

    def record(
        self,
        data: bytes,
        *,
        at: float,
        kind: str,
        answer_to: str = "",
        run: str = "",
        query: str = "",
        attempt: int = -1,
    ) -> None:
        """Keeps a message, on the disk when this returns. The same message for the same purpose is counted, not kept
        twice."""
        digest = hashlib.sha256(data).hexdigest()
        purpose = _purpose(digest, answer_to, run, query, attempt)
        try:
            with self._lock, self._locked() as file:
                self._catch_up(file)
                number = self._numbers.get(purpose)
                if number is not None:
                    self._append(file, [line({"again": number, "at": at})])
                    return
                number, stored = self._last + 1, _packed(kind, data)
                values = (number, at, answer_to, kind, run, query, attempt, len(data), digest, len(stored))
                self._append(file, [line(dict(zip(FIELDS, values, strict=True))), stored, b"\n"])
                self._numbers[purpose] = self._last = number
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be written: {error.strerror}", "make room; nothing was sent"
            ) from None

    def entries(self, *, run: str | None = None, last: int | None = None) -> list[Entry]:
        """Oldest first; of one run, or the last ones only."""
        found: list[Entry] = []
        times: Counter[int] = Counter()
        for _, each in self._lines():
            if "again" in each.content:
                times[each.content["again"]] += 1
            else:
                values = {name: value for name, value in each.content.items() if name != "stored"}
                found.append(Entry(**values, times=1))
        found = [
            replace(entry, times=entry.times + times[entry.number]) if entry.number in times else entry
            for entry in found
            if run in (None, entry.run)
        ]
        return found if last is None else found[-last:]

    def data(self, number: int) -> bytes:
        """The message itself. Raises ConfigurationError for a number that is not there."""
        for file, each in self._lines():
            if each.content.get("number") == number:
                return stored_message(file, self._path, each)
        raise ConfigurationError(f"the outbox has no entry {number}", "see `undersong-party outbox`")

    def _lines(self) -> Iterator[tuple[int, Line]]:
        """For those who read: from its beginning, with the file's descriptor; nothing where there is no file."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            for each in lines(file, self._path):
                yield file, each
        except OSError as error:  # a folder can be opened
            raise self._unreadable(error) from None
        finally:
            os.close(file)

    def _unreadable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: cannot be read: {error.strerror}", "check what it is and its owner")

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file that lies there now, locked against every other process; it is made where there is none."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file).st_nlink:  # else it was removed before it was locked
                    yield file
                    return
            finally:
                os.close(file)

    def _catch_up(self, file: int) -> None:
        """Reads what others have written since; everything where another file lies there than the one that was read."""
        before = self._before
        if before is not None:
            seen = os.pread(file, len(before) + 1, self._place - len(before))
            if seen in (before, before + b"\0"):
                return
            if not seen.startswith(before):
                before = None
        if before is None:
            self._place, self._last, self._numbers = 0, 0, {}
            self._is_named = False  # whoever made it may have been killed before the folder was on the disk
        for each in lines(file, self._path, self._place):
            self._place = each.end
            if "number" in each.content:
                self._take(each.content)
        if not is_blank(file, self._place):
            os.ftruncate(file, self._place)  # what a crash left of a message
            os.fsync(file)  # before another one is written over it: a second crash could mix the two
        remembered = min(self._place, _REMEMBERED_BYTES)
        self._before = os.pread(file, remembered, self._place - remembered)

    def _take(self, content: Mapping[str, Any]) -> None:
        purpose = _purpose(*(content[name] for name in ("sha256", "answer_to", "run", "query", "attempt")))
        self._numbers.setdefault(purpose, content["number"])
        self._last = max(self._last, content["number"])

    def _append(self, file: int, parts: list[bytes]) -> None:
        """Puts ``parts`` onto the disk, or leaves the file as it is. Raises OSError."""
        begin, size = self._place, os.fstat(file).st_size
        end = begin + sum(map(len, parts))
        ahead = [bytes(AHEAD_BYTES - end % AHEAD_BYTES)] if end >= size else []
        try:
            if os.pwritev(file, [*parts, *ahead], begin) < end - begin:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(file)
            if not self._is_named:
                sync_folder(self._path.parent)
                self._is_named = True
        except OSError:
            self._before = None
            os.ftruncate(file, begin)
            raise
        self._place = end
        self._before = b"".join(part[-_REMEMBERED_BYTES:] for part in parts)[-_REMEMBERED_BYTES:]


def _purpose(digest: str, answer_to: str, run: str, query: str, attempt: int) -> bytes:
    """The same for the same message with the same purpose only; short, since there is one for each message kept."""
    return hashlib.sha256(repr((digest, answer_to, run, query, attempt)).encode()).digest()[:16]


def _packed(kind: str, data: bytes) -> bytes:
    # No time is lost on a private sum's replies: keys, sealed shares and masked vectors do not shrink.
    if kind == "sum_reply":
        return data
    return min(zlib.compress(data, 1), data, key=len)
