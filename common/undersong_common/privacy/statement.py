"""What a ledger says in short, kept where the ledger is not, so that a lost or older one can be continued.

A statement names every run with what it has charged and, while it is open, what its whole plan costs. It says no more
about private values than the ledger does. What cannot be shown any more counts as spent: the whole budget, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from undersong_common.privacy.accounting import Event
from undersong_common.privacy.budget import (
    Budget,
    as_events,
    at_least,
    charged_of,
    count_events,
    events_from_json,
    events_json,
)
from undersong_common.privacy.ledger import Charge, Ledger, PlanPrice

VERSION = 2


@dataclass(frozen=True)
class RunSpending:
    """One run at one party.

    Attributes:
        events: what counts of it, compressed (``count``): :class:`ledger.RunTotal`.
        alone: the same as everyone else together would see it.
        plan: its whole plan; nothing if that is not known, or if it has ended without a charge.
        closed: whether it has ended: it cannot have charged more.
    """

    run: str
    manifest: str
    events: tuple[Event, ...]
    alone: tuple[Event, ...] = ()
    plan: PlanPrice = field(default_factory=PlanPrice)
    closed: bool = False

    def at_most(self, other: RunSpending | None = None) -> RunSpending:
        """What this run may have cost, given also what another source shows of it: an open one its whole plan."""
        price = charged_of if self.closed else at_least
        events, alone = price(self.events, self.plan.events), price(self.alone, self.plan.alone)
        if other is not None:
            events, alone = at_least(events, other.events), at_least(alone, other.alone)
        return replace(self, events=events, alone=alone)


@dataclass(frozen=True)
class Statement:
    """What a ledger says: its head, its length, its budget, its runs, and what earlier ledgers had lost."""

    head: str
    entries: int
    budget: Budget | None
    runs: tuple[RunSpending, ...] = ()
    lost_budgets: tuple[Budget | None, ...] = field(default=())

    @property
    def released(self) -> bool:
        """Whether anything may have left: without it there is nothing that a lost ledger could hide."""
        return bool(self.runs or self.lost_budgets)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "ledger_head": self.head,
            "ledger_entries": self.entries,
            "released": self.released,
            "budget": None if self.budget is None else self.budget.to_json(),
            "runs": [
                {
                    "run": spent.run,
                    "manifest": spent.manifest,
                    "events": events_json(spent.events),
                    "alone": events_json(spent.alone),
                    "plan": {"events": events_json(spent.plan.events), "alone": events_json(spent.plan.alone)},
                    "closed": spent.closed,
                }
                for spent in self.runs
            ],
            "lost_budgets": [None if budget is None else budget.to_json() for budget in self.lost_budgets],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Statement:
        """Raises ValueError, KeyError, TypeError or ConfigurationError for what is no statement of this version."""
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return cls(
            head=str(value["ledger_head"]),
            entries=int(value["ledger_entries"]),
            budget=None if value["budget"] is None else Budget.from_json(value["budget"]),
            runs=tuple(
                RunSpending(
                    str(spent["run"]),
                    str(spent["manifest"]),
                    events_from_json(spent["events"]),
                    events_from_json(spent["alone"]),
                    PlanPrice(events_from_json(spent["plan"]["events"]), events_from_json(spent["plan"]["alone"])),
                    bool(spent["closed"]),
                )
                for spent in value["runs"]
            ),
            lost_budgets=tuple(
                None if budget is None else Budget.from_json(budget) for budget in value["lost_budgets"]
            ),
        )


def of_ledger(ledger: Ledger) -> Statement:
    """What ``ledger`` says now."""
    runs = [
        RunSpending(
            total.run,
            total.manifest,
            total.events,
            total.alone,
            PlanPrice() if total.closed else total.plan,
            total.closed,
        )
        for total in ledger.totals()
    ]
    return Statement(ledger.head, ledger.length, ledger.budget, tuple(runs), tuple(ledger.lost()[1]))


def missing(ledger: Ledger, shown: Iterable[RunSpending]) -> list[Charge]:
    """What ``shown`` says was charged at most and ``ledger`` does not hold: one charge for each such run."""
    held = {spent.run: spent for spent in of_ledger(ledger).runs}
    charges = []
    for spent in shown:
        known = held.get(spent.run)
        events = _without(spent.events, known.events if known else ())
        alone = _without(spent.alone, known.alone if known else ())
        charges.append(Charge(spent.run, spent.manifest, "", 0, events, "", alone))
    return charges


def _without(events: Sequence[Event], known: Sequence[Event]) -> tuple[Event, ...]:
    return as_events(count_events(events) - count_events(known))
