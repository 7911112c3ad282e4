"""Schedules: an option that is one value for all rounds, or a list with one value a round."""

from typing import Annotated, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from undersong_server.methods.parts.selection import largest_remainder

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Counts = Count | tuple[Count, ...]
Rates = Rate | tuple[Rate, ...]

SCHEDULED = ("samples", "population", "corpus", "mask_rate")  # names of options that may be lists

_Options = TypeVar("_Options", bound=BaseModel)
_Value = TypeVar("_Value", int, float)


def _check_schedules(options: _Options) -> _Options:
    round_count = getattr(options, "rounds", 1)
    for option_name in SCHEDULED:
        option_value = getattr(options, option_name, None)
        if isinstance(option_value, tuple) and len(option_value) != round_count:
            raise ValueError(
                f"{option_name} lists {len(option_value)} values and rounds is {round_count}: write one number, or one"
                " for each round"
            )
    return options


one_value_a_round = model_validator(mode="after")(_check_schedules)
"""Check of a class of options with ``rounds``: each of its schedules has one value a round."""


def by_round(value: _Value | tuple[_Value, ...], round_count: int) -> tuple[_Value, ...]:
    """Returns the value of each round, from a list with one value a round or from one value for all.

    >>> by_round(5, 3), by_round((1, 2, 3), 3)
    ((5, 5, 5), (1, 2, 3))
    """
    return value if isinstance(value, tuple) else (value,) * round_count


def total(value: int | tuple[int, ...]) -> int:
    """Returns the sum of a schedule, or the one number that is divided over the rounds."""
    return sum(value) if isinstance(value, tuple) else value


def divided(value: int | tuple[int, ...], round_count: int) -> list[int]:
    """Returns the number of each round: the schedule's own, or equal parts of the one number.

    >>> divided(7, 3), divided((5, 1, 1), 3)
    ([3, 2, 2], [5, 1, 1])
    """
    return list(value) if isinstance(value, tuple) else largest_remainder(np.ones(round_count), value).tolist()
