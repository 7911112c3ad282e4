"""Votes for those of K public classifiers that label a record correctly, centred: K coordinates."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.workers import row_sums, softmax
from undersong_protocol.limits import LARGEST_LABELS
from undersong_protocol.statistics.examples import Chooser, GridNumbers, Inputs
from undersong_protocol.statistics.inputs import (
    COEFFICIENTS,
    WHOLE_NUMBERS,
    check_embedding_size,
    check_labels,
    check_names,
    check_shape,
    check_task_labels,
    labels_within,
)
from undersong_protocol.statistics.interface import (
    Between,
    Matrix,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
    in_blocks,
)
from undersong_protocol.statistics.registry import register

NEVER = -COEFFICIENTS.largest  # bias of a label that a classifier has not seen


@register
@dataclass(frozen=True)
class ClassifierVotes(Statistic, question="classifiers"):
    """A record's row is s - mean(s), s_k in [0, 1] the probability that classifier k gives to the record's label.

    Centred, since only the differences between classifiers tell them apart: for s in [0, 1]^K the centred vector is
    longest at a vertex of the cube with half of the classifiers right, so L2 <= sqrt(floor(K/2) ceil(K/2) / K), about
    sqrt(K) / 2 instead of sqrt(K). A record without label casts nothing.

    Attributes:
        classifiers: K, at least 2.
        labels: labels of the task, C, at least 2.
        hard: whether s is 1 for a correct and 0 for a wrong answer instead of the probability.

    Public input: numbers "classifiers", [K, d + 1, C], on the grid ``inputs.COEFFICIENTS``: weights, then the bias as
    the last row; a label that a classifier never saw has the bias ``NEVER``.
    """

    name: ClassVar[str] = "classifier_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "for each of a few public classifiers, how well it labels your records"
    classifiers: Annotated[int, Between(2)]
    labels: Annotated[int, Between(2, LARGEST_LABELS)]
    hard: bool = True

    @property
    def dimension(self) -> int:
        return self.classifiers

    @property
    def sensitivity(self) -> Sensitivity:
        """Norms at the longest vertex: h right of K gives h (K - h) / K squared.

        >>> ClassifierVotes(classifiers=4, labels=2).sensitivity.l2
        1.0
        """
        k = self.classifiers
        pairs = (k // 2) * (k - k // 2)
        return Sensitivity(2 * pairs / k, math.sqrt(pairs / k), (k - 1) / k)

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[ClassifierVotes, Inputs]":
        labels, classifiers = max(2, facts.labels), choose.integer(2, 5)
        shape = (classifiers, facts.embedding_size + 1, labels)
        statistic = cls(classifiers=classifiers, labels=labels, hard=choose.yes())
        return statistic, (("classifiers", choose.numbers(shape, COEFFICIENTS)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifiers",))
        self._check_classifiers(public, facts)

    def _check_classifiers(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        parameters = public.numbers_of("classifiers")
        check_shape("classifiers", parameters, (self.classifiers, facts.embedding_size + 1, self.labels))
        COEFFICIENTS.check("classifiers", parameters)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        parameters = public.numbers_of("classifiers")
        embeddings, labels = records.embeddings, labels_within(records.labels, self.labels)

        def compute(asked: Int64) -> Matrix:
            known = labels[asked] >= 0
            own = np.where(known, labels[asked], 0)
            scores = self._scores(embeddings[asked].astype(np.float64), own, parameters)
            mean = row_sums(scores) / self.classifiers
            return (scores - mean[:, None]) * known[:, None]

        return Rows(compute, records.units)

    def _scores(self, embeddings: Float64, labels: Int64, parameters: Float64) -> Float64:
        """s, float64 [m, K]; the logits are exact."""
        result = np.zeros((len(embeddings), self.classifiers))
        for k, head in enumerate(parameters):
            logits = embeddings @ head[:-1] + head[-1]
            if self.hard:
                result[:, k] = logits.argmax(axis=1) == labels
            else:
                result[:, k] = softmax(logits)[np.arange(len(labels)), labels]
        return result


@register
@dataclass(frozen=True)
class ClassifierVotesInBlocks(ClassifierVotes):
    """The row of :class:`ClassifierVotes` in the block of the record's label, of C blocks of K coordinates.

    Which labels share a block is public and is said when the sum is asked for: all labels in one block are the sum of
    :class:`ClassifierVotes` and nothing beside it, a block for each label tells classifiers apart label by label. A
    record stands in one block whatever is published, so the bounds stay.

    Public inputs: "classifiers", as there; numbers "blocks", [C], the block of each label, a whole number below C.
    """

    name: ClassVar[str] = "classifier_votes_in_blocks"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "for each of a few public classifiers, how well it labels your records, for the labels of the task one by"
        " one or several together"
    )

    @property
    def dimension(self) -> int:
        return self.classifiers * self.labels

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[ClassifierVotesInBlocks, Inputs]":
        labels, classifiers = max(2, facts.labels + choose.integer(0, 2)), choose.integer(2, 5)  # more labels, too
        blocks = choose.one_of([np.zeros(labels), np.arange(labels), choose.rng.integers(0, labels, labels)])
        return cls(classifiers=classifiers, labels=labels, hard=choose.yes()), (
            ("classifiers", choose.numbers((classifiers, facts.embedding_size + 1, labels), COEFFICIENTS)),
            ("blocks", GridNumbers(blocks.astype(np.float64), WHOLE_NUMBERS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifiers", "blocks"))
        self._check_classifiers(public, facts)
        blocks = public.numbers_of("blocks")
        check_shape("blocks", blocks, (self.labels,))
        WHOLE_NUMBERS.check("blocks", blocks)
        check_labels("blocks", blocks.astype(np.int64), self.labels, least=0)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        within = super().rows(records, public, memory)
        labels = labels_within(records.labels, self.labels)
        block = public.numbers_of("blocks").astype(np.int64)[np.where(labels >= 0, labels, 0)]

        def compute(asked: Int64) -> Matrix:
            return in_blocks(np.asarray(within.take(asked)), block[asked], self.dimension)

        return Rows(compute, records.units, width=self.classifiers)
