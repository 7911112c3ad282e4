"""Duties of a page's people under a rule of two people, and who has given somebody rights lately.

A duty comes from a group of the identity provider or from an administrator, never from the person. Whoever makes,
connects or lets in an account, or gives it a role or a duty, could act as both people, and may be neither for a day.
A day is counted by the machine's uptime, which no clock shortens.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from undersong_common.errors import ConfigurationError
from undersong_common.pages.store import PageStore
from undersong_common.printable import printable
from undersong_common.program.owner import account_name, caller_at_terminal
from undersong_common.program.uptime import Instant, instant

DAY_S = 24 * 3600.0
AT_THE_TERMINAL = " at the terminal"
USUAL_PORTS = {"http": 80, "https": 443}


def terminal_identity() -> str:
    """Returns the identity, for the rule of two people, of the machine's account that typed this command.

    No account of a page has such a name.
    """
    return f"{caller_at_terminal().name}{AT_THE_TERMINAL}"


def provider_identity(issuer: str, subject: str) -> str:
    """Returns the identity of a person of a provider, which no account's name equals; "" without one."""
    if issuer:
        return f"{issuer} {subject}"
    return ""


def provider_key(issuer: str, client: str, proxy: str = "") -> str:
    """Returns one text for a provider, a page's client id there and the proxy; "" without a provider.

    A provider may know a person by another ``sub`` under each client, and a proxy may answer in its place.
    """
    if issuer:
        return " ".join(filter(None, (issuer_form(issuer), client, proxy)))
    return ""


def issuer_form(issuer: str) -> str:
    """Returns an issuer's address in its normal form, without a slash at the end and without the usual port.

    >>> issuer_form("https://ID.example:443/realm/"), issuer_form("http://127.0.0.1:9999")
    ('https://id.example/realm', 'http://127.0.0.1:9999')
    """
    try:
        parts = urlsplit(issuer)
        if parts.port in (None, USUAL_PORTS.get(parts.scheme)):
            port = ""
        else:
            port = f":{parts.port}"
    except ValueError:
        return issuer
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path.rstrip('/')}"


@dataclass(frozen=True)
class Exclusion:
    """An act that gave somebody rights; because of it a person may be neither of the two who agree, until ``until_s``.

    Attributes:
        actor: identity of whoever gave somebody rights.
        until_s: seconds since the epoch.
        is_own: True if the act was surely the person's own, False if nobody can tell whose it was.
    """

    actor: str
    until_s: float
    is_own: bool


@dataclass(frozen=True)
class Duty:
    """A person's duty under the rule of two, and who gave it, in words."""

    name: str
    source: str


class Duties:
    """Duties by account, and the acts of those who gave rights; several processes may use one file at once.

    Args:
        clock: seconds since the epoch.

    Attributes:
        is_provider_fixed: returns True while the identity provider may not be changed.
    """

    def __init__(self, store: PageStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self.is_provider_fixed: Callable[[], bool] = lambda: False

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
                database.execute("INSERT OR REPLACE INTO setting (name, value) VALUES ('roles_given', 'yes')")
        self.note_act(by)

    def follow_groups(self, account: str, duty: str, group: str) -> None:
        """Gives an account the duty of its person's group, and takes away an earlier one that no group gives now."""
        self.give(account, duty, source=f"the group {group}")

    def of(self, account: str) -> Duty | None:
        rows = self._store.rows("SELECT name, source FROM duty WHERE account = ?", account)
        if rows:
            return Duty(rows[0]["name"], rows[0]["source"])
        return None

    def all(self) -> dict[str, Duty]:
        """Returns the duties by account."""
        rows = self._store.rows("SELECT * FROM duty ORDER BY account")
        return {row["account"]: Duty(row["name"], row["source"]) for row in rows}

    def note_act(self, by: Iterable[str]) -> None:
        """Notes that the person with these identities has given somebody rights."""
        now = instant(self._clock)
        with self._store.transaction() as database:
            for actor in by:
                _write_act(database, actor, now)

    def exclusion(self, identities: Iterable[str]) -> Exclusion | None:
        """Returns the act because of which a person may be neither of the two who decide; None if the person may.

        Nothing tells which account of the page is that of whoever typed at a terminal, nor the other way round. An act
        in one of these places therefore excludes everybody who decides in the other one. Root is nobody's account, and
        its acts exclude everybody.
        """
        person_identities = set(identities)
        is_at_terminal = any(identity.endswith(AT_THE_TERMINAL) for identity in person_identities)
        root = f"{account_name(0)}{AT_THE_TERMINAL}"
        exclusions = [
            Exclusion(actor, until_s, actor in person_identities)
            for actor, until_s in self._acts_of_a_day()
            if actor in person_identities or actor == root or actor.endswith(AT_THE_TERMINAL) != is_at_terminal
        ]
        return max(exclusions, key=lambda exclusion: (exclusion.is_own, exclusion.until_s), default=None)

    def _acts_of_a_day(self) -> list[tuple[str, float]]:
        """Returns the actors of the last day, and the time until which each act counts.

        A day is one of the machine's uptime, as long as it is not restarted. An act that lies ahead of now was noted
        while the clock was wrong, and counts as of now.
        """
        now = instant(self._clock)
        acts = []
        with self._store.transaction() as database:
            for row in database.execute("SELECT * FROM act").fetchall():
                passed_s = Instant(row["at"], row["boot"], row["up"]).passed_s(now)
                if passed_s < 0:
                    _write_act(database, row["actor"], now)
                if passed_s < DAY_S:
                    acts.append((row["actor"], now.at + DAY_S - max(0.0, passed_s)))
        return acts

    # The identity provider of the page is stored, so that a command at a terminal knows whose people count.

    @property
    def provider(self) -> str:
        """The identity provider with which the page was served last, as :func:`provider_key` names it; "" without."""
        return self._stored("provider") or ""

    @property
    def issuer(self) -> str:
        """Address of the identity provider in its normal form; "" without a provider."""
        issuer = self.provider.partition(" ")[0]
        if issuer:
            return issuer_form(issuer)
        return ""

    def serve_with(self, provider: str, provider_tables: str = "") -> None:
        """Notes with which identity provider the page is served from now on; "" for none.

        People of another one are no longer logged in: it may name the same person otherwise, and other tables may give
        them other rights. Whoever names either while two people decide may have let themselves in, as by a role.

        Args:
            provider_tables: settings that give the provider's people their names, roles and duties, in one line.

        Raises ConfigurationError if the rule of two counts the people of another one, or those of no provider, or gives
        them their roles by other tables.
        """
        former_provider = self._stored("provider")
        former_tables = self._stored("provider_tables")
        # An earlier version of this program has stored the issuer alone.
        is_earlier_form = (
            former_provider
            and " " not in former_provider
            and issuer_form(former_provider) == provider.partition(" ")[0]
        )
        is_other = (former_provider or "") != provider and not is_earlier_form
        # An earlier version of this program has stored no tables.
        are_other_tables = not is_other and former_tables not in (None, provider_tables)
        is_fixed = (is_other or are_other_tables) and self.is_provider_fixed()
        if is_fixed and are_other_tables and self._are_roles_given():
            raise ConfigurationError(
                "the rule of two people counts roles by other groups or claims of the identity provider than this page"
                " names",
                "start the page as before; to change them, two people first set that one person decides",
                code="other-provider",
            )
        if is_other and is_fixed and (former_provider or self._are_roles_given()):
            raise ConfigurationError(
                f"the rule of two people counts those of {printable(former_provider or 'this machine')}, and this page"
                f" names {printable(provider) or 'no identity provider'}",
                "start the page as before; to change the provider, two people first set that one person decides",
                code="other-provider",
            )
        if is_other or are_other_tables:
            self._store.rows("DELETE FROM session WHERE log_in = 'provider'")
        if is_fixed:
            self.note_act([terminal_identity()])
        for setting_name, setting_value in (("provider", provider), ("provider_tables", provider_tables)):
            self._store.rows("INSERT OR REPLACE INTO setting (name, value) VALUES (?, ?)", setting_name, setting_value)

    def is_served_with(self, provider: str, provider_tables: str) -> bool:
        """Returns True while no other page of this folder was started with another provider or other tables."""
        return (self._stored("provider"), self._stored("provider_tables")) == (provider, provider_tables)

    def _are_roles_given(self) -> bool:
        """Returns True once somebody has had a duty; before that nobody could decide, and a provider may be named."""
        return bool(self._store.rows("SELECT 1 FROM duty UNION SELECT 1 FROM setting WHERE name = 'roles_given'"))

    def _stored(self, setting_name: str) -> str | None:
        """Returns a setting that the page that was served last has stored; None if none has stored it yet."""
        rows = self._store.rows("SELECT value FROM setting WHERE name = ?", setting_name)
        if rows:
            return str(rows[0]["value"])
        return None


def _write_act(database: sqlite3.Connection, actor: str, now: Instant) -> None:
    """Stores an act in place of its actor's earlier one.

    No act is deleted because of its age: a clock that is ahead would delete it for good.
    """
    database.execute("DELETE FROM act WHERE actor = ?", (actor,))
    database.execute("INSERT INTO act (actor, at, boot, up) VALUES (?, ?, ?, ?)", (actor, now.at, now.boot, now.up))
