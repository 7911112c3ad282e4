"""The coordinator's own authority and the register of who was let in."""

from __future__ import annotations

import datetime
import errno
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.doubles.coded import raises
from tests.doubles.stream import Credentials, make_home
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_common.files import transaction
from undersong_protocol.agreement.enrolment import EnrolmentRequest, new_tls_key
from undersong_server.authority import Authority
from undersong_server.database import sqlite


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(
        tmp_path_factory.mktemp("home") / "home", addresses=("hospitals.example.org:7443", "10.0.0.7:7443")
    )


def test_authority_files_are_readable_by_their_owner_only(home):
    folder = home.path / "authority"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ("ca.key", "ca.crt", "signing.key", "server.key", "server.crt"), 0o600
    )
    assert (home.path / "registry.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_may_read_is_refused(tmp_path):
    Authority.create(tmp_path / "a", "x", ["localhost"], now=time.time())
    (tmp_path / "a" / "ca.key").chmod(0o644)
    with raises(ConfigurationError, "key-readable-by-others"):
        Authority.open(tmp_path / "a")


def test_an_authority_is_never_overwritten(tmp_path):
    Authority.create(tmp_path / "a", "x", ["localhost"], now=time.time())
    with raises(ConfigurationError, "authority-exists"):
        Authority.create(tmp_path / "a", "x", ["localhost"], now=time.time())


def test_server_certificate_names_the_public_addresses_not_the_bind_one(home):
    assert home.settings.bind == "127.0.0.1:0"
    assert home.authority().server_names == ["hospitals.example.org", "10.0.0.7"]


def test_a_partys_certificate_is_for_clients_only_and_carries_its_name(home):
    certificate = x509.load_pem_x509_certificate(Credentials(home, "heart").certificate)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.rfc4514_string() == "CN=heart"
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert 364 <= left.days <= 365


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_BUSY_SNAPSHOT])
def test_registry_writers_wait_for_another_process_to_finish_writing(home, monkeypatch, code):
    begun = []

    def busy_once(database):
        begun.append(database)
        if len(begun) == 1:
            busy = sqlite3.OperationalError("database is locked")
            busy.sqlite_errorcode = code
            raise busy
        return transaction(database)

    monkeypatch.setattr(sqlite, "transaction", busy_once)
    with closing(home.registry()) as register:
        register.touch({"lung": 5.0})
    assert len(begun) == 2


def test_expired_invitation_and_guessed_token_are_refused(home):
    package = home.invite("liver", now=time.time(), days=1)
    with raises(ConfigurationError, "no-token"):
        home.sign(request_of("liver", b"\0" * 32), now=time.time())
    with raises(ConfigurationError, "invitation-expired"):
        home.sign(request_of("liver", package.token), now=time.time() + 2 * 86400)


@pytest.mark.heavy
@pytest.mark.parametrize("change", ["serial", "name", "expired", "revoked", "revoked elsewhere", "unknown"])
def test_certificate_missing_from_the_register_is_refused_with_the_reason(tmp_path, change):
    home = make_home(tmp_path / "home")
    keys, _ = Credentials(home, "heart"), Credentials(home, "lung")
    serial = f"{x509.load_pem_x509_certificate(keys.certificate).serial_number:x}"
    registry = home.registry()
    now = time.time()
    assert registry.refusal("heart", serial, now=now) == ""
    assert registry.refusals({"heart": serial}, now=now) == {}
    if change == "revoked":
        registry.revoke("heart", "", now=now)
    elif change == "revoked elsewhere":
        with closing(home.registry()) as operators:
            operators.revoke("heart", "", now=now)
    name, presented, at = {
        "serial": ("heart", "1234", now),
        "name": ("lung", serial, now),
        "expired": ("heart", serial, now + 400 * 86400),
        "revoked": ("heart", serial, now),
        "revoked elsewhere": ("heart", serial, now),
        "unknown": ("nobody", serial, now),
    }[change]
    words = registry.refusal(name, presented, now=at)
    assert [registry.refusals({name: presented}, now=at) for _ in range(2)] == [{name: words}] * 2
    expected = {
        "serial": "not issued to heart",
        "name": "not issued to lung",
        "expired": "has expired",
        "revoked": "was revoked",
        "revoked elsewhere": "was revoked",
        "unknown": "no party 'nobody'",
    }[change]
    assert expected in words
    registry.close()


def request_of(name, token):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return EnrolmentRequest.make(name, new_tls_key(), Ed25519PrivateKey.generate(), token)


def test_key_unreadable_by_too_many_open_files_is_a_machine_fault(home, monkeypatch):
    def full(_path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "authority.crt")

    monkeypatch.setattr(Path, "read_bytes", full)
    with pytest.raises(MachineFault, match="Too many open files"):
        Authority(home.path / "authority")
