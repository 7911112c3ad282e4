"""A vector that is done after people have decided otherwise stays in the house."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.doubles.party_home import command
from tests.doubles.restarts import ME, Federated, Hospital, after_each_step, vector_in
from undersong_client import flower_app
from undersong_client.answering import journaled as answering
from undersong_client.answering.journaled import Answering
from undersong_client.answering.pending import Deferral, DeferredVector, DroppedRequest, PendingReply
from undersong_client.home import PartyHome
from undersong_client.link.daemon import Daemon
from undersong_common.errors import UndersongError
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.wire import codec
from undersong_protocol.wire.framing import Envelope, Outgoing
from undersong_protocol.wire.messages import federation_pb2 as wire


class Asked:
    """A hospital that was asked for its masked vector; ``answers`` is what it said at each stage."""

    def __init__(self, folder: Path) -> None:
        (folder / "hospital").mkdir()
        self.hospital = Hospital(folder / "hospital")
        self.federated = Federated(folder, self.hospital.identity, parties=2)
        self.party = self.hospital.start()
        self.answers: dict[str, PendingReply] = {}
        self.federated.agree(lambda request: self.party.answer(request).reply)

    def run(self) -> None:
        def ask(stage: str, request: bytes) -> bytes:
            self.answers[stage] = self.party.answer(request)
            return self.answers[stage].reply

        self.federated.run(ask)

    def withdraw(self, *what: str) -> None:
        with PartyHome(self.hospital.path).running():  # as the daemon holds it
            command("revoke", *(what or [self.federated.manifest.run]), "--home", self.hospital.path)


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


@pytest.mark.heavy
def test_consent_withdrawn_during_computation_holds_the_vector_back(asked: Asked) -> None:
    with (
        after_each_step(lambda step: asked.withdraw() if step == "charged" else None),
        pytest.raises(UndersongError),
    ):
        asked.run()
    reply = asked.answers["mask"].reply
    assert vector_in(reply) is None
    assert "withdrawn from" in codec.decode_reply(reply, ME).refusal.problem
    assert not any(entry["kind"] == "sent" for entry in asked.party._assembled.ledger.entries())


@pytest.mark.heavy
@pytest.mark.parametrize("what", [(), ("--coordinator",)])
def test_consent_withdrawn_while_a_done_vector_waits_holds_it_back(asked: Asked, what: tuple[str, ...]) -> None:
    asked.run()
    vector = asked.answers["mask"]
    assert vector_in(vector.reply) is not None
    assert vector.may_leave()
    asked.withdraw(*what)
    assert not vector.may_leave()


class Vectors:
    """Answers at once, with what may leave while people consent."""

    last = None
    consent = True

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def answer(self, _data: bytes, _begun: float, **_: Any) -> PendingReply:
        return PendingReply(b"vector", 0.02, lambda: Vectors.consent)


def test_withdrawal_is_checked_after_the_wait_and_before_each_new_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "JournaledParty", Vectors)
    sent: list[Outgoing] = []
    nowhere: Any = None

    def answered() -> Answering:
        made = Answering(nowhere, nowhere, send=sent.append)
        made.request(Envelope(bytes(16), b"a step"))
        made._id_queue.put(None)
        made._thread.join(10.0)
        return made

    before = answered()
    assert len(sent) == len(before.unacknowledged()) == 1
    monkeypatch.setattr(Vectors, "consent", False)
    assert not before.unacknowledged()
    assert not answered().unacknowledged()
    assert len(sent) == 1


def test_daemon_sends_no_finished_reply_while_it_is_paused(tmp_path: Path) -> None:
    daemon = object.__new__(Daemon)
    sent: list[Outgoing] = []
    pause = tmp_path / "paused"
    stand_in: dict[str, Any] = {
        "_home": SimpleNamespace(pause=pause),
        "_connection": SimpleNamespace(send_reply=sent.append),
        "_held_back": False,
    }
    vars(daemon).update(stand_in, _lock=threading.Lock())
    daemon._send_reply(Outgoing(bytes(16), b"before"))
    pause.touch()
    daemon._send_reply(Outgoing(bytes(16), b"vector"))
    assert len(sent) == 1
    assert daemon._held_back


def test_flower_party_sends_no_vector_after_consent_is_withdrawn(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        flower_app, "_answer_requests", lambda *_: [PendingReply(b"vector", 0.0, lambda: False), PendingReply(b"other")]
    )
    home = PartyHome(asked.hospital.path)
    refused, other = flower_app.answers(home, [b"", b""])
    assert codec.decode_reply(refused, ME).WhichOneof("body") == "refusal"
    assert other == b"other"
    home.pause.touch()
    monkeypatch.setattr(flower_app, "_answer_requests", lambda *_: pytest.fail("asked while it is paused"))
    assert flower_app.answers(home, [b""]) == []


class StopAsking(Exception):
    """The coordinator asks no further."""


class Crash(BaseException):
    """The process ends here."""


def closing(manifest: Manifest) -> bytes:
    message = wire.CloseRun(manifest_hash=manifest.hash)
    return wire.Request(version=codec.VERSION, close_run=message).SerializeToString()


def test_charge_of_an_unsent_vector_is_withdrawn_when_its_run_ends(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    party, deferral, manifest = asked.party, Deferral(), asked.federated.manifest

    def ask(stage: str, request: bytes) -> bytes:
        if stage == "mask":
            with pytest.raises(DeferredVector):  # charged, and the vector is under way
                party.answer(request, deferral=deferral)
            raise StopAsking(request)
        return party.answer(request).reply

    with pytest.raises(StopAsking) as stopped:
        asked.federated.run(ask)
    ledger = Ledger.read(asked.hospital.path / "ledger.jsonl")
    assert ledger.attempts(manifest.run, "votes/1") == {0: "charged"}
    receipts = [party.answer(closing(manifest)).reply for _ in range(2)]
    assert receipts[0] == receipts[1]
    party.compute(deferral)
    with pytest.raises(DroppedRequest):
        party.answer(stopped.value.args[0], deferral=deferral)
    ledger = Ledger.read(asked.hospital.path / "ledger.jsonl")
    assert ledger.attempts(manifest.run, "votes/1") == {0: "withdrawn"}
    assert ledger.spent(1e-5) == 0.0


def test_restoring_a_journal_from_before_a_withdrawal_sends_no_vector(asked: Asked, tmp_path: Path) -> None:
    """The withdrawal is on the disk at once; the journal's end of the attempt may be lost in a power failure."""
    image = tmp_path / "image"

    def stop(step: str) -> None:
        if step == "journaled":  # the vector is in the journal, and its hash not yet in the ledger
            asked.hospital.kept(image)
            raise Crash

    with after_each_step(stop), pytest.raises(Crash):
        asked.run()
    manifest = asked.federated.manifest
    asked.hospital.start().answer(closing(manifest))
    asked.hospital.lose_journal()
    for part in ("journal", "keys"):
        asked.hospital.replace(part, image)
    reply = asked.hospital.start().answer(asked.federated.asked["mask"]).reply
    assert vector_in(reply) is None
    ledger = Ledger.read(asked.hospital.path / "ledger.jsonl")
    assert ledger.attempts(manifest.run, "votes/1") == {0: "withdrawn"}
    assert ledger.spent(1e-5) == 0.0
