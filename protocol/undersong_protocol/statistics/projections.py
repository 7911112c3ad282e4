"""Positions of records along a few public directions, around public centres: the sum of P coordinates and a count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_common.fixed_order import row_norms
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import (
    COEFFICIENTS,
    check_embedding_size,
    check_names,
    check_shape,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Matrix,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    in_blocks,
)
from undersong_protocol.statistics.registry import positive_integer, register

PROJECTION_SCALE = 1024  # integer units: rounding toward zero takes 1/2048 of a unit on average
COUNT = 0.5  # of the row's length is for counting the record, the rest for where it lies
PLACE = math.sqrt(1.0 - COUNT**2)


@register
@dataclass(frozen=True)
class Projections(Statistic):
    """A record's row is (COUNT, PLACE p), p = its embedding times the published matrix minus its label's offset.

    p is shortened to length 1 where it is longer, so that the row's length is at most 1 whatever is published. A
    matrix of orthonormal directions divided by a radius makes p the record's place around its label's centre in units
    of that radius. A record without label casts nothing where the task has labels.

    With ``by_label`` each label has P + 1 coordinates of its own: a record stands in one of these blocks, so the bounds
    stay, and the sums are every label's count and mean place.

    Attributes:
        directions: P.
        labels: labels of the task, C; 0 gives all records one centre.
        by_label: as above; needs labels.

    Public input: numbers "projections", [d + max(1, C), P], on the grid ``inputs.COEFFICIENTS``: the matrix, then one
    row of offsets per label.
    """

    name: ClassVar[str] = "projections"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "the sum of your records' positions along a few public directions, and how many they are"
    directions: int
    labels: int = 0
    by_label: bool = False

    def __post_init__(self) -> None:
        positive_integer(self.name, "directions", self.directions)
        positive_integer(self.name, "labels", self.labels, least=int(self.by_label is True), most=LARGEST_LABELS)
        if type(self.by_label) is not bool:
            raise ConfigurationError(f"{self.name}.by_label is {self.by_label!r}", "give true or false")

    @property
    def blocks(self) -> int:
        return self.labels if self.by_label else 1

    @property
    def dimension(self) -> int:
        return self.blocks * (self.directions + 1)

    @property
    def sensitivity(self) -> Sensitivity:
        """COUNT^2 + PLACE^2 = 1; a vector of length 1 has an L1 norm of at most sqrt(P)."""
        return Sensitivity(COUNT + PLACE * math.sqrt(self.directions), 1.0, PLACE)

    @property
    def base_scale(self) -> int:
        return PROJECTION_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[Projections, Inputs]:
        labels = choose.labels(facts)
        statistic = cls(directions=choose.integer(1, 9), labels=labels, by_label=choose.yes() and labels > 0)
        shape = (facts.embedding_size + max(1, labels), statistic.directions)
        return statistic, (("projections", choose.numbers(shape, COEFFICIENTS)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("projections",))
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        published = public.numbers_of("projections")
        check_shape("projections", published, (facts.embedding_size + max(1, self.labels), self.directions))
        COEFFICIENTS.check("projections", published)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        published = public.numbers_of("projections")
        embeddings = records.embeddings
        width = embeddings.shape[1]
        labels = labels_within(records.labels, self.labels) if self.labels else np.zeros(len(records), dtype=np.int64)
        known = labels >= 0
        centre = np.where(known, labels, 0)

        def compute(asked: Int64) -> Float64:
            x = embeddings[asked].astype(np.float64)
            return places(x, published[:width], published[width + centre[asked]]) * known[asked, None]

        def by_label(asked: Int64) -> Matrix:
            return in_blocks(compute(asked), centre[asked], self.dimension)

        return Rows(by_label if self.by_label else compute, records.units, width=self.directions + 1)


def places(embeddings: Float64, matrix: Float64, offsets: Float64) -> Float64:
    """(COUNT, PLACE p) of each row, float64 [m, P + 1]; the products are exact where the numbers lie on their grid.

    Args:
        embeddings: [m, d]; matrix: [d, P]; offsets: [P], or [m, P] where each row has its own.
    """
    place = embeddings @ matrix - offsets
    place *= PLACE / np.maximum(1.0, row_norms(place))[:, None]
    return np.hstack([np.full((len(place), 1), COUNT), place])
