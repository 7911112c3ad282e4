"""Top-Q votes: every private record votes for its nearest and against its furthest candidates (WASP; Aug-PE with Q=1).

Source: Zou et al. 2025, section 3.2; Lin et al. 2024 (nearest votes). Deviation: nearest and furthest votes stand in
separate coordinates of one release, which costs sqrt(2) in L2 instead of up to 2.12 for one vector
(docs/privacy.md, "Statistics").
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Int64
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import check_embeddings, check_names, check_task_labels
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    LabelledEmbeddings,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    at_columns,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest
from undersong_protocol.statistics.registry import register

LARGEST_Q = 30


@register
@dataclass(frozen=True)
class TopQVotes(Statistic, question="nearest"):
    """Weights 2^(Q-q) for the q-th nearest and the q-th furthest candidate of a record's label, q = 1..Q.

    The natural unit is one full vote, 2^(Q-1). A record with k < Q candidates casts k votes of each kind, one without
    candidates or (in a task with labels) without label none.

    Attributes:
        q: votes per record, Q.
        candidates: how many the plan allows for; where fewer are published the coordinates after them stay empty.
        labels: labels of the task; 0 compares every record with every candidate.
        furthest: whether furthest votes are cast too, in coordinates ``candidates`` and up.

    Public input: embeddings named "candidates".
    """

    name: ClassVar[str] = "top_q_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each candidate text, how many of your records have it among their nearest (and furthest) ones"
    )
    q: Annotated[int, Between(1, LARGEST_Q)]
    candidates: Number
    labels: LabelCount = 0
    furthest: bool = True

    @property
    def dimension(self) -> int:
        return (2 if self.furthest else 1) * self.candidates

    @property
    def sensitivity(self) -> Sensitivity:
        """L1 / L2 / Linf of all votes of one record: 2^Q - 1, sqrt((4^Q - 1) / 3), 2^(Q-1), over 2^(Q-1).

        >>> round(TopQVotes(q=8, candidates=1).sensitivity.l2, 5)
        1.63298
        """
        kinds = 2 if self.furthest else 1
        weights = [2.0 ** (1 - rank) for rank in range(1, self.q + 1)]
        squares = math.fsum(weight * weight for weight in weights)
        return Sensitivity(kinds * math.fsum(weights), math.sqrt(kinds * squares), 1.0)

    @property
    def base_scale(self) -> int:
        return 1 << (self.q - 1)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[TopQVotes, Inputs]":
        count = choose.integer(0, 40)
        statistic = cls(
            q=choose.one_of([1, 3, 8]),
            candidates=count + choose.integer(0 if count else 1, 5),
            labels=choose.labels(facts),
            furthest=choose.yes(),
        )
        return statistic, (("candidates", choose.embeddings(count, facts)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",))
        check_task_labels(self.name, self.labels, facts)
        given = public.embeddings_of("candidates")
        check_embeddings("candidates", given, facts, labels=self.labels, most=self.candidates)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        given = public.embeddings_of("candidates")
        compared = self._compared(records, given, memory)
        kinds = 2 if self.furthest else 1
        weights = np.tile(2.0 ** -np.arange(self.q), kinds)

        def compute(asked: Int64) -> sp.csr_array[Any]:
            chosen = [compared.near[asked]]
            if self.furthest:
                far = compared.far[asked]
                chosen.append(np.where(far == NONE, NONE, far + self.candidates))
            return at_columns(np.hstack(chosen), weights, self.dimension)

        return Rows(compute, records.units, width=kinds * self.q)

    def _compared(self, records: RecordView, given: LabelledEmbeddings, memory: dict[str, Any]) -> NearestFurthest:
        """Every record compared with every candidate; those compared at an earlier request are not compared again."""
        key = f"{self.name}/{self.q}/{self.labels}/{self.furthest}"
        private = records.embeddings
        state: NearestFurthest | None
        state, known, seen = memory.pop(key, (None, None, None))  # put back when it is whole again
        if state is None or seen is not private or not _begins_with(given, known):
            labels = records.labels if self.labels else None
            state = NearestFurthest(private, labels, self.q, furthest=self.furthest)
        if state.candidates < len(given.values):
            state.extend(given.values[state.candidates :], given.labels[state.candidates :] if self.labels else None)
        memory[key] = (state, given, private)
        return state


def _begins_with(given: LabelledEmbeddings, known: LabelledEmbeddings) -> bool:
    """True if the candidates compared before are the first ones of this request.

    The values themselves are kept and compared: a hash of 6 000 of them costs five times as much, at every sum.
    """
    count = len(known.values)
    return given is known or (
        count <= len(given.values)
        and np.array_equal(given.labels[:count], known.labels)
        and np.array_equal(given.values[:count], known.values)
    )
