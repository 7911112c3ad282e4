"""Budget of a data set over all runs, and the cost of the runs against it.

Across runs mu^2 adds if all their releases are unsampled Gaussians: these runs are one *part* of the budget. Every
other run is a part of its own, and the parts' epsilons and deltas add (docs/privacy.md, "Accounting"). The delta of
a part is fixed when the budget is declared, never by the number of parts so far: runs are chosen after the results of
earlier ones are known, and so would the division be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
            raise ConfigurationError(f"a budget of {self.parts} parts", "give an integer, 1 or more")


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
