"""Helpers that the readers of all kinds of sources use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from undersong_common.errors import ConfigurationError
from undersong_common.printable import first_named, printable
from undersong_common.text.patient_ids import LookAlikes, Pair, PatientId
from undersong_common.text.row_files import NO_GZIP, Row, file_lines

Cause: TypeAlias = Literal["lost", "refused", "hospital", "resource"]

NO_LABEL_REMEDY = "name a label for it: --label-map =LABEL (--label-map = leaves it out)"
LARGEST_PLACE_COUNT = 3  # A message names at most so many rows for one reason.
LONGEST_PLACE = 240  # characters that a message shows of a row's place ("FILE: row N")


@dataclass(frozen=True)
class Skipped:
    """A row or resource that was not read: its place and the reason, never its content.

    Attributes:
        cause: "lost" for a row or document that could have been a record, "refused" for one at which ``data add``
            stops, "hospital" for one that the hospital leaves out itself, "resource" for what is no document.
        beside: place of the row or resource that the reason speaks of; "" for none.
        remedy: what to do about a refused one.
    """

    where: str
    why: str
    cause: Cause = "lost"
    beside: str = ""
    remedy: str = ""

    @property
    def places(self) -> str:
        if self.beside:
            return f"{self.where} ({self.beside})"
        return self.where


class Skip(Protocol):
    """Notes the place and the reason of a row that is not read."""

    def __call__(self, where: str, why: str, cause: Cause = "lost", *, beside: str = "", remedy: str = "") -> None: ...


def first_places(places: Sequence[str], further: str = "") -> str:
    """Returns the first places of rows as a phrase; ``further`` says where the other places are listed."""
    return first_named([printable(place, LONGEST_PLACE) for place in places], LARGEST_PLACE_COUNT, further)


def look_alike_words(look_alikes: LookAlikes) -> str:
    """Returns the sentence on look-alikes (ids that may mean one patient or two), with the places of the first ones."""
    pair_words = [f"{resembling_id} like {listed_id}" for listed_id, resembling_id in look_alikes.places]
    return f"{look_alikes.sentence} ({first_places(pair_words)})"


class Caution(str):
    """A warning about records that ``data add`` is about to seal (copy in encrypted form), with its remedy."""

    remedy: str

    def __new__(cls, sentence: str, remedy: str) -> "Caution":
        caution = super().__new__(cls, sentence)
        caution.remedy = remedy
        return caution


GO_ON = "or go on: --despite-cautions"


def caution_remedy(cautions: Iterable[str], go_on: str = GO_ON) -> str:
    """Returns the remedies of warnings as one phrase; ``go_on`` names the way to go on despite them.

    >>> caution_remedy([Caution("2 ids are alike", "join them"), "delta is large"])
    'join them; change what it names; or go on: --despite-cautions'
    """
    caution_remedies = dict.fromkeys(getattr(caution, "remedy", "change what it names") for caution in cautions)
    return "; ".join([*caution_remedies, go_on])


def _same_id(patient: PatientId) -> PatientId:
    return patient


@dataclass(frozen=True)
class OpenedSource:
    """The rows of a source, and what the source says of its patients.

    Attributes:
        patient_of: returns the id under which the source joins a patient's ids, for an id of a record or of a list.
        pairs: returns the pairs of patients to whom the source gives one identifier, each patient with a place; to be
            called after the rows were read.
        aliases: returns each further id and identifier of a patient, with the id under which the source joins it; to
            be called after the rows were read.
        has_identifiers: True if the source has business identifiers (SYSTEM|VALUE) beside ids.
    """

    rows: Iterator[Row]
    patient_of: Callable[[PatientId], PatientId] = _same_id
    pairs: Callable[[], Iterable[Pair]] = tuple
    aliases: Callable[[], Iterable[tuple[PatientId, PatientId]]] = tuple
    has_identifiers: bool = False


def objects(value: Any) -> list[dict[str, Any]]:
    """Returns the objects of a list; [] for anything else, because an export may hold any JSON in any place."""
    if isinstance(value, list):
        return [element for element in value if isinstance(element, dict)]
    return []


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file, which may be compressed, with their numbers from 1; leaves out blank lines."""
    try:
        with closing(file_lines(path)) as text_lines:
            for line_number, text_line in enumerate(text_lines, start=1):
                if text_line.strip():
                    yield line_number, text_line
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror or NO_GZIP}",
            "check the file and its permissions",
            code="unreadable-source",
        ) from None
