"""The figures by which a party's people recognise their data set; nobody else is told any of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undersong_client.consent.sheet import NO_LIST, NO_LIST_AS_SIGNED, PERIOD, OwnRecords
from undersong_client.home import LONGEST_PERIOD, PartyHome, unit_word
from undersong_client.records import snapshot
from undersong_client.records.private import unit_count
from undersong_client.storage import datasets
from undersong_common.printable import printable
from undersong_common.privacy import impact
from undersong_common.text.table import EMPTY, Table

LARGEST_DELTA = 1e-5  # no larger delta is proposed, however few patients there are


@dataclass(frozen=True)
class OwnFigures:
    """File, day, records, patients and what was left out of a sealed data set.

    Attributes:
        file: the declared source.
        read_s: time at which it was read, seconds since the epoch; 0 for a copy that does not say so.
        patients: number of users; None without a column of them.
        unit_word: word for one user.
        objectors: number of users left out by the list of objections; None without a list.
        left_out: number of rows by the reason for which they were left out.
        period: the period that the records cover, in a person's words; "" where nobody has stated it.
        known_labels: share of the records whose label a plan lists; None without labels or without a plan.
    """

    file: str
    read_s: float
    records: int
    patients: int | None
    unit_word: str
    objectors: int | None
    left_out: Mapping[str, int]
    period: str = ""
    known_labels: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _objection_words(self, no_list: str) -> str:
        """Says that no list of objections was given, that nobody on it is in the file, or how many were left out."""
        if self.objectors is None:
            return no_list
        if self.objectors:
            return f"{self.objectors:,} in the file, left out"
        return "a list was given; none of it is in the file"

    def for_sheet(self) -> OwnRecords:
        """Returns the two parts that a signed sheet contains: the rows as (name, value), and the word for a user."""
        return OwnRecords(self.unit_word, self.rows(no_list=NO_LIST_AS_SIGNED))

    def rows(self, *, no_list: str = NO_LIST) -> tuple[tuple[str, str], ...]:
        """Returns the figures as (name, words), for sheet, page and command; ``no_list`` says that none was given."""
        people_word = unit_word("user", self.unit_word, 2)
        if self.read_s:
            reading_day_words = f"{datetime.fromtimestamp(self.read_s, UTC):%Y-%m-%d}"
        else:
            reading_day_words = "on a day that was not kept"
        if self.patients is None:
            people_count_words = "no column names them"
        else:
            people_count_words = f"{self.patients:,}"
        skipped_words = "; ".join(
            f"{record_count:,}: {printable(reason.replace(EMPTY, 'the row has no text', 1), 200)}"
            for reason, record_count in self.left_out.items()
            if record_count
        )
        figure_rows = [
            ("file", f"{printable(Path(self.file).name, 200)}, read {reading_day_words}"),
            ("records", f"{self.records:,}"),
            (people_word, people_count_words),
            (f"{people_word} who object", self._objection_words(no_list)),
            ("rows left out", skipped_words or "none"),
        ]
        if self.period:
            figure_rows.append((PERIOD, printable(self.period, LONGEST_PERIOD)))
        if self.known_labels is not None:
            figure_rows.append(
                ("labels that the plan knows", f"those of {100 * self.known_labels:.0f} % of the records")
            )
        return tuple(figure_rows)


def own_figures(home: PartyHome, labels: Sequence[str] | None = None) -> OwnFigures:
    """Returns the figures of the sealed data set.

    Args:
        labels: the labels of a plan; None for no plan.

    Raises ConfigurationError if no data set was added, or its sealed copy is damaged.
    """
    record_table = datasets.load(home).table
    snapshot_facts = snapshot.facts(home)
    settings = home.settings
    objector_count = None
    if settings.exclusions:
        exclusion_entry = datasets.last_exclusion(home)
        if exclusion_entry is None:
            objector_count = 0
        else:
            objector_count = int(exclusion_entry["patients"])
    return OwnFigures(
        settings.data,
        snapshot_facts.read_s,
        len(record_table),
        None if record_table.users is None else unit_count(record_table, "user"),
        settings.user_is,
        objector_count,
        snapshot_facts.left_out,
        settings.period,
        _known_share(record_table, labels),
    )


def _known_share(table: Table, labels: Sequence[str] | None) -> float | None:
    if not labels or not table.labels:
        return None
    return sum(label in set(labels) for label in table.labels) / len(table.labels)


def proposed_delta(unit_total: int) -> float:
    """Returns the delta to propose for a budget: 1e-5, or less for many patients.

    It is the smaller of 1e-5 and the largest power of ten that is at most 1 / (10 ``unit_total``).

    >>> [proposed_delta(units) for units in (0, 100, 9_999, 10_000, 10_001, 100_000, 250_000)]
    [1e-05, 1e-05, 1e-05, 1e-05, 1e-06, 1e-06, 1e-07]
    """
    delta_exponent = max(-round(math.log10(LARGEST_DELTA)), len(str(max(unit_total, 1) * 10 - 1)))
    return float(f"1e-{delta_exponent}")


def delta_of(home: PartyHome) -> tuple[float, str]:
    """Returns the delta to propose for this data set's budget, and the proposal with its reason as a sentence."""
    if not home.settings.data:
        return LARGEST_DELTA, delta_sentence(0, "")
    record_figures = own_figures(home)
    if record_figures.patients is None:
        unit_count = record_figures.records
        unit_word = "record"
    else:
        unit_count = record_figures.patients
        unit_word = record_figures.unit_word
    return proposed_delta(unit_count), delta_sentence(unit_count, unit_word)


def delta_sentence(unit_total: int, user_word: str) -> str:
    """Returns the proposal with its reason.

    >>> delta_sentence(20_000, "patient")
    '1e-06, which is 1 in 1,000,000: at most a tenth of one over the number of patients, 20,000'
    >>> delta_sentence(0, "")
    '1e-05, which is 1 in 100,000'
    """
    delta = proposed_delta(unit_total)
    explanation_words = ""
    if unit_total:
        explanation_words = (
            f": at most a tenth of one over the number of {unit_word('user', user_word, 2)}, {unit_total:,}"
        )
    return f"{delta:g}, which is {impact.chance(delta)}{explanation_words}"
