"""The three signed files that make a hospital a party: package, enrolment request and grant, as canonical JSON.

None of them holds a secret of the hospital.

1. The operator invites: a ``Package`` with the coordinator's addresses, CA and signing key and a one-time token. The
   hospital compares its ``fingerprint`` with what the operator says by another way (telephone, paper).
2. The hospital answers with an ``EnrolmentRequest``: a certificate request for its TLS key, its identity key, a proof
   that it held the token, all signed by the identity key. Its ``fingerprint`` is what the operator compares.
3. The operator signs: a ``Grant`` with the certificate and its chain.

A renewal is an EnrolmentRequest with ``renewal`` true, no token, signed by the identity key that is enrolled already.
Nothing here reads a clock or a file: time and bytes are arguments. Whatever is read may be hostile.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
)

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
_FORBIDDEN_SIGN = re.compile(r"[^A-Za-z0-9.:\[\]-]")
_HOST = r"^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45})?$"


def check_party_name(name: str) -> str:
    """Returns ``name`` if it is a valid party name: lower case letters, digits, ``-`` and ``_``.

    Raises:
        ConfigurationError: it has another character or more than 63 characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{_quote_start(name)} is no name of a party",
            "use 1 to 63 lower case letters, digits, '-' and '_', beginning and ending with a letter or digit",
        )
    return name


def check_address(address: str) -> str:
    """Returns ``address`` if it is ``host:port`` (IPv6 in brackets); else raises ConfigurationError."""
    address_match = _ADDRESS.fullmatch(address)
    if address_match is None or not 0 < int(address_match[1]) < 65536:
        forbidden_sign = _FORBIDDEN_SIGN.search(address)
        sign_words = ""
        if forbidden_sign:
            sign_words = f": {_quote_start(forbidden_sign[0])} may not stand in it"
        raise ConfigurationError(
            f"{_quote_start(address)} is no address{sign_words}", "write host:port, for example undersong.org:7443"
        )
    return address


def groups(digest: bytes) -> str:
    """Returns the first 128 bits of a hash as eight groups of four hexadecimal digits, for people to compare.

    >>> groups(bytes(range(32)))
    '0001-0203-0405-0607-0809-0a0b-0c0d-0e0f'
    """
    fingerprint_hex = digest[:FINGERPRINT_BYTES].hex()
    return "-".join(fingerprint_hex[i : i + 4] for i in range(0, 32, 4))


def bare_fingerprint(typed_fingerprint: str) -> str:
    """Normalises a typed fingerprint: lower case, without spaces, dashes and colons."""
    return re.sub(r"[\s:-]", "", typed_fingerprint).lower()


def same_fingerprint(typed_fingerprint: str, computed: str) -> bool:
    """Returns True if a typed fingerprint equals ``computed``, ignoring spaces, case, dashes and colons."""
    typed_digits = bare_fingerprint(typed_fingerprint)
    return hmac.compare_digest(typed_digits.encode(), computed.replace("-", "").encode())


def named_party(entry: str) -> tuple[str, str]:
    """Splits ``NAME=FINGERPRINT`` into name and fingerprint, the latter as :func:`groups` writes it.

    Raises ConfigurationError for another form.

    >>> named_party("heart=0001 0203 0405 0607 0809 0A0B 0C0D 0E0F")
    ('heart', '0001-0203-0405-0607-0809-0a0b-0c0d-0e0f')
    """
    party_name, _, fingerprint = entry.partition("=")
    try:
        digest = bytes.fromhex(bare_fingerprint(fingerprint))
    except ValueError:
        digest = b""
    if len(digest) != FINGERPRINT_BYTES:
        raise ConfigurationError(
            f"{_quote_start(entry)} does not name a party by its fingerprint",
            "write NAME=1a2b-..., with the fingerprint that the party itself has told you",
        )
    return check_party_name(party_name.strip()), groups(digest)


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """Makes a random key for TLS: ECDSA P-256, which every TLS 1.3 stack offers."""
    return ec.generate_private_key(ec.SECP256R1())


def _from_hex(value: object) -> object:
    """Returns the bytes of a value that is written in lower-case hexadecimal digits; any other value unchanged."""
    if not isinstance(value, str):
        return value
    decoded_bytes = bytes.fromhex(value)
    if decoded_bytes.hex() != value:
        raise ValueError("not lower-case hexadecimal")
    return decoded_bytes


def _check_identity(key: bytes) -> bytes:
    """Returns an Ed25519 public key. Raises ConfigurationError for a key of low order, under which anybody can sign."""
    try:
        check_identity(key)
    except ValueError:
        raise ConfigurationError(
            "the signed file's key is no Ed25519 key of large order: anybody could sign in its name",
            "make keys with a correct program, and the file again",
            code="low-order-key",
        ) from None
    return key


_Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_Party = Annotated[str, AfterValidator(check_party_name)]
_Address = Annotated[str, AfterValidator(check_address)]
_Bytes = Annotated[bytes, BeforeValidator(_from_hex), PlainSerializer(bytes.hex, when_used="json")]
_Key = Annotated[_Bytes, Field(min_length=32, max_length=32), AfterValidator(_check_identity)]


class _SignedFile(BaseModel):
    """A signed file; its fields are the signed body. An unknown key would be signed and then ignored: it is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
    kind: ClassVar[str]

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """Returns the file as bytes, signed by ``key``."""
        body_fields = self.model_dump(mode="json", exclude_defaults=True)
        signature = key.sign(tagged_hash(self.kind, canonical_json(body_fields)))
        return (
            canonical_json({"kind": self.kind, "version": VERSION, "body": body_fields, "signature": signature.hex()})
            + b"\n"
        )

    @classmethod
    def _open_file(cls, data: bytes) -> tuple[Self, dict[str, Any], bytes]:
        """Returns the object of the file, its fields as JSON values and its signature, which is not checked yet.

        Raises ConfigurationError if the file is too large, damaged, or of another kind or version.
        """
        file_kind = cls.kind[10:]
        if len(data) > LARGEST_FILE_BYTES:
            raise ConfigurationError(
                f"what was given as {file_kind} has {len(data)} bytes, {LARGEST_FILE_BYTES} are allowed",
                f"give the file of the {file_kind} itself",
            )
        damaged_error = ConfigurationError(
            f"the {file_kind} is damaged or incomplete", "have the file sent again, unchanged"
        )
        try:
            envelope_json = {**json.loads(data.decode("utf-8"))}
        except (ValueError, TypeError, RecursionError):
            raise damaged_error from None
        stated_kind = envelope_json.pop("kind", None)
        if stated_kind != cls.kind:
            if stated_kind in (PACKAGE, REQUEST, GRANT):
                other_kind = stated_kind[10:]
            else:
                other_kind = "another kind of file"
            raise ConfigurationError(
                f"the file is no {file_kind}: it is {other_kind}", "check which file goes where", code="other-file"
            )
        if envelope_json.pop("version", None) != VERSION:
            raise ConfigurationError(
                f"the {file_kind} has another version than {VERSION}", "run the same version of Undersong at both ends"
            )
        try:
            signed_envelope = _Envelope.model_validate(envelope_json)
            return cls.model_validate(signed_envelope.body), signed_envelope.body, signed_envelope.signature
        except ValidationError:
            raise damaged_error from None

    def _verify_signature(self, body: Mapping[str, Any], signature: bytes, key: bytes, remedy: str) -> None:
        try:
            verified(key, tagged_hash(self.kind, canonical_json(dict(body))), signature)
        except (InvalidSignature, ValueError):
            raise ConfigurationError(
                f"the {self.kind[10:]} has no valid signature of its sender", remedy, code="not-signed"
            ) from None


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    body: dict[str, Any]
    signature: Annotated[_Bytes, Field(min_length=64, max_length=64)]


class Package(_SignedFile):
    """The invitation that the operator of a coordinator hands to one hospital.

    Attributes:
        coordinator: the coordinator's name.
        addresses: addresses of the coordinator, ``host:port``, tried in order.
        server_name: the name in the coordinator's certificate; "" if it is the host of the address.
        ca_certificate: PEM of the CA that signs the coordinator's and the parties' certificates.
        signing_key: the coordinator's Ed25519 public key, 32 bytes; signs packages and grants.
        party: the name that the hospital will have.
        token: 32 random bytes that admit one enrolment request; a secret until then.
        expires_s: end of the invitation, seconds since the epoch.
    """

    kind = PACKAGE
    coordinator: _Party
    addresses: Annotated[tuple[_Address, ...], Field(min_length=1, max_length=MOST_ADDRESSES, strict=False)]
    server_name: Annotated[str, StringConstraints(pattern=_HOST)]
    ca_certificate: _Text
    signing_key: _Key
    party: _Party
    token: Annotated[_Bytes, Field(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES, repr=False)]
    expires_s: Annotated[int, Field(ge=0, lt=2**40)]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the coordinator, equal for all parties; the hospital compares it with the operator's word."""
        return coordinator_fingerprint(self.ca_certificate, self.signing_key)

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """Returns the signed file as bytes.

        Raises ConfigurationError for a value that :meth:`parse` would refuse, or if ``key`` does not belong to
        ``signing_key``.
        """
        if key.public_key().public_bytes_raw() != self.signing_key:
            raise ConfigurationError(
                f"the package of {self.party} names another signing key than the one that signs it",
                "sign with the coordinator's key",
                code="other-key",
            )
        certificate(self.ca_certificate, "the package's CA certificate")
        return super().sign(key)

    @classmethod
    def parse(cls, data: bytes) -> "Package":
        """Reads a package and checks its form and signature.

        The caller must still compare :attr:`fingerprint` and call :meth:`check_fresh`.

        Raises:
            ConfigurationError: the bytes are not a package, are damaged, or are signed by another key than they name.
        """
        package, body_fields, signature = cls._open_file(data)
        certificate(package.ca_certificate, "the package's CA certificate")
        package._verify_signature(body_fields, signature, package.signing_key, "ask the operator for the package again")
        return package

    def check_fresh(self, now_s: float) -> None:
        """Raises ConfigurationError if the invitation has expired at ``now_s`` (seconds since the epoch)."""
        if now_s >= self.expires_s:
            raise ConfigurationError(
                f"the invitation of {self.party} has expired",
                "check this machine's clock, then ask the operator for a new package: undersong invite",
                code="expired",
            )


class EnrolmentRequest(_SignedFile):
    """The hospital's answer to a package: its public keys, and the proof that it held the token.

    Attributes:
        party: the party's name, which is also the subject CN of the certificate request.
        certificate_request: PEM of a PKCS #10 request for an ECDSA P-256 key.
        identity: Ed25519 public key, 32 bytes; signs manifests, masked sums and receipts.
        renewal: True asks for a new certificate for a party that is enrolled already.
        token_proof: 32 bytes, HMAC of all other fields under the token; empty for a renewal.
    """

    kind = REQUEST
    party: _Party
    certificate_request: _Text
    identity: _Key
    renewal: bool
    token_proof: _Bytes

    @classmethod
    def make(
        cls, party: str, tls_key: ec.EllipticCurvePrivateKey, identity: Ed25519PrivateKey, token: bytes | None
    ) -> "EnrolmentRequest":
        """Makes a request for ``party``; ``token`` None makes it a renewal."""
        certificate_request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_party_name(party))]))
            .sign(tls_key, hashes.SHA256())
        )
        request_pem = certificate_request.public_bytes(Encoding.PEM).decode("ascii")
        public_key = identity.public_key().public_bytes_raw()
        is_renewal = token is None
        unproved_request = cls(
            party=party, certificate_request=request_pem, identity=public_key, renewal=is_renewal, token_proof=b""
        )
        if token is None:
            return unproved_request
        return unproved_request.model_copy(update={"token_proof": unproved_request._compute_token_proof(token)})

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the party, which the operator compares with what the hospital says before signing."""
        return party_fingerprint(self.party, self.identity)

    def sign(self, key: Ed25519PrivateKey) -> bytes:
        """Returns the file as bytes, signed by the identity key that the request names."""
        if key.public_key().public_bytes_raw() != self.identity:
            raise ConfigurationError(
                f"{self.party}: the enrolment request names another identity key than the one that signs it",
                "make the request again: undersong-party enroll",
            )
        return super().sign(key)

    @classmethod
    def parse(cls, data: bytes) -> "EnrolmentRequest":
        """Reads a request and checks its form, names and both signatures; :meth:`check_token` checks the token.

        Raises:
            ConfigurationError: the bytes are not a request or are damaged, a key has another type, or names differ.
        """
        make_again = "make the request again: undersong-party enroll"
        enrolment_request, body_fields, signature = cls._open_file(data)
        proof_bytes = 0 if enrolment_request.renewal else 32
        if len(enrolment_request.token_proof) != proof_bytes:
            raise ConfigurationError(
                f"the enrolment request of {enrolment_request.party} has a token proof of"
                f" {len(enrolment_request.token_proof)} bytes, {proof_bytes} are expected",
                make_again,
            )
        enrolment_request._verify_signature(body_fields, signature, enrolment_request.identity, make_again)
        enrolment_request.tls_key()
        return enrolment_request

    def tls_key(self) -> ec.EllipticCurvePublicKey:
        """Returns the TLS key to certify; whoever signs must ignore all else in the certificate request.

        Raises:
            ConfigurationError: the certificate request is malformed, not self-signed, not P-256, or of another subject.
        """
        make_again = "make the request again: undersong-party enroll"
        try:
            certificate_request = x509.load_pem_x509_csr(self.certificate_request.encode("ascii"))
            public_key = certificate_request.public_key()
            is_signed = certificate_request.is_signature_valid
            subject_names = [attribute.value for attribute in certificate_request.subject]
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion):
            raise ConfigurationError("the certificate request cannot be read", make_again) from None
        if (
            not is_signed
            or not isinstance(public_key, ec.EllipticCurvePublicKey)
            or not isinstance(public_key.curve, ec.SECP256R1)
        ):
            raise ConfigurationError("the certificate request is not for an ECDSA P-256 key of its sender", make_again)
        if subject_names != [self.party]:
            raise ConfigurationError("the certificate request names another subject than the party", make_again)
        return public_key

    def check_token(self, token: bytes) -> None:
        """Raises ConfigurationError unless ``token_proof`` was made with ``token``."""
        if self.renewal or not hmac.compare_digest(self.token_proof, self._compute_token_proof(token)):
            raise ConfigurationError(
                f"the request in the name of {self.party} does not prove that its sender holds the invitation",
                "invite the party again, and hand the package to nobody else",
                code="no-token",
            )

    def _compute_token_proof(self, token: bytes) -> bytes:
        body_fields = self.model_dump(mode="json", exclude={"token_proof"})
        return hmac.digest(token, tagged_hash("undersong enrolment token", canonical_json(body_fields)), hashlib.sha256)


class Grant(_SignedFile):
    """The operator's answer to an enrolment request, with the party's certificate.

    Attributes:
        coordinator: the coordinator's name.
        party: the party's name, the subject CN of the certificate.
        identity: the party's enrolled Ed25519 identity key, 32 bytes.
        certificate: the party's TLS certificate, PEM.
        chain: PEM certificates from the issuer up to the CA of the package, which is the last.
        addresses, server_name: as in the package, where they may have changed since; empty in other grants.
    """

    kind = GRANT
    coordinator: _Party
    party: _Party
    identity: _Key
    certificate: _Text
    chain: Annotated[tuple[str, ...], Field(max_length=LONGEST_CHAIN, strict=False)]
    addresses: Annotated[tuple[_Address, ...], Field(max_length=MOST_ADDRESSES, strict=False)] = ()
    server_name: Annotated[str, StringConstraints(pattern=_HOST)] = ""

    @classmethod
    def parse(cls, data: bytes, *, signing_key: bytes, ca_certificate: str) -> "Grant":
        """Reads a grant and checks everything except the times of validity.

        Args:
            signing_key: the coordinator's Ed25519 key, from the package whose fingerprint was compared.
            ca_certificate: PEM, from the same package.

        Raises:
            ConfigurationError: the bytes are not a grant, are damaged or of another coordinator, or the certificate
                does not lead to the CA or names another subject.
        """
        grant, body_fields, signature = cls._open_file(data)
        sign_again = "ask the operator to sign the request again: undersong sign"
        grant._verify_signature(body_fields, signature, signing_key, sign_again)
        leaf_certificate = certificate(grant.certificate, "the granted certificate")
        if common_name(leaf_certificate) != grant.party:
            raise ConfigurationError("the granted certificate names another subject than the party", sign_again)
        issuer_certificates = [
            certificate(issuer_pem, "the chain of the granted certificate") for issuer_pem in grant.chain
        ]
        package_ca = certificate(ca_certificate, "the CA certificate")
        if not issuer_certificates or issuer_certificates[-1] != package_ca:
            raise ConfigurationError("the granted certificate does not lead to the coordinator's CA", sign_again)
        for issued_certificate, issuer in zip(
            [leaf_certificate, *issuer_certificates], issuer_certificates, strict=False
        ):
            try:
                issued_certificate.verify_directly_issued_by(issuer)
            except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
                raise ConfigurationError(
                    "in the chain of the granted certificate, a certificate is not signed by the next one", sign_again
                ) from None
        return grant

    def check_mine(self, party: str, tls_key: ec.EllipticCurvePublicKey, identity: bytes) -> None:
        """Raises ConfigurationError unless the grant is for this party's name, TLS key and identity key (32 bytes)."""
        granted_key = certificate(self.certificate, "the granted certificate").public_key()
        spki_format = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if (
            self.party != party
            or self.identity != identity
            or granted_key.public_bytes(*spki_format) != tls_key.public_bytes(*spki_format)
        ):
            raise ConfigurationError(
                "the grant was made for another request than this party's last one",
                "hand the operator the newest request file, or make one: undersong-party enroll",
                code="other-request",
            )


def coordinator_fingerprint(ca_certificate: str, signing_key: bytes) -> str:
    """Returns the fingerprint (:func:`groups`) of a CA certificate and a signing key (32 bytes)."""
    ca_der = certificate(ca_certificate, "the CA certificate").public_bytes(Encoding.DER)
    return groups(tagged_hash("undersong coordinator", ca_der, signing_key))


def party_fingerprint(party: str, identity: bytes) -> str:
    """Returns the fingerprint (:func:`groups`) of a party's name and identity key (32 bytes)."""
    return groups(tagged_hash("undersong party", party.encode(), identity))


def certificate(pem: str, subject: str) -> x509.Certificate:
    """Reads one certificate in PEM. Raises ConfigurationError for another text, which the error calls ``subject``."""
    try:
        if pem.count("-----BEGIN") != 1:
            raise ValueError
        return x509.load_pem_x509_certificate(pem.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise ConfigurationError(f"{subject} cannot be read", "ask the operator for the file again") from None


def common_name(parsed_certificate: x509.Certificate) -> str:
    """Returns the CN of a certificate's subject; "" unless there is exactly one."""
    try:
        name_attributes = parsed_certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        return ""
    if len(name_attributes) == 1:
        return str(name_attributes[0].value)
    return ""


def _quote_start(value: str) -> str:
    # A hostile string is cut to what a person needs, and its control characters are escaped.
    return repr(value if len(value) <= 80 else value[:77] + "...")
