"""Label, length and keyword histograms of one release: what DPGA-TextSyn calls metadata.

Source: Sun et al. 2025 (DPGA-TextSyn), private metadata. Deviation: the histograms are one vector of one release, of L2
sensitivity sqrt(3), and not three releases that each take a third of a budget.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.histogram import length_bins
from undersong_protocol.statistics.inputs import (
    WHOLE_NUMBERS,
    check_embeddings,
    check_names,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest
from undersong_protocol.statistics.registry import register


@register
@dataclass(frozen=True)
class MetadataHistograms(Statistic, question="counts"):
    """Up to three histograms side by side; a record counts at most once in each: of h, L1 h, L2 sqrt(h), Linf 1.

    In this order: records per label (one coordinate for all records where the task has no labels); records by number of
    words, white space separated, where lengths below or above the edges count in the outer bins; votes for the nearest
    keyword of the record's label, by embedding. A record without label in a task with labels counts by length only.

    Attributes:
        labels: labels of the task; 0 where it has none.
        length_bins: bins the plan allows for; where fewer are published the coordinates after them stay empty.
        keywords: keywords the plan allows for, likewise.
        count_labels: whether the label histogram is among them.

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
    def label_bins(self) -> int:
        return max(1, self.labels) if self.count_labels else 0

    @property
    def histograms(self) -> int:
        return sum(bins > 0 for bins in (self.label_bins, self.length_bins, self.keywords))

    @property
    def dimension(self) -> int:
        return self.label_bins + self.length_bins + self.keywords

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(float(self.histograms), math.sqrt(self.histograms), 1.0)

    def split(self, values: Float64) -> tuple[Float64, Float64, Float64]:
        """An opened vector [dimension] as its label, length and keyword parts (empty where not among them)."""
        first, second = self.label_bins, self.label_bins + self.length_bins
        return values[:first], values[first:second], values[second:]

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[MetadataHistograms, Inputs]":
        bins, keywords = choose.one_of([0, 3]), choose.one_of([0, 12])
        statistic = cls(choose.labels(facts), bins, keywords, count_labels=choose.yes() or not (bins or keywords))
        pieces: Inputs = ()
        if bins:
            edges = choose.one_of([(0, 4), (1, 2, 3, 2**31 - 1), (5, 10, 20)])
            pieces += (("length_edges", GridNumbers(np.array(edges, dtype=np.float64), WHOLE_NUMBERS)),)
        if keywords:
            pieces += (("keywords", choose.embeddings(choose.integer(0, keywords), facts)),)
        return statistic, pieces

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        edges, keywords = ("length_edges",) * (self.length_bins > 0), ("keywords",) * (self.keywords > 0)
        check_names(self.name, public, numbers=edges, embeddings=keywords)
        check_task_labels(self.name, self.labels, facts)
        if edges:
            self._check_edges(public.numbers_of("length_edges"))
        if keywords:
            given = public.embeddings_of("keywords")
            check_embeddings("keywords", given, facts, labels=self.labels, most=self.keywords)

    def _check_edges(self, edges: Float64) -> None:
        if edges.ndim == 1:
            WHOLE_NUMBERS.check("length_edges", edges)
        if edges.ndim != 1 or not 2 <= len(edges) <= self.length_bins + 1 or (np.diff(edges) <= 0).any():
            raise ConfigurationError(
                f"the published length edges are not 2 to {self.length_bins + 1} increasing numbers",
                "publish what was planned",
            )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        bins = [
            part
            for size, part in (
                (self.label_bins, self._label_bins),
                (self.length_bins, self._length_bins),
                (self.keywords, self._keyword_bins),
            )
            if size
        ]
        columns = np.stack([part(records, public) for part in bins], axis=1)
        return Rows(at_columns(columns, np.ones(len(bins)), self.dimension), records.units)

    def _label_bins(self, records: RecordView, public: PublicInputs) -> Int64:
        if not self.labels:
            return np.zeros(len(records), dtype=np.int64)
        return labels_within(records.labels, self.labels)

    def _length_bins(self, records: RecordView, public: PublicInputs) -> Int64:
        edges = public.numbers_of("length_edges")
        return length_bins(records.texts, edges, len(edges) - 1) + self.label_bins

    def _keyword_bins(self, records: RecordView, public: PublicInputs) -> Int64:
        keywords = public.embeddings_of("keywords")
        labels = labels_within(records.labels, self.labels) if self.labels else None
        nearest = NearestFurthest(records.embeddings, labels, 1, furthest=False)
        nearest.extend(keywords.values, keywords.labels if self.labels else None)
        found = nearest.near[:, 0]
        return np.where(found == NONE, NONE, found + self.label_bins + self.length_bins)
