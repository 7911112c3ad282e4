"""Reads the declared source of a data set into one table, and names each row that was not read with the reason.

A reader knows one kind of source, yields its rows and calls ``skip(place, reason)`` for each row that it does not read.
This module holds the steps for all kinds: the hospital's own filter, dotted column names, the mapping of labels, the
ids of patients, and the list of patients to leave out.
"""

import itertools
import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from undersong_client.home import Declared
from undersong_client.records import fhir
from undersong_client.records.database import select
from undersong_client.records.declared import (
    NO_LABEL_REMEDY,
    Cause,
    Caution,
    OpenedSource,
    Skipped,
    first_places,
    json_lines,
    look_alike_words,
)
from undersong_client.records.fhir.resources import is_lines
from undersong_client.records.objections import Objections, SealedObjections, without_objectors
from undersong_client.records.row_filter import RowFilter
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted
from undersong_common.program import extras
from undersong_common.text.patient_ids import (
    LookAlikes,
    PatientId,
    clean_text,
    find_look_alikes,
    is_database_null,
    is_missing_word,
)
from undersong_common.text.row_files import FileForm, Row, Several, folder_parts, has_suffix, plain_suffix, read_rows
from undersong_common.text.table import (
    EMPTY,
    EMPTY_CELL,
    Columns,
    NoLabel,
    NoText,
    RefusedRow,
    Table,
    TableBuilder,
    empty_reason,
    read_record,
)

ANY_LABEL = "*"  # this key of a label map stands for every label that the map does not name
LONGEST_EXAMPLE = 100  # characters of a masked example
LOST_SHARE = 20  # A person must confirm a source with more than one lost row in so many rows.
LINES_TRIED = 100  # first lines of a file in which a FHIR resource is looked for
NO_SHARES: Mapping[str, float] = MappingProxyType({})  # no share of lost rows was accepted for any reason
ROWS_A_NOTE = 1000  # rows that are read between two reports of progress


@dataclass(frozen=True)
class SourceReading:
    """Result of reading a source.

    Attributes:
        table: the records.
        rows: number of rows of the source, including those that were not read.
        skipped: rows that were not read, with the reason.
        objections: the list of patients to leave out and its effect; None without a list.
        look_alikes: ids that may be one patient or two, about which nobody has decided.
        filter_rows: numbers of rows that the hospital's filter has read and written; None without a filter.
        missing_words: number of texts and labels that are a word for a missing value, such as None or N/A; they count.
        unit_of: returns the user id that the table has for an id as a source writes it.
    """

    table: Table
    rows: int
    skipped: tuple[Skipped, ...]
    objections: Objections | None
    look_alikes: tuple[LookAlikes, ...]
    filter_rows: tuple[int, int] | None
    missing_words: int
    unit_of: Callable[[PatientId], str]

    @property
    def empty(self) -> int:
        """Number of rows without text."""
        return sum(row.why in (EMPTY, EMPTY_CELL) for row in self.skipped)

    @property
    def refused(self) -> int:
        """Number of rows that a dry run names, at which :func:`read` would stop otherwise."""
        return sum(row.cause == "refused" for row in self.skipped)

    @property
    def refusals(self) -> Iterator[tuple[str, str]]:
        """The reasons for which rows are refused, with their counts and first places, and the remedy of each."""
        for reason, skipped_rows in by_reason(row for row in self.skipped if row.cause == "refused"):
            yield (
                f"{counted(len(skipped_rows), 'row', 'rows')}: {reason}"
                f" ({first_places([row.places for row in skipped_rows])})",
                skipped_rows[0].remedy,
            )

    @property
    def lost(self) -> int:
        """Number of rows and documents that could have been records and were not read."""
        return sum(row.cause == "lost" for row in self.skipped)

    @property
    def label_forms(self) -> list[tuple[str, ...]]:
        """Groups of labels that differ in capital letters only."""
        forms_by_folding: dict[str, list[str]] = defaultdict(list)
        for label in sorted(set(self.table.labels or ())):
            forms_by_folding[label.casefold()].append(label)
        return [tuple(labels) for labels in forms_by_folding.values() if len(labels) > 1]

    def check_patients(self) -> None:
        """Raises ConfigurationError if ids of the source may be one patient or two, and nobody has decided."""
        if self.look_alikes:
            kind_list = ",".join(
                dict.fromkeys(
                    look_alike_kind for look_alike in self.look_alikes for look_alike_kind in look_alike.kinds
                )
            )
            raise ConfigurationError(
                "; ".join(map(look_alike_words, self.look_alikes)),
                f"if they are the same patient: --same-patient {kind_list}; if different ones: --other-patient"
                f" {kind_list}",
                code="look-alikes",
            )

    @property
    def lost_shares(self) -> dict[str, float]:
        """Shares of rows and documents that were lost, of all that could have been records, by the reason."""
        candidate_count = self._candidate_count
        return {reason: len(lost_rows) / candidate_count for reason, lost_rows in by_reason(self._lost_rows)}

    @property
    def _lost_rows(self) -> Iterator[Skipped]:
        return (row for row in self.skipped if row.cause == "lost")

    @property
    def _candidate_count(self) -> int:
        return self.lost + len(self.table) + (self.objections.records if self.objections else 0)

    def loses_more(self, accepted_shares: Mapping[str, float]) -> bool:
        """Returns True if more than one in twenty rows are lost beyond the shares that a person has accepted."""
        candidate_count = self._candidate_count
        excess_rows = (
            max(0.0, len(lost_rows) - accepted_shares.get(reason, 0.0) * candidate_count)
            for reason, lost_rows in by_reason(self._lost_rows)
        )
        return sum(excess_rows) * LOST_SHARE > candidate_count

    def cautions(self, before: SealedObjections | None, accepted_shares: Mapping[str, float] = NO_SHARES) -> list[str]:
        """Returns the warnings that a person has to confirm before these records are sealed.

        Args:
            before: the list of patients who object at the last seal; None without one.
            accepted_shares: shares of rows lost for a reason that a person has accepted.
        """
        cautions: list[str] = []
        if self.loses_more(accepted_shares):
            loss_words = "; ".join(
                f"{len(lost_rows)}: {reason} ({first_places([row.places for row in lost_rows])})"
                for reason, lost_rows in by_reason(self._lost_rows)
            )
            candidate_words = counted(self._candidate_count, "row or document", "rows or documents")
            row_remedies = filter(None, dict.fromkeys(row.remedy for row in self._lost_rows))
            mend_words = "; ".join(["mend what should be a record", *row_remedies])
            caution_remedy = (
                f"{mend_words}; what shall stay out, --despite-cautions accepts for every refresh, up to this share"
            )
            cautions.append(Caution(f"{self.lost} of {candidate_words} are not read ({loss_words})", caution_remedy))
        return cautions + (self.objections.cautions(before) if self.objections else [])


def by_reason(skipped: Iterable[Skipped]) -> list[tuple[str, list[Skipped]]]:
    """Returns rows that were not read by their reason, the most frequent reason first."""
    rows_by_reason: dict[str, list[Skipped]] = defaultdict(list)
    for row in skipped:
        rows_by_reason[row.why].append(row)
    return sorted(rows_by_reason.items(), key=lambda group: -len(group[1]))


@extras.named()
def read(
    declared: Declared, *, dry: bool = False, progress: Callable[[int], None] = lambda _rows: None
) -> SourceReading:
    """Reads the declared source.

    Args:
        dry: True notes each row without a label or patient id and goes on; False stops at the first one.
        progress: called now and then with the number of rows read so far.

    Raises ConfigurationError that names the faulty row and the remedy, and shows no content.
    """
    return _Reader(declared, dry, progress).read()


class _Reader:
    """Reads one source: every row becomes a record, or is noted with the reason."""

    def __init__(self, declared: Declared, dry: bool, progress: Callable[[int], None]) -> None:
        self._declared = declared
        self._dry = dry
        self._progress = progress
        self._columns = Columns(
            declared.text_field,
            declared.label_field or None,
            declared.user_field or None,
            declared.attribute_fields,
        )
        self._skipped: list[Skipped] = []
        self._filter = RowFilter(declared.row_filter) if declared.row_filter else None
        self._choice = declared.choice
        self._label_map = {clean_text(name): label for name, label in declared.label_map.items()}
        self._records = TableBuilder(self._columns)
        self._places: dict[PatientId, str] = {}
        self._source = self._open()
        self._columns.check_roles()
        self._missing_words = 0

    def read(self) -> SourceReading:
        for row_number, source_row in enumerate(self._filtered(), start=1):
            self._add(_map_row(source_row, self._declared, self._label_map))
            if row_number % ROWS_A_NOTE == 0:
                self._progress(row_number)
        look_alikes = tuple(find_look_alikes(self._places, self._choice, self._source.pairs()))
        record_table = self._records.table()
        table_objections = None
        row_count = len(record_table) + len(self._skipped)
        if self._declared.exclusions:
            place_by_patient: dict[str, str] = {}
            for patient, place in self._places.items():
                place_by_patient.setdefault(self._choice.unit(patient), place)
            record_table, table_objections = without_objectors(
                record_table, self._declared, self._choice, self._source, place_by_patient
            )
        if self._filter is None:
            filter_rows = None
        else:
            filter_rows = self._filter.rows_in, self._filter.rows_out
        return SourceReading(
            record_table,
            row_count,
            tuple(self._skipped),
            table_objections,
            look_alikes,
            filter_rows,
            self._missing_words,
            self._unit,
        )

    def _unit(self, identity: PatientId) -> str:
        return self._choice.unit(self._source.patient_of(identity))

    def _skip(self, where: str, why: str, cause: Cause = "lost", *, beside: str = "", remedy: str = "") -> None:
        skipped_row = Skipped(where, why, cause, beside, remedy)
        if cause == "refused" and not self._dry:
            raise RefusedRow(skipped_row.places, why, remedy)
        self._skipped.append(skipped_row)

    def _filtered(self) -> Iterator[Row]:
        source_rows = self._source.rows
        if self._filter is None:
            return source_rows
        return self._filter(source_rows, self._columns.names)

    def _add(self, row: Row) -> None:
        if self._columns.label is not None and row.values.get(self._columns.label) is _LEFT_OUT:
            self._skip(row.place, "the label map leaves its label out", "hospital")
            return
        self._columns.check(row)
        # The text comes last: a long note is compared only where every shorter value is its column's name.
        if all(_is_name(row.values[column], column) for column in reversed(self._columns.names)):
            self._skip(row.place, "it repeats the header")
            return
        try:
            record = read_record(row, self._columns, empty_reason(self._declared.data))
        except NoText as error:
            self._skip(row.place, error.reason)
            return
        except RefusedRow as error:
            further_words = ""
            if isinstance(error, NoLabel):
                further_words = f", or {NO_LABEL_REMEDY}"
            self._skip(row.place, error.reason, "refused", remedy=error.remedy + further_words)
            return
        user = None
        if record.user is not None:
            patient = self._source.patient_of(record.user)
            self._places.setdefault(patient, row.place)
            user = self._choice.unit(patient)
        self._missing_words += is_missing_word(record.text.strip()) + (
            self._columns.label is not None and is_missing_word(record.label)
        )
        self._records.add(record, user)

    def _open(self) -> OpenedSource:
        declared_source = self._declared
        path = self._declared.path
        columns = self._columns.names if self._filter is None else ()
        if declared_source.database and not has_suffix(path, ".sql"):
            raise ConfigurationError(
                f"{declared_source.data}: is no .sql file, and --database needs one",
                "write the query to a file that ends in .sql",
                code="no-query",
            )
        if has_suffix(path, ".sql"):
            return OpenedSource(select(path, declared_source.database, columns))
        if _is_fhir(path):
            return fhir.open_export(declared_source, self._choice, self._skip)
        return OpenedSource(
            read_rows(path, FileForm(declared_source.encoding, declared_source.quoting, declared_source.sheet), columns)
        )


def masked(text: str) -> str:
    """Returns the shape of a text: letters become x or X, digits 0, and unusual characters a question mark.

    >>> masked("Pain since 3 days, Mr. Ó")
    'Xxxx xxxxx 0 xxxx, Xx. X'
    """

    def shape(character: str) -> str:
        character_category = unicodedata.category(character)[0]
        if character_category in "LM":
            if character.isupper():
                return "X"
            return "x"
        if character_category == "N":
            return "0"
        if character.isspace():
            return " "
        if character.isascii() and character.isprintable():
            return character
        return "?"

    return "".join(map(shape, text[:LONGEST_EXAMPLE])) + ("..." if len(text) > LONGEST_EXAMPLE else "")


_LEFT_OUT = object()


def _is_name(value: Any, column: str) -> bool:
    """Returns True if a value is its column's name, as in files that were concatenated with their header lines."""
    return isinstance(value, str) and clean_text(value) == clean_text(column)


def _is_fhir(path: Path) -> bool:
    """True for a folder of FHIR resources and for a file of them; False for a folder with the parts of one table."""
    if not path.is_dir():
        return path.is_file() and is_lines(path) and _holds_resources(path)
    path_parts = folder_parts(path)
    return not path_parts or (
        plain_suffix(path_parts[0]) in (".ndjson", ".jsonl", ".json") and any(map(_holds_resources, path_parts))
    )


def _holds_resources(path: Path) -> bool:
    """True for a file whose first line of JSON is a FHIR resource; a damaged line may stand before it."""
    for _, text_line in itertools.islice(json_lines(path), LINES_TRIED):
        with suppress(ValueError, RecursionError):
            first_value = json.loads(text_line)
            return isinstance(first_value, dict) and "resourceType" in first_value
    return False


def _map_row(row: Row, declared: Declared, label_map: Mapping[str, str]) -> Row:
    """Returns a row with the label that the label map gives it, and with the first value where a column has several."""
    mapped_values = dict(row.values)
    for column in (declared.label_field, *declared.attribute_fields.values()):
        cell_value = mapped_values.get(column)
        if isinstance(cell_value, Several):  # several values, such as the codes of one concept in several systems
            mapped_values[column] = cell_value = cell_value[0]
        # An object as an attribute counts as no value; as an id, a text or a label it is refused later, with its place.
        if "." in column and column != declared.label_field and isinstance(cell_value, dict | list):
            mapped_values[column] = None
    if label_map and declared.label_field in mapped_values:
        label_name = _label_name(mapped_values[declared.label_field])
        label = label_map.get(label_name, label_map.get(ANY_LABEL) if label_name else None)
        if label is not None:
            mapped_values[declared.label_field] = label or _LEFT_OUT
    return Row(row.place, mapped_values)


def _label_name(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value != value:
        return ""
    label_name = clean_text(str(value))
    if is_database_null(label_name):
        return ""
    return label_name
