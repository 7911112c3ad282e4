"""Reads the list of patients who object, and leaves their records out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from undersong_client.home import Declared
from undersong_client.records.database import select
from undersong_common.errors import ConfigurationError
from undersong_common.patient_ids import (
    KINDS,
    Choice,
    PatientId,
    clean_text,
    difference_words,
    look_alike_kinds,
    patient_id,
    reduced,
)
from undersong_common.printable import counted, that_hold
from undersong_common.row_files import read_text
from undersong_common.table import Table

_SEPARATORS = ",;\t\"'`\u201c\u201d\u201e\u00ab\u00bb="
_REMEDY = "one identifier a line, without quotes, separators and header, in UTF-8"


@dataclass(frozen=True, repr=False)
class Objections:
    """The list of patients to leave out, and its effect; ``repr`` shows no identifier.

    Attributes:
        units: the listed identifiers, in the form of the data set's user ids.
        present: number of them that are in the source.
        records: number of records that they keep out.
        look_alikes: number of the others that match only a look-alike, by the words for the difference.
    """

    units: frozenset[str]
    present: int
    records: int
    look_alikes: Mapping[str, int]

    @property
    def sentence(self) -> str:
        return exclusion_sentence(len(self.units), self.present, self.records)

    def cautions(self, present_before: int | None) -> list[str]:
        """Returns what speaks against sealing a data set with this list.

        Args:
            present_before: number of identifiers that were in the source at the last seal; None without one.
        """
        alike = [
            f"{counted(count, 'identifier on the list matches', 'identifiers on the list match')} an id of the source"
            f" but for {words}"
            for words, count in self.look_alikes.items()
        ]
        return [
            *that_hold(
                (
                    not self.present,
                    f"the list of objections acts on nobody: 0 of {counted(len(self.units), 'identifier')}"
                    " are in the source",
                ),
                (
                    present_before is not None and self.present < present_before,
                    f"{self.sentence}; at the last seal it was {present_before}",
                ),
            ),
            *alike,
        ]


def exclusion_sentence(identifiers: int, present: int, records: int) -> str:
    """Returns the effect of a list as a sentence.

    >>> exclusion_sentence(3, 1, 4)
    'of 3 identifiers on the list, 1 is in the source and keeps out 4 records'
    """
    verbs = "is in the source and keeps" if present == 1 else "are in the source and keep"
    return f"of {counted(identifiers, 'identifier')} on the list, {present} {verbs} out {counted(records, 'record')}"


def without_objectors(
    table: Table, declared: Declared, choice: Choice, patient_of: Callable[[PatientId], PatientId]
) -> tuple[Table, Objections]:
    """Returns the table without the patients on the declared list, and the list's effect.

    Args:
        patient_of: returns the id under which the source joins a patient's ids.

    Raises ConfigurationError for a list that cannot be read, and without a column of ids.
    """
    if table.users is None:
        raise ConfigurationError(
            "an exclusion list needs the column of patient ids", "name it: --user-field", code="no-user-field"
        )
    units = frozenset(choice.unit(patient_of(identity)) for identity in _identifiers(declared))
    present = units.intersection(table.users)
    rows = [row for row, user in enumerate(table.users) if user not in present]
    alike = _look_alikes(units - present, set(table.users) - present, choice)
    return table.take(rows), Objections(units, len(present), len(table) - len(rows), alike)


def _look_alikes(listed: frozenset[str], users: set[str], choice: Choice) -> dict[str, int]:
    kinds = [kind for kind in KINDS if kind not in choice.other]
    by_form: dict[str, list[str]] = defaultdict(list)
    for user in users if listed else ():
        by_form[reduced(user, kinds)].append(user)
    counts: Counter[str] = Counter()
    for unit in listed:
        for user in by_form.get(reduced(unit, kinds), ())[:1]:
            counts[difference_words(look_alike_kinds(unit, user, choice))] += 1
        if " " in unit and unit.partition(" ")[0] in users:
            counts["further words on its line"] += 1
    return dict(counts)


def _identifiers(declared: Declared) -> Iterator[PatientId]:
    """The identifiers of the list, in order. Raises ConfigurationError that names a line that holds none."""
    path = Path(declared.exclusions)
    if path.suffix == ".sql":
        for row in select(path, declared.database):
            if len(row.values) != 1:
                raise ConfigurationError(
                    f"{path}: selects {len(row.values)} columns", "select the identifier alone", code="no-exclusions"
                )
            (value,) = row.values.values()
            if isinstance(value, str) and "|" in value:
                value = _identifier(value)
            yield _checked(value, row.place)
        return
    try:
        text = read_text(path)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the exclusion list cannot be read: {error.problem}",
            f"{_REMEDY}; nothing is sealed without it",
            code="no-exclusions",
        ) from None
    # A list that another system wrote may end its lines by CR or U+2028. No id holds one of these.
    for number, line in enumerate(text.splitlines(), start=1):
        if not clean_text(line):
            continue
        place = f"{path}: line {number}"
        if any(character in line.strip() for character in _SEPARATORS):
            raise ConfigurationError(
                f"{place}: holds a separator, quotes or a second column", _REMEDY, code="no-exclusions"
            )
        yield _checked(_identifier(line) if "|" in line else line, place)


def _identifier(written: str) -> PatientId:
    system, _, value = clean_text(written).rpartition("|")
    return PatientId(value.strip(), system.strip(), is_identifier=True)


def _checked(value: object, place: str) -> PatientId:
    try:
        identity = patient_id(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error.problem}", _REMEDY, code="no-exclusions") from None
    if identity is None:
        raise ConfigurationError(f"{place}: is not an id", _REMEDY, code="no-exclusions")
    return identity
