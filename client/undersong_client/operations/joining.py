"""Actions for joining a coordinator: read a package, make a request, install a grant. They send nothing."""

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from undersong_client import keys
from undersong_client.consent import policy, trust, two_people
from undersong_client.consent.people import Person, note_decision
from undersong_client.home import PartyHome, PartySettings, make_folder
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import replace_file
from undersong_common.models import embedders
from undersong_common.models.model_files import MAX_WINDOWS
from undersong_common.program.drill import invent_records
from undersong_protocol.agreement.enrolment import Package, check_party_name, party_fingerprint
from undersong_protocol.agreement.words import first_difference

DRILL_RECORDS = 120  # invented records of a drill
STEPS = ("coordinator", "data", "budget", "questions")  # a hospital does these before its daemon starts
BACKUP = (
    "back up keys/, policy.json and coordinator.json, after every run the ledger"
    " (undersong-party ledger --backup FILE) and the evidence (undersong-party evidence FILE),"
    " and never the whole folder"
)


def create(
    home: Path,
    name: str,
    *,
    embedder: str = "packaged",
    max_windows: int = MAX_WINDOWS,
    insecure_noise_seed: int | None = None,
    drill: bool = False,
) -> PartyHome:
    """Makes a party's folder with its keys and a policy that allows nothing yet.

    Args:
        embedder: "packaged", the folder of a local model, or another package's with its hash (docs/extending.md).
        max_windows: windows of a long text that the embedder reads; a run's task file must state the same number.
        insecure_noise_seed: tests only; reproducible keys and noise, no privacy.
        drill: True makes a rehearsal's folder with a file of invented records, the only data set that it accepts.

    Raises ConfigurationError for an invalid name, a folder that is not empty, or a missing or broken embedder.
    """
    check_party_name(name)
    embedders.check_pinned(embedder)
    settings = PartySettings(
        party=name,
        embedder=embedder,
        max_windows=max_windows,
        insecure_noise_seed=insecure_noise_seed,
        drill=drill,
    )
    embedders.check(embedder, max_windows)
    party_home = PartyHome.create(home, settings)
    keys.create(party_home)
    policy.write(party_home, policy.HospitalPolicy())
    if drill:
        invented_records = invent_records(DRILL_RECORDS, random.SystemRandom())
        json_lines = (
            json.dumps({"text": record.text, "label": record.label, "keeper": record.person})
            for record in invented_records
        )
        record_lines = "".join(f"{json_line}\n" for json_line in json_lines).encode("utf-8")
        make_folder(party_home.drill_records.parent)
        replace_file(party_home.drill_records, record_lines)
        party_home.change(drill_sha256=hashlib.sha256(record_lines).hexdigest())
    return party_home


@dataclass(frozen=True)
class MadeRequest:
    """A request for a certificate: the file's bytes for the operator, and the fingerprint to read out to them."""

    party: str
    data: bytes = field(repr=False)
    fingerprint: str


def accept(
    home: Path, package: bytes, ask_fingerprint: Callable[[str], str], *, person: Person | None = None
) -> MadeRequest:
    """Trusts the coordinator of a package after comparing its fingerprint, and makes the enrolment request.

    If ``home`` holds no party yet, a party of the package's name is made first.

    Args:
        ask_fingerprint: returns the fingerprint that the operator told by telephone or on paper, for the coordinator's
            name in the package. It must not show the package's own fingerprint before.
        person: whoever trusts the coordinator.

    Raises ConfigurationError if the package is not for this party, or if its fingerprint is another one;
    WaitsForSecondPerson if another person must agree to trust the coordinator.
    """
    if not (home / "settings.json").exists():
        parsed_package = Package.parse(package)
        fingerprint = ask_fingerprint(parsed_package.coordinator)
        trust.compare(parsed_package, fingerprint)
        create(home, parsed_package.party)
        return accept(home, package, lambda _coordinator: fingerprint)
    party_home = PartyHome(home)
    checked_package = trust.check_package(party_home, package, now_s=time.time())
    fingerprint = ask_fingerprint(checked_package.coordinator)
    try:
        trust.compare(checked_package, fingerprint)
    except ConfigurationError:
        differing_word = first_difference(fingerprint.replace("-", " ").split(), checked_package.fingerprint.split("-"))
        note_decision(
            party_home,
            "enroll refused",
            f"{checked_package.coordinator}, not the package's fingerprint: {differing_word}",
            person,
        )
        raise
    former_policy = policy.read(party_home)
    two_people.check_loosening(
        party_home, former_policy, replace(former_policy, coordinators=(checked_package.fingerprint,)), person
    )
    return _describe_request(party_home, trust.accept(party_home, checked_package, fingerprint))


def steps_left(home: Path, package: bytes) -> tuple[str, ...]:
    """Returns those of ``STEPS`` that the party in ``home`` has still to do; all of them if there is no party yet."""
    parsed_package = Package.parse(package)
    if not (home / "settings.json").exists():
        return STEPS
    party_home = PartyHome(home)
    current_policy = policy.read(party_home)
    has_joined = (
        party_home.coordinator.exists() and trust.coordinator(party_home).fingerprint == parsed_package.fingerprint
    )
    done_by_step = {
        "coordinator": has_joined,
        "data": bool(party_home.settings.data),
        "budget": current_policy.has_budget,
        "questions": bool(current_policy.statistics),
    }
    return tuple(step for step in STEPS if not done_by_step[step])


def request(home: Path, package: bytes) -> MadeRequest:
    """Makes another request to a coordinator that is trusted already. It has a new key: earlier requests are void."""
    party_home = PartyHome(home)
    return _describe_request(party_home, trust.request(party_home, Package.parse(package).token))


def renew(home: Path) -> MadeRequest:
    """Makes a request for a new certificate. Raises ConfigurationError if the party has joined no coordinator."""
    party_home = PartyHome(home)
    trust.coordinator(party_home)
    return _describe_request(party_home, trust.request(party_home, None))


def _describe_request(home: PartyHome, data: bytes) -> MadeRequest:
    return MadeRequest(home.settings.party, data, own_fingerprint(home))


def own_fingerprint(home: PartyHome) -> str:
    """Returns this party's fingerprint, which the operator and other hospitals compare."""
    return party_fingerprint(home.settings.party, keys.identity(home).public_key().public_bytes_raw())


@dataclass(frozen=True)
class Installed:
    """A certificate that was installed.

    Attributes:
        until: end of its validity.
        renewed: True if it replaced another one.
        addresses: the coordinator's addresses, where they are others than before.
    """

    until: datetime
    renewed: bool
    addresses: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The beginning of a sentence that states the result."""
        if self.renewed:
            outcome_words = "the certificate is renewed: it"
        else:
            outcome_words = "enrolled; the certificate"
        moved_words = ""
        if self.addresses:
            moved_words = f"the coordinator is reached at {', '.join(self.addresses)} from now on; "
        return f"{moved_words}{outcome_words} is valid until {self.until:%Y-%m-%d}"


def install(home: Path, grant: bytes) -> Installed:
    """Installs the certificate of a grant. Raises ConfigurationError if the grant is not for this party."""
    party_home = PartyHome(home)
    is_renewal = keys.is_enrolled(party_home)
    former_addresses = trust.coordinator(party_home).addresses
    valid_until = trust.install(party_home, grant)
    addresses = trust.coordinator(party_home).addresses
    return Installed(valid_until, is_renewal, () if addresses == former_addresses else addresses)


@dataclass(frozen=True)
class Enrolment:
    """This party's identity, coordinator and certificate.

    Attributes:
        fingerprint: fingerprint of the party.
        coordinator: the coordinator that the party has joined; None without one.
        valid_from, valid_until: validity of the certificate in use; None without one.
    """

    party: str
    fingerprint: str
    coordinator: trust.TrustedCoordinator | None
    valid_from: datetime | None
    valid_until: datetime | None


def membership(home: Path) -> Enrolment:
    """Reads the identity, coordinator and certificate of this party."""
    party_home = PartyHome(home)
    coordinator = None
    if party_home.coordinator.exists():
        coordinator = trust.coordinator(party_home)
    try:
        validity: tuple[datetime | None, datetime | None] = trust.validity(party_home)
    except UndersongError:
        validity = (None, None)
    return Enrolment(party_home.settings.party, own_fingerprint(party_home), coordinator, *validity)
