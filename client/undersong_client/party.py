"""One party: requests in, replies out. The same object answers in a simulation, behind gRPC and behind Flower.

Order of a release: the state machine has verified everything, the ledger is charged, the masked vector and the state
behind it are on disk, and only then does the reply leave. A repeated request gets the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from undersong_client import cautions, guard
from undersong_client.grid_vectors import Contribution, check_public_inputs, grid_vector
from undersong_client.records import DataSet, PrivateRecords
from undersong_client.store import Store
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.embedding import Embed
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_common.printable import printable
from undersong_common.privacy.ledger import Charge, Ledger
from undersong_common.table import Table
from undersong_common.version import SOFTWARE
from undersong_protocol import codec, receipt, statistics
from undersong_protocol.manifest import Manifest
from undersong_protocol.messages import federation_pb2 as wire
from undersong_protocol.public import (
    BlockStore,
    Input,
    add_blocks,
    missing_blocks,
    question,
    read_inputs,
    resolve,
)
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.parameters import Entropy, SumParameters
from undersong_protocol.secagg.party import PartyMachine, Reply, WantsInput
from undersong_protocol.statistics import PublicFacts, PublicInputs
from undersong_protocol.vectors import GridVector

COINS_BYTES = 32
KEPT_REFUSALS = 10

log = logging.getLogger(__name__)


class Consent(Protocol):
    """What the people of a party have decided about a run, beyond what its policy allows by itself."""

    def decide(self, manifest: Manifest) -> str:
        """Empty where the run may be signed, else why it may not yet. Raises PrivacyRefusal where it was refused."""
        ...

    def check(self, manifest: Manifest) -> None:
        """Raises PrivacyRefusal where the consent to a signed run was withdrawn."""
        ...

    def refused(self, manifest: Manifest, reason: str) -> None:
        """Tells the people that the guard refuses a run that was proposed, and why."""
        ...


class StandingConsent:
    """Consent to every run that the policy allows."""

    def decide(self, manifest: Manifest) -> str:
        return ""

    def check(self, manifest: Manifest) -> None:
        return None

    def refused(self, manifest: Manifest, reason: str) -> None:
        return None


@dataclass(frozen=True)
class Answer:
    """One request's reply.

    Attributes:
        first_rung_s: where records were read for it: the first rung of the ladder at whose next rung it may leave
            (undersong_protocol.ladder); 0 where none were, and it may leave at once.
    """

    reply: bytes = field(repr=False)
    first_rung_s: float = 0.0


@dataclass
class _Attempt:
    """One attempt at one private sum, as the store keeps it."""

    parameters: SumParameters
    machine: PartyMachine
    inputs: tuple[Input, ...] | None  # None until the coordinator has named them
    coins: bytes = field(repr=False)  # secret seed of the Poisson subsample; erased with the machine's secrets

    @property
    def question(self) -> bytes:
        """q of the inputs that were named."""
        assert self.inputs is not None
        return question(self.inputs)


class Party:
    """Answers the coordinator for one data set.

    Args:
        name: as in the roster.
        identity: this party's signing key.
        data: its records.
        policy: what it allows.
        ledger: its own ledger of this data set.
        store: its encrypted journal.
        blocks: where public blocks are kept.
        embed: texts to quantised embeddings; ``embedder`` is that model's SHA-256 (hex), or finds it when it is asked
            for: reading the weights takes longer than most replies.
        teacher_model: the local model it fine-tunes teachers from, as its settings name it at the time ("": none).
        entropy: a source of random bytes for a named purpose; the operating system's, but in tests.
        clock: seconds since the epoch, for the ledger.
        consent: what people decide about a run that the policy allows.
        contribution: computes the exact vector of a sum.
    """

    def __init__(
        self,
        name: str,
        *,
        identity: Ed25519PrivateKey,
        data: DataSet,
        policy: guard.Policy,
        ledger: Ledger,
        store: Store,
        blocks: BlockStore,
        embed: Embed,
        embedder: str | Callable[[], str],
        entropy: Callable[[str], Entropy],
        clock: Callable[[], float],
        consent: Consent | None = None,
        teacher_model: Callable[[], str] = lambda: "",
        contribution: Contribution = grid_vector,
    ) -> None:
        self.name = name
        self._identity = identity
        self._data = data
        self._policy = policy
        self._ledger = ledger
        self._store = store
        self._blocks = blocks
        self._embed = embed
        self._known_embedder = embedder
        self._entropy = entropy
        self._clock = clock
        self._consent = consent or StandingConsent()
        self._teacher_model = teacher_model
        self._contribution = contribution
        self._lock = threading.Lock()
        self._manifests: dict[bytes, Manifest] = {}
        self._records: tuple[bytes, PrivateRecords] | None = None
        self._attempts: dict[str, _Attempt] = {}
        self._first_rung_s = 0.0  # of the answer under way
        self._checked: tuple[tuple[bytes, str, tuple[Input, ...]], PublicInputs] | None = None
        self._memory: dict[str, Any] = {}  # what statistics keep between sums
        self.cautions: dict[str, tuple[str, ...]] = {}  # what the records speak against, by run; for its own people
        self.refusals: dict[str, float] = {}  # the last words with which it refused, and when; for its own people

    @property
    def public_identity(self) -> bytes:
        return self._identity.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def embedder(self) -> bytes:
        """SHA-256 of the embedding model, 32 bytes."""
        return bytes.fromhex(self._embedder)

    @property
    def _embedder(self) -> str:
        if not isinstance(self._known_embedder, str):
            self._known_embedder = self._known_embedder()
        return self._known_embedder

    @property
    def table(self) -> Table:
        """The party's own records, for who embeds them."""
        return self._data.table

    def allow(self, policy: guard.Policy) -> None:
        """Another policy from now on; what was signed before stands (its consent may be revoked)."""
        with self._lock:
            self._policy = policy

    def handle(self, data: bytes) -> bytes:
        """:meth:`answer` where nobody watches the clock: all parties of a simulation are in one process."""
        return self.answer(data).reply

    def answer(self, data: bytes) -> Answer:
        """One request's reply. Never raises for what a peer sent: a refusal is a reply that says why."""
        with self._lock:
            self._first_rung_s = 0.0
            try:
                reply = self._answer(codec.decode_request(data))
            except UndersongError as error:
                problem = printable(error.problem)  # it may name what the request named
                log.warning("%s refused a request: %s", self.name, problem)
                self.refusals.pop(problem, None)
                self.refusals[problem] = self._clock()
                while len(self.refusals) > KEPT_REFUSALS:
                    del self.refusals[next(iter(self.refusals))]
                reply = codec.refusal(error)
            except Exception as error:  # noqa: BLE001 - the message of an unforeseen error may hold private data
                log.error("%s: internal error %s at %s", self.name, type(error).__name__, _place(error))
                reply = codec.refusal(UndersongError("internal"))
            return Answer(reply.SerializeToString(), self._first_rung_s)

    def _answer(self, request: wire.Request) -> wire.Reply:
        match request.WhichOneof("body"):
            case "introduce":
                return self._reply(introduction=self._introduction())
            case "propose":
                return self._propose(request.propose)
            case "agree":
                return self._agree(request.agree)
            case "open_sum":
                return self._open_sum(request.open_sum)
            case "prepare_sum":
                return self._prepare_sum(request.prepare_sum)
            case "sum_step":
                return self._sum_step(request.sum_step)
            case "void_sum":
                return self._void_sum(request.void_sum)
            case _:
                return self._close_run(request.close_run)

    def _reply(self, **body: Any) -> wire.Reply:
        return wire.Reply(version=codec.VERSION, **body)

    def _introduction(self) -> wire.Introduction:
        return wire.Introduction(
            name=self.name,
            identity=self.public_identity,
            software=SOFTWARE,
            embedder=self.embedder,
            statistics=statistics.names(),
        )

    # The manifest

    def _propose(self, message: wire.ProposeManifest) -> wire.Reply:
        manifest = Manifest.from_bytes(message.manifest)
        try:
            self._review(manifest)
        except UndersongError as error:
            self._consent.refused(manifest, error.problem)
            raise
        if reason := self._consent.decide(manifest):
            return self._reply(pending=wire.Pending(reason=reason))
        self._store.put_all({f"run/{manifest.run}": manifest.hash, f"proposed/{manifest.hash.hex()}": message.manifest})
        return self._reply(signature=wire.ManifestSignature(signature=manifest.sign(self._identity)))

    def _agree(self, message: wire.AgreeManifest) -> wire.Reply:
        manifest = Manifest.from_bytes(message.manifest)
        if self._store.get(f"run/{manifest.run}") != manifest.hash:
            raise PrivacyRefusal("this party has not signed that manifest", "propose it first")
        manifest.check_signatures(dict(message.signatures))
        self._store.put(f"agreed/{manifest.hash.hex()}", message.manifest)
        return self._reply(agreed=wire.ManifestAgreed())

    def _review(self, manifest: Manifest) -> None:
        guard.review(
            manifest,
            self._policy,
            name=self.name,
            identity=self.public_identity,
            embedder=self._embedder,
            teacher_model=self._teacher_model(),
        )
        self._ledger.check_room(Charge(manifest.run, manifest.hash.hex(), "", 0, tuple(manifest.plan.charged_events())))
        known = self._store.get(f"run/{manifest.run}")
        if known is not None and known != manifest.hash:
            # The same run over another roster could isolate one party's contribution by subtraction.
            raise PrivacyRefusal(
                f"run {manifest.run!r} has another manifest already", "start a new run under a new name"
            )

    def _manifest(self, hash_: bytes) -> Manifest:
        if hash_ not in self._manifests:
            data = self._store.get(f"agreed/{hash_.hex()}")
            if data is None:
                raise PrivacyRefusal("that manifest was not agreed on", "agree on the manifest before asking for a sum")
            self._manifests[hash_] = Manifest.from_bytes(data)
        return self._manifests[hash_]

    def _private_records(self, manifest: Manifest) -> PrivateRecords:
        privacy = manifest.plan.privacy
        labels = manifest.labels
        key = canonical_json([list(labels), manifest.plan.to_json()["privacy"]])
        if self._records is None or self._records[0] != key:
            records = PrivateRecords(
                self._data.table,
                labels,
                privacy,
                key=self._data.key,
                embed=self._embed,
                local_model=self._teacher_model,
            )
            self._records = (key, records)
            self._memory.clear()
            found = cautions.of_run(privacy, records, has_users=self._data.table.users is not None)
            for caution in found:  # nobody waits for a person any more: what is asked for is answered
                log.warning("%s, run %r: %s", self.name, manifest.run, caution)
            self.cautions[manifest.run] = tuple(found)
        return self._records[1]

    # A private sum

    def _open_sum(self, message: wire.OpenSum) -> wire.Reply:
        manifest = self._manifest(message.manifest_hash)
        self._consent.check(manifest)
        inputs = read_inputs(message.inputs)
        add_blocks(message.blocks, inputs, self._blocks)
        if missing := missing_blocks(inputs, self._blocks):
            return self._reply(missing=wire.MissingBlocks(blocks=missing))
        self._public(manifest, message.sum, inputs)
        asked = question(inputs)
        self._check_question(manifest, message.sum, asked)
        self._accept_voids(manifest, message)
        key, attempt = self._begun(manifest, message.sum, message.attempt)
        reply = self._received(attempt, message.payload)
        serialised = wire.OpenSum(inputs=message.inputs).SerializeToString()
        self._store.put_all(
            {
                f"{key}/inputs": serialised,
                _question_key(manifest, message.sum): asked,
                **self._opening(key, manifest, message.sum, message.attempt, attempt),
            }
        )
        attempt.inputs = inputs
        self._attempts[key] = attempt
        return self._reply(sum_reply=wire.SumReply(payload=reply.payload))

    def _check_question(self, manifest: Manifest, name: str, asked: bytes) -> None:
        """Every attempt at a sum asks what its first one asked: other inputs would be another, unplanned release."""
        fixed = self._store.get(_question_key(manifest, name))
        if fixed is not None and fixed != asked:
            raise PrivacyRefusal(
                f"{name}: its public inputs are not those with which it was first asked",
                "a sum asks one question, in repeated and spare attempts too; plan another sum for another question",
            )

    def _prepare_sum(self, message: wire.PrepareSum) -> wire.Reply:
        """Keys before the question: nothing in an advert or a share depends on the public inputs."""
        manifest = self._manifest(message.manifest_hash)
        self._consent.check(manifest)
        key, attempt = self._begun(manifest, message.sum, message.attempt)
        reply = self._received(attempt, message.payload)
        self._store.put_all(self._opening(key, manifest, message.sum, message.attempt, attempt))
        self._attempts[key] = attempt
        return self._reply(sum_reply=wire.SumReply(payload=reply.payload))

    def _begun(self, manifest: Manifest, name: str, number: int) -> tuple[str, _Attempt]:
        """The attempt's key and the attempt, a new one where the plan allows it."""
        key = _attempt_key(manifest, name, number)
        attempt = self._attempt(manifest, name, number)
        if attempt is None:
            self._check_attempt(manifest, name, number)
            entropy = self._entropy(key)
            parameters = manifest.sum_parameters(name, number)
            machine = PartyMachine.open(parameters, self.name, self._identity, entropy)
            attempt = _Attempt(parameters, machine, None, entropy(COINS_BYTES))
        return key, attempt

    def _opening(self, key: str, manifest: Manifest, name: str, number: int, attempt: _Attempt) -> dict[str, bytes]:
        """What the store keeps of an attempt that was begun."""
        return {
            f"{key}/coins": attempt.coins,
            f"{key}/machine": attempt.machine.snapshot(),
            f"attempts/{manifest.hash.hex()}/{name}": str(number).encode(),
        }

    def _sum_step(self, message: wire.SumStep) -> wire.Reply:
        manifest = self._manifest(message.manifest_hash)
        self._consent.check(manifest)
        key = _attempt_key(manifest, message.sum, message.attempt)
        attempt = self._attempt(manifest, message.sum, message.attempt)
        if attempt is None:
            raise PrivacyRefusal(f"{message.sum}: attempt {message.attempt} was never opened at this party")
        try:
            step = attempt.machine.receive(message.payload)
            if isinstance(step, WantsInput):
                if attempt.inputs is None:
                    raise PrivacyRefusal(
                        f"{message.sum}: a vector is asked for before its public inputs", "open the sum first"
                    )
                if missing := missing_blocks(attempt.inputs, self._blocks):
                    return self._reply(missing=wire.MissingBlocks(blocks=missing))
                grid = self._grid(manifest, message.sum, attempt.inputs, attempt.coins)
                step = attempt.machine.provide(grid, attempt.question)
        except UndersongError:
            # A refusal may have tombstoned the attempt: that too must survive a crash.
            self._keep(key, attempt)
            raise
        if step.vector:
            asked = attempt.question
            self._ledger.charge(self._charge(manifest, message.sum, message.attempt, asked), at=self._clock())
        self._keep(key, attempt)
        return self._reply(sum_reply=wire.SumReply(payload=step.payload))

    def _grid(self, manifest: Manifest, name: str, inputs: tuple[Input, ...], coins: bytes) -> GridVector:
        """This party's vector: the one place where records are read for a reply, and so the one that takes a rung."""
        planned, public = manifest.plan[name], self._public(manifest, name, inputs)
        self._first_rung_s = planned.first_rung_s
        return self._contribution(
            planned,
            self._private_records(manifest),
            public,
            manifest.plan.privacy,
            coins=coins,
            memory=self._memory,
        )

    def _public(self, manifest: Manifest, name: str, inputs: tuple[Input, ...]) -> PublicInputs:
        """The sum's public inputs, checked by what is public alone. Raises ConfigurationError and PeerFault."""
        asked = (manifest.hash, name, inputs)
        if self._checked is None or self._checked[0] != asked:
            public = resolve(inputs, self._blocks)
            facts = PublicFacts(self._embed(()).shape[1], len(manifest.task.get("labels", ())))
            check_public_inputs(manifest.plan[name], public, facts)
            self._checked = (asked, public)
        return self._checked[1]

    def _attempt(self, manifest: Manifest, name: str, number: int) -> _Attempt | None:
        """The attempt as it stands, from memory or from the store; None where it was never opened."""
        key = _attempt_key(manifest, name, number)
        if key not in self._attempts:
            snapshot = self._store.get(f"{key}/machine")
            if snapshot is None:
                return None
            named = self._store.get(f"{key}/inputs")
            inputs = None if named is None else wire.OpenSum.FromString(named).inputs
            parameters = manifest.sum_parameters(name, number)
            self._attempts[key] = _Attempt(
                parameters,
                PartyMachine.restore(parameters, self.name, self._identity, snapshot),
                None if inputs is None else tuple(Input.from_wire(given) for given in inputs),
                self._store.get(f"{key}/coins") or b"",
            )
        return self._attempts[key]

    def _check_attempt(self, manifest: Manifest, name: str, number: int) -> None:
        """A slot of the plan is used once; more attempts need void certificates or spare attempts of the plan."""
        last = self._last_attempt(manifest, name)
        if number != last + 1:
            raise PrivacyRefusal(
                f"{name}: attempt {number} is asked for after attempt {last}", "number attempts from 0, one by one"
            )
        if number == 0:
            return
        previous = self._attempt(manifest, name, last)
        if previous is not None and not previous.machine.tombstone:
            # Two live attempts would be two vectors of the same records under a single charge.
            previous.machine.void_statement("a new attempt was begun") if not previous.machine.released else None
            self._keep(_attempt_key(manifest, name, last), previous)
        if self._ledger.is_void(self._charge(manifest, name, last)):
            return
        used = int(self._store.get(f"spares/{manifest.hash.hex()}") or b"0")
        if used >= manifest.plan.quorum.spare_attempts:
            raise PrivacyRefusal(
                f"{name}: attempt {number} needs a spare attempt, and the plan's {used} are used",
                "stop the run, or plan one with federation.spare_attempts",
            )
        self._store.put(f"spares/{manifest.hash.hex()}", str(used + 1).encode())

    def _accept_voids(self, manifest: Manifest, message: wire.OpenSum) -> None:
        for certificate in message.voids:
            parameters = manifest.sum_parameters(message.sum, certificate.attempt)
            statements = dict(certificate.statements)
            secagg.check_void_certificate(parameters, statements)
            self._ledger.void(
                self._charge(manifest, message.sum, certificate.attempt), _digest(statements), at=self._clock()
            )

    def _void_sum(self, message: wire.VoidSum) -> wire.Reply:
        manifest = self._manifest(message.manifest_hash)
        attempt = self._attempt(manifest, message.sum, message.attempt)
        if attempt is None:
            raise PrivacyRefusal(f"{message.sum}: attempt {message.attempt} was never opened at this party")
        statement = attempt.machine.void_statement()
        self._keep(_attempt_key(manifest, message.sum, message.attempt), attempt)
        return self._reply(void_statement=wire.VoidStatement(statement=statement.payload))

    def _last_attempt(self, manifest: Manifest, name: str) -> int:
        return int(self._store.get(f"attempts/{manifest.hash.hex()}/{name}") or b"-1")

    def _received(self, attempt: _Attempt, payload: bytes) -> Reply:
        step = attempt.machine.receive(payload)
        if isinstance(step, WantsInput):
            raise PrivacyRefusal("a private sum was opened with another stage's request")
        return step

    def _keep(self, key: str, attempt: _Attempt) -> None:
        self._store.put(f"{key}/machine", attempt.machine.snapshot())

    # The ledger

    def _charge(self, manifest: Manifest, name: str, attempt: int, asked: bytes = b"") -> Charge:
        event = manifest.plan[name].event()
        return Charge(manifest.run, manifest.hash.hex(), name, attempt, (event,), asked.hex())

    def _close_run(self, message: wire.CloseRun) -> wire.Reply:
        manifest = self._manifest(message.manifest_hash)
        body = canonical_json(
            {
                "party": self.name,
                "run": manifest.run,
                "manifest": manifest.hash.hex(),
                "entries": [entry for entry in self._ledger.entries() if entry.get("run") == manifest.run],
                "ledger_head": self._ledger.head,
            }
        )
        signature = self._identity.sign(tagged_hash(receipt.TAG, body))
        return self._reply(receipt=wire.Receipt(body=body, signature=signature))


def _attempt_key(manifest: Manifest, name: str, number: int) -> str:
    return f"attempt/{manifest.hash.hex()}/{name}/{number}"


def _question_key(manifest: Manifest, name: str) -> str:
    return f"question/{manifest.hash.hex()}/{name}"


def _digest(statements: Mapping[str, bytes]) -> str:
    return hashlib.sha256(canonical_json({name: value.hex() for name, value in statements.items()})).hexdigest()


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno}" for frame in reversed(frames[-4:]))
