"""The process that computes vectors: the same vectors, zeros where it dies, another one after it, and nothing said."""

import contextlib
import errno
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder, joined
from tests.doubles.scripted_computation import Scripted
from undersong_client.answering import computing_process
from undersong_client.answering.computation import Computation, Computed, HospitalComputation, VectorRequest, zeros
from undersong_client.answering.computing_process import ComputingProcess
from undersong_client.answering.pending import Deferral, DeferredVector
from undersong_client.home import PartyHome
from undersong_protocol import limits
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram, PublicInputs
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.public import Input, MemoryBlocks, Segment, encode_numbers, resolve

pytestmark = pytest.mark.heavy

PRIVACY = Privacy(1.0, 1e-5)
PLANNED = plan_sums([SumRequest("labels", LabelHistogram(3))], PRIVACY, Quorum(1, 1, 0, 0))["labels"]
REQUEST = VectorRequest("a run", ("good", "bad"), PLANNED, PRIVACY, PublicInputs(), bytes(32))
ZEROS = [0, 0, 0]


def hashed_computation(home: PartyHome) -> Computation:
    """Made over there: an embedder does not travel."""
    return HospitalComputation(home, HashedEmbedder())


@pytest.fixture
def process():
    made: list[ComputingProcess] = []

    def make(opened, **named) -> ComputingProcess:
        made.append(ComputingProcess(opened, **named))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_a_vector_for_other_public_inputs_is_computed_anew() -> None:
    deferral = Deferral()
    with pytest.raises(DeferredVector):
        deferral.take(REQUEST, 0.0)
    deferral.computed = zeros(REQUEST)
    assert deferral.take(REQUEST, 1.0) is deferral.computed
    changed = replace(REQUEST, inputs=(Input("candidates", ()),))
    with pytest.raises(DeferredVector):
        deferral.take(changed, 2.0)
    assert (deferral.vector_request, deferral.computed) == (changed, None)


def compute_vector(computing: Computation) -> list[int]:
    return computing.vector(REQUEST, start_s=time.monotonic()).vector.values.tolist()


@pytest.mark.slow
def test_computing_process_gives_same_vector_and_stays_busy_until_taken(tmp_path, authority, monkeypatch, process):
    """A core that falls idle when a vector is done would show when that was, within its rung."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = PartyHome(joined(tmp_path, authority))
    computing = process(partial(hashed_computation, home))
    computing.expect()
    pid = computing.pid
    expected = hashed_computation(home).vector(REQUEST, start_s=0.0)
    found = computing.vector(REQUEST, start_s=time.monotonic())
    assert found.vector.values.tolist() == expected.vector.values.tolist() != ZEROS
    assert found.cautions == expected.cautions
    assert compute_vector(computing) == expected.vector.values.tolist()
    assert computing.pid == pid
    computing.warm()
    assert compute_vector(computing) == expected.vector.values.tolist()
    states: list[bool] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            states.append(runs(computing.pid))

    watching = threading.Thread(target=look)
    watching.start()
    slow = replace(REQUEST, planned=replace(PLANNED, first_rung_s=1.0))
    computing.vector(slow, start_s=time.monotonic())
    done.set()
    watching.join()
    assert len(states) > 5
    assert all(states[2:]), states
    wait_for(lambda: not runs(computing.pid), 120.0)


@pytest.mark.slow
def test_computing_process_has_lower_priority_than_the_daemon(process):
    computing = process(partial(Scripted, "priority"))
    nice, pid, parent = compute_vector(computing)
    assert nice > os.nice(0)
    assert (pid, parent) == (computing.pid, os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["dies", pytest.param("raises", marks=pytest.mark.slow), pytest.param("another length", marks=pytest.mark.slow)],
)
def test_failed_computing_process_gives_zeros_on_time_and_is_replaced(process, caplog, capfd, what):
    computing = process(partial(Scripted, what))
    computing.expect()
    first = computing.pid
    begun = time.monotonic()
    assert computing.vector(REQUEST, start_s=begun).vector.values.tolist() == ZEROS
    took = time.monotonic() - begun
    assert took >= limits.FIRST_S / 2
    assert "labels: this party answers with zeros" in caplog.text
    computing._make_computation = partial(Scripted, "")  # as if the memory sufficed now
    assert compute_vector(computing) == [7, 7, 7]
    assert computing.pid != first
    assert "private note" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.slow
def test_vector_is_zeros_where_the_computing_process_cannot_start(process, caplog, monkeypatch):
    computing = process(partial(Scripted, ""))
    with monkeypatch.context() as full:

        def refused(*_given, **_named):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        full.setattr(computing_process.subprocess, "Popen", refused)
        assert compute_vector(computing) == ZEROS
        assert "labels: this party answers with zeros" in caplog.text
        computing._started_s -= 60.0
        computing.keep_running()
        assert "Cannot allocate memory" in caplog.text
    assert compute_vector(computing) == [7, 7, 7]


@pytest.mark.slow
def test_computing_process_killed_while_idle_is_replaced_for_next_vector(process, caplog):
    computing = process(partial(Scripted, ""))
    assert compute_vector(computing) == [7, 7, 7]
    first = computing.pid
    os.kill(first, signal.SIGKILL)
    with caplog.at_level(logging.ERROR):
        wait_for(lambda: (computing.keep_running(), computing.pid)[1] is None, 120.0)
        assert "SIGKILL" in caplog.text
        assert "zeros" not in caplog.text
        computing._started_s -= 60.0  # it is not started more often than every few seconds
        computing.keep_running()
        assert computing.pid not in (None, first)
    assert compute_vector(computing) == [7, 7, 7]


@pytest.mark.slow
def test_computing_process_killed_just_now_is_replaced_and_computes(process):
    computing = process(partial(Scripted, ""))
    assert compute_vector(computing) == [7, 7, 7]
    os.kill(computing.pid, signal.SIGKILL)
    os.waitid(os.P_PID, computing.pid, os.WEXITED | os.WNOWAIT)
    assert compute_vector(computing) == [7, 7, 7]


def test_public_block_is_sent_to_process_once_while_requests_use_it(process, monkeypatch):
    """All candidates again with every sum were 9 MB for 6 000 of them, and most of what a sum took."""
    store, sent = MemoryBlocks(), []
    named = [Segment(store.add(encode_numbers(np.full((2, 3), float(number)))).id) for number in range(3)]
    computing, there = process(partial(Scripted, "")), computing_process._PublicInputsCache()
    monkeypatch.setattr(
        computing, "_ensure_running", lambda: SimpleNamespace(send_bytes=lambda asked: sent.append(pickle.loads(asked)))
    )

    def asked(*segments: Segment) -> set[bytes]:
        inputs = (Input("x", segments),)
        blocks = {segment.block: store.get(segment.block) for segment in segments}
        public = resolve(inputs, store)
        assert computing._send_request(replace(REQUEST, public=public, inputs=inputs, blocks=blocks))
        travelled = pickle.loads(pickle.dumps(sent.pop()))
        found = there.complete(travelled)
        assert np.array_equal(found.public.numbers["x"], public.numbers["x"])
        assert found.planned == PLANNED
        return set(travelled.blocks)

    first, second, third = (segment.block for segment in named)
    assert asked(*named[:2]) == {first, second}
    assert asked(*named) == {third}
    assert asked(*named) == set()
    assert asked(named[2], Segment(second, (1,))) == set()
    assert asked(named[0]) == {first}  # it was not used, and so not kept


def test_new_computing_process_gets_the_public_blocks_of_the_one_before(process):
    store = MemoryBlocks()
    block = store.add(encode_numbers(np.ones((2, 3))))
    inputs = (Input("x", (Segment(block.id),)),)
    request = replace(REQUEST, inputs=inputs, blocks={block.id: block})
    computing = process(partial(Scripted, ""))
    for _ in range(2):
        assert computing.vector(request, start_s=time.monotonic()).vector.values.tolist() == [7, 7, 7]
        os.kill(computing.pid, signal.SIGKILL)
        os.waitid(os.P_PID, computing.pid, os.WEXITED | os.WNOWAIT)


class Clock:
    """Seconds that pass while somebody sleeps; what it is asked for is noted."""

    def __init__(self) -> None:
        self.now = 100.0
        self.woken: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.woken.append(self.now - 100.0)


def test_the_daemon_looks_for_a_vector_only_at_public_times(process, monkeypatch):
    """Half a first rung before each rung, and at the first one: what it does then shows no other time."""
    clock, looked = Clock(), []

    def arrived(_request: VectorRequest) -> Computed | None:
        looked.append(clock.now - 100.0)
        clock.now += 1e-6  # a look takes some time
        return Computed(GridVector(np.zeros(3, dtype=np.int64))) if len(looked) == 6 else None

    computing = process(partial(Scripted, ""), monotonic=clock, sleep=clock.sleep)
    monkeypatch.setattr(computing, "_send_request", lambda _: True)
    monkeypatch.setattr(computing, "_receive_vector", arrived)
    computing.vector(REQUEST, start_s=100.0)
    assert looked == clock.woken
    looks = [0.5, 1.0, *(2**n - 0.5 for n in range(1, 5))]
    assert clock.woken == pytest.approx([limits.FIRST_S * look for look in looks], abs=1e-4)


def runs(pid: int) -> bool:
    """Whether one of its threads runs, or would if there were a core for it."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return "R" in found


def test_computing_process_is_gone_and_silent_once_the_daemon_stops(process):
    computing, answered = process(partial(Scripted, "sleeps")), []
    computing.expect()
    pid = computing.pid

    def asks() -> None:
        with contextlib.suppress(SystemExit):
            answered.append(compute_vector(computing))

    asking = threading.Thread(target=asks)
    asking.start()
    time.sleep(0.3)
    computing.stop()
    asking.join(20.0)
    assert not asking.is_alive()
    assert not answered
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_computing_process_ends_when_the_daemon_is_killed(tmp_path):
    code = """
import sys, time
from dataclasses import replace
from functools import partial
from tests.client.answering.test_computing_process import ComputingProcess, REQUEST, Scripted
computing = ComputingProcess(partial(Scripted, "sleeps"))
computing.expect()
computing._connection.send(REQUEST)
print(computing.pid, flush=True)
time.sleep(60)
"""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path
    ) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        daemon.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())


@pytest.mark.parametrize(
    ("program", "patience_s", "words"),
    [
        ("import time; time.sleep(60)", 0.0, "it ran on and was of no use"),
        ("raise SystemExit(3)", 60.0, "exit code 3"),
        ("import os; os.kill(os.getpid(), 15)", 60.0, "SIGTERM"),
        ("import os; os.kill(os.getpid(), 9)", 60.0, "SIGKILL; where memory is short, give this machine more"),
    ],
)
def test_our_own_kill_is_not_reported_as_how_the_computing_process_ended(program, patience_s, words):
    process = subprocess.Popen([sys.executable, "-c", program])
    assert computing_process._end_process(process, patience_s) == words
