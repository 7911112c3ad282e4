"""Flower's nodes prove which party they are, and answer no more than the run's plan allows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from tests.doubles.coded import raises
from tests.doubles.flower_memory import FlowerInMemory
from tests.doubles.parties import make_party, make_tables, public_of
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_client.flower_app import address_of, requests_of
from undersong_common.errors import ConfigurationError
from undersong_protocol.wire import codec
from undersong_protocol.wire.codec import RECORD, REPLIES
from undersong_protocol.wire.framing import FrameLimits
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.flower.app import FlowerRunDriver, FlowerRunSettings, FlowerTransport, planned_run

pytestmark = pytest.mark.heavy


def test_blank_party_list_is_refused_and_no_list_means_all_parties(tmp_path):
    home = make_home(tmp_path / "home", ("alpha", "beta", "gamma")).path
    given = {"coordinator": home, "task-file": make_task(tmp_path), "run": "asked"}
    for names in (",", " ", " , "):
        with raises(ConfigurationError, "not-enrolled"):
            planned_run(FlowerRunSettings(**given, parties=names), 1)
    assert planned_run(FlowerRunSettings(**given), 1) == "asked"
    assert CoordinatorHome(home).run("asked").planned().roster == ("alpha", "beta", "gamma")


QUESTION = b"a request"


def flower(answers):
    """A node per entry: its name, and its function of (request, its address)."""

    def app(message, context):
        answer = answers[context.node_config["party-folder"]]
        replies = [reply for each in requests_of(message) for reply in answer(each, address_of(context))]
        return Message(RecordDict({RECORD: ConfigRecord({REPLIES: replies})}), reply_to=message)

    return FlowerInMemory(app, {name: name for name in answers})


def transport_of(world, identities, said, **options):
    return FlowerTransport(world.grid, identities=identities, say=said.append, outstanding=64, **options)


def play_hospital(folder, name="p0"):
    """The real party's introduction; to any other request it answers with its name."""
    table = make_tables(1, 2, ["x"])["p0"]

    def answer(request, address):
        if request == QUESTION:
            return [name.encode()]
        return [make_party(folder, name, table, address=address).handle(request)]

    return answer


def repeated(folder):
    """The introduction that the true party gave to another question: name, public key and signature of its own."""
    (reply,) = play_hospital(folder)(introduce(b"another challenge"), "")
    return lambda request, _address: [b"the impostor" if request == QUESTION else reply]


def relayed(folder):
    """The true party's own answer to this very challenge, asked for by way of another run or node."""
    return lambda request, _address: play_hospital(folder)(request, codec.flower_address(1, 2))


def unsigned(_folder):
    """What a program from before the challenge says, and whoever has read a published manifest."""
    introduction = wire.Introduction(name="p0", identity=public_of("p0"))
    reply = wire.Reply(version=codec.VERSION, introduction=introduction).SerializeToString()
    return lambda request, _address: [b"the impostor" if request == QUESTION else reply]


def changed(folder):
    """An introduction of the true party in which somebody on the way has changed the statistics."""

    def answer(request, address):
        reply = codec.decode_reply(play_hospital(folder)(request, address)[0], "p0")
        del reply.introduction.statistics[:]
        return [reply.SerializeToString()]

    return answer


def enrolled_elsewhere(folder):
    """Another hospital's folder, with that hospital's own signature, in this one's name."""

    def answer(request, address):
        reply = codec.decode_reply(play_hospital(folder, "p1")(request, address)[0], "p1")
        reply.introduction.name = "p0"
        return [reply.SerializeToString()]

    return answer


def introduce(challenge):
    return wire.Request(version=codec.VERSION, introduce=wire.Introduce(challenge=challenge)).SerializeToString()


def test_impostors_of_a_flower_party_are_reported_and_it_still_joins(tmp_path):
    """The attack: whoever knew a party's public key had its name, and the requests that were meant for it."""
    impostors = [repeated, relayed, unsigned, changed, enrolled_elsewhere]
    answers = {each.__name__: each(tmp_path) for each in impostors} | {"p0": play_hospital(tmp_path)}
    said = []
    with flower(answers) as world:
        transport = transport_of(world, {"p0": public_of("p0")}, said)
        assert transport.locate(timeout_s=20.0) == ["p0"]
        assert transport.exchange({"p0": QUESTION}, timeout_s=20.0) == {"p0": b"p0"}
        assert transport.locate(timeout_s=20.0) == ["p0"]  # nobody is asked, or named, a second time
        for impostor in impostors:
            (words,) = [words for words in said if str(world.nodes[impostor.__name__]) in words]
            assert "introduces itself as p0" in words
    assert len(said) == len(impostors)


def test_every_node_gets_its_own_challenge_and_unknown_names_are_refused(tmp_path):
    challenges = []

    def listening(name):
        def answer(request, address):
            challenges.append(codec.decode_request(request).introduce.challenge)
            return play_hospital(tmp_path, name)(request, address)

        return answer

    with flower({name: listening(name) for name in ("p0", "p1", "p2")}) as world:
        assert transport_of(world, {"p1": public_of("p1")}, []).locate(timeout_s=20.0) == ["p1"]
        # one owner's simulation: there is no registry
        assert transport_of(world, None, []).locate(timeout_s=20.0) == ["p0", "p1", "p2"]
    assert len(set(challenges)) == 6
    assert {len(challenge) for challenge in challenges} == {32}


def test_oversized_and_unexpected_flower_replies_are_ignored(tmp_path):
    introduced, replies, said = play_hospital(tmp_path), [], []
    with flower({"p0": lambda asked, at: replies if asked == QUESTION else introduced(asked, at)}) as world:
        transport = transport_of(world, None, said, reply_bytes=lambda: 10 if replies else None)
        transport.locate(timeout_s=20.0)
        for sizes, taken in (([10], True), ([11], False), ([1, 1], False)):
            said.clear()
            replies[:] = [bytes(size) for size in sizes]
            assert transport.exchange({"p0": QUESTION}, timeout_s=20.0) == ({"p0": replies[0]} if taken else {})
            assert ["SuperNode of p0" in words for words in said] == [True] * (not taken)


class Meddling:
    """A grid that brings, before what it should, replies of an earlier exchange and of another node."""

    def __init__(self, grid, foreign):
        self._grid, self._foreign, self._earlier = grid, foreign, []
        self.meddles = False

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def pull_messages(self, identities):
        came = list(self._grid.pull_messages(identities))
        self._earlier += came
        if not self.meddles:
            return came
        self.meddles = False
        forged = []
        for identity in identities:
            message = Message(
                RecordDict({RECORD: ConfigRecord({REPLIES: [b"forged"]})}), dst_node_id=1, message_type="query"
            )
            message.metadata.__dict__ |= {"_src_node_id": self._foreign, "_reply_to_message_id": identity}
            forged.append(message)
        return [*self._earlier, *forged]


def test_flower_reply_of_an_earlier_exchange_or_another_node_is_ignored(tmp_path):
    said = []
    with flower({"p0": play_hospital(tmp_path), "p1": play_hospital(tmp_path, "p1")}) as world:
        transport = transport_of(world, None, said)
        transport.locate(timeout_s=20.0)
        transport._grid = Meddling(world.grid, world.nodes["p1"])
        assert transport.exchange({"p0": QUESTION}, timeout_s=20.0) == {"p0": b"p0"}
        transport._grid.meddles = True
        assert transport.exchange({"p0": QUESTION}, timeout_s=20.0) == {"p0": b"p0"}
    words = "brings a reply to no message that it was sent in this exchange"
    assert said == [f"the SuperNode of {name} {words}; left aside" for name in ("p0", "p1")]


def test_messages_that_a_busy_superlink_refuses_are_sent_again(tmp_path, monkeypatch):
    said = []
    with flower({"p0": play_hospital(tmp_path)}) as world:
        with monkeypatch.context() as busy:

            def refusing(_messages):
                raise ObjectPushError("object", 1, "session")

            busy.setattr(world.grid, "push_messages", refusing)
            transport = transport_of(world, None, said)
            assert transport.locate(timeout_s=20.0) == []
        assert len(said) == 1
        assert transport.locate(timeout_s=20.0) == ["p0"]


def test_reply_limit_is_the_planned_size_capped_by_the_message_limit():
    run = SimpleNamespace(status=lambda: SimpleNamespace(charged=False))
    driver = FlowerRunDriver(run, None, {}, public_cache=None, environment={}, number=1, signer=None)
    driver._reply_bytes = 7
    assert driver.carrier._reply_bytes() == 7
    limits = FrameLimits(message_bytes=100)
    assert [limits.reply_bytes(planned) for planned in (None, 99, 101)] == [100, 99, 100]
