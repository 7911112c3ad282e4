"""The sum of a public classifier's probabilities for the records, whatever their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.fixed_order import softmax
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import COEFFICIENTS, check_embedding_size, check_names, check_shape
from undersong_protocol.statistics.interface import (
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from undersong_protocol.statistics.projections import COUNT, PLACE
from undersong_protocol.statistics.registry import positive_integer, register

# Integer units. Of many classes most have a probability below 1/K for most records, and rounding toward zero takes
# from these coordinates the same way: of 8 000 records up to 2 from a sum's coordinate, at a scale of 1024 up to 8.
PROBABILITY_SCALE = 4096


@register
@dataclass(frozen=True)
class ClassifierProbabilities(Statistic):
    """A record's row is (COUNT, PLACE sqrt(K / (K-1)) (p - 1/K)), p the probabilities of K classes for its embedding.

    The classes are whatever the classifier tells apart, such as the authors of public texts; they are not the task's
    labels. Every record counts, whether it has a label or not. Centred, since probabilities sum to 1 whatever the
    record is, so that their mean tells nothing: |p - 1/K|^2 = |p|^2 - 1/K is at most (K-1)/K whatever is published,
    and the factor makes 1 of that.

    Attributes:
        classes: K, at least 2.

    Public input: numbers "classifier", [d + 1, K], on the grid ``inputs.COEFFICIENTS``: weights, then the bias as the
    last row. The sum is float64 [K + 1], COUNT times the number of records first.
    """

    name: ClassVar[str] = "classifier_probabilities"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "what a public classifier takes your records for, such as which of a few public writers' texts they look"
        " most like: its probabilities, summed over all of your records, and how many they are"
    )
    classes: int

    def __post_init__(self) -> None:
        positive_integer(self.name, "classes", self.classes, least=2)

    @property
    def dimension(self) -> int:
        return self.classes + 1

    @property
    def sensitivity(self) -> Sensitivity:
        """COUNT^2 + PLACE^2 = 1. All three norms are convex in p, so that each is largest where one class has p = 1.

        There p - 1/K is (K-1)/K once and -1/K in K-1 places; for K >= 2 the first is more than COUNT in the row.

        >>> ClassifierProbabilities(classes=3).sensitivity
        Sensitivity(l1=1.914213562373095, l2=1.0, linf=0.7071067811865475)
        """
        largest = PLACE * math.sqrt((self.classes - 1) / self.classes)
        return Sensitivity(COUNT + 2.0 * largest, 1.0, largest)

    @property
    def base_scale(self) -> int:
        return PROBABILITY_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[ClassifierProbabilities, Inputs]:
        statistic = cls(classes=choose.integer(2, 9))
        shape = (facts.embedding_size + 1, statistic.classes)
        return statistic, (("classifier", choose.numbers(shape, COEFFICIENTS)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifier",))
        check_embedding_size(self.name, facts)
        classifier = public.numbers_of("classifier")
        check_shape("classifier", classifier, (facts.embedding_size + 1, self.classes))
        COEFFICIENTS.check("classifier", classifier)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        classifier, embeddings = public.numbers_of("classifier"), records.embeddings
        factor = PLACE * math.sqrt(self.classes / (self.classes - 1))

        def compute(asked: Int64) -> Float64:
            p = softmax(embeddings[asked].astype(np.float64) @ classifier[:-1] + classifier[-1])  # of exact logits
            return np.hstack([np.full((len(asked), 1), COUNT), factor * (p - 1.0 / self.classes)])

        return Rows(compute, records.units)
