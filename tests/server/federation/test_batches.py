"""Over a transport of batches the same sums are opened, charged and survived; only the number of messages differs."""

import math

import numpy as np
import pytest

from tests.doubles.lossy import LossyBatches
from tests.doubles.pace import slow_after, slow_but
from tests.server.federation.test_driver import World, check_killed, hostile
from undersong_protocol.secagg import coordinator
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import question
from undersong_server.federation.sums import Federation
from undersong_server.progress import Silent

pytestmark = pytest.mark.heavy


class Counting(LossyBatches):
    """Counts the exchanges."""

    exchanges = 0

    def exchange_batches(self, requests, *, timeout_s):
        self.exchanges += 1
        return super().exchange_batches(requests, timeout_s=timeout_s)


class Pipelined(World):
    def start(self):
        super().start()
        self.transport = Counting(self.parties, reachable=lambda name, number: self.reachable(name, number))
        self.federation = Federation(self.transport, self.manifest, self.journal, Silent(), blocks=self.blocks)

    def open(self, number):
        before = self.transport.exchanges
        opened = self.federation.private_sum(f"votes/{number}", self.inputs())
        return opened, self.transport.exchanges - before


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "first", "then"), [(2, 3, 3), (3, 4, 3), (5, 4, 3)])
def test_pipelined_sum_needs_the_least_possible_number_of_exchanges(tmp_path, parties, first, then):
    world = Pipelined(tmp_path, parties=parties, releases=3)
    world.federation.agree()
    taken = []
    for number in (1, 2, 3):
        opened, exchanges = world.open(number)
        assert np.array_equal(opened.values, world.exact(world.tables))
        taken.append(exchanges)
    # parties 2: in direct mode nothing is shared but what the pair's masks need, and nothing is unmasked. The first
    # sum's adverts travelled with the signatures.
    assert taken == [first, then, then]


def test_pipelined_driver_has_the_sums_and_charges_of_the_plain_driver(tmp_path):
    plain = World(tmp_path / "plain", epsilon=2.0, noise_seed=7)
    pipelined = Pipelined(tmp_path / "pipelined", epsilon=2.0, noise_seed=7)
    for world in (plain, pipelined):
        for party in world.parties.values():
            party._clock = lambda: 0.0  # a charge states its time
        world.federation.agree()
    for name in ("votes/1", "votes/2"):
        one = plain.federation.private_sum(name, plain.inputs())
        two = pipelined.federation.private_sum(name, pipelined.inputs())
        assert np.array_equal(one.values, two.values)
    assert plain.charges() == pipelined.charges()


@pytest.mark.slow
@pytest.mark.parametrize("at", slow_but(range(48), [0, 5, *range(8, 36, 8), 35]))
def test_sums_are_unchanged_after_a_kill_at_any_message_and_a_restart(tmp_path, at):
    def opened(world):
        world.federation.agree()
        return [world.open(number)[0].values for number in (1, 2)]

    # proposal, signatures with adverts, then 4 and 3 exchanges, four parties each
    check_killed(Pipelined, tmp_path, at, 36, opened)


@pytest.mark.slow
@pytest.mark.parametrize("missed", slow_after(range(2, 9), 4))
def test_party_that_missed_one_message_takes_part_in_the_next_sum(tmp_path, missed):
    world = Pipelined(tmp_path, parties=5)
    world.federation.agree()
    world.reachable = lambda name, number: (name, number) != ("p2", missed)
    first, _ = world.open(1)
    second, _ = world.open(2)
    everyone = tuple(sorted(world.tables))
    others = tuple(name for name in everyone if name != "p2")
    assert first.survivors == (others if missed in (2, 3) else everyone)
    assert np.array_equal(first.values, world.exact(first.survivors))
    assert np.array_equal(second.values, world.exact(second.survivors))
    # what was missed while the next sum was being prepared is asked again at its own turn
    lost_in_second = missed == 6
    assert second.survivors == (others if lost_in_second else everyone)


def test_sum_opens_at_a_new_attempt_after_too_many_dropouts(tmp_path):
    world = Pipelined(tmp_path, parties=5, epsilon=4.0)
    world.federation.agree()
    # p1 and p2 lose the message that asks for their masked vectors, once
    lost = {("p1", 3), ("p2", 3)}
    world.reachable = lambda name, number: (name, number) not in lost
    opened, _ = world.open(1)
    assert opened.survivors == tuple(sorted(world.tables))
    for name in world.tables:
        assert [charge.attempt for charge in world.ledger(name).charges()] == [1]
    opened, exchanges = world.open(2)
    assert opened.survivors == tuple(sorted(world.tables))
    assert exchanges == 3


def test_first_of_several_refusals_in_one_message_is_reported(tmp_path):
    """The later ones follow from it: a step of a sum is refused where its opening was."""
    world = Pipelined(tmp_path)
    world.federation.agree()
    refused = []

    def refuse(request):
        kind = request.WhichOneof("body")
        if kind != "open_sum" and not (refused and request.sum_step.sum == "votes/1"):
            return None
        refused.append(kind)
        refusal = wire.Refusal(kind=wire.Refusal.PRIVACY, problem=f"no {kind}")
        return wire.Reply(version=codec.VERSION, refusal=refusal).SerializeToString()

    told = hostile(world, refuse)
    opened, _ = world.open(1)
    assert refused == ["open_sum", "sum_step"]
    assert opened.survivors == ("p0", "p2", "p3")
    assert [line.partition("refuses: ")[2] for line in told.lines if "p1" in line] == ["no open_sum"]


def prepared(world, party="p0", name="votes/2"):
    payload = advertise_request(world.manifest.sum_parameters(name, 0))
    return payload, wire.PrepareSum(manifest_hash=world.manifest.hash, sum=name, attempt=0, payload=payload)


def ask(world, party="p0", **body):
    request = wire.Request(version=codec.VERSION, **body)
    return codec.decode_reply(world.parties[party].handle(request.SerializeToString()), party)


def test_party_sends_no_vector_of_a_prepared_sum_without_public_inputs(tmp_path):
    world = Pipelined(tmp_path, parties=2, epsilon=math.inf)
    world.federation.agree()
    parameters = world.manifest.sum_parameters("votes/2", 0)
    machine = coordinator.private_sum(parameters, lambda: question(world.inputs()))
    requests = next(machine)
    adverts = {}
    for name in world.parties:
        adverts[name] = ask(world, name, prepare_sum=prepared(world, name)[1]).sum_reply.payload
    step = {"manifest_hash": world.manifest.hash, "sum": "votes/2", "attempt": 0}
    shared = {
        name: ask(world, name, sum_step=wire.SumStep(**step, payload=payload)).sum_reply.payload
        for name, payload in machine.send(adverts).items()
    }
    step = wire.SumStep(**step, payload=machine.send(shared)["p0"])
    assert "before its public inputs" in ask(world, sum_step=step).refusal.problem
    opening = {
        "manifest_hash": world.manifest.hash,
        "sum": "votes/2",
        "attempt": 0,
        "payload": requests["p0"],
    }
    for count, answer in ((30, "sum_reply"), (20, "refusal"), (30, "sum_reply")):
        inputs = world.inputs(count)
        message = wire.OpenSum(
            inputs=[given.to_wire() for given in inputs],
            blocks=[world.blocks.get(segment.block) for given in inputs for segment in given.segments],
            **opening,
        )
        reply = ask(world, open_sum=message)
        assert reply.WhichOneof("body") == answer
        assert answer == "sum_reply" or "not those with which it was first asked" in reply.refusal.problem
    assert ask(world, sum_step=step).WhichOneof("body") == "sum_reply"
    assert all(not charges for name, charges in world.charges().items() if name != "p0")
