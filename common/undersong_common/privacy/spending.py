"""Prices runs against the budget of a data set, and defines a ledger's charges and its summary, the statement.

Runs whose releases are all Gaussians without subsampling are together one *part* of the budget: their mu^2 adds. Every
other run is a part by itself, and the parts' epsilons and deltas add (docs/privacy.md, "Accounting"). The delta of a
part is fixed when the budget is declared. It must not depend on the number of parts so far, because runs are chosen
after the results of earlier ones are known.

A party keeps the statement outside the ledger's folder. With it, a lost or outdated ledger can be continued. It names
every run with all that it has charged and, while the run is open, the price of its whole plan. It says no more about
private values than the ledger does. Spending that cannot be shown any more counts as the whole budget, never as zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_common.privacy.accounting import DiscreteLaplace, Event, Gaussian, Laplace, Pure, count_events

Runs = Mapping[str, Sequence[Event]]

_EVENTS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete_laplace": DiscreteLaplace,
    "pure": Pure,
}
_NAMES = {event_class: mechanism for mechanism, event_class in _EVENTS.items()}


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that the owner of a data set allows over all runs.

    Attributes:
        epsilon: above 0; may be inf.
        delta: between 0 and 1.
        parts: number of equal parts that ``delta`` is divided into; a run that would need one more is refused.
    """

    epsilon: float
    delta: float
    parts: int = 1

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigurationError(
                f"the budget's epsilon {self.epsilon} is not above 0, or its delta {self.delta} not between 0 and 1",
                "give an epsilon above 0 and a delta between 0 and 1",
            )
        if self.parts < 1:
            raise ConfigurationError(
                f"the budget's number of parts is {self.parts}, below 1", "give an integer, 1 or more", code="no-parts"
            )


def budget_json(budget: Budget | None) -> dict[str, Any] | None:
    """Returns a budget as JSON values, with "inf" for an infinite epsilon; None for no limit."""
    if budget is None:
        return None
    return {**vars(budget), "epsilon": number(budget.epsilon)}


def budget_from_json(value: Mapping[str, Any] | None) -> Budget | None:
    """Reads what :func:`budget_json` wrote.

    Raises ValueError, KeyError, TypeError or ConfigurationError for another value.
    """
    if value is None:
        return None
    return Budget(float(value["epsilon"]), float(value["delta"]), int(value["parts"]))


def parts(runs: Runs) -> list[list[Event]]:
    """Groups the events of all runs by part of the budget: purely Gaussian runs are one part, each other run is one."""
    gaussian_runs = {run for run, events in runs.items() if accounting.is_one_gaussian(events)}
    gaussian_events = [event for run in runs if run in gaussian_runs for event in runs[run]]
    other_runs = [list(events) for run, events in runs.items() if run not in gaussian_runs]
    return [gaussian_events, *other_runs] if gaussian_events else other_runs


def price(runs: Runs, delta: float, part_count: int) -> float:
    """Returns epsilon of ``runs`` at ``delta``, summed over their parts, each at ``delta`` / ``part_count``.

    ``part_count`` is the number of equal parts of ``delta``. The result is inf if the runs need more parts.
    """
    budget_parts = parts(runs)
    if len(budget_parts) > part_count:
        return math.inf
    return math.fsum(accounting.epsilon(part_events, delta / part_count) for part_events in budget_parts)


def surely_within(budget_parts: Sequence[Sequence[Event]], epsilon: float, delta: float) -> bool:
    """Returns True if the events are of one part, purely Gaussian, and within ``epsilon`` at ``delta``.

    False means that :func:`price` must decide; it takes milliseconds, because it searches for epsilon.
    """
    return (
        len(budget_parts) == 1
        and accounting.is_one_gaussian(budget_parts[0])
        and accounting.delta(budget_parts[0], epsilon) <= delta
    )


def charged_of(charged: Iterable[Event], plan: Iterable[Event]) -> tuple[Event, ...]:
    """Returns the events that count as the cost of a run after its first charge, equal ones merged.

    A run of Gaussians without subsampling costs what it has ``charged``. Any other run costs its whole ``plan``,
    however early it stops: the decision to stop may depend on the sums so far, and their price does not cover that
    (docs/privacy.md, "Accounting").

    >>> charged_of([Pure(0.1)], [Pure(0.1), Pure(0.2)])
    (Pure(epsilon=0.1, count=1), Pure(epsilon=0.2, count=1))
    """
    charged = compressed(charged)
    plan = tuple(plan)
    if accounting.is_one_gaussian((*charged, *plan)):
        return charged
    return at_least(charged, plan)


def at_least(first_events: Iterable[Event], second_events: Iterable[Event]) -> tuple[Event, ...]:
    """Returns the union of two multisets of events: each event as often as in the one that has it more often."""
    return as_events(count_events(first_events) | count_events(second_events))


def compressed(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merges equal events into one and adds their counts."""
    return as_events(count_events(events))


def as_events(counts: Mapping[Event, int]) -> tuple[Event, ...]:
    """Turns the result of :func:`count_events` back into events with counts."""
    return tuple(
        event if event.count == event_count else replace(event, count=event_count)
        for event, event_count in counts.items()
        if event_count > 0
    )


def events_json(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Returns events as JSON values, with "inf" for infinity."""
    return [
        {"mechanism": _NAMES[type(event)]}
        | {field_name: number(field_value) for field_name, field_value in vars(event).items()}
        for event in events
    ]


def events_from_json(values: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Reads what :func:`events_json` wrote.

    Raises ValueError, KeyError, TypeError or ConfigurationError for another value.
    """
    return tuple(
        _EVENTS[event_json["mechanism"]](
            **{
                field_name: math.inf if field_value == "inf" else field_value
                for field_name, field_value in event_json.items()
                if field_name != "mechanism"
            }
        )
        for event_json in values
    )


def number(value: float) -> float | str:
    """Returns a number as JSON can hold it: "inf" for infinity."""
    return "inf" if value == math.inf else value


VERSION = 2
Slot = tuple[str, str, int]  # run, query and number of an attempt
State = Literal["unknown", "charged", "sent", "withdrawn", "void"]


@dataclass(frozen=True)
class PlanPrice:
    """Price of a run's whole plan.

    Attributes:
        events: all its releases, repeated attempts included.
        alone: the same releases as seen by all others if they collude, behind this party's own noise only.
    """

    events: tuple[Event, ...] = ()
    alone: tuple[Event, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"events": events_json(self.events), "alone": events_json(self.alone)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PlanPrice":
        return cls(events_from_json(value["events"]), events_from_json(value["alone"]))


@dataclass(frozen=True)
class Charge:
    """One attempt at one private sum, with its price as a party computes it.

    Attributes:
        run: name of the run.
        manifest: hash (hex) of the manifest that the run was agreed under.
        query: name of the private sum in its plan.
        attempt: number of the attempt.
        events: releases of the sum, with the noise of the assumed number of honest survivors.
        question: hash (hex) of the public inputs of the sum; "" if the sum has no public inputs.
        alone: releases as seen by all others if they collude, behind this party's own share of the noise only.
        unit: privacy unit that the events are priced for; "" in a ledger that an earlier version wrote.
    """

    run: str
    manifest: str
    query: str
    attempt: int
    events: tuple[Event, ...]
    question: str = ""
    alone: tuple[Event, ...] = ()
    unit: str = ""

    @property
    def slot(self) -> Slot:
        return self.run, self.query, self.attempt

    def __str__(self) -> str:
        return f"run {self.run!r}, {self.query or 'its plan'}, attempt {self.attempt}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "events": events_json(self.events), "alone": events_json(self.alone)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Charge":
        """Reads a ledger's entry of kind ``charge``. Raises ValueError, KeyError or TypeError for a malformed entry."""
        run, manifest, query, attempt = (entry[entry_field] for entry_field in ("run", "manifest", "query", "attempt"))
        # A receipt leaves out "alone", the events that a vector shows to everyone else, so the key may be missing.
        alone_events = events_from_json(entry.get("alone", ()))
        unit = str(entry.get("unit", ""))
        return cls(
            run, manifest, query, attempt, events_from_json(entry["events"]), entry["question"], alone_events, unit
        )


@dataclass(frozen=True)
class RunCost:
    """Cost of one run in a ledger, at the delta that was asked for.

    Attributes:
        releases: number of charges that count.
        epsilon: cost of this run by itself.
        spent: cost of this run and all runs before it.
        whole_plan: True if the run costs its whole plan, however many charges it has made.
    """

    run: str
    releases: int
    epsilon: float
    spent: float
    whole_plan: bool


@dataclass(frozen=True)
class RunSpending:
    """Total that one run has charged.

    Attributes:
        events: the events that count, equal ones merged (:func:`charged_of`).
        alone: the events of every vector that was sent, as seen by all others if they collude; equal ones merged.
        plan: price of the whole plan while the run is open; empty if it is closed or its plan is not known.
        closed: True if the run has ended for this party, so that it cannot charge more.
        unit: privacy unit of the run; "" if it is not known.
    """

    run: str
    manifest: str
    events: tuple[Event, ...]
    alone: tuple[Event, ...] = ()
    plan: PlanPrice = field(default_factory=PlanPrice)
    closed: bool = False
    unit: str = ""

    def at_most(self, other: "RunSpending | None" = None) -> "RunSpending":
        """Returns an upper bound on this run's spending: an open run counts with its whole plan.

        Args:
            other: the same run's spending from another source, which the bound covers too.
        """
        bound_events = charged_of if self.closed else at_least
        run_events = bound_events(self.events, self.plan.events)
        alone_events = bound_events(self.alone, self.plan.alone)
        if other is not None:
            run_events = at_least(run_events, other.events)
            alone_events = at_least(alone_events, other.alone)
        return replace(self, events=run_events, alone=alone_events)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), **PlanPrice(self.events, self.alone).to_json(), "plan": self.plan.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RunSpending":
        plan_price = PlanPrice.from_json(value)
        plan = PlanPrice.from_json(value["plan"])
        run = str(value["run"])
        manifest = str(value["manifest"])
        unit = str(value.get("unit", ""))
        return cls(run, manifest, plan_price.events, plan_price.alone, plan, bool(value["closed"]), unit)


@dataclass
class ChargedAttempt:
    """State of a charged attempt in a ledger.

    Attributes:
        data: fingerprint of the data set at the time of the charge.
        vector: hash (hex) of the vector that was sent; "" before.
    """

    charge: Charge
    data: str
    state: State = "charged"
    vector: str = ""

    @property
    def counts(self) -> bool:
        """True if the charge counts: the attempt is neither withdrawn nor void."""
        return self.state in ("charged", "sent")


@dataclass
class RunRecord:
    """State of one run in a ledger; ``total`` caches :meth:`spending` and is None after a change."""

    manifests: set[str] = field(default_factory=set)
    plan: PlanPrice | None = None
    closed: bool = False
    attempts: list[ChargedAttempt] = field(default_factory=list)
    lost: list[Charge] = field(default_factory=list)
    total: RunSpending | None = None

    def of(self, query: str) -> list[ChargedAttempt]:
        """Returns the charged attempts at one private sum."""
        return [attempt for attempt in self.attempts if attempt.charge.query == query]

    def counted(self) -> list[Charge]:
        """Returns the charges that count: those of lost ledgers and of attempts that are not withdrawn or void."""
        return [*self.lost, *(attempt.charge for attempt in self.attempts if attempt.counts)]

    def left(self) -> list[Charge]:
        """Returns the charges whose vectors have left this party, also in void attempts, and those of lost ledgers."""
        return [*self.lost, *(attempt.charge for attempt in self.attempts if attempt.state in ("sent", "void"))]

    def price(self, further: Sequence[Event] = ()) -> tuple[Event, ...]:
        """Returns the events that count as the run's cost if it charges the ``further`` ones too."""
        charged_events = [event for charge in self.counted() for event in charge.events]
        return charged_of([*charged_events, *further], self.plan.events if self.plan else ())

    def spending(self) -> RunSpending:
        if self.total is None:
            if self.attempts:
                last_charge = self.attempts[-1].charge
            else:
                last_charge = self.lost[-1]
            plan = self.plan or PlanPrice()
            alone_events = charged_of([event for charge in self.left() for event in charge.alone], plan.alone)
            remaining_price = PlanPrice() if self.closed else plan
            self.total = RunSpending(
                last_charge.run,
                last_charge.manifest,
                self.price(),
                alone_events,
                remaining_price,
                self.closed,
                last_charge.unit,
            )
        return self.total


@dataclass(frozen=True)
class Statement:
    """Summary of a ledger, kept elsewhere so that a lost or outdated ledger can be continued.

    Attributes:
        head: hash (hex) of the ledger's last entry.
        entries: number of its entries.
        runs: spending of each run.
        lost_budgets: budgets that count as wholly spent; None for an unknown one.
    """

    head: str
    entries: int
    budget: Budget | None
    runs: tuple[RunSpending, ...] = ()
    lost_budgets: tuple[Budget | None, ...] = ()

    @property
    def released(self) -> bool:
        """True if any run has charged, so that losing this ledger would hide spending."""
        return bool(self.runs or self.lost_budgets)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "ledger_head": self.head,
            "ledger_entries": self.entries,
            "released": self.released,
            "budget": budget_json(self.budget),
            "runs": [run_spending.to_json() for run_spending in self.runs],
            "lost_budgets": [budget_json(budget) for budget in self.lost_budgets],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Statement":
        """Reads what :meth:`to_json` wrote.

        Raises ValueError, KeyError, TypeError or ConfigurationError for another value or version.
        """
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return cls(
            head=str(value["ledger_head"]),
            entries=int(value["ledger_entries"]),
            budget=budget_from_json(value["budget"]),
            runs=tuple(RunSpending.from_json(run_spending) for run_spending in value["runs"]),
            lost_budgets=tuple(budget_from_json(budget) for budget in value["lost_budgets"]),
        )

    def missing(self, other_runs: Iterable[RunSpending]) -> list[Charge]:
        """Returns the spending in ``other_runs`` that this ledger lacks, as one charge per run."""
        spending_by_run = {run_spending.run: run_spending for run_spending in self.runs}
        charges = []
        for other_spending in other_runs:
            recorded_spending = spending_by_run.get(other_spending.run, RunSpending(other_spending.run, "", ()))
            missing_events = _remove_events(other_spending.events, recorded_spending.events)
            missing_alone = _remove_events(other_spending.alone, recorded_spending.alone)
            charges.append(
                Charge(
                    other_spending.run,
                    other_spending.manifest,
                    "",
                    0,
                    missing_events,
                    "",
                    missing_alone,
                    other_spending.unit,
                )
            )
        return charges


def _remove_events(events: Sequence[Event], known_events: Sequence[Event]) -> tuple[Event, ...]:
    return as_events(count_events(events) - count_events(known_events))
