"""Statistics of votes by private records for their nearest candidates, and against the furthest.

:class:`TopQVotes` weighs votes by rank (WASP; Aug-PE with Q = 1). :class:`EqualVotes` weighs them equally and corrects
for hubs, candidates that are near to many records.

Source: Zou et al. 2025, section 3.2; Lin et al. 2024 (nearest votes). Deviation: nearest and furthest votes stand in
separate coordinates of one release, which costs sqrt(2) in L2 instead of up to 2.12 for one vector
(docs/privacy.md, "Statistics").
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.examples import Chooser, Inputs
from undersong_protocol.statistics.inputs import Grid, check_embeddings, check_names, check_shape, check_task_labels
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    LabelledEmbeddings,
    Matrix,
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
from undersong_protocol.statistics.nearest import MOST_AT_ONCE, NONE, Candidates, NearestFurthest

LARGEST_Q = 30


@register
@dataclass(frozen=True)
class TopQVotes(Statistic, question="nearest"):
    """Counts votes per candidate: each record votes for the Q nearest and the Q furthest candidates of its label.

    The q-th nearest and the q-th furthest get the weight 2^(Q-q), q = 1..Q. The natural unit is one full vote, 2^(Q-1).
    A record with k < Q candidates casts k votes of each kind. A record without label casts no vote in a task with
    labels.

    Attributes:
        q: Q, votes per record and kind.
        candidates: largest number of candidates; if fewer are published, the coordinates after them stay 0.
        labels: number of labels of the task; 0 compares every record with every candidate.
        furthest: True counts the furthest votes too, in coordinates ``candidates`` and up.

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
    def asks(self) -> str:
        if self.furthest:
            kind_words = "nearest or among their furthest ones"
        else:
            kind_words = "nearest ones"
        return f"for each candidate text, how many of your records have it among their {kind_words}"

    @property
    def dimension(self) -> int:
        return (2 if self.furthest else 1) * self.candidates

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of one record's votes, in full votes; nearest votes alone have L2 sqrt((4^Q - 1) / 3) / 2^(Q-1).

        >>> round(TopQVotes(q=8, candidates=1).sensitivity.l2, 5)
        1.63298
        """
        kind_count = 2 if self.furthest else 1
        rank_weights = [2.0 ** (1 - rank) for rank in range(1, self.q + 1)]
        squared_sum = math.fsum(weight * weight for weight in rank_weights)
        return Sensitivity(kind_count * math.fsum(rank_weights), math.sqrt(kind_count * squared_sum), 1.0)

    @property
    def votes_of_a_record(self) -> int:
        return (2 if self.furthest else 1) * self.q

    @property
    def base_scale(self) -> int:
        return 1 << (self.q - 1)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[TopQVotes, Inputs]":
        candidate_count = choose.integer(0, 40)
        statistic = cls(
            q=choose.one_of([1, 3, 8]),
            candidates=candidate_count + choose.integer(0 if candidate_count else 1, 5),
            labels=choose.labels(facts),
            furthest=choose.yes(),
        )
        return statistic, (("candidates", choose.embeddings(candidate_count, facts)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",))
        check_task_labels(self.name, self.labels, facts)
        candidates = public.embeddings_of("candidates")
        check_embeddings("candidates", candidates, facts, labels=self.labels, most=self.candidates)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        candidates = public.embeddings_of("candidates")
        neighbour_table = self._compare_records(records, candidates, memory)
        kind_count = 2 if self.furthest else 1
        rank_weights = np.tile(2.0 ** -np.arange(self.q), kind_count)

        def compute(row_numbers: Int64) -> Matrix:
            vote_indices = [neighbour_table.near[row_numbers]]
            if self.furthest:
                furthest_indices = neighbour_table.far[row_numbers]
                vote_indices.append(np.where(furthest_indices == NONE, NONE, furthest_indices + self.candidates))
            return at_columns(np.hstack(vote_indices), rank_weights, self.dimension)

        return Rows(compute, records.units, width=kind_count * self.q)

    def _compare_records(
        self, records: RecordView, candidates: LabelledEmbeddings, memory: dict[str, Any]
    ) -> NearestFurthest:
        """Compares every record with every candidate, but for candidates that an earlier request has compared."""
        memory_key = f"{self.name}/{self.q}/{self.labels}/{self.furthest}"
        private_embeddings = records.embeddings
        nearest_state: NearestFurthest | None
        # The state is put back once it is complete, so that a comparison that fails leaves none that is half done.
        nearest_state, known_candidates, known_embeddings = memory.pop(memory_key, (None, None, None))
        if (
            nearest_state is None
            or known_embeddings is not private_embeddings
            or not _begins_with(candidates, known_candidates)
        ):
            record_labels = records.labels if self.labels else None
            nearest_state = NearestFurthest(private_embeddings, record_labels, self.q, furthest=self.furthest)
        while nearest_state.candidates < len(candidates.values):
            nearest_state.add(_candidate_block(candidates, nearest_state.candidates, bool(self.labels)))
        memory[memory_key] = (nearest_state, candidates, private_embeddings)
        return nearest_state


@lru_cache(maxsize=1)
def _candidate_block(embeddings: LabelledEmbeddings, start: int, labelled: bool) -> Candidates:
    """Returns the candidates from number ``start`` on that are compared at once, one object for simulated parties."""
    block_rows = slice(start, start + MOST_AT_ONCE)
    return Candidates(embeddings.values[block_rows], embeddings.labels[block_rows] if labelled else None)


def _begins_with(candidates: LabelledEmbeddings, earlier: LabelledEmbeddings) -> bool:
    """Returns True if the candidates compared before are the first ones of this request.

    The values themselves are kept and compared: a hash of 6 000 of them costs five times as much, at every sum.
    """
    earlier_count = len(earlier.values)
    return candidates is earlier or (
        earlier_count <= len(candidates.values)
        and np.array_equal(candidates.labels[:earlier_count], earlier.labels)
        and np.array_equal(candidates.values[:earlier_count], earlier.values)
    )


# Hub-corrected nearest candidates: without the correction, candidates near everything would collect most votes.
# A candidate's score for a record is 2 cos(z, x) - r(x), where r(x) is its mean similarity to its nearest fellow
# candidates, computed from public data (CSLS: Conneau et al. 2018, section 2.3). Whatever the correction, a record
# still casts the same votes, so that no sensitivity changes.

NEIGHBOURS = 10
# Scores 2 cos(z, x) of quantised embeddings are multiples of 2^-21 of at most 2. With r on the same grid and at most 1,
# float32 holds every score and every partial sum of the matrix product exactly, so that every party and every rerun
# finds the same nearest candidates.
CORRECTION = Grid(bits=21, largest=1.0)
BLOCK_ELEMENTS = 1 << 22


def hubness_correction(candidates: Float32, labels: Int64, *, neighbour_count: int = NEIGHBOURS) -> Float64:
    """Returns each candidate's mean inner product with its nearest neighbours of the same label, float64 [N].

    Subtracted from similarities, it corrects for candidates that are near to everything (hubs). It is rounded to the
    grid of public numbers; a candidate without others of its label has 0. The coordinator computes it from public data.

    Args:
        candidates: embeddings, float32 [N, d].
        neighbour_count: number of nearest neighbours in the mean.
    """
    similarities = np.zeros(len(candidates))
    for label in np.unique(labels):
        row_numbers = np.flatnonzero(labels == label)
        if len(row_numbers) < 2:
            continue
        first_neighbour = len(row_numbers) - min(neighbour_count, len(row_numbers) - 1)
        block_size = max(1, BLOCK_ELEMENTS // len(row_numbers))
        for block_start in range(0, len(row_numbers), block_size):
            block_row_numbers = row_numbers[block_start : block_start + block_size]
            block_products = candidates[block_row_numbers] @ candidates[row_numbers].T
            # A candidate is no neighbour of itself.
            block_products[np.arange(len(block_row_numbers)), block_start + np.arange(len(block_row_numbers))] = -np.inf
            nearest_products = np.partition(block_products, first_neighbour, axis=1)[:, first_neighbour:]
            similarities[block_row_numbers] = nearest_products.mean(axis=1, dtype=np.float64)
    return CORRECTION.quantised(similarities)


def nearest(embeddings: Float32, labels: Int64 | None, public: PublicInputs, q: int) -> Int64:
    """Returns the q candidates of each record's label with the highest hub-corrected similarity, int64 [M, q].

    They come best first, ties to the lower index, filled up with ``NONE``.

    Args:
        embeddings: the records' embeddings, float32 [M, d].
        labels: the records' labels, int64 [M]; None compares every record with every candidate.
        public: inputs with embeddings "candidates" and numbers "hubness correction".
    """
    candidates = public.embeddings_of("candidates")
    correction = public.numbers_of("hubness correction").astype(np.float32)
    neighbour_table = NearestFurthest(embeddings, labels, q, furthest=False)
    neighbour_table.extend(candidates.values, None if labels is None else candidates.labels, correction)
    return neighbour_table.near


@register
@dataclass(frozen=True)
class EqualVotes(Statistic, question="nearest"):
    """Counts a whole vote for each of the Q candidates of a record's label with the highest hub-corrected similarity.

    It measures where records lie, rather than the best texts. The L2 norm of a record's votes, and with it the noise,
    is 1 / sqrt(Q) of their sum: 0.354 for eight votes, against 0.58 for votes that halve from rank to rank.

    Attributes:
        q: Q, votes per record; a record whose label has fewer candidates casts fewer.
        candidates: largest number of candidates.
        labels: number of labels of the task; 0 compares every record with every candidate.

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
        """The norms of one record's votes: L1 Q, L2 sqrt(Q), Linf 1.

        >>> EqualVotes(q=9, candidates=1).sensitivity.l2
        3.0
        """
        return Sensitivity(float(self.q), math.sqrt(self.q), 1.0)

    @property
    def votes_of_a_record(self) -> int:
        return self.q

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[EqualVotes, Inputs]":
        candidate_count = choose.integer(1, 40)
        statistic = cls(q=choose.one_of([1, 3, 8]), candidates=candidate_count, labels=choose.labels(facts))
        return statistic, (
            ("candidates", choose.embeddings(candidate_count, facts)),
            ("hubness correction", choose.numbers((candidate_count,), CORRECTION)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",), numbers=("hubness correction",))
        check_task_labels(self.name, self.labels, facts)
        candidates = public.embeddings_of("candidates")
        correction = public.numbers_of("hubness correction")
        check_embeddings("candidates", candidates, facts, labels=self.labels, most=self.candidates)
        check_shape("hubness correction", correction, (len(candidates.values),))
        CORRECTION.check("hubness correction", correction)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        nearest_candidates = nearest(records.embeddings, records.labels if self.labels else None, public, self.q)

        def compute(row_numbers: Int64) -> Matrix:
            return at_columns(nearest_candidates[row_numbers], np.ones(self.q), self.dimension)

        return Rows(compute, records.units, width=self.q)
