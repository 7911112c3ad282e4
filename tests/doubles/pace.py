"""How much of a test the default suite runs; `make test-all` runs all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

ALL = "all"  # name of the hypothesis profile of `make test-all` (tests/conftest.py)


def examples(few: int, many: int) -> int:
    """Returns how many examples a property is tried with: ``few`` in the default suite, else ``many``."""
    return many if settings.get_current_profile_name() == ALL else few


def slow_but(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Returns the parameters of a test, marked `slow` but for those that the default suite keeps."""
    found = []
    for value in values:
        several = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(*several, marks=() if value in kept else pytest.mark.slow))
    return found
