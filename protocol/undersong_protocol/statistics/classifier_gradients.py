"""Gradients of a public classifier's log-likelihood on the records, along a few public directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.fixed_order import row_norms, softmax
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
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from undersong_protocol.statistics.projections import COUNT, PLACE, places
from undersong_protocol.statistics.registry import positive_integer, register

# Integer units. Coordinates are products of a place and a probability, mostly small, and rounding toward zero takes
# from each, often the same way: of 8 000 records up to 1 from a sum's coordinate, at a scale of 1024 up to 4.
GRADIENT_SCALE = 4096


@register
@dataclass(frozen=True)
class ClassifierGradients(Statistic):
    """A record's row is the outer product of its place u and the classifier's error on it, e - p.

    u = (COUNT, PLACE q), q = its embedding times the published matrix minus the published offset, shortened to length 1
    where it is longer; e is 1 at the record's label and 0 elsewhere, p are the probabilities that the classifier gives
    to the labels, and e - p is shortened to length 1 where it is longer, which it only is where the classifier gives
    the label less than 0.3. Up to that the sum is the gradient of the records' log-likelihood in a linear
    classifier's coefficients along these directions; it is bounded as Huber's (1964) is, so that those few records do
    not decide everybody's noise. The row's length is at most 1 whatever is published, which a classifier that is sure
    of a wrong label reaches. A record without label casts nothing.

    Attributes:
        directions: P.
        labels: labels of the task, C, at least 2.

    Public inputs, numbers on the grid ``inputs.COEFFICIENTS``: "classifier", [d + 1, C], weights, then the bias;
    "projections", [d + 1, P], the matrix, then the offset. The sum is float64 [P + 1, C], row by row.
    """

    name: ClassVar[str] = "classifier_gradients"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how a public classifier of texts would have to be changed to label your records better, along a few"
        " public directions, summed over all of them"
    )
    directions: int
    labels: int

    def __post_init__(self) -> None:
        positive_integer(self.name, "directions", self.directions)
        positive_integer(self.name, "labels", self.labels, least=2, most=LARGEST_LABELS)

    @property
    def dimension(self) -> int:
        return (self.directions + 1) * self.labels

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of an outer product are the products of the norms.

        With a = 1 - p_y, y the record's label, the entries of e - p are a and others that sum to -a: its L1 norm is 2a,
        its largest entry a, its length at least a sqrt(C / (C - 1)) and after shortening at most 1. All three bounds
        are reached where the other labels share all of the probability alike; |u| is longest in L1 where q's entries
        are equal, in Linf where q has only one.

        >>> round(ClassifierGradients(directions=64, labels=2).sensitivity.l1, 3)
        10.505
        """
        most = math.sqrt((self.labels - 1) / self.labels)
        return Sensitivity(2.0 * most * (COUNT + PLACE * math.sqrt(self.directions)), 1.0, most * PLACE)

    @property
    def base_scale(self) -> int:
        return GRADIENT_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[ClassifierGradients, Inputs]:
        labels, width = max(2, facts.labels + choose.integer(0, 2)), facts.embedding_size + 1  # more labels, too
        statistic = cls(directions=choose.integer(1, 9), labels=labels)
        return statistic, (
            ("classifier", choose.numbers((width, labels), COEFFICIENTS)),
            ("projections", choose.numbers((width, statistic.directions), COEFFICIENTS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifier", "projections"))
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        for name, columns in (("classifier", self.labels), ("projections", self.directions)):
            published = public.numbers_of(name)
            check_shape(name, published, (facts.embedding_size + 1, columns))
            COEFFICIENTS.check(name, published)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        classifier, projections = public.numbers_of("classifier"), public.numbers_of("projections")
        embeddings, labels = records.embeddings, labels_within(records.labels, self.labels)

        def compute(asked: Int64) -> Float64:
            x = embeddings[asked].astype(np.float64)
            place = places(x, projections[:-1], projections[-1])
            matrix: Float64 = place[:, :, None] * _errors(x, labels[asked], classifier)[:, None, :]
            return matrix.reshape(len(asked), self.dimension)

        return Rows(compute, records.units)


def _errors(embeddings: Float64, labels: Int64, classifier: Float64) -> Float64:
    """e - p of a length of 1 at most, float64 [m, C], zeros for a record without label; the logits are exact."""
    errors: Float64 = -softmax(embeddings @ classifier[:-1] + classifier[-1])
    known = labels >= 0
    errors[known, labels[known]] += 1.0
    errors[~known] = 0.0
    errors /= np.maximum(1.0, row_norms(errors))[:, None]
    return errors
