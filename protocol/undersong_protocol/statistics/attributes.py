"""Counts of the values that public attributes have among the records.

An attribute is the record's label, a public list of values of which the nearest by embedding is the record's, or a
column of the record with a public list of its values, of which the last stands for a missing or any other value. The
lists are published with the question, so a record's attributes are a function of that record and of public inputs.
Private tables of attributes ground the generation of text in Chien et al. 2026 (MAPLE) and Hu et al. 2025 (ACTG-ARL);
deviation: the tables of one question are one vector of one release.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float32, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import (
    check_embeddings,
    check_names,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    LabelCount,
    LabelledEmbeddings,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
    positive_integers,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest
from undersong_protocol.statistics.registry import register

VALUES = "values"
COLUMNS = "columns"
MOST_ATTRIBUTES = 31
MOST_VALUES = 2**20  # of one attribute


@register
@dataclass(frozen=True)
class AttributeMarginals(Statistic, question="counts"):
    """A histogram of each of h attributes, side by side; a record counts once in each: L1 h, L2 sqrt(h).

    A record without label counts in no bin of the label.

    Attributes:
        labels: labels of the task, which are the first attribute; 0 where they are none.
        lists: how many values each public list has.
        columns: how many values each column has, the missing one included.

    Public inputs: embeddings named "values", where there are lists; texts named "columns", where there are columns.

    >>> AttributeMarginals(labels=10, lists=(6, 4)).sensitivity
    Sensitivity(l1=3.0, l2=1.7320508075688772, linf=1.0)
    """

    name: ClassVar[str] = "attribute_marginals"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how many of your records have each label and each value of a few public lists; a record has the value that"
        " its words are nearest to, or the one in its column of that name"
    )
    labels: LabelCount
    lists: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        most = MOST_ATTRIBUTES - bool(self.labels)
        if self.lists != () or not (self.labels or self.columns):
            positive_integers(self.name, "lists", self.lists, entries=most, most=MOST_VALUES)
        if self.columns != ():
            entries = max(1, most - len(self.lists))
            positive_integers(self.name, "columns", self.columns, entries=entries, most=MOST_VALUES)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each attribute: the label, the lists, the columns."""
        return (*((self.labels,) if self.labels else ()), *self.lists, *self.columns)

    @property
    def values(self) -> int:
        return sum(self.lists)

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @property
    def sensitivity(self) -> Sensitivity:
        attributes = len(self.sizes)
        return Sensitivity(float(attributes), math.sqrt(attributes), 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[AttributeMarginals, Inputs]":
        labels = choose.labels(facts)
        lists = tuple(choose.integer(1, 4) for _ in range(choose.integer(0 if labels else 1, 3)))
        columns = tuple(choose.integer(1, 3) for _ in range(choose.integer(0, 2)))
        inputs: list[Any] = []
        if lists:
            numbers = np.repeat(np.arange(len(lists)), lists)
            inputs.append((VALUES, LabelledEmbeddings(choose.embeddings(sum(lists), facts).values, numbers)))
        if columns:
            inputs.append((COLUMNS, choose.terms(sum(columns))))
        return cls(labels, lists, columns), tuple(inputs)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        """Raises ConfigurationError unless the inputs hold every list's and every column's values.

        "values" has list after list, each value with its list's number; "columns" each column's name and values but the
        missing one, column after column.
        """
        embeddings, texts = (VALUES,) if self.lists else (), (COLUMNS,) if self.columns else ()
        check_names(self.name, public, embeddings=embeddings, texts=texts)
        check_task_labels(self.name, self.labels, facts)
        if self.columns:
            given = public.texts_of(COLUMNS)
            if len(given) != sum(self.columns) or not all(map(str.strip, given)):
                raise ConfigurationError(
                    "the published columns have other numbers of names and values than the plan, or an empty one",
                    "publish name and values of each",
                )
        if not self.lists:
            return
        listed = public.embeddings_of(VALUES)
        check_embeddings(VALUES, listed, facts, labels=len(self.lists), most=self.values, least=self.values)
        if (listed.labels != np.repeat(np.arange(len(self.lists)), self.lists)).any():
            raise ConfigurationError(
                "the published values do not stand list after list", "label each with the number of its list"
            )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings, labels = records.embeddings, records.labels

        def compute(asked: Int64) -> sp.csr_array[Any]:
            taken = {name: [column[row] for row in asked] for name, column in records.columns.items()}
            values = np.stack(self._values(embeddings[asked], labels[asked], taken, public), axis=1)
            first = np.cumsum((0, *self.sizes[:-1]))
            return at_columns(np.where(values == NONE, NONE, values + first), np.ones(len(first)), self.dimension)

        return Rows(compute, records.units, width=len(self.sizes))

    def _values(
        self, embeddings: Float32, labels: Int64, columns: Mapping[str, Sequence[str]], public: PublicInputs
    ) -> list[Int64]:
        """The value of each attribute of each record, int64 [M] each in the order of ``sizes``; NONE for no label.

        Ties go to the value that stands first. Values of columns are compared without case; a column that is not there
        is missing.
        """
        found = [labels_within(labels, self.labels)] if self.labels else []
        if self.lists:
            for part in np.split(public.embeddings_of(VALUES).values, np.cumsum(self.lists)[:-1]):
                nearest = NearestFurthest(embeddings, None, 1, furthest=False)
                nearest.extend(part, None)
                found.append(nearest.near[:, 0])
        given = iter(public.texts_of(COLUMNS) if self.columns else ())
        for size in self.columns:
            name, *own = islice(given, size)
            places = {value.casefold(): place for place, value in reversed(list(enumerate(own)))}
            column = columns.get(name, ("",) * len(embeddings))
            found.append(np.array([places.get(each.casefold(), size - 1) for each in column], dtype=np.int64))
        return found
