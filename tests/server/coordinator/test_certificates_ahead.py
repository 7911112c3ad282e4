"""A certificate that was issued while the clock was ahead is issued anew, and said."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import grpc
import pytest

from tests.doubles.coded import raises
from tests.doubles.hospitals import operator
from tests.doubles.loops import wait_for
from tests.doubles.stream import Credentials, Served, Stream, make_home
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_server.authority import SERVER_DAYS
from undersong_server.coordinator import gate
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.parties import SCHEMA, Registry
from undersong_server.coordinator.service import Coordinator
from undersong_server.database.storage import Storage

AHEAD_S = 400 * 86400.0


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home", ("alpha",))


def begun(home):
    cache = home.path.parent / "cache.sqlite"
    return Coordinator(CoordinatorHome(home.path), public_cache=cache, environment={}, keepalive_s=5.0)


@contextmanager
def serve_in_thread(coordinator):
    thread = threading.Thread(target=coordinator.serve)
    thread.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()
        thread.join()


def test_server_certificate_that_is_not_yet_valid_is_reissued(home, caplog):
    caplog.set_level("INFO")
    authority = home.authority()
    authority.issue_server(home.settings.server_names, now=time.time() + AHEAD_S, days=SERVER_DAYS)
    assert "NOT YET VALID: the certificate of the server" in operator("coordinator", "show", "--home", home.path)
    coordinator = begun(home)
    coordinator.server.close()
    assert not authority.not_yet_valid(time.time())
    assert time.time() < authority.server_expires_at
    assert "not yet valid, issued while the clock was ahead" in caplog.text
    assert "NOT YET VALID" not in operator("coordinator", "show", "--home", home.path)


def test_server_certificate_dated_in_the_future_is_reissued_at_next_review(home):
    coordinator = begun(home)
    authority = home.authority()
    authority.issue_server(home.settings.server_names, now=time.time() + AHEAD_S, days=SERVER_DAYS)
    coordinator._review()
    coordinator.server.close()
    assert not authority.not_yet_valid(time.time())


def test_server_certificate_is_reissued_soon_after_the_clock_is_corrected(home, monkeypatch):
    now, authority = time.time, home.authority()
    with home.hold(), serve_in_thread(begun(home)), monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now() + AHEAD_S)
        wait_for(lambda: authority.not_yet_valid(now()))
        ahead.undo()
        wait_for(lambda: not authority.not_yet_valid(now()))


def test_authority_certificate_dated_in_the_future_is_reported_until_valid(tmp_path, monkeypatch, caplog):
    now = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now() + AHEAD_S)
        home = make_home(tmp_path / "later", metrics="127.0.0.1:0")
    with home.hold(), serve_in_thread(begun(home)) as coordinator:
        wait_for(lambda: coordinator.health()["held_up"])
        words = "the authority's own certificate is not yet valid"
        assert words in operator("coordinator", "healthy", "--home", home.path, code=MachineFault.exit_code)
        shown = operator("coordinator", "show", "--home", home.path)
        assert words in shown
        assert "NOT YET VALID: the certificate of the authority" in shown
        with monkeypatch.context() as right:
            right.setattr(time, "time", lambda: now() + AHEAD_S)
            wait_for(lambda: not coordinator.health()["held_up"])
    assert caplog.text.count(words) == 1


def test_handshake_refused_for_our_own_certificate_is_logged_as_that(tmp_path, caplog):
    home = make_home(tmp_path / "home")
    party = Credentials(home, "alpha")
    home.authority().issue_server(["localhost"], now=time.time() + AHEAD_S, days=SERVER_DAYS)
    with Served(home) as served:
        with Stream(served.port, party.for_grpc) as stream:
            stream.ended.wait(10)
        wait_for(lambda: gate.OWN_CERTIFICATE in caplog.text)
        assert gate.NO_CERTIFICATE not in caplog.text
        home.authority().issue_server(["localhost"], now=time.time(), days=SERVER_DAYS)
        with Stream(served.port, grpc.ssl_channel_credentials(party.ca)) as stranger:
            stranger.ended.wait(10)
        wait_for(lambda: gate.NO_CERTIFICATE in caplog.text)


def test_records_of_a_fast_clock_do_not_block_enrolment(tmp_path):
    now = 1_000_000.0
    registry = Registry(Storage(tmp_path, schema=SCHEMA).registry())
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
