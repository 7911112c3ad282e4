"""Attributes counted together with the label (MAPLE, 2603.19258), and topics (CTCL, 2503.12347), in the default method.

The default method counts the label and each attribute by itself and draws them independently. Here one release has a
table of label and value for each attribute: an order draws a label, then each attribute given that label. ``topics``
is an attribute that nobody names: public clusters of the first round's texts, each told by its five most telling words.
The records are counted by label and topic after that round, and later orders draw a topic given their label.

Everything else is the default method's, whose steps are taken as they are.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics import (
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    register_foreign,
    source,
)
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.histogram import AttributeMarginals, MetadataHistograms
from undersong_protocol.statistics.interface import Matrix, at_columns
from undersong_protocol.statistics.nearest import NONE
from undersong_server.methods import undersong
from undersong_server.methods.augpe import Cells, cells_of
from undersong_server.methods.interface import Method, RunContext, Sample, Setting, SumRequest
from undersong_server.methods.parts import form
from undersong_server.methods.parts.metadata import shares_of_counts
from undersong_server.methods.parts.selection import highest

TOPICS, LABELS = "topics", "labels"
PART_TOPICS = 2.0  # part of the budget for the count of topics: as much as the default method gives the labels
WORDS = 5  # words that describe a topic
MOST_STEPS = 5000  # of Dykstra's algorithm
TOLERANCE = 1e-9  # relative to the largest count


@dataclass(frozen=True)
class AttributeTables(AttributeMarginals, question="counts"):
    """Counts the records by label and value, a table for each of p attributes: L1 p, L2 sqrt(p) and Linf 1.

    A record with a label has one value of each attribute. It adds 1 to one cell of each of the p tables, which have no
    cell in common, and 0 to all others: its row has p ones, and so the norms p, sqrt(p) and 1. A record without a label
    adds nothing. The tables replace the label's own histogram, which is the sum of the rows of any of them.

    Attributes:
        labels: number of labels of the task, at least 1.
        lists, columns: as of AttributeMarginals, at least one of both together.

    >>> AttributeTables(labels=10, lists=(6,), columns=(4,)).sensitivity
    Sensitivity(l1=2.0, l2=1.4142135623730951, linf=1.0)
    """

    name: ClassVar[str] = "attribute_tables"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how many of your records have each label together with each value of a few public lists; a record has the"
        " value that its words are nearest to, or the one in its column of that name"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.labels and self.values_of_each):
            raise ConfigurationError(
                f"{self.name} counts by label and attribute value, and was given {self.labels} labels and"
                f" {len(self.values_of_each)} attributes",
                "count attribute_marginals instead",
            )

    @property
    def asks(self) -> str:
        return self.consent

    @property
    def values_of_each(self) -> tuple[int, ...]:
        """Numbers of values of the attributes, lists first."""
        return (*self.lists, *self.columns)

    @property
    def dimension(self) -> int:
        return self.labels * sum(self.values_of_each)

    @property
    def sensitivity(self) -> Sensitivity:
        table_count = len(self.values_of_each)
        return Sensitivity(float(table_count), math.sqrt(table_count), 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[AttributeTables, Inputs]":
        marginals, inputs = AttributeMarginals.example(choose, replace(facts, labels=max(1, facts.labels)))
        return cls(max(1, facts.labels), marginals.lists, marginals.columns), inputs

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings, record_labels, sizes = records.embeddings, records.labels, self.values_of_each
        first_columns = self.labels * np.cumsum((0, *sizes[:-1]))

        def compute(row_numbers: Int64) -> Matrix:
            columns = {name: [column[row] for row in row_numbers] for name, column in records.columns.items()}
            label, *values = self._attribute_values(
                embeddings[row_numbers], record_labels[row_numbers], columns, public
            )
            table_columns = [
                first + label * size + value for first, size, value in zip(first_columns, sizes, values, strict=True)
            ]
            counted_columns = np.where(label[:, None] == NONE, NONE, np.stack(table_columns, axis=1))
            return at_columns(counted_columns, np.ones(len(sizes)), self.dimension)

        return Rows(compute, records.units, width=len(sizes))

    def split(self, counts: Float64) -> list[Float64]:
        """Returns the tables of an opened vector, float64 [labels, values] each."""
        table_ends = self.labels * np.cumsum(self.values_of_each)
        return [table.reshape(self.labels, -1) for table in np.split(counts, table_ends[:-1])]


def register() -> None:
    """Makes the statistic known to this process, as another package's: it runs in simulations only."""
    if not source(AttributeTables.name):
        register_foreign(AttributeTables.name, AttributeTables, hashlib.sha256(Path(__file__).read_bytes()).hexdigest())


class Options(undersong.Options):
    """Options of ``joint-attributes``: the default method's, and two more.

    Attributes:
        joint: counts the task's attributes together with the label; else each by itself, as the default method does.
        topics: number of clusters of the first round's texts that the records are counted by; 0 for none.
    """

    joint: bool = True
    topics: Annotated[int, Field(ge=0, le=256)] = 0


def plan(options: Options, setting: Setting) -> list[SumRequest]:
    """Returns the default method's sums; that of labels counts tables with attributes, and topics follow."""
    register()
    if options.topics and (setting.attributes or options.words):
        raise ConfigurationError(
            "method.topics is set beside the task's attributes or method.words, and a prompt names only one of them",
            "take one of them out",
        )
    requests = undersong.plan(options, setting)
    if is_joint(options, setting):
        attribute_tables = tables_of(setting)
        return [
            replace(request, statistic=attribute_tables) if request.name == LABELS else request for request in requests
        ]
    if not options.topics:
        return requests
    label_count = len(setting.labels)
    counted_topics = MetadataHistograms(label_count, keywords=options.topics * max(1, label_count), count_labels=False)
    # The sums that need no text of the first round come before the count of topics.
    first_count = sum(request.name in (LABELS, "centres") for request in requests)
    return [*requests[:first_count], SumRequest(TOPICS, counted_topics, PART_TOPICS), *requests[first_count:]]


def is_joint(options: Options, setting: Setting) -> bool:
    """Returns True where the task has something to count together with its labels."""
    return options.joint and bool(setting.labels) and bool(setting.attributes)


def tables_of(setting: Setting) -> AttributeTables:
    """Returns the statistic that counts the task's attributes by label."""
    attribute_marginals = undersong.attribute_marginals(setting)
    return AttributeTables(attribute_marginals.labels, attribute_marginals.lists, attribute_marginals.columns)


class JointState(undersong.RunState):
    """A run of the default method whose attributes are drawn given the label, and which may count topics."""

    options: Options

    def count_labels(self) -> None:
        """Opens the tables of label and value, and takes the counts of labels from the tables' common margin."""
        setting = self.run.setting
        if not is_joint(self.options, setting):
            super().count_labels()
            return
        statistic = tables_of(setting)
        labels_sum = self.run.private_sum(LABELS, undersong.attribute_inputs(self.run))
        record_tables = nearest_tables(statistic.split(labels_sum.natural))
        for attribute, table in zip(setting.attributes, record_tables, strict=True):
            self.run.record(f"shares of {attribute.name}", 0, shares_of_counts(table.sum(axis=0)).tolist())
        self.values = [[shares_in(table, label) for table in record_tables] for label in range(statistic.labels)]
        # The mean of the tables' margins, weighted by their precision, has this noise. Clipping counts at 0 lowers it.
        sigma = labels_sum.sigma / math.sqrt(sum(1.0 / size for size in statistic.values_of_each))
        label_margin = np.rint(record_tables[0].sum(axis=1) * labels_sum.scale).astype(np.int64)
        self.take_label_counts(replace(labels_sum, values=label_margin, sigma=sigma))

    def write(self, step: str, t: int, count: int) -> None:
        """Orders texts as the default method does, and counts topics once the first round is written."""
        super().write(step, t, count)
        if not t and self.options.topics:
            self.count_topics()

    def count_topics(self) -> None:
        """Opens the count of records by label and topic; orders draw a topic's words from now on."""
        label_count, samples = len(self.shares), self.run.pool.samples
        topic_cells = cells_of(
            self.run.embeddings(samples), self.options.topics, int(self.run.rng(TOPICS).integers(2**31))
        )
        topic_count = len(topic_cells.centres)
        topics_input = self.run.publish_vectors(
            *(
                "keywords",
                TOPICS,
                np.tile(topic_cells.centres, (label_count, 1)),
                np.repeat(np.arange(label_count), topic_count),
            )
        )
        topics_sum = self.run.private_sum(TOPICS, [topics_input])
        (topic_table,) = nearest_tables(
            [topics_sum.natural[: label_count * topic_count].reshape(label_count, topic_count)]
        )
        words_of_topic = topic_words(samples, topic_cells)
        self.run.record(
            TOPICS, 0, [(" ".join(named), topic_table[:, n].tolist()) for n, named in enumerate(words_of_topic)]
        )
        self.frequent = [Topics(counts=row, words=words_of_topic) for row in topic_table]


@dataclass(frozen=True, eq=False)
class Topics(form.Frequent):
    """Words of each topic, of which an order names one topic's, drawn by the topics' counts in its label."""

    words: Sequence[tuple[str, ...]] = ()

    def draw(self, rng: np.random.Generator) -> tuple[str, ...]:
        """Draws the words of one topic; none where the label has no record left above the noise."""
        if self.counts.any():
            return self.words[int(rng.choice(len(self.counts), p=shares_of_counts(self.counts)))]
        return ()


def topic_words(samples: Sequence[Sample], cells: Cells) -> list[tuple[str, ...]]:
    """Returns the most telling words of each topic's texts."""
    listed, scores = form.telling([sample.text for sample in samples], cells.cell_of, len(cells.centres))
    return [
        tuple(listed[place] for place in highest(column, np.flatnonzero(np.isfinite(column)), WORDS))
        for column in scores.T
    ]


def shares_in(table: Float64, label: int) -> Float64:
    """Returns a label's shares of the values; those of all labels where nothing of it is left above the noise."""
    return shares_of_counts(table[label] if table[label].any() else table.sum(axis=0))


def nearest_tables(noisy: Sequence[Float64]) -> list[Float64]:
    """Returns the tables nearest to noisy ones that hold no negative count and agree on the labels' margin.

    They minimise the sum of the squared differences, with the total that the noisy margins have together. Without a
    positive total all counts are 0. The algorithm is Dykstra's (Boyle and Dykstra 1986): projections in turn onto the
    tables with one common margin, which is an affine set, and onto those without negative counts.

    Args:
        noisy: float64 [C, V] each, with as many labels C.
    """
    margin_total = float(_margin(noisy).sum())
    if margin_total <= 0:
        return [np.zeros_like(table) for table in noisy]
    largest_change = TOLERANCE * max(float(np.abs(table).max()) for table in noisy)
    clipped_tables, taken_parts = list(noisy), [np.zeros_like(table) for table in noisy]
    # The loop ends when two steps give equal tables before they are clipped: clipped tables may stand still earlier.
    fitted_tables = [np.full_like(table, np.inf) for table in noisy]
    for _ in range(MOST_STEPS):
        fitted_margin = _margin(clipped_tables)
        fitted_margin += (margin_total - fitted_margin.sum()) / len(fitted_margin)
        level_tables = [
            table + ((fitted_margin - table.sum(axis=1)) / table.shape[1])[:, None] for table in clipped_tables
        ]
        tables_before, fitted_tables = (
            fitted_tables,
            [table + taken_part for table, taken_part in zip(level_tables, taken_parts, strict=True)],
        )
        clipped_tables, taken_parts = (
            [clip(table, 0.0) for table in fitted_tables] for clip in (np.maximum, np.minimum)
        )
        if (
            max(float(np.abs(new - old).max()) for new, old in zip(fitted_tables, tables_before, strict=True))
            <= largest_change
        ):
            break
    return clipped_tables


def _margin(tables: Sequence[Float64]) -> Float64:
    """Returns the mean of the tables' margins over labels by their precision, float64 [C]."""
    table_weights = np.array([1.0 / table.shape[1] for table in tables])
    label_sums = np.stack([table.sum(axis=1) for table in tables])
    label_margin: Float64 = table_weights @ label_sums / table_weights.sum()
    return label_margin


def run(options: Options, run: RunContext) -> Sequence[Sample]:
    """Runs the default method with attributes by label and topics. Returns the corpus."""
    register()
    return undersong.publish(JointState(options, run, [request.name for request in plan(options, run.setting)]))


METHOD = Method(
    Options=Options,
    plan=plan,
    generator_calls=undersong.generator_calls,
    run=run,
    reads_attributes=True,
    asks_first=undersong.METHOD.asks_first,
    measures_lengths=undersong.METHOD.measures_lengths,
)
