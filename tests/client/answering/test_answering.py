"""What waits at a party to be answered: each request once, and never more than fits."""

import queue
import threading

import pytest

from tests.doubles.coded import raises
from tests.doubles.loops import wait_for
from undersong_client.answering import journaled as answering
from undersong_client.answering.journaled import WAITING_BYTES, WAITING_REQUESTS, Answering
from undersong_client.answering.pending import PendingReply
from undersong_common.errors import MachineFault, PeerFault
from undersong_common.program.machine import HeldSteps
from undersong_protocol.wire.framing import Envelope


class Slow:
    """Answers when it is let go."""

    last = None

    def __init__(self, *_, **__):
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.asked = []

    def answer(self, data, _begun, **_):
        self.asked.append(len(data))
        self.begun.set()
        assert self.go_on.wait(20)
        return PendingReply(b"answer")


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(answering, "JournaledParty", Slow)
    sent = queue.Queue()
    made = Answering(None, None, send=sent.put)
    yield made, made.party, sent
    made.party.go_on.set()
    made.stop(10.0)


def envelope(number, data=b"x"):
    return Envelope(number.to_bytes(16, "little"), data)


def test_too_many_open_requests_are_refused_as_the_coordinator_s_fault(waiting):
    answers, recorded, _ = waiting
    answers.request(envelope(0))
    assert recorded.begun.wait(20)
    for number in range(1, WAITING_REQUESTS + 1):
        answers.request(envelope(number))
    with raises(PeerFault, "too-many-requests"):
        answers.request(envelope(WAITING_REQUESTS + 1))
    assert not answers.wants(envelope(3).id)
    assert answers.wants(envelope(WAITING_REQUESTS + 1).id)
    answers.request(envelope(3))  # known: no fault


def test_bytes_of_waiting_requests_are_bounded_unless_one_waits_alone(waiting):
    answers, recorded, sent = waiting
    answers.request(envelope(0))
    assert recorded.begun.wait(20)
    large = bytes(WAITING_BYTES - 1)
    for stream in range(3):  # what an ended stream left is dropped, its bytes too
        answers.request(envelope(10 * stream + 1, large))
        with raises(PeerFault, "too-many-requests"):
            answers.request(envelope(10 * stream + 2, b"xx"))
        answers.stream_ended()
    answers.request(envelope(50, bytes(WAITING_BYTES + 1)))  # alone, it may wait
    answers.stream_ended()
    assert list(answers._open_requests) == [envelope(0).id]
    answers.request(envelope(99, b"last"))
    recorded.go_on.set()
    assert [sent.get(timeout=20).id for _ in range(2)] == [envelope(0).id, envelope(99).id]
    assert recorded.asked == [1, 4]


def test_fault_in_one_request_is_raised_while_others_are_answered(monkeypatch):
    class Faulty(Slow):
        is_faulty = True

        def answer(self, data, _begun, **_):
            if self.is_faulty and data == b"faulty":
                raise MachineFault("a file: No space left on device", "free space", code="enospc")
            return PendingReply(b"answer")

    monkeypatch.setattr(answering, "JournaledParty", Faulty)
    sent, held = queue.Queue(), HeldSteps()
    answers = Answering(None, None, send=sent.put, held_steps=held)
    answers.request(envelope(0, b"faulty"))
    wait_for(held.all, 20)
    for number in (1, 2):
        answers.request(envelope(number))
        assert sent.get(timeout=20).id == envelope(number).id
        assert len(held.all()) == 1
    answers.party.is_faulty = False
    assert sent.get(timeout=30).id == envelope(0).id
    assert not held.all()
    answers.stop(10.0)
