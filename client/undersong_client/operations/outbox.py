"""The exact bytes that left this building, and what they say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undersong_client.home import PartyHome
from undersong_client.storage import outbox as journal
from undersong_client.storage import outbox_words
from undersong_client.storage.outbox import Entry
from undersong_common.errors import ConfigurationError


def entries(home: Path, *, run: str | None = None, last: int | None = None) -> tuple[Entry, ...]:
    """Messages that left, oldest first; optionally of one run, or only the last ones."""
    return tuple(journal.Outbox(PartyHome(home).outbox).entries(run=run, last=last))


@dataclass(frozen=True)
class Message:
    """One message: its entry, its exact bytes, and the same as names and values."""

    entry: Entry
    data: bytes
    decoded: dict[str, Any]

    def words(self) -> list[str]:
        """The message in plain words."""
        return outbox_words.words(self.entry, self.data)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.entry), "decoded": self.decoded}


def message(home: Path, number: int) -> Message:
    """One message, decoded. Raises ConfigurationError for a number that is not there."""
    kept = journal.Outbox(PartyHome(home).outbox)
    data = kept.data(number)
    found = next((entry for entry in kept.entries() if entry.number == number), None)
    if found is None:
        raise ConfigurationError(f"the outbox has no entry {number}", "see `undersong-party outbox`")
    return Message(found, data, journal.decode(found.kind, data))
