"""A private sum asks one question: whatever the attempt, the restart or the order of messages."""

import pytest

from tests.doubles.coded import raises
from tests.server.federation.test_driver import World
from undersong_common.errors import ConfigurationError, PrivacyRefusal, RoundAborted
from undersong_protocol.secagg.evidence import check_evidence
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, Segment, question


def open_sum(world, count, attempt=0, party="p0", name="votes/1"):
    inputs = world.inputs(count)
    message = wire.OpenSum(
        manifest_hash=world.manifest.hash,
        sum=name,
        attempt=attempt,
        inputs=[given.to_wire() for given in inputs],
        blocks=[world.blocks.get(segment.block) for given in inputs for segment in given.segments],
        payload=advertise_request(world.manifest.sum_parameters(name, attempt)),
    )
    request = wire.Request(version=codec.VERSION, open_sum=message)
    return codec.decode_reply(world.parties[party].handle(request.SerializeToString()), party)


def check_refused(reply):
    assert "votes/1: its public inputs are not those with which it was first asked" in reply.refusal.problem
    assert reply.refusal.kind == wire.Refusal.PRIVACY


@pytest.mark.parametrize("restart", [False, True])
def test_second_question_for_a_sum_is_refused_in_every_attempt(tmp_path, restart):
    world = World(tmp_path, epsilon=4.0, quorum={"spare_attempts": 2})
    world.federation.agree()
    assert open_sum(world, 30).WhichOneof("body") == "sum_reply"
    if restart:
        world.restart()
    check_refused(open_sum(world, 20))
    check_refused(open_sum(world, 20, attempt=1))
    assert open_sum(world, 30, attempt=1).WhichOneof("body") == "sum_reply"
    check_refused(open_sum(world, 20, attempt=2))
    assert open_sum(world, 20, name="votes/2").WhichOneof("body") == "sum_reply"


def test_question_with_missing_public_blocks_does_not_bind_the_sum(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    unknown = wire.OpenSum(
        manifest_hash=world.manifest.hash,
        sum="votes/1",
        inputs=[Input("candidates", (Segment(bytes(32)),)).to_wire()],
        payload=advertise_request(world.manifest.sum_parameters("votes/1", 0)),
    )
    request = wire.Request(version=codec.VERSION, open_sum=unknown).SerializeToString()
    assert codec.decode_reply(world.parties["p0"].handle(request), "p0").WhichOneof("body") == "missing"
    assert open_sum(world, 30).WhichOneof("body") == "sum_reply"


def test_charge_and_signed_evidence_state_the_digest_of_the_question(tmp_path):
    world = World(tmp_path, epsilon=4.0)
    world.federation.agree()
    world.federation.private_sum("votes/1", world.inputs())
    asked = question(world.inputs())
    assert {charge["question"] for charges in world.charges().values() for charge in charges} == {asked.hex()}
    evidence = bytes.fromhex(world.federation.opened_facts("votes/1")["evidence"])
    assert check_evidence(world.manifest.sum_parameters("votes/1", 0), evidence).question == asked


def test_the_coordinator_does_not_continue_a_sum_with_other_inputs(tmp_path):
    world = World(tmp_path)
    world.federation.agree()
    world.reachable = lambda name, number: name == "p0"
    with pytest.raises((RoundAborted, PrivacyRefusal)):
        world.federation.private_sum("votes/1", world.inputs())
    world.reachable = lambda name, number: True
    world.restart()
    with raises(ConfigurationError, "other-inputs"):
        world.federation.private_sum("votes/1", world.inputs(20))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", [("x", None)])], [("b", [("x", None)])]),
        ([("a", [("x", None)])], [("a", [("y", None)])]),
        ([("a", [("x", None)])], [("a", [("x", (0, 1))])]),
        ([("a", [("x", ())])], [("a", [("x", None)])]),
        ([("a", [("x", (0, 1))])], [("a", [("x", (1, 0))])]),
        ([("a", [("x", None), ("y", None)])], [("a", [("x", None)]), ("", [("y", None)])]),
        ([("a", [("x", None)]), ("b", [])], [("b", []), ("a", [("x", None)])]),
        ([("a", [])], []),
    ],
)
def test_different_public_inputs_have_different_digests(one, other):
    def inputs(described):
        return [
            Input(name, tuple(Segment(block.encode() * 32, rows) for block, rows in segments))
            for name, segments in described
        ]

    assert question(inputs(one)) != question(inputs(other))
    assert question(inputs(one)) == question([Input.from_wire(given.to_wire()) for given in inputs(one)])
