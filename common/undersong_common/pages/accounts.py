"""Accounts of a page, with roles: one-time links, passwords, sessions, and tokens for scripts.

There is no default password. A person enters first by a one-time link that the terminal or an administrator gives,
then by a password, or by the identity provider that the operator has named.
"""

import ipaddress
import math
import re
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.pages.duties import AT_THE_TERMINAL, DAY_S, Duties, provider_identity
from undersong_common.pages.store import Message, PageStore, digest
from undersong_common.program.uptime import Instant, instant

RoleName = TypeVar("RoleName", bound=str)
Role = Literal["viewer", "operator", "administrator"]
ROLES: tuple[Role, ...] = get_args(Role)  # ascending; a role includes all rights of the earlier ones
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
SHORTEST_PASSWORD, LONGEST_PASSWORD = 12, 512
LINK_S = 15 * 60.0  # life of a one-time link
IDLE_S, SESSION_S = 30 * 60.0, 12 * 3600.0  # longest pause of a session, and its longest life
LONGEST_NAME = 200  # characters of a name by which its failed log-ins are counted
FAILURES_S = 5 * 60.0  # time for which a failed log-in counts
FAILURES, SOURCE_FAILURES = 5, 20  # most failed log-ins to one account from one source, and from one source in all
HASHES_AT_ONCE = 2  # argon2id takes 64 MiB each
SOURCE_TRIES_AT_ONCE, TRIES_AT_ONCE = 5, 20  # log-ins of one source, and of all, that wait for their hash
REMEDY_LINK = "ask for a new link on the terminal"


def roles_by_group(assignments: Iterable[str], roles: Sequence[RoleName]) -> dict[str, RoleName]:
    """Parses assignments ``GROUP=ROLE`` into one of ``roles`` by group of an identity provider.

    Raises ConfigurationError for another form or role.

    >>> roles_by_group(["cn=IT,dc=example=operator"], ROLES)
    {'cn=IT,dc=example': 'operator'}
    """
    role_by_name: dict[str, RoleName] = {role: role for role in roles}
    pairs = [assignment.rpartition("=")[::2] for assignment in assignments]
    for group, role in pairs:
        if not group or role not in role_by_name:
            raise ConfigurationError(
                f"{group}={role}: is not GROUP=ROLE", f"name one of the roles {', '.join(roles)}", code="no-role"
            )
    return {group: role_by_name[role] for group, role in pairs}


class TooManyAttempts(PrivacyRefusal):
    """Raised after too many failed log-ins from one source, which has to wait ``wait_s`` seconds before the next."""

    def __init__(self, wait_s: float, problem: str = "too many log-ins have failed") -> None:
        super().__init__(problem, f"wait {math.ceil(wait_s)} s, then try again", code="too-many-attempts")
        self.wait_s = wait_s


@dataclass(frozen=True)
class Account:
    """An account of a person on a page.

    ``has_password`` is True once the person has chosen a password, ``connected`` once somebody of the identity provider
    enters the account.
    """

    name: str
    role: Role
    has_password: bool
    created_at: float
    connected: bool

    def may(self, role: Role) -> bool:
        """Returns True if the account has at least the rights of ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class Session:
    """A person's session in one browser.

    Attributes:
        number: names the session in lists.
        csrf: secret that each form of the session must carry.
        created_at, seen_at: begin and latest use, seconds since the epoch.
        address: network address of the browser.
        log_in: kind of the log-in: "link", "password" or "provider".
        issuer, subject: the identity provider and its key of the person who logged in by it; "" otherwise.
        let_in_by: identity of whoever let the account in by a link within the last day; "" if nobody did.
    """

    number: int
    account: Account
    csrf: str
    created_at: float
    seen_at: float
    address: str
    log_in: str = ""
    issuer: str = ""
    subject: str = ""
    let_in_by: str = ""

    @property
    def identities(self) -> tuple[str, ...]:
        """Identities of the person behind the session, for :class:`undersong_common.pages.duties.Duties`."""
        return tuple(filter(None, (self.account.name, provider_identity(self.issuer, self.subject))))


@dataclass(frozen=True)
class Token:
    """A script's access token as lists show it; the secret itself was shown once and is not kept.

    Attributes:
        identity: first characters of the secret's hash.
        account: name of the person whose rights the token has.
        created_at, expires_at, used_at: seconds since the epoch; ``used_at`` is None before the first use.
    """

    identity: str
    account: str
    label: str
    created_at: float
    expires_at: float
    used_at: float | None


class Accounts:
    """Accounts, links, sessions and tokens of one page. Methods raise ConfigurationError for an unknown account.

    Args:
        clock: seconds since the epoch.
        hasher: hashes passwords; None takes argon2id with the library's parameters.
    """

    def __init__(
        self, store: PageStore, *, clock: Callable[[], float] = time.time, hasher: PasswordHasher | None = None
    ) -> None:
        self._store = store
        self.duties = Duties(store, clock=clock)
        self._clock = clock
        self._hasher = hasher or PasswordHasher()
        self._hash_slots = threading.BoundedSemaphore(HASHES_AT_ONCE)
        self._tries: Counter[str] = Counter()  # number of log-ins under way, by source
        self._tries_lock = threading.Lock()
        # It is checked for an unknown name, which must take as long as a known one.
        self._unknown_hash = self._hasher.hash(secrets.token_urlsafe(16))

    # These methods keep the people.

    def people(self) -> list[Account]:
        return [_read_account(row) for row in self._store.rows("SELECT * FROM account ORDER BY name")]

    def find(self, name: str) -> Account | None:
        rows = self._store.rows("SELECT * FROM account WHERE name = ?", name)
        if rows:
            return _read_account(rows[0])
        return None

    def person(self, name: str) -> Account:
        if (account := self.find(name)) is None:
            raise ConfigurationError(f"nobody is called {name!r} here", "see the list of people", code="unknown-person")
        return account

    def of_person(self, person: str) -> Account | None:
        """Returns the account that a person of the identity provider enters, by the person's key."""
        rows = self._store.rows("SELECT * FROM account WHERE person = ?", person)
        if rows:
            return _read_account(rows[0])
        return None

    def connect(self, name: str, person: str, *, by: Iterable[str] = ()) -> None:
        """Lets one person of the identity provider enter an account from now on, and nobody else of the provider.

        Args:
            by: identities of whoever connects it.

        Raises PrivacyRefusal if that person enters another account already.
        """
        with self._store.transaction() as database:
            connected_account = database.execute(
                "SELECT name FROM account WHERE person = ? AND name <> ?", (person, name)
            ).fetchone()
            if connected_account is not None:
                raise PrivacyRefusal(
                    f"you enter the account {connected_account['name']!r} by the identity provider already",
                    "log in by it, or have an administrator remove that account",
                    code="account-taken",
                )
            database.execute("UPDATE account SET person = ? WHERE name = ?", (person, name))
        self.duties.note_act(by)

    def set_role(self, name: str, role: str, *, person: str = "", by: Iterable[str] = ()) -> Account:
        """Adds a person, or changes a person's role.

        Args:
            person: key of a person of the identity provider, for whom a new account is added.
            by: identities of whoever gives the role; () for the provider's groups.

        Raises ConfigurationError for an invalid name or role, and if no administrator would be left; PrivacyRefusal if
        a new account's name is taken: whoever has the same name at the provider is not that account's person.
        """
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not an account's name", "use letters, digits and . _ @ + -, at most 64 characters"
            )
        if role not in ROLES:
            raise ConfigurationError(f"role {role!r} is unknown", f"choose among {', '.join(ROLES)}")
        with self._store.transaction() as database:
            if role != "administrator":
                self._keep_an_administrator(database, name)
            former_row = database.execute("SELECT role FROM account WHERE name = ?", (name,)).fetchone()
            name_or_person_taken = "SELECT 1 FROM account WHERE name = ? OR person = ?"
            if person and database.execute(name_or_person_taken, (name, person)).fetchone() is not None:
                raise PrivacyRefusal(
                    f"the account {name!r} is not connected with this person of the identity provider",
                    "if it is yours, log in by a link or a password and connect it under Your account",
                    code="account-taken",
                )
            database.execute(
                "INSERT INTO account (name, role, created_at, person) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET role = excluded.role",
                (name, role, self._clock(), person),
            )
        # A new account is noted as no act, because a page makes one at its first start. The link to enter it is noted.
        if former_row is not None and former_row["role"] != role:
            self.duties.note_act(by)
        return self.person(name)

    def remove(self, name: str) -> None:
        """Removes a person and all their sessions, links and tokens; refuses to remove the only administrator."""
        self.person(name)
        with self._store.transaction() as database:
            self._keep_an_administrator(database, name)
            database.execute("DELETE FROM account WHERE name = ?", (name,))
            for table in ("link", "session", "token", "duty"):
                database.execute(f"DELETE FROM {table} WHERE account = ?", (name,))  # noqa: S608 - names of ours

    def _keep_an_administrator(self, database: sqlite3.Connection, leaving: str) -> None:
        """Raises ConfigurationError if ``leaving`` is the name of the only administrator."""
        rows = database.execute("SELECT name FROM account WHERE role = 'administrator'").fetchall()
        if [row["name"] for row in rows] == [leaving]:
            raise ConfigurationError(
                f"{leaving} is the only administrator", "name another one first", code="only-administrator"
            )

    # These methods make and take one-time links.

    def link(self, name: str, *, by: Iterable[str] = ()) -> str:
        """Makes a one-time link for a person and returns its secret; older links of the same person end.

        Args:
            by: identities of whoever makes the link, and could use it.
        """
        self.person(name)
        link_secret = secrets.token_urlsafe(32)
        makers = tuple(by)
        with self._store.transaction() as database:
            database.execute("DELETE FROM link WHERE account = ? OR expires_at < ?", (name, self._clock()))
            link_row = (digest(link_secret), name, self._clock() + LINK_S, makers[0] if makers else "")
            database.execute("INSERT INTO link (secret, account, expires_at, made_by) VALUES (?, ?, ?, ?)", link_row)
        # A page prints a link at each start. A link from a terminal is noted as an act only once somebody has used it.
        self.duties.note_act(maker for maker in makers if not maker.endswith(AT_THE_TERMINAL))
        return link_secret

    def enter_by_link(self, link_secret: str, *, address: str) -> str:
        """Logs a person in with the secret of a one-time link; returns the new session's secret.

        Raises PrivacyRefusal for a link that was used, has expired or never existed. Wrong links from one source are
        counted, but never keep a valid one out: a link has 256 random bits.
        """
        with self._store.transaction() as database:
            link_row = database.execute(
                "SELECT * FROM link WHERE secret = ?", (digest(link_secret.strip()),)
            ).fetchone()
            # A link that was made while the clock was ahead would last for as long as that.
            is_valid = link_row is not None and 0 <= link_row["expires_at"] - self._clock() <= LINK_S
            if is_valid:
                database.execute("DELETE FROM link WHERE secret = ?", (link_row["secret"],))
                update_query = (
                    "UPDATE account SET let_in_by = ?, let_in_at = ?, let_in_boot = ?, let_in_up = ? WHERE name = ?"
                )
                now = instant(self._clock)
                database.execute(update_query, (link_row["made_by"], now.at, now.boot, now.up, link_row["account"]))
            else:
                self._reserve_tries(database, {f"link at {source_of(address)}": FAILURES})
        if is_valid and link_row["made_by"]:
            self.duties.note_act([link_row["made_by"]])
        if not is_valid:
            raise PrivacyRefusal("this link was used already or has expired", REMEDY_LINK, code="link-used")
        return self.begin(link_row["account"], address=address, log_in="link")

    # These methods set and check passwords.

    def set_password(self, name: str, password: str, *, keep: str = "") -> None:
        """Sets a person's password and ends all of the person's sessions except the one whose secret is ``keep``."""
        if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
            raise ConfigurationError(
                f"the password has {len(password)} characters, {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} are allowed",
                f"choose one of {SHORTEST_PASSWORD} or more",
                code="password-length",
            )
        self.person(name)
        with self._hash_slots:
            password_hash = self._hasher.hash(password)
        with self._store.transaction() as database:
            database.execute("UPDATE account SET password = ? WHERE name = ?", (password_hash, name))
            database.execute("DELETE FROM session WHERE account = ? AND secret <> ?", (name, digest(keep)))

    def enter_by_password(self, name: str, password: str, *, address: str) -> str:
        """Logs a person in with a password; returns the new session's secret.

        Raises PrivacyRefusal for a wrong name or password, in the same time for both, and after too many tries. A try
        counts before the password is checked, and no longer counts if the password is right.
        """
        source = source_of(address)
        limits = {f"{name[:LONGEST_NAME]} at {source}": FAILURES, source: SOURCE_FAILURES}
        with self._count_try(source):
            with self._store.transaction() as database:
                try_rows = self._reserve_tries(database, limits)
                row = database.execute("SELECT password FROM account WHERE name = ?", (name,)).fetchone()
            if row is not None and row["password"]:
                password_hash = row["password"]
            else:
                password_hash = self._unknown_hash
            try:
                with self._hash_slots:
                    self._hasher.verify(password_hash, password[:LONGEST_PASSWORD])
                is_right = password_hash != self._unknown_hash
            except (VerificationError, InvalidHashError):
                is_right = False
        if not is_right:
            raise PrivacyRefusal(
                "name and password do not fit", "try again, or ask an administrator for a link", code="wrong-password"
            )
        with self._store.transaction() as database:
            database.executemany("DELETE FROM failure WHERE rowid = ?", try_rows)
        return self.begin(name, address=address, log_in="password")

    @contextmanager
    def _count_try(self, source: str) -> Iterator[None]:
        """Counts a log-in from ``source`` as under way in the block. Raises TooManyAttempts if there are too many."""
        with self._tries_lock:
            if self._tries[source] >= SOURCE_TRIES_AT_ONCE or self._tries.total() >= TRIES_AT_ONCE:
                raise TooManyAttempts(1.0, "too many people log in at once")
            self._tries[source] += 1
        try:
            yield
        finally:
            with self._tries_lock:
                self._tries[source] -= 1
                self._tries += Counter()  # adding an empty Counter drops sources with no tries left

    def _reserve_tries(self, database: sqlite3.Connection, limits: Mapping[str, int]) -> list[tuple[int | None]]:
        """Counts a try under each key of ``limits`` before it is made; returns its rows.

        Raises TooManyAttempts, and writes nothing, if one of them has as many as its limit.
        """
        now_s = self._clock()
        # A failure ahead of now was counted while the clock was wrong, and would shut people out until that time.
        database.execute("DELETE FROM failure WHERE at < ? OR at > ?", (now_s - FAILURES_S, now_s))
        for limit_name, limit in limits.items():
            failure_rows = database.execute(
                "SELECT at FROM failure WHERE source = ? ORDER BY at", (limit_name,)
            ).fetchall()
            if len(failure_rows) >= limit:
                raise TooManyAttempts(failure_rows[-limit]["at"] + FAILURES_S - now_s)
        insert_query = "INSERT INTO failure (source, at) VALUES (?, ?)"
        return [(database.execute(insert_query, (limit_name, now_s)).lastrowid,) for limit_name in limits]

    # These methods begin and end sessions.

    def begin(self, name: str, *, address: str, log_in: str = "", issuer: str = "", subject: str = "") -> str:
        """Begins a session for a person whose identity has been checked; returns its secret.

        The secret is two random halves joined by a point: one for a cookie, one for the path of each address.

        Args:
            log_in, issuer, subject: as in :class:`Session`.
        """
        self.person(name)
        session_secret = f"{secrets.token_urlsafe(32)}.{secrets.token_urlsafe(32)}"
        now_s = self._clock()
        self._store.rows(
            "INSERT INTO session (secret, account, csrf, created_at, seen_at, address, log_in, issuer, subject, number)"
            " SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 1 + COALESCE(MAX(number), 0) FROM session",
            *(digest(session_secret), name, secrets.token_urlsafe(32), now_s, now_s, address, log_in, issuer, subject),
        )
        return session_secret

    def session(self, session_secret: str, *, active: bool = True) -> Session | None:
        """Returns the session of this secret, the cookie's half with the path's; None if it is unknown or has ended.

        Deletes all sessions that have ended.

        Args:
            active: False for a request that the page's script made by itself; it does not prolong the session.
        """
        now_s = self._clock()
        with self._store.transaction() as database:
            # A time ahead of now was written while the clock was wrong.
            session_ended = "seen_at < ? OR created_at < ? OR seen_at > ? OR created_at > ?"
            limits = (now_s - IDLE_S, now_s - SESSION_S, now_s + IDLE_S, now_s + IDLE_S)
            database.execute(f"DELETE FROM session WHERE {session_ended}", limits)  # noqa: S608 - words of ours
            session_row = database.execute(f"{_SESSIONS} WHERE secret = ?", (digest(session_secret),)).fetchone()
            if session_row is not None and active:
                database.execute("UPDATE session SET seen_at = ? WHERE secret = ?", (now_s, session_row["secret"]))
        if session_row is None:
            return None
        return _read_session(session_row, instant(self._clock))

    def sessions(self) -> list[Session]:
        now = instant(self._clock)
        return [_read_session(row, now) for row in self._store.rows(f"{_SESSIONS} ORDER BY seen_at DESC")]

    def end(self, session_secret: str) -> None:
        self._store.rows("DELETE FROM session WHERE secret = ?", digest(session_secret))

    def end_number(self, session_number: int) -> None:
        self._store.rows("DELETE FROM session WHERE number = ?", session_number)

    def leave_message(self, session_secret: str, message: Message) -> None:
        """Stores a message that the session's next page shows once."""
        self._store.rows(
            "UPDATE session SET message = ?, grade = ? WHERE secret = ?",
            message.words,
            message.grade,
            digest(session_secret),
        )

    def take_message(self, session_secret: str) -> Message | None:
        with self._store.transaction() as database:
            row = database.execute(
                "SELECT message, grade FROM session WHERE secret = ?", (digest(session_secret),)
            ).fetchone()
            database.execute(
                "UPDATE session SET message = '' WHERE secret = ? AND message <> ''", (digest(session_secret),)
            )
        if row is None or not row["message"]:
            return None
        return Message(row["message"], row["grade"] or "done")

    # These methods make and check the tokens of scripts.

    def make_token(self, name: str, label: str, *, days: float) -> str:
        """Makes a token that gives a script the person's role by ``Authorization: Bearer``; returns its secret, once.

        Args:
            label: what the token is for, in words.
            days: time until it expires.
        """
        self.person(name)
        token_secret = f"undersong_{secrets.token_urlsafe(32)}"
        now_s = self._clock()
        self._store.rows(
            "INSERT INTO token (secret, account, label, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
            *(digest(token_secret), name, label[:64], now_s, now_s + days * 86400.0),
        )
        return token_secret

    def by_token(self, token_secret: str) -> Account | None:
        """Returns the account of the token with this secret; None if it is unknown or has expired."""
        now_s = self._clock()
        with self._store.transaction() as database:
            # A token that lies ahead of now was made while the clock was wrong, and does not count until then.
            token_query = {"now": now_s, "latest": now_s + IDLE_S, "key": digest(token_secret)}
            still_valid = "secret = :key AND expires_at >= :now AND created_at <= :latest"
            database.execute(f"UPDATE token SET used_at = :now WHERE {still_valid}", token_query)  # noqa: S608 - words of ours
            select_query = f"SELECT account FROM token WHERE {still_valid}"  # noqa: S608
            row = database.execute(select_query, token_query).fetchone()
        if row is None:
            return None
        return self.find(row["account"])

    def tokens(self) -> list[Token]:
        columns = "substr(secret, 1, 12), account, label, created_at, expires_at, used_at"
        return [Token(*row) for row in self._store.rows(f"SELECT {columns} FROM token ORDER BY created_at")]  # noqa: S608

    def end_token(self, identity: str) -> None:
        self._store.rows("DELETE FROM token WHERE substr(secret, 1, 12) = ?", identity)


def source_of(address: str) -> str:
    """Returns the key by which failed log-ins from an address are counted: the address, or its IPv6 network of 64 bits.

    All addresses of this machine share one key.

    >>> source_of("127.8.8.8"), source_of("::1"), source_of("192.0.2.7"), source_of("2001:db8::7:1")
    ('this machine', 'this machine', '192.0.2.7', '2001:db8::/64')
    """
    try:
        ip_address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip_address, ipaddress.IPv6Address):
        ip_address = ip_address.ipv4_mapped or ip_address
    if ip_address.is_loopback:
        return "this machine"
    return str(ip_address if ip_address.version == 4 else ipaddress.ip_network((ip_address, 64), strict=False))


_SESSIONS = (
    "SELECT session.*, role, password, person, let_in_by, let_in_at, let_in_boot, let_in_up,"
    " account.created_at AS added_at FROM session JOIN account ON name = account"
)


def _read_account(row: sqlite3.Row) -> Account:
    return Account(row["name"], row["role"], bool(row["password"]), row["created_at"], bool(row["person"]))


def _read_session(row: sqlite3.Row, now: Instant) -> Session:
    let_in = Instant(row["let_in_at"], row["let_in_boot"], row["let_in_up"])
    account = Account(row["account"], row["role"], bool(row["password"]), row["added_at"], bool(row["person"]))
    return Session(
        row["number"],
        account,
        row["csrf"],
        row["created_at"],
        row["seen_at"],
        row["address"],
        log_in=row["log_in"],
        issuer=row["issuer"],
        subject=row["subject"],
        let_in_by=row["let_in_by"] if abs(let_in.passed_s(now)) < DAY_S else "",
    )
