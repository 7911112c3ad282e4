"""The child process that holds the sealed records and computes a daemon's vectors.

What the daemon sends while a vector is computed (echoes, acknowledgements, replies to other requests) must not be
slower beside many records than beside none: whoever counts these frames would learn how long the computing takes, far
beyond the ladder's bits (docs/threat-model.md). So it is done in another process, at a lower priority, and the daemon
looks for its end only at public times (``limits.handover_s``). Until the daemon has taken a vector over,
the process keeps a core busy, at the lowest priority: a core that falls idle within a rung would show too, in echoes
that take a tenth of a millisecond more or less.

The process is started anew (`python -m`), not forked from one that runs gRPC's threads. Both ends are this program's
own and hold an unnamed pair of sockets of one machine; requests travel as pickles, a public block in the first one that
uses it, an exact vector as its bytes, and nothing else ever sends one. Where the process dies (out of memory, killed),
the vector is zeros, as with any other failure of computing, the party's people find it in the log, and another process
is started.
"""

import contextlib
import hashlib
import json
import logging
import os
import pickle
import queue
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from undersong_client.answering.computation import Computation, Computed, VectorRequest, zeros
from undersong_common.printable import printable
from undersong_common.program.library_threads import one_thread_in_program
from undersong_common.program.logs import place_of
from undersong_protocol import limits
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.public import Block, Input, named_blocks, resolve

# Added to the daemon's nice value: the daemon is served first. By ten, vectors starved on a machine with other work.
LESS_PRIORITY = 5
LEAST_PRIORITY = 19
RESTART_S = 5.0  # shortest time between two starts of the process while nobody waits for a vector
_ENDING_S = 1.0  # longest wait for a process to end that has closed its connection, while nobody waits for a vector
# Messages of the daemon beside its requests.
_WARM = "warm"
_TAKEN_OVER = "taken over"
_HEAD_BYTES = 4  # A message is the length of the cautions, the cautions as JSON, then the vector.
_BUSY_ROUNDS = 500  # rounds of PBKDF2, a quarter of a millisecond or so

log = logging.getLogger(__name__)


class ComputingProcess(Computation):
    """Computes vectors in a child process; used by the daemon.

    Args:
        make_computation: called in the child process, returns the computation; must be picklable.
        logs: called in the child process to set up its log; must be picklable.
        monotonic, sleep: clock and sleep function that time the rungs, in seconds.
    """

    def __init__(
        self,
        make_computation: Callable[[], Computation],
        *,
        set_up_logs: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make_computation = make_computation
        self._set_up_logs = set_up_logs
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._readable = select.poll()  # one for all polls, because Connection.poll() makes a new selector at each call
        self._started_s = 0.0
        self._sent_blocks: frozenset[bytes] = frozenset()  # public blocks that the process has
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Process id of the child process; None before it was started."""
        if self._process is None:
            return None
        return self._process.pid

    def vector(self, request: VectorRequest, *, start_s: float) -> Computed:
        """Computes the vector in the child process. Returns at a public time (``limits.handover_s``); never fails.

        If the daemon stops meanwhile, the calling thread ends (SystemExit). Nothing is answered then, and the vector
        may be computed again after the next start.
        """
        first_rung_s = request.planned.first_rung_s
        with self._lock:
            computed_vector = None
            is_dead = not self._send_request(request)
            while computed_vector is None:
                deadline_s = start_s + limits.handover_s(self._monotonic() - start_s, first_rung_s)
                while (remaining_s := deadline_s - self._monotonic()) > 0:
                    self._sleep(remaining_s)
                if self._stopped:
                    raise SystemExit
                try:
                    if is_dead:
                        computed_vector = None
                    else:
                        computed_vector = self._receive_vector(request)
                except (OSError, EOFError):
                    is_dead = True
                if is_dead:
                    self._discard_process(f"{printable(request.planned.name)}: this party answers with zeros; ")
                    return zeros(request)
            return computed_vector

    def expect(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._ensure_running()

    def warm(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._ensure_running().send(_WARM)

    def keep_running(self) -> None:
        if self._stopped or not self._lock.acquire(blocking=False):
            return  # a vector is being computed
        try:
            if self._connection is None:
                if self._started_s and self._monotonic() - self._started_s > RESTART_S:
                    self._ensure_running()
            elif self._readable.poll(0):  # The process sends nothing unasked: it has ended.
                self._discard_process("", patience_s=_ENDING_S)
        except OSError as error:
            log.error("the process that computes vectors cannot be started: %s", error.strerror or type(error).__name__)
        finally:
            self._lock.release()

    def stop(self) -> None:
        self._stopped = True
        if self._process is not None:
            self._process.kill()  # safe, because the process writes in transactions only
            self._process.wait()
        if self._lock.acquire(blocking=False):
            self._close_connection()
            self._lock.release()

    def _ensure_running(self) -> Connection:
        """Returns the connection to the process, which it starts if none runs. Raises OSError if that fails."""
        if self._process is not None and self._process.poll() is not None:
            self._discard_process("")
        if self._connection is None:
            if self._stopped:
                raise OSError("stopped")
            self._started_s = self._monotonic()
            parent_socket, child_socket = socket.socketpair()
            with child_socket:
                self._process = subprocess.Popen(  # noqa: S603 - this program's own module
                    [sys.executable, "-m", __name__, str(child_socket.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[child_socket.fileno()],
                    # A terminal's signals are for the daemon alone. A new session could have a priority of its own.
                    process_group=0,
                    # The process imports the same modules as the daemon, and none from the daemon's working folder.
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
                    | {"PYTHONSAFEPATH": "1"},
                )
            self._connection = Connection(parent_socket.detach())
            self._readable.register(self._connection.fileno(), select.POLLIN)
            self._sent_blocks = frozenset()
            self._connection.send((self._set_up_logs, self._make_computation))
        return self._connection

    def _send_request(self, request: VectorRequest) -> bool:
        try:
            connection = self._ensure_running()
            lacking_blocks = {
                block_id: block for block_id, block in request.blocks.items() if block_id not in self._sent_blocks
            }
            message = replace(request, public=PublicInputs(), blocks=lacking_blocks)
            connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            return False
        self._sent_blocks = frozenset(request.blocks)
        return True

    def _receive_vector(self, request: VectorRequest) -> Computed | None:
        """Returns the vector; None if it has not come yet. Raises EOFError or OSError if the process has ended."""
        assert self._connection is not None
        if not self._readable.poll(0):
            return None
        reply_bytes = self._connection.recv_bytes()
        head_end = _HEAD_BYTES + int.from_bytes(reply_bytes[:_HEAD_BYTES], "little")
        self._connection.send(_TAKEN_OVER)
        vector_values = np.frombuffer(reply_bytes[head_end:], dtype=np.int64)
        if vector_values.shape != (request.planned.dimension,):
            raise EOFError("another vector came than was asked for")
        return Computed(GridVector(vector_values), tuple(json.loads(reply_bytes[_HEAD_BYTES:head_end])))

    def _discard_process(self, words: str, patience_s: float = 0.0) -> None:
        """Ends a process that is of no use and logs it, after ``words``; another one is started when it is needed."""
        reason = "it cannot be started"
        if self._process is not None:
            reason = _end_process(self._process, patience_s)
        write_log = log.info if self._stopped else log.error  # an orderly stop is no error
        write_log("%sthe process that computes vectors has ended (%s) and is started again", words, reason)
        self._close_connection()

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._readable.unregister(self._connection.fileno())
            self._connection.close()
        self._connection = self._process = None


def _end_process(process: subprocess.Popen[bytes], patience_s: float) -> str:
    """Ends a process that is of no use any more, and returns in words how it ended.

    A vector's reply must not wait for it: how long it takes to end may tell of the records.
    """
    try:
        exit_code = process.wait(patience_s)  # It closes its connection a moment before it ends.
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "it ran on and was of no use"
    if exit_code == -signal.SIGKILL:
        return "SIGKILL; where memory is short, give this machine more"
    if exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


def main() -> None:
    """Entry point of the child process: computes requested vectors until the daemon has ended."""
    _step_back()
    connection = Connection(int(sys.argv[1]))
    try:
        set_up_logs, make_computation = connection.recv()
        if set_up_logs is not None:
            set_up_logs()
        request_queue: queue.SimpleQueue[VectorRequest | str] = queue.SimpleQueue()
        vector_waits = threading.Event()  # It is set while a vector waits to be taken over.
        threading.Thread(
            target=_read_requests, args=(connection, request_queue, vector_waits), name="requests", daemon=True
        ).start()
        threading.Thread(target=_keep_busy, args=(vector_waits,), name="busy", daemon=True).start()
        with one_thread_in_program():
            _compute_vectors(connection, make_computation(), request_queue, vector_waits)
    except (EOFError, OSError):
        os._exit(0)  # the daemon is gone
    except BaseException as error:  # noqa: BLE001 - a traceback's words may hold private data
        log.error("the process that computes vectors fails: %s", place_of(error))
        os._exit(1)


def _step_back() -> None:
    """Lowers this process's priority, makes it the first victim if memory is short, and forbids core dumps."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)  # it ends with the daemon, which may still wait for a vector
    os.nice(LESS_PRIORITY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


def _keep_busy(vector_waits: threading.Event) -> None:
    """Keeps a core busy while a vector waits, as if it were still being computed."""
    with contextlib.suppress(OSError):  # Only Linux sets one thread's priority; it may fail elsewhere.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)
    while True:
        vector_waits.wait()
        while vector_waits.is_set():
            # PBKDF2 runs without Python's lock. At this priority the lock's holder may not run for long, and the
            # vector would wait for it.
            hashlib.pbkdf2_hmac("sha256", b"", b"", _BUSY_ROUNDS)


def _read_requests(
    connection: Connection, request_queue: queue.SimpleQueue[VectorRequest | str], vector_waits: threading.Event
) -> None:
    """Takes requests at once, whatever is being computed, so that the daemon never waits to send one."""
    while True:
        try:
            message = connection.recv()
            if message == _TAKEN_OVER:
                vector_waits.clear()
            else:
                request_queue.put(message)
        except BaseException:  # noqa: BLE001 - the daemon is gone, or this process is of no use any more
            os._exit(0)


def _compute_vectors(
    connection: Connection,
    computation: Computation,
    request_queue: queue.SimpleQueue[VectorRequest | str],
    vector_waits: threading.Event,
) -> None:
    public_blocks = _PublicInputsCache()
    while True:
        vector_request = request_queue.get()
        if isinstance(vector_request, str):
            computation.warm()
            continue
        computed_vector = computation.vector(public_blocks.complete(vector_request), start_s=0.0)
        vector_waits.set()
        cautions = json.dumps(computed_vector.cautions).encode()
        vector_values = np.ascontiguousarray(computed_vector.vector.values, dtype=np.int64)
        connection.send_bytes(len(cautions).to_bytes(_HEAD_BYTES, "little") + cautions + vector_values.tobytes())


class _PublicInputsCache:
    """The public blocks of the last request, which the daemon does not send again, and the inputs that they form."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}
        self._inputs: tuple[Input, ...] = ()
        self._public_inputs = PublicInputs()

    def complete(self, request: VectorRequest) -> VectorRequest:
        """Returns the request with its public inputs."""
        if self._inputs != request.inputs:
            block_by_id = {**self._blocks, **request.blocks}
            self._blocks = {block_id: block_by_id[block_id] for block_id in named_blocks(request.inputs)}
            self._inputs, self._public_inputs = request.inputs, resolve(request.inputs, self._blocks)
        return replace(request, public=self._public_inputs, blocks={})


if __name__ == "__main__":
    sys.excepthook = lambda kind, *_: log.error("internal error %s", kind.__name__)
    threading.excepthook = lambda _: os._exit(0)
    main()
