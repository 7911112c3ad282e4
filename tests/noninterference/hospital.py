"""Two copies of one party that differ in nothing but their records, and the comparison of every byte that leaves them.

The party is the real one: its folder as `data add` leaves it, assembled and journaled as the daemon does. Injected are
the clock, the coins (a stream that both copies read alike) and an embedder without weights. What a copy reads of its
records is watched, because reading them is what takes time: only the step that asks for a masked vector may, and only
once the ledger is charged.
"""

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.doubles.tiny_bert import write_numpy_bert
from undersong_client import keys
from undersong_client.answering import computation
from undersong_client.answering.assemble import Assembled, assemble
from undersong_client.answering.computation import Computed, HospitalComputation, VectorRequest, zeros
from undersong_client.answering.journaled import JournaledParty
from undersong_client.answering.pending import PendingReply
from undersong_client.consent import policy, trust
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.people import Decision
from undersong_client.home import Declared, PartyHome, PartySettings
from undersong_client.records.private import DataSet, PrivateRecords
from undersong_client.storage import datasets, store
from undersong_client.storage.addition import Addition
from undersong_client.storage.attempts import COINS_PURPOSE
from undersong_common.errors import UndersongError
from undersong_common.models.embedding import Embedder
from undersong_common.models.encoders import Encoder
from undersong_common.models.numpy_bert import NumpyBert
from undersong_common.privacy.stream import KeyStream
from undersong_common.text.table import Table
from undersong_protocol import statistics
from undersong_protocol.agreement import manifest as manifests
from undersong_protocol.agreement.enrolment import TOKEN_BYTES, Package
from undersong_protocol.secagg import keys as secagg_keys
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2 as secagg
from undersong_server.authority import Authority

NAME = "hospital"
FIELDS = ("texts", "labels", "units", "unit_hashes", "embeddings", "unit_count")
EMBEDDER = hashlib.sha256(b"a small encoder").hexdigest()
DIMENSION = 48
WINDOW, WINDOWS = 16, 3  # tokens that the encoder reads at once, and windows of a text
MEMORY = Path("/dev/shm")


class Interference(AssertionError):
    """Something that leaves depends on the records."""


class TotalEmbedder(Embedder):
    """A small encoder in numpy that reads most texts in several windows, and cuts the longest."""

    dimension = DIMENSION

    def __init__(self) -> None:
        super().__init__("a small encoder", EMBEDDER, WINDOWS)

    def _load_encoder(self) -> Encoder:
        return _encoder()

    def __reduce__(self) -> "tuple[type[TotalEmbedder], tuple[()]]":
        return TotalEmbedder, ()  # an embedder holds a lock; the process that computes makes its own


@cache
def _encoder() -> Encoder:
    with tempfile.TemporaryDirectory() as folder:
        return NumpyBert(write_numpy_bert(Path(folder), size=DIMENSION, window=WINDOW))


class Coins:
    """The same secrets at the same calls, across restarts: the n-th stream that is opened for a purpose.

    Attributes:
        subsamples: tells apart the coins of subsamples, and nothing else, of copies with the same seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._opened: dict[str, int] = {}
        self.subsamples = ""

    def __call__(self, purpose: str) -> Callable[[int], bytes]:
        number = self._opened[purpose] = self._opened.get(purpose, -1) + 1
        apart = self.subsamples if purpose.endswith(COINS_PURPOSE) else ""
        return KeyStream(hashlib.sha256(f"{self._seed}/{purpose}/{number}{apart}".encode()).digest()).read


encapsulate = functools.lru_cache(maxsize=4096)(secagg_keys.encapsulate)
"""The same ciphertext to the same key: in both copies of a party, and again after a restart."""


class Clock:
    """Seconds since the epoch; moved by who drives."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Read:
    """Reads of records during one answer; ``forbidden`` lists those that came before a vector was allowed."""

    vector_allowed: Callable[[], bool] = lambda: False
    forbidden: list[str] = field(default_factory=list)
    failed: bool = False

    def __call__(self, what: str) -> None:
        if not self.vector_allowed():
            self.forbidden.append(what)


_READING: list[Read] = []


def _note(what: str) -> None:
    if _READING:
        _READING[-1](what)


def _failed(request: VectorRequest) -> Computed:
    """In place of the zeros that a hospital answers with where computing fails: such a bug is found at once."""
    if _READING:
        _READING[-1].failed = True
    return zeros(request)


@contextlib.contextmanager
def quick_words() -> Iterator[None]:
    """A plan's words are stretched on purpose, 0.1 s a plan; any other function of its hash does here."""
    module: Any = manifests
    before = module.plan_words
    module.plan_words = lambda hash_: hashlib.sha256(hash_).hexdigest()
    try:
        yield
    finally:
        module.plan_words = before


@contextlib.contextmanager
def watched_records() -> Iterator[None]:
    """Every read of a party's records is noted, in all copies."""
    load, before = datasets.load, {name: PrivateRecords.__dict__.get(name) for name in FIELDS}

    def loading(home: PartyHome) -> DataSet:
        _note("the sealed data set")
        return load(home)

    def watching(name: str) -> property:
        def read(self: PrivateRecords) -> Any:
            _note(name)
            computed = before[name]
            return self.__dict__[name] if computed is None else computed.__get__(self, PrivateRecords)

        return property(read, lambda self, value: self.__dict__.update({name: value}))

    datasets.load = loading
    module: Any = computation
    module.zeros = _failed
    for name in FIELDS:
        setattr(PrivateRecords, name, watching(name))
    try:
        yield
    finally:
        datasets.load = load
        module.zeros = zeros
        for name, value in before.items():
            if value is None:  # an attribute of each object
                delattr(PrivateRecords, name)
            else:
                setattr(PrivateRecords, name, value)


def template(folder: Path) -> Path:
    """A party's folder with its keys, before any data."""
    home = PartyHome.create(folder, PartySettings(party=NAME))
    keys.create(home)
    for name in keys.SECRETS:
        (home.keys / f"{name}.key").write_text(hashlib.sha256(f"key {name}".encode()).hexdigest() + "\n")
    policy.write(home, policy.HospitalPolicy(statistics=tuple(statistics.names())))
    authority = Authority.create(folder.parent / "authority", "coordinator", ["localhost"], now=Clock.now)
    package = Package(
        coordinator="coordinator",
        addresses=("localhost:7443",),
        server_name="",
        ca_certificate=authority.certificate_pem.decode("ascii"),
        signing_key=authority.signing_public,
        party=NAME,
        token=bytes(TOKEN_BYTES),
        expires_s=4_000_000_000,
    )
    trust.accept(home, package, package.fingerprint)
    return folder


class Copy:
    """One copy: its folder, its records, its answers."""

    def __init__(self, origin: Path, folder: Path, records: Table, allowed: policy.HospitalPolicy, seed: int) -> None:
        self.folder = folder
        shutil.copytree(origin, folder / "home")
        self.home = PartyHome(folder / "home")
        self.clock = Clock()
        self.coins = Coins(seed)
        self.allow(allowed)
        self.notes = folder / "notes.jsonl"
        columns = {
            "text": records.texts,
            **({} if records.labels is None else {"label": records.labels}),
            **({} if records.users is None else {"user": records.users}),
        }
        columns |= records.columns
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        self.notes.write_text("".join(json.dumps(row) + "\n" for row in rows))
        declared = Declared(
            str(self.notes),
            "text",
            "label" if "label" in columns else "",
            "user" if "user" in columns else "",
            {name: name for name in records.columns},
        )
        Addition(self.home, declared, allowed, folder / "marks", self.clock()).run()
        self.restart()

    def restart(self) -> None:
        """Rebuilds the party from its folder, as the daemon does when it starts."""
        store.close(self.home.journal)
        self.assembled: Assembled = assemble(
            self.home,
            checkpoints=self.folder / "marks",
            clock=self.clock,
            embedder=TotalEmbedder(),
            entropy=self.coins,
            encapsulate=encapsulate,
            computation=HospitalComputation(self.home, TotalEmbedder()),
        )
        self._party = JournaledParty(self.home, self.assembled, clock=self.clock)

    def close(self) -> None:
        store.close(self.home.journal)

    def answer(self, message: bytes, reading: Read) -> PendingReply:
        self.clock.now += 1.0
        _READING.append(reading)
        try:
            return self._party.answer(message)
        finally:
            _READING.pop()

    def may_compute(self, run: str, query: str, attempt: int) -> bool:
        """Returns True if that attempt is charged and no vector of it has left."""
        return self.assembled.ledger.attempts(run, query).get(attempt) == "charged"

    # What this party's people do

    def allow(self, wanted: policy.HospitalPolicy) -> None:
        """Another policy from now on, for the coordinator that was joined."""
        trusted = trust.coordinator(self.home).fingerprint
        policy.write(self.home, replace(wanted, coordinators=(trusted,)))

    def decide(self, number: int, decision: Decision, reason: str) -> None:
        """About the request of that number, where that is possible."""
        requests = Proposals(self.home)
        found = requests.all()
        if found:
            with contextlib.suppress(UndersongError):
                requests.decide(found[number % len(found)], decision, at=self.clock(), reason=reason)

    def spoil(self, how: int) -> None:
        """Something becomes of the data file after it was added."""
        if how == 0:
            self.notes.unlink(missing_ok=True)
        elif how == 1:
            self.notes.write_bytes(b"\xff not what was added")
        else:
            self.notes.write_text(json.dumps({"text": "another", "label": "none", "user": "9"}) + "\n")


class Pair:
    """Both copies; every message goes to both and every byte of their answers is compared.

    Attributes:
        pairs: masked bodies, first and second copy.
        differed: how many masked vectors were different, so that a harness that compares nothing is found out.
    """

    def __init__(
        self, origin: Path, folder: Path, first: Table, second: Table, allowed: policy.HospitalPolicy, seed: int
    ) -> None:
        self.copies = [
            Copy(origin, folder / name, records, allowed, seed)
            for name, records in (("first", first), ("second", second))
        ]
        self.identity = keys.identity(self.copies[0].home).public_key().public_bytes_raw()
        self.messages = self.vectors = self.differed = 0
        self._seen: set[bytes] = set()  # masked bodies of both copies
        self._bodies: dict[tuple[int, tuple[bytes, str, int]], bytes] = {}  # by copy and attempt
        self.pairs: list[tuple[bytes, bytes]] = []  # masked bodies, first and second copy

    def close(self) -> None:
        for copy in self.copies:
            copy.close()

    def each(self, act: Callable[[Copy], None]) -> None:
        for copy in self.copies:
            act(copy)

    def ask(self, message: bytes, slot: tuple[str, str, int] | None = None) -> wire.Reply:
        """Sends a message to both copies; the first one's reply. Raises Interference.

        Args:
            slot: run, sum and attempt, where the message is one that may ask for a masked vector.
        """
        self.messages += 1
        answers = []
        for copy in self.copies:
            reading = Read(lambda copy=copy: slot is not None and copy.may_compute(*slot))  # type: ignore[misc]
            answers.append(copy.answer(message, reading))
            if reading.forbidden:
                raise Interference(
                    f"{_kind(message)} read {reading.forbidden[0]} "
                    + ("before the charge or after the vector left" if slot else "although it asks for no vector")
                )
            if reading.failed:
                raise Interference(f"{_kind(message)}: a vector could not be computed and is zeros")
        one, two = answers
        if all(wire.Reply.FromString(each.reply).refusal.kind == wire.Refusal.INTERNAL for each in answers):
            raise AssertionError(f"{_kind(message)} meets an error that the party did not foresee")  # or a test's own
        if one.first_rung_s != two.first_rung_s:
            raise Interference(f"{_kind(message)}: the replies leave on rungs of different ladders")
        vectors = [_masked(answer.reply) for answer in answers]
        for number, body in enumerate(vectors):
            if body is not None and self._bodies.setdefault((number, _attempt(message)), body) != body:
                raise Interference("a second vector leaves for one attempt")
        if slot is not None and vectors[0] is not None and not one.first_rung_s and not self._known(vectors):
            raise Interference("a vector that was computed leaves at no rung")
        seen = [visible(answer.reply) for answer in answers]
        if seen[0] != seen[1]:
            raise Interference(f"{_kind(message)}: {_difference(answers[0].reply, answers[1].reply)}")
        if vectors[0] is not None and vectors[1] is not None and not self._known(vectors):
            self.vectors += 1
            self.differed += vectors[0] != vectors[1]
            self.pairs.append((vectors[0], vectors[1]))
            self._seen.update(body for body in vectors if body is not None)
        return wire.Reply.FromString(one.reply)

    def _known(self, vectors: Sequence[bytes | None]) -> bool:
        return all(body in self._seen for body in vectors)


MakePair = Callable[[Table, Table, policy.HospitalPolicy, int], AbstractContextManager[Pair]]


@contextlib.contextmanager
def pairs() -> Iterator[MakePair]:
    """A maker of pairs, as a context."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place, prefix="undersong-pair-") as name, watched_records(), quick_words():
        origin = template(Path(name) / "origin")

        @contextlib.contextmanager
        def make(first: Table, second: Table, allowed: policy.HospitalPolicy, seed: int) -> Iterator[Pair]:
            folder = Path(tempfile.mkdtemp(dir=name))
            pair = Pair(origin, folder, first, second, allowed, seed)
            try:
                yield pair
            finally:
                pair.close()
                shutil.rmtree(folder)

        yield make


def visible(reply: bytes) -> Any:
    """Everything of a reply but a masked body and the signature over it. Receipts name no vector's hash."""
    parsed = wire.Reply.FromString(reply)
    if parsed.SerializeToString() != reply:
        raise Interference("a reply has bytes that are not its message's")
    inner = secagg.Reply.FromString(parsed.sum_reply.payload)
    if parsed.WhichOneof("body") != "sum_reply" or inner.stage != secagg.MASK:
        return reply
    size = len(inner.body), len(inner.signature), len(reply)
    inner.ClearField("body")
    inner.ClearField("signature")
    return size, inner.SerializeToString()


def _masked(reply: bytes) -> bytes | None:
    """The masked body in a reply, if it holds one."""
    parsed = wire.Reply.FromString(reply)
    if parsed.WhichOneof("body") != "sum_reply":
        return None
    inner = secagg.Reply.FromString(parsed.sum_reply.payload)
    return inner.body if inner.stage == secagg.MASK else None


def _attempt(message: bytes) -> tuple[bytes, str, int]:
    """Returns the manifest hash, the sum and the attempt number of a step."""
    step = wire.Request.FromString(message).sum_step
    return step.manifest_hash, step.sum, step.attempt


def _kind(message: bytes) -> str:
    try:
        return wire.Request.FromString(message).WhichOneof("body") or "an empty request"
    except Exception:  # noqa: BLE001 - whatever the bytes are
        return "garbage"


def _difference(one: bytes, two: bytes) -> str:
    return f"the copies answer differently:\n{wire.Reply.FromString(one)}\n{wire.Reply.FromString(two)}"
