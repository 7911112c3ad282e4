"""The data set: counted without showing it, and bound to its ledger beyond the life of this program's folder.

Whoever deletes the party's folder, or restores an old copy of it, must not get a fresh budget. So the head of the
ledger and what it has charged are kept twice outside it: beside the data and in the user's state folder. A ledger that
does not contain those heads is missing or too old, and nothing is answered until the right one is restored, or until
one is continued at the price of all that may have been charged.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_client import cautions, keys, snapshot, store
from undersong_client.policy import HospitalPolicy
from undersong_client.records import DataSet, fingerprint
from undersong_client.snapshot import Facts
from undersong_client.state import FILE_MODE, PartyHome, make_folder, read_json, write_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy import statement
from undersong_common.privacy.budget import Budget
from undersong_common.privacy.ledger import Ledger, PlanPrice
from undersong_common.privacy.statement import RunSpending, Statement
from undersong_common.table import Table, read_table, row_count
from undersong_protocol.manifest import Manifest
from undersong_protocol.receipt import Receipt

RESTORE = "restore it from a backup: undersong-party data add FILE --restore-ledger BACKUP"
_START = "0" * 64


@dataclass(frozen=True)
class Survey:
    """What ``data add`` says: counts only, for the hospital's own screen.

    Attributes:
        rows: of the file.
        empty: rows without text; they take no part.
        duplicates: records whose text another record has too; they count.
        labels: records by label; empty where there is no label column.
        users: distinct user ids, None where there is no user column.
        largest_user: records of the user who has most.
    """

    rows: int
    empty: int
    records: int
    duplicates: int
    labels: dict[str, int]
    users: int | None
    largest_user: int | None


def load(home: PartyHome) -> DataSet:
    """The data set as it was added. Raises ConfigurationError where none was, or its sealed copy is damaged."""
    _check_added(home)
    return DataSet(snapshot.table(home), keys.secret(home, "data"))


def changed_since(home: PartyHome) -> str:
    """Why the file is not what was added, in words for this party's people; empty where it is the same."""
    settings = home.settings
    try:
        data = _read(home, Path(settings.data), settings.text_field, settings.label_field, settings.user_field)
    except ConfigurationError as error:
        return error.problem
    same = data.fingerprint == snapshot.facts(home).fingerprint
    return "" if same else f"{settings.data}: is not what was added any more"


def _check_added(home: PartyHome) -> None:
    if not home.settings.data:
        raise ConfigurationError(
            "no data set was added", "add one: undersong-party data add FILE --text-field NAME --label-field NAME"
        )


def survey(path: Path, table: Table) -> Survey:
    users = Counter(table.users or ())
    rows = row_count(path)
    return Survey(
        rows=rows,
        empty=rows - len(table),
        records=len(table),
        duplicates=len(table) - len(set(table.texts)),
        labels=dict(sorted(Counter(table.labels or ()).items())),
        users=len(users) if table.users is not None else None,
        largest_user=max(users.values()) if users else None,
    )


def add(
    home: PartyHome,
    path: Path,
    *,
    text: str,
    label: str = "",
    user: str = "",
    policy: HospitalPolicy,
    checkpoints: Path,
    cache: Path | None = None,
    new_version: bool = False,
    restore: Path | None = None,
    confirm: Callable[[Sequence[str]], None] = lambda _cautions: None,
    at: float,
) -> tuple[Survey, Ledger]:
    """Declares a file as this party's data set and seals a copy, which the party answers from; sends nothing.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        cache: where embeddings are kept, encrypted; None keeps them beside the data.
        new_version: the file replaces the present data set; what was spent stays spent.
        restore: a backup of this data set's ledger.
        confirm: called with what speaks against this data set, where something does; may refuse.
        at: seconds since the epoch.

    Raises:
        ConfigurationError: the file, a column, or a second data set without ``new_version``.
        PrivacyRefusal: the data set was released from before and its ledger is not here.
    """
    path = path.absolute()
    data = _read(home, path, text, label, user)
    if policy.approval == "standing":
        confirm(cautions.of_standing_consent(policy, data.table))
    elif not len(data.table):
        confirm([cautions.EMPTY])
    kept = LedgerCheckpoints(home, path, checkpoint_name(data.table, checkpoints), checkpoints)
    heads = kept.read()
    if restore is not None:
        _restore(home, restore, heads)
    known = home.ledger.exists()
    changed = known and bool(home.settings.data) and Ledger.read(home.ledger).fingerprint != data.fingerprint
    if changed and restore is None and not new_version:
        raise ConfigurationError(
            "another data set, or another version of it, was added before",
            "one party has one data set. If this file replaces it, add --new-version: what was spent stays spent",
        )
    ledger = Ledger.read(home.ledger) if known else None
    _check(heads, ledger)
    if ledger is None:
        ledger = Ledger.open(home.ledger, data.fingerprint, _budget(policy), at=at)
    else:
        ledger.adopt(data.fingerprint, at=at)
    declare(ledger, policy, at=at)
    salted = _salted(checkpoints)
    snapshot.seal(home, data.table, Facts(data.fingerprint, kept.name, salted, len(data.table)))
    place = (cache or beside(path)).absolute()
    if cache is None and (home.settings.insecure_noise_seed is not None or not _writable(place)):
        place = home.path / "cache"
    make_folder(place)
    home.change(data=str(path), text_field=text, label_field=label, user_field=user, cache=str(place))
    kept.keep(ledger)
    return survey(path, data.table), ledger


def open_ledger(
    home: PartyHome, policy: HospitalPolicy, checkpoints: Path, *, at: float
) -> tuple[Ledger, LedgerCheckpoints]:
    """The data set's ledger, checked against its checkpoints, with the policy's budget declared. Reads no record.

    Raises:
        ConfigurationError: no data set was added.
        PrivacyRefusal: the ledger is missing, too old, broken, or of another version of the data.
    """
    _check_added(home)
    facts = snapshot.facts(home)
    name = facts.checkpoint
    if facts.salted != _salted(checkpoints):  # the user's state folder is another one than at `data add`
        name = checkpoint_name(snapshot.table(home), checkpoints)
    kept = LedgerCheckpoints(home, Path(home.settings.data), name, checkpoints)
    if not home.ledger.exists():
        raise PrivacyRefusal(f"{home.ledger}: the data set's ledger is missing", RESTORE)
    ledger = Ledger.read(home.ledger)
    _check(kept.read(), ledger)
    if ledger.fingerprint != facts.fingerprint:
        raise PrivacyRefusal(
            f"{home.sealed}: is another version of the data set than its ledger names",
            "declare the one that counts: undersong-party data add FILE, with --new-version if it differs",
        )
    declare(ledger, policy, at=at)
    kept.keep(ledger)
    return ledger, kept


def declare(ledger: Ledger, policy: HospitalPolicy, *, at: float) -> None:
    """The policy's budget becomes the ledger's, where they differ."""
    if ledger.budget != _budget(policy):
        ledger.declare(_budget(policy), at=at)


def beside(path: Path) -> Path:
    """The folder beside a data file for its mark and its encrypted embeddings."""
    return path.parent / f".{path.name}.undersong"


class LedgerCheckpoints:
    """The heads of a data set's ledger that are kept outside the party's folder."""

    def __init__(self, home: PartyHome, path: Path, name: str, checkpoints: Path) -> None:
        self.name = name
        self._home = home
        # A test's reproducible party has no privacy that a mark could protect.
        tested = home.settings.insecure_noise_seed is not None
        self._paths = [] if tested else [beside(path) / "mark.json", checkpoints / f"{name}.json"]
        self._last = ""

    def read(self) -> list[str]:
        """Heads of the ledger at releases; before the first there is nothing that a lost ledger could hide."""
        return [str(mark.get("ledger_head", "")) for mark in self._marks() if mark.get("released", True)]

    def statements(self) -> list[Statement]:
        """What the ledger said when it was last kept in each place; none of a place that version 1 wrote."""
        found = []
        for mark in self._marks():
            with suppress(ValueError, KeyError, TypeError):
                found.append(Statement.from_json(mark))
        return found

    def _marks(self) -> list[dict[str, Any]]:
        return [read_json(path) for path in self._paths if path.exists()]

    def keep(self, ledger: Ledger) -> None:
        """Writes the present head; before a reply leaves. Raises PrivacyRefusal where no place takes it."""
        head = ledger.head
        if head == self._last or not self._paths:
            return
        mark = {**statement.of_ledger(ledger).to_json(), "home": str(self._home.path)}
        kept = 0
        for path in self._paths:
            try:
                make_folder(path.parent)
                write_json(path, mark)
                kept += 1
            except OSError:
                continue  # a data folder that is mounted read-only; the other place has to do
        if not kept:
            raise PrivacyRefusal(
                f"the ledger's head cannot be kept outside {self._home.path}",
                f"make {self._paths[0].parent} or {self._paths[-1].parent} writable, and look at the free space",
            )
        self._last = head


def _read(home: PartyHome, path: Path, text: str, label: str, user: str) -> DataSet:
    table = read_table(path, text, label or None, user or None, skip_empty=True)
    return DataSet(table, keys.secret(home, "data"))


def _budget(policy: HospitalPolicy) -> Budget:
    # An unset budget is the smallest there is, never none.
    return Budget(policy.total_epsilon or 1e-12, policy.total_delta, policy.total_parts)


def checkpoint_name(table: Table, checkpoints: Path) -> str:
    """Of the second place, found by content, so that a renamed or copied file has the same mark."""
    return fingerprint(table, _salt(checkpoints))[:40]


def _salted(checkpoints: Path) -> str:
    return hashlib.sha256(_salt(checkpoints)).hexdigest()


def _salt(checkpoints: Path) -> bytes:
    path = checkpoints / "salt"
    try:
        make_folder(checkpoints)
        if not path.exists():
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(32))
    except FileExistsError:
        pass
    except OSError:
        return bytes(32)  # no state folder can be made: the mark beside the data has to do
    return path.read_bytes()


def _check(heads: Sequence[str], ledger: Ledger | None) -> None:
    if ledger is None:
        if heads:
            raise PrivacyRefusal("releases were made from this data set, and their ledger is not here", RESTORE)
        return
    if not _holds(ledger, heads):
        raise PrivacyRefusal("the ledger is older than the releases that were made from this data set", RESTORE)


def _holds(ledger: Ledger, heads: Sequence[str]) -> bool:
    return {_START, *(entry["hash"] for entry in ledger.entries())}.issuperset(heads)


def _restore(home: PartyHome, backup: Path, heads: Sequence[str]) -> None:
    Ledger.verify(backup)
    if home.ledger.exists() and any(entry["kind"] == "charge" for entry in _entries(home.ledger)):
        raise PrivacyRefusal(
            f"{home.ledger}: a ledger with charges is here already", "a ledger that counts is never replaced"
        )
    copy = home.ledger.with_name(".restored.jsonl")
    try:
        shutil.copyfile(backup, copy)
        os.chmod(copy, FILE_MODE)
        _check(heads, Ledger.read(copy))
        # The journal beside it may be older than it: what it would answer could be a second vector under old masks.
        _discard_journal(home)
        os.replace(copy, home.ledger)
    finally:
        copy.unlink(missing_ok=True)


def continue_lost(
    home: PartyHome,
    kept: LedgerCheckpoints,
    fingerprint: str,
    policy: HospitalPolicy,
    receipts: Sequence[tuple[Manifest, Receipt]] = (),
    *,
    at: float,
) -> Ledger:
    """Continues a lost ledger, or one that is older than its checkpoints, at the price of all that may be missing.

    One entry charges what checkpoints and receipts show and, for every run of which they do not show the end, its whole
    plan; these runs are over for this party. Where no checkpoint shows what was charged, the whole budget counts as
    spent too: the policy's, and more than any where it has none. What the journal held is discarded.

    Args:
        kept: of the data set.
        fingerprint: of the data set (keyed, hex).
        receipts: this party's own, checked (``receipt.check_receipt``), with the manifests of their runs.
        at: seconds since the epoch.

    Raises ConfigurationError where nothing is missing, PrivacyRefusal where the ledger that is here is broken.
    """
    heads = kept.read()
    ledger = Ledger.read(home.ledger) if home.ledger.exists() else None
    complete = not (heads or receipts) if ledger is None else _holds(ledger, heads)
    if complete:
        raise ConfigurationError(
            "the ledger holds everything that its checkpoints know of", "use it: there is nothing to continue"
        )
    statements = sorted(kept.statements(), key=lambda found: found.entries, reverse=True)
    runs: dict[str, RunSpending] = {}
    for spent in (spent for found in statements for spent in found.runs):
        runs.setdefault(spent.run, spent.at_most())
    for manifest, receipt in receipts:
        runs[manifest.run] = _spending(manifest, receipt).at_most(runs.get(manifest.run))
    budgets = [
        budget
        for budget in (statements[0].lost_budgets if statements else (_budget(policy) if policy.has_budget else None,))
        if ledger is None or budget not in ledger.lost()[1]
    ]
    _discard_journal(home)
    if ledger is None:
        ledger = Ledger.open(home.ledger, fingerprint, _budget(policy), at=at)
    ledger.lose(statement.missing(ledger, runs.values()), budgets, at=at)
    ledger.adopt(fingerprint, at=at)
    kept.keep(ledger)
    return ledger


def _spending(manifest: Manifest, receipt: Receipt) -> RunSpending:
    plan = manifest.plan
    return RunSpending(
        manifest.run,
        manifest.hash.hex(),
        statement.compressed(event for charge in receipt.counted for event in charge.events),
        statement.compressed(plan[charge.query].event_alone(plan.quorum) for charge in receipt.charges),
        PlanPrice(tuple(plan.charged_events()), tuple(plan.alone_events())),
        receipt.closed,
    )


def _discard_journal(home: PartyHome) -> None:
    if home.is_running:
        raise ConfigurationError(f"{home.path}: a daemon runs here", "stop it first: systemctl stop undersong-party")
    store.discard(home.journal, home.attempts)


def _entries(path: Path) -> list[dict[str, Any]]:
    return Ledger.read(path).entries()


def _writable(folder: Path) -> bool:
    try:
        make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
