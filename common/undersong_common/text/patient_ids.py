"""Turns what a source writes into a patient's id, and finds ids that may be one patient or two.

A privacy unit is one patient. Two writings of one id must therefore be one unit, and two patients must be two. Forms by
which nobody tells two patients apart are joined (:func:`patient_id`). Forms by which somebody may are *look-alikes*
(:func:`find_look_alikes`): a person decides once by a :class:`Choice`, because either mistake costs privacy.
"""

import decimal
import itertools
import numbers
import re
import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted

LARGEST_WHOLE_FLOAT = 2**53  # Neighbouring whole numbers are one float from here on.
LONGEST_NUMBER = 400  # digits of an id that is a number
HALF_CHARACTER = "half of a character (a lone surrogate) stands in it"
REFERENCE_REMEDY = "name the column of the id itself, for example --user-field patient.reference"
CAST_REMEDY = "write the id as text or as a whole number, for example by a cast in the query"

# The Unicode property White_Space. `str.split` also splits at U+001C to U+001F, which are controls.
_WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UUID = re.compile(r"(?:urn:uuid:)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_REFERENCE = re.compile(r"(?:(.*)/)?Patient/([^/?#]*)(?:/_history(?:/[^/?#]*)?)?/?(?:[?#].*)?")
_BY_IDENTIFIER = re.compile(r"(?:.*/)?Patient/?\?(?:.*&)?identifier(?::exact)?=([^&]*)(?:&.*)?")
_OTHER_REFERENCE = re.compile(
    r"(?:.*/)?(?:Group|Device|Location|Medication|Substance|Practitioner|PractitionerRole|Organization|RelatedPerson"
    r"|Person|Encounter|EpisodeOfCare|Procedure|Specimen|CareTeam|HealthcareService|NutritionProduct)/[^/?#]+"
    r"(?:/_history(?:/[^/?#]*)?)?/?(?:[?#].*)?"
)
# A spreadsheet shows a number of twelve digits or more as 1.23457E+11, and saves as CSV what it shows.
_ROUNDED = re.compile(r"-?[1-9](?:[.,](\d+))?E\+([1-9]\d)")
_MISSING = frozenset(
    ("", "null", "(null)", "\\n", "nil", "none", "nan", "nat", "<na>", "na", "n/a", "-", "--", "?", ".")
)
# A spreadsheet writes its errors in its own language: #REF!, #BEZUG!, #NAME?, and #N/A as #NV, #N/D, #I/T, #YOK.
_SHEET_ERROR = re.compile(r"#[^\W\d_][\w/.]*[!?]|#(?:n/a|nv|n/d|n/b|i/t|н/д|yok|getting_data|n/a n/a)|err:\d{3}")


class PatientId(NamedTuple):
    """A patient's id as the source names it.

    Attributes:
        name: the id, in one form for all that surely name one patient (:func:`patient_id`).
        system: the base of an absolute FHIR reference, or the system of an identifier; "" where none is named.
        is_identifier: True for a business identifier (SYSTEM|VALUE), which is no resource's id.
    """

    name: str
    system: str = ""
    is_identifier: bool = False

    @property
    def text(self) -> str:
        """The id as text, of an identifier with its system. A reference's base is left out: most sources have one."""
        if self.is_identifier and self.system:
            return f"{self.system}|{self.name}"
        return self.name


Pair: TypeAlias = tuple[tuple[PatientId, str], tuple[PatientId, str]]  # two patients, each with a place


def patient_id(value: Any) -> PatientId | None:
    """Turns a value of a source into a patient's id; None for a missing value.

    Raises ConfigurationError (code "no-id") without a place and without content if the value's type holds no id.

    >>> [patient_id(value).text for value in (7, 7.0, " 7 ", "Patient/7", "https://ehr.example/Patient/7/_history/2")]
    ['7', '7', '7', '7', '7']
    >>> patient_id("N/A") is None
    True
    """
    if isinstance(value, PatientId):
        if value.name:
            return value
        return None
    text = _id_text(value)
    if text is None:
        return None
    return _read_id(text)


def _is_no_id(text: str) -> bool:
    """Returns True for a missing id: a word for it, or signs alone (---, an em dash, the ### of a narrow cell)."""
    return is_missing_word(text) or not any(unicodedata.category(character)[0] in "LN" for character in text)


def is_missing_word(text: str) -> bool:
    """Returns True for an empty text and for a word that stands for a missing id, such as "null" or "#N/A"."""
    word = text.casefold()
    return word in _MISSING or _SHEET_ERROR.fullmatch(word) is not None


def has_half_character(text: str) -> bool:
    """Returns True for a text with a lone surrogate, which JSON can hold and no other form of text can."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def is_database_null(text: str) -> bool:
    """Returns True for a word for a missing value that nobody writes: NULL, \\N, NaN, <NA>, a spreadsheet's error."""
    word = text.strip()
    return word in ("NULL", "\\N", "NaN", "nan", "<NA>") or _SHEET_ERROR.fullmatch(word.casefold()) is not None


def _id_text(value: Any) -> str | None:
    """Returns the text of a value whose type can hold an id; None for a missing value, such as pandas' NA."""
    if isinstance(value, str):
        return str(value)
    type_name = type(value).__name__
    if value is None or type_name in ("NAType", "NaTType"):  # pandas' missing values
        return None
    if type_name in ("datetime64", "timedelta64"):  # numpy counts timedelta64 among the whole numbers
        if value != value:  # a missing time
            return None
        raise _refuse_type(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        integer = int(value)
    elif isinstance(value, decimal.Decimal | numbers.Real) and not isinstance(value, numbers.Rational):
        if isinstance(value, decimal.Decimal):
            decimal_id = decimal.Decimal(value)
        else:
            decimal_id = decimal.Decimal(float(value))
        if decimal_id.is_nan():
            return None
        if not decimal_id.is_finite() or abs(decimal_id) >= LARGEST_WHOLE_FLOAT or decimal_id != int(decimal_id):
            raise ConfigurationError(
                "a number that is not whole, or too large to be exact, is no id", CAST_REMEDY, code="no-id"
            )
        integer = int(decimal_id)
    else:
        raise _refuse_type(value)
    if integer.bit_length() > 3 * LONGEST_NUMBER:
        raise ConfigurationError("a number of hundreds of digits is no id", CAST_REMEDY, code="no-id")
    return str(integer)


def _refuse_type(value: Any) -> ConfigurationError:
    if isinstance(value, Mapping):
        return ConfigurationError("an object is no id", REFERENCE_REMEDY, code="no-id")
    if isinstance(value, list | tuple | set | frozenset) or (hasattr(value, "tolist") and not hasattr(value, "item")):
        return ConfigurationError("a list is no id", REFERENCE_REMEDY, code="no-id")
    if isinstance(value, bytes | bytearray | memoryview):
        return ConfigurationError("bytes are no id", CAST_REMEDY, code="no-id")
    if type(value).__name__.startswith("bool"):
        type_words = "a truth value"
    else:
        type_words = f"a value of type {type(value).__name__}"
    return ConfigurationError(f"{type_words} is no id", CAST_REMEDY, code="no-id")


@lru_cache(maxsize=2**16)
def _read_id(text: str) -> PatientId | None:
    text = clean_text(text)
    if has_half_character(text):
        raise ConfigurationError(HALF_CHARACTER, "write the id as whole characters of Unicode", code="no-id")
    if identifier_match := _BY_IDENTIFIER.fullmatch(text):
        system, bar, identifier_value = unquote(identifier_match[1]).rpartition("|")
        identifier = PatientId(clean_text(identifier_value), system if bar else "", is_identifier=True)
        if _is_no_id(identifier.name):
            return None
        return identifier
    base = ""
    if reference := _REFERENCE.fullmatch(text):
        base = _reference_base(reference[1] or "")
        text = reference[2].strip()
    elif _OTHER_REFERENCE.fullmatch(text):
        raise ConfigurationError(
            "a reference to something else than a Patient is no patient's id",
            "leave such rows out (--filter, a WHERE of the query)",
            code="no-id",
        )
    if uuid_match := _UUID.fullmatch(text):
        text = uuid_match[1].lower()
    if _is_no_id(text):
        return None
    if (rounded := _ROUNDED.fullmatch(text)) and len(rounded[1] or "") < int(rounded[2]):
        raise ConfigurationError(
            "a number that a spreadsheet has rounded is no id: it may stand for several patients",
            "give the column the format of text before it is filled, and export it again",
            code="no-id",
        )
    return PatientId(text, base)


def clean_text(text: str) -> str:
    """Returns a text in NFC, without controls, format characters and outer white space, inner white space as one space.

    >>> clean_text(" 1\\u200b2\\u00a0 3 ")
    '12 3'
    """
    if not (text.isascii() and text.isalnum()):
        # White space is replaced first, because a tab and a line end are controls, too, and would be removed.
        text = _WHITE_SPACE.sub(" ", text)
        if not text.isprintable():  # A printable text holds no control and no format character.
            text = "".join(character for character in text if unicodedata.category(character) not in ("Cc", "Cf"))
            text = _WHITE_SPACE.sub(" ", text)  # a removed character may have stood between two spaces
        # A removed character may have stood before a combining one, so that this comes last.
        text = unicodedata.normalize("NFC", text.strip(" "))
    return text


def _reference_base(reference: str) -> str:
    """Returns the base of a reference to a Patient; "" where it repeats only the type ("Patient/Patient/7")."""
    base = reference.rstrip("/").removesuffix("/Patient").removesuffix("/Patient")
    if base == "Patient":
        return ""
    scheme, slashes, address = base.partition("://")
    host, slash, path = address.partition("/")
    if slashes:
        return f"{scheme.lower()}://{host.lower()}{slash}{path}"
    return base


# Look-alikes: two ids that differ only in the ways below may be one patient or two.

_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SHEET_TEXT = re.compile(r'="(.*)"')  # Excel exports a text that looks like a number as ="0042".
_QUOTES = "\"'`´‘’‚‛“”„‟‹›«»＂＇"
_PAIRS = {"{": "}", "[": "]", "(": ")", "<": ">"}
_ZEROS = re.compile(r"(?<![\d.,])0+(?=\d)")
_DECIMALS = re.compile(r"(?<=\d)(?:\.0*|,0+)$")
_SIGN = "[+\\-\u2010-\u2015\u2212]"  # a minus sign is also written as a hyphen or a dash
_SIGNED = re.compile(rf"{_SIGN}(\d+(?:[.,]\d*)?)")
_EXPONENT = re.compile(rf"{_SIGN}?(\d+)(?:[.,](\d*))?[eE]\+?(\d{{1,3}})")
_ANY_BASE = re.compile(r"(?:.*/)?patient[/:](.+)|urn:[^:]+:(.+)|[a-z][a-z0-9+.-]*://.*/([^/]+)", re.IGNORECASE)


def _without_width(text: str) -> str:
    if text.isascii():
        return text
    # NFKC leaves the digits of other scripts (Arabic-Indic, Devanagari) as they are.
    plain = _IGNORED.sub("", unicodedata.normalize("NFKC", text)).strip()
    return "".join(str(unicodedata.decimal(letter, letter)) for letter in plain)


def _without_case(text: str) -> str:
    return unicodedata.normalize("NFC", text.casefold())


def _without_quotes(text: str) -> str:
    if sheet := _SHEET_TEXT.fullmatch(text):
        text = sheet[1]
    text = text.strip(_QUOTES).strip()
    if len(text) > 2 and _PAIRS.get(text[0]) == text[-1]:
        return text[1:-1].strip()
    return text


def _without_spaces(text: str) -> str:
    if text.isalnum():
        return text
    text = "".join(letter for letter in text if not letter.isspace())
    if _SIGNED.fullmatch(text) or _EXPONENT.fullmatch(text):
        return text  # a hyphen before a number is its sign
    return "".join(letter for letter in text if unicodedata.category(letter) != "Pd" and letter != "\u2212")


def _without_base(text: str) -> str:
    base = _ANY_BASE.fullmatch(text)
    if base:
        return next(filter(None, base.groups()), text)
    return text


def _as_number(text: str) -> str:
    if signed_match := _SIGNED.fullmatch(text):
        return signed_match[1]
    if (exponent_match := _EXPONENT.fullmatch(text)) and int(exponent_match[3]) < LONGEST_NUMBER:
        decimals = (exponent_match[2] or "").rstrip("0")
        if len(decimals) <= int(exponent_match[3]):
            return (exponent_match[1] + decimals).lstrip("0") + "0" * (int(exponent_match[3]) - len(decimals)) or "0"
    return text


@dataclass(frozen=True)
class _Kind:
    """A kind of difference between two ids that may be one patient's; ``reduce`` removes it from an id."""

    reduce: Callable[[str], str]
    words: str  # completes the sentence "differ from another one only by ..."


_KINDS: Mapping[str, _Kind] = {
    "quotes": _Kind(_without_quotes, "quotes or brackets"),
    "width": _Kind(_without_width, "the width or form of letters or digits"),
    "spaces": _Kind(_without_spaces, "spaces or hyphens"),
    "bases": _Kind(_without_base, "the base of a reference"),
    "numbers": _Kind(_as_number, "the sign or exponent of a number"),
    "decimals": _Kind(lambda text: _DECIMALS.sub("", text), "decimals"),
    "zeros": _Kind(lambda text: _ZEROS.sub("", text), "leading zeros"),
    "case": _Kind(_without_case, "capital letters, or ß for ss"),
    # An identifier's value need not resemble a Patient resource's id: that a source has both makes them look-alikes.
    "identifiers": _Kind(lambda text: text.rpartition("|")[2], "being an identifier"),
}
KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class Choice:
    """A person's decision, for kinds of difference between ids (``KINDS``), if ids that differ only so are one patient.

    Raises ConfigurationError if a kind is unknown or is named for both.

    Attributes:
        same: kinds by which ids of the same patient differ.
        other: kinds by which ids of different patients differ.
    """

    same: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown_kinds = sorted((self.same | self.other) - set(KINDS))
        if unknown_kinds:
            raise ConfigurationError(
                f"{unknown_kinds[0]!r} is no kind of look-alikes",
                f"name one of {', '.join(KINDS)}",
                code="unknown-kind",
            )
        if contradictory := sorted(self.same & self.other):
            raise ConfigurationError(
                f"{contradictory[0]} is named for --same-patient and for --other-patient",
                "name it for one of the two options",
                code="both-kinds",
            )

    def unit(self, patient: PatientId) -> str:
        """Returns the name of the privacy unit of an id. It depends on the id and on this choice alone."""
        text = patient.text
        if "bases" in self.other and patient.system and not patient.is_identifier:
            text = f"{patient.system}/Patient/{patient.name}"
        return reduce_id(text, self.same)


def reduce_id(text: str, kinds: Iterable[str]) -> str:
    """Returns an id without what these kinds of difference concern, such as leading zeros for "zeros".

    It removes them again until the id no longer changes.
    """
    kind_names = set(kinds)
    if not kind_names or (text.isascii() and text.isdigit() and text[0] != "0"):
        return text
    for _ in range(len(text) + 1):
        previous_text = text
        for kind_name, kind in _KINDS.items():
            if kind_name in kind_names:
                text = kind.reduce(text) or text
        if text == previous_text:
            break
    return text


@dataclass(frozen=True)
class LookAlikes:
    """Ids that differ from another id of the source only by ``kinds``.

    Attributes:
        kinds: the kinds of difference that together separate such an id from the one that it resembles.
        count: number of such ids.
        places: place of each such id, after the place of an id that it resembles.
        is_shared: True for Patient resources that have the identifier of another one.
        is_listed: True for identifiers on a list of objections that no id of the source equals; ``kinds`` is then
            empty where a line of the list holds more than an id.
    """

    kinds: tuple[str, ...]
    count: int
    places: tuple[tuple[str, str], ...]
    is_shared: bool = False
    is_listed: bool = False

    @property
    def sentence(self) -> str:
        """The finding as a sentence that shows no id."""
        if self.is_listed:
            subject = counted(self.count, "identifier on the list matches", "identifiers on the list match")
            difference_sentence = difference_words(self.kinds) or "what else stands on its line"
            return f"{subject} an id of the source but for {difference_sentence}"
        if self.is_shared:
            if self.count == 1:
                subject = "1 Patient resource has"
            else:
                subject = f"{self.count} Patient resources have"
            return f"{subject} an identifier of another one"
        if self.kinds == ("identifiers",):
            if self.count == 1:
                subject = "1 id is an identifier"
            else:
                subject = f"{self.count} ids are identifiers"
            return f"{subject}, and other ids are those of Patient resources"
        difference_sentence = difference_words(self.kinds)
        if self.count == 1:
            subject = "1 id differs"
        else:
            subject = f"{self.count} ids differ"
        return f"{subject} from another one only by {difference_sentence}"


def difference_words(kinds: Iterable[str]) -> str:
    """Returns in words by what two ids differ whose difference is of these ``kinds``.

    >>> difference_words(["zeros", "case"])
    'leading zeros and capital letters, or ß for ss'
    """
    return " and ".join(_KINDS[kind].words for kind in kinds)


def find_look_alikes(places: Mapping[PatientId, str], choice: Choice, pairs: Iterable[Pair] = ()) -> list[LookAlikes]:
    """Finds the ids about which ``choice`` decides nothing and which may be one patient or two.

    Args:
        places: first place of each id in the source.
        choice: what a person has decided already.
        pairs: pairs of Patient resources that have one identifier; they count as of the kind "identifiers".
    """
    findings: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    undecided_kinds = [kind for kind in KINDS if kind not in choice.same | choice.other and kind != "identifiers"]
    place_by_unit: dict[str, str] = {}  # place of the first row, by privacy unit
    places_by_unit: dict[str, dict[str, str]] = defaultdict(dict)  # likewise, by unit and base of the reference
    for patient, place in places.items():
        unit = choice.unit(patient)
        place_by_unit.setdefault(unit, place)
        if patient.system and not patient.is_identifier:
            places_by_unit[unit].setdefault(patient.system, place)
    if "bases" in undecided_kinds:
        for place_by_system in places_by_unit.values():
            first_place, *later_places = place_by_system.values()
            findings[("bases",)] += [(first_place, later_place) for later_place in later_places]
    for group in _alike_groups(place_by_unit, (*choice.same, *undecided_kinds)):
        for kinds, first_unit, later_unit in _fewest_differences(group, choice.same, undecided_kinds):
            findings[kinds].append((place_by_unit[first_unit], place_by_unit[later_unit]))
    shared_pairs: list[tuple[str, str]] = []
    if "identifiers" not in choice.same | choice.other:
        findings[("identifiers",)] += _mixed_identifiers(places)
        shared_pairs = [
            (places.get(first_id, id_place), places.get(second_id, second_place))
            for (first_id, id_place), (second_id, second_place) in pairs
        ]
    look_alikes = [
        LookAlikes(kinds, len(place_pairs), tuple(place_pairs))
        for kinds, place_pairs in findings.items()
        if place_pairs
    ]
    return look_alikes + (
        [LookAlikes(("identifiers",), len(shared_pairs), tuple(shared_pairs), is_shared=True)] if shared_pairs else []
    )


def look_alike_kinds(unit: str, other_unit: str, choice: Choice) -> tuple[str, ...]:
    """Returns the fewest undecided kinds by which two units differ; () if they differ by more."""
    undecided_kinds = [kind for kind in KINDS if kind not in choice.same | choice.other]
    return next((kinds for kinds, *_ in _fewest_differences([unit, other_unit], choice.same, undecided_kinds)), ())


def _alike_groups(units: Iterable[str], kinds: Iterable[str]) -> Iterator[list[str]]:
    """Yields the groups of two or more units that are equal but for differences of ``kinds``."""
    units_by_form: dict[str, list[str]] = defaultdict(list)
    kind_names = tuple(kinds)
    for unit in units:
        units_by_form[reduce_id(unit, kind_names)].append(unit)
    return (group for group in units_by_form.values() if len(group) > 1)


def _fewest_differences(
    group: list[str], same_kinds: frozenset[str], undecided_kinds: list[str]
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yields the fewest kinds by which a unit differs from an earlier one of its group, with both units."""
    unmatched_units = dict.fromkeys(group)
    acting_kinds = set[str]().union(*map(_acting_kinds, group))
    # "bases" and "identifiers" come last, because they drop a whole base or system with all differences within it.
    kinds = sorted(
        [kind for kind in undecided_kinds if kind in acting_kinds], key=lambda kind: kind in ("bases", "identifiers")
    )
    for kind_count in range(1, len(kinds) + 1):
        for kind_names in itertools.combinations(kinds, kind_count):
            first_by_form: dict[str, str] = {}
            for unit in list(unmatched_units):
                first_unit = first_by_form.setdefault(reduce_id(unit, {*same_kinds, *kind_names}), unit)
                if first_unit is not unit:
                    del unmatched_units[unit]
                    yield kind_names, first_unit, unit
            if len(unmatched_units) == 1:
                return


def _acting_kinds(unit: str) -> set[str]:
    """Returns the kinds that change a unit, or one of its forms while :func:`reduce_id` removes every kind."""
    acting = {kind_name for kind_name, kind in _KINDS.items() if kind.reduce(unit) != unit}
    text = unit
    for _ in range(len(unit) + 1):
        previous_text = text
        for kind_name, kind in _KINDS.items():
            if (form := kind.reduce(text) or text) != text:
                acting.add(kind_name)
                text = form
        if text == previous_text:
            break
    return acting


def _mixed_identifiers(places: Mapping[PatientId, str]) -> list[tuple[str, str]]:
    """Returns the place of each identifier, after that of a Patient resource's id; [] without such an id."""
    resource_place = next((place for patient, place in places.items() if not patient.is_identifier), None)
    if resource_place is None:
        return []
    return [(resource_place, place) for patient, place in places.items() if patient.is_identifier]
