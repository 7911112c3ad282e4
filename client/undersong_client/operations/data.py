"""Actions on the data set and its ledger: declare the data set, restore a lost ledger, read the cost of releases."""

import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.consent import policy
from undersong_client.home import Declared, PartyHome, read_input
from undersong_client.operations.runs import end_attempts
from undersong_client.records import snapshot, sources
from undersong_client.records.declared import caution_remedy
from undersong_client.records.private import hold_out
from undersong_client.storage import datasets
from undersong_client.storage.addition import DEFAULT_OPTIONS, Addition, AdditionOptions
from undersong_client.storage.checkpoints import LedgerSpending, RestoredLedger, Source, read_receipts, recover
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import replace_file
from undersong_common.models.embedding import Embedder, Progress
from undersong_common.models.model_files import PACKAGED
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget, RunCost, budget_json
from undersong_common.program import notices
from undersong_common.text.patient_ids import patient_id
from undersong_common.text.table import Table

LARGEST_DRILL_BYTES = 2**20
EXAMPLES = 3  # masked texts of a dry run


@dataclass(frozen=True)
class Restoration:
    """Files from which a ledger is restored, as a person names them.

    Attributes:
        backup: a copy of the ledger; None without a copy.
        charge_missing: True if the owner agrees that everything that may be missing counts as spent.
        receipts: published ``manifest.json`` files that hold this party's receipts.
    """

    backup: Path | None = None
    charge_missing: bool = False
    receipts: Sequence[Path] = ()

    def read(self, home: PartyHome) -> Source:
        party = home.settings.party
        return Source(self.backup, self.charge_missing, tuple(read_receipts(path, party) for path in self.receipts))


NO_RESTORATION = Restoration()


def add(
    home: Path,
    declared: Declared,
    *,
    checkpoints: Path,
    options: AdditionOptions = DEFAULT_OPTIONS,
    restoration: Restoration = NO_RESTORATION,
    progress: Progress = lambda _done, _total: None,
) -> datasets.Added:
    """Declares a source as this party's data set and seals a copy; sends nothing.

    It first tries the embedder out. It embeds all records now, so that no private sum waits for that.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        options: decisions of a person; ``abandon`` also destroys the secrets of the runs that it ends.
        restoration: sources of the ledger, if releases were made before and it is missing.
        progress: called with (done, total) numbers of texts while they are embedded.

    Raises:
        ConfigurationError: the source or a column is wrong, the daemon is running, there is a data set already and
            not ``new_version``, a run is under way and not ``abandon``, or the embedder is broken.
        PrivacyRefusal: releases were made from the data set before and its ledger is missing.
    """
    party_home = PartyHome(home)
    with _told_of_stops(party_home):
        _check_drill(party_home, declared)
        embedder = party_home.settings.load_embedder()
        if party_home.settings.embedder != PACKAGED:
            embedder.try_out()
        with party_home.running():
            data_addition = Addition(
                party_home,
                declared,
                policy.read(party_home),
                checkpoints,
                time.time(),
                embedder,
                replace(options, source=restoration.read(party_home)),
            )
            added_data = data_addition.run()
    if options.abandon:
        # The attempts end before the embedding, which may take an hour and be interrupted.
        end_attempts(party_home, checkpoints)
    with party_home.running():
        unembedded_count = embed(party_home, embedder, progress)
    return replace(added_data, without_vector=unembedded_count)


@contextmanager
def _told_of_stops(home: PartyHome) -> Iterator[None]:
    """Tells the party's people when a data set is not sealed, because a refresh may run without anybody there."""
    try:
        yield
    except UndersongError:
        if home.settings.notify:
            notice = notices.Notice("data-stopped", home.settings.party, "", time.time())
            notices.deliver(home.settings.notify, notice, wait=lambda _pause_s: None)
        raise


@dataclass(frozen=True)
class Look:
    """Result of a dry run: a source that was read but not sealed.

    Attributes:
        examples: (label, number of characters, masked text) of three records.
        faults: (problem, remedy) of everything at which :func:`add` would stop.
    """

    survey: datasets.Survey
    examples: tuple[tuple[str, int, str], ...]
    faults: tuple[tuple[str, str], ...]


def look(home: Path, declared: Declared, *, rows_read: Callable[[int], None] = lambda _rows: None) -> Look:
    """Reads a source as :func:`add` would, without changing anything. Raises ConfigurationError as :func:`add`."""
    party_home = PartyHome(home)
    _check_drill(party_home, declared)
    source_reading = sources.read(declared.absolute(), dry=True, progress=rows_read)
    record_table, held_out = hold_out(source_reading.table, keys.secret(party_home, "data"), declared.hold_out)
    record_texts = record_table.texts
    record_labels = record_table.labels or ("",) * len(record_texts)
    examples = tuple(
        (label, len(text), sources.masked(text))
        for label, text in list(zip(record_labels, record_texts, strict=True))[:EXAMPLES]
    )
    source_reading = replace(source_reading, table=record_table)
    source_survey = datasets.survey(source_reading, party_home.settings.load_embedder().lengths(record_texts))
    return Look(
        replace(source_survey, held_out=len(held_out)),
        examples,
        tuple(_faults(party_home, source_reading, declared.absolute())),
    )


def _faults(home: PartyHome, reading: sources.SourceReading, declared: Declared) -> Iterator[tuple[str, str]]:
    """Yields (problem, remedy) of each reason for which :func:`add` would not seal these records."""
    yield from reading.refusals
    try:
        reading.check_patients()
    except ConfigurationError as error:
        yield error.problem, error.remedy
    for caution in datasets.warnings_about(home, reading, policy.read(home), declared):
        yield caution, caution_remedy([caution])


@dataclass(frozen=True)
class Refreshed:
    """Comparison of a new version of the data set with the one before.

    Attributes:
        added: the new version.
        new_records, gone_records: numbers of rows that only the new, or only the old version has.
        new_patients, gone_patients: numbers of user ids that only the new, or only the old version has.
        labels_before: number of records by label in the old version.
        joined_ids, joined_patients: numbers of ids that were users of their own in the old version, and of the
            patients whose they are in the new one.
    """

    added: datasets.Added
    new_records: int
    gone_records: int
    new_patients: int
    gone_patients: int
    labels_before: Mapping[str, int]
    joined_ids: int = 0
    joined_patients: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "added": self.added.to_json()}


def refresh(
    home: Path,
    *,
    same_patient: str = "",
    other_patient: str = "",
    checkpoints: Path,
    options: AdditionOptions = DEFAULT_OPTIONS,
    progress: Progress = lambda _done, _total: None,
) -> Refreshed:
    """Reads the declared source again and seals it as the next version; the ledger goes on, and what was spent counts.

    Args:
        same_patient, other_patient: new decisions about look-alikes, as in :meth:`Declared.decided`.
        options: as in :func:`add`; a refresh is always a new version, with its embeddings where they are.

    The remaining budget is the same for new patients: it never depends on who is in a version. Raises as :func:`add`.
    """
    party_home = PartyHome(home)
    with _told_of_stops(party_home):
        former_table = datasets.load(party_home).table
    added_data = add(
        home,
        Declared.of(party_home.settings).decided(same_patient, other_patient),
        checkpoints=checkpoints,
        options=replace(options, cache=Path(party_home.settings.cache), new_version=True),
        progress=progress,
    )
    record_table = datasets.load(party_home).table
    counted_rows = _counted_rows(record_table)
    rows_before = _counted_rows(former_table)
    patients = set(record_table.users or ())
    patients_before = set(former_table.users or ())
    joined_ids = _joined(patients_before, added_data)
    if joined_ids:
        joined_entry = {"at_s": time.time(), "ids": sum(map(len, joined_ids)), "patients": len(joined_ids)}
        party_home.change(joined_ids=[*party_home.settings.joined_ids, joined_entry])
    return Refreshed(
        added_data,
        (counted_rows - rows_before).total(),
        (rows_before - counted_rows).total(),
        len(patients - patients_before),
        len(patients_before - patients),
        dict(sorted(Counter(former_table.labels or ()).items())),
        sum(map(len, joined_ids)),
        len(joined_ids),
    )


def _joined(users_before: set[str], added: datasets.Added) -> list[list[str]]:
    """The users of the old version that are one patient in the new one, by patient."""
    ids_by_patient: dict[str, list[str]] = defaultdict(list)
    for user in users_before:
        with suppress(ConfigurationError):  # a former id that is none today is joined with nobody
            if (patient_identity := patient_id(user)) is not None:
                ids_by_patient[added.unit_of(patient_identity)].append(user)
    return [users for users in ids_by_patient.values() if len(users) > 1]


def _counted_rows(table: Table) -> Counter[tuple[str, ...]]:
    columns = [column for column in (table.texts, table.labels, table.users) if column is not None]
    return Counter(zip(*columns, *table.columns.values(), strict=True))


def keep_until(home: Path, last: date | None) -> None:
    """Sets the last day on which runs may use the data set; None sets no end."""
    PartyHome(home).change(keep_until="" if last is None else last.isoformat())


def erase(home: Path) -> None:
    """Deletes the sealed records and their embeddings; the ledger, which holds no record, stays with what was spent.

    Raises ConfigurationError if the daemon is running.
    """
    party_home = PartyHome(home)
    with party_home.running():
        for sealed_file in (party_home.sealed, party_home.held_out):
            sealed_file.unlink(missing_ok=True)
        if party_home.settings.cache:
            # The pattern also covers the files that SQLite keeps beside the cache.
            for path in Path(party_home.settings.cache).glob(snapshot.EMBEDDINGS + "*"):
                path.unlink()


def _check_drill(home: PartyHome, declared: Declared) -> None:
    if home.settings.drill and not invented(home, declared.path):
        raise ConfigurationError(
            f"{home.path}: is a drill's", "make a folder for real records: undersong-party init NAME", code="drill"
        )


def embed(home: PartyHome, embedder: Embedder, progress: Progress) -> int:
    """Embeds the records into the encrypted cache; returns the number of records for which the embedder fails."""
    from undersong_client.answering.computation import PartyEmbeddings

    return int((~PartyEmbeddings(home, embedder, progress)(datasets.load(home).table.texts).any(axis=1)).sum())


def invented(home: PartyHome, file: Path) -> bool:
    """Returns True if ``file`` is the unchanged file of invented records that was made with this drill."""
    if file.absolute() != home.drill_records or not file.is_file():
        return False
    return hashlib.sha256(read_input(file, LARGEST_DRILL_BYTES)).hexdigest() == home.settings.drill_sha256


def restore_ledger(
    home: Path,
    *,
    checkpoints: Path,
    backup: Path | None = None,
    charge_missing: bool = False,
    receipts: Sequence[Path] = (),
) -> RestoredLedger:
    """Restores a ledger that is missing, broken, or older than the last release.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        backup, charge_missing, receipts: as in :class:`Restoration`.

    Raises:
        ConfigurationError: nothing is missing, there is no data set, or the daemon is running.
        PrivacyRefusal: the backup lacks something, and ``charge_missing`` is False.
    """
    party_home = PartyHome(home)
    now_s = time.time()
    current_policy = policy.read(party_home)
    with party_home.running():
        restoration_source = Restoration(backup, charge_missing, receipts).read(party_home)
        ledger_checkpoints, fingerprint = datasets.checkpoints_of(party_home, checkpoints)
        restored_ledger = recover(
            party_home, ledger_checkpoints, fingerprint, current_policy, restoration_source, at=now_s
        )
        restored_ledger.ledger.adopt(fingerprint, at=now_s)
        datasets.declare(restored_ledger.ledger, current_policy, at=now_s)
        ledger_checkpoints.keep(restored_ledger.ledger)
        return restored_ledger


@dataclass(frozen=True)
class LedgerFacts:
    """Contents of the ledger for its owner.

    Attributes:
        verified: number of entries whose hashes were checked; None if this was not requested.
        runs: cost of each run, and the total after it.
        entries: the ledger's entries; a charge also has the ``epsilon`` of its release by itself.
    """

    fingerprint: str
    head: str
    verified: int | None
    budget: Budget | None
    spending: LedgerSpending
    runs: tuple[RunCost, ...]
    entries: tuple[Mapping[str, Any], ...]

    @property
    def total(self) -> str:
        """The total beside the operator's; "" before the first run, or if nothing bounds it."""
        spent_epsilon = self.spending.spent
        if not self.runs or spent_epsilon is None or not math.isfinite(spent_epsilon):
            return ""
        return impact.total(spent_epsilon, self.spending.delta, composed=True)

    def to_json(self) -> dict[str, Any]:
        is_unset = self.spending.budget is None
        return {
            "data": self.fingerprint,
            "head": self.head,
            "verified_entries": self.verified,
            "budget": None if is_unset else budget_json(self.budget),
            "spent_epsilon": self.spending.spent,
            "left_epsilon": self.spending.left,
            "runs": [asdict(run_cost) for run_cost in self.runs],
            "entries": self.entries,
        }


def ledger(home: Path, *, verify: bool = False) -> LedgerFacts:
    """Returns the cost of every release of the data set, and the budget that is left.

    Args:
        verify: True checks the hash of every entry, without changing anything.

    Raises ConfigurationError if there is no ledger, PrivacyRefusal if its hash chain is broken.
    """
    ledger_path = PartyHome(home).ledger
    if not ledger_path.exists():
        raise ConfigurationError(f"{ledger_path}: no such ledger", "add a data set first: undersong-party data add")
    if verify:
        Ledger.verify(ledger_path)
    party_ledger = Ledger.snapshot(ledger_path)  # a run may append to it between two of these figures
    ledger_spending = LedgerSpending.of(party_ledger)
    events_by_slot = {charge.slot: charge.events for charge in party_ledger.charges()}
    price_by_slot: dict[Any, float] = {}

    def priced(entry: Mapping[str, Any]) -> Mapping[str, Any]:

        charge_slot = (entry.get("run"), entry.get("query"), entry.get("attempt"))
        if entry["kind"] != "charge" or charge_slot not in events_by_slot:
            return entry
        charge_events = events_by_slot[charge_slot]
        if charge_events not in price_by_slot:
            price_by_slot[charge_events] = accounting.epsilon(charge_events, ledger_spending.delta)
        return {**entry, "epsilon": price_by_slot[charge_events]}

    return LedgerFacts(
        fingerprint=party_ledger.fingerprint,
        head=party_ledger.head,
        verified=len(party_ledger.entries()) if verify else None,
        budget=party_ledger.budget,
        spending=ledger_spending,
        runs=tuple(party_ledger.costs(ledger_spending.delta)),
        entries=tuple(map(priced, party_ledger.entries())),
    )


def back_up_ledger(home: Path, file: Path) -> None:
    """Copies the ledger to ``file``. Raises ConfigurationError if that file exists already."""
    if file.exists():
        raise ConfigurationError(f"{file}: exists already", "name another file")
    replace_file(file, PartyHome(home).ledger.read_bytes())
