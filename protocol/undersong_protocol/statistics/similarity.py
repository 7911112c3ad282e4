"""Similarity of private records to the nearest text of each of two public corpora: how good is a corpus without labels?

The row is that of :class:`undersong_protocol.statistics.classifier_votes.ScoredComparison`, with a similarity in place
of the share of classifiers that are right, and counts the record beside it: without labels no other sum does.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_protocol.statistics.classifier_votes import SQUARE, scored_row
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.inputs import (
    WHOLE_NUMBERS,
    check_embeddings,
    check_labels,
    check_names,
    check_shape,
)
from undersong_protocol.statistics.interface import (
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    register,
)

COUNT = 0.5  # value of a record's last coordinate, which counts the records
SIMILARITY_SCALE = 4096  # integer units: a similarity is rounded toward zero
FIRST, SECOND = 1, 2  # bits of a text's number in "corpora": it belongs to the first corpus, to the second, or to both
MEMBERSHIPS = 4


@register
@dataclass(frozen=True)
class ScoredSimilarity(Statistic, question="nearest"):
    """Tells how similar records are to the nearest text of two public corpora, and how many records there are.

    With a and b the largest inner products of a record's embedding with the second and with the first corpus's texts,
    clipped to [0, 1], its row is (d, s, SQUARE d^2, COUNT), d = a - b and s = a + b - 1. Since |d| + |s| <= 1, the
    longest row is that of |d| = 1. The mean similarity to the second corpus is (1 + S / m + D / m) / 2 for m records, S
    and D being the sums.

    Attributes:
        candidates: largest number of texts.

    Public inputs: embeddings "candidates"; numbers "corpora", FIRST for a text of the first corpus, SECOND for one of
    the second, their sum for one of both, 0 for one of neither.
    """

    name: ClassVar[str] = "scored_similarity"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how similar your records are to the nearest text of two sets of public texts, and how many records there are"
    )
    candidates: Number

    @property
    def dimension(self) -> int:
        return 4

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of the longest row.

        >>> round(ScoredSimilarity(candidates=9).sensitivity.l2, 3)
        1.225
        """
        return Sensitivity(1.0 + SQUARE + COUNT, math.sqrt(1.0 + SQUARE**2 + COUNT**2), 1.0)

    @property
    def base_scale(self) -> int:
        return SIMILARITY_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[ScoredSimilarity, Inputs]":
        candidate_count = choose.integer(1, 40)
        membership_bits = choose.rng.integers(0, MEMBERSHIPS, candidate_count).astype(np.float64)
        return cls(candidate_count + choose.integer(0, 5)), (
            ("candidates", choose.embeddings(candidate_count, facts)),
            ("corpora", GridNumbers(membership_bits, WHOLE_NUMBERS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",), numbers=("corpora",))
        candidates = public.embeddings_of("candidates")
        membership_bits = public.numbers_of("corpora")
        check_embeddings("candidates", candidates, facts, labels=0, most=self.candidates)
        check_shape("corpora", membership_bits, (len(candidates.values),))
        WHOLE_NUMBERS.check("corpora", membership_bits)
        check_labels("corpora", membership_bits.astype(np.int64), MEMBERSHIPS, least=0)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        membership_bits = public.numbers_of("corpora").astype(np.int64)
        candidate_embeddings = public.embeddings_of("candidates").values
        in_corpus = [(membership_bits & corpus_bit) > 0 for corpus_bit in (FIRST, SECOND)]
        embeddings = records.embeddings

        def compute(row_numbers: Int64) -> Float64:
            # Inner products of quantised embeddings are exact in float32, so that a row does not depend on the others.
            similarities = (embeddings[row_numbers] @ candidate_embeddings.T).astype(np.float64)
            nearest_similarities = [
                similarities[:, is_member].max(axis=1, initial=0.0).clip(max=1.0) for is_member in in_corpus
            ]
            return np.column_stack([scored_row(*nearest_similarities), np.full(len(row_numbers), COUNT)])

        return Rows(compute, records.units, width=max(self.candidates, self.dimension))
