"""An append-only file of JSON objects, one per line, each with the hash of the line before it.

A line is one write, on the disk before :meth:`HashChain.append` returns. A crash may leave a line without its newline:
nobody acted upon that line, and the next opening drops it. A line whose number or hashes are wrong is refused, never
repaired. A chain cannot show that whole lines are missing at its end. To notice that, keep :attr:`HashChain.head`
elsewhere.
"""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PrivacyRefusal
from undersong_common.files import FileIdentity, file_identity
from undersong_common.program.machine import fault_of

START = "0" * 64


class HashChain:
    """Reads, checks and extends one append-only file of JSON objects, each with the hash of the one before it.

    Several processes may append to the file; threads must not share an object.

    Attributes:
        entries: the objects read so far, oldest first; each has the keys ``entry`` (from 1), ``previous`` and ``hash``.
        head: hash (hex) of the last entry.

    Args:
        tag: domain of the hashes.
        apply: called with each entry that is read or appended; if it raises ValueError, KeyError or TypeError, the
            entry is refused as one with a wrong hash is.
    """

    def __init__(self, path: Path, tag: str, apply: Callable[[Mapping[str, Any]], None] = lambda _entry: None) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        self.head = START
        self._path_text = str(path)
        self._tag = tag
        self._apply = apply
        self._read_bytes = 0
        self._identity: FileIdentity | None = None  # identity of the file that was read
        self._descriptor = -1  # file descriptor while the file is locked, else -1

    def refresh(self) -> None:
        """Reads the entries that other processes have appended. Raises as :meth:`locked`."""
        with suppress(FileNotFoundError):
            status = os.stat(self._path_text)
            # Entries are never changed, so that a file of the same size holds no new one.
            if status.st_size == self._read_bytes and file_identity(status) == self._identity:
                return
        with self.locked():
            pass

    def verify(self) -> int:
        """Checks every line, changing nothing; returns the number of entries.

        Raises PrivacyRefusal that names the first line with a wrong number or hash, or an incomplete last line.
        """
        chain_bytes = self.path.read_bytes()
        self.take(chain_bytes)
        if self._read_bytes != len(chain_bytes):
            raise PrivacyRefusal(
                f"{self.path}, line {len(self.entries) + 1}: incomplete",
                "its program was killed while writing it, before acting upon it; the next run drops it",
                code="incomplete-line",
            )
        return len(self.entries)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the file against every other process, drops an incomplete last line, and reads the new entries.

        A missing file is created. Raises PrivacyRefusal if the file became shorter, was replaced by one with other
        entries, or holds a line with a wrong number or hash.
        """
        descriptor = self._descriptor = os.open(self._path_text, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if status.st_size < self._read_bytes:
                problem = f"{self.path} became shorter while it was in use"
                raise PrivacyRefusal(problem, "restore it; entries are never removed", code="shorter")
            if file_identity(status) != self._identity:
                self._check_replaced()
                self._identity = file_identity(status)
            self.take(os.pread(self._descriptor, status.st_size - self._read_bytes, self._read_bytes))
            if self._read_bytes < status.st_size:  # no newline: a crash cut this write off
                os.ftruncate(self._descriptor, self._read_bytes)
                self.sync()
            yield
        finally:
            os.close(descriptor)  # A descriptor that stayed open would hold the lock for good.

    def sync(self) -> None:
        """Flushes all entries to the disk, those of other processes included; call it while the file is locked."""
        os.fsync(self._descriptor)

    def append(self, **content: Any) -> None:
        """Adds an entry while the file is locked; it is on the disk when this returns.

        Raises MachineFault if the file cannot be written, and then leaves it as it was.
        """
        content |= {"entry": len(self.entries) + 1, "previous": self.head}
        entry_line = canonical_json({**content, "hash": entry_hash(self._tag, content)}) + b"\n"
        try:
            if os.write(self._descriptor, entry_line) != len(entry_line):  # the disk was full in the middle of the line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.sync()
        except OSError as error:
            os.ftruncate(self._descriptor, self._read_bytes)
            raise fault_of(error, self.path) from None
        self.take(entry_line)

    def _check_replaced(self) -> None:
        """Checks that another file than the one that was read begins with the same entries."""
        new_chain = HashChain(self.path, self._tag)
        new_chain.take(os.pread(self._descriptor, self._read_bytes, 0))
        if new_chain.head != self.head:
            raise PrivacyRefusal(
                f"{self.path} was replaced by another file while it was in use",
                "put back the one that was there, or start the program again",
                code="other-entries",
            )

    def take(self, chain_bytes: bytes) -> None:
        """Adds the complete lines of ``chain_bytes``. Raises PrivacyRefusal for one with a wrong number or hash."""
        for entry_line in chain_bytes[: chain_bytes.rfind(b"\n") + 1].splitlines(keepends=True):
            entry_number = len(self.entries) + 1
            try:
                chain_entry = json.loads(entry_line)
                entry_content = {
                    field_name: field_value for field_name, field_value in chain_entry.items() if field_name != "hash"
                }
                is_canonical = canonical_json(chain_entry) + b"\n" == entry_line
                has_hash = chain_entry["hash"] == entry_hash(self._tag, entry_content)
                follows_head = chain_entry["previous"] == self.head and chain_entry["entry"] == entry_number
                is_valid = is_canonical and has_hash and follows_head
                if is_valid:
                    self._apply(chain_entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                is_valid = False
            if not is_valid:
                raise PrivacyRefusal(
                    f"{self.path}, line {entry_number}: does not fit the chain, by its number or a hash",
                    "the file was changed; restore it from a backup, and release nothing until then",
                    code="broken-chain",
                )
            self.entries.append(chain_entry)
            self.head = chain_entry["hash"]
            self._read_bytes += len(entry_line)


def entry_hash(tag: str, content: Mapping[str, Any]) -> str:
    """Returns an entry's hash (hex), which covers all its other keys and so the previous entry's hash."""
    return tagged_hash(tag, canonical_json(dict(content))).hex()
