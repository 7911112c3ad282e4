"""Reads the list of patients who object, and leaves their records out."""

import hmac
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from undersong_client.home import Declared
from undersong_client.records.database import select
from undersong_client.records.declared import OpenedSource
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
from undersong_common.row_files import has_suffix, read_text
from undersong_common.table import Table

_SEPARATORS = ",;\t\"'`\u201c\u201d\u201e\u00ab\u00bb="
_FURTHER = re.compile(r"[^\w-]+")
_REMEDY = "one identifier a line, without quotes, separators and header, in UTF-8"


@dataclass(frozen=True, repr=False)
class Objections:
    """The list of patients to leave out, and its effect; ``repr`` shows no identifier.

    Attributes:
        units: the listed identifiers, in the form of the data set's user ids.
        present: number of them that are in the source.
        records: number of records that they keep out.
        look_alikes: number of the others that match only a look-alike, by the words for the difference.
        matched, unmatched: the listed identifiers that are in the source, and those that are not, as they are listed.
        out, left: ids and identifiers of the patients whose records are kept out, and of those whose records stay.
    """

    units: frozenset[str]
    present: int
    records: int
    look_alikes: Mapping[str, int]
    matched: frozenset[str] = frozenset()
    unmatched: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()

    @property
    def sentence(self) -> str:
        return exclusion_sentence(len(self.units), self.present, self.records)

    def cautions(self, before: "SealedObjections | None") -> list[str]:
        """Returns what speaks against sealing a data set with this list.

        Args:
            before: the list that acted at the last seal; None without one.
        """
        present_before = None if before is None else before.present
        lapsed = 0 if before is None else sum(before.digest(name) in before.matched for name in self.unmatched)
        parted = 0 if before is None else sum(before.digest(name) in before.out for name in self.left)
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
                    f" {'is' if len(self.units) == 1 else 'are'} in the source",
                ),
                (
                    present_before is not None and self.present < present_before,
                    f"{self.sentence}; at the last seal it was {present_before}",
                ),
                (
                    lapsed > 0,
                    f"{counted(lapsed, 'identifier was', 'identifiers were')} in the source at the last seal and"
                    f" {'is' if lapsed == 1 else 'are'} not any more: left, or under another id",
                ),
                (
                    parted > 0,
                    f"records of {counted(parted, 'id')} that were kept out at the last seal are not any more: what"
                    " joined the ids of their patient is gone (a link, a Patient resource)",
                ),
            ),
            *alike,
        ]


@dataclass(frozen=True, repr=False)
class SealedObjections:
    """The effect of the list at the last seal; it holds no identifier, only keyed hashes.

    Attributes:
        present: number of identifiers that were in the source.
        matched: keyed hashes of these.
        out: keyed hashes of the ids and identifiers of the patients whose records were kept out.
        key: the data set's key.
    """

    present: int
    matched: frozenset[str]
    out: frozenset[str]
    key: bytes

    def digest(self, name: str) -> str:
        return identifier_digest(self.key, name)


def identifier_digest(key: bytes, name: str) -> str:
    """Returns a keyed hash (hex) of a listed identifier, by which a later list can be compared."""
    return hmac.digest(key, b"undersong objection\0" + name.encode(), "sha256")[:16].hex()


def exclusion_sentence(identifiers: int, present: int, records: int) -> str:
    """Returns the effect of a list as a sentence.

    >>> exclusion_sentence(3, 1, 4)
    'of 3 identifiers on the list, 1 is in the source and keeps out 4 records'
    """
    verbs = "is in the source and keeps" if present == 1 else "are in the source and keep"
    return f"of {counted(identifiers, 'identifier')} on the list, {present} {verbs} out {counted(records, 'record')}"


def without_objectors(
    table: Table, declared: Declared, choice: Choice, source: OpenedSource
) -> tuple[Table, Objections]:
    """Returns the table without the patients on the declared list, and the list's effect.

    Args:
        source: says under which id it joins a patient's ids.

    Raises ConfigurationError for a list that cannot be read, and without a column of ids.
    """
    if table.users is None:
        raise ConfigurationError(
            "an exclusion list needs the column of patient ids", "name it: --user-field", code="no-user-field"
        )
    users = set(table.users)
    aliases: dict[str, set[str]] = defaultdict(set)  # units of the patients whose an id or identifier is, by its unit
    for alias, patient in source.aliases():
        aliases[choice.unit(alias)].add(choice.unit(patient))
    names_of: dict[bool, set[str]] = {True: set(), False: set()}
    listed: dict[str, set[str]] = defaultdict(set)  # units in the source, by the unit of a listed identifier
    has_bars = source.has_identifiers or any("|" in user for user in users)
    for identity in _identifiers(declared, has_bars=has_bars):
        unit = choice.unit(source.patient_of(identity))
        in_source = users & {unit, *aliases.get(choice.unit(identity), ())}
        listed[min(in_source, default=unit)] |= in_source
        names_of[bool(in_source)].add(identity.text)
    out = set[str]().union(*listed.values())
    rows = [row for row, user in enumerate(table.users) if user not in out]
    absent = {unit for unit, in_source in listed.items() if not in_source}
    names = {*(users - out), *(alias for alias, units in aliases.items() if units & users - out)}
    names_out = {*out, *(alias for alias, units in aliases.items() if units & out)}
    alike = _look_alikes(absent, names, choice.same)
    objections = Objections(
        frozenset(listed),
        len(listed) - len(absent),
        len(table) - len(rows),
        alike,
        frozenset(names_of[True]),
        frozenset(names_of[False]),
        frozenset(names_out),
        frozenset(names),
    )
    return table.take(rows), objections


def _look_alikes(listed: set[str], names: set[str], same: frozenset[str]) -> dict[str, int]:
    """Counts the listed identifiers that match only a look-alike, by the words for the difference.

    A choice that two ids of the source are different patients says nothing about which of them a list means, so that
    every kind is looked for.

    Args:
        names: ids and identifiers of the patients whose records stay.
    """
    by_form: dict[str, list[str]] = defaultdict(list)
    for name in names if listed else ():
        by_form[reduced(name, KINDS)].append(name)
    counts: Counter[str] = Counter()
    for unit in listed:
        if alike := by_form.get(reduced(unit, KINDS)):
            counts[difference_words(look_alike_kinds(unit, alike[0], Choice(same)))] += 1
        # A remark or a second identifier beside one: "1005/1006", "MRN:1005", "1005 (by phone)".
        elif not names.isdisjoint(_FURTHER.split(unit)):
            counts["what else stands on its line"] += 1
    return dict(counts)


def _identifiers(declared: Declared, *, has_bars: bool) -> Iterator[PatientId]:
    """The identifiers of the list, in order. Raises ConfigurationError that names a line that holds none.

    Args:
        has_bars: False for a source whose ids hold no bar: there, one stands before a second column of the list.
    """
    path = Path(declared.exclusions)
    if has_suffix(path, ".sql"):
        for row in select(path, declared.database):
            if len(row.values) != 1:
                raise ConfigurationError(
                    f"{path}: selects {len(row.values)} columns", "select the identifier alone", code="no-exclusions"
                )
            (value,) = row.values.values()
            yield _listed_id(value, row.place, has_bars=has_bars)
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
        if any(character in line.replace("?identifier=", "").strip() for character in _SEPARATORS):
            raise ConfigurationError(
                f"{place}: holds a separator, quotes or a second column", _REMEDY, code="no-exclusions"
            )
        yield _listed_id(line, place, has_bars=has_bars)


def _listed_id(value: object, place: str, *, has_bars: bool) -> PatientId:
    if not (isinstance(value, str) and "|" in value):
        return _checked(value, place)
    with suppress(ConfigurationError):
        if (identity := patient_id(value)) is not None and identity.is_identifier:
            return identity
    if not has_bars:
        raise ConfigurationError(
            f"{place}: holds a bar, and no id of the source does: it would be a second column",
            _REMEDY,
            code="no-exclusions",
        )
    system, _, name = clean_text(value).rpartition("|")
    return _checked(PatientId(name.strip(), system.strip(), is_identifier=True), place)


def _checked(value: object, place: str) -> PatientId:
    try:
        identity = patient_id(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error.problem}", _REMEDY, code="no-exclusions") from None
    if identity is None:
        raise ConfigurationError(f"{place}: is not an id", _REMEDY, code="no-exclusions")
    return identity
