"""The coordinator that a party trusts: checks its package by the fingerprint, and installs its grant."""

from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography.x509 import Certificate

from undersong_client import keys
from undersong_client.consent import policy
from undersong_client.home import PartyHome, read_json, write_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal, TransportError
from undersong_protocol.agreement import enrolment

RENEW_PART = 3  # renewed when less than a third of the certificate's time is left


@dataclass(frozen=True)
class TrustedCoordinator:
    """The coordinator that this party trusts (``coordinator.json``).

    Attributes:
        name: name of the coordinator.
        addresses: its addresses, host:port, tried in order.
        server_name: name in its certificate; "" if it is the host of the address.
        ca_certificate: certificate of its CA, PEM.
        signing_key: its Ed25519 public key, 32 bytes.
        fingerprint: its fingerprint, which people have compared.
    """

    name: str
    addresses: tuple[str, ...]
    server_name: str
    ca_certificate: str
    signing_key: bytes
    fingerprint: str


def coordinator(home: PartyHome) -> TrustedCoordinator:
    """Reads the coordinator that this party has joined.

    Raises ConfigurationError if this party has joined no coordinator, or the file is damaged.
    """
    if not home.coordinator.exists():
        raise ConfigurationError(
            "this party has joined no coordinator", "undersong-party enroll PACKAGE --fingerprint WORDS"
        )
    coordinator_json = read_json(home.coordinator)
    try:
        trusted_coordinator = TrustedCoordinator(
            name=str(coordinator_json["name"]),
            addresses=tuple(enrolment.check_address(str(address)) for address in coordinator_json["addresses"]),
            server_name=str(coordinator_json["server_name"]),
            ca_certificate=str(coordinator_json["ca_certificate"]),
            signing_key=bytes.fromhex(coordinator_json["signing_key"]),
            fingerprint=str(coordinator_json["fingerprint"]),
        )
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(
            f"{home.coordinator}: is damaged", "enroll again with a new package", code="file-damaged"
        ) from None
    if (
        enrolment.coordinator_fingerprint(trusted_coordinator.ca_certificate, trusted_coordinator.signing_key)
        != trusted_coordinator.fingerprint
    ):
        raise ConfigurationError(
            f"{home.coordinator}: the fingerprint in it does not belong to its keys, so it was changed by hand",
            "enroll again with a new package",
        )
    return trusted_coordinator


def trusted(home: PartyHome) -> TrustedCoordinator:
    """Reads the coordinator that this party has joined, and checks that the policy trusts its fingerprint.

    Raises ConfigurationError if the party has joined none or has left, PrivacyRefusal if the policy does not trust it.
    """
    trusted_coordinator = coordinator(home)
    if trusted_coordinator.fingerprint not in policy.read(home).coordinators:
        raise PrivacyRefusal(
            f"the policy does not trust the coordinator {trusted_coordinator.name}", "enroll again with its package"
        )
    return trusted_coordinator


def check_package(home: PartyHome, data: bytes, *, now_s: float) -> enrolment.Package:
    """Reads a package and checks that it is for this party and has not expired at ``now_s``.

    Raises ConfigurationError otherwise.
    """
    parsed_package = enrolment.Package.parse(data)
    parsed_package.check_fresh(now_s)
    party_name = home.settings.party
    if parsed_package.party != party_name:
        raise ConfigurationError(
            f"the package is for {parsed_package.party!r}, this party is {party_name!r}",
            "ask the operator to invite this party's name, or begin anew with `undersong-party init`",
        )
    if home.coordinator.exists() and coordinator(home).fingerprint != parsed_package.fingerprint:
        raise ConfigurationError(
            f"this party belongs to the coordinator {coordinator(home).name!r} already",
            "leave it first: undersong-party revoke --coordinator",
        )
    return parsed_package


def compare(package: enrolment.Package, typed_fingerprint: str) -> None:
    """Raises ConfigurationError unless the package has the fingerprint that was told by telephone or on paper."""
    if not enrolment.same_fingerprint(typed_fingerprint, package.fingerprint):
        raise ConfigurationError(
            "the package's fingerprint is not the one that was stated; it may have been replaced on its way",
            "compare it with the operator by telephone, and do not go on until both are equal",
        )


def accept(home: PartyHome, package: enrolment.Package, typed_fingerprint: str) -> bytes:
    """Stores the package's coordinator as trusted; returns an enrolment request, as the bytes of its file.

    Args:
        typed_fingerprint: the fingerprint that the operator told by telephone or on paper.

    Raises:
        ConfigurationError: the package has another fingerprint; nothing is stored.
    """
    compare(package, typed_fingerprint)
    write_json(
        home.coordinator,
        {
            "name": package.coordinator,
            "addresses": list(package.addresses),
            "server_name": package.server_name,
            "ca_certificate": package.ca_certificate,
            "signing_key": package.signing_key.hex(),
            "fingerprint": package.fingerprint,
        },
    )
    policy.change(home, coordinators=(package.fingerprint,))
    return request(home, package.token)


def request(home: PartyHome, token: bytes | None) -> bytes:
    """Makes a fresh TLS key and returns the enrolment request for it; ``token`` None asks for a renewal."""
    party_name = home.settings.party
    identity_key = keys.identity(home)
    return enrolment.EnrolmentRequest.make(party_name, keys.new_tls_key(home), identity_key, token).sign(identity_key)


def install(home: PartyHome, data: bytes) -> datetime:
    """Checks a grant (the coordinator's signed answer to a request) and installs its certificate and addresses.

    Returns the end of the certificate's validity.

    Raises:
        ConfigurationError: the grant is another coordinator's, or for other keys.
    """
    trusted_coordinator = coordinator(home)
    grant = enrolment.Grant.parse(
        data, signing_key=trusted_coordinator.signing_key, ca_certificate=trusted_coordinator.ca_certificate
    )
    tls_key = keys.pending_tls_key(home)
    grant.check_mine(home.settings.party, tls_key.public_key(), keys.identity(home).public_key().public_bytes_raw())
    certificate_pems = [pem.removesuffix("\n") + "\n" for pem in (grant.certificate, *grant.chain)]
    if grant.addresses:
        # The addresses come first: until the certificate's key is used up, this step may be repeated.
        coordinator_document = {
            **read_json(home.coordinator),
            "addresses": list(grant.addresses),
            "server_name": grant.server_name,
        }
        write_json(home.coordinator, coordinator_document)
    keys.install(home, "".join(certificate_pems))
    return enrolment.certificate(grant.certificate, "the certificate").not_valid_after_utc


def validity(home: PartyHome) -> tuple[datetime, datetime]:
    """Returns begin and end of the validity of the certificate in use."""
    certificate = _certificate_in_use(home)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def certified_name(home: PartyHome) -> str:
    """Returns the party's name in the certificate in use, by which the coordinator knows it."""
    return enrolment.common_name(_certificate_in_use(home))


def _certificate_in_use(home: PartyHome) -> "Certificate":
    certificates_pem = keys.credential(home).certificates.decode("ascii").split("-----END CERTIFICATE-----")[0]
    return enrolment.certificate(certificates_pem + "-----END CERTIFICATE-----\n", "the certificate in use")


def check_clock(home: PartyHome, now_s: float) -> None:
    """Raises TransportError if the certificate in use is not yet valid or has expired at ``now_s``."""
    valid_from, valid_until = validity(home)
    if now_s < valid_from.timestamp():
        raise TransportError(
            f"the certificate is valid from {valid_from:%Y-%m-%d %H:%M} UTC on only",
            "this machine's clock is probably behind: set it",
        )
    if now_s > valid_until.timestamp():
        raise TransportError(
            f"the certificate expired on {valid_until:%Y-%m-%d}",
            "check the clock; then undersong-party enroll --renew, and have the operator sign the request",
        )


def renewal_due(home: PartyHome, now_s: float) -> bool:
    valid_from, valid_until = validity(home)
    return (valid_until - datetime.fromtimestamp(now_s, UTC)) * RENEW_PART < valid_until - valid_from


def leave(home: PartyHome) -> None:
    """Removes the trusted coordinator and the certificate. The ledger stays."""
    policy.change(home, coordinators=())
    for path in (home.keys / "tls.pem", home.keys / "tls.next.pem", home.coordinator):
        path.unlink(missing_ok=True)
