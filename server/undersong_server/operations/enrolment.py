"""The parties of a coordinator: invite, sign, revoke, list."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from undersong_common.errors import ConfigurationError
from undersong_common.pages.store import Offer
from undersong_common.printable import counted, joined, printable
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement.enrolment import (
    EnrolmentRequest,
    check_party_name,
    party_fingerprint,
    same_fingerprint,
)
from undersong_protocol.agreement.words import first_difference
from undersong_server import defaults
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import ENROLLED, INVITED, NOT_STARTED, TOUCHED_EVERY_S, EnrolledParty
from undersong_server.operations.contacts import full_name_line, reachable_contact
from undersong_server.runs.folder import read_json, replace_json

PACKAGE, GRANT = "package", "grant"  # suffixes of the files for a hospital: party.package, party.grant
LEFT_OUT_FILE = "left-out.json"  # in the coordinator's folder: the hospitals that new runs leave out
UNFETCHED_S = 300.0  # time to download a file for a hospital before that is urgent; its link ends after 15 minutes
# After KEEPALIVE_S of silence a living party sends a ping, and the registry notes it within TOUCHED_EVERY_S.
LONGEST_SILENCE_S = 1.5 * defaults.KEEPALIVE_S + TOUCHED_EVERY_S


@dataclass(frozen=True)
class Invitation:
    """A signed enrolment package for one hospital, to be handed over like a password.

    Attributes:
        package: the file's bytes; it holds the token that admits one request.
        fingerprint: fingerprint of the coordinator; hospitals get it over another channel than the package.
        expires_at: seconds since the epoch.
    """

    party: str
    package: bytes = field(repr=False)
    fingerprint: str
    expires_at: float


def invite(
    home: Path,
    party: str,
    *,
    days: float = defaults.INVITATION_DAYS,
    again: bool = False,
    contact: str = "",
    full_name: str = "",
) -> Invitation:
    """Invites a party, or invites it again; a token that was not used is replaced.

    Args:
        again: True for an enrolled party that has lost its keys; the old ones stay valid until it has new ones.
        contact: telephone contact, displayed while a run waits for the party's approval; "" keeps the former one.
        full_name: full name and town of the hospital, which plans state from now on; "" keeps the former one.

    Raises ConfigurationError for a name that is invalid, revoked, or enrolled without ``again``, for a contact without
    a number or an address, and for a full name that nobody can read.
    """
    if (proposed_name := short_name(party)) not in ("", party):
        raise ConfigurationError(
            f"{printable(party, 100)}: is no short name, which has lower-case letters, digits, - and _",
            f"write {proposed_name}, and the name in full in its own field",
            code="name-not-short",
        )
    coordinator_home = CoordinatorHome(home)
    stated_contact, stated_full_name = reachable_contact(contact), full_name_line(full_name)
    invitation_package = coordinator_home.invite(party, now=time.time(), days=days, again=again, contact=stated_contact)
    if stated_full_name:
        note_full_name(home, party, stated_full_name)
    return Invitation(
        party,
        invitation_package.sign(coordinator_home.authority().signing_key),
        invitation_package.fingerprint,
        invitation_package.expires_s,
    )


def short_name(name: str) -> str:
    """Turns any name into a short name, by which a hospital can be invited; "" if it has no Latin letter or digit."""
    try:
        return check_party_name(name)
    except ConfigurationError:
        return re.sub(r"[^a-z0-9_]+", "-", name.casefold())[:63].strip("-_")


def enrolled(home: Path) -> "list[PartyFacts]":
    """Returns the hospitals that are enrolled now."""
    return [party for party in parties(home) if party.party.state == ENROLLED]


def missing_words(home: Path) -> str:
    """Says what comes before a run where no hospital is enrolled: how many are invited, and what to do."""
    invited_parties = [party for party in parties(home) if party.party.state == INVITED]
    if not invited_parties:
        return "No hospital is invited yet: invite hospitals first."
    is_are = "is" if len(invited_parties) == 1 else "are"
    return f"{counted(len(invited_parties), 'hospital')} {is_are} invited, none is signed: sign their requests."


def note_contact(home: Path, party: str, contact: str) -> None:
    """Notes whom to telephone at a party, in place of what was noted; "" for nobody. It is never sent.

    Raises ConfigurationError for a name that was not invited, and for a contact without a number or an address.
    """
    with closing(CoordinatorHome(home).registry()) as registry:
        registry.note_contact(party, reachable_contact(contact))


def note_full_name(home: Path, party: str, full_name: str) -> None:
    """Notes a hospital's full name and town, in place of what was noted; "" for none. Plans made afterwards state it.

    Raises ConfigurationError for a name that was not invited, and for a full name that nobody can read.
    """
    with closing(CoordinatorHome(home).registry()) as registry:
        registry.note_full_name(party, full_name_line(full_name))


def full_names(home: Path) -> dict[str, str]:
    """Returns the full names that are noted, by party."""
    with closing(CoordinatorHome(home).registry()) as registry:
        return registry.full_names()


@dataclass(frozen=True)
class Enrolled:
    """A party that was enrolled, that was given another identity key, or whose certificate was renewed.

    Attributes:
        grant: the file's bytes for the hospital; it holds no secret.
        request_fingerprint: fingerprint of the request that was signed.
    """

    party: str
    kind: Literal["enrolled", "replaced", "renewed"]
    grant: bytes = field(repr=False)
    request_fingerprint: str


class OtherFingerprint(ConfigurationError):
    """Error of a request with another fingerprint than the hospital states; ``words`` say it in the audit log."""

    def __init__(self, party: str, stated: str, fingerprint: str) -> None:
        super().__init__(
            f"what was typed is not the fingerprint of this request, which is in the name of {party}",
            "have the hospital read its fingerprint again, and type each word as you hear it; if it differs again, ask"
            " which request file is the hospital's; if it knows of one only, invite it again",
            code="other-fingerprint",
        )
        fingerprint_groups = stated.replace("-", " ").split()
        self.words = (
            f"{party}, not the request's fingerprint: {first_difference(fingerprint_groups, fingerprint.split('-'))}"
        )


def sign(
    home: Path,
    request: bytes,
    *,
    fingerprint: str | None = None,
    replaces: str | None = None,
    days: float | None = None,
) -> Enrolled:
    """Checks a hospital's request against its invitation and enrols the party.

    Args:
        request: the bytes of the request file.
        fingerprint: the request's fingerprint as the hospital states it by telephone or on paper. None only for a
            renewal, which the enrolled identity key has signed: anyone who intercepted the package could have made
            any other request.
        replaces: the party's fingerprint until now, for a hospital that has lost its keys: the operator agrees that
            the request's key takes its place.
        days: life of the certificate; None gives the authority's default.

    Raises ConfigurationError if invitation, fingerprint or keys do not match; it names the mismatch.
    """
    parsed_request = EnrolmentRequest.parse(request)
    if fingerprint is None and not parsed_request.renewal:
        raise ConfigurationError(
            f"the fingerprint of {parsed_request.party}'s request was not compared: anyone who has read its package"
            " could have"
            " made this request",
            "have the hospital read its fingerprint to you by telephone, and type it (--fingerprint)",
            code="fingerprint-not-compared",
        )
    if fingerprint is not None and not same_fingerprint(fingerprint, parsed_request.fingerprint):
        # The message leaves out the request's own fingerprint: it would be copied, not compared.
        raise OtherFingerprint(parsed_request.party, fingerprint, parsed_request.fingerprint)
    grant = CoordinatorHome(home).sign(parsed_request, now=time.time(), days=days, replaces=replaces)
    if parsed_request.renewal:
        signing_kind: Literal["enrolled", "replaced", "renewed"] = "renewed"
    else:
        signing_kind = "enrolled"
    return Enrolled(
        parsed_request.party, "replaced" if replaces is not None else signing_kind, grant, parsed_request.fingerprint
    )


def revoke(home: Path, party: str, reason: str = "") -> None:
    """Shuts a party out for good, with every certificate it has; its stream ends within seconds.

    Raises ConfigurationError for an unknown name.
    """
    CoordinatorHome(home).revoke(party, reason, now=time.time())


def leave_out(home: Path, party: str, *, is_left_out: bool) -> None:
    """Leaves a party out of new runs, or takes it in again; it stays enrolled, and started runs keep it.

    Raises ConfigurationError for a party that is not enrolled.
    """
    _enrolled(home, [party])
    other_names = _left_out(home) - {party}
    left_out_names = other_names | {party} if is_left_out else other_names
    replace_json(CoordinatorHome(home).path / LEFT_OUT_FILE, {"parties": sorted(left_out_names)}, durable=True)


def _left_out(home: Path) -> frozenset[str]:
    left_out_json = read_json(CoordinatorHome(home).path / LEFT_OUT_FILE) or {}
    return frozenset(map(str, left_out_json.get("parties", ())))


@dataclass(frozen=True)
class PartyFacts:
    """A party as the registry knows it, and whether it is connected to the serving process now.

    Attributes:
        is_left_out: new runs leave it out until the operator takes it in again.
        stated_at: time at which it has connected last and stated its facts; None if that is not known.
    """

    party: EnrolledParty
    connected: bool
    is_left_out: bool = False
    stated_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        former_fingerprints = [
            party_fingerprint(self.party.name, bytes.fromhex(identity)) for identity in self.party.former_identities
        ]
        party_json = {
            field_name: field_value
            for field_name, field_value in asdict(self.party).items()
            if field_name != "former_identities"
        }
        derived_facts = {
            "fingerprint": self.fingerprint,
            "former_fingerprints": former_fingerprints,
            "connected": self.connected,
            "is_left_out": self.is_left_out,
            "stated_at": self.stated_at,
        }
        return {**party_json, **derived_facts, "silent_s": self.silent_s, "away_because": self.away_because}

    @property
    def shared_policy(self) -> bounds.Policy | None:
        """Bounds that the hospital has shared; None if it shares none, or its program is of another version."""
        try:
            return bounds.Policy.from_json(json.loads(self.party.policy))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    @property
    def silent_s(self) -> float:
        """Seconds since a connected party was last heard, if that is too long for one that answers; otherwise 0."""
        last_seen = self.party.last_seen
        if not self.connected or last_seen is None:
            return 0.0
        silent_s = time.time() - last_seen
        if silent_s > LONGEST_SILENCE_S:
            return silent_s
        return 0.0

    @property
    def away_because(self) -> str:
        """Known reason why an enrolled party is away; "" if it is connected or nothing is known."""
        if self.connected or self.party.state != ENROLLED:
            return ""
        expires_at = self.party.certificate_expires_at
        if expires_at is not None and expires_at < time.time():
            return "its certificate has ended"
        return NOT_STARTED.get(self.party.does_not_start, "")

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its identity key, as its hospital reads it out; "" until it is enrolled."""
        identity_key = bytes.fromhex(self.party.identity)
        if identity_key:
            return party_fingerprint(self.party.name, identity_key)
        return ""


@dataclass(frozen=True)
class UnfetchedFile:
    """A hospital's package or reply that was made for download, and that nobody has downloaded.

    ``since``: seconds since the epoch.
    """

    name: str
    kind: Literal["package", "reply"]
    since: float

    @property
    def words(self) -> str:
        return f"its {self.kind} was made and never downloaded"

    @property
    def is_overdue(self) -> bool:
        """Returns True if the file was made more than ``UNFETCHED_S`` ago, or by a clock that was ahead of now."""
        return not 0.0 <= time.time() - self.since < UNFETCHED_S


def unfetched_file(facts: PartyFacts, offers: Mapping[str, Offer]) -> UnfetchedFile | None:
    """Returns the file that a hospital waits for because nobody has downloaded it; None if there is none.

    Args:
        offers: the files that the console has made, by name.
    """
    party = facts.party
    kind: Literal["package", "reply"] = "package" if party.state == INVITED else "reply"
    file_name = f"{party.name}.{PACKAGE if kind == 'package' else GRANT}"
    offer = offers.get(file_name)
    if offer is None or offer.fetched_at is not None or party.state not in (INVITED, ENROLLED):
        return None
    # A later invitation by command has made this package invalid; a hospital that connects has its reply.
    overtaken_at = party.invited_at if kind == "package" else (party.last_seen or 0.0)
    if overtaken_at > offer.made_at:
        return None
    return UnfetchedFile(file_name, kind, offer.made_at)


def parties(home: Path) -> tuple[PartyFacts, ...]:
    """Every party that was ever invited, by name."""
    coordinator_home = CoordinatorHome(home)
    serving, left_out_names = coordinator_home.serving, _left_out(home)
    connected_names: Sequence[str] = () if serving is None else serving.connected
    stated_at_by_name: Mapping[str, float] = {} if serving is None else serving.stated_at
    with closing(coordinator_home.registry()) as registry:
        return tuple(
            PartyFacts(
                party, party.name in connected_names, party.name in left_out_names, stated_at_by_name.get(party.name)
            )
            for party in registry.parties()
        )


def roster(home: Path, names: Sequence[str] | None) -> tuple[str, ...]:
    """The named parties, sorted, or everyone enrolled whom the operator has not left out.

    Raises ConfigurationError for a name that is not enrolled or is left out, and where nobody remains.
    """
    if names is not None:
        named_parties = _enrolled(home, names)
        refuse_left_out(home, named_parties)
        return named_parties
    enrolled_identities = identities(home)
    if not enrolled_identities:
        raise ConfigurationError(
            "no party is enrolled", "invite and sign them first: undersong invite NAME", code="nobody-enrolled"
        )
    remaining_names = tuple(remaining(home, list(enrolled_identities)))
    if not remaining_names:
        raise ConfigurationError(
            "every enrolled party is left out of new runs",
            "take one in again by `undersong leave-out NAME --undo`",
            code="nobody-enrolled",
        )
    return remaining_names


def _enrolled(home: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The named parties, sorted. Raises ConfigurationError for a name that is not enrolled, and for none."""
    if not names:
        raise ConfigurationError(
            "no party was named", "name a party that `undersong parties` shows as enrolled", code="not-enrolled"
        )
    enrolled_identities = identities(home)
    unknown_names = [name for name in names if name not in enrolled_identities]
    if unknown_names:
        raise ConfigurationError(
            f"not enrolled: {', '.join(unknown_names)}",
            "name parties that `undersong parties` shows as enrolled",
            code="not-enrolled",
        )
    return tuple(sorted(set(names)))


def refuse_left_out(home: Path, names: Sequence[str], run: str = "") -> None:
    """Raises ConfigurationError if new runs leave one of the named parties out.

    Args:
        run: the run that was planned with these parties and is not started yet; "" for one that is being planned.
    """
    left_out_names = sorted(_left_out(home).intersection(names))
    if not left_out_names:
        return
    shown_names = joined(left_out_names)
    remaining_words = f"revise run {run!r} without {shown_names}" if run else "name the other parties only"
    raise ConfigurationError.together(
        [
            (
                f"federation.parties: new runs leave out {shown_names}",
                f"{remaining_words}, or take {shown_names} into new runs again: `undersong leave-out NAME --undo`",
                "parties",
            )
        ],
        code="left-out",
    )


def remaining(home: Path, names: Sequence[str]) -> list[str]:
    """The named parties without those that new runs leave out, in their order."""
    left_out_names = _left_out(home)
    return [name for name in names if name not in left_out_names]


def identities(home: Path) -> dict[str, bytes]:
    """Ed25519 public key, 32 bytes, of every enrolled party by name."""
    with closing(CoordinatorHome(home).registry()) as registry:
        return {party.name: bytes.fromhex(party.identity) for party in registry.parties() if party.state == ENROLLED}
