"""A certificate authority for tests: packages, grants and server certificates without the server's code."""

import ipaddress
import os
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from undersong_protocol.agreement.enrolment import EnrolmentRequest, Grant, Package

YEAR = timedelta(days=365)


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """One CA with its coordinator's signing key."""

    def __init__(self, coordinator: str = "coordinator") -> None:
        self.coordinator = coordinator
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.signing = Ed25519PrivateKey.generate()
        self.certificate = (
            self._builder(name(f"{coordinator} CA"), self.key.public_key(), YEAR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def package(self, party: str, *addresses: str, expires_s: int = 4_000_000_000, server_name: str = "") -> Package:
        return Package(
            coordinator=self.coordinator,
            addresses=addresses or ("localhost:7443",),
            server_name=server_name,
            ca_certificate=self.pem,
            signing_key=self.signing.public_key().public_bytes_raw(),
            party=party,
            token=os.urandom(32),
            expires_s=expires_s,
        )

    def package_bytes(self, party: str, *addresses: str, **changes) -> bytes:
        return self.package(party, *addresses, **changes).sign(self.signing)

    def grant(
        self,
        request: EnrolmentRequest,
        *,
        life: timedelta = YEAR,
        begin: datetime | None = None,
        addresses: tuple[str, ...] = (),
    ) -> bytes:
        leaf = self.leaf(request.party, request.tls_key(), life=life, begin=begin)
        return Grant(
            coordinator=self.coordinator,
            party=request.party,
            identity=request.identity,
            certificate=leaf,
            chain=(self.pem,),
            addresses=addresses,
        ).sign(self.signing)

    def leaf(self, subject: str, key, *, life: timedelta = YEAR, begin: datetime | None = None) -> str:
        certificate = self._builder(name(subject), key, life, begin).sign(self.key, hashes.SHA256())
        return certificate.public_bytes(Encoding.PEM).decode()

    def server(self, *hosts: str) -> tuple[bytes, bytes]:
        """Key and certificate (PEM) of a server on loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts or ("localhost",)]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        certificate = (
            self._builder(name("server"), key.public_key(), YEAR)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return pem, certificate.public_bytes(Encoding.PEM)

    def _builder(self, subject: x509.Name, key, life: timedelta, begin: datetime | None = None):
        start = begin or datetime.now(UTC) - timedelta(minutes=5)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name(f"{self.coordinator} CA"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + life)
        )
