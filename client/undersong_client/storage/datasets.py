"""Adds and opens the data set: counts its records, seals a copy, and binds it to its ledger outside the folder too."""

import hmac
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import Declared, PartyHome, make_folder
from undersong_client.records import cautions, snapshot, sources
from undersong_client.records.declared import Skipped
from undersong_client.records.objections import Objections, SealedObjections, exclusion_sentence, identifier_digest
from undersong_client.records.private import DataSet, fingerprint, hold_out
from undersong_client.storage.checkpoints import (
    RESTORE,
    LedgerCheckpoints,
    Restored,
    Source,
    beside,
    budget_of,
    check,
    checkpoint_name,
    former_name,
    recover,
    salted,
)
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_common.printable import printable
from undersong_common.privacy.ledger import Ledger
from undersong_common.program.chain import HashChain
from undersong_common.text.patient_ids import LookAlikes, PatientId

NO_ROWS = "the source holds no row: see whether its path is right and its export has ended"
EXCLUSIONS_TAG = "undersong exclusions 1"  # domain of the hashes of the log of lists


@dataclass(frozen=True)
class Survey:
    """Counts that ``data add`` prints on the hospital's own screen.

    Attributes:
        rows: of the source, those that were not read included.
        empty: rows without text; they take no part.
        lost: rows and documents that could have been records and were not read, the empty ones included.
        refused: rows without a label or patient id, in a dry run; ``data add`` stops at the first one.
        duplicates: records whose text another record has too; they count.
        labels: records by label; empty where there is no label column.
        users: distinct user ids, None where there is no user column.
        largest_user: records of the user who has most.
        lengths: how many texts the embedder reads in several windows, or not to their ends.
        skipped: rows or resources that were not read, each with its reason.
        listed_identifiers: identifiers on the exclusion list; None without a list.
        excluded_patients, excluded_records: identifiers of that list that are in the source, and records that they
            keep out.
        look_alikes: ids that may be one patient or two, and identifiers of the exclusion list that match only such an
            id: the kinds of difference, their number and their places.
        filter_rows: numbers of rows into and out of the hospital's filter; None without one.
        missing_words: texts and labels that are a word for a missing value (None, N/A); they count.
        label_forms: labels that differ by capital letters only.
        held_out: records that are kept out to judge a corpus by.
    """

    rows: int
    empty: int
    records: int
    duplicates: int
    labels: dict[str, int]
    users: int | None
    largest_user: int | None
    lengths: TextLengths
    skipped: tuple[Skipped, ...] = ()
    excluded_patients: int = 0
    excluded_records: int = 0
    held_out: int = 0
    lost: int = 0
    refused: int = 0
    listed_identifiers: int | None = None
    look_alikes: tuple[LookAlikes, ...] = ()
    filter_rows: tuple[int, int] | None = None
    missing_words: int = 0
    label_forms: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Added:
    """Result of adding a data set.

    Attributes:
        restored: the restored ledger, if the ledger had to be restored.
        without_vector: number of records for which the embedder fails; their vectors are zero.
        unit_of: returns the user id that the data set has for an id as a source writes it.
    """

    survey: Survey
    ledger: Ledger
    restored: Restored | None = None
    without_vector: int = 0
    unit_of: Callable[[PatientId], str] = lambda identity: identity.text

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.survey),
            "fingerprint": self.ledger.fingerprint,
            "ledger_entries": len(self.ledger.entries()),
            "without_vector": self.without_vector,
            "restored": None if self.restored is None else self.restored.to_json(),
        }


def load(home: PartyHome) -> DataSet:
    """Reads the data set from its sealed copy. Raises ConfigurationError if the copy is missing or damaged."""
    _check_added(home)
    return DataSet(snapshot.table(home), keys.secret(home, "data"))


def changed_since(home: PartyHome) -> str:
    """Returns in words how the file differs from the added data set; empty if it is the same."""
    settings = home.settings
    if not settings.is_files:
        return ""  # looking would ask the database, or start the hospital's filter
    try:
        table, _ = hold_out(sources.read(settings).table, keys.secret(home, "data"), settings.hold_out)
    except ConfigurationError as error:
        return error.problem
    is_same = fingerprint(table, keys.secret(home, "data")) == snapshot.facts(home).fingerprint
    return "" if is_same else f"{settings.data}: is not what was added any more"


def _check_added(home: PartyHome) -> None:
    if not home.settings.data:
        raise ConfigurationError(
            "no data set was added", "add one: undersong-party data add FILE --text-field NAME --label-field NAME"
        )


def survey(reading: sources.Reading, lengths: TextLengths) -> Survey:
    table = reading.table
    users = Counter(table.users or ())
    objections = reading.objections
    return Survey(
        rows=reading.rows,
        empty=reading.empty,
        records=len(table),
        duplicates=len(table) - len(set(table.texts)),
        labels=dict(sorted(Counter(table.labels or ()).items())),
        users=len(users) if table.users is not None else None,
        largest_user=max(users.values()) if users else None,
        lengths=lengths,
        skipped=reading.skipped,
        listed_identifiers=None if objections is None else len(objections.units),
        excluded_patients=objections.present if objections else 0,
        excluded_records=objections.records if objections else 0,
        lost=reading.lost,
        refused=reading.refused,
        look_alikes=reading.look_alikes + (objections.look_alikes if objections else ()),
        filter_rows=reading.filter_rows,
        missing_words=reading.missing_words,
        label_forms=tuple(reading.label_forms),
    )


def add(
    home: PartyHome,
    declared: Declared,
    *,
    policy: HospitalPolicy,
    checkpoints: Path,
    cache: Path | None = None,
    embedder: Embedder | None = None,
    new_version: bool = False,
    abandon: bool = False,
    source: Source | None = None,
    confirm: Callable[[Sequence[str]], None] = lambda _cautions: None,
    rows_read: Callable[[int], None] = lambda _rows: None,
    at: float,
) -> Added:
    """Declares a source as this party's data set and seals a copy, which the party answers from; sends nothing.

    Args:
        checkpoints: the user's folder for heads of ledgers.
        cache: where embeddings are kept, encrypted; None keeps them beside the data.
        embedder: that the data set is bound to; None in tests, which bind it to none and count no long text.
        new_version: the file replaces the present data set; what was spent stays spent.
        abandon: ends the runs that are under way, at what they have charged; they never meet another version.
        source: what its ledger is put together from, where that is missing or older.
        confirm: called with what speaks against this data set, where something does; may refuse.
        rows_read: called with the number of rows that were read, now and then.
        at: seconds since the epoch.

    Raises:
        ConfigurationError: the file, a column, a second data set without ``new_version``, or a run under way without
            ``abandon``.
        PrivacyRefusal: the data set was released from before and its ledger is not here.
    """
    declared = declared.absolute()
    path = declared.path
    reading = sources.read(declared, progress=rows_read)
    reading.check_patients()
    # The name covers the whole file: a part that another folder's key divides off would be an unknown data set.
    name = checkpoint_name(reading.table, checkpoints)
    remaining, held_out = hold_out(reading.table, keys.secret(home, "data"), declared.hold_out)
    reading = replace(reading, table=remaining)
    data = DataSet(reading.table, keys.secret(home, "data"))
    confirm(warnings_about(home, reading, policy, declared))
    accepted = _accepted_shares(home, declared)
    if reading.loses_more(accepted):
        accepted = reading.lost_shares
    ledger_checkpoints = LedgerCheckpoints(home, path, name, checkpoints, former_name(reading.table, checkpoints))
    restored = None
    if source is not None and source.named:
        restored = recover(home, ledger_checkpoints, data.fingerprint, policy, source, at=at)
    has_ledger = home.ledger.exists()
    model = "" if embedder is None else embedder.fingerprint
    is_changed = has_ledger and bool(home.settings.data) and Ledger.read(home.ledger).fingerprint != data.fingerprint
    with suppress(ConfigurationError):  # there is no sealed copy, or it is damaged
        is_changed = is_changed or snapshot.facts(home).embedder not in ("", model)
    if is_changed and restored is None and not new_version:
        raise ConfigurationError(
            "another data set, another version of it, or the same with another embedder, was added before",
            "one party has one data set. If this file replaces it, add --new-version: what was spent stays spent",
            code="another-data-set",
        )
    ledger = restored.ledger if restored is not None else Ledger.read(home.ledger) if has_ledger else None
    check(ledger_checkpoints.read(), ledger)
    _check_hold_out(home, declared, ledger)
    if is_changed and ledger is not None:
        _end_runs(ledger, abandon, at)
    ledger = ledger or Ledger.open(home.ledger, data.fingerprint, budget_of(policy), at=at)
    ledger.adopt(data.fingerprint, at=at)
    declare(ledger, policy, at=at)
    earlier = None
    with suppress(ConfigurationError):  # the first data set, or a sealed copy that is damaged
        earlier, _ = checkpoints_of(home, checkpoints)
    texts = data.table.texts
    lengths = TextLengths(len(texts), 0, 0) if embedder is None else embedder.lengths(texts)
    facts = snapshot.Facts(
        data.fingerprint,
        ledger_checkpoints.name,
        salted(checkpoints),
        len(texts),
        model,
        lengths.long,
        lengths.cut,
        at,
        _left_out(reading, len(held_out)),
    )
    if reading.objections is not None:
        _log_exclusion(home, data, reading.objections, at)
    # The setting is stored before the records. Otherwise a run could be answered after an interruption here, from
    # records that count as held out afterwards.
    home.change(hold_out=_still_out(declared, home.settings))
    snapshot.seal(home, data.table, facts)
    if len(held_out):
        snapshot.seal(home, held_out, replace(facts, rows=len(held_out)), held_out=True)
    else:
        home.held_out.unlink(missing_ok=True)
    place = (cache or beside(path)).absolute()
    if cache is None and (home.settings.insecure_noise_seed is not None or not _writable(place)):
        place = home.path / "cache"
    make_folder(place)
    home.change(**asdict(declared), cache=str(place), accepted_shares=accepted)
    ledger_checkpoints.keep(ledger)
    if earlier is not None:
        earlier.leave(ledger, ledger_checkpoints, budget_of(policy) if policy.has_budget else None)
    return Added(replace(survey(reading, lengths), held_out=len(held_out)), ledger, restored, unit_of=reading.unit_of)


def warnings_about(home: PartyHome, reading: sources.Reading, policy: HospitalPolicy, declared: Declared) -> list[str]:
    """Returns what speaks against sealing these records, for a person to confirm."""
    warnings = reading.cautions(sealed_objections(home), _accepted_shares(home, declared))
    if policy.approval == "standing":
        return warnings + cautions.of_standing_consent(policy, reading.table, declared.user_is)
    return warnings + ([] if len(reading.table) else [cautions.EMPTY if reading.rows else NO_ROWS])


def _accepted_shares(home: PartyHome, declared: Declared) -> Mapping[str, float]:
    """Shares of lost rows, by the reason, that a person has accepted for this source; none of another one's."""
    return home.settings.accepted_shares if declared.data == home.settings.data else {}


def _left_out(reading: sources.Reading, held_out: int) -> dict[str, int]:
    """Number of rows by the reason for which they are no records of the data set."""
    objected = reading.objections.records if reading.objections else 0
    return {
        **Counter(row.why for row in reading.skipped),
        "of patients who object": objected,
        "held out, to judge a corpus by": held_out,
    }


def last_exclusion(home: PartyHome) -> Mapping[str, Any] | None:
    """Returns the counts of the exclusion list that acted when the data set was sealed; None if none acted."""
    if not home.settings.exclusions or not home.exclusions.exists():
        return None
    chain = HashChain(home.exclusions, EXCLUSIONS_TAG)
    chain.refresh()
    return chain.entries[-1] if chain.entries else None


def exclusion_words(home: PartyHome) -> str:
    """Returns the effect of the exclusion list on the sealed data set as a sentence; "" if no list acts."""
    entry = last_exclusion(home)
    if entry is None:
        return ""
    return exclusion_sentence(entry["identifiers"], entry["patients"], entry["records"])


def sealed_objections(home: PartyHome) -> SealedObjections | None:
    """Returns the effect of the list at the last seal; None without a list then."""
    entry = last_exclusion(home)
    if entry is None:
        return None
    # A log of before has no hashes.
    matched, objecting = (frozenset(entry.get(name, ())) for name in ("matched", "out"))
    return SealedObjections(int(entry["patients"]), matched, objecting, keys.secret(home, "data"))


def check_retention(home: PartyHome, at: float) -> None:
    """Raises PrivacyRefusal if the last day for use of the data set, which its people set, is over."""
    last = home.settings.keep_until
    if last and date.fromtimestamp(at) > date.fromisoformat(last):
        raise PrivacyRefusal(
            f"the data set was to be kept until {last}: it is not answered from any more",
            "undersong-party data erase; or keep it longer: undersong-party data keep-until DATE",
            code="retention-over",
        )


def open_ledger(
    home: PartyHome, policy: HospitalPolicy, checkpoints: Path, *, at: float
) -> tuple[Ledger, LedgerCheckpoints]:
    """Opens the data set's ledger, checks it against its checkpoints, and declares the policy's budget.

    Raises:
        ConfigurationError: no data set was added.
        PrivacyRefusal: the ledger is missing, too old, broken, or of another version of the data.
    """
    check_retention(home, at)
    ledger_checkpoints, version = checkpoints_of(home, checkpoints)
    if not home.ledger.exists():
        raise PrivacyRefusal(f"{home.ledger}: the data set's ledger is missing", RESTORE, code="ledger-missing")
    ledger = Ledger.read(home.ledger)
    check(ledger_checkpoints.read(), ledger)
    if ledger.fingerprint != version:
        raise PrivacyRefusal(
            f"{home.sealed}: is another version of the data set than its ledger names",
            "declare the one that counts: undersong-party data add FILE, with --new-version if it differs",
        )
    declare(ledger, policy, at=at)
    ledger_checkpoints.keep(ledger)
    return ledger, ledger_checkpoints


def declare(ledger: Ledger, policy: HospitalPolicy, *, at: float) -> None:
    """Declares the policy's budget in the ledger, if the ledger has another one."""
    if ledger.budget != budget_of(policy):
        ledger.declare(budget_of(policy), at=at)


def checkpoints_of(home: PartyHome, checkpoints: Path) -> tuple[LedgerCheckpoints, str]:
    """Returns the checkpoints of the added data set's ledger, and the data set's fingerprint."""
    _check_added(home)
    facts = snapshot.facts(home)
    name = facts.checkpoint
    if facts.salted != salted(checkpoints):  # the user's state folder is another one than at `data add`
        name = checkpoint_name(snapshot.table(home), checkpoints)
    return LedgerCheckpoints(home, Path(home.settings.data), name, checkpoints), facts.fingerprint


def _end_runs(ledger: Ledger, abandon: bool, at: float) -> None:
    """Closes runs under way, or raises ConfigurationError: a run ends on the version that it began with."""
    runs = [total for total in ledger.totals() if not total.closed]
    if runs and not abandon:
        raise ConfigurationError(
            f"runs are under way on the present version: {', '.join(printable(run.run, 63) for run in runs)}",
            "let them end; or end them here, at what they have charged: --abandon-runs",
            code="runs-under-way",
        )
    for run in runs:
        ledger.close(run.run, run.manifest, at=at)


def _still_out(declared: Declared, before: Declared) -> int:
    """Per cent of the records that were held out with the settings ``before`` and stay so."""
    by_user = declared.user_field or before.user_field
    is_same_rule = _naming(declared) == _naming(before) if by_user else declared.text_field == before.text_field
    return min(declared.hold_out, before.hold_out) if is_same_rule else 0


def _naming(declared: Declared) -> tuple[object, ...]:
    """Returns the settings that name the units of a data set, and so decide the side of the hold-out of each record."""
    choice = declared.choice
    return declared.user_field, choice.same, "bases" in choice.other, dict(declared.fhir_systems)


def _check_hold_out(home: PartyHome, declared: Declared, ledger: Ledger | None) -> None:
    """Raises ConfigurationError where records that a run was answered from would count as held out."""
    was_charged = ledger is not None and (ledger.totals() or ledger.lost_budgets)
    if was_charged and declared.hold_out > _still_out(declared, home.settings):
        raise ConfigurationError(
            f"{home.ledger}: runs were answered from records that would be held out now",
            "leave --hold-out, the column that it goes by, --same-patient, --other-patient and --fhir-system"
            " as they were; judge a corpus by other records: undersong-party corpus check --held-out FILE",
            code="hold-out-too-late",
        )


def _log_exclusion(home: PartyHome, data: DataSet, objections: Objections, at: float) -> None:
    """Notes which list acted, in the party's own log: a keyed hash and counts, no identifier."""
    identifiers = json.dumps(sorted(objections.units)).encode("ascii")
    chain = HashChain(home.exclusions, EXCLUSIONS_TAG)
    with chain.locked():
        chain.append(
            at=at,
            list=hmac.digest(data.key, b"undersong exclusions\0" + identifiers, "sha256").hex(),
            identifiers=len(objections.units),
            patients=objections.present,
            records=objections.records,
            matched=sorted(identifier_digest(data.key, name) for name in objections.matched),
            out=sorted(identifier_digest(data.key, name) for name in objections.out),
        )


def _writable(folder: Path) -> bool:
    try:
        make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
