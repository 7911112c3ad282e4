"""The records' verdict on two corpora, by a head and a word classifier of each; docs/method.md, step 7."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.workers import one_numpy_thread
from undersong_protocol.statistics.classifier_votes import NEVER
from undersong_protocol.statistics.corpus_comparison import BUCKETS, SQUARE, word_features
from undersong_protocol.statistics.inputs import COEFFICIENTS
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency
from undersong_server.methods.parts.undersong_tuning import TUNING

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
    """The corpora's heads, float64 [2, d + 1, C], and word classifiers, float64 [2, BUCKETS + 1, C], on their grid."""
    heads = [
        consistency.classifier(each.embeddings, each.label_of, labels, strength=TUNING.strength) for each in corpora
    ]
    by_words = [word_classifier(each.texts, each.label_of, labels) for each in corpora]
    return COEFFICIENTS.quantised(np.stack(heads)), COEFFICIENTS.quantised(np.stack(by_words))


def word_classifier(texts: Sequence[str], label_of: Int64, labels: int) -> Float64:
    """Logistic regression on hashed word features, float64 [BUCKETS + 1, C], bias last.

    A text's features weigh their inverse document frequency, ln((1 + n) / (1 + n_f)) + 1, over the root of their
    number. A label without texts has the bias ``NEVER``.
    """
    import scipy.sparse as sp
    from sklearn.linear_model import LogisticRegression

    found = np.zeros((BUCKETS + 1, labels))
    found[-1] = NEVER
    present = np.unique(label_of)
    if len(present) == 1:
        found[-1, present[0]] = 0.0
    if len(present) < 2:
        return found
    features = [word_features(text) for text in texts]
    sizes = np.array([len(each) for each in features])
    columns, starts = np.concatenate([np.zeros(0, np.int64), *features]), np.cumsum([0, *sizes])
    rarity = np.log((1 + len(texts)) / (1 + np.bincount(columns, minlength=BUCKETS))) + 1.0
    values = rarity[columns] / np.sqrt(np.repeat(np.maximum(sizes, 1), sizes))
    x = sp.csr_array((values, columns, starts), shape=(len(texts), BUCKETS))
    with one_numpy_thread():
        model = LogisticRegression(C=TUNING.strength, max_iter=MOST_STEPS).fit(x, label_of)
    # Of two labels scikit-learn has one row, the logit of the second.
    sides = np.array([[-0.5], [0.5]]) if len(present) == 2 else np.eye(len(present))
    found[:-1, present] = (sides @ model.coef_ * rarity).T
    found[-1, present] = sides @ model.intercept_
    return found


def gain(opened: NoisySum, records: float) -> Gain:
    """The gain by the opened comparison, and its standard error from the noise and from the records being a sample."""
    value, square = opened.natural / records
    among = max(0.0, float(square) / SQUARE - float(value) ** 2) / records
    return Gain(float(value), float(np.sqrt((opened.sigma / records) ** 2 + among)))
