"""A certificate that was issued while the clock was ahead is issued anew, and said."""

from __future__ import annotations

import time

import pytest

from tests.doubles.coded import raises
from tests.doubles.hospitals import operator
from tests.doubles.stream import make_home
from undersong_common.errors import ConfigurationError
from undersong_server.authority import SERVER_DAYS
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import Registry
from undersong_server.coordinator.service import AUTHORITY_AHEAD, Coordinator

AHEAD_S = 400 * 86400.0


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home", ("alpha",))


def begun(home):
    cache = home.path.parent / "cache.sqlite"
    return Coordinator(CoordinatorHome(home.path), public_cache=cache, environment={}, keepalive_s=5.0)


def test_a_server_certificate_that_is_not_yet_valid_is_issued_anew(home, caplog):
    caplog.set_level("INFO")
    authority = home.authority()
    authority.issue_server(home.settings.server_names, now=time.time() + AHEAD_S, days=SERVER_DAYS)
    assert "NOT YET VALID: the certificate of the server" in operator("coordinator", "show", "--home", home.path)
    coordinator = begun(home)
    coordinator.server.close()
    assert authority.server_begins_at <= time.time() < authority.server_expires_at
    assert "not yet valid, issued while the clock was ahead" in caplog.text
    assert "NOT YET VALID" not in operator("coordinator", "show", "--home", home.path)


def test_one_that_comes_while_it_serves_is_issued_anew_at_the_next_review(home):
    coordinator = begun(home)
    authority = home.authority()
    authority.issue_server(home.settings.server_names, now=time.time() + AHEAD_S, days=SERVER_DAYS)
    coordinator._review()
    coordinator.server.close()
    assert authority.server_begins_at <= time.time()


def test_an_authority_made_with_a_clock_ahead_is_said(tmp_path, monkeypatch, caplog):
    now = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now() + AHEAD_S)
        home = make_home(tmp_path / "later")
    begun(home).server.close()
    assert AUTHORITY_AHEAD in caplog.text
    assert "NOT YET VALID: the certificate of the authority" in operator("coordinator", "show", "--home", home.path)


def test_an_invitation_and_certificates_of_a_wrong_clock_shut_nobody_out(tmp_path):
    now = 1_000_000.0
    registry = Registry(tmp_path / "registry.sqlite")
    registry.invite("alpha", b"token", expires_at=now + AHEAD_S + 60.0, now=now + AHEAD_S)
    assert registry.token("alpha", now=now + AHEAD_S) == b"token"
    with raises(ConfigurationError, "invitation-expired"):
        registry.token("alpha", now=now)
    registry.invite("alpha", b"another", expires_at=now + 60.0, now=now)
    assert registry.token("alpha", now=now) == b"another"
    rows = [(f"{serial}", "alpha", now + AHEAD_S, now + 2 * AHEAD_S) for serial in range(9)]
    with registry.database.writing() as statements:
        statements.executemany(
            "INSERT INTO certificate (serial, party, issued_at, expires_at) VALUES (?, ?, ?, ?)",
            [*rows, ("right", "alpha", now - AHEAD_S, now + 60.0)],
        )
    registry.check_renewal("alpha", "right", now=now)
    registry.check_renewal("alpha", "0", now=now)
    registry.close()
