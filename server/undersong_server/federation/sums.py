"""One run's private sums: each is opened once, by attempts whose replies are journaled round by round.

Every round's replies are journaled before the state machine sees them, so that a killed coordinator replays the
machine to the very round it stood in; parties answer a repeated request with the same bytes.
"""

import io
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from undersong_common.errors import (
    ConfigurationError,
    PeerFault,
    PrivacyRefusal,
    RoundAborted,
    TransportError,
    UndersongError,
)
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.receipt import Receipt, check_receipt
from undersong_protocol.secagg import coordinator as secagg
from undersong_protocol.statistics.vectors import NoisySum
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import Input, named_blocks, question
from undersong_server.database.journal import Journal, json_bytes
from undersong_server.federation.agreement import ManifestAgreement
from undersong_server.federation.exchange import STAGE_TIMEOUT_S, PartyExchange, PublicBlocks, Transport, expect
from undersong_server.federation.preparation import Preparation, SumAttempt, noisy_sum, opened_sum
from undersong_server.progress import Progress

AGREE_TIMEOUT_S = 10.0  # A party that misses everyone's signatures in this time sees them before its first sum.
LARGEST_ATTEMPTS = 3  # per sum: void attempts cost no privacy, but more of them point to a fault


class Federation:
    """One run's private sums over a transport.

    Over a :class:`BatchTransport` a sum takes the fewest messages (see :mod:`undersong_server.federation.preparation`);
    what is asked, charged and opened is the same.

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
        self._journal = journal
        self._progress = progress
        self._blocks = blocks
        self._exchange = PartyExchange(transport, timeout_s)
        self._agreement = ManifestAgreement(manifest, self._exchange, journal, progress, sleep)
        self._preparation = Preparation(manifest, journal, is_batched=self._exchange.is_batched)
        self._held_blocks: dict[str, set[bytes]] = {name: set() for name in self._names}

    def agree(self) -> Mapping[str, bytes]:
        """Has every party sign the manifest and sends each everyone's signatures. Returns the signatures by party name.

        Waits for parties whose people have not approved yet. Raises Rejected, which names the refusing parties, after
        all parties were asked. A party that does not see the signatures now is shown them before its first sum.
        """
        signatures = self._agreement.collect_signatures()
        first = self._preparation.find_next(None)
        if first is not None and (first.outcome or first.stage):
            first = None

        def write_requests(name: str) -> list[bytes]:
            if first is None:
                prepare = []
            else:
                prepare = [self._write_request(first, "prepare_sum", first.first_requests[name])]
            return [self._agreement.request, *prepare]

        if first is None:
            timeout_s = min(self._exchange.timeout_s, AGREE_TIMEOUT_S)
        else:
            timeout_s = self._exchange.timeout_s
        for name, replies in self._exchange.ask_each(self._names, write_requests, timeout_s).items():
            try:
                expect(name, replies[0], "agreed")
            except UndersongError as error:
                self._progress.say(f"{name} does not take part: {error.problem}")
                continue
            self._agreement.informed.add(name)
            if first is not None:
                self._record_reply(first, name, replies[1])
        if first is not None:
            self._end_round(first, patient=True)
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
        for number in itertools.count():
            attempt = self._preparation.find(name, number)
            try:
                outcome = self._run_attempt(attempt, inputs)
                break
            except RoundAborted as aborted:
                if self._is_voided(attempt):
                    self._progress.say(f"{name}: attempt {number} is void and costs nothing; trying again")
                    if number + 1 < LARGEST_ATTEMPTS:
                        continue
                spares_used += 1
                if spares_used > self.manifest.plan.quorum.spare_attempts:
                    raise self._gave_up(attempt, aborted) from None
                self._progress.say(f"{name}: {aborted.problem}; a spare attempt is used")
        values = io.BytesIO()
        np.save(values, outcome.values)
        meta = {
            "survivors": list(outcome.survivors),
            "variance": outcome.variance,
            "scale": planned.scale,
            "evidence": outcome.evidence.hex(),
            "attempt": number,
        }
        entries = [(f"sum/{name}/values", values.getvalue()), (f"sum/{name}/meta", json_bytes(meta))]
        self._journal.exchange((), entries, forgotten=f"sum/{name}/attempt/")
        return noisy_sum(outcome.values, meta)

    def _gave_up(self, attempt: SumAttempt, aborted: RoundAborted) -> UndersongError:
        """Returns the error of a sum that is not tried again, with what every missing party said."""
        errors = attempt.absences.values()
        problem = "".join([f"{attempt.name}: {aborted.problem}", *(f"\n  {error.problem}" for error in errors)])
        refusals = [error for error in errors if isinstance(error, PrivacyRefusal)]
        if len(refusals) > self.manifest.plan.quorum.tolerated_dropouts:
            return PrivacyRefusal(problem, refusals[0].remedy or "talk to these parties, then plan a new run")
        return RoundAborted(problem, aborted.remedy or "start a new run, or plan one with federation.spare_attempts")

    def receipts(self) -> dict[str, wire.Receipt]:
        """Collects the receipt of each party, its signed statement of what it spent; invalid ones are left out."""
        close = wire.CloseRun(manifest_hash=self.manifest.hash)
        receipts = {}
        for name, reply in self._exchange.ask_all(self._names, close_run=close).items():
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

    def _run_attempt(self, attempt: SumAttempt, inputs: Sequence[Input]) -> secagg.UnmaskedSum:
        while attempt.outcome is None:
            self._progress.update(f"private sum {attempt.name}", attempt.stage, 5)
            self._exchange_round(attempt, inputs)
        self._preparation.forget(attempt)
        if isinstance(attempt.outcome, RoundAborted):
            raise attempt.outcome
        for fault in attempt.outcome.faults:
            self._progress.say(f"private sum {attempt.name}: {fault.problem}")
        return attempt.outcome

    def _exchange_round(self, attempt: SumAttempt, inputs: Sequence[Input]) -> None:
        """Exchanges the present round, and again with parties that lack public blocks."""
        blocks_needed = named_blocks(inputs)
        named_first = attempt.number > 0 or not self._exchange.is_batched
        opens = (attempt.round == "advertise" and named_first) or (attempt.round == "mask" and not attempt.has_inputs)
        lacking = {
            party: [block for block in blocks_needed if opens and block not in self._held_blocks[party]]
            for party in attempt.pending
        }
        following = self._preparation.prepare_next(attempt)
        while lacking:
            lacking = self._exchange_once(attempt, inputs, following, lacking, opens=opens)
            attempt.has_inputs = attempt.has_inputs or opens
            following, opens = None, True  # a party that was restarted may have lost blocks that it held
        self._end_round(attempt, patient=False)

    def _exchange_once(
        self,
        attempt: SumAttempt,
        inputs: Sequence[Input],
        following: SumAttempt | None,
        lacking: Mapping[str, list[bytes]],
        *,
        opens: bool,
    ) -> dict[str, list[bytes]]:
        """Asks parties, sends each the blocks that it lacks, and asks those of the sum that is prepared.

        Returns the parties that lack further blocks, with all that they are to be sent.
        """
        if following is None:
            prepared_parties = set()
        else:
            prepared_parties = set(following.pending)

        def write_requests(party: str) -> list[bytes]:
            requests = []
            if party in lacking:
                requests = self._requests_to_party(attempt, party, inputs, lacking[party], opens=opens)
            if following is not None and party in prepared_parties:
                kind = "prepare_sum" if following.round == "advertise" else "sum_step"
                requests.append(self._write_request(following, kind, following.requests[party]))
            return requests

        ask_again = {}
        asked_parties = list(dict.fromkeys([*lacking, *sorted(prepared_parties)]))
        for party, replies in self._exchange.ask_each(asked_parties, write_requests).items():
            if following is not None and party in prepared_parties:
                self._record_reply(following, party, replies.pop())
            if not replies:
                continue
            bodies = {reply.WhichOneof("body"): reply for reply in reversed(replies)}
            if "agreed" in bodies:
                self._agreement.informed.add(party)
            if "missing" in bodies:
                missing = set(bodies["missing"].missing.blocks)
                if missing - set(named_blocks(inputs)):
                    self._leave_out(attempt, party, PeerFault(party, "asks for a public block that no input names"))
                # Each block is sent to a party once in a round: if it then lacks the same, it is left out.
                elif new := missing - set(lacking[party]):
                    ask_again[party] = [*lacking[party], *sorted(new)]
                continue
            if opens or attempt.has_inputs:
                self._held_blocks[party].update(named_blocks(inputs))
            self._record_reply(attempt, party, bodies.get("refusal", replies[-1]))
        if following is not None:
            self._end_round(following, patient=True)
        return ask_again

    def _requests_to_party(
        self, attempt: SumAttempt, party: str, inputs: Sequence[Input], blocks: Sequence[bytes], *, opens: bool
    ) -> list[bytes]:
        """The requests to one party about a sum whose turn it is; ``opens``: with its public inputs."""
        if party in self._agreement.informed:
            requests = []
        else:
            requests = [self._agreement.request]
        if opens:
            requests.append(self._write_request(attempt, "open_sum", attempt.first_requests[party], inputs, blocks))
        elif attempt.round == "advertise":
            requests.append(self._write_request(attempt, "prepare_sum", attempt.requests[party]))
        if attempt.round != "advertise":
            requests.append(self._write_request(attempt, "sum_step", attempt.requests[party]))
        return requests

    def _write_request(
        self,
        attempt: SumAttempt,
        kind: str,
        payload: bytes,
        inputs: Sequence[Input] = (),
        blocks: Sequence[bytes] = (),
    ) -> bytes:
        """A request about one attempt. Most rounds ask every party the same, which is then written once."""
        parts = (payload, *blocks)
        if kind not in attempt.request_cache or attempt.request_cache[kind][0] != parts:
            body: dict[str, Any] = {
                "manifest_hash": self.manifest.hash,
                "sum": attempt.name,
                "attempt": attempt.number,
                "payload": payload,
            }
            if kind == "open_sum":
                body["inputs"] = [public_input.to_wire() for public_input in inputs]
                body["blocks"] = [self._blocks.get(identity) for identity in blocks]
                body["voids"] = [
                    wire.VoidCertificate(attempt=number, statements=statements)
                    for number in range(attempt.number)
                    if (statements := self._preparation.void_statements(attempt.name, number))
                ]
            fields: dict[str, Any] = {kind: body}
            request = wire.Request(version=codec.VERSION, **fields)
            attempt.request_cache[kind] = parts, request.SerializeToString()
        return attempt.request_cache[kind][1]

    def _record_reply(self, attempt: SumAttempt, party: str, reply: wire.Reply) -> None:
        """Keeps a reply's payload, or why it has none."""
        try:
            attempt.replies[party] = expect(party, reply, "sum_reply").sum_reply.payload
        except UndersongError as error:
            self._leave_out(attempt, party, error)

    def _leave_out(self, attempt: SumAttempt, party: str, error: UndersongError) -> None:
        attempt.replies[party] = None
        attempt.absences[party] = error
        self._progress.say(f"{attempt.name}: left out: {error.problem}")

    def _end_round(self, attempt: SumAttempt, *, patient: bool) -> None:
        """Journals the round and goes on to the next one without late parties; ``patient``: waits for them."""
        if attempt.pending and patient:
            attempt.is_stalled = True
            return
        for party in attempt.pending:
            self._leave_out(attempt, party, TransportError(f"{party}: does not answer"))
        self._preparation.end_round(attempt)

    def _is_voided(self, attempt: SumAttempt) -> bool:
        """True if enough parties sign that they released no share, so that the plan's slot may be used again."""
        certificate = self._preparation.void_statements(attempt.name, attempt.number)
        if certificate is not None:
            return secagg.is_void(attempt.parameters, certificate)
        request = wire.VoidSum(manifest_hash=self.manifest.hash, sum=attempt.name, attempt=attempt.number)
        away = [party for party, error in attempt.absences.items() if isinstance(error, TransportError)]
        statements: dict[str, bytes] = {}
        void = False
        # Absent parties were waited for already: they are asked only if the statements of the others do not suffice.
        for names in ([name for name in self._names if name not in away], away):
            if void or not names:
                continue
            for party, reply in self._exchange.ask_all(names, void_sum=request).items():
                if reply.WhichOneof("body") == "void_statement":
                    statements[party] = reply.void_statement.statement
            void = secagg.is_void(attempt.parameters, statements)
        if void:
            hex_statements = {party: statement.hex() for party, statement in statements.items()}
        else:
            hex_statements = {}
        self._journal.put_json(f"sum/{attempt.name}/void/{attempt.number}", hex_statements)
        return void
