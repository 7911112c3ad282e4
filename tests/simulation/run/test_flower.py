"""The parts of the Flower simulation that need no engine: what is passed over, what is lost, what is refused."""

from types import SimpleNamespace

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState

from tests.doubles.flower_memory import FlowerInMemory
from tests.doubles.lossy import Lossy
from undersong.run import flower
from undersong_client.flower_app import requests_of
from undersong_protocol.wire.codec import MESSAGE_TYPE, RECORD, REPLIES, REQUESTS
from undersong_server.federation.exchange import Lazily
from undersong_server.flower.app import FlowerTransport


def test_flower_nodes_without_messages_are_skipped_and_none_is_lost(monkeypatch):
    looked = []
    original = InMemoryLinkState.get_message_ins

    def looking(self, node_id, limit, **rest):
        looked.append(node_id)
        return original(self, node_id, limit, **rest)

    monkeypatch.setattr(InMemoryLinkState, "get_message_ins", looking)
    with flower._idle_nodes_skipped():
        world = FlowerInMemory(None, {str(number): "" for number in range(20)})
        state, nodes = world.grid.state, list(world.grid.get_node_ids())
        transport = FlowerTransport(world.grid, identities=None)
        sent = {}
        for node in (nodes[3], nodes[7], nodes[3]):
            sent |= transport._push_messages({node: [b"request"]}, 10.0)
        found = [message for node in nodes * 3 for message in state.get_message_ins(node, 1)]
    assert {message.metadata.message_id for message in found} == set(sent)
    assert len(found) == 3
    assert looked == [nodes[3], nodes[7], nodes[3]]
    assert InMemoryLinkState.get_message_ins is looking


@pytest.mark.parametrize("value", [5, [5], [-1], [2_000_000_000], [10**10], ["a"], "a", 0.5])
def test_flower_content_that_is_no_list_of_messages_counts_as_none(value):
    """The attack: one short message of any SuperNode ended every run, or took gigabytes."""
    carried = Message(RecordDict({RECORD: ConfigRecord({REPLIES: value, REQUESTS: value})}), 1, MESSAGE_TYPE)
    transport = FlowerTransport(None, identities=None)
    assert not transport._read_replies(1, 9, SimpleNamespace(content=carried.content, has_error=lambda: False))
    assert requests_of(carried) == []
    empty = Message(RecordDict({RECORD: ArrayRecord()}), 1, MESSAGE_TYPE)
    assert requests_of(empty) == []


def test_no_message_is_built_for_a_lost_flower_node():
    made = []

    class Carrier:
        messages = 0

        def exchange_batches(self, requests, *, timeout_s):
            return {name: [b"reply"] for name in requests if requests[name]}

    lossy = Lossy(Carrier(), lambda name, number: (name, number) != ("b", 1))
    requests = Lazily(["a", "b"], lambda name: [made.append(name) or b"request"])
    assert set(lossy.exchange_batches(requests, timeout_s=1.0)) == {"a", "b"}
    assert set(lossy.exchange_batches(requests, timeout_s=1.0)) == {"a"}
    assert made == ["a", "b", "a"]
