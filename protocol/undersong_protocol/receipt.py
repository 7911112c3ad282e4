"""A party's receipt: its ledger's entries of one run, the head of their chain, signed by its identity key.

The entries of other runs are not shown; they are why the numbers of the shown ones may have gaps. Between neighbours
the chain is checked whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from undersong_common.canonical import canonical_json, tagged_hash
from undersong_common.errors import PeerFault
from undersong_common.privacy.ledger import Charge, charge_of, entry_hash
from undersong_protocol.manifest import Manifest

TAG = "undersong receipt"


@dataclass(frozen=True)
class Receipt:
    """What a checked receipt states.

    Attributes:
        charges: every attempt that was charged, oldest first.
        voids: (sum, attempt) of those that cost nothing after all.
    """

    party: str
    charges: tuple[Charge, ...]
    voids: frozenset[tuple[str, int]]

    @property
    def counted(self) -> list[Charge]:
        """The charges that stand."""
        return [charge for charge in self.charges if (charge.query, charge.attempt) not in self.voids]


def check_receipt(manifest: Manifest, party: str, body: bytes, signature: bytes) -> Receipt:
    """Reads and checks a receipt against the manifest. Raises PeerFault that names the party and what is wrong.

    Checked: signature, party, run and manifest; every entry's own hash and its place in the chain; every charge against
    the plan (its sum, its event). What it cannot show is that the party kept no second ledger.
    """
    member = next((member for member in manifest.roster if member.name == party), None)
    if member is None:
        raise PeerFault(party, "is not in the roster of this run")
    try:
        Ed25519PublicKey.from_public_bytes(member.identity).verify(signature, tagged_hash(TAG, body))
    except InvalidSignature:
        raise PeerFault(party, "has not signed this receipt", "the receipt was changed; get a fresh copy") from None
    try:
        value = json.loads(body)
        if (value["party"], value["run"], value["manifest"]) != (party, manifest.run, manifest.hash.hex()):
            raise PeerFault(party, "its receipt is of another party, run or manifest")
        entries, head = list(value["entries"]), str(value["ledger_head"])
        return _read(manifest, party, entries, head)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PeerFault(party, "its receipt cannot be read", "run the version of Undersong that wrote it") from None


def _read(manifest: Manifest, party: str, entries: list[Mapping[str, Any]], head: str) -> Receipt:
    charges: list[Charge] = []
    voids: set[tuple[str, int]] = set()
    last: Mapping[str, Any] | None = None
    for entry in entries:
        number = entry["entry"]
        content = {key: value for key, value in entry.items() if key != "hash"}
        if entry_hash(content) != entry["hash"]:
            raise PeerFault(party, f"entry {number} of its receipt was changed")
        if last is not None:
            neighbours = number == last["entry"] + 1
            if number <= last["entry"] or (neighbours and entry["previous"] != last["hash"]):
                raise PeerFault(party, f"entry {number} of its receipt does not follow entry {last['entry']}")
        last = entry
        if entry["run"] != manifest.run:
            raise PeerFault(party, f"entry {number} of its receipt is of another run")
        if entry["kind"] == "charge":
            charges.append(_charged(manifest, party, charge_of(entry)))
        elif entry["kind"] == "void":
            voids.add((entry["query"], entry["attempt"]))
        else:
            raise PeerFault(party, f"entry {number} of its receipt is of an unknown kind")
    if last is not None and len(head) != len(last["hash"]):
        raise PeerFault(party, "its receipt has no head of its ledger")
    return Receipt(party, tuple(charges), frozenset(voids))


def _charged(manifest: Manifest, party: str, charge: Charge) -> Charge:
    planned = next((planned for planned in manifest.plan.sums if planned.name == charge.query), None)
    if planned is None or charge.manifest != manifest.hash.hex():
        raise PeerFault(party, f"charged {charge.query!r}, which is not in the plan")
    ours = Charge(charge.run, charge.manifest, charge.query, charge.attempt, (planned.event(),), charge.question)
    if canonical_json(_form(charge)) != canonical_json(_form(ours)):
        raise PeerFault(party, f"charged {charge.query} at another price than the plan's")
    return charge


def _form(charge: Charge) -> list[list[Any]]:
    return [[type(event).__name__, *map(repr, vars(event).values())] for event in charge.events]
