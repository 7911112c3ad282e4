"""What parties are told of a run that ended, by whichever transport."""

from __future__ import annotations

import pytest

from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import UndersongError
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.coordinator.run_driver import tell_ending
from undersong_server.database.journal import Journal
from undersong_server.defaults import RunOptions
from undersong_server.operations import runs
from undersong_server.runs.folder import RunFailure, RunStatus

PARTIES = ("alpha", "beta", "gamma")
NOTED = wire.Reply(version=codec.VERSION, noted=wire.Noted()).SerializeToString()


class Parties:
    """A transport that keeps what it is given; alpha notes it, beta refuses, gamma is away."""

    def __init__(self):
        self.sent = []

    def exchange(self, requests, *, timeout_s):
        self.sent.append({name: codec.decode_request(data) for name, data in requests.items()})
        refusal = codec.refusal(UndersongError("no")).SerializeToString()
        return {name: reply for name, reply in {"alpha": NOTED, "beta": refusal}.items() if name in requests}


@pytest.fixture
def home(tmp_path):
    return make_home(tmp_path / "home", PARTIES)


@pytest.fixture
def run(home, tmp_path):
    runs.plan(home.path, make_task(tmp_path / "task"), RunOptions(name="first"))
    return home.run("first")


def proposed(run):
    plan = run.planned().load().plan
    manifest = Manifest("first", {"name": "t"}, "wasp", "00" * 32, (Member("alpha", bytes(32)),), plan)
    journal = Journal(run.journal_path)
    journal.put("manifest", manifest.to_bytes())
    journal.close()
    return manifest


@pytest.mark.heavy
@pytest.mark.parametrize(("state", "kind"), [("failed", "suspend_run"), ("stopped", "close_run")])
def test_parties_are_told_to_suspend_a_failed_run_and_close_an_ended_one(run, state, kind):
    manifest, parties, ended = proposed(run), Parties(), RunStatus(state, 2)
    assert tell_ending(parties, run, ended, PARTIES) == {"alpha", "beta"}
    (sent,) = parties.sent
    assert {request.WhichOneof("body") for request in sent.values()} == {kind}
    assert {getattr(request, kind).manifest_hash for request in sent.values()} == {manifest.hash}
    assert run.heard(ended) == {"alpha"}
    assert run.heard(RunStatus(state, 3)) == set()  # another end


def test_no_party_is_told_the_end_of_a_run_that_was_never_proposed(run):
    parties = Parties()
    assert tell_ending(parties, run, RunStatus("stopped", 1), PARTIES) == set(PARTIES)
    assert parties.sent == []
    assert not run.journal_path.exists()


@pytest.mark.heavy
def test_failed_run_over_flower_is_suspended_too(home, run, monkeypatch):
    from undersong_server.flower import app
    from undersong_server.flower.app import FlowerRunDriver

    parties, _ = Parties(), proposed(run)

    def fails(driver):
        driver.carrier = parties
        driver.folder.write_status(RunStatus("failed", error=RunFailure("beta refuses", "", 3)))

    monkeypatch.setattr(FlowerRunDriver, "run", fails)
    with pytest.raises(UndersongError, match="beta refuses"):
        app.drive(None, home, run)
    assert [request.WhichOneof("body") for request in parties.sent[0].values()] == ["suspend_run"] * 3
