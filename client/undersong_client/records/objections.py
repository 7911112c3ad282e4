"""Reads the list of patients who object, and leaves their records out."""

import hmac
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from undersong_client.home import Declared
from undersong_client.records.database import select
from undersong_client.records.declared import Caution, OpenedSource, first_places, look_alike_words
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted
from undersong_common.text.patient_ids import (
    KINDS,
    Choice,
    LookAlikes,
    PatientId,
    clean_text,
    look_alike_kinds,
    patient_id,
    reduced,
)
from undersong_common.text.row_files import has_suffix, read_text
from undersong_common.text.table import Table

_SEPARATORS = ",;\t\"'`\u201c\u201d\u201e\u00ab\u00bb="
_FURTHER = re.compile(r"[^\w-]+")
MEND_LIST = "mend the list, so that it names who objects as the source does"
_REMEDY = "one identifier a line, without quotes, separators and header, in UTF-8"


@dataclass(frozen=True, repr=False)
class Objections:
    """The list of patients to leave out, and its effect; ``repr`` shows no identifier.

    Attributes:
        units: the listed identifiers, in the form of the data set's user ids.
        present: number of them that are in the source.
        records: number of records that they keep out.
        look_alikes: the others that match only a look-alike, with the places of its first record and of the list.
        resembling: by the kinds of the difference, these identifiers, each with the name that it resembles.
        matched: the listed identifiers that are in the source, as they are listed.
        unmatched: those that are not, with their places on the list.
        out: ids and identifiers of the patients whose records are kept out.
        left: ids and identifiers of the patients whose records stay, with the place of the first one.
    """

    units: frozenset[str]
    present: int
    records: int
    look_alikes: tuple[LookAlikes, ...]
    resembling: Mapping[tuple[str, ...], frozenset[str]]
    matched: frozenset[str]
    unmatched: Mapping[str, str]
    out: frozenset[str]
    left: Mapping[str, str]

    @property
    def sentence(self) -> str:
        return exclusion_sentence(len(self.units), self.present, self.records)

    def cautions(self, before: "SealedObjections | None") -> list[str]:
        """Returns what speaks against sealing a data set with this list.

        Args:
            before: the list that acted at the last seal; None without one. What a person has confirmed then of the same
                list and the same names is not asked again.
        """
        cautions: list[str] = []
        was_without_effect = before is not None and not before.present and before.is_list(self.units)
        if not self.present and not was_without_effect:
            identifiers = counted(len(self.units), "identifier")
            verb = "is" if len(self.units) == 1 else "are"
            warning = f"the list of objections acts on nobody: 0 of {identifiers} {verb} in the source"
            cautions.append(Caution(warning, MEND_LIST))
        if before is not None:
            cautions += self._lapses(before)
        cautions += [
            Caution(look_alike_words(alike), _remedy(alike))
            for alike in self.look_alikes
            if before is None or not before.has_confirmed(self.resembling[alike.kinds])
        ]
        return cautions

    def _lapses(self, before: "SealedObjections") -> Iterator[Caution]:
        """Yields what speaks for an objection that acted at the last seal and does not act any more."""
        if self.present < before.present:
            yield Caution(f"{self.sentence}; at the last seal it was {before.present}", MEND_LIST)
        lapsed = [place for name, place in self.unmatched.items() if before.digest(name) in before.matched]
        if lapsed:
            was = counted(len(lapsed), "identifier was", "identifiers were")
            verb = "is" if len(lapsed) == 1 else "are"
            yield Caution(
                f"{was} in the source at the last seal and {verb} not any more: left, or under another id"
                f" ({first_places(lapsed)})",
                MEND_LIST,
            )
        # One place for a patient, however many ids and identifiers of it were kept out.
        parted = list(dict.fromkeys(place for name, place in self.left.items() if before.digest(name) in before.out))
        if parted:
            verb = "has" if len(parted) == 1 else "have"
            yield Caution(
                f"{counted(len(parted), 'patient')} of the source {verb} records and an id or identifier that was kept"
                " out at the last seal: what joined it to the objection is gone (a line of the list, a link, a Patient"
                f" resource; {first_places(parted)})",
                "if they object: list an id of theirs, or export again what joined their ids",
            )


def _remedy(alike: LookAlikes) -> str:
    if not alike.kinds:
        return MEND_LIST
    return f"if they are the same patient: --same-patient {','.join(alike.kinds)}; if another one: {MEND_LIST}"


@dataclass(frozen=True, repr=False)
class SealedObjections:
    """The effect of the list at the last seal; it holds no identifier, only keyed hashes.

    Attributes:
        present: number of identifiers that were in the source.
        matched: keyed hashes of these.
        out: keyed hashes of the ids and identifiers of the patients whose records were kept out.
        resembling: keyed hashes of the look-alikes with which the list was sealed nevertheless.
        list_hash: keyed hash of the whole list.
        key: the data set's key.
    """

    present: int
    matched: frozenset[str]
    out: frozenset[str]
    resembling: frozenset[str]
    list_hash: str
    key: bytes

    def is_list(self, units: frozenset[str]) -> bool:
        """Returns True if these are the identifiers of the list that acted."""
        return self.list_hash == hash_list(self.key, units)

    def has_confirmed(self, names: frozenset[str]) -> bool:
        """Returns True if the list was sealed despite all of these look-alikes (:attr:`Objections.resembling`)."""
        return self.resembling.issuperset(map(self.digest, names))

    def digest(self, name: str) -> str:
        return identifier_digest(self.key, name)


def identifier_digest(key: bytes, name: str) -> str:
    """Returns a keyed hash (hex) of a listed identifier, by which a later list can be compared."""
    return hmac.digest(key, b"undersong objection\0" + name.encode(), "sha256")[:16].hex()


def hash_list(key: bytes, units: frozenset[str]) -> str:
    """Returns a keyed hash (hex) of all identifiers on a list."""
    return hmac.digest(key, b"undersong exclusions\0" + json.dumps(sorted(units)).encode("ascii"), "sha256").hex()


def exclusion_sentence(identifiers: int, present: int, records: int) -> str:
    """Returns the effect of a list as a sentence.

    >>> exclusion_sentence(3, 1, 4)
    'of 3 identifiers on the list, 1 is in the source and keeps out 4 records'
    """
    verbs = "is in the source and keeps" if present == 1 else "are in the source and keep"
    return f"of {counted(identifiers, 'identifier')} on the list, {present} {verbs} out {counted(records, 'record')}"


def without_objectors(
    table: Table, declared: Declared, choice: Choice, source: OpenedSource, places: Mapping[str, str]
) -> tuple[Table, Objections]:
    """Returns the table without the patients on the declared list, and the list's effect.

    Args:
        source: says under which id it joins a patient's ids.
        places: place of the first record of each user.

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
    names_of: dict[bool, dict[str, str]] = {True: {}, False: {}}  # listed identifiers with their places
    source_units: dict[str, set[str]] = defaultdict(set)  # units in the source, by the unit of a listed identifier
    absent: dict[str, str] = {}
    has_bars = source.has_identifiers or any("|" in user for user in users)
    for place, identity in _identifiers(declared, has_bars=has_bars):
        unit = choice.unit(source.patient_of(identity))
        in_source = users & {unit, *aliases.get(choice.unit(identity), ())}
        source_units[min(in_source, default=unit)] |= in_source
        names_of[bool(in_source)].setdefault(identity.text, place)
        if not in_source:
            absent.setdefault(unit, place)
    excluded_units = set[str]().union(*source_units.values())
    rows = [row for row, user in enumerate(table.users) if user not in excluded_units]
    remaining_places = {user: places[user] for user in sorted(users - excluded_units)}
    for name, units in aliases.items():
        if staying := units & users - excluded_units:
            remaining_places.setdefault(name, places[min(staying)])
    look_alikes = list(_look_alikes(absent, remaining_places, choice.same))
    objections = Objections(
        frozenset(source_units),
        len(source_units) - len(absent),
        len(table) - len(rows),
        tuple(alike for alike, _ in look_alikes),
        {alike.kinds: names for alike, names in look_alikes},
        frozenset(names_of[True]),
        names_of[False],
        frozenset({*excluded_units, *(name for name, units in aliases.items() if units & excluded_units)}),
        remaining_places,
    )
    return table.take(rows), objections


def _look_alikes(
    absent: Mapping[str, str], left: Mapping[str, str], same: frozenset[str]
) -> Iterator[tuple[LookAlikes, frozenset[str]]]:
    """Yields the listed identifiers that match only a look-alike, by the kinds of the difference, with both names.

    A choice that two ids of the source are different patients says nothing about which of them a list means, so that
    every kind is looked for.

    Args:
        absent: the listed identifiers that are not in the source, with their places on the list.
        left: ids and identifiers of the patients whose records stay, with a place of the source.
    """
    by_form: dict[str, list[str]] = defaultdict(list)
    for name in left if absent else ():
        by_form[reduced(name, KINDS)].append(name)
    findings: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    resembling: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for unit, place in absent.items():
        if alike := by_form.get(reduced(unit, KINDS)):
            kinds = look_alike_kinds(unit, alike[0], Choice(same))
            findings[kinds].append((left[alike[0]], place))
            resembling[kinds] |= {f"{unit}\n{name}" for name in alike}
        # A remark or a second identifier beside one: "1005/1006", "MRN:1005", "1005 (by phone)".
        elif identifier := next((word for word in _FURTHER.split(unit) if word in left), None):
            findings[()].append((left[identifier], place))
            resembling[()].add(f"{unit}\n{identifier}")
    for kinds, pairs in findings.items():
        yield LookAlikes(kinds, len(pairs), tuple(pairs), is_listed=True), frozenset(resembling[kinds])


def _identifiers(declared: Declared, *, has_bars: bool) -> Iterator[tuple[str, PatientId]]:
    """Yields the identifiers of the list with their places, in order.

    Args:
        has_bars: False for a source whose ids hold no bar: there, one stands before a second column of the list.

    Raises ConfigurationError that names a line that holds no identifier.
    """
    path = Path(declared.exclusions)
    if has_suffix(path, ".sql"):
        for row in select(path, declared.database):
            if len(row.values) != 1:
                raise ConfigurationError(
                    f"{path}: selects {len(row.values)} columns", "select the identifier alone", code="no-exclusions"
                )
            (value,) = row.values.values()
            yield row.place, _listed_id(value, row.place, has_bars=has_bars)
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
        yield place, _listed_id(line, place, has_bars=has_bars)


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
