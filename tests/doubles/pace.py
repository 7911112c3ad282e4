"""How much of a test each suite runs: a little in `make quick` and `make test`, all in `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
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

    def marks_of(value: Any) -> tuple[pytest.MarkDecorator, ...]:
        if value not in kept:
            return (pytest.mark.slow,)
        if quick is None or value in quick:
            return ()
        return (pytest.mark.heavy,)

    return [_add_marks(value, marks_of(value)) for value in values]


def slow_after(values: Iterable[Any], count: int) -> list[Any]:
    """Returns the parameters of a test, marked `slow` after the first ``count``."""
    return [_add_marks(value, (pytest.mark.slow,) if place >= count else ()) for place, value in enumerate(values)]


def heavy_but(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Returns the parameters of a test, marked `heavy` but for those that `make quick` keeps."""
    listed = list(values)
    return slow_but(listed, listed, quick)


def _add_marks(value: Any, marks: tuple[pytest.MarkDecorator, ...]) -> pytest.ParameterSet:
    """Returns a parameter of a test with further marks; a tuple has a value for each name."""
    if isinstance(value, pytest.ParameterSet):
        return pytest.param(*value.values, id=value.id, marks=(*value.marks, *marks))
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=marks)
