"""The signatures under a published data set: its files and papers are those that its run wrote.

The parties sign what was asked and spent, never the corpus: that is the coordinator's work, and so is its signature.
Who knows the coordinator's fingerprint, as every hospital does, can tell its data sets from anybody else's. With it the
coordinator certifies which keys its parties have enrolled with: anybody can make keys and call them a hospital.

A simulation has no coordinator, and holds the keys of all its parties. Each of them signs what is published, which no
party of a federation does: the signatures prove that one hand held every key, and that nobody else changed a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_protocol.agreement.enrolment import coordinator_fingerprint, party_fingerprint
from undersong_protocol.secagg.keys import verified
from undersong_protocol.secagg.parameters import Member
from undersong_server.authority import Authority

KEY = "coordinator"  # of manifest.json; everything else in it is signed
ENROLLED = "enrolled"  # of manifest.json: fingerprint of each party of the roster, as its registry has it
TAG = "undersong published"
SIMULATION = "simulation"  # of manifest.json: signature (hex) under all else of every party of the roster, by name
SIMULATION_TAG = "undersong published by a simulation"


@dataclass(frozen=True)
class Signer:
    """A coordinator that publishes: its name, its keys, and the Ed25519 public keys of the parties it has enrolled."""

    name: str
    authority: Authority
    identities: Mapping[str, bytes]

    @property
    def publisher(self) -> tuple[str, str]:
        """Name and fingerprint, for the data set's card."""
        return self.name, self.authority.fingerprint

    def sign(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """``manifest.json`` with the signature; ``published`` is all of it but that, JSON-able and finite."""
        publisher = {
            "name": self.name,
            "ca_certificate": self.authority.certificate_pem.decode("ascii"),
            "signing_key": self.authority.signing_public.hex(),
        }
        names = [member["name"] for member in published["manifest"]["roster"]]
        enrolled = {name: party_fingerprint(name, self.identities[name]) for name in names if name in self.identities}
        published = {**published, ENROLLED: enrolled}
        signature = self.authority.signing_key.sign(_statement(published, publisher))
        return {**published, KEY: {**publisher, "signature": signature.hex()}}


@dataclass(frozen=True)
class SimulationSigner:
    """A simulation that publishes: the keys of all its parties by name."""

    identities: Mapping[str, Ed25519PrivateKey]
    publisher: ClassVar[tuple[str, str]] = ("", "")  # no coordinator

    def sign(self, published: Mapping[str, Any]) -> dict[str, Any]:
        """``manifest.json`` with every party's signature; ``published`` is all of it but these."""
        statement = tagged_hash(SIMULATION_TAG, canonical_json(published))
        return {**published, SIMULATION: {name: key.sign(statement).hex() for name, key in self.identities.items()}}


@dataclass(frozen=True)
class PublisherSignature:
    """The publisher of a data set by its checked signature; a stranger compares the fingerprint."""

    name: str
    fingerprint: str


def read_signature(published: Mapping[str, Any]) -> PublisherSignature | None:
    """The signature of a ``manifest.json``; None if no coordinator signed it.

    Raises PrivacyRefusal if the signature is not of these very contents.
    """
    found = published.get(KEY)
    if found is None:
        return None
    rest = {key: value for key, value in published.items() if key != KEY}
    try:
        publisher = {key: str(found[key]) for key in ("name", "ca_certificate", "signing_key")}
        key = bytes.fromhex(publisher["signing_key"])
        verified(key, _statement(rest, publisher), bytes.fromhex(found["signature"]))
        return PublisherSignature(publisher["name"], coordinator_fingerprint(publisher["ca_certificate"], key))
    except (KeyError, TypeError, ValueError, InvalidSignature, ConfigurationError):
        raise PrivacyRefusal(
            "its signature is not of these contents", "get a fresh copy from the coordinator"
        ) from None


def check_simulation(published: Mapping[str, Any], roster: Sequence[Member]) -> bool:
    """Returns whether a ``manifest.json`` is a simulation's: every party of the roster has signed it.

    Raises PrivacyRefusal if it says so and a signature is missing, or not of these very contents.
    """
    if SIMULATION not in published:
        return False
    rest = {key: value for key, value in published.items() if key != SIMULATION}
    try:
        statement, signatures = tagged_hash(SIMULATION_TAG, canonical_json(rest)), published[SIMULATION]
        for member in roster:
            verified(member.identity, statement, bytes.fromhex(signatures[member.name]))
    except (KeyError, TypeError, ValueError, InvalidSignature, ConfigurationError):
        raise PrivacyRefusal(
            "its parties' signatures are not of these contents", "get a fresh copy from its maker"
        ) from None
    return True


def _statement(published: Mapping[str, Any], publisher: Mapping[str, str]) -> bytes:
    return tagged_hash(TAG, canonical_json(published), canonical_json(publisher))
