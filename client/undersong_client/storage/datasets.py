"""Opens the data set and its ledger: counts records, reads the sealed copy, and checks the ledger's checkpoints."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import Declared, PartyHome
from undersong_client.records import cautions, snapshot, sources
from undersong_client.records.declared import Skipped
from undersong_client.records.objections import SealedObjections, exclusion_sentence
from undersong_client.records.private import DataSet, fingerprint, hold_out
from undersong_client.storage.checkpoints import (
    RESTORE,
    LedgerCheckpoints,
    RestoredLedger,
    budget_of,
    check,
    checkpoint_name,
    salted,
)
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import TextLengths
from undersong_common.printable import counted, joined, printable
from undersong_common.privacy.ledger import Ledger
from undersong_common.program.chain import HashChain
from undersong_common.text.patient_ids import LookAlikes, PatientId

NO_ROWS = "the source holds no row: see whether its path is right and its export has ended"
EXCLUSIONS_TAG = "undersong exclusions 1"  # domain of the hashes of the log of objectors' lists


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
        lapsed_runs: runs whose approval has lapsed, because people gave it for the data set before.
        unit_of: returns the user id that the data set has for an id as a source writes it.
    """

    survey: Survey
    ledger: Ledger
    restored: RestoredLedger | None = None
    without_vector: int = 0
    lapsed_runs: tuple[str, ...] = ()
    unit_of: Callable[[PatientId], str] = lambda identity: identity.text

    @property
    def lapse_words(self) -> str:
        """Sentence on the approvals that have lapsed; "" if none has."""
        if not self.lapsed_runs:
            return ""
        run_names = joined([printable(run, 63) for run in self.lapsed_runs])
        return f"the approval of {run_names} was for the data set before, and has lapsed: approve it once more"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.survey),
            "fingerprint": self.ledger.fingerprint,
            "ledger_entries": len(self.ledger.entries()),
            "without_vector": self.without_vector,
            "lapsed_runs": list(self.lapsed_runs),
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
        source_table, _ = hold_out(sources.read(settings).table, keys.secret(home, "data"), settings.hold_out)
    except ConfigurationError as error:
        return error.problem
    is_same = fingerprint(source_table, keys.secret(home, "data")) == snapshot.facts(home).fingerprint
    if is_same:
        return ""
    return f"{settings.data}: is not what was added any more"


def _check_added(home: PartyHome) -> None:
    if not home.settings.data:
        raise ConfigurationError(
            "no data set was added", "add one: undersong-party data add FILE --text-field NAME --label-field NAME"
        )


def survey(reading: sources.SourceReading, text_lengths: TextLengths) -> Survey:
    record_table = reading.table
    users = Counter(record_table.users or ())
    user_count = None
    if record_table.users is not None:
        user_count = len(users)
    objection_figures: dict[str, Any] = {}
    look_alikes = reading.look_alikes
    if reading.objections is not None:
        look_alikes += reading.objections.look_alikes
        objection_figures = {
            "listed_identifiers": len(reading.objections.units),
            "excluded_patients": reading.objections.present,
            "excluded_records": reading.objections.records,
        }
    return Survey(
        rows=reading.rows,
        empty=reading.empty,
        records=len(record_table),
        duplicates=len(record_table) - len(set(record_table.texts)),
        labels=dict(sorted(Counter(record_table.labels or ()).items())),
        users=user_count,
        largest_user=max(users.values(), default=None),
        lengths=text_lengths,
        skipped=reading.skipped,
        lost=reading.lost,
        refused=reading.refused,
        look_alikes=look_alikes,
        filter_rows=reading.filter_rows,
        missing_words=reading.missing_words,
        label_forms=tuple(reading.label_forms),
        **objection_figures,
    )


def warnings_about(
    home: PartyHome, reading: sources.SourceReading, policy: HospitalPolicy, declared: Declared
) -> list[str]:
    """Returns the warnings that a person has to confirm before these records are sealed."""
    warnings = reading.cautions(sealed_objections(home), accepted_shares(home, declared))
    if policy.approval == "standing":
        return warnings + cautions.of_standing_consent(policy, reading.table, declared.user_is)
    if len(reading.table):
        return warnings
    if reading.rows:
        return [*warnings, cautions.EMPTY]
    return [*warnings, NO_ROWS]


def accepted_shares(home: PartyHome, declared: Declared) -> Mapping[str, float]:
    """Returns the shares of lost rows, by the reason, that a person has accepted; {} if they are another source's."""
    if declared.data == home.settings.data:
        return home.settings.accepted_shares
    return {}


def last_exclusion(home: PartyHome) -> Mapping[str, Any] | None:
    """Returns the counts of the exclusion list that acted when the data set was sealed; None if none acted."""
    if not home.settings.exclusions or not home.exclusions.exists():
        return None
    chain = HashChain(home.exclusions, EXCLUSIONS_TAG)
    chain.refresh()
    if chain.entries:
        return chain.entries[-1]
    return None


def exclusion_words(home: PartyHome) -> str:
    """Returns the effect of the exclusion list on the sealed data set as a sentence; "" if no list acts."""
    exclusion_entry = last_exclusion(home)
    if exclusion_entry is None:
        return ""
    return exclusion_sentence(exclusion_entry["identifiers"], exclusion_entry["patients"], exclusion_entry["records"])


def exclusion_list_words(home: PartyHome) -> str:
    """Returns length and day of the exclusion list that acted when the data set was sealed; "" if none acted."""
    exclusion_entry = last_exclusion(home)
    if exclusion_entry is None:
        return ""
    day = datetime.fromtimestamp(exclusion_entry["at"], UTC)
    return f"by a list of {counted(exclusion_entry['identifiers'], 'number')}, read {day:%Y-%m-%d}"


def sealed_objections(home: PartyHome) -> SealedObjections | None:
    """Returns the effect of the list at the last seal; None without a list then."""
    exclusion_entry = last_exclusion(home)
    if exclusion_entry is None:
        return None
    # An entry that an earlier version wrote has no hashes.
    matched_digests, objecting_digests, resembling_digests = (
        frozenset(exclusion_entry.get(digest_list, ())) for digest_list in ("matched", "out", "resembling")
    )
    return SealedObjections(
        int(exclusion_entry["patients"]),
        matched_digests,
        objecting_digests,
        resembling_digests,
        str(exclusion_entry["list"]),
        keys.secret(home, "data"),
    )


def check_retention(home: PartyHome, at: float) -> None:
    """Raises PrivacyRefusal after the last day on which the hospital allows the use of the data set."""
    last_day = home.settings.keep_until
    if last_day and date.fromtimestamp(at) > date.fromisoformat(last_day):
        raise PrivacyRefusal(
            f"the data set was to be kept until {last_day}: it is not answered from any more",
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
    snapshot_facts = snapshot.facts(home)
    checkpoint_key = snapshot_facts.checkpoint
    if snapshot_facts.salted != salted(checkpoints):  # the user's state folder is another one than at `data add`
        checkpoint_key = checkpoint_name(snapshot.table(home), checkpoints)
    return LedgerCheckpoints(home, Path(home.settings.data), checkpoint_key, checkpoints), snapshot_facts.fingerprint
