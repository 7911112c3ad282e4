"""How much of a test each suite runs: a little in `make quick` and `make test`, all in `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

# Names of hypothesis' profiles (conftest.py): of `make test-all`, and of the two quicker suites.
ALL, FEW = "all", "few"
FEW_EXAMPLES = 15  # of a property that states no number of its own; in `make test-all` it has hypothesis' 100


def examples(few: int, many: int) -> int:
    """Returns how many examples a property is tried with: ``many`` in `make test-all`, else ``few``."""
    return many if settings.get_current_profile_name() == ALL else few


def slow_but(values: Iterable[Any], kept: Collection[Any], quick: Collection[Any] | None = None) -> list[Any]:
    """Returns the parameters of a test, marked `slow` but for those that the default suite keeps.

    Of these, all but ``quick`` are marked `heavy`, where it is given.
    """
    found = []
    for value in values:
        several = value if isinstance(value, tuple) else (value,)
        heavy = pytest.mark.heavy if quick is not None and value not in quick else ()
        found.append(pytest.param(*several, marks=heavy if value in kept else pytest.mark.slow))
    return found


def slow_after(values: Iterable[Any], count: int) -> list[Any]:
    """Returns the parameters of a test, marked `slow` after the first ``count``."""
    found = []
    for place, value in enumerate(values):
        if isinstance(value, ParameterSet):
            parameter = value
        else:
            parameter = pytest.param(*(value if isinstance(value, tuple) else (value,)))
        if place >= count:
            parameter = pytest.param(*parameter.values, id=parameter.id, marks=(*parameter.marks, pytest.mark.slow))
        found.append(parameter)
    return found


def heavy_but(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Returns the parameters of a test, marked `heavy` but for those that `make quick` keeps."""
    listed = list(values)
    return slow_but(listed, listed, quick)
