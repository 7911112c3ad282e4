"""The agreement on a manifest: every party signs it, and is shown everyone's signatures."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from undersong_common.errors import PrivacyRefusal, TransportError, UndersongError
from undersong_protocol.agreement.manifest import PLAN_WORDS, Manifest, plan_words
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import STAGE_TIMEOUT_S, PartyExchange, Transport, expect
from undersong_server.progress import Progress

APPROVAL_POLL_S = 2.0
APPROVAL_BYTES_S = 10e6  # Undecided parties are sent manifests at this rate, so a long roster is shown less often.


def introduce(
    transport: Transport, parties: Sequence[str], timeout_s: float = STAGE_TIMEOUT_S
) -> dict[str, wire.Introduction]:
    """Asks every party who it is. Raises TransportError if a party does not answer, and names that party."""
    replies = PartyExchange(transport, timeout_s).ask_all(parties, introduce=wire.Introduce())
    for party_name in parties:
        if party_name not in replies:
            raise TransportError(f"{party_name}: does not answer", "start its daemon, or plan the run without it")
    return {party_name: expect(party_name, replies[party_name], "introduction").introduction for party_name in parties}


class Rejected(PrivacyRefusal):
    """Hospitals refuse to take part in a run that was proposed to them.

    ``parties`` names them, and ``approved`` those that had agreed to the same plan by then.
    """

    def __init__(self, refusals: Mapping[str, PrivacyRefusal], approved: Iterable[str] = ()) -> None:
        refusal_remedies = dict.fromkeys(refusal.remedy for refusal in refusals.values() if refusal.remedy)
        super().__init__("\n".join(refusal.problem for refusal in refusals.values()), "; ".join(refusal_remedies))
        self.parties = tuple(sorted(refusals))
        self.approved = tuple(sorted(approved))


def _rejection_error(errors: Mapping[str, UndersongError], approved: Iterable[str]) -> UndersongError:
    """Returns the error of a run that not everybody signs: every hospital's refusal, or the first fault of another.

    A fault that passes by itself comes last: the run waits only where nothing else is wrong.
    """
    refusals = {party_name: error for party_name, error in errors.items() if isinstance(error, PrivacyRefusal)}
    if refusals:
        return Rejected(refusals, approved)
    return min(errors.values(), key=lambda error: isinstance(error, TransportError))


class ManifestAgreement:
    """The signatures of one run's manifest.

    Attributes:
        informed: parties that have seen everyone's signatures.
    """

    def __init__(
        self,
        manifest: Manifest,
        exchange: PartyExchange,
        journal: Journal,
        progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.informed: set[str] = set()
        self._manifest = manifest
        self._names = [member.name for member in manifest.roster]
        self._exchange = exchange
        self._journal = journal
        self._progress = progress
        self._sleep = sleep

    @cached_property
    def request(self) -> bytes:
        """The request that shows everyone's signatures."""
        agree_message = wire.AgreeManifest(manifest=self._manifest.to_bytes(), signatures=self.collect_signatures())
        return wire.Request(version=codec.VERSION, agree=agree_message).SerializeToString()

    def collect_signatures(self) -> dict[str, bytes]:
        """Returns the signature of every party, in the journal or once all have signed.

        Raises Rejected if a party refuses, or has withdrawn its approval before the last party has approved.
        """
        stored_signatures = self._journal.get_json("manifest/signatures")
        if stored_signatures is not None:
            return {party_name: bytes.fromhex(signature) for party_name, signature in stored_signatures.items()}
        waiting_names = self._names
        signatures: dict[str, bytes] = {}
        undecided_before: set[str] = set()  # parties whose people had to decide
        propose_message = wire.ProposeManifest(manifest=self._manifest.to_bytes())
        hash_words = plan_words(self._manifest.hash)
        while waiting_names:
            replies = self._exchange.ask_all(waiting_names, propose=propose_message)
            pending_names = []
            refusals: dict[str, UndersongError] = {}
            for name in waiting_names:
                reply = replies.get(name)
                if reply is None or reply.WhichOneof("body") == "pending":
                    pending_names.append(name)
                    continue
                try:
                    signatures[name] = expect(name, reply, "signature").signature.signature
                    if name in undecided_before:
                        self._progress.say(f"{name} has approved: {len(signatures)} of {len(self._names)}")
                except UndersongError as error:
                    self._progress.say(error.problem)
                    refusals[name] = error
            if refusals:
                raise _rejection_error(refusals, signatures)
            undecided_names = {party_name for party_name in pending_names if party_name in replies}
            if undecided_names and not undecided_before:
                self._progress.say(f"waits for people's approval{PLAN_WORDS}{hash_words}")
            if pending_names:
                self._progress.await_people(pending_names, sorted(signatures), hash_words)
                self._sleep(max(APPROVAL_POLL_S, len(pending_names) * len(propose_message.manifest) / APPROVAL_BYTES_S))
            undecided_before |= undecided_names
            if not pending_names and (earlier_names := signatures.keys() - set(waiting_names)):
                self._check_nobody_withdrew(earlier_names, propose_message, signatures)
            waiting_names = pending_names
        self._manifest.check_signatures(signatures)
        self._journal.put_json(
            "manifest/signatures",
            {party_name: signature_bytes.hex() for party_name, signature_bytes in signatures.items()},
        )
        return signatures

    def _check_nobody_withdrew(
        self, party_names: Iterable[str], proposal: wire.ProposeManifest, signatures: Mapping[str, bytes]
    ) -> None:
        """Raises Rejected if one of these parties, which signed while others still decided, refuses the plan now."""
        refusals: dict[str, UndersongError] = {}
        for name, reply in self._exchange.ask_all(sorted(party_names), propose=proposal).items():
            try:
                expect(name, reply, "signature")
            except PrivacyRefusal as error:
                self._progress.say(error.problem)
                refusals[name] = error
            except UndersongError:
                continue  # A fault that is no refusal shows at the first sum.
        if refusals:
            raise _rejection_error(refusals, signatures.keys() - refusals.keys())
