"""The sheet of a proposed run: the figures that people read before they decide, and that their approval signs.

A sheet's hash covers its JSON. Whoever changes a field's name here breaks the hashes of sheets that were read before.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from undersong_client.consent.people import PersonalDecision
from undersong_common.canonical import canonical_json, tagged_hash

Part = TypeVar("Part")
UNCHECKED = "NOT CHECKED: no list of them was given"
NO_LIST = UNCHECKED
PERIOD = "period that they cover"  # name of a row, which a sheet signs if somebody has stated the period
MOST_NAMES = 12  # names of hospitals or runs that the page of a sheet lists; further ones are only counted
NO_LIST_AS_SIGNED = "none in the file"  # A sheet of an earlier version says so of a list without effect, too.


@dataclass(frozen=True)
class StatedTask:
    """The task as its operator states it; None for what is not stated."""

    name: str
    description: str | None
    labels: Sequence[str] | None
    purpose: str | None
    publication: str | None
    generators: Sequence[str] | None
    columns: Sequence[str] | None


@dataclass(frozen=True)
class OwnRecords:
    """The figures by which people recognise their data set, as (name, words), and the word for one user."""

    word: str
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class NamedParty:
    """The name and the fingerprint of a party, or of the coordinator.

    Attributes:
        full_name: full name and town of a party, in the operator's words; "" where the plan states none.
    """

    name: str
    fingerprint: str
    full_name: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns the fields as JSON values; a sheet signs no full name where there is none."""
        return {name: text for name, text in asdict(self).items() if text or name != "full_name"}


@dataclass(frozen=True)
class UnitPromise:
    """Promises of the run to one privacy unit. An epsilon of None is unlimited.

    Attributes:
        unit_word: the unit in this party's words.
        best_guess: largest share of right guesses about one unit, from all that is published.
        stopping_refunds: True if a run that stops early costs only what was opened.
    """

    epsilon: float | None
    delta: float
    unit: str
    unit_word: str
    max_per_unit: int
    max_records: int
    best_guess: float
    epsilon_if_all_others_collude: float | None
    stopping_refunds: bool


@dataclass(frozen=True, kw_only=True)
class BudgetEffect:
    """The budget before and after a run, all at the budget's delta. An epsilon of None is unlimited.

    Attributes:
        alone: the run by itself.
        best_guess_after: as in :class:`UnitPromise`, for all runs together; None on a sheet of version 0.3.
        worst_before, worst_after: spent if every other party colludes in every run.
    """

    delta: float
    budget: float | None
    before: float | None
    alone: float | None
    after: float | None
    best_guess_after: float | None = None
    left_after: float | None
    worst_before: float | None
    worst_after: float | None


@dataclass(frozen=True)
class ReleaseGroup:
    """Private sums of one statistic with the same noise.

    Attributes:
        meaning: the question, in a sentence.
        source: distribution of a statistic that is not the product's; "" for the product's.
        releases: number of the sums.
        numbers: number of coordinates of each sum.
    """

    statistic: str
    meaning: str
    source: str
    releases: int
    numbers: Sequence[int]
    sigma: float
    l2_sensitivity: float
    law: str


@dataclass(frozen=True)
class FinalCost:
    """Cost of an ended run, and of all runs up to its end, at one delta. An epsilon of None is unlimited."""

    epsilon: float | None
    spent: float | None
    releases: int
    delta: float


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt's canonical JSON, and its signature (hex) by this party."""

    body: str
    signature: str


@dataclass(frozen=True)
class RunEnd:
    """The cost and the receipt of an ended run; None where the run has none."""

    cost: FinalCost | None
    receipt: SignedReceipt | None


@dataclass(frozen=True)
class Surroundings:
    """Facts that a page states beside a sheet, by policy and ledger as they are now. No signature covers them.

    Attributes:
        earlier_runs: names of the runs that the budget was charged for before this one.
        largest_epsilon: the policy's largest epsilon of one run.
        is_standing: True if the policy approves a run without a person.
        units_cut: number of privacy units with more records than count; None if it was not counted.
        objection_list: length and day of the list of objections; "" without one.
        earlier_plan: what became of the plan that this one follows; "" without one.
        one_more: share of right guesses about one unit, on average and in nearly all runs, if one hospital more helps
            the operator than the plan assumes; None if it was not computed, or no other hospital is left.
        one_more_spent: epsilon of all runs at the budget's delta, if so many help in this one and all others in every
            earlier one; None if it is without limit, or was not computed.
        is_undecided: True if nobody of this hospital has decided about the plan yet.
        record_fields: what is read of one record, in words; "" if the data set was not looked at.
        shared: what the hospital shares with the operator of budget and policy now, in words; "" if it was not read.
        earlier_decisions: who approved each earlier run, when, and what its signed sheet says of objections.
    """

    earlier_runs: Sequence[str] = ()
    largest_epsilon: float = math.inf
    is_standing: bool = False
    units_cut: int | None = None
    objection_list: str = ""
    earlier_plan: str = ""
    one_more: tuple[float, float] | None = None
    one_more_spent: float | None = None
    is_undecided: bool = False
    record_fields: str = ""
    shared: str = ""
    earlier_decisions: Sequence[str] = ()


NOTHING_BESIDE = Surroundings()


@dataclass(frozen=True)
class Sheet:
    """Everything that people read about a proposed run.

    Some figures depend on the records. They are for this party's own people, and must not leave the building.

    Attributes:
        two_people: True if the policy asks for two people.
        drill: True if this party's folder belongs to a drill, a rehearsal with invented records.
        manifest: hash (hex) of the plan's manifest.
        operator: who asks, in words.
        asked: the questions of the plan, as sentences.
        own: figures of the data set; None without them.
        coordinator: the coordinator that this party has joined; None without one.
        cost: effect on the budget; None without a budget.
        required_parties: names of the parties that the policy demands.
        others: least number of other parties with whose numbers a sum opens.
        clock_bits: largest number of bits that the time of one answer can tell.
        first_rung_s: earliest time of an answer.
        numbers_in_all: number of coordinates of all sums.
        labels_missing: True if the run uses labels and the data set has none.
        objections, remedies: reasons of the policy's checks against the plan, and what to do about each.
        cautions: warnings that depend on the records.
        warnings: warnings that do not depend on the records.
        words: the plan's nine words.
        number, revises, changes, replaced, people: as in :class:`undersong_client.consent.approvals.Proposal`.
        as_signed: True if these figures were signed.
        ended: the run's end; None before.
    """

    two_people: bool
    drill: bool
    run: str
    manifest: str
    task: StatedTask
    operator: str
    asked: Sequence[str]
    own: OwnRecords | None
    method: str
    coordinator: NamedParty | None
    privacy: UnitPromise
    cost: BudgetEffect | None
    party: str
    required_parties: Sequence[str]
    parties: Sequence[NamedParty]
    others: int
    tolerated_dropouts: int
    colluders: int
    post_quantum: bool
    releases: Sequence[ReleaseGroup]
    clock_bits: float
    first_rung_s: float
    numbers_in_all: int
    labels_missing: bool
    objections: Sequence[str]
    remedies: Sequence[str]
    cautions: Sequence[str]
    warnings: Sequence[str]
    words: str = ""
    number: int = 1
    revises: str = ""
    changes: Sequence[str] = ()
    replaced: bool = False
    as_signed: bool = False
    people: Sequence[PersonalDecision] = ()
    ended: RunEnd | None = None

    @property
    def without_full_name(self) -> tuple[str, ...]:
        """Names of the other parties whose full names the plan does not state."""
        return tuple(party.name for party in self.parties if party.name != self.party and not party.full_name)

    @property
    def has_full_names(self) -> bool:
        """True if the plan states the full name of a party."""
        return any(party.full_name for party in self.parties)

    @property
    def hash(self) -> str:
        """Hash (hex) of all figures: plan, budget before and after, and warnings, without the people who approved."""
        return hash_stored(self.to_json())

    @property
    def part_hashes(self) -> dict[str, str]:
        """Hash (hex) of each part of the sheet that may change while the plan stays, by the part's name."""
        sheet_json = self.to_json()
        fields_by_part = {
            "the budget (set anew, or charged by another run)": ("cost",),
            "the policy": ("objections", "remedies", "required_parties", "two_people"),
            "the records": ("cautions", "labels_missing", "own"),
            "the warnings about policy and records": ("warnings",),
        }
        return {
            part_name: tagged_hash(
                "undersong sheet part", canonical_json([sheet_json[field_name] for field_name in field_names])
            ).hex()
            for part_name, field_names in fields_by_part.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as JSON values, in the order of the signed files."""
        sheet_json = asdict(self)
        named_parties = {
            "coordinator": None if self.coordinator is None else self.coordinator.to_json(),
            "parties": tuple(party.to_json() for party in self.parties),
        }
        return sheet_json | {"cost": sheet_json["cost"] or {}} | named_parties

    @classmethod
    def from_json(cls, figures: Mapping[str, Any]) -> "Sheet":
        """Reads the figures of a stored sheet; turns those of version 0.3 into today's fields."""
        figures = {**_figures_of_before(figures), **figures}
        end_json = figures.get("ended")
        typed_parts: dict[str, Any] = {
            "task": _read_part(StatedTask, figures["task"]),
            "own": _read_part(OwnRecords, figures["own"]),
            "coordinator": _read_part(NamedParty, figures["coordinator"]),
            "privacy": _read_part(UnitPromise, figures["privacy"]),
            "cost": _read_part(BudgetEffect, figures["cost"]),
            "parties": tuple(NamedParty(**party) for party in figures["parties"]),
            "releases": tuple(ReleaseGroup(**release_json) for release_json in figures["releases"]),
            "people": tuple(PersonalDecision(**person_json) for person_json in figures.get("people", ())),
            "ended": end_json
            and RunEnd(_read_part(FinalCost, end_json["cost"]), _read_part(SignedReceipt, end_json["receipt"])),
        }
        field_names = {field.name for field in fields(cls)}
        return cls(
            **{
                field_name: field_value
                for field_name, field_value in {**figures, **typed_parts}.items()
                if field_name in field_names
            }
        )


def hash_stored(figures: Mapping[str, Any]) -> str:
    """Returns the hash (hex) of a sheet's figures as they are stored, whichever version wrote them."""
    signed_figures = {field_name: field_value for field_name, field_value in figures.items() if field_name != "people"}
    return tagged_hash("undersong sheet", canonical_json(signed_figures)).hex()


def _read_part(part: Callable[..., Part], figures: Mapping[str, Any] | None) -> Part | None:
    return part(**figures) if figures else None


def _figures_of_before(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures that a sheet of version 0.3 lacks, computed from those that it has."""
    coordinator = figures["coordinator"]
    operator = "the operator" if coordinator is None else f"the operator (coordinator {coordinator['name']!r})"
    return {
        "operator": operator,
        "asked": tuple(dict.fromkeys(release_json["meaning"] for release_json in figures["releases"])),
        "others": len(figures["parties"]) - figures["tolerated_dropouts"] - 1,
        "own": None,
        "remedies": (),
    }
