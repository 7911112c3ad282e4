"""A small expansion grammar: ``(a|b|)`` picks one alternative, ``{name}`` is replaced by a value of the writer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")

_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_NAME = re.compile(r"\{(\w+)\}")


def pick(rng: Random, items: Sequence[Item], weights: Sequence[float] | None = None) -> Item:
    """One of ``items``, with ``weights`` where given.

    Only ``Random.random`` is used: it alone is documented to give the same sequence in every version of Python, and
    the committed files must come out the same everywhere.
    """
    if weights is None:
        return items[int(rng.random() * len(items))]
    left = rng.random() * sum(weights)
    for item, weight in zip(items, weights, strict=True):
        left -= weight
        if left < 0:
            return item
    return items[-1]


def pick_some(rng: Random, items: Sequence[Item], count: int) -> list[Item]:
    """Up to ``count`` different ``items``, in random order."""
    rest = list(items)
    return [rest.pop(int(rng.random() * len(rest))) for _ in range(min(count, len(rest)))]


def chance(rng: Random, probability: float) -> bool:
    """True with ``probability``."""
    return rng.random() < probability


def whole(rng: Random, low: float, high: float) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return int(low) + int(rng.random() * (int(high) - int(low) + 1))


def expand(template: str, rng: Random, values: Mapping[str, str]) -> str:
    """``template`` with every choice made and every name filled in. Raises KeyError for a name without a value.

    >>> expand("pain in the (arm|arm), {onset}", Random(0), {"onset": "since yesterday"})
    'pain in the arm, since yesterday'
    """
    while (found := _CHOICE.search(template)) is not None:
        template = template[: found.start()] + pick(rng, found[1].split("|")) + template[found.end() :]
    return _NAME.sub(lambda match: values[match[1]], template)
