"""One vote a record, split over the generators that wrote its nearest candidates: K coordinates instead of N."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from common.errors import ConfigurationError
from protocol.statistics import hubness
from protocol.statistics.histogram import COUNT_SCALE
from protocol.statistics.interface import PublicInputs, RecordView, Rows, Sensitivity
from protocol.statistics.registry import positive_integer, register
from protocol.statistics.votes import LARGEST_Q


@register
@dataclass(frozen=True)
class GeneratorVotes:
    """Of a record's Q nearest candidates each counts 1 / (candidates of its generator and label); the row sums to 1.

    A generator that wrote more of a label would otherwise collect more votes for that alone. The row is non-negative
    and sums to 1, so every norm is at most 1; a record without candidates casts nothing.

    Attributes:
        q: nearest candidates that are looked at, Q, by hub-corrected similarity.
        generators: K.
        labels: labels of the task; 0 compares every record with every candidate.

    Public inputs: embeddings "candidates", numbers "reach" and "authors" (the generator of each candidate, 0..K-1).
    """

    name: ClassVar[str] = "generator_votes"
    q: int
    generators: int
    labels: int = 0

    def __post_init__(self) -> None:
        positive_integer(self.name, "q", self.q, most=LARGEST_Q)
        positive_integer(self.name, "generators", self.generators)
        positive_integer(self.name, "labels", self.labels, least=0)

    @property
    def dimension(self) -> int:
        return self.generators

    @property
    def sensitivity(self) -> Sensitivity:
        return Sensitivity(1.0, 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return COUNT_SCALE

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        given, _ = hubness.inputs(public)
        authors = public.numbers_of("authors").astype(np.int64)
        if authors.shape != (len(given.values),) or (
            authors.size and not (authors.min() >= 0 and authors.max() < self.generators)
        ):
            raise ConfigurationError(
                f"the candidates' authors are not {len(given.values)} numbers below {self.generators}",
                "publish the generator of each candidate",
            )
        labels = given.labels if self.labels else np.zeros(len(authors), dtype=np.int64)
        _, group, sizes = np.unique(
            np.stack([labels, authors], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        counts_for = 1.0 / sizes[group.ravel()] if authors.size else np.zeros(0)
        columns = hubness.nearest(records, public, self.q, labelled=self.labels > 0)
        row, place = np.nonzero(columns != hubness.NONE)
        chosen = columns[row, place]
        matrix = np.zeros((len(records), self.generators))
        np.add.at(matrix, (row, authors[chosen]), counts_for[chosen])
        total = matrix.sum(axis=1, keepdims=True)
        np.divide(matrix, total, out=matrix, where=total > 0)
        return Rows(matrix, records.units)
