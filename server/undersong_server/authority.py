"""The coordinator's certificate authority: it certifies who may connect, and under which name.

The certificate authority's key (ECDSA P-256, because TLS libraries at large verify nothing newer) signs the
coordinator's server certificate and one client certificate per party. The coordinator's signing key (Ed25519) signs
enrolment packages and grants. Every key file is 0600 in a 0700 folder.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.program.machine import fault_of
from undersong_protocol.agreement.enrolment import check_party_name, coordinator_fingerprint

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
PARTY_DAYS = 365
BACKDATED_S = 3600.0  # a certificate begins so long before it is issued, since a party's clock may be behind

_CA_KEY = "ca.key"
_CA_CERTIFICATE = "ca.crt"
_SERVER_KEY = "server.key"
_SERVER_CERTIFICATE = "server.crt"
_SIGNING_KEY = "signing.key"

Certifiable = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True)
class Issued:
    """A certificate as it was signed: PEM, serial number (hex), and the end of its life (seconds since the epoch)."""

    pem: bytes
    serial: str
    expires_at: float


class Authority:
    """Keys and certificates of one coordinator, in one folder; :meth:`create` makes them, :meth:`open` reads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ca_key = serialization.load_pem_private_key(self._read_file(_CA_KEY), None)
        signing_key = serialization.load_pem_private_key(self._read_file(_SIGNING_KEY), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        assert isinstance(signing_key, ed25519.Ed25519PrivateKey)
        self._key = ca_key
        self.signing_key = signing_key
        self.certificate_pem = self._read_file(_CA_CERTIFICATE)
        self._certificate = x509.load_pem_x509_certificate(self.certificate_pem)

    def __repr__(self) -> str:
        return f"Authority({str(self._folder)!r})"

    @classmethod
    def create(cls, folder: Path, name: str, server_names: Sequence[str], *, now: float) -> "Authority":
        """Makes every key and the server's certificate.

        Args:
            name: the coordinator's name, as people read it in certificates.
            server_names: host names and addresses that parties use to reach it; not the bind address.
            now: seconds since the epoch.

        Raises ConfigurationError where the folder holds keys already: they are never overwritten.
        """
        if (folder / _CA_KEY).exists():
            raise ConfigurationError(
                f"{folder}: holds a certificate authority already",
                "keep it, or name another home",
                code="authority-exists",
            )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)
        ca_key = ec.generate_private_key(ec.SECP256R1())
        subject = _common_name(f"{name} authority")
        key_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
        certificate = (
            _certificate_builder(subject, subject, ca_key.public_key(), now, AUTHORITY_DAYS, authority=True)
            .add_extension(key_identifier, critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        replace_file(folder / _SIGNING_KEY, _private_pem(ed25519.Ed25519PrivateKey.generate()))
        replace_file(folder / _CA_CERTIFICATE, _pem_bytes(certificate))
        # The authority's key is written last, because its presence marks the folder as complete.
        replace_file(folder / _CA_KEY, _private_pem(ca_key))
        authority = cls(folder)
        authority.issue_server(server_names, now=now)
        return authority

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """Reads the authority in ``folder``. Raises ConfigurationError if a key is missing, or others may read it."""
        for file_name in (_CA_KEY, _SIGNING_KEY, _SERVER_KEY):
            path = folder / file_name
            if not path.exists():
                raise ConfigurationError(
                    f"{path}: no such key", "make it with `undersong coordinator init`", code="key-missing"
                )
            if path.stat().st_mode & 0o077:
                raise ConfigurationError(
                    f"{path}: others may read this key", f"run: chmod 600 {path}", code="key-readable-by-others"
                )
        return cls(folder)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of both public keys, which a hospital compares before it trusts a package."""
        return coordinator_fingerprint(self.certificate_pem.decode("ascii"), self.signing_public)

    @property
    def signing_public(self) -> bytes:
        """Ed25519 public key, 32 bytes, under which packages and grants are signed."""
        return self.signing_key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    @property
    def server_credentials(self) -> tuple[bytes, bytes]:
        """(private key, certificate) of the server, PEM; read anew at each call, so that a renewal takes effect."""
        return self._read_file(_SERVER_KEY), self._read_file(_SERVER_CERTIFICATE)

    def not_yet_valid(self, now: float) -> tuple[str, ...]:
        """Returns which of "authority" and "server" have a certificate that begins after ``now`` (Unix seconds)."""
        certificates = {"authority": self._certificate, "server": self._server_certificate}
        return tuple(
            owner for owner, certificate in certificates.items() if certificate.not_valid_before_utc.timestamp() > now
        )

    @property
    def server_expires_at(self) -> float:
        return self._server_certificate.not_valid_after_utc.timestamp()

    @property
    def server_names(self) -> list[str]:
        """Host names and addresses for which the server's certificate is valid."""
        certificate_names = self._server_certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value
        return [
            *certificate_names.get_values_for_type(x509.DNSName),
            *map(str, certificate_names.get_values_for_type(x509.IPAddress)),
        ]

    @property
    def _server_certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self._read_file(_SERVER_CERTIFICATE))

    def issue_server(self, names: Sequence[str], *, now: float, days: int = SERVER_DAYS) -> None:
        """Makes a new server key and certificate for ``names``. Raises ConfigurationError for an invalid name."""
        if not names:
            raise ConfigurationError("the server's certificate needs a name", "give --names HOST[,HOST...]")
        server_key = ec.generate_private_key(ec.SECP256R1())
        alternative_names = [_general_name(server_name) for server_name in names]
        certificate = self._issue_certificate(
            names[0], alternative_names, server_key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, now=now, days=days
        )
        # Both files are written under other names first: with a new key and an old certificate the server would not
        # start.
        pem_by_file = {
            _SERVER_KEY + ".new": _private_pem(server_key),
            _SERVER_CERTIFICATE + ".new": _pem_bytes(certificate),
        }
        for file_name, file_bytes in pem_by_file.items():
            replace_file(self._folder / file_name, file_bytes)
        for file_name in pem_by_file:
            os.replace(self._folder / file_name, self._folder / file_name.removesuffix(".new"))

    def issue_party(self, name: str, public_key: Certifiable, *, now: float, days: float = PARTY_DAYS) -> Issued:
        """Issues the client certificate of the party ``name`` for the public key that this party has made."""
        # The certificate is valid for clients only, so that no party can pose as the coordinator.
        certificate = self._issue_certificate(
            check_party_name(name),
            [x509.DNSName(name)],
            public_key,
            ExtendedKeyUsageOID.CLIENT_AUTH,
            now=now,
            days=days,
        )
        return Issued(_pem_bytes(certificate), serial_of(certificate), certificate.not_valid_after_utc.timestamp())

    def _issue_certificate(
        self,
        name: str,
        alternative_names: Sequence[x509.GeneralName],
        public_key: Certifiable,
        purpose: x509.ObjectIdentifier,
        *,
        now: float,
        days: float,
    ) -> x509.Certificate:
        authority_key_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _certificate_builder(_common_name(name), self._certificate.subject, public_key, now, days)
            .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(authority_key_identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _read_file(self, file_name: str) -> bytes:
        path = self._folder / file_name
        try:
            return path.read_bytes()
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigurationError(
                f"{path}: cannot be read: {error.strerror}",
                "run as the user who made it, or `undersong coordinator init`",
            ) from None
        except OSError as error:
            raise fault_of(error, path) from None


def serial_of(certificate: x509.Certificate) -> str:
    return f"{certificate.serial_number:x}"


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: Certifiable, now: float, days: float, *, authority: bool = False
) -> x509.CertificateBuilder:
    key_usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_utc_time(now - BACKDATED_S))
        .not_valid_after(_utc_time(now + days * 86400))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(key_usage, critical=True)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise ConfigurationError(
            f"{host!r} is neither a host name nor an address", "give names without a port", code="invalid-host"
        )
    return x509.DNSName(host)


def _utc_time(epoch_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(epoch_s), tz=datetime.UTC)


def _pem_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
