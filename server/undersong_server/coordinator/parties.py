"""Registry of invited, enrolled and revoked parties with their certificates, in the coordinator's storage.

Several processes use it at once (the serving process and the operator's commands): every change is one
transaction, and the serving process reads anew at each connection.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.enrolment import party_fingerprint, same_fingerprint
from undersong_server.authority import Issued
from undersong_server.database.interface import Database, Statements

SCHEMA_VERSION = 2
RENEWABLE_SHARE = 0.5  # renewal is allowed from this share of a certificate's life on; parties ask when a third is left
RENEWALS_AN_HOUR = 3
CLOCKS_DIFFER_S = 600.0  # largest difference at which two clocks both count as right
VALID_CERTIFICATES = 16  # most valid certificates per party that it may ask for over its stream
EXPIRED = "has expired"  # End of one reason for a refusal. It no longer holds once a wrong clock has been set right.
TOUCHED_EVERY_S = 10  # time between two notes of the times at which connected parties were last heard
INVITED, ENROLLED, REVOKED = "invited", "enrolled", "revoked"
# Reasons that a daemon reports when it does not start; without one, the party counts as away.
NOT_STARTED = {
    "policy": "its daemon does not start: its policy is missing, damaged or not signed by its key",
    "version": "its daemon does not start: its program, or its folder, is of another version",
    "clock": "its daemon does not start: its machine's clock is wrong",
}

SCHEMA = """
CREATE TABLE IF NOT EXISTS party (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, token TEXT NOT NULL, token_expires_at REAL NOT NULL,
    identity TEXT NOT NULL DEFAULT '',
    invited_at REAL NOT NULL, enrolled_at REAL, revoked_at REAL, reason TEXT NOT NULL DEFAULT '',
    last_seen REAL, software TEXT NOT NULL DEFAULT '', embedder TEXT NOT NULL DEFAULT '',
    epsilon_left REAL, paused INTEGER NOT NULL DEFAULT 0, contact TEXT NOT NULL DEFAULT '',
    policy TEXT NOT NULL DEFAULT '', does_not_start TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS certificate (
    serial TEXT PRIMARY KEY, party TEXT NOT NULL, issued_at REAL NOT NULL, expires_at REAL NOT NULL, revoked_at REAL
);
CREATE TABLE IF NOT EXISTS former_identity (party TEXT NOT NULL, identity TEXT NOT NULL, replaced_at REAL NOT NULL);
"""
# Made when the first full name is noted, because a registry that an earlier program made has no such table.
FULL_NAMES = "CREATE TABLE IF NOT EXISTS full_name (party TEXT PRIMARY KEY, words TEXT NOT NULL)"


@dataclass(frozen=True)
class EnrolledParty:
    """A party as the registry knows it. Times are seconds since the epoch, None if the event has not happened.

    Attributes:
        identity: Ed25519 public key (hex), empty until the party is enrolled.
        epsilon_left: remaining epsilon of the hospital's budget, if it shares that.
        certificate_expires_at: end of the newest certificate that is not revoked.
        policy: JSON of the bounds (``agreement.bounds.Policy``) that the hospital has shared; "" for none.
        does_not_start: reason why its daemon does not start, as a key of ``NOT_STARTED``; "" if it has reported none
            since it was connected.
        contact: person to telephone at the party, in the operator's words.
        full_name: full name and town of the hospital, in the operator's words.
        former_identities: keys (hex) that it had enrolled with before, the oldest first.
    """

    name: str
    state: str
    identity: str
    invited_at: float
    enrolled_at: float | None
    revoked_at: float | None
    reason: str
    last_seen: float | None
    software: str
    embedder: str
    epsilon_left: float | None
    paused: bool
    certificate_expires_at: float | None
    former_identities: tuple[str, ...] = ()
    contact: str = ""
    full_name: str = ""
    policy: str = ""
    does_not_start: str = ""


class Registry:
    """The parties in a database. Every method is one transaction; safe between threads and processes.

    Args:
        database: holds the registry's tables; :class:`undersong_server.database.storage.Storage` opens it.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        # The last accepted certificates (serials by party), the state of the file then, and when the first expires.
        self._accepted: tuple[dict[str, str], object, float] = ({}, None, 0.0)

    def close(self) -> None:
        self.database.close()

    def invite(
        self, name: str, token: bytes, *, expires_at: float, now: float, again: bool = False, contact: str = ""
    ) -> None:
        """Notes an invitation to a party of a valid name; inviting again replaces a token that was not used.

        Args:
            contact: person to telephone; "" keeps the earlier one.
            again: True if an enrolled party may enrol with a new identity key; until then the present one stays valid.

        Raises ConfigurationError for a name that is revoked, or enrolled without ``again``.
        """
        with self.database.writing(alone=True) as database:
            party_row = self._row(name)
            if party_row is not None and party_row["state"] == ENROLLED and not again:
                raise ConfigurationError(
                    f"{name}: is enrolled already",
                    f"if the hospital left or lost its folder: undersong invite {name} --again; else another name",
                    code="already-enrolled",
                )
            if party_row is not None and party_row["state"] == REVOKED:
                raise ConfigurationError(
                    f"{name}: was revoked; a name is never given again",
                    "invite it under another name",
                    code="party-revoked",
                )
            database.execute(
                "INSERT INTO party (name, state, token, token_expires_at, invited_at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET token = excluded.token,"
                " token_expires_at = excluded.token_expires_at, invited_at = excluded.invited_at",
                (name, INVITED, token.hex(), expires_at, now),
            )
            if contact:
                database.execute("UPDATE party SET contact = ? WHERE name = ?", (contact[:200], name))

    def note_contact(self, name: str, contact: str) -> None:
        """Notes whom to telephone at an invited party; "" for nobody. Raises ConfigurationError for another name."""
        with self.database.writing(alone=True) as database:
            self._require_row(name)
            database.execute("UPDATE party SET contact = ? WHERE name = ?", (contact[:200], name))

    def note_full_name(self, name: str, full_name: str) -> None:
        """Notes an invited party's full name and town; "" for none. Raises ConfigurationError for another name."""
        with self.database.writing(alone=True) as database:
            self._require_row(name)
            database.execute(FULL_NAMES)
            database.execute(
                "INSERT INTO full_name VALUES (?, ?) ON CONFLICT (party) DO UPDATE SET words = excluded.words",
                (name, full_name),
            )

    def full_names(self) -> dict[str, str]:
        """Full name and town by party; a party without one is left out."""
        if not self.database.has_table("full_name"):
            return {}
        name_rows = self.database.rows("SELECT party, words FROM full_name ORDER BY party")
        return {name_row["party"]: name_row["words"] for name_row in name_rows if name_row["words"]}

    def token(self, name: str, *, now: float) -> bytes:
        """The invitation's token. Raises ConfigurationError for a name without an open invitation."""
        party_row = self._require_row(name)
        if party_row["state"] == REVOKED or not party_row["token"]:
            raise ConfigurationError(
                f"{name}: its invitation was used already, or the party was revoked",
                "see its state in `undersong parties`",
                code="invitation-used",
            )
        # An invitation of a time to come was made while the clock was wrong, and would be valid for too long.
        if party_row["token_expires_at"] < now or party_row["invited_at"] > now + CLOCKS_DIFFER_S:
            raise ConfigurationError(
                f"{name}: its invitation has expired",
                f"invite it again: undersong invite {name}",
                code="invitation-expired",
            )
        return bytes.fromhex(party_row["token"])

    def enrol(
        self,
        name: str,
        identity: bytes,
        issued_certificate: Issued,
        *,
        now: float,
        stream_serial: str | None = None,
        replaces: str | None = None,
        renewal: bool = False,
    ) -> None:
        """Notes a party's identity key and its certificate; a renewal keeps the older one valid until it expires.

        Args:
            renewal: True for a renewal by an enrolled party; an invitation that waits for its new keys stays open.
            replaces: fingerprint of the identity key that the party had until now and that the operator replaces; its
                certificates are revoked. None where no key may be replaced.
            stream_serial: serial number of the certificate of the stream over which the party asked; None where the
                operator signs.

        Raises ConfigurationError where the name is revoked, was never invited, or has another identity key already,
        where ``replaces`` is not its key's, and, for what was asked over a stream, as :meth:`check_renewal` does.
        """
        with self.database.writing(alone=True) as database:
            if stream_serial is not None:
                # The check is repeated in the transaction that adds the certificate: several streams may ask at once.
                self._check_renewal(name, stream_serial, now)
            party_row = self._require_row(name)
            if party_row["state"] == REVOKED:
                raise ConfigurationError(f"{name}: was revoked", "invite it under another name", code="party-revoked")
            former_key = bytes.fromhex(party_row["identity"])
            _check_replacement(name, former_key, identity, replaces)
            if former_key and former_key != identity:
                _end_former_identity(database, name, former_key, now)
            _check_identity_is_free(database, name, identity)
            database.execute(
                "UPDATE party SET state = ?, identity = ?, enrolled_at = COALESCE(enrolled_at, ?) WHERE name = ?",
                (ENROLLED, identity.hex(), now, name),
            )
            if not renewal:
                database.execute("UPDATE party SET token = '' WHERE name = ?", (name,))
            database.execute(
                "INSERT INTO certificate (serial, party, issued_at, expires_at) VALUES (?, ?, ?, ?)",
                (issued_certificate.serial, name, now, issued_certificate.expires_at),
            )

    def check_renewal(self, name: str, serial: str, *, now: float) -> None:
        """Checks that a party may have another certificate over the stream that shows the certificate ``serial``.

        Raises ConfigurationError: that certificate has more than half of its life left, or the party was given
        several already, within an hour or in all (one may be lost on its way, so one is not enough).
        """
        self._check_renewal(name, serial, now)

    def _check_renewal(self, name: str, serial: str, now: float) -> None:
        certificate_rows = self.database.rows(
            "SELECT serial, issued_at, expires_at FROM certificate WHERE party = ? AND revoked_at IS NULL", (name,)
        )
        presented_row = next(
            (certificate_row for certificate_row in certificate_rows if certificate_row["serial"] == serial), None
        )
        if presented_row is None:
            raise ConfigurationError(
                f"{name}: shows a certificate that was not issued to it", "enrol again", code="unknown-certificate"
            )
        renewable_from = presented_row["expires_at"] - RENEWABLE_SHARE * (
            presented_row["expires_at"] - presented_row["issued_at"]
        )
        if now < renewable_from and presented_row["issued_at"] <= now + CLOCKS_DIFFER_S:
            raise ConfigurationError(
                f"{name}: its certificate may be renewed in {(renewable_from - now) / 86400:.1f} days",
                "ask again then",
                code="renewal-too-early",
            )
        # Certificates from while the clock was ahead cannot be used, so they do not count against the limits.
        certificate_rows = [row for row in certificate_rows if row["issued_at"] <= now + CLOCKS_DIFFER_S]
        if sum(row["issued_at"] > now - 3600.0 for row in certificate_rows) >= RENEWALS_AN_HOUR:
            raise ConfigurationError(
                f"{name}: was given {RENEWALS_AN_HOUR} certificates within an hour, the most that are allowed",
                "install one of them, or wait",
                code="renewals-too-often",
            )
        if sum(row["expires_at"] > now for row in certificate_rows) >= VALID_CERTIFICATES:
            raise ConfigurationError(
                f"{name}: has {VALID_CERTIFICATES} valid certificates already, the most that a party may have",
                "install the newest, or let the operator sign",
                code="too-many-certificates",
            )

    def revoke(self, name: str, reason: str, *, now: float) -> None:
        """Shuts a party out for good, with all its certificates."""
        with self.database.writing(alone=True) as database:
            self._require_row(name)
            database.execute(
                "UPDATE party SET state = ?, revoked_at = COALESCE(revoked_at, ?), reason = ? WHERE name = ?",
                (REVOKED, now, reason, name),
            )
            database.execute("UPDATE certificate SET revoked_at = COALESCE(revoked_at, ?) WHERE party = ?", (now, name))

    def refusal(self, name: str, serial: str, *, now: float) -> str:
        """The reason why a verified certificate is refused; empty if it is accepted."""
        certificate_rows = self.database.rows("SELECT * FROM certificate WHERE serial = ?", (serial,))
        party = self._row(name)
        certificate = certificate_rows[0] if certificate_rows else None
        return _refusal(name, serial, party["state"] if party else None, certificate, now)

    def refusals(self, presented: Mapping[str, str], *, now: float) -> dict[str, str]:
        """Reasons, by party, why verified certificates (serials by party) are refused; accepted parties are left out.

        It is called each second, so it returns its last answer again while the certificates are the same, nobody has
        written to the file, and none of the certificates has expired.
        """
        database_mark = self.database.mark()
        accepted_serials, accepted_mark, valid_until = self._accepted
        if accepted_mark == database_mark and accepted_serials == presented and now <= valid_until:
            return {}
        state_by_party = {row["name"]: row["state"] for row in self.database.rows("SELECT name, state FROM party")}
        certificate_rows = self.database.rows("SELECT serial, party, revoked_at, expires_at FROM certificate")
        certificate_by_serial = {row["serial"]: row for row in certificate_rows}
        problem_by_party = {
            party_name: _refusal(
                party_name, serial, state_by_party.get(party_name), certificate_by_serial.get(serial), now
            )
            for party_name, serial in presented.items()
        }
        refusals = {party_name: problem for party_name, problem in problem_by_party.items() if problem}
        if not refusals:
            valid_until = min(
                (certificate_by_serial[serial]["expires_at"] for serial in presented.values()), default=math.inf
            )
            self._accepted = dict(presented), database_mark, valid_until
        return refusals

    def seen(
        self,
        name: str,
        *,
        now: float,
        software: str,
        embedder: str,
        epsilon_left: float | None,
        paused: bool,
        policy: str = "",
    ) -> None:
        """Notes when the party connected, and the facts that it then stated of itself."""
        with self.database.writing() as database:
            database.execute(
                "UPDATE party SET last_seen = ?, software = ?, embedder = ?, epsilon_left = ?, paused = ?,"
                " policy = ?, does_not_start = '' WHERE name = ?",
                (now, software[:80], embedder, epsilon_left, int(paused), policy, name),
            )

    def refused_start(self, name: str, reason: str) -> None:
        """Notes the reason (a key of ``NOT_STARTED``) why a party's daemon does not start."""
        with self.database.writing() as database:
            database.execute("UPDATE party SET does_not_start = ? WHERE name = ?", (reason, name))

    def touch(self, heard_at_by_party: dict[str, float]) -> None:
        """Notes the time at which each party's last frame arrived, by party, in seconds since the epoch."""
        with self.database.writing() as database:
            database.executemany(
                "UPDATE party SET last_seen = ? WHERE name = ?",
                [(time_s, party_name) for party_name, time_s in heard_at_by_party.items()],
            )

    def party(self, name: str) -> EnrolledParty:
        """The party of that name. Raises ConfigurationError for an unknown name."""
        self._require_row(name)
        return next(party for party in self.parties() if party.name == name)

    def parties(self) -> list[EnrolledParty]:
        """Every party that was ever invited, by name."""
        party_rows = self.database.rows(
            "SELECT party.*, (SELECT MAX(expires_at) FROM certificate"
            " WHERE certificate.party = party.name AND certificate.revoked_at IS NULL) AS expires_at"
            " FROM party ORDER BY name"
        )
        former_rows = self.database.rows("SELECT party, identity FROM former_identity ORDER BY replaced_at")
        full_names = self.full_names()
        return [
            EnrolledParty(
                name=party_row["name"],
                state=party_row["state"],
                identity=party_row["identity"],
                invited_at=party_row["invited_at"],
                enrolled_at=party_row["enrolled_at"],
                revoked_at=party_row["revoked_at"],
                reason=party_row["reason"],
                last_seen=party_row["last_seen"],
                software=party_row["software"],
                embedder=party_row["embedder"],
                epsilon_left=party_row["epsilon_left"],
                paused=bool(party_row["paused"]),
                certificate_expires_at=party_row["expires_at"],
                contact=party_row["contact"],
                full_name=full_names.get(party_row["name"], ""),
                policy=party_row["policy"],
                does_not_start=party_row["does_not_start"],
                former_identities=tuple(
                    former_row["identity"] for former_row in former_rows if former_row["party"] == party_row["name"]
                ),
            )
            for party_row in party_rows
        ]

    def identities(self) -> dict[str, bytes]:
        """Identity key of each party that has enrolled, including parties that were revoked since."""
        return {party.name: bytes.fromhex(party.identity) for party in self.parties() if party.identity}

    def _row(self, name: str) -> Any:
        party_rows = self.database.rows("SELECT * FROM party WHERE name = ?", (name,))
        if party_rows:
            return party_rows[0]
        return None

    def _require_row(self, name: str) -> Any:
        party_row = self._row(name)
        if party_row is None:
            raise ConfigurationError(
                f"{name!r}: no such party", f"invite it with `undersong invite {name}`", code="unknown-party"
            )
        return party_row


def _refusal(name: str, serial: str, state: str | None, certificate: Any, now: float) -> str:
    """The reason to refuse a certificate; "" for none. ``state``: the party's; None if no such party was invited."""
    if state is None:
        return f"no party {name!r} was invited"
    if state == REVOKED:
        return f"{name} was revoked"
    if certificate is None or certificate["party"] != name:
        return f"the certificate {serial[:12]} was not issued to {name}"
    if certificate["revoked_at"] is not None:
        return f"the certificate {serial[:12]} of {name} was revoked"
    if certificate["expires_at"] < now:
        return f"the certificate {serial[:12]} of {name} {EXPIRED}"
    return ""


def _check_replacement(name: str, former_key: bytes, identity: bytes, replaces: str | None) -> None:
    """Raises ConfigurationError for another identity key than the party has, unless the operator replaces that one.

    Args:
        former_key: the party's key until now; empty for a party without one.
        replaces: as of :meth:`Registry.enrol`.
    """
    if replaces is not None and not (former_key and same_fingerprint(replaces, party_fingerprint(name, former_key))):
        raise ConfigurationError(
            f"{name}: --replaces states another fingerprint than that of its present key",
            "see `undersong parties`",
            code="other-fingerprint",
        )
    if former_key and former_key != identity and replaces is None:
        raise ConfigurationError(
            f"{name}: is enrolled with another identity key",
            f"if the hospital has lost its folder: undersong invite {name} --again, then undersong sign"
            " with its new fingerprint and, by --replaces, the old one; else it must use its first folder",
            code="other-identity",
        )


def _end_former_identity(database: Statements, name: str, former_key: bytes, now: float) -> None:
    """Notes the identity key that a party had until now, and revokes its certificates."""
    former_identity = (name, former_key.hex(), now)
    database.execute("INSERT INTO former_identity (party, identity, replaced_at) VALUES (?, ?, ?)", former_identity)
    database.execute("UPDATE certificate SET revoked_at = COALESCE(revoked_at, ?) WHERE party = ?", (now, name))


def _check_identity_is_free(database: Statements, name: str, identity: bytes) -> None:
    """Raises ConfigurationError for an identity key that another party has or had."""
    other_party = database.execute(
        "SELECT name FROM (SELECT name, identity FROM party"
        " UNION SELECT party, identity FROM former_identity) AS known"
        " WHERE identity = ? AND name <> ?",
        (identity.hex(), name),
    ).fetchone()
    if other_party is not None:
        raise ConfigurationError(
            f"{name}: its identity key is that of {other_party['name']}",
            "have the hospital make keys of its own, with a folder of its own",
            code="identity-taken",
        )
