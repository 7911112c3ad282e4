"""Parties, parameters and a lock-step driver for the secure-aggregation machines, over nothing but function calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.errors import UndersongError
from common.privacy.stream import KeyStream
from protocol.secagg.coordinator import Opened, private_sum
from protocol.secagg.parameters import Entropy, Member, SumParameters, defaults
from protocol.secagg.party import PartyMachine, Reply, WantsInput
from protocol.vectors import GridVector, Int64

Drop = Callable[[str, int], bool]


def seed_of(*parts: object) -> bytes:
    """A reproducible 32-byte seed."""
    return hashlib.sha256(repr(parts).encode()).digest()


def entropy_of(*parts: object) -> Entropy:
    """A reproducible entropy source."""
    return KeyStream(seed_of("entropy", *parts)).read


def identity_of(name: str) -> Ed25519PrivateKey:
    """A party's enrolled key."""
    return Ed25519PrivateKey.from_private_bytes(seed_of("identity", name))


def parameters_of(n: int, **changes: object) -> SumParameters:
    """Parameters of n parties p00, p01, ... with the defaults of SECAGG.md."""
    threshold, dropouts, colluders = defaults(n)
    if "colluders" in changes or "tolerated_dropouts" in changes:
        colluders = int(changes.get("colluders", colluders))  # type: ignore[call-overload]
        threshold = (n + colluders) // 2 + 1
    roster = tuple(Member(name, identity_of(name).public_key().public_bytes_raw()) for name in names_of(n))
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
    }
    return SumParameters(**{**values, **changes})  # type: ignore[arg-type]


def names_of(n: int) -> list[str]:
    """p00, p01, ..."""
    return [f"p{index:02d}" for index in range(n)]


def vector_of(name: str, dimension: int, bound: int = 1000) -> GridVector:
    """A party's reproducible integer vector."""
    generator = np.random.default_rng(int.from_bytes(seed_of("vector", name)[:8], "little"))
    return GridVector(generator.integers(-bound, bound + 1, dimension))


def open_parties(parameters: SumParameters) -> dict[str, PartyMachine]:
    """One machine a member, with reproducible secrets."""
    return {
        member.name: PartyMachine.open(
            parameters, member.name, identity_of(member.name), entropy_of(member.name, parameters.attempt)
        )
        for member in parameters.roster
    }


def answer(machine: PartyMachine, request: bytes, vector: GridVector) -> Reply:
    """A party's reply, its vector provided where it is wanted."""
    result = machine.receive(request)
    return machine.provide(vector) if isinstance(result, WantsInput) else result


def drive(
    parameters: SumParameters,
    parties: Mapping[str, PartyMachine],
    drop: Drop = lambda name, stage: False,
    refusals: dict[str, UndersongError] | None = None,
    transcript: list[bytes] | None = None,
) -> Opened:
    """Run the coordinator against the parties in lock-step; ``drop(name, round)`` loses a party's reply for good."""
    coordinator: Generator[Mapping[str, bytes], Mapping[str, bytes], Opened] = private_sum(parameters)
    requests = next(coordinator)
    gone: set[str] = set()
    for stage in range(100):
        replies: dict[str, bytes] = {}
        for name, request in requests.items():
            if transcript is not None:
                transcript.append(request)
            if name in gone or drop(name, stage):
                gone.add(name)
                continue
            try:
                reply = answer(parties[name], request, vector_of(name, parameters.dimension))
            except UndersongError as error:
                if refusals is None:
                    raise
                refusals[name] = error
                continue
            replies[name] = reply.payload
            if transcript is not None:
                transcript.append(reply.payload)
        try:
            requests = coordinator.send(replies)
        except StopIteration as stop:
            opened: Opened = stop.value
            return opened
    raise AssertionError("the coordinator does not end")


def exact_sum(names: Iterable[str], dimension: int) -> Int64:
    """The plain sum of the parties' vectors."""
    return sum((vector_of(name, dimension).values for name in names), np.zeros(dimension, dtype=np.int64))
