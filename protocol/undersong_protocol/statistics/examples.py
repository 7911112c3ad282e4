"""Example inputs of statistics: what a coordinator might publish, drawn at random for tests of privacy.

A statistic draws its own examples (:meth:`Statistic.example`). The test harness then spoils them, holds two parties
with different records against each other, and tries to exceed the statistic's bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.embedding import PUBLIC_GRID, publishable
from undersong_protocol.statistics.inputs import Grid
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicFacts

WORDS = ("pain", "chest", "card", "lost", "fever", "knee", "walk", "sleep", "cough", "account", "payment", "top")

_Option = TypeVar("_Option")


@dataclass(frozen=True, eq=False)
class GridNumbers:
    """Public numbers and the grid on which the statistic wants them."""

    values: Float64
    grid: Grid


Piece = LabelledEmbeddings | GridNumbers | tuple[str, ...]
Inputs = tuple[tuple[str, Piece], ...]
"""Named public inputs; texts and embeddings may have the same name."""


class Chooser:
    """Random choices of an example, extreme ones included.

    Args:
        below: draws an integer of [0, n) for its argument n; a test may steer it.
    """

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below
        self.rng = np.random.default_rng(below(2**32))

    def integer(self, least: int, most: int) -> int:
        """An integer of [least, most]."""
        return least + self._below(most - least + 1)

    def one_of(self, options: Sequence[_Option]) -> _Option:
        return options[self._below(len(options))]

    def yes(self) -> bool:
        return self._below(2) == 1

    def labels(self, facts: PublicFacts) -> int:
        """The number of labels that a statistic is planned for: the task's, or 0."""
        return self.one_of(sorted({0, facts.labels}))

    def embeddings(self, count: int, facts: PublicFacts, *, labelled: bool = False) -> LabelledEmbeddings:
        """Random, repeated, extreme or zero directions with any label of the task or, unless ``labelled``, without."""
        values = self.rng.normal(size=(count, facts.embedding_size))
        if self.yes() and count > 1:
            values[self.rng.integers(0, count)] = values[0]
        if self.yes() and count:
            values[-1] = 0.0
            values[-1, 0] = self.one_of([0.0, 1.0, -1.0, 1.0 / PUBLIC_GRID])
        least = 0 if labelled and facts.labels else -1
        labels = self.rng.integers(least, facts.labels, count) if facts.labels else np.full(count, -1)
        return LabelledEmbeddings(publishable(values), labels.astype(np.int64))

    def numbers(self, shape: Sequence[int], grid: Grid) -> GridNumbers:
        """Ordinary numbers; or, at any place, the largest, the smallest and zero."""
        values = self.rng.normal(size=tuple(shape)) * self.one_of([0.0, 0.05, 1.0, grid.largest])
        if values.size:
            step = 2.0**-grid.bits
            for _ in range(self.integer(0, 4)):
                extreme = self.one_of([0.0, -0.0, step, -step, grid.largest, -grid.largest])
                values.flat[self.rng.integers(0, values.size)] = extreme
        return GridNumbers(grid.quantised(values), grid)

    def terms(self, count: int) -> tuple[str, ...]:
        """At most ``count`` different terms of one to three words."""
        drawn = (" ".join(self.rng.choice(WORDS, self.rng.integers(1, 4))) for _ in range(8 * count))
        return tuple(dict.fromkeys(drawn))[:count]
