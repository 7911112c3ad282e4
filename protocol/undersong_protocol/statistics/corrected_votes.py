"""Nearest votes, corrected for hubs: one histogram over candidates, by rank or all of one weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float64, Int64
from undersong_protocol.statistics import hubness
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import check_embeddings, check_names, check_shape, check_task_labels
from undersong_protocol.statistics.interface import (
    COUNT_SCALE,
    Between,
    LabelCount,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
)
from undersong_protocol.statistics.registry import register
from undersong_protocol.statistics.votes import LARGEST_Q


@register
@dataclass(frozen=True)
class CorrectedVotes(Statistic, question="nearest"):
    """Weights 2^(1-q) for the q-th best candidate of a record's label, q = 1..Q, by hub-corrected similarity.

    Attributes:
        q: votes per record, Q; fewer where its label has fewer candidates.
        candidates: how many the plan allows for.
        labels: labels of the task; 0 compares every record with every candidate.

    Public inputs: embeddings "candidates", numbers "hubness correction" (:func:`hubness.hubness_correction`).
    """

    name: ClassVar[str] = "corrected_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each candidate text, how many of your records have it among their nearest ones, corrected for texts"
        " that are near to everything"
    )
    q: Annotated[int, Between(1, LARGEST_Q)]
    candidates: Number
    labels: LabelCount = 0

    @property
    def dimension(self) -> int:
        return self.candidates

    @property
    def weights(self) -> Float64:
        """Weights of a record's votes, best candidate first, float64 [q]; multiples of 1 / :attr:`base_scale`."""
        return np.exp2(-np.arange(self.q, dtype=np.float64))

    @property
    def sensitivity(self) -> Sensitivity:
        """All votes of one record: 2 - 2^(1-Q), sqrt((4 - 4^(1-Q)) / 3) and 1.

        >>> round(CorrectedVotes(q=8, candidates=1).sensitivity.l2, 5)
        1.15469
        """
        weights = self.weights
        return Sensitivity(math.fsum(weights), math.sqrt(math.fsum(weights * weights)), 1.0)

    @property
    def base_scale(self) -> int:
        return 1 << (self.q - 1)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> tuple[CorrectedVotes, Inputs]:
        count = choose.integer(1, 40)
        statistic = cls(q=choose.one_of([1, 3, 8]), candidates=count, labels=choose.labels(facts))
        return statistic, (
            ("candidates", choose.embeddings(count, facts)),
            ("hubness correction", choose.numbers((count,), hubness.CORRECTION)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",), numbers=("hubness correction",))
        check_task_labels(self.name, self.labels, facts)
        given, correction = public.embeddings_of("candidates"), public.numbers_of("hubness correction")
        check_embeddings("candidates", given, facts, labels=self.labels, most=self.candidates)
        check_shape("hubness correction", correction, (len(given.values),))
        hubness.CORRECTION.check("hubness correction", correction)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings, labels = records.embeddings, records.labels if self.labels else None

        def compute(asked: Int64) -> sp.csr_array[Any]:
            columns = hubness.nearest(embeddings[asked], None if labels is None else labels[asked], public, self.q)
            return at_columns(columns, self.weights, self.dimension)

        return Rows(compute, records.units, width=self.q)


@register
@dataclass(frozen=True)
class EqualVotes(CorrectedVotes):
    """A whole vote for each of the Q best candidates: who asks where records lie, and not for the best texts.

    Relative to a record's votes the L2 norm, and with it the noise, is 1 / sqrt(Q): 0.354 for eight, 0.58 where votes
    halve from rank to rank. Attributes and public inputs are those of :class:`CorrectedVotes`.
    """

    name: ClassVar[str] = "equal_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each candidate text, how many of your records have it among their nearest ones, each of which counts"
        " the same, corrected for texts that are near to everything"
    )

    @property
    def weights(self) -> Float64:
        return np.ones(self.q)

    @property
    def sensitivity(self) -> Sensitivity:
        """All votes of one record: Q, sqrt(Q) and 1.

        >>> EqualVotes(q=9, candidates=1).sensitivity.l2
        3.0
        """
        return super().sensitivity

    @property
    def base_scale(self) -> int:
        return COUNT_SCALE
