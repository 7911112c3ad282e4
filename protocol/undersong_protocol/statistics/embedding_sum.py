"""Statistic that sums the records' unit embeddings, for their mean direction and their mean pairwise similarity."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import check_names, check_task_labels, labels_within
from undersong_protocol.statistics.interface import (
    LabelCount,
    Matrix,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    in_blocks,
    register,
)

EMBEDDING_SCALE = 2048  # that of quantised embeddings (undersong_common.models.embedding), so that nothing is rounded


@register
@dataclass(frozen=True)
class EmbeddingSum(Statistic, question="directions"):
    """Sums the records' embeddings x, of norm at most 1: S = sum of x, with L1 sqrt(d), L2 1 and Linf 1.

    The direction of S is the records' mean direction. Its length gives their mean similarity: |S|^2 = n + the sum of
    the cosines of all n(n-1) ordered pairs, and E|S + noise|^2 = |S|^2 + d sigma^2. With ``labels`` there is one such
    sum per label, each in its own coordinates. A record counts in one of them, so the norms stay.

    Attributes:
        size: d, coordinates of an embedding.
        labels: number of labels with a sum each, where a record without label does not count; 0 sums all records.
    """

    name: ClassVar[str] = "embedding_sum"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "the sum of your records' embeddings (an embedding is a list of numbers for what a text is about), which shows"
        " only what they are about on average"
    )
    size: Number
    labels: LabelCount = 0

    @property
    def dimension(self) -> int:
        return self.size * max(1, self.labels)

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(math.sqrt(self.size), 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return EMBEDDING_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[EmbeddingSum, Inputs]":
        return cls(facts.embedding_size, choose.labels(facts)), ()

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public)
        check_task_labels(self.name, self.labels, facts)
        if facts.embedding_size != self.size:
            raise ConfigurationError(
                f"{self.name}: the embedding model gives {facts.embedding_size} coordinates, the plan has {self.size}",
                "set method.embedding_size to the model's",
                code="other-dimension",
            )

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings = records.embeddings
        record_labels = labels_within(records.labels, self.labels)

        def compute(row_numbers: Int64) -> Matrix:
            summed_embeddings = embeddings[row_numbers].astype(np.float64)
            if not self.labels:
                return summed_embeddings
            has_label = record_labels[row_numbers] >= 0
            return in_blocks(
                summed_embeddings * has_label[:, None],
                np.where(has_label, record_labels[row_numbers], 0),
                self.dimension,
            )

        return Rows(compute, records.units, width=self.size)
