"""Statistics on public classifiers: which of K classifiers label records correctly, and which of two corpora trains
better ones.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.models.workers import row_sums, softmax
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
    register,
)
from undersong_protocol.statistics.terms import words

NEVER = -COEFFICIENTS.largest  # bias of a label that a classifier has not seen


@register
@dataclass(frozen=True)
class ClassifierVotes(Statistic, question="classifiers"):
    """Compares K public classifiers by the probability s_k in [0, 1] that each gives to a record's own label.

    A record's row is s - mean(s), float64 [K]. It is centred because only differences tell classifiers apart, which
    halves the noise: for s in [0, 1]^K the centred vector is longest at a vertex of the cube with half of the
    classifiers right, so L2 <= sqrt(floor(K/2) ceil(K/2) / K), about sqrt(K) / 2 instead of sqrt(K). A record without
    label has no row.

    Attributes:
        classifiers: K, at least 2.
        labels: labels of the task, C, at least 2.
        hard: True makes s_k 1 for a correct and 0 for a wrong answer instead of the probability.

    Public input: numbers "classifiers", [K, d + 1, C], on the grid ``inputs.COEFFICIENTS``: weights on the d
    coordinates of an embedding, then the bias as the last row. A label that a classifier never saw has the bias
    ``NEVER``.
    """

    name: ClassVar[str] = "classifier_votes"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how well each of a few public classifiers (programs that sort texts by label) labels your records"
    )
    classifiers: Annotated[int, Between(2)]
    labels: Annotated[int, Between(2, LARGEST_LABELS)]
    hard: bool = True

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        return "how often one of these classifiers gives a record of yours the label that it has" if labels else ""

    @property
    def dimension(self) -> int:
        return self.classifiers

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of the longest row; a row with h of K classifiers right has the squared L2 norm h (K - h) / K.

        >>> ClassifierVotes(classifiers=4, labels=2).sensitivity.l2
        1.0
        """
        classifier_count = self.classifiers
        pair_count = (classifier_count // 2) * (classifier_count - classifier_count // 2)
        return Sensitivity(
            2 * pair_count / classifier_count,
            math.sqrt(pair_count / classifier_count),
            (classifier_count - 1) / classifier_count,
        )

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[ClassifierVotes, Inputs]":
        label_count = max(2, facts.labels)
        classifier_count = choose.integer(2, 5)
        classifiers_shape = (classifier_count, facts.embedding_size + 1, label_count)
        statistic = cls(classifiers=classifier_count, labels=label_count, hard=choose.yes())
        return statistic, (("classifiers", choose.numbers(classifiers_shape, COEFFICIENTS)),)

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifiers",))
        self._check_classifiers(public, facts)

    def _check_classifiers(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        coefficients = public.numbers_of("classifiers")
        check_shape("classifiers", coefficients, (self.classifiers, facts.embedding_size + 1, self.labels))
        COEFFICIENTS.check("classifiers", coefficients)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        coefficients = public.numbers_of("classifiers")
        embeddings = records.embeddings
        labels = labels_within(records.labels, self.labels)

        def compute(row_numbers: Int64) -> Matrix:
            has_label = labels[row_numbers] >= 0
            row_labels = np.where(has_label, labels[row_numbers], 0)
            classifier_scores = self._classifier_scores(
                embeddings[row_numbers].astype(np.float64), row_labels, coefficients
            )
            record_means = row_sums(classifier_scores) / self.classifiers
            return (classifier_scores - record_means[:, None]) * has_label[:, None]

        return Rows(compute, records.units)

    def _classifier_scores(self, embeddings: Float64, labels: Int64, coefficients: Float64) -> Float64:
        """Returns s of each record and classifier, float64 [m, K]; the logits are exact in float64."""
        label_scores = np.zeros((len(embeddings), self.classifiers))
        for classifier_index, classifier in enumerate(coefficients):
            logits = embeddings @ classifier[:-1] + classifier[-1]
            if self.hard:
                label_scores[:, classifier_index] = logits.argmax(axis=1) == labels
            else:
                label_scores[:, classifier_index] = softmax(logits)[np.arange(len(labels)), labels]
        return label_scores


@register
@dataclass(frozen=True)
class ClassifierVotesInBlocks(ClassifierVotes):
    """Compares K public classifiers separately for groups of labels: C blocks of K coordinates, one block per group.

    A record's row is that of :class:`ClassifierVotes` in the block of its label, zero elsewhere. The public inputs
    assign labels to blocks: with all labels in one block the sum is that of :class:`ClassifierVotes`; with one block
    per label it compares the classifiers label by label. A record counts in one block only, so the bounds are those of
    the base class.

    Public inputs: "classifiers", as in the base class; numbers "blocks", [C], the block of each label, whole and below
    C.
    """

    name: ClassVar[str] = "classifier_votes_in_blocks"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how well each of a few public classifiers (programs that sort texts by label) labels your records, for"
        " single labels or groups of labels"
    )

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        return f"how often one of these classifiers labels your records of {labels[0]} as {labels[0]}" if labels else ""

    @property
    def dimension(self) -> int:
        return self.classifiers * self.labels

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[ClassifierVotesInBlocks, Inputs]":
        # The statistic may have more labels than the task.
        label_count, classifier_count = max(2, facts.labels + choose.integer(0, 2)), choose.integer(2, 5)
        block_of_label = choose.one_of(
            [np.zeros(label_count), np.arange(label_count), choose.rng.integers(0, label_count, label_count)]
        )
        return cls(classifiers=classifier_count, labels=label_count, hard=choose.yes()), (
            ("classifiers", choose.numbers((classifier_count, facts.embedding_size + 1, label_count), COEFFICIENTS)),
            ("blocks", GridNumbers(block_of_label.astype(np.float64), WHOLE_NUMBERS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("classifiers", "blocks"))
        self._check_classifiers(public, facts)
        block_of_label = public.numbers_of("blocks")
        check_shape("blocks", block_of_label, (self.labels,))
        WHOLE_NUMBERS.check("blocks", block_of_label)
        check_labels("blocks", block_of_label.astype(np.int64), self.labels, least=0)

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        unplaced_rows = super().rows(records, public, memory)
        labels = labels_within(records.labels, self.labels)
        block_of_record = public.numbers_of("blocks").astype(np.int64)[np.where(labels >= 0, labels, 0)]

        def compute(row_numbers: Int64) -> Matrix:
            return in_blocks(np.asarray(unplaced_rows.take(row_numbers)), block_of_record[row_numbers], self.dimension)

        return Rows(compute, records.units, width=self.classifiers)


BUCKETS = 1 << 14  # number of hashed word features
GRAMS = (3, 4)  # shortest and longest run of characters within a word that is padded with spaces
SQUARE = 0.5  # weight of the second coordinate, which only serves the first one's standard error


def word_features(text: str) -> Int64:
    """Returns the sorted distinct hash buckets of a text's words, word pairs and character 3- and 4-grams, int64 [k].

    The hash is CRC-32, which every platform computes alike. A text without a word has no bucket.

    >>> len(word_features("to be")), word_features("").tolist()
    (9, [])
    """
    text_words = words(text)
    word_grams = {*text_words, *(f"{first_word} {second_word}" for first_word, second_word in pairwise(text_words))}
    for word in set(text_words):
        padded_word = f" {word} "
        word_grams.update(
            padded_word[i : i + gram_letters]
            for gram_letters in GRAMS
            for i in range(len(padded_word) - gram_letters + 1)
        )
    return np.unique(np.array([zlib.crc32(gram.encode()) % BUCKETS for gram in word_grams], dtype=np.int64))


def word_labels(classifier: Float64, texts: Sequence[str]) -> Int64:
    """Returns the label that a linear classifier of hashed words, float64 [BUCKETS + 1, C], gives each text, int64 [n].

    A text's logits are the sum of its features' rows divided by the square root of their number, plus the bias, which
    is the last row. Sums of numbers on the grid are exact, so that a label does not depend on the other texts.
    """
    word_classes = np.zeros(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        features = word_features(text)
        logits = classifier[features].sum(axis=0) / math.sqrt(max(1, len(features))) + classifier[-1]
        word_classes[row] = logits.argmax()
    return word_classes


@register
@dataclass(frozen=True)
class CorpusComparison(Statistic, question="classifiers"):
    """Compares two public corpora by the accuracy on the records of classifiers that each of them trained.

    Each corpus has trained a linear classifier of embeddings and a linear classifier of hashed words. A record's row is
    (g, SQUARE g^2), where its gain g is the mean over both kinds of (right by the second corpus) - (right by the
    first): -1, -1/2, 0, 1/2 or 1. The sum of g over the number of records is the gain in accuracy; the sum of g^2 gives
    its sampling variance. A record without label has no row.

    Attributes:
        labels: labels of the task, C, at least 2.

    Public inputs, on the grid ``inputs.COEFFICIENTS``: numbers "heads", the classifiers of embeddings, [2, d + 1, C],
    and "word classifiers", [2, BUCKETS + 1, C]; the last row is the bias.
    """

    name: ClassVar[str] = "corpus_comparison"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how much better one of two sets of this run's texts teaches a classifier to label your records"
    )
    labels: Annotated[int, Between(2, LARGEST_LABELS)]

    @classmethod
    def illustrate(cls, labels: Sequence[str], writers: Sequence[str]) -> str:
        if not labels:
            return ""
        return (
            "how many of your records get the label that they have from a classifier that has learned from the first"
            " set of texts, and how many from one that has learned from the second"
        )

    @property
    def dimension(self) -> int:
        return 2

    @property
    def sensitivity(self) -> Sensitivity:
        """The norms of the longest row, which is that of a record with gain g = 1.

        >>> round(CorpusComparison(labels=2).sensitivity.l2, 3)
        1.118
        """
        return Sensitivity(1.0 + SQUARE, math.sqrt(1.0 + SQUARE**2), 1.0)

    @property
    def base_scale(self) -> int:
        return 8  # g^2 / 2 is a multiple of 1/8

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[CorpusComparison, Inputs]":
        label_count = max(2, facts.labels)
        embedding_classifiers = choose.numbers((2, facts.embedding_size + 1, label_count), COEFFICIENTS)
        return cls(labels=label_count), (
            ("heads", embedding_classifiers),
            ("word classifiers", choose.numbers((2, BUCKETS + 1, label_count), COEFFICIENTS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("heads", "word classifiers"))
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        for input_name, input_size in (("heads", facts.embedding_size), ("word classifiers", BUCKETS)):
            check_shape(input_name, public.numbers_of(input_name), (2, input_size + 1, self.labels))
            COEFFICIENTS.check(input_name, public.numbers_of(input_name))

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        embedding_classifiers = public.numbers_of("heads")
        word_classifiers = public.numbers_of("word classifiers")
        embeddings = records.embeddings
        record_texts = records.texts
        labels = labels_within(records.labels, self.labels)

        def compute(row_numbers: Int64) -> Float64:
            record_embeddings = embeddings[row_numbers].astype(np.float64)
            asked_texts = [record_texts[row] for row in row_numbers]
            asked_labels = labels[row_numbers]
            right_shares = np.zeros((2, len(row_numbers)))
            for corpus, (embedding_classifier, word_classifier) in enumerate(
                zip(embedding_classifiers, word_classifiers, strict=True)
            ):
                predicted_labels = (
                    (record_embeddings @ embedding_classifier[:-1] + embedding_classifier[-1]).argmax(axis=1),
                    word_labels(word_classifier, asked_texts),
                )
                right_shares[corpus] = np.mean(
                    [predictions == asked_labels for predictions in predicted_labels], axis=0
                )
            return self._margin_row(*right_shares) * (asked_labels >= 0)[:, None]

        return Rows(compute, records.units)

    def _margin_row(self, first_shares: Float64, second_shares: Float64) -> Float64:
        """Returns m records' rows, float64 [m, dimension], from the share of right classifiers of each corpus."""
        gain = second_shares - first_shares
        return np.stack([gain, SQUARE * gain**2], axis=1)


@register
@dataclass(frozen=True)
class ScoredComparison(CorpusComparison):
    """Compares two public corpora as :class:`CorpusComparison` does, and tells how good both of them are.

    With a and b the means over both kinds of classifier of (right by the second corpus) and (right by the first), a
    record's row is (d, s, SQUARE d^2), d = a - b and s = a + b - 1. Since |d| + |s| <= 1, the longest row is that of
    |d| = 1 and s = 0, as without s: the accuracy costs nothing. Of m records the second corpus's classifiers label
    (1 + S / m + D / m) / 2 rightly, S and D being the sums.
    """

    name: ClassVar[str] = "scored_comparison"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = (
        "how well two sets of this run's texts teach a classifier to label your records, and by how much one is better"
    )

    @property
    def dimension(self) -> int:
        return 3

    def _margin_row(self, first_shares: Float64, second_shares: Float64) -> Float64:
        return scored_row(first_shares, second_shares)


def scored_row(first_scores: Float64, second_scores: Float64) -> Float64:
    """Returns the rows (d, s, SQUARE d^2), float64 [m, 3], of records for which two corpora have scores in [0, 1].

    d is the second score less the first, and s their sum less 1.
    """
    gain = second_scores - first_scores
    return np.stack([gain, first_scores + second_scores - 1.0, SQUARE * gain**2], axis=1)
