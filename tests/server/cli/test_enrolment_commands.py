"""``undersong invite`` and ``undersong sign`` as an operator types them: what is asked, who may read what is made."""

from __future__ import annotations

import contextlib
import os
import stat
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.stream import make_home
from tests.doubles.typed import typed as type_in
from undersong_common import files
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Package, new_tls_key
from undersong_server.cli.app import app
from undersong_server.coordinator.home import Serving
from undersong_server.operations import enrolment


@pytest.fixture
def identity():
    return Ed25519PrivateKey.generate()


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home")


@pytest.fixture
def anybody():
    """Whatever this process makes, everybody may read and write, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def waiting(monkeypatch):
    """Modes of the files as they lie beside their place, before each is put there."""
    modes = []
    replace = os.replace

    def watched(source, target):
        modes.append(stat.S_IMODE(os.stat(source).st_mode))
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", watched)
    return modes


def typed(home, *arguments, **changes):
    return type_in(app, *arguments, "--home", home.path, standalone_mode=False, **changes)


def request_for(home, folder, identity):
    typed(home, "invite", "heart", "--out", folder / "heart.package")
    token = Package.parse((folder / "heart.package").read_bytes()).token
    made = EnrolmentRequest.make("heart", new_tls_key(), identity, token)
    (folder / "request").write_bytes(made.sign(identity))
    return made.fingerprint


def test_package_and_grant_files_are_created_readable_by_their_owner_only(home, tmp_path, anybody, waiting, identity):
    (tmp_path / "heart.package").write_text("an older one")
    (tmp_path / "heart.package").chmod(0o666)
    fingerprint = request_for(home, tmp_path, identity)
    assert stat.S_IMODE((tmp_path / "heart.package").stat().st_mode) == 0o600
    done = typed(home, "sign", tmp_path / "request", "--fingerprint", fingerprint, "--out", tmp_path / "grant")
    assert done.exception is None
    assert stat.S_IMODE((tmp_path / "grant").stat().st_mode) == 0o600
    assert set(waiting) == {0o600}
    assert len(waiting) >= 2


def test_sign_without_a_fingerprint_and_a_terminal_signs_nothing(home, tmp_path, identity):
    request_for(home, tmp_path, identity)
    done = typed(home, "sign", tmp_path / "request", "--out", tmp_path / "grant")
    assert "--fingerprint" in done.exception.remedy
    assert not (tmp_path / "grant").exists()


@pytest.mark.parametrize("right", [True, False])
def test_terminal_asks_to_type_the_fingerprint_without_showing_it(home, tmp_path, identity, monkeypatch, right):
    fingerprint = request_for(home, tmp_path, identity)
    prompted = []

    def prompt(question):
        prompted.append(question)
        return fingerprint if right else "0" * 32

    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr("undersong_server.cli.coordinator.sys", type("Terminal", (), {"stdin": _Terminal()}))
    done = typed(home, "sign", tmp_path / "request", "--out", tmp_path / "grant")
    assert len(prompted) == 1
    assert fingerprint not in prompted[0]
    assert (tmp_path / "grant").exists() == right
    if not right:
        assert fingerprint not in done.output + str(done.exception)


class _Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize(("heard_ago_s", "said"), [(12.0, "connected"), (95.0, "connected, last heard 1 min 35 s ago")])
def test_connected_party_that_does_not_answer_is_listed_as_silent(tmp_path, monkeypatch, heard_ago_s, said):
    home, now_s = make_home(tmp_path / "home", ("heart",)), time.time()
    monkeypatch.setattr(enrolment.time, "time", lambda: now_s)
    with home.hold(), contextlib.closing(home.registry()) as registry:
        home.write_serving(Serving(pid=1, port=7443, metrics_port=None, since=0.0, connected=("heart",)))
        registry.touch({"heart": now_s - heard_ago_s})
        listed = typed(home, "parties").stdout.splitlines()[1].split("\t")
    assert listed[2] == said
