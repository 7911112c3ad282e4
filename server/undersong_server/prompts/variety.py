"""What tells the prompts of a batch apart: public hints, one of each list, and the task's own attributes.

A model that answers one prompt always alike writes one text for all orders that share a prompt; so no two do.
"""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

_STRIDE = 7919  # prime, so that it runs through every combination of lists whose lengths it does not divide


class Variety:
    """Draws hints and attributes by an order's number."""

    def __init__(self, hints: Sequence[Sequence[str]], attributes: Mapping[str, Sequence[str]]) -> None:
        """Takes no list of hints for none; attributes are lists of values by name."""
        self._hints = [tuple(each) for each in hints if each]
        self._attributes = {name: tuple(values) for name, values in attributes.items() if values}

    @property
    def combinations(self) -> int:
        """How many numbers in a row differ in their hints; 1 where there are no hints."""
        return math.prod(len(each) for each in self._hints)

    def hints(self, number: int) -> tuple[str, ...]:
        """One entry of each list. Two numbers that differ by less than ``combinations`` have different ones."""
        place = number * _STRIDE % self.combinations
        drawn = []
        for each in self._hints:
            place, entry = divmod(place, len(each))
            drawn.append(each[entry])
        return tuple(drawn)

    def attributes(self, number: int) -> tuple[str, ...]:
        """One value of each attribute, as "name: value"."""
        draw = random.Random(f"attributes {number}")
        return tuple(f"{name}: {draw.choice(values)}" for name, values in self._attributes.items())


@cache
def built_in_hints(language: str = "") -> tuple[tuple[str, ...], ...]:
    """The lists in the language of that English name; in English where there is no such file."""
    folder = resources.files("undersong_server.prompts").joinpath("hints")
    names = {file.name for file in folder.iterdir()}
    wanted = f"{language.strip().casefold()}.toml"
    content = folder.joinpath(wanted if wanted in names else "english.toml").read_bytes()
    return tuple(tuple(values) for values in tomllib.loads(content.decode("utf-8")).values())
