"""The outbox: every message that left the building, in order, byte for byte; a table of the party's journal.

A long reply is stored once. The outbox keeps a message's first bytes, and the journal's encrypted entry keeps the rest.
"""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields
from typing import Any

from undersong_client import keys
from undersong_client.home import PartyHome
from undersong_client.storage.store import Store, journal
from undersong_common.errors import ConfigurationError


@dataclass(frozen=True)
class Entry:
    """One message that left.

    Attributes:
        number: number of the message, from 1.
        at: time at which it was first ready to be sent, seconds since the epoch.
        answer_to: name of the coordinator's request that it answers.
        kind: kind of message.
        run, query, attempt: the sum that it belongs to; empty and -1 if it belongs to none.
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


_COLUMNS = ", ".join(field.name for field in fields(Entry))


@dataclass(frozen=True)
class Stored:
    """Reference to the end of a message that the journal holds already: key of the entry and length in bytes."""

    key: str = ""
    bytes: int = 0


NOTHING = Stored()  # no part of the message is in the journal


class Outbox:
    """Records and reads the messages that a party has sent; several processes may use it at once.

    Every method raises ConfigurationError if the journal is damaged or cannot be used.
    """

    def __init__(self, home: PartyHome) -> None:
        self._home = home

    def together(self) -> AbstractContextManager[None]:
        """Makes this thread's messages and its other entries of the journal one transaction."""
        return journal(self._home.journal).together()

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
        stored: Stored = NOTHING,
    ) -> None:
        """Records a message, on the disk when this returns or the transaction ends.

        A repetition of the same message for the same purpose only raises ``Entry.times``.

        Args:
            stored: the end of the message, if the journal holds it.
        """
        unstored_head = data[: len(data) - stored.bytes]
        digest = hashlib.sha256(data).hexdigest()
        sent_row = (at, answer_to, kind, run, query, attempt, len(data), digest, unstored_head, stored.key)
        with journal(self._home.journal).writing() as connection:
            connection.execute(
                "INSERT INTO sent VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)"
                " ON CONFLICT DO UPDATE SET times = times + 1",
                sent_row,
            )

    def entries(self, *, run: str | None = None, last: int | None = None) -> list[Entry]:
        """Returns the entries, oldest first; optionally those of one run, or only the last ones."""
        entry_rows = self._read(
            f"SELECT {_COLUMNS} FROM sent WHERE ?1 IS NULL OR run = ?1 ORDER BY number DESC LIMIT ?2",  # noqa: S608
            (run, -1 if last is None else last),
        )
        return [Entry(*entry_row) for entry_row in reversed(entry_rows)]

    def bring_back(self, entries: Sequence[Entry]) -> int:
        """Adds entries from saved evidence that are not here, without their bytes; returns their number.

        All entries are numbered anew, by their times.
        """
        present_keys = {_message_key(entry) for entry in self.entries()}
        missing_entries = [entry for entry in entries if _message_key(entry) not in present_keys]
        if not missing_entries:
            return 0
        with journal(self._home.journal).writing() as connection:
            largest_number = connection.execute("SELECT COALESCE(MAX(number), 0) FROM sent").fetchone()[0]
            # New rows begin with negative numbers, because the primary key admits no number twice, even for a moment.
            for entry_number, missing_entry in enumerate(missing_entries, largest_number + 1):
                sent_row = (-entry_number, *astuple(missing_entry)[1:], b"", "")
                connection.execute(f"INSERT INTO sent VALUES ({', '.join('?' * len(sent_row))})", sent_row)  # noqa: S608
            connection.execute("UPDATE sent SET number = -number WHERE number > 0")
            sent_numbers = [row[0] for row in connection.execute("SELECT number FROM sent ORDER BY at, -number")]
            connection.executemany("UPDATE sent SET number = ? WHERE number = ?", list(enumerate(sent_numbers, 1)))
        return len(missing_entries)

    def data(self, entry_number: int) -> bytes:
        """Reads the bytes of a message.

        Raises ConfigurationError if it is missing or damaged, or came back from saved evidence without its bytes.
        """
        data_rows = self._read("SELECT head, reply, sha256 FROM sent WHERE number = ?", (entry_number,))
        if not data_rows:
            raise ConfigurationError(f"the outbox has no entry {entry_number}", "see `undersong-party outbox`")
        message_bytes, reply, digest = data_rows[0]
        if not message_bytes and not reply:
            raise ConfigurationError(
                f"entry {entry_number} of the outbox came back from saved evidence: its length and hash, not its bytes",
                "compare the hash with the coordinator's copy",
                code="bytes-not-saved",
            )
        if reply:
            party_home = self._home
            message_bytes += (
                Store(party_home.journal, party_home.settings.party, keys.secret(party_home, "store")).get(reply) or b""
            )
        if hashlib.sha256(message_bytes).hexdigest() != digest:
            raise ConfigurationError(
                f"{self._home.journal}: entry {entry_number} of the outbox is damaged and cannot be read any more",
                "compare the hash that `undersong-party outbox` lists with the coordinator's copy",
            )
        return bytes(message_bytes)

    def _read(self, sql_query: str, parameters: tuple[Any, ...]) -> list[Any]:
        if self._home.journal.exists():
            return journal(self._home.journal).read(sql_query, parameters)
        return []


def _message_key(entry: Entry) -> tuple[str, str, str, str, int]:
    return entry.sha256, entry.answer_to, entry.run, entry.query, entry.attempt
