"""A coordinator that may do anything: it holds every other party's key, plays them, and says what it likes."""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.noninterference.hospital import EMBEDDER, NAME
from tests.noninterference.questions import LABELS, Asked
from undersong_common.canonical import canonical_json
from undersong_common.errors import UndersongError
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.coordinator import UnmaskedSum, private_sum
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.secagg.parameters import Member, SumParameters, defaults
from undersong_protocol.secagg.party import PartyMachine, WantsInput
from undersong_protocol.statistics import Statistic
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2 as secagg

OTHERS = ("aster", "briar", "zinnia")  # before and after the watched party in the roster


def request(**body: Any) -> bytes:
    """A request, serialised."""
    return wire.Request(version=codec.VERSION, **body).SerializeToString()


@cache
def plan(asked: tuple[Statistic, ...], privacy: Privacy, parties: int, rate: float) -> Plan:
    """A plan of sums ``sum 0``, ``sum 1``, ... of these statistics."""
    threshold, dropouts, colluders = defaults(parties)
    requests = [
        SumRequest(f"sum {number}", statistic, sampling_rate=1.0 if statistic.whole else rate)
        for number, statistic in enumerate(asked)
    ]
    return plan_sums(requests, privacy, Quorum(parties, threshold, dropouts, colluders, spare_attempts=1))


def manifest_of(
    plan: Plan, identity: bytes, *, run: str = "run", labels: Sequence[str] = LABELS, name: str = NAME
) -> Manifest:
    """A manifest of the watched party and as many others as the plan has parties."""
    members = [Member(name, identity), *(member(other) for other in OTHERS[: plan.quorum.parties - 1])]
    return Manifest(
        run=run,
        task={"name": "task", "description": "a note", "labels": list(labels)},
        method="test",
        embedder=EMBEDDER,
        roster=tuple(sorted(members, key=lambda each: each.name)),
        plan=plan,
    )


def member(name: str) -> Member:
    return Member(name, key_of(name).public_key().public_bytes_raw())


def proposal(manifest: Manifest) -> bytes:
    return request(propose=wire.ProposeManifest(manifest=manifest.to_bytes()))


def edited(manifest: Manifest, path: Sequence[str | int], value: Any) -> bytes:
    """A proposal of the manifest with one value of its JSON replaced, in canonical form."""
    whole = json.loads(manifest.to_bytes())
    at = whole
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return request(propose=wire.ProposeManifest(manifest=canonical_json(whole)))


def agreement(manifest: Manifest, signature: bytes) -> bytes:
    """Everyone's signatures, the watched party's as it gave it."""
    signatures = {each.name: manifest.sign(key_of(each.name)) for each in manifest.roster if each.name in OTHERS}
    signatures[NAME] = signature
    return request(agree=wire.AgreeManifest(manifest=manifest.to_bytes(), signatures=signatures))


def key_of(name: str) -> Ed25519PrivateKey:
    """The enrolled key of a party that this coordinator plays: the same in every conversation."""
    return Ed25519PrivateKey.from_private_bytes(_secret("identity", name))


def _secret(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


@dataclass(eq=False)
class Course:
    """One attempt at one sum as an honest coordinator with honest peers would go through it.

    The other parties are machines in its hands; the watched one's replies are handed to :meth:`take`.
    """

    manifest: Manifest
    name: str
    number: int
    asked: Asked
    peers: dict[str, PartyMachine] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)
    opened: UnmaskedSum | None = None
    over: bool = False
    stage: str = "advertise"
    begun: bool = False

    def __post_init__(self) -> None:
        self.parameters: SumParameters = self.manifest.sum_parameters(self.name, self.number)
        self._machine: Generator[Mapping[str, bytes], Mapping[str, bytes], UnmaskedSum] = private_sum(
            self.parameters, lambda: self.asked.question
        )
        self._requests = next(self._machine)
        for each in self.manifest.roster:
            if each.name in OTHERS:
                secret = _secret("entropy", each.name, self.name, self.number, self.manifest.hash)
                entropy = KeyStream(secret).read
                self.peers[each.name] = PartyMachine.open(self.parameters, each.name, key_of(each.name), entropy)

    @property
    def slot(self) -> tuple[str, str, int]:
        return self.manifest.run, self.name, self.number

    def payload(self) -> bytes:
        """Pending request to the watched party; empty if no request is pending."""
        return b"" if self.over else self._requests.get(NAME, b"")

    def opening(self, *, voids: Sequence[wire.VoidCertificate] = (), payload: bytes | None = None) -> bytes:
        return request(
            open_sum=wire.OpenSum(
                manifest_hash=self.manifest.hash,
                sum=self.name,
                attempt=self.number,
                inputs=[given.to_wire() for given in self.asked.inputs],
                blocks=self.asked.blocks,
                payload=advertise_request(self.parameters) if payload is None else payload,
                voids=voids,
            )
        )

    def preparation(self) -> bytes:
        return request(
            prepare_sum=wire.PrepareSum(
                manifest_hash=self.manifest.hash,
                sum=self.name,
                attempt=self.number,
                payload=advertise_request(self.parameters),
            )
        )

    def step(self, payload: bytes | None = None) -> bytes:
        sent = self.payload() if payload is None else payload
        self.sent.append(sent)
        return request(
            sum_step=wire.SumStep(manifest_hash=self.manifest.hash, sum=self.name, attempt=self.number, payload=sent)
        )

    def voiding(self) -> bytes:
        return request(void_sum=wire.VoidSum(manifest_hash=self.manifest.hash, sum=self.name, attempt=self.number))

    def take(self, reply: wire.Reply) -> None:
        """The watched party's reply to this stage, with the peers' own: on to the next stage."""
        self.begun = self.begun or reply.WhichOneof("body") == "sum_reply"
        if self.over:
            return
        replies: dict[str, bytes] = {}
        for name, asked in self._requests.items():
            if name == NAME:
                if reply.WhichOneof("body") == "sum_reply":
                    replies[name] = reply.sum_reply.payload
                continue
            try:
                machine = self.peers[name]
                step = machine.receive(asked)
                if isinstance(step, WantsInput):
                    zeros = GridVector(np.zeros(self.parameters.dimension, dtype=np.int64))
                    step = machine.provide(zeros, self.asked.question)
                replies[name] = step.payload
            except UndersongError:
                continue
        try:
            self._requests = self._machine.send(replies)
            first = next(iter(self._requests.values()))
            self.stage = secagg.Request.FromString(first).WhichOneof("stage") or ""
        except StopIteration as stop:
            self.opened, self.over = stop.value, True
        except UndersongError:
            self.over = True

    def certificate(self, statement: bytes | None) -> wire.VoidCertificate:
        """A void certificate: the peers' statements, and the watched party's where it gave one."""
        statements = {}
        for name, machine in self.peers.items():
            try:
                statements[name] = machine.void_statement().payload
            except UndersongError:
                continue
        if statement is not None:
            statements[NAME] = statement
        return wire.VoidCertificate(attempt=self.number, statements=statements)


def closing(manifest: Manifest) -> bytes:
    return request(close_run=wire.CloseRun(manifest_hash=manifest.hash))


def suspending(manifest: Manifest) -> bytes:
    return request(suspend_run=wire.SuspendRun(manifest_hash=manifest.hash))
