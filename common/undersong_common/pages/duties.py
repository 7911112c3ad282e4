"""Duties of a page's people under a rule of two people, and who has given somebody rights lately.

A duty comes from a group of the identity provider or from an administrator, never from the person. Whoever makes,
connects or lets in an account, or gives it a role or a duty, could be both of the two and is neither of them for a day.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from undersong_common.pages.store import PageStore
from undersong_common.program.owner import caller_at_terminal

DAY_S = 24 * 3600.0
AT_THE_TERMINAL = " at the terminal"


def terminal_identity() -> str:
    """Returns the identity of the account of the machine from which this command was typed.

    No account of a page has such a name.
    """
    return f"{caller_at_terminal()[1]}{AT_THE_TERMINAL}"


@dataclass(frozen=True)
class Duty:
    """A person's duty under the rule of two, and who gave it, in words."""

    name: str
    source: str


class Duties:
    """Duties by account, and the acts of those who gave rights; several processes may use one file at once.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, store: PageStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def give(self, account: str, duty: str, *, source: str, by: Iterable[str] = ()) -> None:
        """Gives an account a duty, or takes it away if ``duty`` is "".

        Args:
            source: who gives it, in words.
            by: identities of the person who gives it; () for the identity provider.
        """
        with self._store.transaction() as database:
            database.execute("DELETE FROM duty WHERE account = ?", (account,))
            if duty:
                database.execute("INSERT INTO duty (account, name, source) VALUES (?, ?, ?)", (account, duty, source))
        self.note_act(by)

    def follow_groups(self, account: str, duty: str, group: str) -> None:
        """Gives an account the duty of its person's group, and takes away an earlier one that no group gives now."""
        self.give(account, duty, source=f"the group {group}")

    def of(self, account: str) -> Duty | None:
        rows = self._store.rows("SELECT name, source FROM duty WHERE account = ?", account)
        return Duty(rows[0]["name"], rows[0]["source"]) if rows else None

    def all(self) -> dict[str, Duty]:
        """Returns the duties by account."""
        rows = self._store.rows("SELECT * FROM duty ORDER BY account")
        return {row["account"]: Duty(row["name"], row["source"]) for row in rows}

    def note_act(self, by: Iterable[str]) -> None:
        """Notes that the person with these identities has given somebody rights."""
        now_s = self._clock()
        with self._store.transaction() as database:
            database.executemany("INSERT INTO act (actor, at) VALUES (?, ?)", [(actor, now_s) for actor in by])

    def excluded_until(self, identities: Iterable[str]) -> float:
        """Returns the time until which a person is none of the two, in seconds since the epoch; 0 if they may be one.

        An act that lies ahead of now was noted while the clock was wrong, and counts as of now.
        """
        now_s = self._clock()
        with self._store.transaction() as database:
            database.execute("DELETE FROM act WHERE at < ?", (now_s - DAY_S,))
            database.execute("UPDATE act SET at = ? WHERE at > ?", (now_s, now_s))
            rows = database.execute("SELECT actor, MAX(at) AS latest FROM act GROUP BY actor").fetchall()
        person_identities = set(identities)
        return max((row["latest"] + DAY_S for row in rows if row["actor"] in person_identities), default=0.0)

    # The identity provider of the page, so that a terminal knows that only its people count.

    @property
    def provider(self) -> str:
        """Address of the identity provider with which the page was served last; "" without one."""
        rows = self._store.rows("SELECT value FROM setting WHERE name = 'provider'")
        return str(rows[0]["value"]) if rows else ""

    @provider.setter
    def provider(self, issuer: str) -> None:
        self._store.rows("INSERT OR REPLACE INTO setting (name, value) VALUES ('provider', ?)", issuer)
