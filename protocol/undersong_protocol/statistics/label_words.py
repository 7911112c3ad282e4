"""Counts of the words that tell most about a record's label, from a public list that each label has in its own order.

The order is public: what a word tells about a label is measured on public texts. A record counts for its first few
words in the order of its label, whatever else it holds, so that its norm does not grow with its length.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError
from undersong_common.printable import repeated
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.inputs import WHOLE_NUMBERS, check_names, check_task_labels, labels_within
from undersong_protocol.statistics.interface import (
    Between,
    Matrix,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
    register,
)
from undersong_protocol.statistics.terms import words

NOTHING = -1  # marks the end of a label's order
LARGEST_CELLS = 2**16
LARGEST_ORDER = 2**20  # numbers of all orders together, which a party turns into tables
LARGEST_DISTINCT = 64


@register
@dataclass(frozen=True)
class LabelWords(Statistic, question="counts"):
    """Counts the records in which a word of their label's public list occurs, S words a record at most.

    There are ``cells`` coordinates, each of which has a public word. Each label has an order of cells, the most telling
    first, in which no word stands twice. A record of the label counts 1 in each of the first S cells of that order
    whose word it contains, so that L1 is S, L2 sqrt(S) and Linf 1. Labels that have cells in common share a list there;
    a word that stands in two cells is counted apart. A record without label does not count.

    Attributes:
        cells: number of coordinates.
        labels: number of labels of the task.
        distinct: S, words of a record that count.

    Public inputs: texts "words", the word of each cell, at most ``cells`` of them; whole numbers "order", the cells of
    each label, [``labels``, any width], filled up with -1.
    """

    name: ClassVar[str] = "label_words"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "in how many of your records of each label each word of a public list occurs, where a record counts for a few"
        " words at most"
    )
    cells: Annotated[int, Between(1, LARGEST_CELLS)]
    labels: Annotated[int, Between(1, LARGEST_LABELS)]
    distinct: Annotated[int, Between(1, LARGEST_DISTINCT)]

    @property
    def dimension(self) -> int:
        return self.cells

    @property
    def most(self) -> int:
        """Largest number of a record's words that count."""
        return min(self.distinct, self.cells)

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of a record that has S of its label's words, which is the longest row.

        >>> LabelWords(cells=400, labels=10, distinct=4).sensitivity
        Sensitivity(l1=4.0, l2=2.0, linf=1.0)
        """
        return Sensitivity(float(self.most), math.sqrt(self.most), 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[LabelWords, Inputs]":
        distinct_words = dict.fromkeys(
            term_word for term in choose.terms(choose.integer(1, 12)) for term_word in term.split()
        )
        listed_words = tuple(distinct_words)
        label_count = max(1, facts.labels)
        word_order = np.stack([choose.rng.permutation(len(listed_words)) for _ in range(label_count)])
        word_order[1:, choose.integer(0, len(listed_words)) :] = NOTHING
        statistic = cls(len(listed_words) + choose.integer(0, 3), label_count, choose.integer(1, 6))
        return statistic, (
            ("words", listed_words),
            ("order", GridNumbers(word_order.astype(np.float64), WHOLE_NUMBERS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, texts=("words",), numbers=("order",))
        check_task_labels(self.name, self.labels, facts)
        listed_words = public.texts_of("words")
        word_order = public.numbers_of("order")
        if not listed_words:
            raise ConfigurationError(
                f"{self.name}: no word was published", "publish one word or more", code="term-count"
            )
        if not len(listed_words) <= self.cells:
            raise ConfigurationError(
                f"{self.name}: {len(listed_words)} words were published, the plan has {self.cells}",
                "publish fewer",
                code="term-count",
            )
        if wrong_words := [word for word in listed_words if words(word) != [word]]:
            raise ConfigurationError(
                f"{self.name}: the published word {wrong_words[0][:80]!r} is not one word in lower case",
                "publish words as texts have them",
            )
        if word_order.ndim != 2 or len(word_order) != self.labels or word_order.size > LARGEST_ORDER:
            raise ConfigurationError(
                f'{self.name}: public numbers "order" of shape {word_order.shape} are not {self.labels} rows of at most'
                f" {LARGEST_ORDER} numbers in all",
                "publish the cells of each label",
                code="number-shape",
            )
        WHOLE_NUMBERS.check("order", word_order)
        wrong_cells = word_order[(word_order < NOTHING) | (word_order >= len(listed_words))]
        if wrong_cells.size:
            raise ConfigurationError(
                f'{self.name}: public numbers "order" name the cell {wrong_cells[0]:.0f} of {len(listed_words)}'
                " published words",
                "publish its word",
            )
        unlisted_cells = set(range(len(listed_words))) - set(word_order.ravel().astype(int).tolist())
        if unlisted_cells:
            raise ConfigurationError(
                f"{self.name}: no label lists the published word {listed_words[min(unlisted_cells)][:80]!r}",
                "remove it, or add it to a label's list",
            )
        for label, order_row in enumerate(word_order):
            if repeated_words := repeated(listed_words[int(cell)] for cell in order_row if cell != NOTHING):
                raise ConfigurationError(
                    f"{self.name}: the order of label {label} names the word {repeated_words[0][:80]!r} more than once",
                    "publish each word once",
                )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        ranks_by_label = _word_ranks(public)
        word_order = public.numbers_of("order").astype(np.int64)
        record_texts = records.texts
        record_labels = labels_within(records.labels, self.labels)

        def compute(row_numbers: Int64) -> Matrix:
            columns = np.full((len(row_numbers), self.most), NOTHING)
            for place, row_number in enumerate(row_numbers):
                if (label := record_labels[row_number]) >= 0:
                    text_ranks = sorted(
                        {
                            ranks_by_label[label][word]
                            for word in words(record_texts[row_number])
                            if word in ranks_by_label[label]
                        }
                    )
                    counted_cells = word_order[label, text_ranks[: self.most]]
                    columns[place, : len(counted_cells)] = counted_cells
            return at_columns(columns, np.ones(self.most), self.dimension)

        return Rows(compute, records.units, width=self.most)


def _word_ranks(public: PublicInputs) -> list[dict[str, int]]:
    """Returns the rank of each word in each label's order."""
    listed_words = public.texts_of("words")
    word_orders = public.numbers_of("order").astype(np.int64)
    return [
        {listed_words[cell]: word_rank for word_rank, cell in enumerate(label_order) if cell != NOTHING}
        for label_order in word_orders
    ]
