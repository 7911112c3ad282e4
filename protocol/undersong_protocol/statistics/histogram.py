"""Histogram statistics over public bins, one or several side by side; a record counts at most once in each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.printable import that_hold
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.inputs import (
    LARGEST_LABEL,
    WHOLE_NUMBERS,
    check_embeddings,
    check_names,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    LabelledEmbeddings,
    Matrix,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
    positive_integers,
    register,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest

MOST_EDGES = 1024


@register
@dataclass(frozen=True)
class LabelHistogram(Statistic, question="counts"):
    """Counts the records per label; a record without label (-1) does not count.

    ``labels`` is the number of labels of the task.
    """

    name: ClassVar[str] = "label_histogram"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how many of your records have each label"
    labels: Annotated[int, Between(1, LARGEST_LABELS)]

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        return f"how many of your records are labelled {labels[0]}" if labels else ""

    @property
    def dimension(self) -> int:
        return self.labels

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0, 1.0, 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[LabelHistogram, Inputs]":
        return cls(max(1, facts.labels)), ()

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public)
        check_task_labels(self.name, self.labels, facts)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        return one_hot(records.labels, records.units, self.labels)


@register
@dataclass(frozen=True)
class LengthHistogram(Statistic, question="counts"):
    """Counts the records by number of words (separated by white space), in bins between public ``edges``.

    Of edges e_0 < e_1 < ... < e_b, bin i counts lengths in [e_i, e_(i+1)); shorter texts count in the first bin and
    longer ones in the last.
    """

    name: ClassVar[str] = "length_histogram"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how many of your records have each length"
    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        positive_integers(self.name, "edges", self.edges, most_entries=MOST_EDGES, least=0, most=LARGEST_LABEL)
        if len(self.edges) < 2:
            raise ConfigurationError(
                f"length_histogram.edges is {self.edges!r}, and needs at least two numbers of words", "give bin edges"
            )
        for lower_edge, upper_edge in pairwise(self.edges):
            if lower_edge >= upper_edge:
                raise ConfigurationError(
                    f"length_histogram.edges do not increase: {upper_edge} follows {lower_edge}",
                    "sort them and remove repeats",
                )

    @property
    def dimension(self) -> int:
        return len(self.edges) - 1

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0, 1.0, 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[LengthHistogram, Inputs]":
        return cls(choose.one_of([(0, 1), (1, 5, 20), (0, 1_000_000)])), ()

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        return one_hot(length_bins(records.texts, self.edges, self.dimension), records.units, self.dimension)


def one_hot(bins: Int64, unit_of: Int64, dimension: int) -> Rows:
    """Returns rows with a 1 at each record's bin, from ``bins`` and ``unit_of``, int64 [M].

    A record whose bin is outside [0, dimension) does not count.
    """
    return Rows(at_columns(labels_within(bins, dimension)[:, None], np.ones(1), dimension), unit_of)


def length_bins(texts: Iterable[str], edges: npt.ArrayLike, bins: int) -> Int64:
    """Returns the bin of each text by its number of words, int64 [M]; texts beyond the edges are in the outer bins."""
    word_counts = np.array([len(text.split()) for text in texts], dtype=np.int64)
    return np.clip(np.searchsorted(np.asarray(edges), word_counts, side="right") - 1, 0, bins - 1)


@register
@dataclass(frozen=True)
class MetadataHistograms(Statistic, question="counts"):
    """Counts the records by label, by length and by nearest keyword: up to three histograms side by side.

    A record counts at most once in each of the h histograms: L1 h, L2 sqrt(h), Linf 1. Their order is: records per
    label (one coordinate for all records if the task has no labels); records by number of words, where lengths beyond
    the edges count in the outer bins; records by the nearest keyword of their label, by embedding. A record without
    label in a task with labels counts by length only.

    Source: Sun et al. 2025 (DPGA-TextSyn), private metadata. Deviation: the histograms are one vector of one release,
    of L2 sensitivity sqrt(3), and not three releases that each take a third of a budget.

    Attributes:
        labels: number of labels of the task; 0 for a task without labels.
        length_bins: largest number of length bins; if fewer are published, the coordinates after them stay 0.
        keywords: largest number of keywords; if fewer are published, the coordinates after them stay 0.
        count_labels: True includes the label histogram.

    Public inputs: whole numbers "length_edges", e_0 < e_1 < ... (with ``length_bins``); embeddings "keywords" with a
    label each (with ``keywords``).

    >>> MetadataHistograms(labels=14, length_bins=100, keywords=140).sensitivity
    Sensitivity(l1=3.0, l2=1.7320508075688772, linf=1.0)
    """

    name: ClassVar[str] = "metadata_histograms"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how many of your records have each label, each length and each of a few public keywords"
    labels: LabelCount
    length_bins: Annotated[int, Between(0)] = 0
    keywords: Annotated[int, Between(0)] = 0
    count_labels: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.histograms:
            raise ConfigurationError(
                f"{self.name} has no histogram", "give it bins, keywords or labels", code="no-histogram"
            )

    @property
    def asks(self) -> str:
        label = "each label" if self.labels else "any text at all"
        counted_words = that_hold(
            (self.label_bins, label),
            (self.length_bins, "each length"),
            (self.keywords, "each of a few public keywords"),
        )
        return f"how many of your records have {' and '.join(counted_words)}"

    @property
    def label_bins(self) -> int:
        if self.count_labels:
            return max(1, self.labels)
        return 0

    @property
    def histograms(self) -> int:
        return sum(bin_count > 0 for bin_count in (self.label_bins, self.length_bins, self.keywords))

    @property
    def dimension(self) -> int:
        return self.label_bins + self.length_bins + self.keywords

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(float(self.histograms), math.sqrt(self.histograms), 1.0)

    def split(self, values: Float64) -> tuple[Float64, Float64, Float64]:
        """Splits an opened vector [dimension] into label, length and keyword parts; unplanned parts are empty."""
        lengths_start = self.label_bins
        keywords_start = self.label_bins + self.length_bins
        return values[:lengths_start], values[lengths_start:keywords_start], values[keywords_start:]

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[MetadataHistograms, Inputs]":
        length_bin_count = choose.one_of([0, 3])
        keyword_count = choose.one_of([0, 12])
        statistic = cls(
            choose.labels(facts),
            length_bin_count,
            keyword_count,
            count_labels=choose.yes() or not (length_bin_count or keyword_count),
        )
        example_inputs: Inputs = ()
        if length_bin_count:
            length_edges = choose.one_of([(0, 4), (1, 2, 3, 2**31 - 1), (5, 10, 20)])
            example_inputs += (("length_edges", GridNumbers(np.array(length_edges, dtype=np.float64), WHOLE_NUMBERS)),)
        if keyword_count:
            example_inputs += (("keywords", choose.embeddings(choose.integer(0, keyword_count), facts)),)
        return statistic, example_inputs

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        edge_inputs = ("length_edges",) * (self.length_bins > 0)
        keyword_inputs = ("keywords",) * (self.keywords > 0)
        check_names(self.name, public, numbers=edge_inputs, embeddings=keyword_inputs)
        check_task_labels(self.name, self.labels, facts)
        if edge_inputs:
            self._check_edges(public.numbers_of("length_edges"))
        if keyword_inputs:
            keyword_vectors = public.embeddings_of("keywords")
            check_embeddings("keywords", keyword_vectors, facts, labels=self.labels, most=self.keywords)

    def _check_edges(self, edges: Float64) -> None:
        if edges.ndim == 1:
            WHOLE_NUMBERS.check("length_edges", edges)
        if edges.ndim != 1 or not 2 <= len(edges) <= self.length_bins + 1 or (np.diff(edges) <= 0).any():
            raise ConfigurationError(
                f"{self.name}: the published length edges are not 2 to {self.length_bins + 1} increasing numbers",
                "publish as many as are planned, in increasing order",
            )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        columns = []
        if self.label_bins:
            all_records = np.zeros(len(records), dtype=np.int64)
            columns.append(labels_within(records.labels, self.labels) if self.labels else all_records)
        if self.length_bins:
            length_edges = public.numbers_of("length_edges")
            columns.append(length_bins(records.texts, length_edges, len(length_edges) - 1) + self.label_bins)
        if self.keywords:
            keyword_block = public.embeddings_of("keywords")
            labels = None
            if self.labels:
                labels = labels_within(records.labels, self.labels)
            nearest_keywords = NearestFurthest(records.embeddings, labels, 1, furthest=False)
            nearest_keywords.extend(keyword_block.values, keyword_block.labels if self.labels else None)
            nearest_keyword = nearest_keywords.near[:, 0]
            columns.append(
                np.where(nearest_keyword == NONE, NONE, nearest_keyword + self.label_bins + self.length_bins)
            )
        bin_counts = at_columns(np.stack(columns, axis=1), np.ones(len(columns)), self.dimension)
        return Rows(bin_counts, records.units)


VALUES = "values"
COLUMNS = "columns"
MOST_ATTRIBUTES = 31
MOST_VALUES = 2**20  # values of one attribute


@register
@dataclass(frozen=True)
class AttributeMarginals(Statistic, question="counts"):
    """Counts the records by value of each of h attributes: h histograms side by side, with L1 h and L2 sqrt(h).

    There are three kinds of attributes: the record's label; a public list of values, of which the record has the
    nearest by embedding; and a column of the record with a public list of its values, of which the last one stands for
    a missing or any other value. The lists are published with the question, so that a record's attributes are a
    function of the record and of public inputs. A record without label counts in no bin of the label.

    Private tables of attributes ground the generation of text in Chien et al. 2026 (MAPLE) and Hu et al. 2025
    (ACTG-ARL). Deviation: the tables of one question are one vector of one release.

    Attributes:
        labels: number of labels of the task, the first attribute; 0 leaves this attribute out.
        lists: number of values of each public list.
        columns: number of values of each column, the last one, for missing and other values, included.

    Public inputs: embeddings named "values" if there are lists; texts named "columns" if there are columns.

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
        most_lists = MOST_ATTRIBUTES - bool(self.labels)
        if self.lists != () or not (self.labels or self.columns):
            positive_integers(self.name, "lists", self.lists, most_entries=most_lists, most=MOST_VALUES)
        if self.columns != ():
            least_entries = max(1, most_lists - len(self.lists))
            positive_integers(self.name, "columns", self.columns, most_entries=least_entries, most=MOST_VALUES)

    @property
    def asks(self) -> str:
        counted_words = that_hold(
            (self.labels, "each label"),
            (self.lists, "each value of a few public lists, by the value that a record's words are nearest to"),
            (self.columns, "each value of a few of its columns"),
        )
        return f"how many of your records have {' and '.join(counted_words)}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of values of the attributes, in the order label, lists, columns."""
        return (*((self.labels,) if self.labels else ()), *self.lists, *self.columns)

    @property
    def values(self) -> int:
        return sum(self.lists)

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @property
    def sensitivity(self) -> Sensitivity:
        attribute_count = len(self.sizes)
        return Sensitivity(float(attribute_count), math.sqrt(attribute_count), 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[AttributeMarginals, Inputs]":
        label_count = choose.labels(facts)
        list_sizes = tuple(choose.integer(1, 4) for _ in range(choose.integer(0 if label_count else 1, 3)))
        column_sizes = tuple(choose.integer(1, 3) for _ in range(choose.integer(0, 2)))
        example_inputs: list[Any] = []
        if list_sizes:
            list_numbers = np.repeat(np.arange(len(list_sizes)), list_sizes)
            example_inputs.append(
                (VALUES, LabelledEmbeddings(choose.embeddings(sum(list_sizes), facts).values, list_numbers))
            )
        if column_sizes:
            example_inputs.append((COLUMNS, choose.terms(sum(column_sizes))))
        return cls(label_count, list_sizes, column_sizes), tuple(example_inputs)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        """Raises ConfigurationError unless the inputs hold all values of every list and every column.

        "values" holds list after list, with the number of its list as each value's label. "columns" holds column after
        column: the column's name, then its values without the last one, for missing and other values.
        """
        embedding_inputs = (VALUES,) if self.lists else ()
        text_inputs = (COLUMNS,) if self.columns else ()
        check_names(self.name, public, embeddings=embedding_inputs, texts=text_inputs)
        check_task_labels(self.name, self.labels, facts)
        if self.columns:
            column_texts = public.texts_of(COLUMNS)
            if len(column_texts) != sum(self.columns) or not all(map(str.strip, column_texts)):
                raise ConfigurationError(
                    f"{self.name}: the published columns have another number of names and values than the plan, or an"
                    " empty one",
                    "publish the name and the values of each planned column",
                )
        if not self.lists:
            return
        value_vectors = public.embeddings_of(VALUES)
        check_embeddings(VALUES, value_vectors, facts, labels=len(self.lists), most=self.values, least=self.values)
        if (value_vectors.labels != np.repeat(np.arange(len(self.lists)), self.lists)).any():
            raise ConfigurationError(
                f"{self.name}: the published values are not in the order of their lists",
                "label each with the number of its list",
            )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings = records.embeddings
        labels = records.labels

        def compute(row_numbers: Int64) -> Matrix:
            columns = {
                column_name: [column[row] for row in row_numbers] for column_name, column in records.columns.items()
            }
            value_numbers = np.stack(
                self._attribute_values(embeddings[row_numbers], labels[row_numbers], columns, public), axis=1
            )
            first_columns = np.cumsum((0, *self.sizes[:-1]))
            return at_columns(
                np.where(value_numbers == NONE, NONE, value_numbers + first_columns),
                np.ones(len(first_columns)),
                self.dimension,
            )

        return Rows(compute, records.units, width=len(self.sizes))

    def _attribute_values(
        self, embeddings: Float32, record_labels: Int64, columns: Mapping[str, Sequence[str]], public: PublicInputs
    ) -> list[Int64]:
        """Returns for each attribute, in the order of ``sizes``, the number of each record's value, int64 [M].

        It is ``NONE`` for a record without label.

        Ties go to the value that stands first. Values of columns are compared without case; a column that is not there
        is missing.
        """
        if self.labels:
            value_rows = [labels_within(record_labels, self.labels)]
        else:
            value_rows = []
        if self.lists:
            for list_embeddings in np.split(public.embeddings_of(VALUES).values, np.cumsum(self.lists)[:-1]):
                nearest_values = NearestFurthest(embeddings, None, 1, furthest=False)
                nearest_values.extend(list_embeddings, None)
                value_rows.append(nearest_values.near[:, 0])
        column_texts = iter(public.texts_of(COLUMNS) if self.columns else ())
        for value_count in self.columns:
            column_name, *column_values = islice(column_texts, value_count)
            value_places = {
                value.casefold(): value_place for value_place, value in reversed(list(enumerate(column_values)))
            }
            column = columns.get(column_name, ("",) * len(embeddings))
            value_rows.append(
                np.array(
                    [value_places.get(cell_text.casefold(), value_count - 1) for cell_text in column], dtype=np.int64
                )
            )
        return value_rows
