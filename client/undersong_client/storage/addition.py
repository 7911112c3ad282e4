"""Adds a data set in four steps, each of which is safe to repeat: whoever is interrupted gives the same command again.

The steps stand in this order so that no crash between two of them lets a run be answered from records that nobody
counted, or gives the budget of an earlier version back.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from undersong_client import keys
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import Declared, PartyHome, make_folder
from undersong_client.records import snapshot, sources
from undersong_client.records.objections import Objections, hash_list, identifier_digest
from undersong_client.records.private import DataSet, hold_out
from undersong_client.storage.checkpoints import (
    LedgerCheckpoints,
    RestoredLedger,
    Source,
    beside,
    budget_of,
    check,
    checkpoint_name,
    former_name,
    recover,
    salted,
)
from undersong_client.storage.datasets import (
    EXCLUSIONS_TAG,
    Added,
    Survey,
    accepted_shares,
    checkpoints_of,
    declare,
    survey,
    warnings_about,
)
from undersong_common.errors import ConfigurationError
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_common.printable import printable
from undersong_common.privacy.ledger import Ledger
from undersong_common.program.chain import HashChain
from undersong_common.text.table import Table


@dataclass(frozen=True)
class AdditionOptions:
    """Decisions of a person about the addition of a data set, and what the person is told meanwhile.

    Attributes:
        cache: folder for encrypted embeddings; None takes the one beside the data.
        new_version: True replaces the present data set; what was spent stays spent.
        abandon: True ends the runs under way, at what they have charged; they never meet another version.
        source: sources of the ledger, if it is missing or older.
        confirm: called with warnings about this data set, if there are any; raises an error to refuse.
        rows_read: called with the number of rows that were read, now and then.
    """

    cache: Path | None = None
    new_version: bool = False
    abandon: bool = False
    source: Source = field(default_factory=Source)
    confirm: Callable[[Sequence[str]], None] = lambda _cautions: None
    rows_read: Callable[[int], None] = lambda _rows: None


DEFAULT_OPTIONS = AdditionOptions()


@dataclass(frozen=True)
class ReadSource:
    """A source as it was read, before anything is written.

    Attributes:
        reading: the records that take part.
        held_out: records that are kept out to judge a corpus by.
        records: the records that take part, with their fingerprint.
        accepted_shares: shares of lost rows, by the reason, that a person has accepted.
        checkpoints: heads of the data set's ledger.
    """

    reading: sources.SourceReading
    held_out: Table
    records: DataSet
    accepted_shares: Mapping[str, float]
    checkpoints: LedgerCheckpoints


@dataclass(frozen=True)
class BoundLedger:
    """The ledger of the data set.

    Attributes:
        restored: how the ledger was restored; None if it was not missing.
        lapsed_runs: runs whose approval has lapsed, because it was given for another data set.
    """

    ledger: Ledger
    restored: RestoredLedger | None
    lapsed_runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addition:
    """Declares a source as this party's data set and seals a copy, which the party answers from; sends nothing.

    Attributes:
        checkpoints: the user's folder for heads of ledgers.
        at: time now, seconds since the epoch.
        embedder: the model that the data set is bound to; None in tests, which bind it to none and count no long text.
    """

    home: PartyHome
    declared: Declared
    policy: HospitalPolicy
    checkpoints: Path
    at: float
    embedder: Embedder | None = None
    options: AdditionOptions = field(default_factory=AdditionOptions)

    def run(self) -> Added:
        """Reads the source, binds the ledger, seals the records and publishes the ledger's checkpoint, in this order.

        Raises:
            ConfigurationError: the source cannot be read, a declared column is missing, a data set was added already
                and ``new_version`` is not set, or a run is under way and ``abandon`` is not set.
            PrivacyRefusal: a run was answered from this data set before, and its ledger is missing here.
        """
        read_source = self.read()
        bound_ledger = self.bind(read_source)
        sealed_counts = self.seal(read_source)
        self.publish_checkpoint(read_source, bound_ledger)
        return Added(
            sealed_counts,
            bound_ledger.ledger,
            bound_ledger.restored,
            unit_of=read_source.reading.unit_of,
            lapsed_runs=bound_ledger.lapsed_runs,
        )

    def read(self) -> ReadSource:
        """Reads the records and has a person confirm the warnings; writes nothing."""
        party_home = self.home
        absolute_source = self.declared.absolute()
        source_reading = sources.read(absolute_source, progress=self.options.rows_read)
        source_reading.check_patients()
        whole_table = source_reading.table
        data_secret = keys.secret(party_home, "data")
        # The names are hashes of the whole file, before records are held out. Which records are held out depends on the
        # folder's key: a name of the rest would not recognise the same file in another folder.
        checkpoint_key = checkpoint_name(whole_table, self.checkpoints)
        name_before = former_name(whole_table, self.checkpoints)
        remaining_table, held_out = hold_out(whole_table, data_secret, absolute_source.hold_out)
        source_reading = replace(source_reading, table=remaining_table)
        self.options.confirm(warnings_about(party_home, source_reading, self.policy, absolute_source))
        accepted_loss = accepted_shares(party_home, absolute_source)
        return ReadSource(
            source_reading,
            held_out,
            DataSet(remaining_table, data_secret),
            source_reading.lost_shares if source_reading.loses_more(accepted_loss) else accepted_loss,
            LedgerCheckpoints(party_home, absolute_source.path, checkpoint_key, self.checkpoints, name_before),
        )

    def bind(self, source: ReadSource) -> BoundLedger:
        """Binds the ledger to the data set, and ends the checkpoints of the version before.

        These end before the new version is sealed. After a crash here, they count the whole budget of a file that
        somebody adds again without this ledger; with it, they are written anew.
        """
        party_home = self.home
        fingerprint = source.records.fingerprint
        restoration_source = self.options.source
        restored_ledger: RestoredLedger | None = None
        ledger: Ledger | None = None
        if restoration_source.named:
            restored_ledger = recover(
                party_home, source.checkpoints, fingerprint, self.policy, restoration_source, at=self.at
            )
            ledger = restored_ledger.ledger
        elif party_home.ledger.exists():
            ledger = Ledger.read(party_home.ledger)
        is_changed = self._is_changed(ledger, fingerprint)
        if is_changed and restored_ledger is None and not self.options.new_version:
            raise ConfigurationError(
                "another data set, another version of it, or the same with another embedder, was added before",
                "one party has one data set. If this file replaces it, add --new-version: what was spent stays spent",
                code="another-data-set",
            )
        check(source.checkpoints.read(), ledger)
        _check_hold_out(party_home, self.declared, ledger)
        lapsed_runs: tuple[str, ...] = ()
        if is_changed and ledger is not None:
            _end_runs(ledger, self.options.abandon, self.at)
            begun_runs = {(run_total.run, run_total.manifest) for run_total in ledger.totals()}
            lapsed_runs = tuple(Proposals(party_home).lapse_unbegun(begun_runs, at=self.at))
        ledger = ledger or Ledger.open(party_home.ledger, fingerprint, budget_of(self.policy), at=self.at)
        ledger.adopt(fingerprint, at=self.at)
        declare(ledger, self.policy, at=self.at)
        with suppress(ConfigurationError):  # the first data set, or a sealed copy that is damaged
            earlier_checkpoints, _ = checkpoints_of(party_home, self.checkpoints)
            whole_budget = None
            if self.policy.has_budget:
                whole_budget = budget_of(self.policy)
            earlier_checkpoints.leave(ledger, source.checkpoints, whole_budget)
        return BoundLedger(ledger, restored_ledger, lapsed_runs)

    def seal(self, source: ReadSource) -> Survey:
        """Seals the records, and declares them in the settings; returns their counts."""
        party_home = self.home
        held_out = source.held_out
        settings = self.home.settings
        absolute_source = self.declared.absolute()
        record_texts = source.records.table.texts
        if self.embedder is None:
            lengths = TextLengths(len(record_texts), 0, 0)
        else:
            lengths = self.embedder.lengths(record_texts)
        snapshot_facts = snapshot.Facts(
            source.records.fingerprint,
            source.checkpoints.name,
            salted(self.checkpoints),
            len(record_texts),
            self._model,
            lengths.long,
            lengths.cut,
            self.at,
            _left_out(source.reading, len(held_out)),
        )
        if source.reading.objections is not None:
            _log_exclusion(party_home, source.records, source.reading.objections, self.at)
        # The setting is stored before the records. Otherwise a run could be answered after an interruption here, from
        # records that count as held out afterwards.
        party_home.change(hold_out=_still_out(absolute_source, settings))
        snapshot.seal(party_home, source.records.table, snapshot_facts)
        if len(held_out):
            snapshot.seal(party_home, held_out, replace(snapshot_facts, rows=len(held_out)), held_out=True)
        else:
            party_home.held_out.unlink(missing_ok=True)
        party_home.change(
            **asdict(absolute_source), cache=str(self._make_cache()), accepted_shares=source.accepted_shares
        )
        return replace(survey(source.reading, lengths), held_out=len(held_out))

    def publish_checkpoint(self, source: ReadSource, bound: BoundLedger) -> None:
        """Keeps the ledger's head outside the party's folder."""
        source.checkpoints.keep(bound.ledger)

    @property
    def _model(self) -> str:
        if self.embedder is None:
            return ""
        return self.embedder.fingerprint

    def _is_changed(self, ledger: Ledger | None, fingerprint: str) -> bool:
        """Returns True if another data set, or the same with another embedder, was added before."""
        was_other = ledger is not None and bool(self.home.settings.data) and ledger.fingerprint != fingerprint
        with suppress(ConfigurationError):  # there is no sealed copy, or it is damaged
            was_other = was_other or snapshot.facts(self.home).embedder not in ("", self._model)
        return was_other

    def _make_cache(self) -> Path:
        """Makes the folder of the embeddings; in the party's folder where none beside the data can be written."""
        cache_path = (self.options.cache or beside(self.declared.absolute().path)).absolute()
        is_test = self.home.settings.insecure_noise_seed is not None
        if self.options.cache is None and (is_test or not _writable(cache_path)):
            cache_path = self.home.path / "cache"
        make_folder(cache_path)
        return cache_path


def _left_out(reading: sources.SourceReading, held_out: int) -> dict[str, int]:
    """Number of rows by the reason for which they are no records of the data set."""
    objected_records = reading.objections.records if reading.objections else 0
    return {
        **Counter(skipped_row.why for skipped_row in reading.skipped),
        "of patients who object": objected_records,
        "held out, to judge a corpus by": held_out,
    }


def _end_runs(ledger: Ledger, abandon: bool, at: float) -> None:
    """Closes runs under way if ``abandon`` is set, and raises ConfigurationError for them otherwise.

    A run ends on the version of the data set with which it began.
    """
    open_totals = [run_total for run_total in ledger.totals() if not run_total.closed]
    if open_totals and not abandon:
        run_words = ", ".join(printable(run_total.run, 63) for run_total in open_totals)
        raise ConfigurationError(
            f"runs are under way on the present version: {run_words}",
            "let them end; or end them here, at what they have charged: --abandon-runs",
            code="runs-under-way",
        )
    for open_total in open_totals:
        ledger.close(open_total.run, open_total.manifest, at=at)


def _still_out(declared: Declared, before: Declared) -> int:
    """Per cent of the records that were held out with the settings ``before`` and stay so."""
    user_column = declared.user_field or before.user_field
    if user_column:
        is_same_rule = _naming(declared) == _naming(before)
    else:
        is_same_rule = declared.text_field == before.text_field
    if is_same_rule:
        return min(declared.hold_out, before.hold_out)
    return 0


def _naming(declared: Declared) -> tuple[object, ...]:
    """Returns the settings that name the units of a data set, and so decide the side of the hold-out of each record."""
    kind_choice = declared.choice
    return declared.user_field, kind_choice.same, "bases" in kind_choice.other, dict(declared.fhir_systems)


def _check_hold_out(home: PartyHome, declared: Declared, ledger: Ledger | None) -> None:
    """Raises ConfigurationError if records would count as held out from which a run was answered before."""
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
    chain = HashChain(home.exclusions, EXCLUSIONS_TAG)
    with chain.locked():
        chain.append(
            at=at,
            list=hash_list(data.key, objections.units),
            identifiers=len(objections.units),
            patients=objections.present,
            records=objections.records,
            matched=sorted(identifier_digest(data.key, matched_name) for matched_name in objections.matched),
            out=sorted(identifier_digest(data.key, objector_id) for objector_id in objections.out),
            resembling=sorted(
                identifier_digest(data.key, name_pair)
                for resembling_pairs in objections.resembling.values()
                for name_pair in resembling_pairs
            ),
        )


def _writable(folder: Path) -> bool:
    try:
        make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
