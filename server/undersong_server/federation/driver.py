"""The coordinator's side of private sums: agrees on the manifest, opens the sums, and loses nothing on the way.

Every stage's replies are journaled before the state machine sees them, so that a killed coordinator replays the
machine to the very stage it stood in; parties answer a repeated request with the same bytes.
"""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from undersong_protocol import codec
from undersong_protocol.manifest import Manifest
from undersong_protocol.messages import federation_pb2 as wire
from undersong_protocol.plan_words import plan_words
from undersong_protocol.public import Input, block_id, named_blocks, question
from undersong_protocol.receipt import check_receipt
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.vectors import NoisySum
from undersong_server.journal import Journal, json_bytes
from undersong_server.progress import Progress

STAGE_TIMEOUT_S = 120.0
AGREE_TIMEOUT_S = 10.0  # to show everyone's signatures; who misses them sees them before its first sum
APPROVAL_POLL_S = 2.0
LARGEST_ATTEMPTS = 3  # of one sum: void attempts cost no privacy, but something is wrong with the federation

Key = TypeVar("Key")
Value = TypeVar("Value")


class Transport(Protocol):
    """Delivers one request to each named party and brings back the replies that came in time.

    A transport only delivers: it neither reads nor changes the bytes (protocol.codec). A party that does not answer
    is left out of the result. Sending the same bytes again is always safe.
    """

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...


@runtime_checkable
class BatchTransport(Protocol):
    """A transport of expensive messages: one message carries several requests, which are answered in order."""

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """As many replies from each party as it got requests; a party that did not answer is left out."""
        ...


class Lazily(Mapping[Key, Value]):
    """A mapping whose values are made each time they are read: a thousand requests need not lie in memory at once."""

    def __init__(self, keys: Collection[Key], make: Callable[[Key], Value]) -> None:
        self._keys = keys
        self._make = make

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class PublicBlocks:
    """Serialised public blocks by their id, the SHA-256 of their bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, data: bytes) -> bytes:
        """Keeps a serialised block; returns its id, 32 bytes."""
        identity = block_id(data)
        self._journal.put(_key(identity), data)
        return identity

    def get(self, identity: bytes) -> bytes:
        """The block's bytes. Raises InternalError where it was never added."""
        data = self._journal.get(_key(identity))
        if data is None:
            raise InternalError(f"the public block {identity.hex()[:12]} is not in the journal")
        return data

    def published(self, name: str, encode: Callable[[], bytes]) -> bytes:
        """Id of the block that was published under ``name``; the first time ``encode`` makes it.

        A resumed run publishes the journaled bytes: an embedding computed anew, on another machine, could differ in its
        last bit.
        """
        identity = self._journal.get(name)
        if identity is None:
            identity = self.add(encode())
            self._journal.put(name, identity)
        return identity


def _key(identity: bytes) -> str:
    return f"block/{identity.hex()}"


def introduce(
    transport: Transport, parties: Sequence[str], timeout_s: float = STAGE_TIMEOUT_S
) -> dict[str, wire.Introduction]:
    """Who is there. Raises TransportError that names every party that does not answer."""
    requests = {name: wire.Request(version=codec.VERSION, introduce=wire.Introduce()) for name in parties}
    replies = _exchange(transport, requests, timeout_s)
    found = {}
    for name in parties:
        if name not in replies:
            raise TransportError(f"{name}: does not answer", "start its daemon, or plan the run without it")
        found[name] = expect(name, replies[name], "introduction").introduction
    return found


def opened_sum(journal: Journal, name: str) -> NoisySum | None:
    """A private sum that a run's journal has; None where it was not opened."""
    meta = journal.get_json(f"sum/{name}/meta")
    values = journal.get(f"sum/{name}/values")
    if meta is None or values is None:
        return None
    return _noisy_sum(np.load(io.BytesIO(values), allow_pickle=False), meta)


def _noisy_sum(values: Int64, meta: Mapping[str, Any]) -> NoisySum:
    return NoisySum(values, meta["scale"], meta["variance"] ** 0.5 / meta["scale"], tuple(meta["survivors"]))


class Federation:
    """One run's private sums over a transport.

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
        self._transport = transport
        self._journal = journal
        self._progress = progress
        self._blocks = blocks
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._absences: dict[str, UndersongError] = {}  # why parties are missing from the attempt under way
        self._held: dict[str, set[bytes]] = {member.name: set() for member in manifest.roster}
        self._agreed: set[str] = set()  # parties that have seen everyone's signatures

    def agree(self) -> Mapping[str, bytes]:
        """Every party signs the manifest and sees everyone's signatures. Returns them by party name.

        Waits for parties whose people have not approved yet. Raises the first refusal, with the party's name, after
        it has told all of them.
        """
        signatures = self._signatures()
        # Not waited for at length: who is away now is shown them before its first sum.
        names = [member.name for member in self.manifest.roster]
        for name, reply in self._show_signatures(names, min(self._timeout_s, AGREE_TIMEOUT_S)).items():
            try:
                expect(name, reply, "agreed")
            except UndersongError as error:
                self._progress.say(f"{name} does not take part: {error.problem}")
        return signatures

    def _show_signatures(self, names: Sequence[str], timeout_s: float) -> dict[str, wire.Reply]:
        """The replies; who has seen them counts as agreed."""
        replies = _exchange(self._transport, dict.fromkeys(names, self._agreement()), timeout_s)
        self._agreed.update(name for name, reply in replies.items() if reply.WhichOneof("body") == "agreed")
        return replies

    def _agreement(self) -> wire.Request:
        return wire.Request(
            version=codec.VERSION,
            agree=wire.AgreeManifest(manifest=self.manifest.to_bytes(), signatures=self._signatures()),
        )

    def _signatures(self) -> dict[str, bytes]:
        known = self._journal.get_json("manifest/signatures")
        if known is not None:
            return {name: bytes.fromhex(signature) for name, signature in known.items()}
        waiting = [member.name for member in self.manifest.roster]
        signatures: dict[str, bytes] = {}
        told = False
        asked_before: set[str] = set()  # whose people had to decide
        propose = wire.Request(version=codec.VERSION, propose=wire.ProposeManifest(manifest=self.manifest.to_bytes()))
        while waiting:
            replies = _exchange(self._transport, dict.fromkeys(waiting, propose), self._timeout_s)
            pending = []
            refusals: list[UndersongError] = []
            for name in waiting:
                reply = replies.get(name)
                if reply is None or reply.WhichOneof("body") == "pending":
                    pending.append(name)
                    continue
                try:
                    signatures[name] = expect(name, reply, "signature").signature.signature
                    if name in asked_before:
                        self._progress.say(f"{name} has approved: {len(signatures)} of {len(self.manifest.roster)}")
                except UndersongError as error:
                    self._progress.say(error.problem)
                    refusals.append(error)
            if refusals:
                raise refusals[0]
            if pending:
                if not told and any(name in replies for name in pending):
                    self._progress.say(
                        f"waits for people's approval; this plan's words: {plan_words(self.manifest.hash)}"
                    )
                    told = True
                self._progress.await_people(pending, len(signatures), len(self.manifest.roster))
                self._sleep(APPROVAL_POLL_S)
            asked_before.update(name for name in pending if name in replies)
            waiting = pending
        self.manifest.check_signatures(signatures)
        self._journal.put_json("manifest/signatures", {name: value.hex() for name, value in signatures.items()})
        return signatures

    def private_sum(self, name: str, inputs: Sequence[Input]) -> NoisySum:
        """Opens the private sum ``name`` of the plan, once: asked again, the journal answers.

        Raises PrivacyRefusal for a sum outside the plan, RoundAborted when too few parties remain (nothing is opened).
        """
        planned = self.manifest.plan[name]
        done = opened_sum(self._journal, name)
        if done is not None:
            return done
        self._ask_one_question(name, inputs)
        spares_used = 0
        for attempt in itertools.count():
            self._absences.clear()
            try:
                opened = self._attempt(name, attempt, inputs)
                break
            except RoundAborted as aborted:
                if self._voided(name, attempt):
                    self._progress.say(f"{name}: attempt {attempt} is void and costs nothing; trying again")
                    if attempt + 1 < LARGEST_ATTEMPTS:
                        continue
                spares_used += 1
                if spares_used > self.manifest.plan.quorum.spare_attempts:
                    raise self._gave_up(name, aborted) from None
                self._progress.say(f"{name}: {aborted.problem}; a spare attempt is used")
        values = io.BytesIO()
        np.save(values, opened.values)
        meta = {
            "survivors": list(opened.survivors),
            "variance": opened.variance,
            "scale": planned.scale,
            "evidence": opened.evidence.hex(),
            "attempt": attempt,
        }
        kept = [(f"sum/{name}/values", values.getvalue()), (f"sum/{name}/meta", json_bytes(meta))]
        self._journal.exchange((), kept, forgotten=f"sum/{name}/attempt/")
        return _noisy_sum(opened.values, meta)

    def _ask_one_question(self, name: str, inputs: Sequence[Input]) -> None:
        """Every attempt at a sum names the same public inputs, or the parties refuse: found here before they are asked.

        Raises ConfigurationError where the run has asked it with others.
        """
        asked = question(inputs).hex()
        if self._journal.get_json(f"sum/{name}/question") not in (None, asked):
            raise ConfigurationError(
                f"{name}: its public inputs are not those with which this run began it",
                "a continued run must publish what it published before; start a new run",
            )
        self._journal.put_json(f"sum/{name}/question", asked)

    def _asked(self, name: str) -> bytes:
        """q of a sum that was begun."""
        return bytes.fromhex(self._journal.get_json(f"sum/{name}/question"))

    def _gave_up(self, name: str, aborted: RoundAborted) -> UndersongError:
        """Why a sum is not tried again, with what every missing party said."""
        problem = "".join([f"{name}: {aborted.problem}", *(f"\n  {why.problem}" for why in self._absences.values())])
        refusals = [why for why in self._absences.values() if isinstance(why, PrivacyRefusal)]
        if len(refusals) > self.manifest.plan.quorum.tolerated_dropouts:
            return PrivacyRefusal(problem, refusals[0].remedy or "talk to these parties, then plan a new run")
        return RoundAborted(problem, aborted.remedy or "start a new run, or plan one with federation.spare_attempts")

    def receipts(self) -> dict[str, wire.Receipt]:
        """Each party's signed statement of what it spent, where it gives one that holds."""
        close = wire.Request(version=codec.VERSION, close_run=wire.CloseRun(manifest_hash=self.manifest.hash))
        names = [member.name for member in self.manifest.roster]
        replies = _exchange(self._transport, dict.fromkeys(names, close), self._timeout_s)
        receipts = {}
        for name, reply in replies.items():
            try:
                receipt = expect(name, reply, "receipt").receipt
                check_receipt(self.manifest, name, receipt.body, receipt.signature)  # what does not hold says nothing
                receipts[name] = receipt
            except UndersongError as error:  # the sums are open: a receipt that is missing is priced by them
                self._progress.say(f"no receipt: {error.problem}")
        return receipts

    def opened_facts(self, name: str) -> dict[str, Any] | None:
        """Public facts of an opened sum: survivors, scale, variance, evidence (hex), attempt; None where not opened."""
        facts: dict[str, Any] | None = self._journal.get_json(f"sum/{name}/meta")
        return facts

    def _attempt(self, name: str, attempt: int, inputs: Sequence[Input]) -> secagg.Opened:
        machine = secagg.private_sum(self.manifest.sum_parameters(name, attempt), lambda: self._asked(name))
        requests = next(machine)
        for stage in itertools.count():
            replies = self._stage(name, attempt, stage, requests, inputs)
            try:
                requests = machine.send(replies)
            except StopIteration as stop:
                opened: secagg.Opened = stop.value
                return opened
        raise AssertionError("unreachable")

    def _stage(
        self, name: str, attempt: int, stage: int, requests: Mapping[str, bytes], inputs: Sequence[Input]
    ) -> Mapping[str, bytes]:
        answered = self._stage_replies(name, attempt, stage)
        if answered is not None:
            return answered
        self._progress.update(f"private sum {name}", stage, 5)
        if stage == 0:
            replies = self._open_sum(name, attempt, requests, inputs)
        else:
            replies = self._sum_step(name, attempt, requests, inputs)
        payloads = {}
        for party in requests:
            reply = replies.get(party)
            try:
                if reply is None:
                    raise TransportError(f"{party}: does not answer")
                payloads[party] = expect(party, reply, "sum_reply").sum_reply.payload
            except UndersongError as error:
                self._absences[party] = error
                self._progress.say(f"{name}: left out: {error.problem}")
        self._keep_stage(name, attempt, stage, payloads)
        return payloads

    def _stage_replies(self, name: str, attempt: int, stage: int) -> dict[str, bytes] | None:
        """Payloads by party of a stage that the journal has; None where it has not come so far."""
        key = _stage_key(name, attempt, stage)
        answered = self._journal.get_json(key)
        return None if answered is None else {party: self._journal.get(f"{key}/{party}") or b"" for party in answered}

    def _keep_stage(self, name: str, attempt: int, stage: int, payloads: Mapping[str, bytes]) -> None:
        key = _stage_key(name, attempt, stage)
        entries = [(f"{key}/{party}", payload) for party, payload in payloads.items()]
        self._journal.put_all([*entries, (key, json.dumps(list(payloads)).encode("utf-8"))])

    def _sum_step(
        self, name: str, attempt: int, requests: Mapping[str, bytes], inputs: Sequence[Input]
    ) -> dict[str, wire.Reply]:
        distinct = {id(payload): payload for payload in requests.values()}  # most stages show every party the same
        made = {key: self._step(name, attempt, payload) for key, payload in distinct.items()}
        steps = {party: made[id(payload)] for party, payload in requests.items()}
        replies = _exchange(self._transport, steps, self._timeout_s)
        # A party that was restarted may have lost public blocks: it gets them with its first request, repeated.
        lacking = [party for party, reply in replies.items() if reply.WhichOneof("body") == "missing"]
        if lacking:
            first = advertise_request(self.manifest.sum_parameters(name, attempt))
            self._open_sum(name, attempt, dict.fromkeys(lacking, first), inputs)
            again = {party: steps[party] for party in lacking}
            replies.update(_exchange(self._transport, again, self._timeout_s))
        return replies

    def _open_sum(
        self, name: str, attempt: int, requests: Mapping[str, bytes], inputs: Sequence[Input]
    ) -> dict[str, wire.Reply]:
        wanted = named_blocks(inputs)
        lacking = self._lacking(requests, wanted)
        replies: dict[str, wire.Reply] = {}
        if late := [party for party in requests if party not in self._agreed]:
            shown = self._show_signatures(late, self._timeout_s)
            replies = {party: reply for party, reply in shown.items() if party not in self._agreed}
        # Who did not come for the signatures has been waited for; it is not waited for a second time.
        ask = {party: payload for party, payload in requests.items() if party in self._agreed}
        while ask:
            shared: dict[tuple[int, ...], wire.Request] = {}  # by payload and blocks: mostly one
            messages = {}
            for party, payload in ask.items():
                same = (id(payload), *map(id, lacking[party]))
                if same not in shared:
                    shared[same] = self._opening(name, attempt, payload, inputs, lacking[party])
                messages[party] = shared[same]
            received = _exchange(self._transport, messages, self._timeout_s)
            replies.update(received)
            ask = {}
            for party, reply in received.items():
                missing = list(reply.missing.blocks) if reply.WhichOneof("body") == "missing" else []
                # asked once more, with what it lacks; a party that then still lacks something is left out
                if set(missing) - set(lacking[party]):
                    ask[party] = requests[party]
                lacking[party] = missing
                self._held[party].update(wanted)
        return replies

    def _lacking(self, parties: Iterable[str], wanted: Sequence[bytes]) -> dict[str, list[bytes]]:
        """By party, the ``wanted`` public blocks that it is not known to hold."""
        return {party: [block for block in wanted if block not in self._held[party]] for party in parties}

    def _opening(
        self, name: str, attempt: int, payload: bytes, inputs: Sequence[Input], blocks: Sequence[bytes]
    ) -> wire.Request:
        """Names the public inputs of an attempt, with the blocks of them that a party lacks."""
        voids = [
            wire.VoidCertificate(attempt=number, statements=statements)
            for number in range(attempt)
            if (statements := self._void_statements(name, number))
        ]
        return wire.Request(
            version=codec.VERSION,
            open_sum=wire.OpenSum(
                manifest_hash=self.manifest.hash,
                sum=name,
                attempt=attempt,
                inputs=[given.to_wire() for given in inputs],
                blocks=[self._blocks.get(identity) for identity in blocks],
                payload=payload,
                voids=voids,
            ),
        )

    def _step(self, name: str, attempt: int, payload: bytes) -> wire.Request:
        return wire.Request(
            version=codec.VERSION,
            sum_step=wire.SumStep(manifest_hash=self.manifest.hash, sum=name, attempt=attempt, payload=payload),
        )

    def _voided(self, name: str, attempt: int) -> bool:
        """Whether enough parties sign that they released no share, so that the plan's slot may be used again."""
        parameters = self.manifest.sum_parameters(name, attempt)
        known = self._void_statements(name, attempt)
        if known is not None:
            return secagg.is_void(parameters, known)
        request = wire.Request(
            version=codec.VERSION,
            void_sum=wire.VoidSum(manifest_hash=self.manifest.hash, sum=name, attempt=attempt),
        )
        away = [party for party, why in self._absences.items() if isinstance(why, TransportError)]
        there = [member.name for member in self.manifest.roster if member.name not in away]
        statements: dict[str, bytes] = {}
        void = False
        for names in (there, away):  # who is away was waited for already: asked only where the others do not suffice
            if void or not names:
                continue
            replies = _exchange(self._transport, dict.fromkeys(names, request), self._timeout_s)
            for party, reply in replies.items():
                if reply.WhichOneof("body") == "void_statement":
                    statements[party] = reply.void_statement.statement
            void = secagg.is_void(parameters, statements)
        kept = {party: statement.hex() for party, statement in statements.items()} if void else {}
        self._journal.put_json(f"sum/{name}/void/{attempt}", kept)
        return void

    def _void_statements(self, name: str, attempt: int) -> dict[str, bytes] | None:
        """The certificate that makes an attempt void; empty where it is not, None where nobody was asked yet."""
        kept = self._journal.get_json(f"sum/{name}/void/{attempt}")
        return None if kept is None else {party: bytes.fromhex(statement) for party, statement in kept.items()}


def _stage_key(name: str, attempt: int, stage: int) -> str:
    return f"sum/{name}/attempt/{attempt}/stage/{stage}"


def _exchange(transport: Transport, requests: Mapping[str, wire.Request], timeout_s: float) -> dict[str, wire.Reply]:
    distinct = {id(request): request for request in requests.values()}
    written = {key: request.SerializeToString() for key, request in distinct.items()}
    raw = transport.exchange({name: written[id(request)] for name, request in requests.items()}, timeout_s=timeout_s)
    return {name: decode(name, data) for name, data in raw.items()}


def decode(party: str, data: bytes) -> wire.Reply:
    """A party's reply; invalid bytes become a refusal that names it."""
    try:
        return codec.decode_reply(data, party)
    except PeerFault as error:
        return codec.refusal(ConfigurationError(error.problem, error.remedy, code=error.code))


def expect(party: str, reply: wire.Reply, body: str) -> wire.Reply:
    """The reply, where it has this body. Raises what the party's refusal says, PeerFault for another body."""
    found = reply.WhichOneof("body")
    if found == "refusal":
        codec.raise_refusal(party, reply.refusal)
    if found != body:
        raise PeerFault(party, f"answered with {found} where {body} was due")
    return reply
