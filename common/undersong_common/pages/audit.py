"""Who did what and when, as lines of JSON; each line holds the hash of the one before it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal

FILE_NAME = "audit.jsonl"  # in the folder of a page
TAG = "undersong audit"
FIRST = "0" * 64
LONGEST = 300


@dataclass(frozen=True)
class AuditEntry:
    """One thing that was done.

    Attributes:
        at: seconds since the epoch.
        who: the account, or "terminal".
        what: the action, such as "run start"; ``about`` names what it concerned.
        before, hash: SHA-256 (hex) of the entry before this one, and of this one.
    """

    number: int
    at: float
    who: str
    what: str
    about: str
    before: str
    hash: str


class AuditLog:
    """The file; appended to by every process that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, who: str, what: str, about: str = "") -> None:
        """Appends an entry, on the disk when this returns. No secret may stand in it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = _last_line(file)
            number, before = (1, FIRST) if last is None else (last["number"] + 1, last["hash"])
            body = {"number": number, "at": time.time(), "who": who, "what": what, "about": about[:LONGEST]}
            body["before"] = before
            file.write(canonical_json({**body, "hash": _hash(body)}) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[AuditEntry]:
        """Oldest first. Raises ConfigurationError where the file is damaged."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        try:
            return [AuditEntry(**json.loads(line)) for line in lines]
        except (ValueError, TypeError):
            raise ConfigurationError(f"{self.path}: is damaged", "restore it from a backup") from None

    def check(self) -> int:
        """How many entries there are, their chain checked. Raises PrivacyRefusal that names the first broken one."""
        before = FIRST
        entries = self.entries()
        for place, entry in enumerate(entries, start=1):
            body = {key: value for key, value in asdict(entry).items() if key != "hash"}
            if entry.number != place or entry.before != before or entry.hash != _hash(body):
                raise PrivacyRefusal(
                    f"{self.path}: entry {place} is not the one that was written", "compare it with a backup"
                )
            before = entry.hash
        return len(entries)


def _hash(body: Mapping[str, Any]) -> str:
    return tagged_hash(TAG, canonical_json(dict(body))).hex()


def _last_line(file: Any) -> dict[str, Any] | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8192))
    lines = file.read().splitlines()
    return json.loads(lines[-1]) if lines else None
