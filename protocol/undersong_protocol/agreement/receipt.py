"""A party's receipt: its ledger's entries of one run and the head of a hash chain over them, signed by the party.

The chain begins at the run's manifest and says nothing of other runs, of the data set or of the time, so that a receipt
does not depend on the records. A later receipt of the same run continues an earlier one's chain.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PeerFault
from undersong_common.printable import printable
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import VOIDED_VECTORS
from undersong_common.privacy.spending import Charge, charged_of
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.secagg.keys import verified

TAG = "undersong receipt"
VERSION = 2
OF_SLOT = frozenset({"kind", "run", "query", "attempt"})  # keys of every ledger entry about one attempt at a sum
FIELDS = {  # keys of a ledger entry, by its kind
    "charge": OF_SLOT | {"manifest", "events", "question"},
    "withdrawn": OF_SLOT,
    "void": OF_SLOT | {"certificate"},
    "close": frozenset({"kind", "run", "manifest"}),
}


@dataclass(frozen=True)
class Receipt:
    """The contents of a checked receipt.

    Attributes:
        charges: every attempt that was charged, oldest first.
        withdrawn: (sum, attempt) of each charge that was withdrawn before its vector left.
        voided: (sum, attempt) of each charge that is void by a certificate that the party has accepted.
        closed: True if the run has ended at the party, so that nothing was charged for it later.
    """

    party: str
    charges: tuple[Charge, ...]
    withdrawn: frozenset[tuple[str, int]]
    voided: frozenset[tuple[str, int]]
    closed: bool

    @property
    def left(self) -> list[Charge]:
        """The charges whose vectors may have left the party: all that were not withdrawn, void ones included."""
        return [charge for charge in self.charges if (charge.query, charge.attempt) not in self.withdrawn]

    @property
    def counted(self) -> list[Charge]:
        """The charges that count: neither withdrawn nor void."""
        return [charge for charge in self.left if (charge.query, charge.attempt) not in self.voided]

    def uncharged(self, opened_sums: Iterable[tuple[str, int, str]]) -> Iterator[str]:
        """Yields a sentence for each opened sum that holds this party's vector without a charge that counts.

        Args:
            opened_sums: (name, attempt, hash of its question in hex) of each opened sum with a vector of this party.
        """
        question_by_attempt = {(charge.query, charge.attempt): charge.question for charge in self.counted}
        for sum_name, attempt, question in opened_sums:
            missing_charge = f"receipt of {self.party}: no charge for {sum_name}, attempt {attempt}"
            if (sum_name, attempt) not in question_by_attempt:
                yield f"{missing_charge}, though its vector is in the sum"
            elif question_by_attempt[sum_name, attempt] != question:
                yield f"{missing_charge}, for the question that the sum answers"


def check_receipt(manifest: Manifest, party: str, body: bytes, signature: bytes) -> Receipt:
    """Reads a receipt and checks it against the manifest. Raises PeerFault that names the party and the fault.

    It checks the signature; party, run and manifest; the chain over the entries; and the sum and the events of every
    charge against the plan. It cannot show that the party kept no second ledger.
    """
    member = next((member for member in manifest.roster if member.name == party), None)
    if member is None:
        raise PeerFault(party, "is not in the roster of this run")
    try:
        verified(member.identity, tagged_hash(TAG, body), signature)
    except (InvalidSignature, ValueError):
        raise PeerFault(
            party, "has not signed this receipt", "the receipt was changed; get a fresh copy", code="not-signed"
        ) from None
    try:
        receipt_json = json.loads(body)
        if (receipt_json["party"], receipt_json["run"], receipt_json["manifest"]) != (
            party,
            manifest.run,
            manifest.hash.hex(),
        ):
            raise PeerFault(party, "its receipt is of another party, run or manifest")
        if receipt_json.get("version", 1) != VERSION:
            raise PeerFault(
                party,
                f"its receipt has version {printable(str(receipt_json.get('version', 1)), 20)}, this program reads"
                f" {VERSION}",
                "run the version of Undersong that wrote it",
            )
        receipt_entries = list(receipt_json["entries"])
        chain_head = str(receipt_json["chain"])
        return _read_entries(manifest, party, receipt_entries, chain_head)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PeerFault(party, "its receipt cannot be read", "run the version of Undersong that wrote it") from None


def exposure(manifest: Manifest, receipts: Mapping[str, Receipt]) -> tuple[float, float | None]:
    """Returns the largest epsilon of one party if everyone else colludes, and the chance of their best guess.

    Both are priced by the attempts that were made. Epsilon is inf, and the chance (``accounting.best_guess``) None,
    for a run that promises nothing.

    Args:
        receipts: by party. A party whose receipt is missing, or does not end the run, is priced by the whole plan.
    """
    plan = manifest.plan
    if not math.isfinite(plan.privacy.epsilon):
        return math.inf, None
    plan_events = tuple(plan.alone_events())
    delta = plan.usable_delta
    # Most parties of a run have charged the same, so that there are few events to price.
    distinct_exposures = {
        _exposed_events(plan, plan_events, receipts.get(member.name)) for member in manifest.roster
    } - {()}
    epsilon = max((accounting.epsilon(events, delta) for events in distinct_exposures), default=0.0)
    best_guess = max((accounting.best_guess(events) for events in distinct_exposures), default=0.5)
    return epsilon, best_guess if math.isfinite(epsilon) else None


def _exposed_events(
    plan: Plan, plan_events: tuple[accounting.Event, ...], receipt: Receipt | None
) -> tuple[accounting.Event, ...]:
    """Returns the privacy events of a party's vectors if all others collude; the plan's without a final receipt."""
    if receipt is None or not receipt.closed:
        return plan_events
    events = [plan[charge.query].event_alone(plan.quorum) for charge in receipt.left]
    if receipt.charges:
        return charged_of(events, plan_events)
    return ()


def body(manifest: Manifest, party: str, entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the bytes of a receipt for the party to sign: canonical JSON of the entries and the head of their chain.

    Args:
        entries: the ledger's entries of the run, as ``Ledger.run_entries`` returns them.
    """
    return canonical_json(
        {
            "version": VERSION,
            "party": party,
            "run": manifest.run,
            "manifest": manifest.hash.hex(),
            "entries": list(entries),
            "chain": chain(manifest, entries),
        }
    )


def chain(manifest: Manifest, entries: Sequence[Mapping[str, Any]]) -> str:
    """Returns the head (hex) of the hash chain over a run's ledger entries, which begins at the manifest's hash."""
    chain_head = tagged_hash("undersong receipt chain", manifest.hash)
    for entry in entries:
        chain_head = tagged_hash("undersong receipt entry", chain_head, canonical_json(dict(entry)))
    return chain_head.hex()


def _read_entries(manifest: Manifest, party: str, entries: list[Mapping[str, Any]], chain_head: str) -> Receipt:
    if chain(manifest, entries) != chain_head:
        raise PeerFault(party, "the hash chain of its receipt does not match the entries")
    charges: list[Charge] = []
    end_by_attempt: dict[tuple[str, int], str] = {}  # "charge", "void" or "withdrawn", by sum and attempt
    voids_by_sum: Counter[str] = Counter()  # number of void attempts, by sum
    is_closed = False
    for entry_number, entry in enumerate(entries, start=1):
        entry_place = f"entry {entry_number} of its receipt"
        if entry["kind"] not in FIELDS:
            raise PeerFault(party, f"{entry_place} is of an unknown kind")
        if set(entry) != FIELDS[entry["kind"]] or type(entry.get("attempt", 0)) is not int:
            raise PeerFault(party, f"{entry_place} has other fields than a ledger's entry of its kind")
        if entry["run"] != manifest.run:
            raise PeerFault(party, f"{entry_place} is of another run")
        if is_closed:
            raise PeerFault(party, f"{entry_place} follows the end of the run")
        match entry["kind"]:
            case "charge":
                charge = _check_charge(manifest, party, Charge.from_json(entry))
                if (charge.query, charge.attempt) in end_by_attempt:
                    raise PeerFault(party, f"{entry_place} charges an attempt a second time")
                charges.append(charge)
                end_by_attempt[charge.query, charge.attempt] = "charge"
            case "void" | "withdrawn" as new_end:
                attempt_key = entry["query"], entry["attempt"]
                if end_by_attempt.get(attempt_key) != "charge":
                    raise PeerFault(party, f"{entry_place} ends an attempt that was not charged, or had ended")
                end_by_attempt[attempt_key] = new_end
                voids_by_sum[attempt_key[0]] += new_end == "void"
                if voids_by_sum[attempt_key[0]] > VOIDED_VECTORS:
                    raise PeerFault(party, f"{entry_place} makes more than {VOIDED_VECTORS} attempts at one sum void")
            case _:
                is_closed = True
    attempts_by_end = {
        end_kind: frozenset(attempt_key for attempt_key in end_by_attempt if end_by_attempt[attempt_key] == end_kind)
        for end_kind in ("withdrawn", "void")
    }
    return Receipt(party, tuple(charges), attempts_by_end["withdrawn"], attempts_by_end["void"], is_closed)


def _check_charge(manifest: Manifest, party: str, charge: Charge) -> Charge:
    planned_sum = next((planned_sum for planned_sum in manifest.plan.sums if planned_sum.name == charge.query), None)
    if planned_sum is None or charge.manifest != manifest.hash.hex():
        raise PeerFault(party, f"charged {charge.query!r}, which is not in the plan")
    planned_charge = Charge(
        charge.run, charge.manifest, charge.query, charge.attempt, (planned_sum.event(),), charge.question
    )
    if canonical_json(_describe_events(charge)) != canonical_json(_describe_events(planned_charge)):
        raise PeerFault(party, f"charged {charge.query} at another price than the plan's")
    return charge


def _describe_events(charge: Charge) -> list[list[Any]]:
    return [[type(event).__name__, *map(repr, vars(event).values())] for event in charge.events]
