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
    reduce_id,
)
from undersong_common.text.row_files import has_suffix, read_text
from undersong_common.text.table import Table

# No id holds one of these. A line of the list that does has quotes or a second column.
_SEPARATORS = ",;\t\"'`\u201c\u201d\u201e\u00ab\u00bb="
_WORD_GAP = re.compile(r"[^\w-]+")
MEND_LIST = "mend the list, so that it names who objects as the source does"
_REMEDY = "one identifier a line, without quotes, separators and header, in UTF-8"


@dataclass(frozen=True, repr=False)
class Objections:
    """The list of patients to leave out, and its effect; ``repr`` shows no identifier.

    Attributes:
        units: the listed identifiers, in the form of the data set's user ids.
        present: number of them that are in the source.
        records: number of records that they keep out.
        look_alikes: listed identifiers that are not in the source but resemble an id in it (a look-alike, such as 007
            beside 7), with the places of that id's first record and of the line on the list.
        resembling: maps each kind of difference to its look-alike pairs, each the text LISTED, newline, NAME.
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
        """Returns the warnings about this list that a person confirms before the data set is sealed.

        Args:
            before: the list that acted when the data set was last sealed; None without one. What a person confirmed
                then, for the same list and the same names, is not asked again.
        """
        cautions: list[str] = []
        was_without_effect = before is not None and not before.present and before.is_same_list(self.units)
        if not self.present and not was_without_effect:
            identifier_words = counted(len(self.units), "identifier")
            verb = "is" if len(self.units) == 1 else "are"
            warning = f"the list of objections acts on nobody: 0 of {identifier_words} {verb} in the source"
            cautions.append(Caution(warning, MEND_LIST))
        if before is not None:
            cautions += self._lapses(before)
        cautions += [
            Caution(look_alike_words(look_alike), _look_alike_remedy(look_alike))
            for look_alike in self.look_alikes
            if before is None or not before.has_confirmed(self.resembling[look_alike.kinds])
        ]
        return cautions

    def _lapses(self, before: "SealedObjections") -> Iterator[Caution]:
        """Yields warnings about objections that kept records out at the last seal and seem to have no effect now."""
        if self.present < before.present:
            yield Caution(f"{self.sentence}; at the last seal it was {before.present}", MEND_LIST)
        lapsed_places = [
            place for objector_id, place in self.unmatched.items() if before.digest(objector_id) in before.matched
        ]
        if lapsed_places:
            identifiers_were = counted(len(lapsed_places), "identifier was", "identifiers were")
            verb = "is" if len(lapsed_places) == 1 else "are"
            yield Caution(
                f"{identifiers_were} in the source at the last seal and {verb} not any more: left, or under another id"
                f" ({first_places(lapsed_places)})",
                MEND_LIST,
            )
        # One place for a patient, however many ids and identifiers of it were kept out.
        parted_places = list(
            dict.fromkeys(place for objector_id, place in self.left.items() if before.digest(objector_id) in before.out)
        )
        if parted_places:
            verb = "has" if len(parted_places) == 1 else "have"
            yield Caution(
                f"{counted(len(parted_places), 'patient')} of the source {verb} records and an id or identifier that"
                " was kept"
                " out at the last seal: what joined it to the objection is gone (a line of the list, a link, a Patient"
                f" resource; {first_places(parted_places)})",
                "if they object: list an id of theirs, or export again what joined their ids",
            )


def _look_alike_remedy(look_alike: LookAlikes) -> str:
    if not look_alike.kinds:
        return MEND_LIST
    return f"if they are the same patient: --same-patient {','.join(look_alike.kinds)}; if another one: {MEND_LIST}"


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

    def is_same_list(self, units: frozenset[str]) -> bool:
        """Returns True if these are the identifiers of the list with which the data set was last sealed."""
        return self.list_hash == hash_list(self.key, units)

    def has_confirmed(self, name_pairs: frozenset[str]) -> bool:
        """Returns True if the list was sealed despite all of these look-alikes (:attr:`Objections.resembling`)."""
        return self.resembling.issuperset(map(self.digest, name_pairs))

    def digest(self, name: str) -> str:
        return identifier_digest(self.key, name)


def identifier_digest(key: bytes, name: str) -> str:
    """Returns a keyed hash (hex) of a listed identifier, by which a later list can be compared."""
    return hmac.digest(key, b"undersong objection\0" + name.encode(), "sha256")[:16].hex()


def hash_list(key: bytes, units: frozenset[str]) -> str:
    """Returns a keyed hash (hex) of all identifiers on a list."""
    return hmac.digest(key, b"undersong exclusions\0" + json.dumps(sorted(units)).encode("ascii"), "sha256").hex()


def exclusion_sentence(identifier_count: int, present_count: int, record_count: int) -> str:
    """Returns the effect of a list as a sentence.

    >>> exclusion_sentence(3, 1, 4)
    'of 3 identifiers on the list, 1 is in the source and keeps out 4 records'
    """
    if present_count == 1:
        verb_words = "is in the source and keeps"
    else:
        verb_words = "are in the source and keep"
    identifier_words = counted(identifier_count, "identifier")
    record_words = counted(record_count, "record")
    return f"of {identifier_words} on the list, {present_count} {verb_words} out {record_words}"


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
    # Units of the patients that bear an id or identifier, by that id's own unit.
    units_by_alias: dict[str, set[str]] = defaultdict(set)
    for alias, patient in source.aliases():
        units_by_alias[choice.unit(alias)].add(choice.unit(patient))
    # Places on the list by listed identifier; True holds the identifiers that are in the source, False the others.
    listed_places: dict[bool, dict[str, str]] = {True: {}, False: {}}
    source_units: dict[str, set[str]] = defaultdict(set)  # units in the source, by the unit of a listed identifier
    place_by_absent_unit: dict[str, str] = {}
    has_bars = source.has_identifiers or any("|" in user for user in users)
    for place, objector_identity in _identifiers(declared, has_bars=has_bars):
        objector_unit = choice.unit(source.patient_of(objector_identity))
        units_in_source = users & {objector_unit, *units_by_alias.get(choice.unit(objector_identity), ())}
        source_units[min(units_in_source, default=objector_unit)] |= units_in_source
        listed_places[bool(units_in_source)].setdefault(objector_identity.text, place)
        if not units_in_source:
            place_by_absent_unit.setdefault(objector_unit, place)
    excluded_units = set[str]().union(*source_units.values())
    staying_rows = [row for row, user in enumerate(table.users) if user not in excluded_units]
    remaining_places = {user: places[user] for user in sorted(users - excluded_units)}
    for alias_unit, patient_units in units_by_alias.items():
        if staying_units := patient_units & users - excluded_units:
            remaining_places.setdefault(alias_unit, places[min(staying_units)])
    look_alike_pairs = list(_look_alikes(place_by_absent_unit, remaining_places, choice.same))
    objections = Objections(
        frozenset(source_units),
        len(source_units) - len(place_by_absent_unit),
        len(table) - len(staying_rows),
        tuple(look_alike for look_alike, _ in look_alike_pairs),
        {look_alike.kinds: resembling_names for look_alike, resembling_names in look_alike_pairs},
        frozenset(listed_places[True]),
        listed_places[False],
        frozenset(
            {
                *excluded_units,
                *(alias_unit for alias_unit, patient_units in units_by_alias.items() if patient_units & excluded_units),
            }
        ),
        remaining_places,
    )
    return table.take(staying_rows), objections


def _look_alikes(
    absent_places: Mapping[str, str], remaining_places: Mapping[str, str], same_kinds: frozenset[str]
) -> Iterator[tuple[LookAlikes, frozenset[str]]]:
    """Yields the listed identifiers that only resemble an id of the source, and the pairs of both names.

    Each item holds the identifiers with one difference, such as leading zeros. A person's choice that ids with this
    difference are different patients does not say which of them a list means. So every difference is looked for.

    Args:
        absent_places: the listed identifiers that are not in the source, with their places on the list.
        remaining_places: ids and identifiers of the patients whose records stay, with a place of the source.
        same_kinds: kinds of difference between two writings of one patient's id, as a person has chosen.
    """
    names_by_form: dict[str, list[str]] = defaultdict(list)
    for source_name in remaining_places if absent_places else ():
        names_by_form[reduce_id(source_name, KINDS)].append(source_name)
    place_pairs: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    resembling_by_kinds: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for absent_unit, place in absent_places.items():
        if alike_names := names_by_form.get(reduce_id(absent_unit, KINDS)):
            resembling_kinds = look_alike_kinds(absent_unit, alike_names[0], Choice(same_kinds))
            place_pairs[resembling_kinds].append((remaining_places[alike_names[0]], place))
            resembling_by_kinds[resembling_kinds] |= {f"{absent_unit}\n{alike_name}" for alike_name in alike_names}
        # A remark or a second identifier beside one: "1005/1006", "MRN:1005", "1005 (by phone)".
        elif identifier := next((word for word in _WORD_GAP.split(absent_unit) if word in remaining_places), None):
            place_pairs[()].append((remaining_places[identifier], place))
            resembling_by_kinds[()].add(f"{absent_unit}\n{identifier}")
    for resembling_kinds, pairs_of_kinds in place_pairs.items():
        yield (
            LookAlikes(resembling_kinds, len(pairs_of_kinds), tuple(pairs_of_kinds), is_listed=True),
            frozenset(resembling_by_kinds[resembling_kinds]),
        )


def _identifiers(declared: Declared, *, has_bars: bool) -> Iterator[tuple[str, PatientId]]:
    """Yields the identifiers of the list with their places, in order.

    Args:
        has_bars: True if ids of the source hold a bar (SYSTEM|VALUE). If none does, a bar on the list begins a second
            column.

    Raises ConfigurationError that names a line that holds no identifier.
    """
    path = Path(declared.exclusions)
    if has_suffix(path, ".sql"):
        for row in select(path, declared.database):
            if len(row.values) != 1:
                raise ConfigurationError(
                    f"{path}: selects {len(row.values)} columns, and a list of objections has one",
                    "select the identifier alone",
                    code="no-exclusions",
                )
            (cell_value,) = row.values.values()
            yield row.place, _read_listed_id(cell_value, row.place, has_bars=has_bars)
        return
    try:
        list_text = read_text(path)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the exclusion list cannot be read: {error.problem}",
            f"{_REMEDY}; nothing is sealed without it",
            code="no-exclusions",
        ) from None
    # A list that another system wrote may end its lines by CR or U+2028. No id holds one of these.
    for line_number, list_line in enumerate(list_text.splitlines(), start=1):
        if not clean_text(list_line):
            continue
        line_place = f"{path}: line {line_number}"
        if any(character in list_line.replace("?identifier=", "").strip() for character in _SEPARATORS):
            raise ConfigurationError(
                f"{line_place}: holds a separator, quotes or a second column", _REMEDY, code="no-exclusions"
            )
        yield line_place, _read_listed_id(list_line, line_place, has_bars=has_bars)


def _read_listed_id(value: object, place: str, *, has_bars: bool) -> PatientId:
    if not (isinstance(value, str) and "|" in value):
        return _read_id(value, place)
    with suppress(ConfigurationError):
        if (listed_identity := patient_id(value)) is not None and listed_identity.is_identifier:
            return listed_identity
    if not has_bars:
        raise ConfigurationError(
            f"{place}: holds a bar (|), which no id of the source does: a second column would begin there",
            _REMEDY,
            code="no-exclusions",
        )
    system, _, identifier_value = clean_text(value).rpartition("|")
    return _read_id(PatientId(identifier_value.strip(), system.strip(), is_identifier=True), place)


def _read_id(value: object, place: str) -> PatientId:
    try:
        patient_identity = patient_id(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error.problem}", _REMEDY, code="no-exclusions") from None
    if patient_identity is None:
        raise ConfigurationError(f"{place}: is not an id", _REMEDY, code="no-exclusions")
    return patient_identity
