"""Top-Q votes: every private record votes for its nearest and against its furthest candidates (WASP; Aug-PE with Q=1).

Equal votes go to the nearest ones, corrected for hubs.

Source: Zou et al. 2025, section 3.2; Lin et al. 2024 (nearest votes). Deviation: nearest and furthest votes stand in
separate coordinates of one release, which costs sqrt(2) in L2 instead of up to 2.12 for one vector
(docs/privacy.md, "Statistics").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import Grid, check_embeddings, check_names, check_shape, check_task_labels
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
    register,
)
from undersong_protocol.statistics.nearest import NONE, NearestFurthest, by_label

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


# Hub-corrected nearest candidates: without the correction, candidates near everything would collect most votes.
# A candidate's score for a record is 2 cos(z, x) - r(x), where r(x) is its mean similarity to its nearest fellow
# candidates, computed from public data (CSLS: Conneau et al. 2018, section 2.3). Whatever the correction, a record
# still casts the same votes, so that no sensitivity changes.

NEIGHBOURS = 10
# Scores 2 cos(z, x) of quantised embeddings are multiples of 2^-21 of at most 2: with r on the same grid and at most 1
# float32 holds every one exactly, so that every party and every rerun finds the same nearest candidates.
CORRECTION = Grid(bits=21, largest=1.0)
BLOCK_ELEMENTS = 1 << 22


def hubness_correction(candidates: Float32, labels: Int64, *, neighbours: int = NEIGHBOURS) -> Float64:
    """r(x): mean inner product of each candidate with its nearest others of its label, float64 [N] on the grid.

    A candidate without others of its label has 0. Public data only: the coordinator computes and publishes it.
    """
    found = np.zeros(len(candidates))
    for rows, block, products in products_with_others(candidates, labels):
        others = len(rows) - min(neighbours, len(rows) - 1)
        nearest = np.partition(products, others, axis=1)[:, others:]
        found[block] = nearest.mean(axis=1, dtype=np.float64)
    return CORRECTION.quantised(found)


def products_with_others(embeddings: Float32, labels: Int64) -> Iterator[tuple[Int64, Int64, Float32]]:
    """Inner products of texts with the others of their label, in blocks of at most ``BLOCK_ELEMENTS``.

    Each block: the label's positions [k], those of the block among them [b], and their products, float32 [b, k], with
    -inf where a text meets itself. A label of a single text is left out.
    """
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            continue
        step = max(1, BLOCK_ELEMENTS // len(rows))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            products = embeddings[block] @ embeddings[rows].T
            products[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
            yield rows, block, products


def nearest(embeddings: Float32, labels: Int64 | None, public: PublicInputs, q: int) -> Int64:
    """The q highest scoring candidates of each record's label, int64 [M, q], best first, ties to the lower index.

    ``NONE`` stands where a record has fewer. Public inputs: embeddings "candidates", numbers "hubness correction".

    Args:
        embeddings: of the records, float32 [M, d].
        labels: of the records, int64 [M]; None compares every record with every candidate.
    """
    given, correction = public.embeddings_of("candidates"), public.numbers_of("hubness correction").astype(np.float32)
    found = np.full((len(embeddings), q), NONE, dtype=np.int64)
    for rows, columns in by_label(labels, None if labels is None else given.labels, len(embeddings), len(given.values)):
        kept = min(q, len(columns))
        step = max(1, BLOCK_ELEMENTS // len(columns))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            scores = 2 * (embeddings[block] @ given.values[columns].T) - correction[columns]
            found[block, :kept] = columns[np.argsort(-scores, axis=1, kind="stable")[:, :kept]]
    return found


@register
@dataclass(frozen=True)
class EqualVotes(Statistic, question="nearest"):
    """A whole vote for each of the Q best candidates of a record's label, by hub-corrected similarity.

    It asks where records lie, and not for the best texts. Relative to a record's votes the L2 norm, and with it the
    noise, is 1 / sqrt(Q): 0.354 for eight, 0.58 where votes halve from rank to rank.

    Attributes:
        q: votes per record, Q; fewer where its label has fewer candidates.
        candidates: how many the plan allows for.
        labels: labels of the task; 0 compares every record with every candidate.

    Public inputs: embeddings "candidates", numbers "hubness correction" (:func:`hubness_correction`).
    """

    name: ClassVar[str] = "equal_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each candidate text, how many of your records have it among their nearest ones, each of which counts"
        " the same, corrected for texts that are near to everything"
    )
    q: Annotated[int, Between(1, LARGEST_Q)]
    candidates: Number
    labels: LabelCount = 0

    @property
    def dimension(self) -> int:
        return self.candidates

    @property
    def sensitivity(self) -> Sensitivity:
        """All votes of one record: Q, sqrt(Q) and 1.

        >>> EqualVotes(q=9, candidates=1).sensitivity.l2
        3.0
        """
        return Sensitivity(float(self.q), math.sqrt(self.q), 1.0)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[EqualVotes, Inputs]":
        count = choose.integer(1, 40)
        statistic = cls(q=choose.one_of([1, 3, 8]), candidates=count, labels=choose.labels(facts))
        return statistic, (
            ("candidates", choose.embeddings(count, facts)),
            ("hubness correction", choose.numbers((count,), CORRECTION)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",), numbers=("hubness correction",))
        check_task_labels(self.name, self.labels, facts)
        given, correction = public.embeddings_of("candidates"), public.numbers_of("hubness correction")
        check_embeddings("candidates", given, facts, labels=self.labels, most=self.candidates)
        check_shape("hubness correction", correction, (len(given.values),))
        CORRECTION.check("hubness correction", correction)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embeddings, labels = records.embeddings, records.labels if self.labels else None

        def compute(asked: Int64) -> sp.csr_array[Any]:
            columns = nearest(embeddings[asked], None if labels is None else labels[asked], public, self.q)
            return at_columns(columns, np.ones(self.q), self.dimension)

        return Rows(compute, records.units, width=self.q)
