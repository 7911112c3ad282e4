"""Budget of a data set over all runs, the cost of the runs against it, and a ledger's charges and statement.

Across runs mu^2 adds if all their releases are unsampled Gaussians: these runs are one *part* of the budget. Every
other run is a part of its own, and the parts' epsilons and deltas add (docs/privacy.md, "Accounting"). The delta of
a part is fixed when the budget is declared, never by the number of parts so far: runs are chosen after the results of
earlier ones are known, and so would the division be.

With the statement, which is kept outside the ledger's folder, a lost or older ledger can be continued. It names every
run with all that it has charged and, while it is open, the price of its whole plan. It says no more about private
values than the ledger does. Spending that cannot be shown any more counts as the whole budget, never as zero.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_common.privacy.accounting import DiscreteLaplace, Event, Gaussian, Laplace, Pure

Runs = Mapping[str, Sequence[Event]]

_EVENTS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete_laplace": DiscreteLaplace,
    "pure": Pure,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


@dataclass(frozen=True)
class Budget:
    """Budget that the owner of a data set allows over all runs.

    Attributes:
        epsilon: may be inf.
        delta: between 0 and 1.
        parts: how many parts ``delta`` is divided into, equally; a run that would open one more is refused.
    """

    epsilon: float
    delta: float
    parts: int = 1

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 < self.delta < 1:
            raise ConfigurationError(
                f"budget of epsilon {self.epsilon}, delta {self.delta}", "epsilon above 0, delta between 0 and 1"
            )
        if self.parts < 1:
            raise ConfigurationError(f"a budget of {self.parts} parts", "give an integer, 1 or more", code="no-parts")


def budget_json(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else {**vars(budget), "epsilon": number(budget.epsilon)}


def budget_from_json(value: Mapping[str, Any] | None) -> Budget | None:
    """Raises ValueError, KeyError, TypeError or ConfigurationError for anything but a budget or None."""
    return None if value is None else Budget(float(value["epsilon"]), float(value["delta"]), int(value["parts"]))


def parts(runs: Runs) -> list[list[Event]]:
    """The events of each part: the runs that are all unsampled Gaussians together, every other run by itself."""
    gaussian: list[Event] = []
    others: list[list[Event]] = []
    for events in runs.values():
        if accounting.is_one_gaussian(events):
            gaussian.extend(events)
        else:
            others.append(list(events))
    return [gaussian, *others] if gaussian else others


def price(runs: Runs, delta: float, divided: int) -> float:
    """Epsilon of ``runs`` at ``delta``, of which each part has an equal share of ``divided``; inf beyond so many."""
    found = parts(runs)
    if len(found) > divided:
        return math.inf
    return math.fsum(accounting.epsilon(part, delta / divided) for part in found)


def surely_within(found: Sequence[Sequence[Event]], epsilon: float, delta: float) -> bool:
    """Returns True if one part of Gaussians costs at most ``epsilon`` at ``delta``; False for anything else.

    One value of delta decides. :func:`price` finds the root of that function, which takes milliseconds.
    """
    if len(found) != 1 or not accounting.is_one_gaussian(found[0]):
        return False
    return accounting.delta(found[0], epsilon) <= delta


def charged_of(charged: Iterable[Event], plan: Iterable[Event]) -> tuple[Event, ...]:
    """Returns what a run costs that has charged at least once, equal events as one.

    Unsampled Gaussians alone cost what was charged. Any other run costs its whole ``plan``, however early it stops:
    whoever stops it has read its sums, and the price of the sums so far does not hold for an adaptive stop
    (docs/privacy.md, "Accounting").

    >>> charged_of([Pure(0.1)], [Pure(0.1), Pure(0.2)])
    (Pure(epsilon=0.1, count=1), Pure(epsilon=0.2, count=1))
    """
    charged, plan = compressed(charged), tuple(plan)
    return charged if accounting.is_one_gaussian((*charged, *plan)) else at_least(charged, plan)


def at_least(one: Iterable[Event], other: Iterable[Event]) -> tuple[Event, ...]:
    """Returns each event as often as it occurs in ``one`` or in ``other``, whichever has it more often."""
    return as_events(count_events(one) | count_events(other))


def compressed(events: Iterable[Event]) -> tuple[Event, ...]:
    """Equal events as one, their counts added."""
    return as_events(count_events(events))


def count_events(events: Iterable[Event]) -> Counter[Event]:
    """Counts each event, by the event of count 1."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[event if event.count == 1 else replace(event, count=1)] += event.count
    return counts


def as_events(counts: Mapping[Event, int]) -> tuple[Event, ...]:
    """Equal events as one, with their count."""
    return tuple(
        event if event.count == count else replace(event, count=count) for event, count in counts.items() if count > 0
    )


def events_json(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as JSON, which has no infinity: it is written as the text "inf"."""
    return [
        {"mechanism": _NAMES[type(event)]} | {key: number(value) for key, value in vars(event).items()}
        for event in events
    ]


def events_from_json(values: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Raises ValueError, KeyError, TypeError or ConfigurationError for what is no event."""
    return tuple(
        _EVENTS[value["mechanism"]](
            **{key: math.inf if item == "inf" else item for key, item in value.items() if key != "mechanism"}
        )
        for value in values
    )


def number(value: float) -> float | str:
    return "inf" if value == math.inf else value


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
    def from_json(cls, value: Mapping[str, Any]) -> "PlanPrice":
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
        unit: privacy unit that the events are priced for; "" in a ledger of a version that did not write it.
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
        """Reads an entry of kind ``charge``. Raises ValueError, KeyError or TypeError for a malformed one."""
        run, manifest, query, attempt = (entry[name] for name in ("run", "manifest", "query", "attempt"))
        # a receipt does not show what a vector shows to everyone else
        alone = events_from_json(entry.get("alone", ()))
        unit = str(entry.get("unit", ""))
        return cls(run, manifest, query, attempt, events_from_json(entry["events"]), entry["question"], alone, unit)


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
        events: the events that count, equal ones merged (``spending.charged_of``).
        alone: events of every vector that left, as everyone else together would see them; likewise.
        plan: its whole plan while it is open; empty if it is closed or its plan is not known.
        closed: True if it has ended for this party: it cannot charge more.
        unit: its privacy unit; "" if it is not known.
    """

    run: str
    manifest: str
    events: tuple[Event, ...]
    alone: tuple[Event, ...] = ()
    plan: PlanPrice = field(default_factory=PlanPrice)
    closed: bool = False
    unit: str = ""

    def at_most(self, other: "RunSpending | None" = None) -> "RunSpending":
        """Upper bound on the cost of this run, an open one with its plan, given also what another source knows."""
        bound = charged_of if self.closed else at_least
        events, alone = bound(self.events, self.plan.events), bound(self.alone, self.plan.alone)
        if other is not None:
            events, alone = at_least(events, other.events), at_least(alone, other.alone)
        return replace(self, events=events, alone=alone)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), **PlanPrice(self.events, self.alone).to_json(), "plan": self.plan.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RunSpending":
        spent, plan = PlanPrice.from_json(value), PlanPrice.from_json(value["plan"])
        run, manifest, unit = str(value["run"]), str(value["manifest"]), str(value.get("unit", ""))
        return cls(run, manifest, spent.events, spent.alone, plan, bool(value["closed"]), unit)


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
            self.total = RunSpending(last.run, last.manifest, self.price(), alone, still, self.closed, last.unit)
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
    def from_json(cls, value: Mapping[str, Any]) -> "Statement":
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
            charges.append(Charge(spent.run, spent.manifest, "", 0, events, "", alone, spent.unit))
        return charges


def _without(events: Sequence[Event], known: Sequence[Event]) -> tuple[Event, ...]:
    return as_events(count_events(events) - count_events(known))
