"""Joins a coordinator: reads a package, writes a request, installs a grant. Sends nothing by itself."""

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from undersong_client import keys
from undersong_client.consent import policy, trust
from undersong_client.home import PartyHome, PartySettings, make_folder
from undersong_common import embedders
from undersong_common.drill import invented
from undersong_common.errors import UndersongError
from undersong_common.files import replace_file
from undersong_common.model_files import MAX_WINDOWS
from undersong_protocol.agreement.enrolment import Package, check_party_name, party_fingerprint

DRILL_RECORDS = 120


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
        max_windows: of a long text that the embedder reads; a run's task file states the same.
        insecure_noise_seed: tests only; reproducible keys and noise, no privacy.
        drill: makes a rehearsal's folder and its file of invented records, the only data set that it will take.

    Raises ConfigurationError for an invalid name, a folder that holds anything, or a missing or broken embedder.
    """
    check_party_name(name)
    embedders.check_pinned(embedder)
    settings = PartySettings(name, embedder, max_windows, insecure_noise_seed=insecure_noise_seed, drill=drill)
    embedders.check(embedder, max_windows)
    made = PartyHome.create(home, settings)
    keys.create(made)
    policy.write(made, policy.HospitalPolicy())
    if drill:
        records = invented(DRILL_RECORDS, random.SystemRandom())
        lines = (json.dumps({"text": each.text, "label": each.label, "keeper": each.person}) for each in records)
        written = "".join(f"{line}\n" for line in lines).encode("utf-8")
        make_folder(made.drill_records.parent)
        replace_file(made.drill_records, written)
        made.change(drill_sha256=hashlib.sha256(written).hexdigest())
    return made


@dataclass(frozen=True)
class MadeRequest:
    """A request for a certificate: the file's bytes for the operator, and the fingerprint that is read out to them."""

    party: str
    data: bytes = field(repr=False)
    fingerprint: str


def accept(home: Path, package: bytes, stated: Callable[[str], str]) -> MadeRequest:
    """Trusts the coordinator of a package whose fingerprint was compared, and makes the request.

    Where ``home`` holds no party yet, that of the package's name is made first.

    Args:
        stated: gives the fingerprint as the operator told it by another way, for the name that the package states; what
            the package says itself must not be shown before.

    Raises ConfigurationError where the package is not this party's, or the fingerprint is another.
    """
    if not (home / "settings.json").exists():
        invited = Package.parse(package)
        said = stated(invited.coordinator)
        trust.compare(invited, said)
        create(home, invited.party)
        return accept(home, package, lambda _coordinator: said)
    opened = PartyHome(home)
    read = trust.check_package(opened, package, now_s=time.time())
    return _made(opened, trust.accept(opened, read, stated(read.coordinator)))


def renew(home: Path) -> MadeRequest:
    """A request for a new certificate. Raises ConfigurationError where no coordinator was joined."""
    opened = PartyHome(home)
    trust.coordinator(opened)
    return _made(opened, trust.request(opened, None))


def _made(home: PartyHome, data: bytes) -> MadeRequest:
    return MadeRequest(home.settings.party, data, own_fingerprint(home))


def own_fingerprint(home: PartyHome) -> str:
    """This party's fingerprint, which the operator and other hospitals compare."""
    return party_fingerprint(home.settings.party, keys.identity(home).public_key().public_bytes_raw())


@dataclass(frozen=True)
class Installed:
    """A certificate that was put to use: the end of its validity, and whether there was one before it."""

    until: datetime
    renewed: bool

    @property
    def words(self) -> str:
        """The beginning of a sentence that states the result."""
        done = "the certificate is renewed: it" if self.renewed else "enrolled; the certificate"
        return f"{done} is valid until {self.until:%Y-%m-%d}"


def install(home: Path, grant: bytes) -> Installed:
    """Puts the operator's answer to use. Raises ConfigurationError where it is not ours."""
    opened = PartyHome(home)
    before = keys.is_enrolled(opened)
    return Installed(trust.install(opened, grant), before)


@dataclass(frozen=True)
class Membership:
    """This party's identity, coordinator and certificate.

    Attributes:
        fingerprint: its own.
        coordinator: that it has joined; None where there is none.
        valid_from, valid_until: of the certificate in use; None where there is none yet.
    """

    party: str
    fingerprint: str
    coordinator: trust.Coordinator | None
    valid_from: datetime | None
    valid_until: datetime | None


def membership(home: Path) -> Membership:
    """The coordinator and the certificate of this party."""
    opened = PartyHome(home)
    known = trust.coordinator(opened) if opened.coordinator.exists() else None
    try:
        valid: tuple[datetime | None, datetime | None] = trust.validity(opened)
    except UndersongError:
        valid = (None, None)
    return Membership(opened.settings.party, own_fingerprint(opened), known, *valid)
