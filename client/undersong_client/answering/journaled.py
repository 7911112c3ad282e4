"""Answers requests in their order and journals each reply before it can leave. Vectors are computed meanwhile."""

import logging
import math
import queue
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from undersong_client.answering.assemble import Assembled
from undersong_client.answering.pending import (
    Deferral,
    DeferredVector,
    DroppedRequest,
    PendingReply,
    Slot,
    UnheardStream,
)
from undersong_client.consent import policy, trust
from undersong_client.consent.approvals import Proposals, manifest_hash
from undersong_client.home import SETTINGS, PartyHome
from undersong_client.storage.outbox import NOTHING, Outbox
from undersong_common.errors import MachineFault, PeerFault, PrivacyRefusal, UndersongError
from undersong_common.files import MISSING, FileState, file_state
from undersong_common.program.logs import place_of
from undersong_common.program.machine import HeldSteps, named_faults
from undersong_protocol import limits
from undersong_protocol.wire import codec
from undersong_protocol.wire.framing import Envelope, Outgoing
from undersong_protocol.wire.messages import federation_pb2 as wire

KEPT_REPLIES = 64  # replies that wait for the coordinator's acknowledgement
HEARD_S = 0.1  # time between two looks for a frame on a silent stream
WAITING_TOLD_S = 3600.0  # time between two lines of the log while a run waits for a decision
LONG_WAIT_S = 1.0  # a request that waited longer says so in the log
ANSWERING = "answering the coordinator"  # name of the step that waits while the machine has a fault
LOOK_AFTER_S = 3600.0  # time between two looks for attempts that will not go on
WAITING_REQUESTS = 64  # largest number of requests that wait
WAITING_BYTES = 256 * 2**20  # size of all requests that wait; one request may always wait

T = TypeVar("T")

log = logging.getLogger(__name__)


class JournaledParty:
    """A party that follows its policy file and records every reply in the outbox before it leaves.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, home: PartyHome, assembled: Assembled, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._requests_path, self._coordinator_path, self._policy_path = map(
            str, (home.requests, home.coordinator, home.policy)
        )
        self._assembled = assembled
        self._outbox = Outbox(home)
        self._clock = clock
        self._policy_file_states: list[FileState] = []
        self._looked_after_states: list[object] = []
        self._proposals = Proposals(home)
        self._run_names: dict[bytes, str] = {}  # names, by the manifest's hash
        self._waiting_told_s: dict[str, float] = {}  # time of the last log line on a waiting run, by the run's name
        self.last: tuple[float, str] | None = None  # time and description of the last answer, for the status
        self._turn_lock = (
            threading.Lock()
        )  # held while a request is answered and journaled, not while a vector is computed
        self._computing_lock = threading.Lock()  # The computation's caches allow one vector at a time.

    def answer(
        self,
        data: bytes,
        start_s: float | None = None,
        *,
        is_asked: Callable[[], bool] = lambda: True,
        deferral: Deferral | None = None,
        waited_s: float = 0.0,
    ) -> PendingReply:
        """Answers one request and journals the reply.

        The caller must :func:`wait_for_rung` and then call ``PendingReply.may_leave`` before it sends the reply.

        Args:
            start_s: time at which the request was taken up, in monotonic seconds; None takes now.
            is_asked, deferral: as for :meth:`Party.answer`, which raises DeferredVector and DroppedRequest.
            waited_s: time for which the request waited before, for the log.

        Raises MachineFault and others if this machine has a fault, so that the reply cannot be made or journaled; it
        must not leave then. What was journaled before stays.
        """
        start_s = time.monotonic() if start_s is None else start_s
        with self._turn_lock:
            self._end_abandoned()
            deferred_vector: DeferredVector | None = None
            try:
                with self._outbox.together(), named_faults(self._home.path, root=self._home.path / SETTINGS):
                    try:
                        party_reply = self._answer_request(data, start_s, is_asked, deferral)
                    except DeferredVector as waits:
                        deferred_vector = waits
                    else:
                        self._journal_reply(party_reply, time.monotonic() - start_s, waited_s)
            except BaseException:
                self._assembled.party.forget()
                raise
            if deferred_vector is not None:
                raise deferred_vector
            return party_reply

    def compute(self, deferral: Deferral) -> None:
        """Computes the vector that ``deferral`` names, while other requests may be answered."""
        assert deferral.vector_request is not None
        with self._computing_lock:
            deferral.computed = self._assembled.computation.vector(deferral.vector_request, start_s=deferral.start_s)

    def _answer_request(
        self, data: bytes, start_s: float, is_asked: Callable[[], bool], deferral: Deferral | None
    ) -> PendingReply:
        self._home.check_reachable()
        try:
            self._follow_policy()
        except MachineFault:
            raise
        except UndersongError as error:
            self._home.check_reachable()
            log.error("%s", error.problem)
            refusal = PrivacyRefusal("this party's policy does not let it answer", "its people must look into its log")
            refusal_reply = PendingReply(codec.refusal(refusal).SerializeToString(), kind="refusal")
            with suppress(PeerFault):
                refusal_reply.request = codec.decode_request(data)
            return refusal_reply
        party_reply = self._assembled.party.answer(data, start_s, is_asked=is_asked, deferral=deferral)
        # A file that is missing with the whole folder is no reason to refuse.
        self._home.check_reachable()
        try:
            self._assembled.keep_checkpoints()
        except MachineFault:
            raise
        except UndersongError as error:
            log.error("%s", error.problem)
            party_reply = replace(
                party_reply, reply=codec.refusal(error).SerializeToString(), kind="refusal", stored=NOTHING
            )

        def may_leave() -> bool:
            return file_state(self._coordinator_path) != MISSING and party_reply.may_leave()

        return replace(party_reply, may_leave=may_leave)

    def look_after(self) -> None:
        """Destroys the secrets of attempts that will not go on; acts at the first call, hourly, and after decisions.

        Returns at once during an answer, which does the same: party and ledger serve one thread at a time.
        """
        if not self._turn_lock.acquire(blocking=False):
            return
        try:
            self._end_abandoned()
        finally:
            self._turn_lock.release()

    def _end_abandoned(self) -> None:
        coordinator_state = file_state(self._coordinator_path)
        file_states = [file_state(self._requests_path), coordinator_state, self._clock() // LOOK_AFTER_S]
        if file_states == self._looked_after_states:
            return
        self._home.check_reachable()  # If the whole folder is missing, the party has not left.
        if coordinator_state == MISSING:
            stop_reason = "this party has left its coordinator"
        else:
            stop_reason = ""
        try:
            self._assembled.party.end_abandoned(stop_reason)
        except MachineFault:
            raise
        except UndersongError as error:
            log.error("attempts that are over could not be erased: %s", error.problem)
        self._looked_after_states = file_states

    def _journal_reply(self, answer: PendingReply, took_s: float, waited_s: float) -> None:
        request_kind, run, query, attempt = self._describe_request(answer.request)
        reply = answer.reply
        reply_kind = answer.kind
        self._outbox.record(
            reply,
            at=self._clock(),
            kind=reply_kind,
            answer_to=request_kind,
            run=run,
            query=query,
            attempt=attempt,
            stored=answer.stored,
        )
        self.last = (self._clock(), f"{request_kind} {run} {query}".strip())
        log.log(
            logging.INFO if self._is_news(reply_kind, run) else logging.DEBUG,
            "answered %s with %s%s: %d bytes, %.3f s%s",
            request_kind,
            reply_kind,
            f" (run {run!r}{f', {query}, attempt {attempt}' if query else ''})" if run else "",
            len(reply),
            took_s,
            f", after a wait of {waited_s:.1f} s" if waited_s >= LONG_WAIT_S else "",
        )

    def _is_news(self, kind: str, run: str) -> bool:
        """False if the log has said within the hour that this run waits for a decision: it is proposed every 2 s."""
        if kind != "pending":
            self._waiting_told_s.pop(run, None)
            return True
        is_due = self._clock() >= self._waiting_told_s.get(run, -math.inf) + WAITING_TOLD_S
        if is_due:
            self._waiting_told_s[run] = self._clock()
        return is_due

    def _describe_request(self, request: wire.Request | None) -> tuple[str, str, str, int]:
        """Returns the kind of a request, and its run, sum and attempt, for outbox and log."""
        if request is None:
            return "bytes that are no request", "", "", -1
        body_kind = request.WhichOneof("body") or ""
        request_body = getattr(request, body_kind)
        if body_kind in ("propose", "agree"):
            run_hash = manifest_hash(request_body.manifest)
        else:
            run_hash = getattr(request_body, "manifest_hash", b"")
        with suppress(UndersongError):  # The proposal's file may be damaged: the run then has no name here.
            if run_hash not in self._run_names and (stored_proposal := self._proposals.known(run_hash)) is not None:
                self._run_names[run_hash] = stored_proposal.run
        return (
            body_kind,
            self._run_names.get(run_hash, ""),
            str(getattr(request_body, "sum", "")),
            int(getattr(request_body, "attempt", -1)),
        )

    def _follow_policy(self) -> None:
        """Puts a changed policy in force, and checks that this party has not left its coordinator.

        Raises ConfigurationError or PrivacyRefusal if this party may answer nothing.
        """
        file_states = [file_state(self._policy_path), file_state(self._coordinator_path)]
        if file_states != self._policy_file_states:
            self._policy_file_states = []
            fingerprint = trust.trusted(self._home).fingerprint
            self._assembled.party.allow(policy.read(self._home).bounds, fingerprint)
            self._policy_file_states = file_states


def wait_for_rung(
    start_s: float,
    first_rung_s: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sleeps until the next rung, one of the public times at which a reply may leave (``limits``).

    Rungs count from ``start_s``, in monotonic seconds. It returns at once if ``first_rung_s`` is 0.
    """
    if first_rung_s:
        deadline_s = start_s + limits.leaving_s(monotonic() - start_s, first_rung_s)
        while (remaining_s := deadline_s - monotonic()) > 0:
            sleep(remaining_s)


@dataclass
class _OpenRequest:
    """A request that is not answered yet: its bytes, its arrival (monotonic seconds), and what becomes of it."""

    data: bytes = field(repr=False)
    since_s: float
    # False after a new stream has begun, until the coordinator asks again: it repeats the requests that it still needs.
    is_wanted: bool = True
    is_taken: bool = False  # the request is being answered
    is_held: bool = False  # a fault of this machine has stopped the answer, which is tried again


class Answering:
    """Answers a stream's requests in order, in a thread, and repeats replies that were not acknowledged.

    A masked vector is computed, and waits for the time at which it may leave, in a thread of its own: other requests
    wait for neither. A request lives as long as somebody asks for it. If its stream is gone and no new one has asked
    again, it is dropped before it is charged, and before its vector is journaled or sent. A fault of the machine is
    answered by nothing, and the request is tried again, after a pause that grows, while it is asked for. After a crash
    the coordinator repeats its request, and the party's journal gives the same bytes.

    Args:
        send: sends a reply on the stream, if one is open.
        is_stream_open: returns True if the stream still stands, None if only its next frame can tell.
        held_steps: tells people which steps wait because the machine has a fault.
        clock: returns seconds since the epoch.
        monotonic, sleep: clock and sleep function that time the rungs, in seconds.
    """

    def __init__(
        self,
        home: PartyHome,
        assembled: Assembled,
        *,
        send: Callable[[Outgoing], None],
        is_stream_open: Callable[[], bool | None] = lambda: True,
        held_steps: HeldSteps | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.party = JournaledParty(home, assembled, clock=clock)
        self._send = send
        self._is_stream_open = is_stream_open
        self._held_steps = held_steps or HeldSteps()
        self._monotonic = monotonic
        self._sleep = sleep
        self._id_queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # ids of requests; None stops the thread
        self._lock = threading.Lock()
        self._open_requests: dict[bytes, _OpenRequest] = {}
        self._replies: OrderedDict[bytes, tuple[Outgoing, PendingReply]] = OrderedDict()
        self._computing_threads: set[threading.Thread] = set()
        self._waiting_ids: dict[Slot, list[bytes]] = {}  # ids of requests that wait for the vector of another request
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve_requests, name="answers", daemon=True)
        self._thread.start()

    def wants(self, id_: bytes) -> bool:
        """Returns True if no request with this id is known; notes of a known one that it was asked again."""
        with self._lock:
            if (open_request := self._open_requests.get(id_)) is not None:
                open_request.is_wanted = True
            return open_request is None and id_ not in self._replies

    def request(self, envelope: Envelope) -> None:
        """Queues a request to be answered; ignores one that is queued already. Raises PeerFault if too many wait."""
        with self._lock:
            if envelope.id in self._open_requests or envelope.id in self._replies:
                return
            request_sizes = [
                len(open_request.data) for open_request in self._open_requests.values() if not open_request.is_taken
            ]
            is_full = max(len(request_sizes), len(self._computing_threads)) >= WAITING_REQUESTS
            if is_full or (request_sizes and sum(request_sizes) + len(envelope.data) > WAITING_BYTES):
                raise PeerFault(
                    "coordinator",
                    f"asks faster than this party answers: {len(request_sizes)} requests of {sum(request_sizes)} bytes"
                    f" wait, and {len(self._computing_threads)} vectors; at most {WAITING_REQUESTS} of each may",
                    "the coordinator sends a run's next request after the reply to the last one",
                    code="too-many-requests",
                )
            self._open_requests[envelope.id] = _OpenRequest(envelope.data, self._monotonic())
        self._id_queue.put(envelope.id)

    def acknowledged(self, id_: bytes) -> None:
        with self._lock:
            self._replies.pop(id_, None)

    def stream_ended(self) -> None:
        """Drops all waiting requests before a new stream is opened; the coordinator repeats those it still needs."""
        with self._lock:
            self._open_requests = {
                request_id: open_request
                for request_id, open_request in self._open_requests.items()
                if open_request.is_taken
            }
            for open_request in self._open_requests.values():
                open_request.is_wanted = False

    def unacknowledged(self) -> list[Outgoing]:
        """Returns the replies to send again on a new stream; leaves out those that may no longer leave."""
        with self._lock:
            unsent_replies = list(self._replies.values())
        return [reply for reply, answer in unsent_replies if answer.may_leave()]

    def stop(self, grace_s: float) -> None:
        """Stops the threads, after waiting up to ``grace_s`` seconds for the requests that are being answered."""
        deadline_s = time.monotonic() + grace_s
        with self._lock:
            self._open_requests = {
                request_id: open_request
                for request_id, open_request in self._open_requests.items()
                if open_request.is_taken
            }
            computing_threads = list(self._computing_threads)
        self._stopping.set()
        self._id_queue.put(None)
        for thread in (self._thread, *computing_threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _serve_requests(self) -> None:
        while (request_id := self._id_queue.get()) is not None:
            with self._lock:
                open_request = self._open_requests.get(request_id)
                if open_request is None or open_request.is_taken:
                    continue
                open_request.is_taken = True
            self._answer_request(request_id, open_request, Deferral(), self._monotonic())

    def _answer_request(self, id_: bytes, open_request: _OpenRequest, deferral: Deferral, start_s: float) -> None:
        """Answers a request as far as it can be answered without a vector."""
        try:
            heard_reply = self._when_heard(
                partial(
                    self.party.answer,
                    open_request.data,
                    start_s,
                    is_asked=partial(self._is_asked, open_request),
                    deferral=deferral,
                    waited_s=start_s - open_request.since_s,
                )
            )
        except DeferredVector:
            self._begin_vector(id_, open_request, deferral)
            return
        except Exception as error:  # noqa: BLE001 - the error's message may hold private data
            self._handle_failure(id_, open_request, error)
            return
        self._release_hold(open_request)
        self._send_reply(id_, open_request, heard_reply)

    def _begin_vector(self, id_: bytes, open_request: _OpenRequest, deferral: Deferral) -> None:
        """Computes a slot's (an attempt's) vector in a thread; a second request for it waits until it may leave.

        A second computation would show its time once more, against other rungs.
        """
        thread = threading.Thread(
            target=self._answer_with_vector, args=(id_, open_request, deferral), name="vector", daemon=True
        )
        with self._lock:
            if (waiting_ids := self._waiting_ids.get(deferral.slot)) is not None:
                open_request.is_taken = False
                waiting_ids.append(id_)
                return
            self._waiting_ids[deferral.slot] = []
            self._computing_threads.add(thread)
        thread.start()

    def _answer_with_vector(self, id_: bytes, open_request: _OpenRequest, deferral: Deferral) -> None:
        """Computes the vector; when it may leave, answers the request with it and sends it.

        Until then nothing here tells that it is done: a vector that is journaled would answer a repeated request at
        once, and one that is dropped earlier would be computed anew for the next.
        """
        try:
            self.party.compute(deferral)
            wait_for_rung(deferral.start_s, deferral.first_rung_s, monotonic=self._monotonic, sleep=self._sleep)
            vector_reply = self._answer_once_possible(open_request, deferral)
            self._release_hold(open_request)
            if self._when_heard(partial(self._is_asked, open_request)):
                self._send_reply(id_, open_request, vector_reply)
            else:
                self._drop_request(id_, "its vector is done and journaled, and the stream that asked is gone")
        except DeferredVector:
            self._drop_request(id_, "another vector is wanted by now")
        except Exception as error:  # noqa: BLE001 - the error's message may hold private data
            self._handle_failure(id_, open_request, error)
        finally:
            with self._lock:
                self._computing_threads.discard(threading.current_thread())
                waiting_ids = self._waiting_ids.pop(deferral.slot)
            for waiting_id in waiting_ids:
                self._id_queue.put(waiting_id)

    def _answer_once_possible(self, open_request: _OpenRequest, deferral: Deferral) -> PendingReply:
        """Answers with a vector that is done, again after a fault of this machine: it is not computed and timed anew.

        Raises DroppedRequest once nobody asks for the slot's vector.
        """
        is_asked = partial(self._is_slot_asked, open_request, deferral.slot)
        answer_now = partial(
            self.party.answer, open_request.data, deferral.start_s, is_asked=is_asked, deferral=deferral
        )
        while True:
            try:
                return self._when_heard(answer_now)
            except (UndersongError, OSError, sqlite3.Error) as fault:
                self._hold_up(open_request, fault)
            if self._stopping.wait(self._held_steps.pause_s(ANSWERING)) or not self._when_heard(is_asked):
                raise DroppedRequest("a fault of this machine lasted until the stream that asked was gone")

    def _when_heard(self, act: Callable[[], T]) -> T:
        """Returns what ``act`` returns; calls it again, once the stream is heard, if it has raised UnheardStream.

        ``act`` holds locks. So it does not wait for the stream itself.
        """
        while True:
            try:
                return act()
            except UnheardStream:
                while self._is_stream_open() is None:
                    time.sleep(HEARD_S)

    def _is_asked(self, open_request: _OpenRequest) -> bool:
        """Returns True if the stream that asked still stands, or a new one has asked again.

        Raises UnheardStream while the stream has been silent for too long to tell.
        """
        if not open_request.is_wanted:
            return False
        stream_stands = self._is_stream_open()
        if stream_stands is None:
            raise UnheardStream
        return stream_stands and open_request.is_wanted

    def _is_slot_asked(self, open_request: _OpenRequest, slot: Slot) -> bool:
        """Returns True if a stream still asks for this request, or for another one that waits for the same vector.

        Raises UnheardStream while the stream has been silent for too long to tell.
        """
        with self._lock:
            other_requests = [
                other_request
                for request_id in self._waiting_ids[slot]
                if (other_request := self._open_requests.get(request_id)) is not None
            ]
        return any(self._is_asked(request) for request in (open_request, *other_requests))

    def _hold_up(self, open_request: _OpenRequest, fault: Exception) -> None:
        open_request.is_held = True
        self._held_steps.hold(ANSWERING, fault)

    def _release_hold(self, open_request: _OpenRequest) -> None:
        """Notes that a request is answered; people are still told of a fault that holds up another request."""
        with self._lock:
            open_request.is_held = False
            is_held = any(request.is_held for request in self._open_requests.values())
        if not is_held:
            self._held_steps.release(ANSWERING)

    def _send_reply(self, id_: bytes, open_request: _OpenRequest, answer: PendingReply) -> None:
        if not answer.may_leave():
            log.warning("a vector that was done is not sent: its people have withdrawn their consent")
            self._forget_request(id_)
            return
        reply = Outgoing(id_, answer.reply)
        # A new stream may send the reply as soon as it is in this dictionary.
        with self._lock:
            self._replies[id_] = reply, answer
            self._open_requests.pop(id_, None)
            while len(self._replies) > KEPT_REPLIES:
                self._replies.popitem(last=False)
        self._send(reply)

    def _drop_request(self, id_: bytes, reason: str) -> None:
        log.warning("a request is dropped, and answered when it is asked again: %s", reason)
        self._forget_request(id_)

    def _forget_request(self, id_: bytes) -> None:
        with self._lock:
            self._open_requests.pop(id_, None)

    def _handle_failure(self, id_: bytes, open_request: _OpenRequest, error: Exception) -> None:
        """Drops a request that failed, or queues it again if this machine has a fault, which is no refusal."""
        if isinstance(error, DroppedRequest):
            self._drop_request(id_, str(error))
            return
        if not isinstance(error, (UndersongError, OSError, sqlite3.Error)):
            log.error("internal error %s; the request stays unanswered", place_of(error))
            self._forget_request(id_)
            return
        self._hold_up(open_request, error)
        with self._lock:
            open_request.is_taken = False
            if not open_request.is_wanted:  # The stream is gone, and the coordinator repeats the request.
                self._open_requests.pop(id_, None)
                return
        retry_timer = threading.Timer(self._held_steps.pause_s(ANSWERING), self._id_queue.put, (id_,))
        retry_timer.daemon = True
        retry_timer.start()
