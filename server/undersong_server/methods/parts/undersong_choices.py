"""Choices of the method ``undersong`` and their constants, which docs/method.md prints as a table."""

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Bools, Float32, Float64, Int64
from undersong_common.workers import one_numpy_thread
from undersong_protocol.statistics.classifier_votes import BUCKETS, NEVER, SQUARE, word_features
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency


def _constant(value: Any, unit: str, reason: str) -> Any:
    return field(default=value, metadata={"unit": unit, "reason": reason})


@dataclass(frozen=True)
class Tuning:
    """Constants of the method. ``TUNING`` is the only instance that runs use."""

    part_labels: float = _constant(2.0, "part of the budget", "label shares need little precision")
    part_who: float = _constant(5.0, "part of the budget", "several generators only; its noise is spread over labels")
    part_verdict: float = _constant(3.0, "part of the budget", "noise below the chance of 300 records' answers")
    part_examples: float = _constant(2.0, "part of the budget, over all rounds", "examples only steer the prompts")
    part_last_votes: float = _constant(
        4.0, "part of the budget", "a third; in a live prototype the last votes gained most"
    )
    votes: int = _constant(8, "votes per record", "equal votes: their noise per vote is 1 / sqrt(8)")
    texts_per_vote: int = _constant(5, "texts of a label", "a record votes for a fifth of a label at most")
    texts_judged: int = _constant(3, "texts of a generator and label", "with fewer a classifier tells of luck")
    tie: float = _constant(
        1.0, "standard errors", "a generator within this distance of the best is not told from it and stays"
    )
    answer_variance: float = _constant(
        0.12, "per record", "of a centred answer, if classifiers differ on about half of the records"
    )
    training_variance: float = _constant(
        0.08,
        "of accuracy, times the generator's texts",
        "which texts it happened to write; more records do not lessen it",
    )
    by_label_variance: float = _constant(
        0.1, "of accuracy", "choices label by label tie a label to a style; 0.02 to 0.03 where that harmed"
    )
    certainty: float = _constant(2.0, "standard errors of the gain", "below it the cleaned mixture stays")
    kept_share: float = _constant(0.3, "of a label's texts", "the best share in the live prototype")
    rare: float = _constant(0.5, "of an equal share", "a label below it loses no text by a choice")
    examples: int = _constant(4, "texts in a prompt", "fits the context of a small model")
    shortlist: int = _constant(32, "texts of a label", "that examples are drawn from, so that prompts differ")
    strength: float = _constant(
        3.0, "inverse regularisation (C)", "that of the panel's words; its head chooses among less"
    )


TUNING = Tuning()


def table() -> str:
    """The constants as a Markdown table."""

    def row(each: Field[Any]) -> str:
        return f"| `{each.name}` | {each.default:g} | {each.metadata['unit']} | {each.metadata['reason']} |"

    return "\n".join(["| constant | value | unit | reason |", "|---|---|---|---|", *map(row, fields(Tuning))])


# Choice of generators by how well the classifiers of their texts label the records; docs/method.md, step 3.


class Usefulness(NamedTuple):
    """Accuracy of each generator's classifier less the generators' mean, and its variance: float64 [K, C] each.

    ``by_label`` is True if generators differ so much from label to label that each label chooses its own.
    """

    gains: Float64
    variance: Float64
    by_label: bool

    def chosen(self, among: Bools) -> Bools:
        """Marks the generators of ``among``, bool [K, C], that are not clearly worse than its best of each label."""
        gains = np.where(among, self.gains, -np.inf)
        best, column = gains.argmax(axis=0), np.arange(gains.shape[1])
        apart = self.variance + self.variance[best, column]
        found: Bools = among & (gains[best, column] - gains <= TUNING.tie * np.sqrt(apart))
        return found


def usefulness(opened: NoisySum, block_of: Int64, records_of_label: Float64, texts: Int64) -> Usefulness:
    """Estimates the generators' usefulness from the opened sum of centred answers, C blocks of K.

    Args:
        block_of: the block of each label, int64 [C]: 0 for every label, or the label's own number.
        records_of_label: estimated number of records of each label, float64 [C], positive.
        texts: number of texts that each generator wrote of each label, int64 [K, C].
    """
    labels, records = len(records_of_label), float(records_of_label.sum())
    blocks = int(block_of.max()) + 1
    answers = opened.natural.reshape(labels, -1).T[:, :blocks]  # the other blocks hold noise alone
    deviations = (opened.sigma / records) ** 2
    whole = answers.sum(axis=1) / records
    written = np.maximum(texts, 1)
    luck = TUNING.training_variance / written.sum(axis=1)
    variance = blocks * deviations + TUNING.answer_variance / records + luck
    if blocks > 1:
        each = answers / records_of_label
        apart = (opened.sigma / records_of_label) ** 2 + TUNING.answer_variance / records_of_label
        apart = apart + TUNING.training_variance / written
        left = each - whole[:, None]
        different = float((left**2 - apart).mean())
        if different > TUNING.by_label_variance:
            return Usefulness(each, apart, True)
    return Usefulness(np.repeat(whole[:, None], labels, axis=1), np.repeat(variance[:, None], labels, axis=1), False)


# The records' verdict on two corpora, by a head and a word classifier of each; docs/method.md, step 7.

MOST_STEPS = 300  # of the fit, as of the panel's


class Corpus(NamedTuple):
    """Texts of a corpus with their embeddings, float32 [n, d], and labels, int64 [n]."""

    texts: Sequence[str]
    embeddings: Float32
    label_of: Int64


class Gain(NamedTuple):
    """Gain in accuracy of one corpus over another, and its standard error."""

    value: float
    error: float

    def certain(self) -> bool:
        return self.value > TUNING.certainty * self.error


def published(corpora: Sequence[Corpus], labels: int) -> tuple[Float64, Float64]:
    """Trains two classifiers of each corpus, on the public grid: of embeddings, float64 [2, d + 1, C], and of words.

    Those of words are float64 [2, BUCKETS + 1, C].
    """
    heads = [consistency.classifier(c.embeddings, c.label_of, labels, strength=TUNING.strength) for c in corpora]
    by_words = [word_classifier(word_rows(c.texts), c.label_of, labels) for c in corpora]
    return COEFFICIENTS.quantised(np.stack(heads)), COEFFICIENTS.quantised(np.stack(by_words))


def word_rows(texts: Sequence[str]) -> Any:
    """Hashed word features of each text, sparse [n, BUCKETS]: each is 1 / sqrt(number of features of the text)."""

    features = [_word_features(text) for text in texts]
    sizes = np.array([len(each) for each in features], dtype=np.int64)
    columns, starts = np.concatenate([np.zeros(0, np.int64), *features]), np.cumsum([0, *sizes])
    values = np.repeat(1.0 / np.sqrt(np.maximum(sizes, 1)), sizes)
    return sp.csr_array((values, columns, starts), shape=(len(texts), BUCKETS))


_word_features = lru_cache(maxsize=4096)(word_features)  # a corpus is cleaned, then compared


def word_classifier(rows: Any, label_of: Int64, labels: int) -> Float64:
    """Trains a logistic regression on :func:`word_rows`, float64 [BUCKETS + 1, C], bias last.

    A feature weighs its inverse document frequency among the rows, ln((1 + n) / (1 + n_f)) + 1. A label without texts
    has the bias ``NEVER``.
    """
    from sklearn.linear_model import LogisticRegression

    found, present = np.zeros((BUCKETS + 1, labels)), np.unique(label_of)
    found[-1] = NEVER
    if len(present) < 2:
        found[-1, present] = 0.0
        return found
    counts = np.bincount(rows.indices, minlength=BUCKETS)
    used = np.flatnonzero(counts)  # the others' weights are zero, and half of the fit's time
    rarity = np.log((1 + len(label_of)) / (1 + counts[used])) + 1.0
    with one_numpy_thread():
        model = LogisticRegression(C=TUNING.strength, max_iter=MOST_STEPS).fit(rows[:, used] * rarity, label_of)
    # Of two labels scikit-learn has one row, the logit of the second.
    sides = np.array([[-0.5], [0.5]]) if len(present) == 2 else np.eye(len(present))
    found[np.ix_(used, present)] = (sides @ model.coef_ * rarity).T
    found[-1, present] = sides @ model.intercept_
    return found


def gain(opened: NoisySum, records: float) -> Gain:
    """Estimates the gain from the opened comparison; its error is from the noise and from ``records`` as a sample."""
    value, square = opened.natural / records
    among = max(0.0, float(square) / SQUARE - float(value) ** 2) / records
    return Gain(float(value), float(np.sqrt((opened.sigma / records) ** 2 + among)))
