"""The sum of the records' unit embeddings: their mean direction, and from its length their mean pairwise similarity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.errors import ConfigurationError
from protocol.statistics.interface import Int64, Matrix, PublicInputs, RecordView, Rows, Sensitivity
from protocol.statistics.registry import positive_integer, register

EMBEDDING_SCALE = 2048  # the grid of quantised embeddings (common.embedding): nothing is rounded away


@register
@dataclass(frozen=True)
class EmbeddingSum:
    """S = sum of x over the records: L1 sqrt(d), L2 1, Linf 1, since quantised embeddings have norm at most 1.

    E|S + noise|^2 = |S|^2 + d sigma^2 and |S|^2 = n + sum of the cosines of all n(n-1) ordered pairs.

    Attributes:
        size: coordinates of an embedding, d.
    """

    name: ClassVar[str] = "embedding_sum"
    size: int

    def __post_init__(self) -> None:
        positive_integer(self.name, "size", self.size)

    @property
    def dimension(self) -> int:
        return self.size

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(math.sqrt(self.size), 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return EMBEDDING_SCALE

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings = records.embeddings
        if embeddings.shape[1] != self.size:
            raise ConfigurationError(
                f"the embedding model gives {embeddings.shape[1]} coordinates, the plan has {self.size}",
                "set method.embedding_size to the model's",
            )

        def compute(asked: Int64) -> Matrix:
            return embeddings[asked].astype(np.float64)

        return Rows(compute, records.units)
