"""The coordinator's side of private sums: agrees on the manifest with the parties, and opens the sums.

Every stage's replies are journaled before the state machine sees them, so that a killed coordinator replays the
machine to the very stage it stood in; parties answer a repeated request with the same bytes.
"""

import io
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import (
    ConfigurationError,
    InternalError,
    PeerFault,
    PrivacyRefusal,
    RoundAborted,
    TransportError,
    UndersongError,
)
from undersong_protocol.agreement.manifest import Manifest, plan_words
from undersong_protocol.agreement.receipt import Receipt, check_receipt
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, block_id, named_blocks, question
from undersong_server.database.journal import Journal, json_bytes
from undersong_server.federation.course import Course
from undersong_server.progress import Progress

STAGE_TIMEOUT_S = 120.0
AGREE_TIMEOUT_S = 10.0  # A party that misses everyone's signatures in this time sees them before its first sum.
APPROVAL_POLL_S = 2.0
APPROVAL_BYTES_S = 10e6  # Undecided parties are sent manifests at this rate, so a long roster is shown less often.
LARGEST_ATTEMPTS = 3  # per sum: void attempts cost no privacy, but more of them point to a fault

Key = TypeVar("Key")
Value = TypeVar("Value")


class Transport(Protocol):
    """Delivers one request to each named party and brings back the replies that came in time.

    A transport only delivers: it neither reads nor changes the bytes (protocol.codec). A party that does not answer
    is left out of the result. Sending the same bytes again is always safe.
    """

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...


@runtime_checkable
class BatchTransport(Transport, Protocol):
    """A transport of expensive messages: one message carries several requests, which are answered in order."""

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """Returns a reply to each request of each party; a party that did not answer is left out."""


class Lazily(Mapping[Key, Value]):
    """A mapping whose values are made at each read, so that a thousand requests need not be in memory at once."""

    def __init__(self, keys: Collection[Key], make: Callable[[Key], Value]) -> None:
        self._makers = {key: partial(make, key) for key in keys}

    def __getitem__(self, key: Key) -> Value:
        return self._makers[key]()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class PublicBlocks:
    """Serialised public blocks by their id, the SHA-256 of their bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, data: bytes) -> bytes:
        """Keeps a serialised block; returns its id, 32 bytes."""
        identity = block_id(data)
        self._journal.put(_block_key(identity), data)
        return identity

    def get(self, identity: bytes) -> bytes:
        """The block's bytes. Raises InternalError where it was never added."""
        data = self._journal.get(_block_key(identity))
        if data is None:
            raise InternalError(f"the public block {identity.hex()[:12]} is not in the journal", code="block-missing")
        return data

    def published(self, name: str, encode: Callable[[], bytes]) -> bytes:
        """Id of the block that was published under ``name``; the first call makes the block by ``encode``.

        A resumed run publishes the journaled bytes: an embedding computed anew, on another machine, could differ in its
        last bit.
        """
        identity = self._journal.get(name)
        if identity is None:
            identity = self.add(encode())
            self._journal.put(name, identity)
        return identity


def _block_key(identity: bytes) -> str:
    return f"block/{identity.hex()}"


def introduce(
    transport: Transport, parties: Sequence[str], timeout_s: float = STAGE_TIMEOUT_S
) -> dict[str, wire.Introduction]:
    """Asks every party who it is. Raises TransportError if a party does not answer, and names that party."""
    replies = _exchange_all(transport, parties, timeout_s, introduce=wire.Introduce())
    for name in parties:
        if name not in replies:
            raise TransportError(f"{name}: does not answer", "start its daemon, or plan the run without it")
    return {name: expect(name, replies[name], "introduction").introduction for name in parties}


def opened_sum(journal: Journal, name: str) -> NoisySum | None:
    """Reads the private sum ``name`` from a run's journal; None if the run has not opened it."""
    meta = journal.get_json(f"sum/{name}/meta")
    values = journal.get(f"sum/{name}/values")
    if meta is None or values is None:
        return None
    return _noisy_sum(np.load(io.BytesIO(values), allow_pickle=False), meta)


def _noisy_sum(values: Int64, meta: Mapping[str, Any]) -> NoisySum:
    return NoisySum(values, meta["scale"], meta["variance"] ** 0.5 / meta["scale"], tuple(meta["survivors"]))


class Rejected(PrivacyRefusal):
    """Hospitals refuse to take part in a run that was proposed to them; ``parties`` names them."""

    def __init__(self, refusals: Mapping[str, PrivacyRefusal]) -> None:
        remedies = dict.fromkeys(refusal.remedy for refusal in refusals.values() if refusal.remedy)
        super().__init__("\n".join(refusal.problem for refusal in refusals.values()), "; ".join(remedies))
        self.parties = tuple(sorted(refusals))


def _rejection_error(errors: Mapping[str, UndersongError]) -> UndersongError:
    """Returns the error of a run that not everybody signs: every hospital's refusal, or the first fault of another.

    A fault that passes by itself comes last: the run waits only where nothing else is wrong.
    """
    refusals = {name: error for name, error in errors.items() if isinstance(error, PrivacyRefusal)}
    return Rejected(refusals) if refusals else min(errors.values(), key=lambda error: isinstance(error, TransportError))


class Federation:
    """One run's private sums over a transport.

    Over a :class:`BatchTransport` a sum takes the fewest messages (see undersong_server/federation/course.py); what is
    asked, charged and opened is the same.

    Args:
        transport: carries the bytes.
        manifest: what every party signs; nothing outside its plan is ever asked.
        journal: keeps every reply and every opened sum.
        blocks: the run's public blocks; a party is sent those that it is not known to hold.
    """

    def __init__(
        self,
        transport: Transport,
        manifest: Manifest,
        journal: Journal,
        progress: Progress,
        *,
        blocks: PublicBlocks,
        timeout_s: float = STAGE_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.manifest = manifest
        self._names = [member.name for member in manifest.roster]
        self._transport = transport
        self._batches = transport if isinstance(transport, BatchTransport) else None
        self._journal = journal
        self._progress = progress
        self._blocks = blocks
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._courses: dict[tuple[str, int], Course] = {}
        self._held: dict[str, set[bytes]] = {name: set() for name in self._names}
        self._agreed: set[str] = set()  # parties that have seen everyone's signatures

    def agree(self) -> Mapping[str, bytes]:
        """Has every party sign the manifest and sends each everyone's signatures. Returns the signatures by party name.

        Waits for parties whose people have not approved yet. Raises Rejected, which names the refusing parties, after
        all parties were asked. A party that does not see the signatures now is shown them before its first sum.
        """
        signatures = self._collect_signatures()
        first = self._next_course(None) if self._batches else None
        if first is not None and (first.result or first.stage):
            first = None

        def ask(name: str) -> list[bytes]:
            prepare = [] if first is None else [self._write_request(first, "prepare_sum", first.advertise[name])]
            return [self._agreement, *prepare]

        timeout_s = min(self._timeout_s, AGREE_TIMEOUT_S) if first is None else self._timeout_s
        for name, replies in self._send_requests(self._names, ask, timeout_s).items():
            try:
                expect(name, replies[0], "agreed")
            except UndersongError as error:
                self._progress.say(f"{name} does not take part: {error.problem}")
                continue
            self._agreed.add(name)
            if first is not None:
                self._record_reply(first, name, replies[1])
        if first is not None:
            self._end_stage(first, patient=True)
        return signatures

    @cached_property
    def _agreement(self) -> bytes:
        """The request that shows everyone's signatures."""
        agree = wire.AgreeManifest(manifest=self.manifest.to_bytes(), signatures=self._collect_signatures())
        return wire.Request(version=codec.VERSION, agree=agree).SerializeToString()

    def _collect_signatures(self) -> dict[str, bytes]:
        stored = self._journal.get_json("manifest/signatures")
        if stored is not None:
            return {name: bytes.fromhex(signature) for name, signature in stored.items()}
        waiting = self._names
        signatures: dict[str, bytes] = {}
        undecided_before: set[str] = set()  # parties whose people had to decide
        propose = wire.ProposeManifest(manifest=self.manifest.to_bytes())
        words = plan_words(self.manifest.hash)
        while waiting:
            replies = _exchange_all(self._transport, waiting, self._timeout_s, propose=propose)
            pending = []
            refusals: dict[str, UndersongError] = {}
            for name in waiting:
                reply = replies.get(name)
                if reply is None or reply.WhichOneof("body") == "pending":
                    pending.append(name)
                    continue
                try:
                    signatures[name] = expect(name, reply, "signature").signature.signature
                    if name in undecided_before:
                        self._progress.say(f"{name} has approved: {len(signatures)} of {len(self._names)}")
                except UndersongError as error:
                    self._progress.say(error.problem)
                    refusals[name] = error
            if refusals:
                raise _rejection_error(refusals)
            undecided = {name for name in pending if name in replies}
            if undecided and not undecided_before:
                self._progress.say(f"waits for people's approval; this plan's words: {words}")
            if pending:
                self._progress.await_people(pending, sorted(signatures), words)
                self._sleep(max(APPROVAL_POLL_S, len(pending) * len(propose.manifest) / APPROVAL_BYTES_S))
            undecided_before |= undecided
            waiting = pending
        self.manifest.check_signatures(signatures)
        self._journal.put_json("manifest/signatures", {name: value.hex() for name, value in signatures.items()})
        return signatures

    def private_sum(self, name: str, inputs: Sequence[Input]) -> NoisySum:
        """Opens the private sum ``name`` of the plan once; a second call reads the journal.

        Raises PrivacyRefusal for a sum outside the plan, RoundAborted when too few parties remain (nothing is opened),
        ConfigurationError if the run began the sum with other public inputs: the parties would refuse them.
        """
        planned = self.manifest.plan[name]
        opened_before = opened_sum(self._journal, name)
        if opened_before is not None:
            return opened_before
        question_hash = question(inputs).hex()
        if self._journal.get_json(f"sum/{name}/question") not in (None, question_hash):
            raise ConfigurationError(
                f"{name}: its public inputs are not those with which this run began it",
                "a continued run must publish what it published before; start a new run",
                code="other-inputs",
            )
        self._journal.put_json(f"sum/{name}/question", question_hash)
        spares_used = 0
        for attempt in itertools.count():
            absences: dict[str, UndersongError] = {}
            try:
                outcome = self._run_attempt(name, attempt, inputs, absences)
                break
            except RoundAborted as aborted:
                if self._is_voided(name, attempt, absences):
                    self._progress.say(f"{name}: attempt {attempt} is void and costs nothing; trying again")
                    if attempt + 1 < LARGEST_ATTEMPTS:
                        continue
                spares_used += 1
                if spares_used > self.manifest.plan.quorum.spare_attempts:
                    raise self._gave_up(name, aborted, absences) from None
                self._progress.say(f"{name}: {aborted.problem}; a spare attempt is used")
        values = io.BytesIO()
        np.save(values, outcome.values)
        meta = {
            "survivors": list(outcome.survivors),
            "variance": outcome.variance,
            "scale": planned.scale,
            "evidence": outcome.evidence.hex(),
            "attempt": attempt,
        }
        entries = [(f"sum/{name}/values", values.getvalue()), (f"sum/{name}/meta", json_bytes(meta))]
        self._journal.exchange((), entries, forgotten=f"sum/{name}/attempt/")
        return _noisy_sum(outcome.values, meta)

    def _gave_up(self, name: str, aborted: RoundAborted, absences: Mapping[str, UndersongError]) -> UndersongError:
        """Returns the error of a sum that is not tried again, with what every missing party said."""
        problem = "".join([f"{name}: {aborted.problem}", *(f"\n  {error.problem}" for error in absences.values())])
        refusals = [error for error in absences.values() if isinstance(error, PrivacyRefusal)]
        if len(refusals) > self.manifest.plan.quorum.tolerated_dropouts:
            return PrivacyRefusal(problem, refusals[0].remedy or "talk to these parties, then plan a new run")
        return RoundAborted(problem, aborted.remedy or "start a new run, or plan one with federation.spare_attempts")

    def receipts(self) -> dict[str, wire.Receipt]:
        """Collects the receipt of each party, its signed statement of what it spent; invalid ones are left out."""
        close = wire.CloseRun(manifest_hash=self.manifest.hash)
        receipts = {}
        for name, reply in _exchange_all(self._transport, self._names, self._timeout_s, close_run=close).items():
            try:
                receipt = expect(name, reply, "receipt").receipt
                checked = check_receipt(self.manifest, name, receipt.body, receipt.signature)
                self._check_charges(checked)
                receipts[name] = receipt
            except UndersongError as error:  # the sums are open: a receipt that is missing is priced by them
                self._progress.say(f"no receipt: {error.problem}")
        return receipts

    def _check_charges(self, receipt: Receipt) -> None:
        """Raises PeerFault for a vector in an opened sum that its party has not charged."""
        sums = ((planned.name, self.opened_facts(planned.name)) for planned in self.manifest.plan.sums)
        vectors = (
            (name, facts["attempt"], self._journal.get_json(f"sum/{name}/question"))
            for name, facts in sums
            if facts and receipt.party in facts["survivors"]
        )
        if math.isfinite(self.manifest.plan.privacy.epsilon):
            for fault in receipt.uncharged(vectors):
                raise PeerFault(receipt.party, fault)

    def opened_facts(self, name: str) -> dict[str, Any] | None:
        """Public facts of an opened sum: survivors, scale, variance, evidence (hex), attempt; None if not opened."""
        facts: dict[str, Any] | None = self._journal.get_json(f"sum/{name}/meta")
        return facts

    def _run_attempt(
        self, name: str, attempt: int, inputs: Sequence[Input], absences: dict[str, UndersongError]
    ) -> secagg.Opened:
        course = self._find_course(name, attempt)
        absences.update(course.absences)
        course.absences = absences
        while course.result is None:
            self._progress.update(f"private sum {name}", course.stage, 5)
            self._exchange_stage(course, inputs)
        del self._courses[name, attempt]
        if isinstance(course.result, RoundAborted):
            raise course.result
        for fault in course.result.faults:
            self._progress.say(f"private sum {name}: {fault.problem}")
        return course.result

    def _find_course(self, name: str, attempt: int) -> Course:
        """The attempt under way, or replayed as far as the journal goes."""
        course = self._courses.get((name, attempt))
        if course is None:
            parameters = self.manifest.sum_parameters(name, attempt)
            course = Course(
                name, attempt, parameters, lambda: bytes.fromhex(self._journal.get_json(f"sum/{name}/question"))
            )
            while course.result is None and (payloads := self._stage_replies(course)) is not None:
                course.take(payloads)
            course.has_inputs = course.stage > 0 and not self._batches
            self._courses[name, attempt] = course
        return course

    def _stage_replies(self, course: Course) -> dict[str, bytes] | None:
        """Payloads by party of the stage that is due, from the journal; None if it has not been answered."""
        key = _stage_key(course)
        parties = self._journal.get_json(key)
        return None if parties is None else {party: self._journal.get(f"{key}/{party}") or b"" for party in parties}

    def _next_course(self, name: str | None) -> Course | None:
        """The first attempt at the sum after ``name`` in the plan (None: at the first one); None if it is open."""
        names = [planned.name for planned in self.manifest.plan.sums]
        following = 0 if name is None else names.index(name) + 1
        if following >= len(names) or opened_sum(self._journal, names[following]) is not None:
            return None
        if self._void_statements(names[following], 0):
            return None  # its first attempt is over
        return self._find_course(names[following], 0)

    def _course_to_prepare(self, course: Course) -> Course | None:
        """The sum to prepare with this exchange, begun as late as possible: prepared parties could only drop out."""
        if not course.left or not self._batches:
            return None
        following = self._next_course(course.name)
        if following is None or following.stalled or following.due not in ("advertise", "reveal", "share"):
            return None
        return following if following.stage or course.left <= following.preparation else None

    def _exchange_stage(self, course: Course, inputs: Sequence[Input]) -> None:
        """Exchanges the stage that is due, and again with parties that lack public blocks."""
        blocks_needed = named_blocks(inputs)
        named_first = course.number > 0 or not self._batches
        opens = (course.due == "advertise" and named_first) or (course.due == "mask" and not course.has_inputs)
        lacking = {
            party: [block for block in blocks_needed if opens and block not in self._held[party]]
            for party in course.wanted
        }
        parties, ahead = course.wanted, self._course_to_prepare(course)
        while parties:
            parties = self._exchange_once(course, inputs, ahead, parties, lacking, opens=opens)
            course.has_inputs = course.has_inputs or opens
            ahead, opens = None, True  # a party that was restarted may have lost blocks that it held
        self._end_stage(course, patient=False)

    def _exchange_once(
        self,
        course: Course,
        inputs: Sequence[Input],
        ahead: Course | None,
        parties: Sequence[str],
        lacking: dict[str, list[bytes]],
        *,
        opens: bool,
    ) -> list[str]:
        """Asks these parties, and those of the sum that is prepared. Returns the parties that lack further blocks."""
        due, early = set(parties), set() if ahead is None else set(ahead.wanted)

        def ask(party: str) -> list[bytes]:
            part = self._requests_to_party(course, party, inputs, lacking[party], opens=opens) if party in due else []
            if ahead is None or party not in early:
                return part
            kind = "prepare_sum" if ahead.due == "advertise" else "sum_step"
            return [*part, self._write_request(ahead, kind, ahead.requests[party])]

        ask_again = []
        for party, replies in self._send_requests(
            list(dict.fromkeys([*parties, *sorted(early)])), ask, self._timeout_s
        ).items():
            if ahead is not None and party in early:
                self._record_reply(ahead, party, replies.pop())
            if not replies:
                continue
            bodies = {reply.WhichOneof("body"): reply for reply in reversed(replies)}
            if "agreed" in bodies:
                self._agreed.add(party)
            if "missing" in bodies:
                missing = set(bodies["missing"].missing.blocks)
                if missing - set(named_blocks(inputs)):
                    self._leave_out(course, party, PeerFault(party, "asks for a public block that no input names"))
                # Each block is sent to a party once in a stage: if it then lacks the same, it is left out.
                elif new := missing - set(lacking[party]):
                    ask_again.append(party)
                    lacking[party] = [*lacking[party], *sorted(new)]
                continue
            if opens or course.has_inputs:
                self._held[party].update(named_blocks(inputs))
            self._record_reply(course, party, bodies.get("refusal", replies[-1]))
        if ahead is not None:
            self._end_stage(ahead, patient=True)
        return ask_again

    def _requests_to_party(
        self, course: Course, party: str, inputs: Sequence[Input], blocks: Sequence[bytes], *, opens: bool
    ) -> list[bytes]:
        """The requests to one party about a sum whose turn it is; ``opens``: with its public inputs."""
        part = [] if party in self._agreed else [self._agreement]
        if opens:
            part.append(self._write_request(course, "open_sum", course.advertise[party], inputs, blocks))
        elif course.due == "advertise":
            part.append(self._write_request(course, "prepare_sum", course.requests[party]))
        if course.due != "advertise":
            part.append(self._write_request(course, "sum_step", course.requests[party]))
        return part

    def _write_request(
        self,
        course: Course,
        kind: str,
        payload: bytes,
        inputs: Sequence[Input] = (),
        blocks: Sequence[bytes] = (),
    ) -> bytes:
        """A request about one attempt. Most stages ask every party the same, which is then written once."""
        parts = (payload, *blocks)
        if kind not in course.request_cache or course.request_cache[kind][0] != parts:
            body: dict[str, Any] = {
                "manifest_hash": self.manifest.hash,
                "sum": course.name,
                "attempt": course.number,
                "payload": payload,
            }
            if kind == "open_sum":
                body["inputs"] = [public_input.to_wire() for public_input in inputs]
                body["blocks"] = [self._blocks.get(identity) for identity in blocks]
                body["voids"] = [
                    wire.VoidCertificate(attempt=number, statements=statements)
                    for number in range(course.number)
                    if (statements := self._void_statements(course.name, number))
                ]
            fields: dict[str, Any] = {kind: body}
            request = wire.Request(version=codec.VERSION, **fields)
            course.request_cache[kind] = parts, request.SerializeToString()
        return course.request_cache[kind][1]

    def _record_reply(self, course: Course, party: str, reply: wire.Reply) -> None:
        """Keeps a reply's payload, or why it has none."""
        try:
            course.received[party] = expect(party, reply, "sum_reply").sum_reply.payload
        except UndersongError as error:
            self._leave_out(course, party, error)

    def _leave_out(self, course: Course, party: str, error: UndersongError) -> None:
        course.received[party] = None
        course.absences[party] = error
        self._progress.say(f"{course.name}: left out: {error.problem}")

    def _end_stage(self, course: Course, *, patient: bool) -> None:
        """Journals the stage and goes on to the next one without late parties; ``patient``: waits for them."""
        if course.wanted and patient:
            course.stalled = True
            return
        for party in course.wanted:
            self._leave_out(course, party, TransportError(f"{party}: does not answer"))
        payloads = {party: payload for party in course.requests if (payload := course.received.get(party)) is not None}
        key = _stage_key(course)
        entries = [(f"{key}/{party}", payload) for party, payload in payloads.items()]
        self._journal.put_all([*entries, (key, json_bytes(list(payloads)))])
        course.take(payloads)

    def _send_requests(
        self, parties: Sequence[str], ask: Callable[[str], Sequence[bytes]], timeout_s: float
    ) -> dict[str, list[wire.Reply]]:
        """Each party's replies to the requests that ``ask`` makes for it; parties that left one out are missing."""
        sizes: dict[str, int] = {}

        def requests_of(party: str) -> Sequence[bytes]:
            requests = ask(party)
            sizes[party] = len(requests)
            return requests

        if self._batches is not None:
            raw = self._batches.exchange_batches(Lazily(parties, requests_of), timeout_s=timeout_s)
        else:
            raw = _one_by_one(self._transport, {party: requests_of(party) for party in parties}, timeout_s)
        decoded = {name: [decode(name, reply) for reply in replies] for name, replies in raw.items()}
        return {name: replies for name, replies in decoded.items() if len(replies) == sizes[name]}

    def _is_voided(self, name: str, attempt: int, absences: Mapping[str, UndersongError]) -> bool:
        """True if enough parties sign that they released no share, so that the plan's slot may be used again."""
        parameters = self.manifest.sum_parameters(name, attempt)
        certificate = self._void_statements(name, attempt)
        if certificate is not None:
            return secagg.is_void(parameters, certificate)
        request = wire.VoidSum(manifest_hash=self.manifest.hash, sum=name, attempt=attempt)
        away = [party for party, error in absences.items() if isinstance(error, TransportError)]
        statements: dict[str, bytes] = {}
        void = False
        # Absent parties were waited for already: they are asked only if the statements of the others do not suffice.
        for names in ([name for name in self._names if name not in away], away):
            if void or not names:
                continue
            for party, reply in _exchange_all(self._transport, names, self._timeout_s, void_sum=request).items():
                if reply.WhichOneof("body") == "void_statement":
                    statements[party] = reply.void_statement.statement
            void = secagg.is_void(parameters, statements)
        hex_statements = {party: statement.hex() for party, statement in statements.items()} if void else {}
        self._journal.put_json(f"sum/{name}/void/{attempt}", hex_statements)
        return void

    def _void_statements(self, name: str, attempt: int) -> dict[str, bytes] | None:
        """The certificate that makes an attempt void; empty if it is not void, None if nobody was asked yet."""
        stored = self._journal.get_json(f"sum/{name}/void/{attempt}")
        return None if stored is None else {party: bytes.fromhex(statement) for party, statement in stored.items()}


def _stage_key(course: Course) -> str:
    return f"sum/{course.name}/attempt/{course.number}/stage/{course.stage}"


def _exchange_all(transport: Transport, parties: Iterable[str], timeout_s: float, **body: Any) -> dict[str, wire.Reply]:
    """Sends every party the same request; returns the replies that came."""
    request = wire.Request(version=codec.VERSION, **body).SerializeToString()
    raw = transport.exchange(dict.fromkeys(parties, request), timeout_s=timeout_s)
    return {name: decode(name, data) for name, data in raw.items()}


def _one_by_one(
    transport: Transport, requests: Mapping[str, Sequence[bytes]], timeout_s: float
) -> dict[str, list[bytes]]:
    """One request per message: a party that leaves one unanswered is sent no more."""
    replies: dict[str, list[bytes]] = {name: [] for name in requests}
    for number in range(max(map(len, requests.values()), default=0)):
        due = {
            name: party_requests[number]
            for name, party_requests in requests.items()
            if len(replies[name]) == number < len(party_requests)
        }
        for name, data in transport.exchange(due, timeout_s=timeout_s).items():
            replies[name].append(data)
    return replies


def decode(party: str, data: bytes) -> wire.Reply:
    """Parses a party's reply; invalid bytes become a reply that holds a refusal and names the party."""
    try:
        return codec.decode_reply(data, party)
    except PeerFault as error:
        return codec.refusal(ConfigurationError(error.problem, error.remedy, code=error.code))


def expect(party: str, reply: wire.Reply, body: str) -> wire.Reply:
    """Returns a reply with this body. Raises the error that a refusal states, and PeerFault for any other body."""
    kind = reply.WhichOneof("body")
    if kind == "refusal":
        codec.raise_refusal(party, reply.refusal)
    if kind != body:
        raise PeerFault(party, f"answered with {kind} where {body} was due")
    return reply
