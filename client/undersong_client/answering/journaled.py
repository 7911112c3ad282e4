"""Answers requests one at a time, in one thread, and journals each reply before it can leave."""

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from undersong_client.answering.assemble import Assembled
from undersong_client.answering.party import Answer
from undersong_client.consent import plugins, policy, trust
from undersong_client.consent.approvals import Requests, manifest_hash
from undersong_client.home import PartyHome
from undersong_client.storage.outbox import NOTHING, Outbox
from undersong_common.errors import PeerFault, PrivacyRefusal, UndersongError
from undersong_common.files import MISSING, FileState, file_state
from undersong_protocol import limits
from undersong_protocol.wire import codec
from undersong_protocol.wire.framing import Envelope, Outgoing
from undersong_protocol.wire.messages import federation_pb2 as wire

KEPT_REPLIES = 64
LOOK_AFTER_S = 3600.0
WAITING_REQUESTS = 64
WAITING_BYTES = 256 * 2**20  # of all requests that wait; one may always

log = logging.getLogger(__name__)


class JournaledParty:
    """A party that follows its policy file and records every reply in the outbox before it leaves.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, home: PartyHome, assembled: Assembled, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._requests, self._coordinator, self._policy = map(str, (home.requests, home.coordinator, home.policy))
        self._assembled = assembled
        self._outbox = Outbox(home)
        self._clock = clock
        self._policy_read: list[FileState] = []
        self._looked_after: list[object] = []
        self._proposals = Requests(home)
        self._runs: dict[bytes, str] = {}  # names, by the manifest's hash
        self.last: tuple[float, str] | None = None  # when and what was answered, for the status

    def answer(self, data: bytes, begun: float | None = None) -> Answer:
        """Answers one request and journals the reply.

        The caller must :func:`wait_for_rung` and then call ``Answer.may_leave`` before it sends the reply.

        Args:
            begun: time at which the request was taken up, in monotonic seconds; None takes now.

        Raises ConfigurationError if the reply cannot be journaled; it must not leave then.
        """
        begun = time.monotonic() if begun is None else begun
        self.look_after()
        try:
            with self._outbox.together():
                answer = self._answer(data, begun)
                self._journal(answer, time.monotonic() - begun)
        except BaseException:
            self._assembled.party.forget()
            raise
        return answer

    def _answer(self, data: bytes, begun: float) -> Answer:
        try:
            self._follow_policy()
        except UndersongError as error:
            log.error("%s", error.problem)
            refusal = PrivacyRefusal("this party's policy does not let it answer", "its people must look into its log")
            refused = Answer(codec.refusal(refusal).SerializeToString(), kind="refusal")
            with suppress(PeerFault):
                refused.request = codec.decode_request(data)
            return refused
        answer = self._assembled.party.answer(data, begun)
        try:
            self._assembled.keep_checkpoints()
        except UndersongError as error:
            log.error("%s", error.problem)
            answer = replace(answer, reply=codec.refusal(error).SerializeToString(), kind="refusal", stored=NOTHING)

        def may_leave() -> bool:
            return file_state(self._coordinator) != MISSING and answer.may_leave()

        return replace(answer, may_leave=may_leave)

    def look_after(self) -> None:
        """Destroys the secrets of attempts that will not go on; acts at the first call, hourly, and after decisions."""
        coordinator = file_state(self._coordinator)
        seen = [file_state(self._requests), coordinator, self._clock() // LOOK_AFTER_S]
        if seen == self._looked_after:
            return
        left = "this party has left its coordinator" if coordinator == MISSING else ""
        try:
            if self._assembled.party.end_abandoned(left):
                self._looked_after = seen
        except UndersongError as error:
            log.error("attempts that are over could not be erased: %s", error.problem)
            self._looked_after = seen

    def _journal(self, answer: Answer, took_s: float) -> None:
        asked, run, query, attempt = self._described(answer.request)
        reply, kind = answer.reply, answer.kind
        self._outbox.record(
            reply,
            at=self._clock(),
            kind=kind,
            answer_to=asked,
            run=run,
            query=query,
            attempt=attempt,
            stored=answer.stored,
        )
        self.last = (self._clock(), f"{asked} {run} {query}".strip())
        log.info(
            "answered %s with %s%s: %d bytes, %.3f s",
            asked,
            kind,
            f" (run {run!r}{f', {query}, attempt {attempt}' if query else ''})" if run else "",
            len(reply),
            took_s,
        )

    def _described(self, request: wire.Request | None) -> tuple[str, str, str, int]:
        """The kind of a request, and its run, sum and attempt, for outbox and log."""
        if request is None:
            return "bytes that are no request", "", "", -1
        kind = request.WhichOneof("body") or ""
        body = getattr(request, kind)
        hash_ = manifest_hash(body.manifest) if kind in ("propose", "agree") else getattr(body, "manifest_hash", b"")
        with suppress(UndersongError):  # a damaged file of a request
            if hash_ not in self._runs and (proposed := self._proposals.known(hash_)) is not None:
                self._runs[hash_] = proposed.run
        return kind, self._runs.get(hash_, ""), str(getattr(body, "sum", "")), int(getattr(body, "attempt", -1))

    def _follow_policy(self) -> None:
        """A changed policy counts at once, and who has left its coordinator answers it nothing, whatever carries this.

        Raises ConfigurationError or PrivacyRefusal where nothing may be answered.
        """
        found = [file_state(self._policy), file_state(self._coordinator)]
        if found != self._policy_read:
            self._policy_read = []
            fingerprint = trust.trusted(self._home).fingerprint
            allowed = policy.read(self._home)
            plugins.load_trusted(allowed)
            self._assembled.party.allow(allowed.bounds, fingerprint)
            self._policy_read = found


def wait_for_rung(
    begun: float,
    first_rung_s: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sleeps until the next rung after ``begun`` (monotonic seconds); returns at once if ``first_rung_s`` is 0."""
    if first_rung_s:
        until = begun + limits.leaving_s(monotonic() - begun, first_rung_s)
        while (left := until - monotonic()) > 0:
            sleep(left)


class Answering:
    """Answers a stream's requests in a thread, one after the other, and repeats replies that were not acknowledged.

    The thread also waits until a masked vector may leave, because a reply in between would show when the vector was
    done. A reply without acknowledgement is sent again on the next stream. After a crash the coordinator repeats its
    request, and the party's journal gives the same bytes.

    Args:
        send: sends a reply on the stream, if one is open.
        clock: returns seconds since the epoch.
        monotonic, sleep: clock and sleep function that time the rungs, in seconds.
    """

    def __init__(
        self,
        home: PartyHome,
        assembled: Assembled,
        *,
        send: Callable[[Outgoing], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.party = JournaledParty(home, assembled, clock=clock)
        self._send = send
        self._monotonic = monotonic
        self._sleep = sleep
        self._jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # ids
        self._lock = threading.Lock()
        self._wanted: dict[bytes, bytes] = {}  # what waits, by id; emptied before every new stream
        self._current: bytes | None = None
        self._replies: OrderedDict[bytes, tuple[Outgoing, Answer]] = OrderedDict()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def wants(self, id_: bytes) -> bool:
        """Returns True if no request with this id is known."""
        with self._lock:
            return not self._known(id_)

    def request(self, envelope: Envelope) -> None:
        """Queues a request to be answered; ignores one that is queued already. Raises PeerFault if too many wait."""
        with self._lock:
            if self._known(envelope.id):
                return
            waiting = sum(map(len, self._wanted.values()))
            if len(self._wanted) >= WAITING_REQUESTS or (waiting and waiting + len(envelope.data) > WAITING_BYTES):
                raise PeerFault(
                    "coordinator",
                    f"asks faster than this party answers: {len(self._wanted)} requests of {waiting} bytes wait",
                    "the coordinator sends a run's next request after the reply to the last one",
                    code="too-many-requests",
                )
            self._wanted[envelope.id] = envelope.data
        self._jobs.put(envelope.id)

    def _known(self, id_: bytes) -> bool:
        return id_ in self._wanted or id_ == self._current or id_ in self._replies

    def acknowledged(self, id_: bytes) -> None:
        with self._lock:
            self._replies.pop(id_, None)

    def stream_ended(self) -> None:
        """Drops all waiting requests before a new stream is opened; the coordinator repeats those it still needs."""
        with self._lock:
            self._wanted.clear()

    def unacknowledged(self) -> list[Outgoing]:
        """Returns the replies to send again on a new stream; leaves out those that may no longer leave."""
        with self._lock:
            kept = list(self._replies.values())
        return [reply for reply, answer in kept if answer.may_leave()]

    def stop(self, grace_s: float) -> None:
        """Stops the thread, after waiting up to ``grace_s`` seconds for the present request."""
        with self._lock:
            self._wanted.clear()
        self._jobs.put(None)
        self._thread.join(grace_s)

    def _work(self) -> None:
        while True:
            id_ = self._jobs.get()
            if id_ is None:
                return
            with self._lock:
                data = self._wanted.pop(id_, None)
                if data is None:
                    continue
                self._current = id_
            try:
                begun = self._monotonic()
                answer = self.party.answer(data, begun)
                reply = Outgoing(id_, answer.reply)
                wait_for_rung(begun, answer.first_rung_s, monotonic=self._monotonic, sleep=self._sleep)
                if not answer.may_leave():
                    log.warning("a vector that was done is not sent: its people have withdrawn their consent")
                    continue
                with self._lock:  # from now on a new stream may send it
                    self._replies[id_] = reply, answer
                    while len(self._replies) > KEPT_REPLIES:
                        self._replies.popitem(last=False)
                self._send(reply)
            except UndersongError as error:
                # Nothing leaves that is not journaled; the coordinator asks again.
                log.error("a reply could not be journaled and was not sent: %s", error.problem)
            except Exception as error:  # noqa: BLE001 - its words may hold private data
                log.error("internal error %s; the request stays unanswered", type(error).__name__)
            finally:
                with self._lock:
                    self._current = None
