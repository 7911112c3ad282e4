"""The sum of the records' outer products on a public projection: how they vary about the candidates of their class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.statistics.embedding_sum import EMBEDDING_SCALE
from undersong_protocol.statistics.interface import Matrix, PublicInputs, RecordView, Rows, Sensitivity, Statistic
from undersong_protocol.statistics.registry import positive_integer, register


@register
@dataclass(frozen=True)
class OuterProducts(Statistic):
    """S = sum of y y^T with y = P (x - m_c), shortened to norm 1; x a record's embedding, m_c the mean of its class.

    The upper triangle stands for the matrix, with sqrt(2) times the coordinates off the diagonal, so that the row's L2
    norm is the matrix's, |y|^2 <= 1. The L1 norm is largest for y = (1, ..., 1) / sqrt(p): 1 + (p - 1) / sqrt(2). A
    record without label counts nowhere where there are labels.

    Attributes:
        size: rows of P, p.
        labels: labels of the task; 0 where it has none.

    Public inputs: numbers "projection" [p, d] and "means" [max(1, labels), d].
    """

    name: ClassVar[str] = "outer_products"
    whole: ClassVar[bool] = False
    size: int
    labels: int = 0

    def __post_init__(self) -> None:
        positive_integer(self.name, "size", self.size)
        positive_integer(self.name, "labels", self.labels, least=0)

    @property
    def dimension(self) -> int:
        return self.size * (self.size + 1) // 2

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0 + (self.size - 1) / math.sqrt(2.0), 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return EMBEDDING_SCALE

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        projection, means = public.numbers_of("projection"), public.numbers_of("means")
        embeddings, labels = records.embeddings, records.labels
        shape = (self.size, embeddings.shape[1])
        if projection.shape != shape or means.shape != (max(1, self.labels), shape[1]):
            raise ConfigurationError(
                f"projection {projection.shape} and means {means.shape} do not fit",
                f"publish {shape} and a mean a class",
            )
        rows, columns = np.triu_indices(self.size)
        factor = np.where(rows == columns, 1.0, math.sqrt(2.0))

        def compute(asked: Int64) -> Matrix:
            known = labels[asked] >= 0 if self.labels else np.ones(len(asked), dtype=np.bool_)
            of = np.where(known, labels[asked], 0) if self.labels else np.zeros(len(asked), dtype=np.int64)
            y = (embeddings[asked] - means[of]) @ projection.T
            y *= (known / np.maximum(np.linalg.norm(y, axis=1), 1.0))[:, None]
            found: Float64 = y[:, rows] * y[:, columns] * factor
            return found

        return Rows(compute, records.units)


def symmetric(upper: Float64, size: int) -> Float64:
    """The matrix [size, size] whose row in the sum is ``upper``."""
    rows, columns = np.triu_indices(size)
    found = np.zeros((size, size))
    found[rows, columns] = upper / np.where(rows == columns, 1.0, math.sqrt(2.0))
    lower: Float64 = np.triu(found, 1).T
    return found + lower
