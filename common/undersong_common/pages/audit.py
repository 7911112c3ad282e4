"""The audit log of a page: one hash-chained entry per action."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from undersong_common.chain import HashChain

FILE_NAME = "audit.jsonl"  # in the folder of a page
TAG = "undersong audit"
LONGEST = 300


@dataclass(frozen=True)
class AuditEntry:
    """One action.

    Attributes:
        entry: its number, from 1.
        at: seconds since the epoch.
        who: the account, or "terminal".
        what: the action, such as "run start"; ``about`` names what it concerned.
        previous, hash: SHA-256 (hex) of the entry before this one, and of this one.
    """

    entry: int
    at: float
    who: str
    what: str
    about: str
    previous: str
    hash: str


class AuditLog:
    """The file; appended to by every process that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chain = HashChain(path, TAG)
        self._lock = threading.Lock()

    def note(self, who: str, what: str, about: str = "") -> None:
        """Appends an entry, on the disk when this returns. No secret may stand in it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock, self._chain.locked():
            self._chain.append(at=time.time(), who=who, what=what, about=about[:LONGEST])

    def entries(self) -> list[AuditEntry]:
        """Every entry, oldest first, read anew. Raises PrivacyRefusal that names the first line that was changed."""
        chain = HashChain(self.path, TAG)
        if self.path.exists():
            chain.refresh()
        return [AuditEntry(**entry) for entry in chain.entries]
