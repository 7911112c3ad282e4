"""A party that has heard the process that took over a coordinator answers the one that was replaced nothing more."""

import pytest

from tests.doubles.alliance import Alliance
from tests.doubles.party_home import HashedEmbedder
from tests.server.federation.test_driver import World
from undersong_client.answering.assemble import assemble
from undersong_client.answering.journaled import JournaledParty
from undersong_client.home import PartyHome
from undersong_common.errors import UndersongError
from undersong_common.models.embedding import Embedder
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.coordinator import grpc_transport

DAY_S = 86400


def introduce(epoch):
    return wire.Request(version=codec.VERSION, introduce=wire.Introduce(), epoch=epoch).SerializeToString()


def heard(party, epoch):
    """True if the party answers a request of this epoch."""
    reply = codec.decode_reply(party.handle(introduce(epoch)), party.name)
    if reply.WhichOneof("body") == "introduction":
        return True
    assert "of a coordinator that was replaced" in reply.refusal.problem
    return False


@pytest.mark.parametrize("restart", [False, True])
def test_a_lower_epoch_is_refused_and_a_higher_one_is_kept(tmp_path, restart):
    world = World(tmp_path)
    assert [heard(world.parties["p0"], epoch) for epoch in (0, 5, 5, DAY_S - 2)] == [True] * 4
    if restart:
        world.restart()
    party = world.parties["p0"]
    assert [heard(party, epoch) for epoch in (0, 5, DAY_S - 3, DAY_S - 2, DAY_S - 1)] == [False] * 3 + [True] * 2
    party.allow(Policy(largest_epsilon=1.0), "another coordinator")
    assert heard(party, 7)
    party.allow(Policy(largest_epsilon=1.0), "")
    assert not heard(party, 7)


@pytest.mark.parametrize("epoch", [DAY_S + 1, 2**32, 2**64 - 1])
def test_an_epoch_more_than_a_day_ahead_is_refused_and_not_remembered(tmp_path, epoch):
    party = World(tmp_path).parties["p0"]
    party._clock = lambda: 0.0
    reply = codec.decode_reply(party.handle(introduce(epoch)), party.name)
    assert "more than a day ahead" in reply.refusal.problem
    assert reply.refusal.kind == wire.Refusal.LATER  # a wrong clock passes, and is no decision that ends a run
    assert heard(party, 1), "the coordinator's own epochs are heard as before"


def test_epoch_heard_while_clock_was_ahead_is_forgotten_once_it_is_right(tmp_path, caplog):
    world = World(tmp_path)
    party = world.parties["p0"]
    party._clock = lambda: 400.0 * DAY_S
    assert heard(party, 400 * DAY_S)
    party._clock = lambda: 0.0
    assert heard(party, 1)
    assert "is forgotten" in caplog.text
    world.restart()
    world.parties["p0"]._clock = lambda: 0.0
    assert not heard(world.parties["p0"], 0), "what was heard since is remembered"


@pytest.mark.parametrize("restart", [False, True])
def test_an_epoch_that_nobody_uses_for_a_day_is_forgotten(tmp_path, caplog, restart):
    """A forged request, a day ahead as is allowed, shuts the coordinator out for a day, and not for good."""
    world = World(tmp_path)
    served, begin_s = 300 * DAY_S, 330.0 * DAY_S

    def heard_after(passed_s, epoch):
        if restart:
            world.restart()
        party = world.parties["p0"]
        party._clock = lambda: begin_s + passed_s
        return heard(party, epoch)

    assert heard_after(0, served)
    assert heard_after(1, int(begin_s) + DAY_S)
    assert not heard_after(DAY_S - 7200, served)
    assert heard_after(DAY_S + 2, served)
    assert "was not heard for a day" in caplog.text
    assert not heard_after(DAY_S + 3, served - 1), "what was heard since is remembered"


@pytest.mark.heavy
@pytest.mark.parametrize("restart", [False, True])
def test_requests_of_the_new_coordinator_keep_its_epoch_in_force(tmp_path, restart):
    world = World(tmp_path)
    party = world.parties["p0"]
    for hour in range(0, 72, 5):
        party._clock = lambda hour=hour: DAY_S + 3600.0 * hour
        assert heard(party, 9)
        if restart:
            world.restart()
            party = world.parties["p0"]
            party._clock = lambda hour=hour: DAY_S + 3600.0 * hour
        assert not heard(party, 8)
    party._store.put("epoch/", b"9")  # as an earlier version has written it
    party.forget()
    party._clock = lambda: 99.0 * DAY_S
    assert not heard(party, 8)
    party._clock = lambda: 100.0 * DAY_S
    assert heard(party, 8)


def test_epoch_heard_by_a_fast_clock_holds_one_day_of_the_right_clock(tmp_path):
    world = World(tmp_path)
    party = world.parties["p0"]
    party._clock = lambda: 400.0 * DAY_S
    assert heard(party, 20 * DAY_S)
    for day, is_heard in ((20, False), (20.9, False), (21, True)):
        party._clock = lambda day=day: day * DAY_S
        assert heard(party, 1) is is_heard


def test_replaced_coordinator_cannot_open_a_sum(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    for party in world.parties.values():
        assert heard(party, 9)
    with pytest.raises(UndersongError, match="of a coordinator that was replaced"):
        world.federation.private_sum("votes/1", world.inputs())
    assert {party._attempts.last(world.manifest, "votes/1") for party in world.parties.values()} == {-1}


def test_request_frames_with_appended_epoch_decode_as_one_request():
    epoch = wire.Request(epoch=2**40).SerializeToString()
    bodies = [wire.Request(version=codec.VERSION, close_run=wire.CloseRun(manifest_hash=bytes(32)))]
    bodies.append(wire.Request(version=codec.VERSION, introduce=wire.Introduce()))
    requests = {str(number): body.SerializeToString() for number, body in enumerate(bodies)}
    for body, sent in zip(bodies, grpc_transport._pack(requests, epoch).values(), strict=True):
        body.epoch = 2**40
        assert codec.decode_request(b"".join(frame.whole for frame in sent.frames())) == body


@pytest.mark.heavy
def test_writes_of_a_request_and_its_epoch_are_one_transaction(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    with Alliance(tmp_path, ("alpha",)) as alliance:
        served = alliance.coordinator._home.epoch
        hospital = alliance.hospitals["alpha"]
        hospital.stop()
    home = PartyHome(hospital.home)

    def assembled():
        return assemble(home, checkpoints=tmp_path / "marks", clock=hospital.clock, embedder=HashedEmbedder())

    party = JournaledParty(home, assembled())
    monkeypatch.setattr(party._outbox, "record", lambda *_, **__: 1 / 0)  # as a disk that is full
    with pytest.raises(ZeroDivisionError):
        party.answer(introduce(served + 2))
    again = JournaledParty(home, assembled())
    assert again.answer(introduce(served + 1)).kind == "introduction"
    assert again.answer(introduce(served)).kind == "refusal"
