"""Values in which a ledger speaks: charges, and its short statement, which is kept outside the ledger's folder.

With the statement a lost or older ledger can be continued. It names every run with all that it has charged and, while
it is open, the price of its whole plan. It says no more about private values than the ledger does. Spending that
cannot be shown any more counts as the whole budget, never as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from undersong_common.privacy.accounting import Event
from undersong_common.privacy.budget import (
    Budget,
    as_events,
    at_least,
    budget_from_json,
    budget_json,
    charged_of,
    count_events,
    events_from_json,
    events_json,
)

VERSION = 2
Slot = tuple[str, str, int]
State = Literal["unknown", "charged", "sent", "withdrawn", "void"]


@dataclass(frozen=True)
class PlanPrice:
    """A run's whole plan: its events, spare attempts included, and what all its vectors show to everyone else."""

    events: tuple[Event, ...] = ()
    alone: tuple[Event, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"events": events_json(self.events), "alone": events_json(self.alone)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlanPrice:
        return cls(events_from_json(value["events"]), events_from_json(value["alone"]))


@dataclass(frozen=True)
class Charge:
    """One attempt at one private sum, as a party prices it itself.

    Attributes:
        run: name of the run.
        manifest: hash (hex) of the manifest that the run was agreed under.
        query: name of the private sum in its plan.
        attempt: number of the attempt.
        events: releases of the sum, under the assumed number of honest survivors.
        question: q (hex), the digest of the public inputs of the sum; "" if the sum has none.
        alone: releases that everyone else sees if they collude: only the party's own share of the noise is left.
    """

    run: str
    manifest: str
    query: str
    attempt: int
    events: tuple[Event, ...]
    question: str = ""
    alone: tuple[Event, ...] = ()

    @property
    def slot(self) -> Slot:
        return self.run, self.query, self.attempt

    def __str__(self) -> str:
        return f"run {self.run!r}, {self.query or 'its plan'}, attempt {self.attempt}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "events": events_json(self.events), "alone": events_json(self.alone)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Charge:
        """Reads an entry of kind ``charge``. Raises ValueError, KeyError or TypeError for a malformed one."""
        run, manifest, query, attempt = (entry[name] for name in ("run", "manifest", "query", "attempt"))
        # a receipt does not show what a vector shows to everyone else
        alone = events_from_json(entry.get("alone", ()))
        return cls(run, manifest, query, attempt, events_from_json(entry["events"]), entry["question"], alone)


@dataclass(frozen=True)
class RunCost:
    """Cost of one run: ``epsilon`` by itself, ``spent`` with everything before it; both at one delta.

    ``whole_plan``: it is charged at its whole plan, however many ``releases`` it has made.
    """

    run: str
    releases: int
    epsilon: float
    spent: float
    whole_plan: bool


@dataclass(frozen=True)
class RunSpending:
    """All that one run has charged.

    Attributes:
        events: the events that count, equal ones merged (``budget.charged_of``).
        alone: events of every vector that left, as everyone else together would see them; likewise.
        plan: its whole plan while it is open; empty if it is closed or its plan is not known.
        closed: True if it has ended for this party: it cannot charge more.
    """

    run: str
    manifest: str
    events: tuple[Event, ...]
    alone: tuple[Event, ...] = ()
    plan: PlanPrice = field(default_factory=PlanPrice)
    closed: bool = False

    def at_most(self, other: RunSpending | None = None) -> RunSpending:
        """Upper bound on the cost of this run, an open one with its plan, given also what another source knows."""
        bound = charged_of if self.closed else at_least
        events, alone = bound(self.events, self.plan.events), bound(self.alone, self.plan.alone)
        if other is not None:
            events, alone = at_least(events, other.events), at_least(alone, other.alone)
        return replace(self, events=events, alone=alone)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), **PlanPrice(self.events, self.alone).to_json(), "plan": self.plan.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunSpending:
        spent, plan = PlanPrice.from_json(value), PlanPrice.from_json(value["plan"])
        return cls(str(value["run"]), str(value["manifest"]), spent.events, spent.alone, plan, bool(value["closed"]))


@dataclass
class Attempt:
    """A charged attempt in a ledger.

    Attributes:
        data: fingerprint of the data set when it was charged.
        vector: hash (hex) of the vector that it has sent.
    """

    charge: Charge
    data: str
    state: State = "charged"
    vector: str = ""

    @property
    def counts(self) -> bool:
        return self.state in ("charged", "sent")


@dataclass
class RunRecord:
    """State of one run in a ledger; ``total`` None: to be counted again."""

    manifests: set[str] = field(default_factory=set)
    plan: PlanPrice | None = None
    closed: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    lost: list[Charge] = field(default_factory=list)
    total: RunSpending | None = None

    def of(self, query: str) -> list[Attempt]:
        return [each for each in self.attempts if each.charge.query == query]

    def counted(self) -> list[Charge]:
        return [*self.lost, *(each.charge for each in self.attempts if each.counts)]

    def left(self) -> list[Charge]:
        return [*self.lost, *(each.charge for each in self.attempts if each.state in ("sent", "void"))]

    def price(self, further: Sequence[Event] = ()) -> tuple[Event, ...]:
        """Events that the run costs, with ``further`` ones that it is about to charge."""
        charged = [event for charge in self.counted() for event in charge.events]
        return charged_of([*charged, *further], self.plan.events if self.plan else ())

    def spending(self) -> RunSpending:
        if self.total is None:
            last = self.attempts[-1].charge if self.attempts else self.lost[-1]
            plan = self.plan or PlanPrice()
            alone = charged_of([event for charge in self.left() for event in charge.alone], plan.alone)
            still = PlanPrice() if self.closed else plan
            self.total = RunSpending(last.run, last.manifest, self.price(), alone, still, self.closed)
        return self.total


@dataclass(frozen=True)
class Statement:
    """A ledger's head, its length, its budget, its runs, and whole budgets that earlier ledgers had lost."""

    head: str
    entries: int
    budget: Budget | None
    runs: tuple[RunSpending, ...] = ()
    lost_budgets: tuple[Budget | None, ...] = ()

    @property
    def released(self) -> bool:
        """False if nothing can have left, so that a lost ledger could hide nothing."""
        return bool(self.runs or self.lost_budgets)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "ledger_head": self.head,
            "ledger_entries": self.entries,
            "released": self.released,
            "budget": budget_json(self.budget),
            "runs": [spent.to_json() for spent in self.runs],
            "lost_budgets": [budget_json(budget) for budget in self.lost_budgets],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Statement:
        """Raises ValueError, KeyError, TypeError or ConfigurationError for anything but this version's statement."""
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return cls(
            head=str(value["ledger_head"]),
            entries=int(value["ledger_entries"]),
            budget=budget_from_json(value["budget"]),
            runs=tuple(RunSpending.from_json(spent) for spent in value["runs"]),
            lost_budgets=tuple(budget_from_json(budget) for budget in value["lost_budgets"]),
        )

    def missing(self, shown: Iterable[RunSpending]) -> list[Charge]:
        """Charges that ``shown`` knows at most and this ledger does not hold: one for each shown run."""
        held = {spent.run: spent for spent in self.runs}
        charges = []
        for spent in shown:
            known = held.get(spent.run, RunSpending(spent.run, "", ()))
            events, alone = _without(spent.events, known.events), _without(spent.alone, known.alone)
            charges.append(Charge(spent.run, spent.manifest, "", 0, events, "", alone))
        return charges


def _without(events: Sequence[Event], known: Sequence[Event]) -> tuple[Event, ...]:
    return as_events(count_events(events) - count_events(known))
