"""Parties, parameters and a lock-step driver for the secure-aggregation machines, over nothing but function calls."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong_common.arrays import Int64
from undersong_common.errors import UndersongError
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg import keys, sid
from undersong_protocol.secagg.coordinator import UnmaskedSum, private_sum
from undersong_protocol.secagg.drawn import Draw
from undersong_protocol.secagg.noise_share import NoiseSeeds, add_noise, remove_opened
from undersong_protocol.secagg.parameters import Entropy, Member, SumParameters, defaults
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.secagg.transitions import SECRETS, Stage
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

QUESTION = hashlib.sha256(b"the public inputs").digest()

Drop = Callable[[str, Stage], bool]
BendRequest = Callable[[str, wire.Request], object]
BendReply = Callable[[str, wire.Reply], object]


class MaskKind:
    """Which masks :func:`parameters_of` plans where it is not told: conftest.py beside the suites sets each in turn."""

    post_quantum = True


class RecordedEncapsulation:
    """The port of ``keys.encapsulate`` for tests: asked for the same key again, it gives what it gave before.

    So a party that is restored, or played twice, answers bit-identically. ``recorded``: hash of a public key ->
    (secret, ciphertext); what is not in it is encapsulated by the library, and noted.
    """

    def __init__(self, recorded: dict[bytes, tuple[bytes, bytes]] | None = None) -> None:
        self.recorded = {} if recorded is None else recorded

    def __call__(self, public: bytes) -> tuple[bytes, bytes]:
        hashed = keys.kem_key_hash(public)
        if hashed not in self.recorded:
            self.recorded[hashed] = keys.encapsulate(public)
        return self.recorded[hashed]


_STAGES = {
    "advertise": Stage.ADVERTISE,
    "reveal": Stage.REVEAL,
    "share": Stage.SHARE,
    "mask": Stage.MASK,
    "consistency": Stage.CONSISTENCY,
    "unmask": Stage.UNMASK,
}


def seed_of(*parts: object) -> bytes:
    """A reproducible 32-byte seed."""
    return hashlib.sha256(repr(parts).encode()).digest()


def entropy_of(*parts: object) -> Entropy:
    """A reproducible entropy source."""
    return KeyStream(seed_of("entropy", *parts)).read


@cache
def enrolled_key(name: str) -> Ed25519PrivateKey:
    """A party's enrolled key."""
    return Ed25519PrivateKey.from_private_bytes(seed_of("identity", name))


def names_of(n: int) -> list[str]:
    """p00, p01, ..."""
    return [f"p{index:02d}" for index in range(n)]


def parameters_of(n: int, **changes: object) -> SumParameters:
    """Parameters of n parties p00, p01, ... with the defaults of docs/secagg.md, "Manifest".

    ``merkle``: (k, T) of a Merkle graph, which so few parties would not have at the stated failure probabilities.
    """
    threshold, dropouts, colluders = defaults(n)
    merkle: Any = changes.pop("merkle", None)
    if "colluders" in changes:
        colluders = int(changes["colluders"])  # type: ignore[call-overload]
        threshold = (n + colluders) // 2 + 1
    roster = tuple(Member(name, enrolled_key(name).public_key().public_bytes_raw()) for name in names_of(n))
    values: dict[str, object] = {
        "manifest_hash": seed_of("manifest"),
        "run": "run",
        "query": "votes/1",
        "attempt": 0,
        "roster": roster,
        "threshold": threshold,
        "tolerated_dropouts": dropouts,
        "colluders": colluders,
        "dimension": 17,
        "modulus_bits": 26,
        "sigma": 0.0,
        "post_quantum": MaskKind.post_quantum,
    }
    parameters = SumParameters(**{**values, **changes})  # type: ignore[arg-type]
    if merkle is not None:
        vars(parameters).update(merkle_above=3, graph=Draw(merkle[0], merkle[1], n - 1, 0))
    return parameters


def vector_of(name: str, dimension: int, bound: int = 1000) -> GridVector:
    """A party's reproducible integer vector."""
    return GridVector(_integers(name, dimension, bound).copy())


@lru_cache(maxsize=256)
def _integers(name: str, dimension: int, bound: int) -> Int64:
    generator = np.random.default_rng(int.from_bytes(seed_of("vector", name)[:8], "little"))
    return generator.integers(-bound, bound + 1, dimension)


def open_party(parameters: SumParameters, name: str, encapsulate: keys.Encapsulate = keys.encapsulate) -> PartyMachine:
    """A machine with reproducible secrets."""
    return PartyMachine.open(parameters, name, enrolled_key(name), entropy_of(name, parameters.attempt), encapsulate)


def open_parties(
    parameters: SumParameters, encapsulate: keys.Encapsulate = keys.encapsulate
) -> dict[str, PartyMachine]:
    """One machine a member."""
    return {member.name: open_party(parameters, member.name, encapsulate) for member in parameters.roster}


def secrets_of(parameters: SumParameters, name: str) -> dict[str, bytes]:
    """The secrets that :func:`open_party` draws."""
    entropy = entropy_of(name, parameters.attempt)
    return {secret: entropy(32) for secret in SECRETS}


def expected_sum(
    parameters: SumParameters,
    survivors: Iterable[str],
    unopened: Iterable[str] = (),
    secrets: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Int64:
    """What the parties must open, to the bit: vectors, noise, and the excess taken back.

    ``secrets`` by party, where they are not those of :func:`open_party`.
    """
    survivors = list(survivors)
    dropped = parameters.size - len(survivors)
    total = np.zeros(parameters.dimension, dtype=np.int64)
    for name in survivors:
        drawn = secrets_of(parameters, name) if secrets is None else secrets[name]
        seeds = NoiseSeeds(drawn["noise_own"], drawn["noise_root"])
        total += add_noise(vector_of(name, parameters.dimension), parameters.noise_plan, seeds).values
        opening = seeds.opening(parameters.noise_plan, dropped)
        if opening is not None and name not in unopened:
            remove_opened(total, parameters.noise_plan, dropped, opening)
    return total


def exact_sum(names: Iterable[str], dimension: int) -> Int64:
    """The plain sum of the parties' vectors."""
    return sum((vector_of(name, dimension).values for name in names), np.zeros(dimension, dtype=np.int64))


def expected_variance(parameters: SumParameters, dropped: int) -> float:
    """sigma^2 (n - r) / (n - r - c): docs/secagg.md, "Noise", for plans that can take noise back."""
    left = parameters.size - dropped
    return float(Fraction(parameters.sigma) ** 2 * left / (left - parameters.colluders))


def answer(machine: PartyMachine, request: bytes, vector: GridVector, question: bytes = QUESTION) -> Reply:
    """A party's reply, its vector provided where it is wanted."""
    result = machine.receive(request)
    return machine.provide(vector, question) if isinstance(result, WantsInput) else result


def stage_of(message: wire.Request) -> Stage:
    """The stage of a request."""
    name = message.WhichOneof("stage")
    assert name is not None
    return _STAGES[name]


def resign(parameters: SumParameters, reply: wire.Reply) -> None:
    """What a lying party does to its reply's signature after it changed the body."""
    name = parameters.name(reply.party)
    reply.signature = keys.sign(
        enrolled_key(name), parameters.sid, int(reply.stage), reply.party, sid.body_hash(reply.body)
    )


def false_body(
    parameters: SumParameters, liar: str, stage: Stage, kind: type[Any], change: Callable[[Any], object]
) -> BendReply:
    """A lying party's reply of one stage: ``change`` alters the message in its body in place, and the liar signs it."""

    def lie(name: str, reply: wire.Reply) -> None:
        if name == liar and reply.stage == stage:
            body = kind.FromString(reply.body)
            change(body)
            reply.body = body.SerializeToString()
            resign(parameters, reply)

    return lie


def drive(
    parameters: SumParameters,
    parties: Mapping[str, PartyMachine],
    drop: Drop = lambda name, stage: False,
    refusals: dict[str, UndersongError] | None = None,
    transcript: list[bytes] | None = None,
    bend_request: BendRequest | None = None,
    bend_reply: BendReply | None = None,
    asked: Mapping[str, bytes] | None = None,
) -> UnmaskedSum:
    """Run the coordinator against the parties in lock-step.

    ``drop(name, stage)`` loses a party's reply for good. ``bend_request`` makes a lying coordinator: it may change the
    parsed request to one party in place. ``bend_reply`` makes a lying party: it may change a parsed reply in place
    (and sign it anew). ``asked``: which question's inputs a party was told, where it is not ``QUESTION``. A party's
    refusal goes to ``refusals``, or is raised where that is None.
    """
    coordinator: Generator[Mapping[str, bytes], Mapping[str, bytes], UnmaskedSum] = private_sum(
        parameters, lambda: QUESTION
    )
    requests = next(coordinator)
    gone: set[str] = set()
    while True:
        replies: dict[str, bytes] = {}
        for name, request in requests.items():
            message = wire.Request.FromString(request)
            if name in gone or drop(name, stage_of(message)):
                gone.add(name)
                continue
            if bend_request is not None:
                bend_request(name, message)
                request = message.SerializeToString(deterministic=True)
            if transcript is not None:
                transcript.append(request)
            try:
                question = (asked or {}).get(name, QUESTION)
                payload = answer(parties[name], request, vector_of(name, parameters.dimension), question).payload
            except UndersongError as error:
                if refusals is None:
                    raise
                refusals.setdefault(name, error)
                continue
            if bend_reply is not None:
                reply = wire.Reply.FromString(payload)
                bend_reply(name, reply)
                payload = reply.SerializeToString(deterministic=True)
            replies[name] = payload
            if transcript is not None:
                transcript.append(payload)
        try:
            requests = coordinator.send(replies)
        except StopIteration as stop:
            opened: UnmaskedSum = stop.value
            return opened
