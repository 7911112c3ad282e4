"""Comparison of two public corpora by the classifiers that they train: two coordinates, whatever the corpora are."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np

from undersong_common.arrays import Float64, Int64
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
    Between,
    PublicFacts,
    PublicInputs,
    RecordView,
    Rows,
    Sensitivity,
    Statistic,
)
from undersong_protocol.statistics.registry import register
from undersong_protocol.statistics.terms import words

BUCKETS = 1 << 14  # of hashed word features
GRAMS = (3, 4)  # characters within a word, padded with a space
SQUARE = 0.5  # weight of the second coordinate: it only says how precise the first one is


def word_features(text: str) -> Int64:
    """Sorted distinct buckets of a text's words, pairs of words and character 3- and 4-grams within words.

    The hash is CRC-32, which every platform computes alike. A text without a word has none.

    >>> len(word_features("to be")), word_features("").tolist()
    (9, [])
    """
    found = words(text)
    grams = {*found, *(f"{first} {second}" for first, second in pairwise(found))}
    for word in set(found):
        padded = f" {word} "
        grams.update(padded[i : i + size] for size in GRAMS for i in range(len(padded) - size + 1))
    return np.unique(np.array([zlib.crc32(gram.encode()) % BUCKETS for gram in grams], dtype=np.int64))


def word_labels(classifier: Float64, texts: Sequence[str]) -> Int64:
    """The label that a word classifier, float64 [BUCKETS + 1, C], gives each text, int64 [n].

    Logits are the sum over the text's features divided by the root of their number, plus the bias (the last row). Sums
    of numbers on the grid are exact, so that a label does not depend on what else is computed.
    """
    found = np.zeros(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        features = word_features(text)
        logits = classifier[features].sum(axis=0) / math.sqrt(max(1, len(features))) + classifier[-1]
        found[row] = logits.argmax()
    return found


@register
@dataclass(frozen=True)
class CorpusComparison(Statistic, question="classifiers"):
    """A record's row is (d, SQUARE d^2), d the second corpus's gain over the first one in labelling the record.

    Each corpus trains a linear head on embeddings and a linear classifier of hashed words. d is the mean over both
    kinds of (right by the second corpus) - (right by the first): -1, -1/2, 0, 1/2 or 1. The sum of d over the number
    of records is the gain in accuracy; the sum of d^2 says how far the gain of other records would lie from it. A
    record without label casts nothing.

    Attributes:
        labels: labels of the task, C, at least 2.

    Public inputs, on the grid ``inputs.COEFFICIENTS``: numbers "heads", [2, d + 1, C], and "word classifiers",
    [2, BUCKETS + 1, C]; the last row is the bias.
    """

    name: ClassVar[str] = "corpus_comparison"
    whole: ClassVar[bool] = False
    consent: ClassVar[str] = "by how much better one public corpus teaches to label your records than another one"
    labels: Annotated[int, Between(2, LARGEST_LABELS)]

    @property
    def dimension(self) -> int:
        return 2

    @property
    def sensitivity(self) -> Sensitivity:
        """The row of d = 1 is the longest.

        >>> round(CorpusComparison(labels=2).sensitivity.l2, 3)
        1.118
        """
        return Sensitivity(1.0 + SQUARE, math.sqrt(1.0 + SQUARE**2), 1.0)

    @property
    def base_scale(self) -> int:
        return 8  # d^2 / 2 is a multiple of 1/8

    @classmethod
    def example(cls, choose: Chooser, facts: PublicFacts) -> "tuple[CorpusComparison, Inputs]":
        labels = max(2, facts.labels)
        heads = choose.numbers((2, facts.embedding_size + 1, labels), COEFFICIENTS)
        return cls(labels=labels), (
            ("heads", heads),
            ("word classifiers", choose.numbers((2, BUCKETS + 1, labels), COEFFICIENTS)),
        )

    def check_inputs(self, public: PublicInputs, facts: PublicFacts) -> None:
        check_names(self.name, public, numbers=("heads", "word classifiers"))
        check_task_labels(self.name, self.labels, facts)
        check_embedding_size(self.name, facts)
        for name, size in (("heads", facts.embedding_size), ("word classifiers", BUCKETS)):
            check_shape(name, public.numbers_of(name), (2, size + 1, self.labels))
            COEFFICIENTS.check(name, public.numbers_of(name))

    def rows(self, records: RecordView, public: PublicInputs, memory: dict[str, Any]) -> Rows:
        heads, by_words = public.numbers_of("heads"), public.numbers_of("word classifiers")
        embeddings, texts, labels = records.embeddings, records.texts, labels_within(records.labels, self.labels)

        def compute(asked: Int64) -> Float64:
            x, read, own = embeddings[asked].astype(np.float64), [texts[row] for row in asked], labels[asked]
            gain = np.zeros(len(asked))
            for sign, head, by_word in zip((-0.5, 0.5), heads, by_words, strict=True):
                answers = ((x @ head[:-1] + head[-1]).argmax(axis=1), word_labels(by_word, read))
                gain += sign * np.sum([answer == own for answer in answers], axis=0)
            gain *= own >= 0
            return np.stack([gain, SQUARE * gain**2], axis=1)

        return Rows(compute, records.units)
