"""Restores a lost or older ledger from a backup, or continues it by charging all that may be missing.

docs/hospital.md, "Every day", says what the budget is afterwards. Nothing is ever taken out of a ledger:
one that holds what the backup lacks stays, and a broken one is set aside.
"""

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import FILE_MODE, PartyHome, read_input
from undersong_client.storage import checkpoints, store
from undersong_client.storage.checkpoints import LedgerCheckpoints, Spending, is_set
from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, PlanPrice, RunSpending, budget_json, compressed
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.receipt import Receipt, check_receipt
from undersong_protocol.limits import LARGEST_MANIFEST_BYTES

WITHOUT = "--charge-missing counts as spent all that may be missing, and goes on from there"
_Receipts = Sequence[tuple[Manifest, Receipt]]


@dataclass(frozen=True)
class Source:
    """Sources from which a ledger is restored.

    Attributes:
        backup: a copy of the ledger; None where there is none.
        charge_missing: whether its owner agrees that all that may be missing counts as spent.
        receipts: this party's own, checked, with the manifests of their runs.
    """

    backup: Path | None = None
    charge_missing: bool = False
    receipts: _Receipts = ()

    @property
    def named(self) -> bool:
        return self.backup is not None or self.charge_missing


@dataclass(frozen=True)
class Restored:
    """A ledger that counts again.

    Attributes:
        runs: names of those whose spending was charged anew; they have ended here.
        whole_budget: whether a whole budget was charged, because nothing shows what was released.
        last_budget: the budget that was declared last before.
    """

    ledger: Ledger
    runs: tuple[str, ...]
    whole_budget: bool
    last_budget: Budget | None

    @property
    def earlier_budget(self) -> Budget | None:
        """The budget that was declared last before, if none is set now."""
        return self.last_budget if is_set(self.last_budget) and not is_set(self.ledger.budget) else None

    @property
    def spending(self) -> Spending:
        """The state of the budget now, at the delta that its people know."""
        earlier = self.earlier_budget
        return Spending.of(self.ledger, None if earlier is None else earlier.delta)

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": len(self.ledger.entries()),
            "runs": list(self.runs),
            "whole_budget": self.whole_budget,
            **vars(self.spending),
            "earlier_budget": budget_json(self.earlier_budget),
        }


def recover(
    home: PartyHome,
    kept: LedgerCheckpoints,
    fingerprint: str,
    policy: HospitalPolicy,
    source: Source,
    *,
    at: float,
) -> Restored:
    """Puts a backup in place of a ledger that is missing, older or broken, or continues what is left of it.

    The caller holds the party's folder (:meth:`PartyHome.running`), so that no daemon answers meanwhile.

    Args:
        kept: checkpoints of the data set.
        fingerprint: of the data set (keyed, hex).
        at: seconds since the epoch.

    Raises:
        ConfigurationError: nothing is missing, or neither a backup nor the owner's consent is named.
        PrivacyRefusal: the backup is broken, or lacks what is here or what the checkpoints know, and the owner has not
            agreed that all that may be missing counts as spent.
    """
    heads = kept.read()
    ledger, broken = _present(home)
    if not source.named:
        raise ConfigurationError("which backup?", f"name a BACKUP; without one, {WITHOUT}", code="which-backup")
    if ledger is not None and source.backup is None and _complete(ledger, heads, source.receipts):
        raise ConfigurationError(
            "the ledger holds everything that its checkpoints know of",
            "use it: there is nothing to restore",
            code="nothing-to-restore",
        )
    proven = bool(heads) or not broken
    if source.backup is not None:
        ledger, proven = _take_backup(home, source.backup, ledger, heads, broken=broken, source=source)
    elif broken:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))
        os.replace(home.ledger, home.ledger.with_name(f"ledger.broken-{stamp}.jsonl"))
    if ledger is not None and proven and _complete(ledger, heads, source.receipts):
        return Restored(ledger, (), False, ledger.budget)
    return _continue(home, kept, ledger, fingerprint, policy, source.receipts, at=at)


def read_receipts(path: Path, party: str) -> tuple[Manifest, Receipt]:
    """This party's receipt in a published ``manifest.json``, checked against the key that the run's roster names.

    Raises ConfigurationError where the file holds none, PeerFault where it does not hold.
    """
    data = read_input(path, largest=16 * LARGEST_MANIFEST_BYTES)
    try:
        published = json.loads(data)
        manifest = Manifest.from_bytes(canonical_json(published["manifest"]))
        found = published["receipts"][party]
        body, signature = found["body"].encode("utf-8"), bytes.fromhex(found["signature"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError(
            f"{path}: holds no receipt of {party}", "name the manifest.json of a published data set"
        ) from None
    return manifest, check_receipt(manifest, party, body, signature)


def _present(home: PartyHome) -> tuple[Ledger | None, bool]:
    """The ledger that is here, and whether one is here that cannot be read."""
    if not home.ledger.exists():
        return None, False
    try:
        return Ledger.read(home.ledger), False
    except PrivacyRefusal:
        return None, True


def _charged(ledger: Ledger | None) -> bool:
    """Returns True if a ledger holds charges, which its loss would hide."""
    return ledger is not None and any(entry["kind"] in ("charge", "lost") for entry in ledger.entries())


def _complete(ledger: Ledger, heads: Sequence[str], receipts: _Receipts) -> bool:
    """Returns True if a ledger holds all known heads or, if none are known, all charges of the receipts."""
    if heads:
        return checkpoints.holds(ledger, heads)
    receipted = [_spending(manifest, receipt) for manifest, receipt in receipts]
    return not any(charge.events or charge.alone for charge in ledger.statement().missing(receipted))


def _take_backup(
    home: PartyHome, backup: Path, present: Ledger | None, heads: Sequence[str], *, broken: bool, source: Source
) -> tuple[Ledger, bool]:
    """The backup in the ledger's place, and whether anything shows that nothing was charged after it was made."""
    Ledger.verify(backup)
    copy = home.ledger.with_name(".restored.jsonl")
    try:
        shutil.copyfile(backup, copy)
        os.chmod(copy, FILE_MODE)
        found = Ledger.read(copy)
        if present is not None and _charged(present) and not checkpoints.holds(found, [present.head]):
            raise PrivacyRefusal(
                f"{home.ledger}: has charges that the backup lacks; a ledger that counts is never replaced",
                f"a later backup, or none: {WITHOUT}",
                code="backup-lacks-charges",
            )
        # A copy of what was charged once shows nothing of what was charged last.
        elsewhere = bool(source.receipts) or _charged(present)
        proven = bool(heads) or not (broken or (_charged(found) and not elsewhere))
        if not source.charge_missing:
            checkpoints.check(heads, found)
            if not proven:
                raise PrivacyRefusal(
                    "the ledger here is missing or broken, and nothing shows that the backup is not older than it",
                    f"name with --receipts what this party took part in, or {WITHOUT}",
                    code="backup-unproven",
                )
        # The journal beside it may be older than it: what it would answer could be a second vector under old masks.
        store.discard(home.journal, home.attempts)
        os.replace(copy, home.ledger)
    finally:
        copy.unlink(missing_ok=True)
    return Ledger.read(home.ledger), proven


def _continue(
    home: PartyHome,
    kept: LedgerCheckpoints,
    ledger: Ledger | None,
    fingerprint: str,
    policy: HospitalPolicy,
    receipts: _Receipts,
    *,
    at: float,
) -> Restored:
    """One entry charges what checkpoints and receipts show and, for every run of which they do not show the end, its
    whole plan; these runs are over for this party. Where no checkpoint shows what was charged, the whole budget counts
    as spent too: the policy's, and more than any where it has none. What the journal held is discarded."""
    statements = sorted(kept.statements(), key=lambda found: found.entries, reverse=True)
    runs: dict[str, RunSpending] = {}
    for spent in (spent for found in statements for spent in found.runs):
        runs.setdefault(spent.run, spent.at_most())
    for manifest, receipt in receipts:
        runs[manifest.run] = _spending(manifest, receipt).at_most(runs.get(manifest.run))
    whole = checkpoints.budget_of(policy) if policy.has_budget else None
    budgets = [
        budget
        for budget in (statements[0].lost_budgets if statements else (whole,))
        if ledger is None or budget not in ledger.lost_budgets
    ]
    earlier = next((found.budget for found in statements), None if ledger is None else ledger.budget)
    store.discard(home.journal, home.attempts)
    if ledger is None:
        ledger = Ledger.open(home.ledger, fingerprint, checkpoints.budget_of(policy), at=at)
    charges = ledger.statement().missing(runs.values())
    ledger.lose(charges, budgets, at=at)
    ledger.adopt(fingerprint, at=at)
    kept.keep(ledger)
    return Restored(ledger, tuple(charge.run for charge in charges if charge.events), bool(budgets), earlier)


def _spending(manifest: Manifest, receipt: Receipt) -> RunSpending:
    plan = manifest.plan
    return RunSpending(
        manifest.run,
        manifest.hash.hex(),
        compressed(event for charge in receipt.counted for event in charge.events),
        compressed(plan[charge.query].event_alone(plan.quorum) for charge in receipt.charges),
        PlanPrice(tuple(plan.charged_events()), tuple(plan.alone_events()))
        if receipt.charges or not receipt.closed
        else PlanPrice(),
        receipt.closed,
        plan.privacy.unit,
    )
