"""When a masked vector leaves: at a public rung, whether it was computed from no record or from a hundred thousand.

The time is the computing's own, and the clock a virtual one: it moves by what computing the vector really took and by
what the party sleeps, so that the test takes no longer than the computing.
"""

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.doubles.pace import slow_but
from tests.noninterference import coordinator as hostile
from tests.noninterference.coordinator import Course
from tests.noninterference.hospital import DIMENSION, MakePair, Pair
from tests.noninterference.play import OPEN
from tests.noninterference.questions import Asked
from undersong_client.answering.journaled import Answering
from undersong_client.records.private import DataSet
from undersong_client.storage import datasets
from undersong_common.arrays import Float32
from undersong_common.models.embedding import publishable
from undersong_common.text.table import Table
from undersong_protocol import limits
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.wire.framing import Envelope, Outgoing
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, Segment, block_id, encode_embeddings

SUMS = 4
MANY = 100_000
CANDIDATES = 12
EMPTY = Table((), (), ())


class Virtual:
    """Monotonic seconds that pass only while a vector is computed or the party sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def timed(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def computing(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return compute(*arguments, **named)
            finally:
                self.now += time.perf_counter() - begun

        return computing


class MadeUp:
    """Rows of a small table by turns, for as many texts as there are."""

    fingerprint = "00"
    dimension = DIMENSION
    table: Float32 = (np.random.default_rng(0).integers(-60, 60, (512, DIMENSION)) / 2048).astype(np.float32)

    def __call__(self, texts: Any) -> Float32:
        return np.resize(self.table, (len(texts), DIMENSION))


def plan_votes(first_rung_s: float) -> Any:
    votes = TopQVotes(q=4, candidates=CANDIDATES)
    requests = [SumRequest(f"votes/{number}", votes, first_rung_s=first_rung_s) for number in range(SUMS)]
    return plan_sums(requests, Privacy(1.0, 1e-6), Quorum(1, 1, 0, 0))


@pytest.fixture
def leaving(make_pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[float], list[float]]]:
    """Seconds after the request at which each vector left, and at which everything else did."""

    def times(table: Table, first_rung_s: float = limits.FIRST_S) -> tuple[list[float], list[float]]:
        monkeypatch.setattr(datasets, "load", lambda _home: DataSet(table, bytes(32)))
        with make_pair(EMPTY, EMPTY, OPEN, 0) as pair:
            return _times(pair, first_rung_s, monkeypatch)

    return times


def _times(pair: Pair, first_rung_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[float]]:
    copy, clock = pair.copies[0], Virtual()
    computation: Any = copy.assembled.computation
    computation.embed = MadeUp()
    monkeypatch.setattr(computation, "vector", clock.timed(computation.vector))
    sent: queue.Queue[tuple[bytes, float]] = queue.Queue()
    answering = Answering(
        copy.home,
        copy.assembled,
        send=lambda reply: sent.put((reply.id, clock())),
        clock=copy.clock,
        monotonic=clock,
        sleep=clock.sleep,
    )
    replies: dict[bytes, bytes] = {}
    original = Outgoing.__init__

    def keeping(self: Outgoing, id: bytes, data: bytes) -> None:
        replies[id] = data
        original(self, id, data)

    monkeypatch.setattr(Outgoing, "__init__", keeping)
    vectors: list[float] = []
    others: list[float] = []
    number = 0

    def ask(message: bytes, *, vector: bool = False) -> wire.Reply:
        nonlocal number
        number += 1
        begun, identity = clock(), number.to_bytes(16, "big")
        answering.request(Envelope(identity, message))
        id_, left = sent.get(timeout=60.0)
        assert id_ == identity
        (vectors if vector else others).append(left - begun)
        return wire.Reply.FromString(replies[id_])

    try:
        manifest = hostile.manifest_of(plan_votes(first_rung_s), pair.identity)
        signature = ask(hostile.proposal(manifest)).signature.signature
        ask(hostile.agreement(manifest, signature))
        block = encode_embeddings(publishable(MadeUp.table[:CANDIDATES]), np.zeros(CANDIDATES, dtype=np.int64))
        asked = Asked([Input("candidates", (Segment(block_id(block)),))], [block])
        for planned in manifest.plan.sums:
            course = Course(manifest, planned.name, 0, asked)
            course.take(ask(course.opening()))
            while course.payload():
                course.take(ask(course.step(), vector=course.stage == "mask"))
            assert course.opened is not None
        ask(hostile.closing(manifest))
    finally:
        answering.stop(20.0)
    assert not [thread for thread in threading.enumerate() if thread.name == "answers" and thread.is_alive()]
    return vectors, others


def make_notes(count: int) -> Table:
    return Table(tuple(f"note {number}" for number in range(count)), None, None)


@pytest.mark.heavy
@pytest.mark.parametrize(("first_rung_s", "many"), slow_but([(limits.FIRST_S, MANY), (0.5, 100)], [(0.5, 100)]))
def test_vectors_of_no_or_many_records_leave_at_a_few_public_times(
    leaving: Any, first_rung_s: float, many: int
) -> None:
    seen: dict[int, set[float]] = {}
    for count in (0, many):
        vectors, others = leaving(make_notes(count), first_rung_s)
        assert len(vectors) == SUMS
        assert others == [0.0] * len(others)  # nothing but the vector waits, or reads a record
        seen[count] = {round(1e9 * left / first_rung_s) / 1e9 for left in vectors}
        assert all(math.log2(rung) == int(math.log2(rung)) >= 0 for rung in seen[count]), seen
    assert seen[0] == {1.0} or many == MANY  # where half a second is the first rung, it hides a hundred records
    assert many == MANY or seen[many] == seen[0]
    rungs = len(seen[0] | seen[many])
    assert math.log2(rungs) <= 3.0 < limits.bits(first_rung_s)  # few of the rungs that the statement counts
