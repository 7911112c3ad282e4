"""A small expansion grammar: ``(a|b|)`` picks one alternative, ``{name}`` is replaced by the caller's value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")

_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_NAME = re.compile(r"\{(\w+)\}")


def pick(rng: Random, items: Sequence[Item], weights: Sequence[float] | None = None) -> Item:
    """Returns a random one of ``items``, drawn by ``weights`` if there are any.

    Only ``Random.random`` is used: it alone is documented to give the same sequence in every version of Python, and
    the committed files must come out the same everywhere.
    """
    if weights is None:
        return items[int(rng.random() * len(items))]
    remaining_weight = rng.random() * sum(weights)
    for item, weight in zip(items, weights, strict=True):
        remaining_weight -= weight
        if remaining_weight < 0:
            return item
    return items[-1]


def pick_some(rng: Random, items: Sequence[Item], count: int) -> list[Item]:
    """Returns up to ``count`` different ones of ``items``, in random order."""
    remaining_items = list(items)
    return [
        remaining_items.pop(int(rng.random() * len(remaining_items))) for _ in range(min(count, len(remaining_items)))
    ]


def chance(rng: Random, probability: float) -> bool:
    """Returns True with this probability."""
    return rng.random() < probability


def whole(rng: Random, low: float, high: float) -> int:
    """Returns a random whole number from ``low`` to ``high``, both included."""
    return int(low) + int(rng.random() * (int(high) - int(low) + 1))


def expand(template: str, rng: Random, values: Mapping[str, str]) -> str:
    """Returns ``template`` with every choice made and every name filled in; raises KeyError for one without a value.

    >>> expand("pain in the (arm|arm), {onset}", Random(0), {"onset": "since yesterday"})
    'pain in the arm, since yesterday'
    """
    while (choice_match := _CHOICE.search(template)) is not None:
        template = (
            template[: choice_match.start()] + pick(rng, choice_match[1].split("|")) + template[choice_match.end() :]
        )
    return _NAME.sub(lambda match: values[match[1]], template)
