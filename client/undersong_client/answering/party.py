"""A party, which answers a coordinator's requests: in a simulation, behind gRPC and behind Flower.

Before a masked vector leaves, the state machine verifies everything, the ledger is charged, and the vector and the new
state are written to disk, in this order. A repeated request gets the same bytes.
"""

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from undersong_client.answering import checks
from undersong_client.answering.computation import Computation, VectorRequest
from undersong_client.answering.pending import Deferral, DeferredVector, DroppedRequest, PendingReply, UnheardStream
from undersong_client.consent.approvals import Consent
from undersong_client.consent.policy import review
from undersong_client.storage.attempts import Attempt, Attempts, PartyKeys, agreed_key
from undersong_client.storage.store import Store
from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PrivacyRefusal, UndersongError
from undersong_common.printable import printable
from undersong_common.privacy.accounting import Event
from undersong_common.privacy.ledger import VOIDED_VECTORS, Ledger
from undersong_common.privacy.spending import Charge, PlanPrice, compressed
from undersong_common.program.logs import place_of
from undersong_common.program.machine import is_passing_fault
from undersong_common.version import SOFTWARE
from undersong_protocol import statistics
from undersong_protocol.agreement import receipt
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.secagg.party import Reply, WantsInput
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import (
    BlockStore,
    Input,
    add_blocks,
    missing_blocks,
    named_blocks,
    question,
    read_inputs,
    resolve,
)

MOST_REFUSALS = 10  # largest number of refusals whose reasons are kept for this party's people
EPOCH_SILENCE_S = 86400.0  # An epoch that was not heard for so long is forgotten.
EPOCH_NOTED_S = 3600.0  # The journal says to this last when an epoch was heard, instead of a write for each request.

log = logging.getLogger(__name__)


class EmbedderFacts(Protocol):
    """Interface of the facts of an embedding model that a party needs while it embeds no text."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...


@dataclass(frozen=True)
class PartyStorage:
    """Durable state of a party: its ledger of the data set, its encrypted journal, and the public blocks."""

    ledger: Ledger
    store: Store
    blocks: BlockStore


@dataclass(frozen=True)
class PartyRules:
    """Rules that a party compares a run with before it signs.

    Attributes:
        policy: bounds on the runs that this party accepts.
        embedder: facts of the embedding model, which may be computed at first use, because reading the weights takes
            longer than most replies.
        consent: decisions of people about a run that the policy allows.
        teacher_model: returns the local model for fine-tuning that the settings name now; "" for no model.
        address: address of this party that its introduction signs (``codec.flower_address``); "" over gRPC.
    """

    policy: Policy
    embedder: EmbedderFacts
    consent: Consent = field(default_factory=Consent)
    teacher_model: Callable[[], str] = lambda: ""
    address: str = ""


class Notes:
    """Notes on a party's replies that only its own people read.

    Attributes:
        cautions: warnings about the records, by run.
        refusals: times of the last refusals, in seconds since the epoch, by the reason.
    """

    def __init__(self) -> None:
        self.cautions: dict[str, tuple[str, ...]] = {}
        self.refusals: dict[str, float] = {}

    def note_refusal(self, problem: str, at_s: float) -> None:
        self.refusals.pop(problem, None)
        self.refusals[problem] = at_s
        while len(self.refusals) > MOST_REFUSALS:
            del self.refusals[next(iter(self.refusals))]


class Epochs:
    """The highest epoch (``answering.checks``) that was heard of each coordinator, and when, in the party's journal.

    Only the process that took over keeps an epoch in force, by its requests. One that nobody has used for a day is
    forgotten: a single forged request would shut out the coordinator until its next lease. Nothing private rests on an
    epoch. What a forgotten one lets in again is asked, charged and answered as any coordinator's request.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._coordinator = ""
        self._highest: int | None = None  # None until it is read from the journal
        self._heard_s = self._noted_s = 0.0  # time at which the epoch was last heard, and the time that the journal has

    def forget(self, coordinator: str | None = None) -> None:
        """Reads the journal again at the next request, of another coordinator (fingerprint) if one is named."""
        self._coordinator = self._coordinator if coordinator is None else coordinator
        self._highest = None

    def check(self, epoch: int, now_s: float) -> None:
        """Journals the highest epoch of the coordinator with what this request writes; refuses a lower one.

        Of two processes that serve the coordinator, the one that was replaced is thus answered nothing any more.
        """
        checks.check_epoch_clock(epoch, now_s)
        if self._highest is None:
            self._read_journal(now_s)
        highest_epoch = self._highest or 0
        # A time ahead of now is a wrong clock's: the epoch counts as heard now.
        self._heard_s = min(self._heard_s, now_s)
        if highest_epoch > int(now_s) + checks.EPOCH_AHEAD_S:
            log.warning("the remembered epoch %d lies more than a day ahead of now and is forgotten", highest_epoch)
            highest_epoch = 0
        elif epoch < highest_epoch and now_s - self._heard_s >= EPOCH_SILENCE_S:
            log.warning("the remembered epoch %d was not heard for a day and is forgotten", highest_epoch)
            highest_epoch = 0
        self._highest = max(epoch, highest_epoch)
        if epoch >= highest_epoch:
            self._heard_s = now_s
        is_noted = not self._highest or 0 <= self._heard_s - self._noted_s < EPOCH_NOTED_S
        if epoch > highest_epoch or not is_noted:
            self._store.put(f"epoch/{self._coordinator}", f"{self._highest} {int(self._heard_s)}".encode())
            self._noted_s = self._heard_s
        checks.check_epoch_order(epoch, highest_epoch)

    def _read_journal(self, now_s: float) -> None:
        """Reads the epoch and its time; a journal of an earlier version has no time, and the epoch counts as of now."""
        epoch, _, heard_s = (self._store.get(f"epoch/{self._coordinator}") or b"0").partition(b" ")
        self._highest = int(epoch)
        self._noted_s = float(heard_s or "inf")
        self._heard_s = min(self._noted_s, now_s)


class ResolvedQuestion:
    """A cache of the last request's public inputs, resolved and checked; it reads no record."""

    def __init__(self, blocks: BlockStore, embedder: EmbedderFacts) -> None:
        self._blocks = blocks
        self._embedder = embedder
        self._resolved_inputs: tuple[tuple[Input, ...], statistics.PublicInputs] | None = None
        self._checked_for: tuple[bytes, str] | None = None  # manifest and sum for which these inputs were checked

    def resolve(self, manifest: Manifest, sum_name: str, inputs: tuple[Input, ...]) -> statistics.PublicInputs:
        """Returns the sum's public inputs.

        Raises PeerFault if a named block is missing or malformed, ConfigurationError if the inputs do not fit the
        sum's statistic.
        """
        if self._resolved_inputs is None or self._resolved_inputs[0] != inputs:
            self._checked_for = None
            self._resolved_inputs = (inputs, resolve(inputs, self._blocks))
        public_inputs = self._resolved_inputs[1]
        if self._checked_for != (manifest.hash, sum_name):
            public_facts = statistics.PublicFacts(self._embedder.dimension, len(manifest.task.get("labels", ())))
            manifest.plan[sum_name].build().check_inputs(public_inputs, public_facts)
            self._checked_for = (manifest.hash, sum_name)
        return public_inputs


class Party:
    """Answers the coordinator's requests for one data set.

    Args:
        name: name of this party in rosters.
        keys: this party's signing key, and the randomness of its attempts.
        storage: ledger, journal and public blocks.
        rules: what a run is compared with.
        computation: computes vectors from this party's records.
        clock: returns seconds since the epoch, for the ledger.
        notes: takes what only this party's own people read.
    """

    def __init__(
        self,
        name: str,
        keys: PartyKeys,
        storage: PartyStorage,
        rules: PartyRules,
        computation: Computation,
        clock: Callable[[], float],
        notes: Notes | None = None,
    ) -> None:
        self.name = name
        self._identity = keys.identity
        self._ledger = storage.ledger
        self._store = storage.store
        self._blocks = storage.blocks
        self._rules = rules
        self.computation = computation
        self._clock = clock
        self._notes = notes or Notes()
        self._lock = threading.Lock()
        self._epochs = Epochs(storage.store)
        self._resolved_question = ResolvedQuestion(storage.blocks, rules.embedder)
        self._manifests: dict[bytes, Manifest] = {}
        self._attempts = Attempts(storage.store, name, keys, clock)
        # Privacy events of a vector by manifest and sum: as planned, and if all other parties collude.
        self._vector_events: dict[tuple[bytes, str], tuple[Event, Event]] = {}
        # The number of times that the coordinator has suspended or ended a run, by the manifest's hash.
        self._suspensions: Counter[bytes] = Counter()

    @property
    def public_identity(self) -> bytes:
        return self._identity.public_key().public_bytes_raw()

    @property
    def embedder(self) -> bytes:
        """SHA-256 of the embedding model, 32 bytes."""
        return bytes.fromhex(self._rules.embedder.fingerprint)

    def allow(self, policy: Policy, coordinator: str = "") -> None:
        """Replaces the policy for new runs. Manifests that were signed before stay in force until revoked.

        Args:
            coordinator: fingerprint of the coordinator whose requests are answered from now on.
        """
        with self._lock:
            self._rules = replace(self._rules, policy=policy)
            self._epochs.forget(coordinator)

    def forget(self) -> None:
        """Forgets attempts in memory, so that they are read from the journal again; for use after a failed write."""
        with self._lock:
            self._attempts.forget()
            self._epochs.forget()

    def end_abandoned(self, stop_reason: str = "") -> None:
        """Destroys the secrets of attempts that will not go on.

        These are attempts of runs whose consent was withdrawn, and attempts that were begun long ago (``attempts``).

        Args:
            stop_reason: reason why no run at all goes on here; "" if runs go on.

        Raises ConfigurationError if the journal cannot be read or written.
        """

        def over(manifest: Manifest) -> str:
            try:
                self._rules.consent.check(manifest)
            except PrivacyRefusal as refusal:
                return refusal.problem
            return stop_reason or ("the run has ended here" if self._ledger.is_closed(manifest.run) else "")

        with self._lock:
            self._attempts.end_abandoned(self._find_manifest, over)

    def handle(self, data: bytes) -> bytes:
        """Returns the reply of :meth:`answer` at once, for simulations, where the time reveals nothing."""
        return self.answer(data).reply

    def answer(
        self,
        data: bytes,
        start_s: float | None = None,
        *,
        is_asked: Callable[[], bool] = lambda: True,
        deferral: Deferral | None = None,
    ) -> PendingReply:
        """Answers one request. It never raises for what a peer sent: a refusal is a reply with the reason.

        Args:
            start_s: time at which the request was taken up (monotonic seconds), from which rungs count; None takes now.
            is_asked: returns True while somebody asks for the reply.
            deferral: takes the vector that the reply needs, so that it is computed between two calls; None computes it
                here.

        Raises:
            DroppedRequest: nobody asks for the reply any more.
            UnheardStream: raised by ``is_asked``; nothing is charged.
            DeferredVector: the reply needs the vector that ``deferral`` names now.
            MachineFault, OSError, sqlite3.Error: a fault of this machine, which is no refusal.
            ConfigurationError, PrivacyRefusal: a file of this party is missing or damaged, which is no refusal either.
        """
        with self._lock:
            pending_reply = PendingReply(
                start_s=time.monotonic() if start_s is None else start_s, is_asked=is_asked, deferral=deferral
            )
            try:
                pending_reply.request = codec.decode_request(data)
                reply = self._dispatch_request(pending_reply.request, pending_reply)
            except (DroppedRequest, UnheardStream, DeferredVector):
                raise
            except Exception as error:
                if is_passing_fault(error):
                    raise
                reply = self._refuse(error)
            pending_reply.kind, pending_reply.reply = reply.WhichOneof("body") or "", reply.SerializeToString()
            return pending_reply

    def _refuse(self, error: Exception) -> wire.Reply:
        if not isinstance(error, UndersongError):  # the message of an unforeseen error may hold private data
            log.error("%s: internal error %s", self.name, place_of(error))
            return codec.refusal(UndersongError("internal"))
        problem = printable(error.problem)  # The problem may quote the request, whose text nobody has checked.
        log.warning("%s refused a request: %s", self.name, problem)
        self._notes.note_refusal(problem, self._clock())
        return codec.refusal(error)

    def _dispatch_request(self, request: wire.Request, answer: PendingReply) -> wire.Reply:
        handler_by_kind: dict[str, Callable[[Any, PendingReply], wire.Reply]] = {
            "introduce": self._answer_introduce,
            "propose": self._answer_propose,
            "agree": self._answer_agree,
            "open_sum": self._open_sum,
            "prepare_sum": self._prepare_sum,
            "sum_step": self._sum_step,
            "void_sum": self._void_sum,
            "suspend_run": self._suspend_run,
            "close_run": self._close_run,
        }
        self._epochs.check(request.epoch, self._clock())
        body_kind = request.WhichOneof("body") or ""
        return handler_by_kind[body_kind](getattr(request, body_kind), answer)

    def _make_reply(self, **body: Any) -> wire.Reply:
        return wire.Reply(version=codec.VERSION, **body)

    def _answer_introduce(self, message: wire.Introduce, _answer: PendingReply) -> wire.Reply:
        introduction_message = wire.Introduction(
            name=self.name,
            identity=self.public_identity,
            software=SOFTWARE,
            embedder=self.embedder,
            statistics=statistics.names(),
        )
        digest = codec.introduction_digest(message.challenge, self._rules.address, introduction_message)
        introduction_message.signature = self._identity.sign(digest)
        return self._make_reply(introduction=introduction_message)

    def _suspend_run(self, message: wire.SuspendRun, _answer: PendingReply) -> wire.Reply:
        self._suspensions[message.manifest_hash] += 1
        self._rules.consent.suspended(message.manifest_hash, is_suspended=True)
        return self._make_reply(noted=wire.Noted())

    # These methods agree on a manifest.

    def _answer_propose(self, message: wire.ProposeManifest, _answer: PendingReply) -> wire.Reply:
        manifest = Manifest.from_bytes(message.manifest)
        try:
            self._review_manifest(manifest)
        except UndersongError as error:
            self._rules.consent.refused(manifest, error.problem)
            raise
        if reason := self._rules.consent.reason_to_wait(manifest):
            return self._make_reply(pending=wire.Pending(reason=reason))
        self._store.put(f"run/{manifest.run}", manifest.hash)
        return self._make_reply(signature=wire.ManifestSignature(signature=manifest.sign(self._identity)))

    def _answer_agree(self, message: wire.AgreeManifest, _answer: PendingReply) -> wire.Reply:
        manifest = Manifest.from_bytes(message.manifest)
        checks.check_signed(manifest, self._store.get(f"run/{manifest.run}"))
        manifest.check_signatures(dict(message.signatures))
        if self._find_manifest(manifest.hash) is None and (reason := self._rules.consent.reason_to_wait(manifest)):
            # This party has signed the manifest, and the run was closed or the approval withdrawn since.
            raise PrivacyRefusal(f"run {manifest.run!r} {reason}", "have its people approve the run, then continue it")
        self._store.put(agreed_key(manifest.hash), message.manifest)
        self._rules.consent.suspended(manifest.hash, is_suspended=False)
        self.computation.expect()
        return self._make_reply(agreed=wire.ManifestAgreed())

    def _review_manifest(self, manifest: Manifest) -> None:
        review(
            manifest,
            self._rules.policy,
            name=self.name,
            identity=self.public_identity,
            embedder=self._rules.embedder.fingerprint,
            teacher_model=self._rules.teacher_model(),
        )
        plan = manifest.plan
        events = tuple(plan.charged_events())
        self._ledger.check_room(Charge(manifest.run, manifest.hash.hex(), "", 0, events, unit=plan.privacy.unit))
        checks.check_one_manifest(manifest, self._store.get(f"run/{manifest.run}"))

    def _require_manifest(self, hash_: bytes) -> Manifest:
        return checks.check_agreed(self._find_manifest(hash_))

    def _find_manifest(self, hash_: bytes) -> Manifest | None:
        if hash_ not in self._manifests:
            manifest_bytes = self._store.get(agreed_key(hash_))
            if manifest_bytes is None:
                return None
            self._manifests[hash_] = Manifest.from_bytes(manifest_bytes)
        return self._manifests[hash_]

    # These methods answer the steps of a private sum.

    def _open_sum(self, message: wire.OpenSum, _answer: PendingReply) -> wire.Reply:
        manifest = self._require_manifest(message.manifest_hash)
        self._rules.consent.check(manifest)
        sum_inputs = read_inputs(message.inputs)
        add_blocks(message.blocks, sum_inputs, self._blocks)
        if missing_ids := missing_blocks(sum_inputs, self._blocks):
            return self._make_reply(missing=wire.MissingBlocks(blocks=missing_ids))
        self._resolved_question.resolve(manifest, message.sum, sum_inputs)
        question_digest = question(sum_inputs)
        checks.check_same_question(message.sum, question_digest, self._attempts.question(manifest, message.sum))
        self._accept_voids(manifest, message)
        sum_attempt = self._begin_attempt(manifest, message.sum, message.attempt)
        reply = self._receive_step(sum_attempt, message.payload)
        self._attempts.keep(sum_attempt, named_inputs=sum_inputs, question_digest=question_digest)
        return self._make_reply(sum_reply=wire.SumReply(payload=reply.payload))

    def _prepare_sum(self, message: wire.PrepareSum, _answer: PendingReply) -> wire.Reply:
        """Begins an attempt before the question: no public key and no share depends on the public inputs."""
        manifest = self._require_manifest(message.manifest_hash)
        self._rules.consent.check(manifest)
        sum_attempt = self._begin_attempt(manifest, message.sum, message.attempt)
        reply = self._receive_step(sum_attempt, message.payload)
        self._attempts.keep(sum_attempt)
        return self._make_reply(sum_reply=wire.SumReply(payload=reply.payload))

    def _begin_attempt(self, manifest: Manifest, sum_name: str, attempt_number: int) -> Attempt:
        """Returns the attempt. A new one begins if the plan allows it, and every earlier one at this sum ends."""
        sum_attempt = self._attempts.find(manifest, sum_name, attempt_number)
        if sum_attempt is not None:
            return sum_attempt
        sum_attempt = self._attempts.new(manifest, sum_name, attempt_number)
        if sum_attempt.before < 0:
            earlier_attempt = None
        else:
            earlier_attempt = self._attempts.find(manifest, sum_name, sum_attempt.before)
        if earlier_attempt is not None:
            # Two live attempts would be two vectors of the same records under a single charge.
            self._attempts.end(earlier_attempt, "a new attempt was begun")
        self._withdraw_charges(manifest, sum_name)
        self._ledger.check_attempt(
            self._make_charge(manifest, sum_name, attempt_number), manifest.plan.quorum.spare_attempts
        )
        return sum_attempt

    def _sum_step(self, message: wire.SumStep, answer: PendingReply) -> wire.Reply:
        manifest = self._require_manifest(message.manifest_hash)
        self._check_under_way(manifest, answer)
        self._rules.consent.check(manifest)
        sum_attempt = self._require_attempt(manifest, message)
        try:
            machine_step = sum_attempt.machine.receive(message.payload)
            if isinstance(machine_step, WantsInput):
                sum_inputs = checks.check_inputs_named(sum_attempt)
                if missing_ids := missing_blocks(sum_inputs, self._blocks):
                    return self._make_reply(missing=wire.MissingBlocks(blocks=missing_ids))
                machine_step = self._mask_vector(sum_attempt, sum_inputs, answer)
        except UndersongError:
            # A refusal may have tombstoned the attempt: that too must survive a crash.
            self._attempts.keep(sum_attempt)
            raise
        self._attempts.keep(sum_attempt)
        self._attempts.note_survivors(sum_attempt)
        if machine_step.vector:
            self._record_send(sum_attempt, machine_step.payload)
            answer.may_leave = partial(self._has_consent, manifest)
        answer.stored = self._attempts.stored(sum_attempt, machine_step.payload)
        return self._make_reply(sum_reply=wire.SumReply(payload=machine_step.payload))

    def _check_under_way(self, manifest: Manifest, answer: PendingReply) -> None:
        """Raises DroppedRequest where the run was suspended or ended while its vector was computed."""
        vector_deferral = answer.deferral
        if vector_deferral is None:
            return
        if vector_deferral.vector_request is None:
            vector_deferral.suspensions = self._suspensions[manifest.hash]
        elif vector_deferral.suspensions != self._suspensions[manifest.hash]:
            raise DroppedRequest(f"run {manifest.run!r} is not under way any more")

    def _has_consent(self, manifest: Manifest) -> bool:
        try:
            self._rules.consent.check(manifest)
        except UndersongError:
            return False
        return True

    # A vector has this order of steps: inputs and question journaled (when the sum was opened), charged,
    # computed, journaled, its hash in the ledger, the ledger's head outside the folder (by whoever sends), sent. So
    # after a crash a charge without a hash means that nothing left, and the vector may be computed again under the same
    # keys for the same question; with a hash only the bytes that have it may leave (docs/secagg.md).

    def _mask_vector(self, attempt: Attempt, inputs: tuple[Input, ...], answer: PendingReply) -> Reply:
        self._resolved_question.resolve(attempt.manifest, attempt.query, inputs)
        if not answer.is_asked():
            raise DroppedRequest(f"the stream that asked for {attempt.query} is gone")
        self._charge_attempt(attempt)
        grid = self._compute_grid(attempt.manifest, attempt.query, inputs, attempt.coins, answer)
        self._rules.consent.check(attempt.manifest)  # Computing may take minutes, in which people may decide otherwise.
        return attempt.machine.provide(grid, attempt.question)

    def _record_send(self, attempt: Attempt, payload: bytes) -> None:
        """Writes a vector's hash to the ledger before the vector leaves, for the first time or again."""
        self._store.commit()  # the ledger must not name a vector that the journal may lose
        attempt_charge = self._charge_of(attempt)
        try:
            if (
                self._ledger.state(attempt_charge) == "unknown"
            ):  # The ledger is older than the journal, and nothing left.
                self._charge_attempt(attempt)
            self._ledger.send(attempt_charge, hashlib.sha256(payload).hexdigest(), at=self._clock())
        except PrivacyRefusal as refusal:
            self._end_if_over(attempt, refusal)
            raise

    def _charge_attempt(self, attempt: Attempt) -> None:
        """Charges an attempt, once."""
        manifest = attempt.manifest
        attempt_charge = self._charge_of(attempt)
        now_s = self._clock()
        self._rules.consent.suspended(manifest.hash, is_suspended=False)
        try:
            if not self._ledger.is_begun(manifest.run):
                # Equal events are merged, because the ledger's checkpoints repeat the whole plan with every vector.
                plan = manifest.plan
                plan_price = PlanPrice(compressed(plan.charged_events()), compressed(plan.alone_events()))
                self._ledger.begin(attempt_charge, plan_price, at=now_s)
            self._ledger.charge(attempt_charge, spare_attempts=manifest.plan.quorum.spare_attempts, at=now_s)
        except PrivacyRefusal as refusal:
            self._end_if_over(attempt, refusal)
            raise

    def _end_if_over(self, attempt: Attempt, refusal: PrivacyRefusal) -> None:
        """Ends an attempt that the ledger knows to be over; not one that a full disk or budget refuses for now."""
        if self._ledger.state(self._charge_of(attempt)) not in ("unknown", "charged"):
            self._attempts.end(attempt, refusal.problem)

    def _compute_grid(
        self, manifest: Manifest, sum_name: str, inputs: tuple[Input, ...], coins: bytes, answer: PendingReply
    ) -> GridVector:
        """Returns this party's vector. Records are read for a reply only here. So only this reply waits for a rung."""
        planned_sum = manifest.plan[sum_name]
        public_inputs = self._resolved_question.resolve(manifest, sum_name, inputs)
        answer.first_rung_s = planned_sum.first_rung_s
        stored_blocks = ((block_id, self._blocks.get(block_id)) for block_id in named_blocks(inputs))
        block_by_id = {block_id: block for block_id, block in stored_blocks if block is not None}
        vector_request = VectorRequest(
            manifest.run,
            tuple(manifest.labels),
            planned_sum,
            manifest.plan.privacy,
            public_inputs,
            coins,
            inputs,
            block_by_id,
        )
        if answer.deferral is None:
            computed_vector = self.computation.vector(vector_request, start_s=answer.start_s)
        else:
            computed_vector = answer.deferral.take(vector_request, answer.start_s)
        self._notes.cautions[manifest.run] = computed_vector.cautions
        return computed_vector.vector

    def _require_attempt(self, manifest: Manifest, message: wire.SumStep | wire.VoidSum) -> Attempt:
        known_attempt = self._attempts.find(manifest, message.sum, message.attempt)
        return checks.check_opened(known_attempt, message.sum, message.attempt)

    def _accept_voids(self, manifest: Manifest, message: wire.OpenSum) -> None:
        """Refunds attempts that certificates declare void; a few for each sum, as a coalition can sign false ones."""
        for certificate in message.voids:
            parameters = manifest.sum_parameters(message.sum, certificate.attempt)
            statement_by_party = dict(certificate.statements)
            secagg.check_void_certificate(parameters, statement_by_party)
            void_charge = self._make_charge(manifest, message.sum, certificate.attempt)
            if (
                self._ledger.state(void_charge) != "sent"
                or self._ledger.voided(manifest.run, message.sum) >= VOIDED_VECTORS
            ):
                continue
            known_attempt = self._attempts.find(manifest, message.sum, certificate.attempt)
            if known_attempt is not None:
                self._attempts.end(known_attempt, "the attempt is void")
            self._ledger.void(void_charge, _hash_statements(statement_by_party), at=self._clock())

    def _void_sum(self, message: wire.VoidSum, _answer: PendingReply) -> wire.Reply:
        manifest = self._require_manifest(message.manifest_hash)
        sum_attempt = self._require_attempt(manifest, message)
        void_statement = sum_attempt.machine.void_statement()
        self._attempts.keep(sum_attempt)
        void_charge = self._make_charge(manifest, message.sum, message.attempt)
        if self._ledger.state(void_charge) == "charged":
            self._ledger.withdraw(void_charge, at=self._clock())
        return self._make_reply(void_statement=wire.VoidStatement(statement=void_statement.payload))

    def _receive_step(self, attempt: Attempt, payload: bytes) -> Reply:
        try:
            machine_step = attempt.machine.receive(payload)
        except UndersongError:
            self._attempts.keep(attempt)
            raise
        return checks.check_first_stage(machine_step)

    # These methods charge the ledger.

    def _withdraw_charges(self, manifest: Manifest, sum_name: str) -> None:
        """Withdraws each charged attempt at a sum of which nothing left; they have ended, and nothing ever will."""
        for attempt_number, attempt_state in self._ledger.attempts(manifest.run, sum_name).items():
            if attempt_state == "charged":
                self._ledger.withdraw(self._make_charge(manifest, sum_name, attempt_number), at=self._clock())

    def _charge_of(self, attempt: Attempt) -> Charge:
        return self._make_charge(attempt.manifest, attempt.query, attempt.number, attempt.question)

    def _make_charge(
        self, manifest: Manifest, sum_name: str, attempt_number: int, question_digest: bytes = b""
    ) -> Charge:
        vector_events = self._vector_events.get((manifest.hash, sum_name))
        if vector_events is None:
            planned_sum = manifest.plan[sum_name]
            vector_events = planned_sum.event(), planned_sum.event_alone(manifest.plan.quorum)
            self._vector_events[manifest.hash, sum_name] = vector_events
        event, event_alone = vector_events
        privacy_unit = manifest.plan.privacy.unit
        return Charge(
            manifest.run,
            manifest.hash.hex(),
            sum_name,
            attempt_number,
            (event,),
            question_digest.hex(),
            (event_alone,),
            privacy_unit,
        )

    def _close_run(self, message: wire.CloseRun, _answer: PendingReply) -> wire.Reply:
        """Ends a run and its attempts, and signs a receipt of its cost if the run was ever agreed on."""
        self._suspensions[message.manifest_hash] += 1
        manifest = self._find_manifest(message.manifest_hash)
        if manifest is None:
            self._rules.consent.ended(message.manifest_hash)
            return self._make_reply(noted=wire.Noted())
        self._attempts.end_run(manifest)
        if not self._ledger.is_closed(manifest.run):
            for planned_sum in manifest.plan.sums:
                self._withdraw_charges(manifest, planned_sum.name)
        self._ledger.close(manifest.run, manifest.hash.hex(), at=self._clock())
        self._rules.consent.ended(manifest.hash)
        receipt_body = receipt.body(manifest, self.name, self._ledger.run_entries(manifest.run))
        signature = self._identity.sign(tagged_hash(receipt.TAG, receipt_body))
        return self._make_reply(receipt=wire.Receipt(body=receipt_body, signature=signature))


def _hash_statements(statements: Mapping[str, bytes]) -> str:
    return hashlib.sha256(
        canonical_json({party_name: statement_bytes.hex() for party_name, statement_bytes in statements.items()})
    ).hexdigest()
