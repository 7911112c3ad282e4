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

AGREE_TIMEOUT_S = 10.0  # longest wait for a party that is sent all signatures; else it gets them before its first sum
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
        self._held_blocks: dict[str, set[bytes]] = {party_name: set() for party_name in self._names}

    def agree(self) -> Mapping[str, bytes]:
        """Has every party sign the manifest and sends each everyone's signatures. Returns the signatures by party name.

        Waits for parties whose people have not approved yet. Raises Rejected, which names the refusing parties, after
        all parties were asked. A party that does not see the signatures now is shown them before its first sum.
        """
        signatures = self._agreement.collect_signatures()
        first_sum_attempt = self._preparation.find_next(None)
        if first_sum_attempt is not None and (first_sum_attempt.outcome or first_sum_attempt.stage):
            first_sum_attempt = None

        def write_requests(name: str) -> list[bytes]:
            if first_sum_attempt is None:
                prepare_requests = []
            else:
                prepare_requests = [
                    self._write_request(first_sum_attempt, "prepare_sum", first_sum_attempt.first_requests[name])
                ]
            return [self._agreement.request, *prepare_requests]

        if first_sum_attempt is None:
            timeout_s = min(self._exchange.timeout_s, AGREE_TIMEOUT_S)
        else:
            timeout_s = self._exchange.timeout_s
        for party_name, replies in self._exchange.ask_each(self._names, write_requests, timeout_s).items():
            try:
                expect(party_name, replies[0], "agreed")
            except UndersongError as error:
                self._progress.say(f"{party_name} does not take part: {error.problem}")
                continue
            self._agreement.informed.add(party_name)
            if first_sum_attempt is not None:
                self._record_reply(first_sum_attempt, party_name, replies[1])
        if first_sum_attempt is not None:
            self._end_round(first_sum_attempt, patient=True)
        return signatures

    def private_sum(self, name: str, inputs: Sequence[Input]) -> NoisySum:
        """Opens the private sum ``name`` of the plan once; a second call reads the journal.

        Raises PrivacyRefusal for a sum outside the plan, RoundAborted when too few parties remain (nothing is opened),
        ConfigurationError if the run began the sum with other public inputs: the parties would refuse them.
        """
        planned_sum = self.manifest.plan[name]
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
        for attempt_number in itertools.count():
            sum_attempt = self._preparation.find(name, attempt_number)
            try:
                sum_outcome = self._run_attempt(sum_attempt, inputs)
                break
            except RoundAborted as aborted:
                if self._is_voided(sum_attempt):
                    self._progress.say(f"{name}: attempt {attempt_number} is void and costs nothing; trying again")
                    if attempt_number + 1 < LARGEST_ATTEMPTS:
                        continue
                spares_used += 1
                if spares_used > self.manifest.plan.quorum.spare_attempts:
                    raise self._make_final_error(sum_attempt, aborted) from None
                self._progress.say(f"{name}: {aborted.problem}; a spare attempt is used")
        value_buffer = io.BytesIO()
        np.save(value_buffer, sum_outcome.values)
        sum_meta = {
            "survivors": list(sum_outcome.survivors),
            "variance": sum_outcome.variance,
            "scale": planned_sum.scale,
            "evidence": sum_outcome.evidence.hex(),
            "attempt": attempt_number,
        }
        journal_entries = [(f"sum/{name}/values", value_buffer.getvalue()), (f"sum/{name}/meta", json_bytes(sum_meta))]
        self._journal.exchange((), journal_entries, forgotten=f"sum/{name}/attempt/")
        return noisy_sum(sum_outcome.values, sum_meta)

    def _make_final_error(self, attempt: SumAttempt, abort_error: RoundAborted) -> UndersongError:
        """Returns the error of a sum that is not tried again; it quotes every missing party's reason."""
        absence_errors = attempt.absences.values()
        problem = "".join(
            [f"{attempt.name}: {abort_error.problem}", *(f"\n  {error.problem}" for error in absence_errors)]
        )
        refusals = [error for error in absence_errors if isinstance(error, PrivacyRefusal)]
        if len(refusals) > self.manifest.plan.quorum.tolerated_dropouts:
            return PrivacyRefusal(problem, refusals[0].remedy or "talk to these parties, then plan a new run")
        return RoundAborted(
            problem, abort_error.remedy or "start a new run, or plan one with federation.spare_attempts"
        )

    def receipts(self) -> dict[str, wire.Receipt]:
        """Collects the receipt of each party, its signed statement of what it spent; invalid ones are left out."""
        close_request = wire.CloseRun(manifest_hash=self.manifest.hash)
        receipts = {}
        for party_name, reply in self._exchange.ask_all(self._names, close_run=close_request).items():
            try:
                receipt = expect(party_name, reply, "receipt").receipt
                checked_receipt = check_receipt(self.manifest, party_name, receipt.body, receipt.signature)
                self._check_charges(checked_receipt)
                receipts[party_name] = receipt
            # The run goes on: a party without a receipt is priced as if it had spent the whole plan.
            except UndersongError as error:
                self._progress.say(f"no receipt: {error.problem}")
        return receipts

    def _check_charges(self, receipt: Receipt) -> None:
        """Raises PeerFault for a vector in an opened sum that its party has not charged."""
        sums = ((planned_sum.name, self.opened_facts(planned_sum.name)) for planned_sum in self.manifest.plan.sums)
        vectors = (
            (sum_name, sum_facts["attempt"], self._journal.get_json(f"sum/{sum_name}/question"))
            for sum_name, sum_facts in sums
            if sum_facts and receipt.party in sum_facts["survivors"]
        )
        if math.isfinite(self.manifest.plan.privacy.epsilon):
            for charge_fault in receipt.uncharged(vectors):
                raise PeerFault(receipt.party, charge_fault)

    def opened_facts(self, name: str) -> dict[str, Any] | None:
        """Public facts of an opened sum: survivors, scale, variance, evidence (hex), attempt; None if not opened."""
        sum_facts: dict[str, Any] | None = self._journal.get_json(f"sum/{name}/meta")
        return sum_facts

    def _run_attempt(self, attempt: SumAttempt, inputs: Sequence[Input]) -> secagg.UnmaskedSum:
        while attempt.outcome is None:
            self._progress.update(f"private sum {attempt.name}", attempt.stage, 5)
            self._exchange_round(attempt, inputs)
        self._preparation.forget(attempt)
        if isinstance(attempt.outcome, RoundAborted):
            raise attempt.outcome
        for party_fault in attempt.outcome.faults:
            self._progress.say(f"private sum {attempt.name}: {party_fault.problem}")
        return attempt.outcome

    def _exchange_round(self, attempt: SumAttempt, inputs: Sequence[Input]) -> None:
        """Exchanges the present round with all parties, and once more with those that then ask for public blocks."""
        blocks_needed = named_blocks(inputs)
        inputs_come_first = attempt.number > 0 or not self._exchange.is_batched
        opens_sum = (attempt.round == "advertise" and inputs_come_first) or (
            attempt.round == "mask" and not attempt.has_inputs
        )
        lacking_blocks = {
            party: [
                block_identity
                for block_identity in blocks_needed
                if opens_sum and block_identity not in self._held_blocks[party]
            ]
            for party in attempt.pending
        }
        next_attempt = self._preparation.prepare_next(attempt)
        while lacking_blocks:
            lacking_blocks = self._exchange_once(attempt, inputs, next_attempt, lacking_blocks, opens=opens_sum)
            attempt.has_inputs = attempt.has_inputs or opens_sum
            next_attempt, opens_sum = None, True  # A party that was restarted may have lost blocks that it held.
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
        """Sends each party its requests with the blocks that it lacks, and with requests of ``following``.

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
                if following.round == "advertise":
                    body_kind = "prepare_sum"
                else:
                    body_kind = "sum_step"
                requests.append(self._write_request(following, body_kind, following.requests[party]))
            return requests

        ask_again = {}
        asked_parties = list(dict.fromkeys([*lacking, *sorted(prepared_parties)]))
        for party, replies in self._exchange.ask_each(asked_parties, write_requests).items():
            if following is not None and party in prepared_parties:
                self._record_reply(following, party, replies.pop())
            if not replies:
                continue
            body_by_kind = {reply.WhichOneof("body"): reply for reply in reversed(replies)}
            if "agreed" in body_by_kind:
                self._agreement.informed.add(party)
            if "missing" in body_by_kind:
                missing_blocks = set(body_by_kind["missing"].missing.blocks)
                if missing_blocks - set(named_blocks(inputs)):
                    self._leave_out(attempt, party, PeerFault(party, "asks for a public block that no input names"))
                # Each block is sent to a party once in a round: if it then lacks the same, it is left out.
                elif newly_missing := missing_blocks - set(lacking[party]):
                    ask_again[party] = [*lacking[party], *sorted(newly_missing)]
                continue
            if opens or attempt.has_inputs:
                self._held_blocks[party].update(named_blocks(inputs))
            self._record_reply(attempt, party, body_by_kind.get("refusal", replies[-1]))
        if following is not None:
            self._end_round(following, patient=True)
        return ask_again

    def _requests_to_party(
        self, attempt: SumAttempt, party: str, inputs: Sequence[Input], blocks: Sequence[bytes], *, opens: bool
    ) -> list[bytes]:
        """The requests to one party about a sum whose turn it is; ``opens``: True sends the sum's public inputs."""
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
        request_parts = (payload, *blocks)
        if kind not in attempt.request_cache or attempt.request_cache[kind][0] != request_parts:
            body_fields: dict[str, Any] = {
                "manifest_hash": self.manifest.hash,
                "sum": attempt.name,
                "attempt": attempt.number,
                "payload": payload,
            }
            if kind == "open_sum":
                body_fields["inputs"] = [public_input.to_wire() for public_input in inputs]
                body_fields["blocks"] = [self._blocks.get(block_identity) for block_identity in blocks]
                body_fields["voids"] = [
                    wire.VoidCertificate(attempt=attempt_number, statements=void_statements)
                    for attempt_number in range(attempt.number)
                    if (void_statements := self._preparation.void_statements(attempt.name, attempt_number))
                ]
            request_fields: dict[str, Any] = {kind: body_fields}
            request_bytes = wire.Request(version=codec.VERSION, **request_fields)
            attempt.request_cache[kind] = request_parts, request_bytes.SerializeToString()
        return attempt.request_cache[kind][1]

    def _record_reply(self, attempt: SumAttempt, party: str, reply: wire.Reply) -> None:
        """Stores a reply's payload, or the error because of which the party is left out."""
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
        void_request = wire.VoidSum(manifest_hash=self.manifest.hash, sum=attempt.name, attempt=attempt.number)
        absent_parties = [party for party, error in attempt.absences.items() if isinstance(error, TransportError)]
        void_statements: dict[str, bytes] = {}
        is_void = False
        # Absent parties were waited for already: they are asked only if the statements of the others do not suffice.
        for asked_names in (
            [party_name for party_name in self._names if party_name not in absent_parties],
            absent_parties,
        ):
            if is_void or not asked_names:
                continue
            for party, reply in self._exchange.ask_all(asked_names, void_sum=void_request).items():
                if reply.WhichOneof("body") == "void_statement":
                    void_statements[party] = reply.void_statement.statement
            is_void = secagg.is_void(attempt.parameters, void_statements)
        if is_void:
            hex_statements = {party: statement_bytes.hex() for party, statement_bytes in void_statements.items()}
        else:
            hex_statements = {}
        self._journal.put_json(f"sum/{attempt.name}/void/{attempt.number}", hex_statements)
        return is_void
