"""Histograms of public bins: each record counts once, so every norm of its row is at most 1."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import LARGEST_LABEL, check_names, check_task_labels, labels_within
from undersong_protocol.statistics.interface import (
    Between,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
    positive_integers,
)
from undersong_protocol.statistics.registry import register

MOST_EDGES = 1024


@register
@dataclass(frozen=True)
class LabelHistogram(Statistic, question="counts"):
    """Records per label; a record without label (-1) counts nowhere. ``labels``: how many labels the task has."""

    name: ClassVar[str] = "label_histogram"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how many of your records have each label"
    labels: Annotated[int, Between(1, LARGEST_LABELS)]

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
    """Records by number of words (white space separated) between public ``edges`` e_0 < e_1 < ... < e_b.

    Bin i counts lengths of [e_i, e_(i+1)); shorter texts count in the first bin and longer ones in the last.
    """

    name: ClassVar[str] = "length_histogram"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how many of your records have each length"
    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        positive_integers(self.name, "edges", self.edges, entries=MOST_EDGES, least=0, most=LARGEST_LABEL)
        if len(self.edges) < 2:
            raise ConfigurationError("length_histogram.edges needs at least two numbers of words", "give bin edges")
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ConfigurationError("length_histogram.edges do not increase", "sort them and remove repeats")

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


def one_hot(bins: Int64, units: Int64, dimension: int) -> Rows:
    """One count per record at its bin, int64 [M]; a bin outside [0, dimension) counts nowhere."""
    return Rows(at_columns(labels_within(bins, dimension)[:, None], np.ones(1), dimension), units)


def length_bins(texts: Iterable[str], edges: npt.ArrayLike, bins: int) -> Int64:
    """Bin of each text by its number of words, int64 [M]; texts beyond the edges count in the outer bins."""
    words = np.array([len(text.split()) for text in texts], dtype=np.int64)
    return np.clip(np.searchsorted(np.asarray(edges), words, side="right") - 1, 0, bins - 1)
