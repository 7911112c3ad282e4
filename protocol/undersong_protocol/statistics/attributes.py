"""Public attributes of a record: how often each value occurs, and votes among candidates of the same attributes.

An attribute is the record's label, a public list of values of which the nearest by embedding is the record's, or a
column of the record with a public list of its values, of which the last stands for a missing or any other value. The
lists are published with the question, so a record's attributes are a function of that record and of public inputs.
Private tables of attributes ground the generation of text in Chien et al. 2026 (MAPLE) and Hu et al. 2025 (ACTG-ARL);
deviation: the tables of one question are one vector of one release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float32, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.contribution import BLOCK_ROWS
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.histogram import COUNT_SCALE
from undersong_protocol.statistics.inputs import (
    LARGEST_LABEL,
    check_embeddings,
    check_names,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    LabelledEmbeddings,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest
from undersong_protocol.statistics.registry import positive_integer, positive_integers, register
from undersong_protocol.statistics.votes import TopQVotes

VALUES = "values"
COLUMNS = "columns"
MOST_ATTRIBUTES = 31  # of two values each they have as many combinations as there are numbers for


@dataclass(frozen=True)
class Attributes:
    """The attributes of a question.

    Attributes:
        labels: labels of the task, which are the first attribute; 0 where they are none.
        lists: how many values each public list has.
        columns: how many values each column has, the missing one included.
    """

    labels: int
    lists: tuple[int, ...]
    columns: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each attribute: the label, the lists, the columns."""
        return (*((self.labels,) if self.labels else ()), *self.lists, *self.columns)

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of the public inputs that say what is asked, by kind."""
        return {"embeddings": (VALUES,) if self.lists else (), "texts": (COLUMNS,) if self.columns else ()}

    @property
    def combinations(self) -> int:
        return math.prod(self.sizes)

    def check(self, statistic: str) -> None:
        """Raises ConfigurationError for numbers that cannot be."""
        positive_integer(statistic, "labels", self.labels, least=0, most=LARGEST_LABELS)
        most = MOST_ATTRIBUTES - bool(self.labels)
        if self.lists or not (self.labels or self.columns):
            positive_integers(statistic, "lists", self.lists, entries=most, most=LARGEST_LABEL)
        if self.columns:
            entries = max(1, most - len(self.lists))
            positive_integers(statistic, "columns", self.columns, entries=entries, most=LARGEST_LABEL)
        if self.combinations > LARGEST_LABEL:
            raise ConfigurationError(
                f"{statistic} has {len(self.sizes)} attributes of too many combinations",
                f"give at most {LARGEST_LABEL} combinations",
            )

    def check_values(self, public: PublicInputs, facts: PublicFacts) -> None:
        """Raises ConfigurationError unless the inputs hold every list's and every column's values.

        "values" has list after list, each value with its list's number; "columns" each column's name and values but the
        missing one, column after column.
        """
        if self.columns:
            texts = public.texts_of(COLUMNS)
            if len(texts) != sum(self.columns) or not all(map(str.strip, texts)):
                raise ConfigurationError(
                    "the published columns have other numbers of names and values than the plan, or an empty one",
                    "publish name and values of each",
                )
        if not self.lists:
            return
        given, rows = public.embeddings_of(VALUES), sum(self.lists)
        check_embeddings(VALUES, given, facts, labels=len(self.lists), most=rows, least=rows)
        if (given.labels != np.repeat(np.arange(len(self.lists)), self.lists)).any():
            raise ConfigurationError(
                "the published values do not stand list after list", "label each with the number of its list"
            )

    def of(
        self, embeddings: Float32, labels: Int64, columns: Mapping[str, Sequence[str]], public: PublicInputs
    ) -> list[Int64]:
        """The value of each attribute of each text, int64 [M] each in the order of ``sizes``; NONE for no label.

        Ties go to the value that stands first. ``labels``: index of each text's label; anything else is no label.
        ``columns``: each text's values by attribute, compared without case; a column that is not there is missing.
        """
        found = [labels_within(labels, self.labels)] if self.labels else []
        if self.lists:
            values = public.embeddings_of(VALUES).values
            for part in np.split(values, np.cumsum(self.lists)[:-1]):
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

    def combination(self, values: Sequence[Int64]) -> Int64:
        """The number of each text's combination of values, int64 [M]; NONE where an attribute has none."""
        return _numbered(values, self.sizes)


def _example(choose: Chooser, facts: PublicFacts) -> tuple[Attributes, Inputs]:
    """Attributes and the published values of an example."""
    labels = choose.labels(facts)
    lists = tuple(choose.integer(1, 4) for _ in range(choose.integer(0 if labels else 1, 3)))
    columns = tuple(choose.integer(1, 3) for _ in range(choose.integer(0, 2)))
    inputs: list[Any] = []
    if lists:
        numbers = np.repeat(np.arange(len(lists)), lists)
        inputs.append((VALUES, LabelledEmbeddings(choose.embeddings(sum(lists), facts).values, numbers)))
    if columns:
        inputs.append((COLUMNS, choose.terms(sum(columns))))
    return Attributes(labels, lists, columns), tuple(inputs)


def _numbered(values: Sequence[Int64], sizes: Sequence[int]) -> Int64:
    """The place of each text's values in a table of those sizes, row by row, int64 [M]; NONE where a value is."""
    place = np.zeros(len(values[0]), dtype=np.int64)
    missing = np.zeros(len(values[0]), dtype=bool)
    for size, value in zip(sizes, values, strict=True):
        place = place * size + np.maximum(value, 0)
        missing |= value == NONE
    return np.where(missing, NONE, place)


@register
@dataclass(frozen=True)
class AttributeMarginals(Statistic, question="counts"):
    """Tables of the records' attributes side by side; a record counts once in each: of t tables L1 t, L2 sqrt(t).

    ``ways`` 1: a histogram of each of h attributes, sqrt(h). ``ways`` 2: a table of each of the p = h (h - 1) / 2
    pairs, the first attribute's values being the rows, sqrt(p). A record without label counts in no table of the label.

    Attributes:
        labels, lists, columns: as of :class:`Attributes`.

    Public inputs: embeddings named "values", where there are lists; texts named "columns", where there are columns.

    >>> AttributeMarginals(labels=10, lists=(6, 4)).sensitivity
    Sensitivity(l1=3.0, l2=1.7320508075688772, linf=1.0)
    """

    name: ClassVar[str] = "attribute_marginals"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how many of your records have each label and each value of a few public lists, or two of these together;"
        " a record has the value that its words are nearest to, or the one in its column of that name"
    )
    labels: int
    lists: tuple[int, ...] = ()
    ways: int = 1
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive_integer(self.name, "ways", self.ways, most=2)
        self.attributes.check(self.name)
        if not self.tables:
            raise ConfigurationError(f"{self.name}: one attribute has no pairs", "give two attributes, or ways = 1")

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.labels, self.lists, self.columns)

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Attributes that each table counts, in the order of the vector."""
        return tuple(combinations(range(len(self.attributes.sizes)), self.ways))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each table."""
        sizes = self.attributes.sizes
        return tuple(tuple(sizes[each] for each in table) for table in self.tables)

    @property
    def values(self) -> int:
        return sum(self.lists)

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def sensitivity(self) -> Sensitivity:
        tables = len(self.tables)
        return Sensitivity(float(tables), math.sqrt(tables), 1.0)

    @property
    def base_scale(self) -> int:
        return COUNT_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[AttributeMarginals, Inputs]:
        found, values = _example(choose, facts)
        most = 2 if len(found.sizes) > 1 else 1
        return cls(found.labels, found.lists, choose.integer(1, most), found.columns), values

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, **self.attributes.names)
        check_task_labels(self.name, self.labels, facts)
        self.attributes.check_values(public, facts)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings, labels = records.embeddings, records.labels

        def compute(asked: Int64) -> sp.csr_array[Any]:
            values = self.attributes.of(embeddings[asked], labels[asked], _taken(records, asked), public)
            columns, before = [], 0
            for table, shape in zip(self.tables, self.shapes, strict=True):
                place = _numbered([values[attribute] for attribute in table], shape)
                columns.append(np.where(place == NONE, NONE, place + before))
                before += math.prod(shape)
            return at_columns(np.stack(columns, axis=1), np.ones(len(columns)), self.dimension)

        return Rows(compute, records.units, width=len(self.tables))


@register
@dataclass(frozen=True)
class AttributeVotes(Statistic, question="nearest"):
    """Top-Q nearest votes of a record among the candidates that have all its attributes; none where there are none.

    Attributes:
        labels, lists, columns: as of :class:`Attributes`.
        candidates: how many the plan allows for; where fewer are published the coordinates after them stay empty.
        q: votes per record, as of :class:`TopQVotes`.

    Public inputs: embeddings "candidates", each labelled with the number of its combination
    (:meth:`Attributes.combination`), and embeddings "values" and texts "columns", where there are lists and columns.
    """

    name: ClassVar[str] = "attribute_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each candidate text, how many of your records that have the same label and values of lists or columns"
        " have it among their nearest ones"
    )
    candidates: int
    labels: int
    lists: tuple[int, ...] = ()
    q: int = 1
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.attributes.check(self.name)
        _ = self._votes

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.labels, self.lists, self.columns)

    @property
    def combinations(self) -> int:
        return self.attributes.combinations

    @property
    def values(self) -> int:
        return sum(self.lists)

    @property
    def _votes(self) -> TopQVotes:
        """The same votes, where the combinations are labels; more of them than a task may have."""
        return TopQVotes(q=self.q, candidates=self.candidates, labels=1, furthest=False)

    @property
    def dimension(self) -> int:
        return self.candidates

    @property
    def sensitivity(self) -> Sensitivity:
        return self._votes.sensitivity

    @property
    def base_scale(self) -> int:
        return self._votes.base_scale

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[AttributeVotes, Inputs]:
        found, values = _example(choose, facts)
        count = choose.integer(0, 20)
        most = max(1, count + choose.integer(0, 3))
        statistic = cls(most, found.labels, found.lists, choose.one_of([1, 4]), found.columns)
        numbers = choose.rng.integers(-1, statistic.combinations, count)
        candidates = LabelledEmbeddings(choose.embeddings(count, facts).values, numbers)
        return statistic, (("candidates", candidates), *values)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        names = self.attributes.names
        check_names(self.name, public, embeddings=("candidates", *names["embeddings"]), texts=names["texts"])
        check_task_labels(self.name, self.labels, facts)
        self.attributes.check_values(public, facts)
        given = public.embeddings_of("candidates")
        check_embeddings("candidates", given, facts, labels=self.combinations, most=self.candidates)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        # What was compared before is not kept: a record's attributes follow the values that are published now.
        return self._votes.rows(_Classed(records, self._classes(records, public)), public, {})

    def _classes(self, records: RecordView, public: PublicInputs) -> Int64:
        attributes, found = self.attributes, np.empty(len(records), dtype=np.int64)
        for start in range(0, len(records), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            own = _taken(records, np.arange(len(records))[block])
            values = attributes.of(records.embeddings[block], records.labels[block], own, public)
            found[block] = attributes.combination(values)
        return found


class _Classed:
    """Records whose combinations of attributes stand in place of their labels. Private."""

    def __init__(self, records: RecordView, classes: Int64) -> None:
        self._records = records
        self.labels = classes

    def __repr__(self) -> str:
        return f"_Classed({len(self)})"

    def __len__(self) -> int:
        return len(self._records)

    @property
    def texts(self) -> Sequence[str]:
        return self._records.texts

    @property
    def embeddings(self) -> Float32:
        return self._records.embeddings

    @property
    def units(self) -> Int64:
        return self._records.units

    @property
    def unit_hashes(self) -> Any:
        return self._records.unit_hashes

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        return self._records.columns

    @property
    def local_model(self) -> str:
        return self._records.local_model


def _taken(records: RecordView, rows: Int64) -> dict[str, list[str]]:
    """Values of the given rows in every column."""
    return {name: [column[row] for row in rows] for name, column in records.columns.items()}


def attributes_of_texts(
    attributes: Attributes,
    embeddings: Float32,
    labels: Int64,
    columns: Mapping[str, Sequence[str]],
    public: PublicInputs,
) -> Int64:
    """The combination of each public text, int64 [n], by the rule that parties use for their records."""
    return attributes.combination(attributes.of(embeddings, labels, columns, public))
