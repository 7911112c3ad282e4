"""Keeps the heads of a data set's ledger twice outside the party's folder: beside the data and in the state folder.

The head of a ledger is the hash of its last entry. Whoever deletes the party's folder, or restores an old copy of it,
must not get a fresh budget. A ledger that does not contain these heads is missing or too old: it is restored from a
backup, or goes on by charging all that may be missing. docs/hospital.md, "Every day", says what the budget is
afterwards. Nothing is ever taken out of a ledger: one that holds what the backup lacks stays, and a broken one is set
aside.

The files are ``mark.json`` beside the data, and one in the state folder, named by the set of the data set's texts. So a
copied or renamed file is known, also with its rows in another order, other spacing or other columns; a file with one
text more, less or changed is not. Each is replaced as a whole: a crash leaves the one before.
"""

import hashlib
import hmac
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import FILE_MODE, PartyHome, make_folder, read_input, read_json
from undersong_client.records.private import fingerprint
from undersong_client.storage import store
from undersong_common.canonical import canonical_json
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal
from undersong_common.files import create_file, replace_where_possible
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, PlanPrice, RunSpending, Statement, budget_json, compressed
from undersong_common.text.table import Table
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.receipt import Receipt, check_receipt
from undersong_protocol.limits import LARGEST_MANIFEST_BYTES

RESTORE = (
    "put a backup back: undersong-party restore-ledger BACKUP (in a new folder: undersong-party data add FILE"
    " --restore-ledger BACKUP); without one, --charge-missing instead of BACKUP counts as spent all that may be missing"
)
UNSET_EPSILON = 1e-12  # budget that a ledger declares if the policy sets none
_FIRST_HEAD = "0" * 64  # head of a ledger without an entry


@dataclass(frozen=True)
class LedgerSpending:
    """Spent and remaining epsilon at one delta. ``budget`` and ``left``: None without a budget, inf for no limit."""

    delta: float
    spent: float
    budget: float | None
    left: float | None

    @classmethod
    def of(cls, ledger: Ledger, delta: float | None = None) -> "LedgerSpending":
        """Returns a ledger's spending at ``delta``; None takes the delta of the ledger's budget."""
        budget = ledger.budget
        delta = delta or (1e-5 if budget is None else budget.delta)
        spent_epsilon = ledger.spent(delta)
        if budget is None or not is_set(budget):
            return cls(delta, spent_epsilon, None, None)
        return cls(delta, spent_epsilon, budget.epsilon, max(0.0, budget.epsilon - spent_epsilon))


def beside(path: Path) -> Path:
    """Returns the folder beside a data file that holds its checkpoint ``mark.json`` and its encrypted embeddings."""
    return path.parent / f".{path.name}.undersong"


class LedgerCheckpoints:
    """The heads of a data set's ledger that are kept outside the party's folder.

    ``former_file_name`` is the name that 0.2.0 gave the file in the state folder; it is read and never written.
    """

    def __init__(self, home: PartyHome, path: Path, name: str, checkpoints: Path, former_file_name: str = "") -> None:
        self.name = name
        self._home = home
        # A test's reproducible party has no privacy that a checkpoint could protect.
        is_test_party = home.settings.insecure_noise_seed is not None
        if is_test_party:
            self._paths = []
        else:
            self._paths = [beside(path) / "mark.json", checkpoints / f"{name}.json"]
        if is_test_party or not former_file_name:
            self._former_paths = []
        else:
            self._former_paths = [checkpoints / f"{former_file_name}.json"]
        self._last_head = ""

    def read(self) -> list[str]:
        """Reads the heads of the ledger that were stored at releases; [] before the first release."""
        return [
            str(checkpoint_mark.get("ledger_head", ""))
            for checkpoint_mark in self._marks()
            if checkpoint_mark.get("released", True)
        ]

    def statements(self) -> list[Statement]:
        """Reads the summaries of the ledger (``spending.Statement``) that the checkpoint files hold."""
        stored_statements = []
        for checkpoint_mark in self._marks():
            with suppress(ValueError, KeyError, TypeError):
                stored_statements.append(Statement.from_json(checkpoint_mark))
        return stored_statements

    def _marks(self) -> list[dict[str, Any]]:
        """The checkpoints of all files. One that this account may not see is left out where another one is there.

        A service does not see the folder beside notes in somebody's home; the state folder moved to its account.
        """
        checkpoint_marks: list[dict[str, Any]] = []
        hidden_error: PermissionError | None = None
        for path in (*self._paths, *self._former_paths):
            try:
                checkpoint_marks += _marks(path) if path.exists() else []
            except PermissionError as error:
                hidden_error = error
        if hidden_error is not None and not checkpoint_marks:
            raise hidden_error
        return checkpoint_marks

    def keep(self, ledger: Ledger) -> None:
        """Stores the ledger's present head; call it before a reply leaves.

        Raises MachineFault if no checkpoint file can be written.
        """
        if not self._paths or ledger.head == self._last_head:
            return
        with ledger.locked():  # Under the lock, this ledger has the newest head.
            ledger_statement = ledger.statement()
            for path in self._paths:
                with suppress(OSError):
                    if not path.parent.exists():
                        make_folder(path.parent)
            # One is enough: the data folder may be mounted read-only.
            if not replace_where_possible(self._paths, self._mark(ledger_statement)):
                raise MachineFault(
                    f"the ledger's head cannot be kept outside {self._home.path}",
                    f"make {self._paths[0].parent} or {self._paths[1].parent} writable, and look at the free space",
                    code="no-checkpoint",
                )
            self._last_head = ledger_statement.head

    def leave(self, ledger: Ledger, newer_checkpoints: "LedgerCheckpoints", whole_budget: Budget | None) -> None:
        """Ends these checkpoints when the data set gets a newer version, which has its own.

        Releases from the newer version do not appear here. So if the old file is added again without the ledger, the
        whole budget (``whole_budget``; None counts as infinite) counts as spent.
        """
        ledger_statement = ledger.statement()
        mark_bytes = self._mark(replace(ledger_statement, lost_budgets=(*ledger_statement.lost_budgets, whole_budget)))
        replace_where_possible(
            [path for path in self._paths if path not in newer_checkpoints._paths and path.exists()], mark_bytes
        )

    def _mark(self, statement: Statement) -> bytes:
        # A checkpoint is written for every vector and holds the price of a whole plan. Without indentation, compiled
        # code encodes it, which is faster.
        return json.dumps({**statement.to_json(), "home": str(self._home.path)}, ensure_ascii=False).encode("utf-8")


def checkpoint_name(table: Table, checkpoints: Path) -> str:
    """Returns a checkpoint's file name in the state folder, a keyed hash of the set of texts.

    It does not depend on the order, spacing and columns of the rows.
    """
    name_salt = _salt(checkpoints)
    distinct_texts = {" ".join(text.split()) for text in table.texts}
    return hmac.digest(
        name_salt,
        b"".join(
            sorted(
                hmac.digest(name_salt, distinct_text.encode("utf-8", "surrogatepass"), "sha256")
                for distinct_text in distinct_texts
            )
        ),
        "sha256",
    ).hex()[:40]


def former_name(table: Table, checkpoints: Path) -> str:
    """Returns the file name that version 0.2.0 used, a hash of all rows in order with every declared column."""
    return fingerprint(table, _salt(checkpoints))[:40]


def salted(checkpoints: Path) -> str:
    """Returns a hash (hex) of the state folder's salt, which :func:`checkpoint_name` uses as its key."""
    return hashlib.sha256(_salt(checkpoints)).hexdigest()


def _salt(checkpoints: Path) -> bytes:
    path = checkpoints / "salt"
    try:
        make_folder(checkpoints)
        if not path.exists():
            with suppress(FileExistsError):  # another process has made it meanwhile
                create_file(path, os.urandom(32))
    except OSError:
        return bytes(32)  # no state folder can be made: the mark beside the data has to do
    return path.read_bytes()


def check(heads: Sequence[str], ledger: Ledger | None) -> None:
    """Raises PrivacyRefusal if ``ledger`` lacks one of these heads: a release is then missing from the ledger too."""
    if ledger is None and heads:
        raise PrivacyRefusal(
            "releases were made from this data set, and their ledger is not here", RESTORE, code="ledger-missing"
        )
    if ledger is not None and not holds(ledger, heads):
        raise PrivacyRefusal(
            "the ledger is older than the releases that were made from this data set", RESTORE, code="ledger-too-old"
        )


def holds(ledger: Ledger, heads: Sequence[str]) -> bool:
    """Returns True if all of these heads are in the ledger's chain."""
    return {_FIRST_HEAD, *(entry["hash"] for entry in ledger.entries())}.issuperset(heads)


def budget_of(policy: HospitalPolicy) -> Budget:
    """Returns the policy's budget for a ledger. A budget that was not set becomes the smallest possible one."""
    return Budget(policy.total_epsilon or UNSET_EPSILON, policy.total_delta, policy.total_parts)


def is_set(budget: Budget | None) -> bool:
    """Returns False for a budget that was never set, as :func:`budget_of` declares it."""
    return budget is not None and budget.epsilon > UNSET_EPSILON


def _marks(path: Path) -> list[dict[str, Any]]:
    """Reads the checkpoints in a file. Version 0.2.0 wrote two lines, each with a checksum, a number and the JSON."""
    mark_lines = re.findall(rb"([0-9a-f]{64}) (\d+ (\{.*\}))", path.read_bytes())
    checkpoint_marks = [
        json.loads(mark_json)
        for digest, mark_line, mark_json in mark_lines
        if hashlib.sha256(mark_line).hexdigest() == digest.decode()
    ]
    return checkpoint_marks or [read_json(path)]


CHARGE_MISSING_WORDS = "--charge-missing counts as spent all that may be missing, and goes on from there"
_Receipts = Sequence[tuple[Manifest, Receipt]]


@dataclass(frozen=True)
class Source:
    """Sources from which a ledger is restored.

    Attributes:
        backup: a copy of the ledger; None without a copy.
        charge_missing: True if the owner agrees that everything that may be missing counts as spent.
        receipts: this party's checked receipts, with the manifests of their runs.
    """

    backup: Path | None = None
    charge_missing: bool = False
    receipts: _Receipts = ()

    @property
    def named(self) -> bool:
        return self.backup is not None or self.charge_missing


@dataclass(frozen=True)
class RestoredLedger:
    """A restored ledger.

    Attributes:
        runs: names of the runs whose spending was charged again; they are closed.
        whole_budget: True if a whole budget was charged, because nothing shows what was released.
        last_budget: the last budget that was declared before the ledger was lost.
    """

    ledger: Ledger
    runs: tuple[str, ...]
    whole_budget: bool
    last_budget: Budget | None

    @property
    def earlier_budget(self) -> Budget | None:
        """The last budget before the restoration, if no budget is set now; else None."""
        if is_set(self.last_budget) and not is_set(self.ledger.budget):
            return self.last_budget
        return None

    @property
    def spending(self) -> LedgerSpending:
        """The state of the budget now, at the delta that its people know."""
        earlier_budget = self.earlier_budget
        return LedgerSpending.of(self.ledger, None if earlier_budget is None else earlier_budget.delta)

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
    checkpoints: LedgerCheckpoints,
    fingerprint: str,
    policy: HospitalPolicy,
    source: Source,
    *,
    at: float,
) -> RestoredLedger:
    """Restores a ledger that is missing, outdated or broken: from a backup, or by continuing what is left of it.

    The caller holds the party's folder (:meth:`PartyHome.running`), so that no daemon answers meanwhile.

    Args:
        checkpoints: those of the data set.
        fingerprint: keyed hash (hex) of the data set.
        at: time now, seconds since the epoch.

    Raises:
        ConfigurationError: nothing is missing, or there is neither a backup nor the owner's consent.
        PrivacyRefusal: the backup is broken, or lacks entries that are here or that the checkpoints know, and the owner
            has not agreed that everything that may be missing counts as spent.
    """
    known_heads = checkpoints.read()
    ledger, is_broken = _read_present_ledger(home)
    if not source.named:
        raise ConfigurationError(
            "no backup of the ledger was named",
            f"name a BACKUP; without one, {CHARGE_MISSING_WORDS}",
            code="which-backup",
        )
    if ledger is not None and source.backup is None and _is_complete(ledger, known_heads, source.receipts):
        raise ConfigurationError(
            "the ledger holds everything that its checkpoints know of",
            "use it: there is nothing to restore",
            code="nothing-to-restore",
        )
    is_proven = bool(known_heads) or not is_broken
    if source.backup is not None:
        ledger, is_proven = _take_backup(home, source.backup, ledger, known_heads, is_broken=is_broken, source=source)
    elif is_broken:
        time_stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))
        os.replace(home.ledger, home.ledger.with_name(f"ledger.broken-{time_stamp}.jsonl"))
    if ledger is not None and is_proven and _is_complete(ledger, known_heads, source.receipts):
        return RestoredLedger(ledger, (), False, ledger.budget)
    return _continue_ledger(home, checkpoints, ledger, fingerprint, policy, source.receipts, at=at)


def read_receipts(path: Path, party: str) -> tuple[Manifest, Receipt]:
    """Reads this party's receipt in a published ``manifest.json``, and checks it by the key in the run's roster.

    Raises ConfigurationError if the file holds no receipt of this party, PeerFault if the receipt is not valid.
    """
    receipt_bytes = read_input(path, largest=16 * LARGEST_MANIFEST_BYTES)
    try:
        published_json = json.loads(receipt_bytes)
        manifest = Manifest.from_bytes(canonical_json(published_json["manifest"]))
        receipt = published_json["receipts"][party]
        receipt_body = receipt["body"].encode("utf-8")
        signature = bytes.fromhex(receipt["signature"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError(
            f"{path}: holds no receipt of {party}", "name the manifest.json of a published data set"
        ) from None
    return manifest, check_receipt(manifest, party, receipt_body, signature)


def _read_present_ledger(home: PartyHome) -> tuple[Ledger | None, bool]:
    """Returns the ledger in the party's folder or None, and True if there is a ledger that cannot be read."""
    if not home.ledger.exists():
        return None, False
    try:
        return Ledger.read(home.ledger), False
    except PrivacyRefusal:
        return None, True


def _has_charges(ledger: Ledger | None) -> bool:
    """Returns True if a ledger holds charges, which its loss would hide."""
    return ledger is not None and any(entry["kind"] in ("charge", "lost") for entry in ledger.entries())


def _is_complete(ledger: Ledger, heads: Sequence[str], receipts: _Receipts) -> bool:
    """Returns True if a ledger holds all known heads or, if none are known, all charges of the receipts."""
    if heads:
        return holds(ledger, heads)
    receipt_spendings = [_spending(manifest, receipt) for manifest, receipt in receipts]
    return not any(charge.events or charge.alone for charge in ledger.statement().missing(receipt_spendings))


def _take_backup(
    home: PartyHome,
    backup: Path,
    present_ledger: Ledger | None,
    heads: Sequence[str],
    *,
    is_broken: bool,
    source: Source,
) -> tuple[Ledger, bool]:
    """Puts the backup in the ledger's place.

    Returns the ledger, and True if something shows that nothing was charged after the backup was made.
    """
    Ledger.verify(backup)
    copied_file = home.ledger.with_name(".restored.jsonl")
    try:
        shutil.copyfile(backup, copied_file)
        os.chmod(copied_file, FILE_MODE)
        copied_ledger = Ledger.read(copied_file)
        if (
            present_ledger is not None
            and _has_charges(present_ledger)
            and not holds(copied_ledger, [present_ledger.head])
        ):
            raise PrivacyRefusal(
                f"{home.ledger}: has charges that the backup lacks; a ledger that counts is never replaced",
                f"name a later backup; without one, {CHARGE_MISSING_WORDS}",
                code="backup-lacks-charges",
            )
        # The charges in a backup do not show that nothing was charged later. Receipts or the ledger here may show it.
        has_other_source = bool(source.receipts) or _has_charges(present_ledger)
        is_proven = bool(heads) or not (is_broken or (_has_charges(copied_ledger) and not has_other_source))
        if not source.charge_missing:
            check(heads, copied_ledger)
            if not is_proven:
                raise PrivacyRefusal(
                    "the ledger here is missing or broken, and nothing shows that the backup is not older than it",
                    f"name with --receipts what this party took part in, or {CHARGE_MISSING_WORDS}",
                    code="backup-unproven",
                )
        # The journal may be older than the ledger that is put back: it could send a second vector under used masks.
        store.discard(home.journal, home.attempts)
        os.replace(copied_file, home.ledger)
    finally:
        copied_file.unlink(missing_ok=True)
    return Ledger.read(home.ledger), is_proven


def _continue_ledger(
    home: PartyHome,
    checkpoints: LedgerCheckpoints,
    ledger: Ledger | None,
    fingerprint: str,
    policy: HospitalPolicy,
    receipts: _Receipts,
    *,
    at: float,
) -> RestoredLedger:
    """Continues a ledger that lacks charges, by one entry.

    The entry charges what checkpoints and receipts show and, for every run whose end they do not show, the whole plan.
    These runs are over for this party. If no checkpoint shows what was charged, the whole budget counts as spent too:
    the policy's, or an infinite one if the policy has none. The values of the journal are discarded.
    """
    ordered_statements = sorted(checkpoints.statements(), key=lambda statement: statement.entries, reverse=True)
    spending_by_run: dict[str, RunSpending] = {}
    for run_spending in (run_spending for statement in ordered_statements for run_spending in statement.runs):
        spending_by_run.setdefault(run_spending.run, run_spending.at_most())
    for manifest, receipt in receipts:
        spending_by_run[manifest.run] = _spending(manifest, receipt).at_most(spending_by_run.get(manifest.run))
    policy_budget = budget_of(policy) if policy.has_budget else None
    lost_budgets = [
        budget
        for budget in (ordered_statements[0].lost_budgets if ordered_statements else (policy_budget,))
        if ledger is None or budget not in ledger.lost_budgets
    ]
    earlier_budget = next(
        (statement.budget for statement in ordered_statements), None if ledger is None else ledger.budget
    )
    store.discard(home.journal, home.attempts)
    if ledger is None:
        ledger = Ledger.open(home.ledger, fingerprint, budget_of(policy), at=at)
    charges = ledger.statement().missing(spending_by_run.values())
    ledger.lose(charges, lost_budgets, at=at)
    ledger.adopt(fingerprint, at=at)
    checkpoints.keep(ledger)
    return RestoredLedger(
        ledger, tuple(charge.run for charge in charges if charge.events), bool(lost_budgets), earlier_budget
    )


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
