"""The three files that make a hospital a party: package, enrolment request, grant. Signed canonical JSON, no secrets of
the hospital in any of them.

1. The operator invites: a ``Package`` with the coordinator's addresses, CA and signing key and a one-time token. The
   hospital compares its ``fingerprint`` with what the operator says by another way (telephone, paper).
2. The hospital answers with an ``EnrolmentRequest``: a certificate request for its TLS key, its identity key, a proof
   that it held the token, all signed by the identity key. Its ``fingerprint`` is what the operator compares.
3. The operator signs: a ``Grant`` with the certificate and its chain.

A renewal is an EnrolmentRequest with ``renewal`` true, no token, signed by the identity key that is enrolled already.
Nothing here reads a clock or a file: time and bytes are arguments. Whatever is read may be hostile.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_protocol.secagg.keys import check_identity, verified

VERSION = 1
LARGEST_FILE_BYTES = 256 * 2**10
TOKEN_BYTES = 32
FINGERPRINT_BYTES = 16
LONGEST_CHAIN = 4
MOST_ADDRESSES = 16

PACKAGE = "undersong enrolment package"
REQUEST = "undersong enrolment request"
GRANT = "undersong enrolment grant"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?):([0-9]{1,5})")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")


def check_party_name(name: str) -> str:
    """The name itself. A name stands in certificates, file names and logs: lower case letters, digits, ``-`` and ``_``.

    Raises:
        ConfigurationError: another character, or longer than 63.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{_shown(name)} is no name of a party",
            "use 1 to 63 lower case letters, digits, '-' and '_', beginning and ending with a letter or digit",
        )
    return name


def check_address(address: str) -> str:
    """``host:port`` (IPv6 in brackets) itself. Raises ConfigurationError for anything else."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigurationError(f"{_shown(address)} is no address", "write host:port, for example undersong.org:7443")
    return address


def groups(digest: bytes) -> str:
    """The first 128 bits of a hash as people compare them, eight groups of four hexadecimal digits.

    >>> groups(bytes(range(32)))
    '0001-0203-0405-0607-0809-0a0b-0c0d-0e0f'
    """
    text = digest[:FINGERPRINT_BYTES].hex()
    return "-".join(text[i : i + 4] for i in range(0, 32, 4))


def bare_fingerprint(stated: str) -> str:
    """Normalises a typed fingerprint: lower case, without spaces, dashes and colons."""
    return re.sub(r"[\s:-]", "", stated).lower()


def same_fingerprint(stated: str, computed: str) -> bool:
    """Compares a typed fingerprint with ``computed``; ignores spaces, case, dashes and colons."""
    digits = bare_fingerprint(stated)
    return hmac.compare_digest(digits.encode(), computed.replace("-", "").encode())


def named_party(stated: str) -> tuple[str, str]:
    """Name and fingerprint, as it is printed, of ``NAME=FINGERPRINT``. Raises ConfigurationError for anything else.

    >>> named_party("heart=0001 0203 0405 0607 0809 0A0B 0C0D 0E0F")
    ('heart', '0001-0203-0405-0607-0809-0a0b-0c0d-0e0f')
    """
    name, _, fingerprint = stated.partition("=")
    try:
        digest = bytes.fromhex(bare_fingerprint(fingerprint))
    except ValueError:
        digest = b""
    if len(digest) != FINGERPRINT_BYTES:
        raise ConfigurationError(
            f"{_shown(stated)} does not name a party by its fingerprint",
            "write NAME=1a2b-..., with the fingerprint that the party itself has told you",
        )
    return check_party_name(name.strip()), groups(digest)


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """A key for TLS: ECDSA P-256, which every TLS 1.3 stack offers."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Package:
    """The invitation that the operator hands to one hospital, once.

    Attributes:
        coordinator: the coordinator's name.
        addresses: where it listens, ``host:port``, tried in order.
        server_name: the name in its certificate; empty where the address says it.
        ca_certificate: PEM of the CA that signs the coordinator's and the parties' certificates.
        signing_key: the coordinator's Ed25519 public key, 32 bytes; signs packages and grants.
        party: the name that the hospital will have.
        token: 32 random bytes that admit one request. A secret until it is used.
        expires_s: seconds since the epoch.
    """

    coordinator: str
    addresses: tuple[str, ...]
    server_name: str
    ca_certificate: str
    signing_key: bytes
    party: str
    token: bytes = field(repr=False)
    expires_s: int

    @property
    def fingerprint(self) -> str:
        """The coordinator's fingerprint, equal for all parties; the hospital compares it with the operator's word."""
        return coordinator_fingerprint(self.ca_certificate, self.signing_key)

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """The file's bytes. Raises ConfigurationError for a value that no reader would accept, or another key."""
        if key.public_key().public_bytes_raw() != self.signing_key:
            raise ConfigurationError(
                "a package is signed with the key that it names", "sign with the coordinator's key", code="other-key"
            )
        body = {
            "coordinator": self.coordinator,
            "addresses": list(self.addresses),
            "server_name": self.server_name,
            "ca_certificate": self.ca_certificate,
            "signing_key": self.signing_key.hex(),
            "party": self.party,
            "token": self.token.hex(),
            "expires_s": self.expires_s,
        }
        data = _signed(PACKAGE, body, key)
        Package.parse(data)
        return data

    @classmethod
    def parse(cls, data: bytes) -> Package:
        """Reads and checks form and signature. Trust begins with the fingerprint, time with ``check_fresh``.

        Raises:
            ConfigurationError: not a package, damaged, or signed by another key than it names.
        """
        body, signature = _opened(PACKAGE, data)
        with _reading(PACKAGE):
            package = cls(
                coordinator=check_party_name(_text(body, "coordinator")),
                addresses=tuple(check_address(a) for a in _texts(body, "addresses", MOST_ADDRESSES)),
                server_name=_text(body, "server_name"),
                ca_certificate=_text(body, "ca_certificate"),
                signing_key=_identity_key(body, "signing_key"),
                party=check_party_name(_text(body, "party")),
                token=_bytes(body, "token", TOKEN_BYTES),
                expires_s=_integer(body, "expires_s"),
            )
            if not package.addresses or (package.server_name and not _HOST.fullmatch(package.server_name)):
                raise ValueError
            _exactly(body, 8)
        certificate(package.ca_certificate, "the package's CA certificate")
        _verify(PACKAGE, body, signature, package.signing_key, "ask the operator for the package again")
        return package

    def check_fresh(self, now_s: float) -> None:
        """Raises ConfigurationError when the invitation has expired."""
        if now_s >= self.expires_s:
            raise ConfigurationError(
                f"the invitation of {self.party} has expired",
                "check this machine's clock, then ask the operator for a new package: undersong invite",
                code="expired",
            )


@dataclass(frozen=True)
class EnrolmentRequest:
    """The hospital's answer: public keys, and the proof that it held the token.

    Attributes:
        party: the name, also the certificate request's subject CN.
        certificate_request: PEM of a PKCS #10 request for an ECDSA P-256 key.
        identity: Ed25519 public key, 32 bytes; signs manifests, masked sums and receipts.
        renewal: a new certificate for a party that is enrolled.
        token_proof: 32 bytes, HMAC of everything else under the token; empty for a renewal.
    """

    party: str
    certificate_request: str
    identity: bytes
    renewal: bool = False
    token_proof: bytes = b""

    @classmethod
    def make(
        cls, party: str, tls_key: ec.EllipticCurvePrivateKey, identity: Ed25519PrivateKey, token: bytes | None
    ) -> EnrolmentRequest:
        """A request for ``party``; ``token`` None makes it a renewal."""
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_party_name(party))]))
            .sign(tls_key, hashes.SHA256())
        )
        pem = request.public_bytes(Encoding.PEM).decode("ascii")
        public = identity.public_key().public_bytes_raw()
        unproved = cls(party, pem, public, renewal=token is None)
        proof = b"" if token is None else unproved._proof(token)
        return cls(party, pem, public, renewal=token is None, token_proof=proof)

    @property
    def fingerprint(self) -> str:
        """The party's fingerprint; the operator compares it with the hospital's word before signing."""
        return party_fingerprint(self.party, self.identity)

    def sign(self, identity: Ed25519PrivateKey) -> bytes:
        """The file's bytes, signed by the identity key that the request names."""
        if identity.public_key().public_bytes_raw() != self.identity:
            raise ConfigurationError("an enrolment request is signed with the identity key that it names")
        data = _signed(REQUEST, {**self._body(), "token_proof": self.token_proof.hex()}, identity)
        EnrolmentRequest.parse(data)
        return data

    @classmethod
    def parse(cls, data: bytes) -> EnrolmentRequest:
        """Reads and checks form, names and both signatures; the token is checked by ``check_token``.

        Raises:
            ConfigurationError: not a request, damaged, another key type, or names that differ.
        """
        body, signature = _opened(REQUEST, data)
        with _reading(REQUEST):
            renewal = body["renewal"]
            if not isinstance(renewal, bool):
                raise TypeError
            request = cls(
                party=check_party_name(_text(body, "party")),
                certificate_request=_text(body, "certificate_request"),
                identity=_identity_key(body, "identity"),
                renewal=renewal,
                token_proof=_bytes(body, "token_proof", 0 if renewal else 32),
            )
            _exactly(body, 5)
        _verify(REQUEST, body, signature, request.identity, "make the request again: undersong-party enroll")
        request.tls_key()
        return request

    def tls_key(self) -> ec.EllipticCurvePublicKey:
        """The key to certify. All else in the certificate request is to be ignored by who signs.

        Raises:
            ConfigurationError: the request is malformed, not self-signed, not P-256, or names another subject.
        """
        remedy = "make the request again: undersong-party enroll"
        try:
            request = x509.load_pem_x509_csr(self.certificate_request.encode("ascii"))
            key = request.public_key()
            sound = request.is_signature_valid
            names = [attribute.value for attribute in request.subject]
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion):
            raise ConfigurationError("the certificate request cannot be read", remedy) from None
        if not sound or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ConfigurationError("the certificate request is not for an ECDSA P-256 key of its sender", remedy)
        if names != [self.party]:
            raise ConfigurationError("the certificate request names another subject than the party", remedy)
        return key

    def check_token(self, token: bytes) -> None:
        """Raises ConfigurationError unless whoever made the request held ``token``."""
        if self.renewal or not hmac.compare_digest(self.token_proof, self._proof(token)):
            raise ConfigurationError(
                f"the request in the name of {self.party} does not prove that it holds the invitation",
                "invite the party again, and hand the package to nobody else",
                code="no-token",
            )

    def _body(self) -> dict[str, Any]:
        return {
            "party": self.party,
            "certificate_request": self.certificate_request,
            "identity": self.identity.hex(),
            "renewal": self.renewal,
        }

    def _proof(self, token: bytes) -> bytes:
        return hmac.digest(
            token, tagged_hash("undersong enrolment token", canonical_json(self._body())), hashlib.sha256
        )


@dataclass(frozen=True)
class Grant:
    """The operator's answer: the certificate.

    Attributes:
        coordinator: its name.
        party: the certificate's subject CN.
        identity: the identity key that is enrolled with it, 32 bytes.
        certificate: PEM.
        chain: PEMs from the certificate's issuer up to the CA of the package, which is the last one.
    """

    coordinator: str
    party: str
    identity: bytes
    certificate: str
    chain: tuple[str, ...]

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """The file's bytes, signed by the coordinator's signing key."""
        body = {
            "coordinator": self.coordinator,
            "party": self.party,
            "identity": self.identity.hex(),
            "certificate": self.certificate,
            "chain": list(self.chain),
        }
        return _signed(GRANT, body, key)

    @classmethod
    def parse(cls, data: bytes, *, signing_key: bytes, ca_certificate: str) -> Grant:
        """Reads and checks everything that does not depend on time.

        Args:
            signing_key: of the coordinator, from the package whose fingerprint was compared.
            ca_certificate: PEM, from the same package.

        Raises:
            ConfigurationError: not a grant, damaged, of another coordinator, or a certificate that does not lead to
                the CA or names another subject.
        """
        body, signature = _opened(GRANT, data)
        remedy = "ask the operator to sign the request again: undersong sign"
        with _reading(GRANT):
            grant = cls(
                coordinator=check_party_name(_text(body, "coordinator")),
                party=check_party_name(_text(body, "party")),
                identity=_identity_key(body, "identity"),
                certificate=_text(body, "certificate"),
                chain=_texts(body, "chain", LONGEST_CHAIN),
            )
            _exactly(body, 5)
        _verify(GRANT, body, signature, signing_key, remedy)
        leaf = certificate(grant.certificate, "the granted certificate")
        if common_name(leaf) != grant.party:
            raise ConfigurationError("the granted certificate names another subject than the party", remedy)
        issuers = [certificate(pem, "the chain of the granted certificate") for pem in grant.chain]
        ca = certificate(ca_certificate, "the CA certificate")
        if not issuers or issuers[-1] != ca:
            raise ConfigurationError("the granted certificate does not lead to the coordinator's CA", remedy)
        for issued, issuer in zip([leaf, *issuers], issuers, strict=False):
            try:
                issued.verify_directly_issued_by(issuer)
            except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
                raise ConfigurationError("the chain of the granted certificate does not hold", remedy) from None
        return grant

    def check_mine(self, party: str, tls_key: ec.EllipticCurvePublicKey, identity: bytes) -> None:
        """Raises ConfigurationError when the grant was made for other keys or another name."""
        key = certificate(self.certificate, "the granted certificate").public_key()
        spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if self.party != party or self.identity != identity or key.public_bytes(*spki) != tls_key.public_bytes(*spki):
            raise ConfigurationError(
                "the grant was made for another request than this party's last one",
                "hand the operator the newest request file, or make one: undersong-party enroll",
                code="other-request",
            )


def coordinator_fingerprint(ca_certificate: str, signing_key: bytes) -> str:
    """Eight groups of four digits over the CA certificate (DER) and the signing key (32 bytes)."""
    der = certificate(ca_certificate, "the CA certificate").public_bytes(Encoding.DER)
    return groups(tagged_hash("undersong coordinator", der, signing_key))


def party_fingerprint(party: str, identity: bytes) -> str:
    """Eight groups of four digits over a party's name and identity key (32 bytes): what the operator compares."""
    return groups(tagged_hash("undersong party", party.encode(), identity))


def certificate(pem: str, what: str) -> x509.Certificate:
    """Raises ConfigurationError, with ``what`` as the subject, for text that is not one certificate in PEM."""
    try:
        if pem.count("-----BEGIN") != 1:
            raise ValueError
        return x509.load_pem_x509_certificate(pem.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise ConfigurationError(f"{what} cannot be read", "ask the operator for the file again") from None


def common_name(certificate_: x509.Certificate) -> str:
    """The subject's CN; empty unless there is exactly one."""
    try:
        names = certificate_.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        return ""
    return str(names[0].value) if len(names) == 1 else ""


# The envelope


def _signed(kind: str, body: Mapping[str, Any], key: Ed25519PrivateKey) -> bytes:
    signature = key.sign(tagged_hash(kind, canonical_json(dict(body))))
    return canonical_json({"kind": kind, "version": VERSION, "body": dict(body), "signature": signature.hex()}) + b"\n"


def _opened(kind: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) > LARGEST_FILE_BYTES:
        raise ConfigurationError(
            f"the file is no {kind[10:]}: it has {len(data)} bytes, {LARGEST_FILE_BYTES} are allowed", "check the path"
        )
    with _reading(kind):
        value = json.loads(data.decode("utf-8"))
        if not isinstance(value, dict):
            raise TypeError
    found = value.get("kind")
    if found != kind:
        what = found[10:] if found in (PACKAGE, REQUEST, GRANT) else "another kind of file"
        raise ConfigurationError(
            f"expected an {kind[10:]}, found {what}", "check which file goes where", code="other-file"
        )
    if value.get("version") != VERSION:
        raise ConfigurationError(
            f"the {kind[10:]} has another version than {VERSION}", "run the same version of Undersong at both ends"
        )
    with _reading(kind):
        body = value["body"]
        signature = _bytes(value, "signature", 64)
        if not isinstance(body, dict) or len(value) != 4:
            raise TypeError
    return body, signature


def _verify(kind: str, body: Mapping[str, Any], signature: bytes, key: bytes, remedy: str) -> None:
    try:
        verified(key, tagged_hash(kind, canonical_json(dict(body))), signature)
    except (InvalidSignature, ValueError):
        raise ConfigurationError(
            f"the {kind[10:]} is not signed by whom it should be", remedy, code="not-signed"
        ) from None


class _reading:  # noqa: N801 - reads as the statement it stands in
    """Turns whatever hostile bytes raise while they are read into one clear error."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, place: object) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)):
            raise ConfigurationError(
                f"the {self._kind[10:]} is damaged or incomplete", "have the file sent again, unchanged"
            ) from None


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body[key]
    if not isinstance(value, str) or "\0" in value:
        raise TypeError
    return value


def _identity_key(body: Mapping[str, Any], key: str) -> bytes:
    """An Ed25519 public key, 32 bytes. Raises ConfigurationError for one that proves nothing about who signs."""
    value = _bytes(body, key, 32)
    try:
        check_identity(value)
    except ValueError:
        raise ConfigurationError(
            f"the file's {key} is no Ed25519 key of large order: anybody could sign in its name",
            "make keys with a correct program, and the file again",
            code="low-order-key",
        ) from None
    return value


def _texts(body: Mapping[str, Any], key: str, most: int) -> tuple[str, ...]:
    value: Sequence[Any] = body[key]
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, str) for item in value):
        raise TypeError
    return tuple(value)


def _bytes(body: Mapping[str, Any], key: str, length: int) -> bytes:
    value = bytes.fromhex(_text(body, key))
    if len(value) != length or value.hex() != body[key]:
        raise ValueError
    return value


def _integer(body: Mapping[str, Any], key: str) -> int:
    value = body[key]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise TypeError
    return value


def _exactly(body: Mapping[str, Any], count: int) -> None:
    # an unknown key would be signed for and ignored
    if len(body) != count:
        raise ValueError


def _shown(value: str) -> str:
    # never more of a hostile string than a person needs, and no control characters
    return repr(value if len(value) <= 80 else value[:77] + "...")
