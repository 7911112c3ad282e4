"""A count with its noun, in one or in many."""

from __future__ import annotations


def noun(count: float, one: str, many: str = "") -> str:
    """The noun's form after a count; ``many`` if it is not ``one`` with an s.

    >>> noun(1, "run"), noun(0, "run"), noun(2, "party", "parties")
    ('run', 'runs', 'parties')
    """
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str, many: str = "") -> str:
    """A count and its noun.

    >>> counted(1, "party", "parties"), counted(12, "record")
    ('1 party', '12 records')
    """
    return f"{count} {noun(count, one, many)}"
