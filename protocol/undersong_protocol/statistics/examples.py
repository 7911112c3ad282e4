"""Draws random example inputs of statistics, as a coordinator might publish them, for tests of privacy.

A statistic draws its own examples (:meth:`Statistic.example`). The test harness then damages them, compares two parties
with different records, and tries to exceed the statistic's bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.models.embedding import PUBLIC_GRID, publishable
from undersong_protocol.statistics.inputs import Grid
from undersong_protocol.statistics.interface import LabelledEmbeddings, PublicFacts

WORDS = ("pain", "chest", "card", "lost", "fever", "knee", "walk", "sleep", "cough", "account", "payment", "top")

_Option = TypeVar("_Option")


@dataclass(frozen=True, eq=False)
class GridNumbers:
    """Public numbers and the grid on which the statistic requires them."""

    values: Float64
    grid: Grid


Piece = LabelledEmbeddings | GridNumbers | tuple[str, ...]
Inputs = tuple[tuple[str, Piece], ...]
"""Named public inputs; texts and embeddings may have the same name."""


class Chooser:
    """Draws the random parts of an example, extreme ones included.

    Args:
        below: draws an integer of [0, n) for its argument n; a test may replace it.
    """

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below
        self.rng = np.random.default_rng(below(2**32))

    def integer(self, least: int, most: int) -> int:
        """Draws an integer of [least, most]."""
        return least + self._below(most - least + 1)

    def one_of(self, options: Sequence[_Option]) -> _Option:
        """Draws one of the options."""
        return options[self._below(len(options))]

    def yes(self) -> bool:
        """Draws True or False."""
        return self._below(2) == 1

    def labels(self, facts: PublicFacts) -> int:
        """Draws the number of labels for which a statistic is planned: the task's number, or 0."""
        return self.one_of(sorted({0, facts.labels}))

    def embeddings(self, count: int, facts: PublicFacts, *, labelled: bool = False) -> LabelledEmbeddings:
        """Draws ``count`` embeddings: random, repeated, extreme or zero, each with a label of the task.

        Unless ``labelled``, they may also have no label.
        """
        drawn_vectors = self.rng.normal(size=(count, facts.embedding_size))
        if self.yes() and count > 1:
            drawn_vectors[self.rng.integers(0, count)] = drawn_vectors[0]
        if self.yes() and count:
            drawn_vectors[-1] = 0.0
            drawn_vectors[-1, 0] = self.one_of([0.0, 1.0, -1.0, 1.0 / PUBLIC_GRID])
        least_label = 0 if labelled and facts.labels else -1
        if facts.labels:
            labels = self.rng.integers(least_label, facts.labels, count)
        else:
            labels = np.full(count, -1)
        return LabelledEmbeddings(publishable(drawn_vectors), labels.astype(np.int64))

    def numbers(self, shape: Sequence[int], grid: Grid) -> GridNumbers:
        """Draws numbers on a grid: either ordinary ones, or the largest, the smallest and zero at any places."""
        drawn_numbers = self.rng.normal(size=tuple(shape)) * self.one_of([0.0, 0.05, 1.0, grid.largest])
        if drawn_numbers.size:
            grid_step = 2.0**-grid.bits
            for _ in range(self.integer(0, 4)):
                extreme_number = self.one_of([0.0, -0.0, grid_step, -grid_step, grid.largest, -grid.largest])
                drawn_numbers.flat[self.rng.integers(0, drawn_numbers.size)] = extreme_number
        return GridNumbers(grid.quantised(drawn_numbers), grid)

    def terms(self, count: int) -> tuple[str, ...]:
        """Draws at most ``count`` different terms of one to three words."""
        drawn_terms = (" ".join(self.rng.choice(WORDS, self.rng.integers(1, 4))) for _ in range(8 * count))
        return tuple(dict.fromkeys(drawn_terms))[:count]
