"""The sum of the records' outer products on a public projection: how they vary about the candidates of their class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.fixed_order import row_norms
from undersong_protocol.statistics.embedding_sum import EMBEDDING_SCALE
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import (
    LARGEST_EMBEDDING,
    Grid,
    check_embedding_size,
    check_names,
    check_shape,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    Matrix,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from undersong_protocol.statistics.registry import register

MEANS = Grid(bits=16, largest=1.0)
PROJECTION = Grid(bits=16, largest=2.0**7)  # an entry for a typical candidate's norm of 1 is below 1
PROJECTION.check_exact(record_bits=MEANS.bits, record_norm=1.0 + MEANS.largest * LARGEST_EMBEDDING**0.5)


@register
@dataclass(frozen=True)
class OuterProducts(Statistic, question="directions"):
    """S = sum of y y^T with y = P (x - m_c), shortened to norm 1; x a record's embedding, m_c the mean of its class.

    The upper triangle stands for the matrix, with sqrt(2) times the coordinates off the diagonal, so that the row's L2
    norm is the matrix's, |y|^2 <= 1. The L1 norm is largest for y = (1, ..., 1) / sqrt(p): 1 + (p - 1) / sqrt(2). A
    record without label counts nowhere where there are labels.

    Attributes:
        size: rows of P, p.
        labels: labels of the task; 0 where it has none.

    Public inputs: numbers "projection" [p, d], on the grid ``PROJECTION``, and "means" [max(1, labels), d], on the grid
    ``MEANS``.
    """

    name: ClassVar[str] = "outer_products"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "how your records vary along a few public directions, summed over all of them"
    size: Annotated[int, Between(1, LARGEST_EMBEDDING)]
    labels: LabelCount = 0

    @property
    def dimension(self) -> int:
        return self.size * (self.size + 1) // 2

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0 + (self.size - 1) / math.sqrt(2.0), 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return EMBEDDING_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[OuterProducts, Inputs]:
        statistic = cls(size=choose.integer(1, 9), labels=choose.labels(facts))
        return statistic, (
            ("projection", choose.numbers((statistic.size, facts.embedding_size), PROJECTION)),
            ("means", choose.numbers((max(1, statistic.labels), facts.embedding_size), MEANS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("projection", "means"))
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        projection, means = public.numbers_of("projection"), public.numbers_of("means")
        check_shape("projection", projection, (self.size, facts.embedding_size))
        check_shape("means", means, (max(1, self.labels), facts.embedding_size))
        PROJECTION.check("projection", projection)
        MEANS.check("means", means)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        projection, means = public.numbers_of("projection"), public.numbers_of("means")
        embeddings = records.embeddings
        labels = labels_within(records.labels, self.labels) if self.labels else np.zeros(len(records), dtype=np.int64)
        rows, columns = np.triu_indices(self.size)
        factor = np.where(rows == columns, 1.0, math.sqrt(2.0))

        def compute(asked: Int64) -> Matrix:
            known = labels[asked] >= 0
            y = (embeddings[asked] - means[np.where(known, labels[asked], 0)]) @ projection.T
            y *= (known / np.maximum(row_norms(y), 1.0))[:, None]
            return y[:, rows] * y[:, columns] * factor

        return Rows(compute, records.units)


def symmetric(upper: Float64, size: int) -> Float64:
    """The matrix [size, size] whose row in the sum is ``upper``."""
    rows, columns = np.triu_indices(size)
    found = np.zeros((size, size))
    found[rows, columns] = upper / np.where(rows == columns, 1.0, math.sqrt(2.0))
    lower: Float64 = np.triu(found, 1).T
    return found + lower
