"""The party's keys, which are made here, never sent, and readable by this user only; and sources of random bytes."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from undersong_client.home import PartyHome
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.files import create_file, replace_file
from undersong_common.program.machine import fault_of

if TYPE_CHECKING:
    from undersong_protocol.secagg.parameters import Entropy

KEY_BYTES = 32
SECRETS = ("identity", "store", "data")
BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


def create(home: PartyHome) -> None:
    """Draws the identity, store and data keys. It never replaces an existing key, without which data would be lost."""
    settings = home.settings
    for secret_name in SECRETS:
        if secret_name in ("identity", "data"):
            seed = settings.insecure_noise_seed
        else:
            seed = None
        if seed is None:
            random_source = os.urandom
        else:
            random_source = insecure(seed, settings.party)(secret_name)
        create_file(home.keys / f"{secret_name}.key", f"{random_source(KEY_BYTES).hex()}\n".encode("ascii"))


def secret(home: PartyHome, name: str) -> bytes:
    """Reads the key ``name``, one of SECRETS, 32 bytes. Raises ConfigurationError if it is missing or damaged."""
    path = home.keys / f"{name}.key"
    try:
        secret_bytes = bytes.fromhex(path.read_text(encoding="ascii").strip())
        if len(secret_bytes) != KEY_BYTES:
            raise ValueError
    except (FileNotFoundError, ValueError):
        raise ConfigurationError(
            f"{path}: is missing or damaged", "restore the keys folder from a backup", code="key-missing"
        ) from None
    except OSError as error:
        raise fault_of(error, path) from None
    return secret_bytes


def identity(home: PartyHome) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret(home, "identity"))


@dataclass(frozen=True)
class Credential:
    """A party's TLS key and certificates, PEM, as gRPC reads them."""

    key: bytes = field(repr=False)
    certificates: bytes = b""


def is_enrolled(home: PartyHome) -> bool:
    """Returns True if the party has a certificate."""
    return (home.keys / "tls.pem").exists()


def credential(home: PartyHome) -> Credential:
    """Reads the TLS key and certificates in use. Raises ConfigurationError if the party is not enrolled."""
    try:
        pem_bytes = (home.keys / "tls.pem").read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            "this party has no certificate yet",
            "send the request that `undersong-party enroll PACKAGE` wrote, then `undersong-party enroll --grant FILE`",
            code="no-certificate",
        ) from None
    key_pem, begin_line, certificates_pem = pem_bytes.partition(BEGIN_CERTIFICATE)
    return Credential(key_pem, begin_line + certificates_pem)


def new_tls_key(home: PartyHome) -> EllipticCurvePrivateKey:
    """Makes and stores a fresh TLS key that waits for its certificate; the key in use stays in use."""
    from undersong_protocol.agreement import enrolment

    tls_key = enrolment.new_tls_key()
    replace_file(home.keys / "tls.next.pem", tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return tls_key


def pending_tls_key(home: PartyHome) -> EllipticCurvePrivateKey:
    """Reads the TLS key that waits for its certificate. Raises ConfigurationError if no key waits."""
    try:
        tls_key = load_pem_private_key((home.keys / "tls.next.pem").read_bytes(), None)
    except (FileNotFoundError, ValueError):
        tls_key = None
    if not isinstance(tls_key, EllipticCurvePrivateKey):
        raise ConfigurationError(
            "this party waits for no certificate", "make a request first: `undersong-party enroll PACKAGE`"
        )
    return tls_key


def install(home: PartyHome, certificates: str) -> None:
    """Puts the waiting TLS key and its certificates (PEM) to use, by replacing one file in one step."""
    pending_key_path = home.keys / "tls.next.pem"
    replace_file(home.keys / "tls.pem", pending_key_path.read_bytes() + certificates.encode("ascii"))
    pending_key_path.unlink()


def from_system(_purpose: str) -> "Entropy":
    """Returns the operating system's generator of random bytes, the only source that gives privacy."""
    return os.urandom


def insecure(seed: int, party: str) -> "Callable[[str], Entropy]":
    """Returns a source of reproducible bytes by purpose, for tests: whoever knows ``seed`` can remove masks and noise.

    Each purpose has its own stream, so that a continued run draws the same bytes whatever the order of its calls.
    """

    from undersong_common.privacy.stream import KeyStream

    def for_purpose(purpose: str) -> "Entropy":
        return KeyStream(tagged_hash("insecure noise seed", str(seed).encode(), party.encode(), purpose.encode())).read

    return for_purpose
