"""Votes of private records for the generators whose texts lie nearest to them: is this our kind of text?

A record spreads one vote evenly over the nearest third of the texts of its label, and a generator gets the part of the
vote that its texts have. A third, rather than the nearest text alone: beside a very good generator a weaker one that is
on topic must not look like rubbish.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.inputs import (
    WHOLE_NUMBERS,
    check_embeddings,
    check_labels,
    check_names,
    check_shape,
    check_task_labels,
)
from undersong_protocol.statistics.interface import (
    Between,
    LabelCount,
    Number,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    register,
)

NEAREST_PART = 3  # a record's vote is spread over the nearest third of the texts
VOTE_SCALE = 4096  # integer units per vote; fine enough that rounding toward zero takes little of a part of a vote
LARGEST_GENERATORS = 1000
WRITER_ASIDE = "(a program that gives the run its texts)"  # in the clause that hospitals read


@register
@dataclass(frozen=True)
class SupportVotes(Statistic, question="nearest"):
    """Counts, for each of K generators, the records' votes for its texts.

    With n texts of a record's label, the record gives 1 / ceil(n / 3) to each of the ceil(n / 3) texts of that label
    with the largest inner product with its embedding, ties to the lower index, and a generator gets the sum of its
    texts' parts. The parts of a record sum to one, so that L1, L2 and Linf are 1. A record without label in a task with
    labels, or with a label that has no text, has no vote.

    Attributes:
        generators: K.
        candidates: largest number of texts.
        labels: number of labels of the task; 0 compares every record with every text.

    Public inputs: embeddings "candidates"; numbers "authors", the number of each one's generator, whole and below K.
    """

    name: ClassVar[str] = "support_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        f"for each writer {WRITER_ASIDE}, what share of the texts most like your records comes from it"
    )
    generators: Annotated[int, Between(1, LARGEST_GENERATORS)]
    candidates: Number
    labels: LabelCount = 0

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        if not writers:
            return ""
        return f"what share of the texts most like your records comes from the writer {writers[0]!r}"

    @property
    def dimension(self) -> int:
        return self.generators

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of a vote that goes to one generator's texts alone, which is the longest row.

        >>> SupportVotes(generators=3, candidates=9).sensitivity
        Sensitivity(l1=1.0, l2=1.0, linf=1.0)
        """
        return Sensitivity(1.0, 1.0, 1.0)

    @property
    def base_scale(self) -> int:
        return VOTE_SCALE

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[SupportVotes, Inputs]":
        candidate_count = choose.integer(1, 40)
        generator_count = choose.integer(1, 4)
        authors = choose.rng.integers(0, generator_count, candidate_count).astype(np.float64)
        statistic = cls(generator_count, candidate_count + choose.integer(0, 5), choose.labels(facts))
        return statistic, (
            ("candidates", choose.embeddings(candidate_count, facts)),
            ("authors", GridNumbers(authors, WHOLE_NUMBERS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, embeddings=("candidates",), numbers=("authors",))
        check_task_labels(self.name, self.labels, facts)
        candidates = public.embeddings_of("candidates")
        authors = public.numbers_of("authors")
        check_embeddings("candidates", candidates, facts, labels=self.labels, most=self.candidates)
        check_shape("authors", authors, (len(candidates.values),))
        WHOLE_NUMBERS.check("authors", authors)
        check_labels("authors", authors.astype(np.int64), self.generators, least=0)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        candidates = public.embeddings_of("candidates")
        authors = public.numbers_of("authors").astype(np.int64)
        embeddings = records.embeddings
        record_labels = records.labels

        def compute(row_numbers: Int64) -> Float64:
            votes = np.zeros((len(row_numbers), self.generators))
            for label in range(max(1, self.labels)):
                if self.labels:
                    is_of_label = record_labels[row_numbers] == label
                    label_candidates = np.flatnonzero(candidates.labels == label)
                else:
                    is_of_label = np.ones(len(row_numbers), dtype=np.bool_)
                    label_candidates = np.arange(len(authors))
                if is_of_label.any() and len(label_candidates):
                    # Inner products of quantised embeddings are exact in float32, so that rows are independent.
                    similarities = embeddings[row_numbers[is_of_label]] @ candidates.values[label_candidates].T
                    votes[is_of_label] = self._parts(similarities, authors[label_candidates])
            return votes

        return Rows(compute, records.units, width=max(self.candidates, self.generators))

    def _parts(self, near: Any, authors: Int64) -> Float64:
        """Returns each generator's part of m records' votes, float64 [m, K].

        Args:
            near: inner products of the records with the n texts of their label, [m, n].
            authors: number of each text's generator, int64 [n].
        """
        nearest_count = -(-len(authors) // NEAREST_PART)
        nearest_authors = authors[np.argsort(-near, axis=1, kind="stable")[:, :nearest_count]]
        counts_by_generator = [
            np.count_nonzero(nearest_authors == generator_index, axis=1) for generator_index in range(self.generators)
        ]
        vote_parts: Float64 = np.stack(counts_by_generator, axis=1) / nearest_count
        return vote_parts
