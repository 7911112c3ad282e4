"""Classifiers of words: hashed word features of texts, a logistic regression on them, and windows of a text's words."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float64, Int64
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.statistics.classifier_votes import BUCKETS, NEVER, word_features

STRENGTH = 3.0  # inverse regularisation (C), as of the word classifier in the evaluation
MOST_STEPS = 300  # most steps of the fit, as in the evaluation
WINDOW, STEP = 8, 4  # words of a window, and from one window's first word to the next one's


def windows(text: str) -> list[str]:
    """Returns the pieces of ``WINDOW`` words that begin at every ``STEP``-th word and cover the text.

    >>> windows("a b c d e f g h i j")
    ['a b c d e f g h', 'e f g h i j']
    """
    text_words = text.split()
    if len(text_words) <= WINDOW:
        return [text]
    return [
        " ".join(text_words[window_start : window_start + WINDOW])
        for window_start in range(0, len(text_words) - WINDOW + STEP, STEP)
    ]


def word_rows(texts: Sequence[str]) -> Any:
    """Hashed word features of each text, sparse [n, BUCKETS]: each present one is 1 / sqrt(number that are present)."""

    features_by_text = [_word_features(text) for text in texts]
    feature_counts = np.array([len(text_features) for text_features in features_by_text], dtype=np.int64)
    columns, row_starts = np.concatenate([np.zeros(0, np.int64), *features_by_text]), np.cumsum([0, *feature_counts])
    feature_values = np.repeat(1.0 / np.sqrt(np.maximum(feature_counts, 1)), feature_counts)
    return sp.csr_array((feature_values, columns, row_starts), shape=(len(texts), BUCKETS))


_word_features = lru_cache(maxsize=4096)(word_features)  # a corpus's texts are read twice: cleaned, then compared


def word_classifier(rows: Any, label_of: Int64, label_count: int, weights: Float64 | None = None) -> Float64:
    """Trains a logistic regression on :func:`word_rows`, float64 [BUCKETS + 1, C], bias last.

    A feature weighs its inverse document frequency among the rows, ln((1 + n) / (1 + n_f)) + 1. A label without texts
    has the bias ``NEVER``. ``weights``: of the rows, positive, with mean 1; None weighs all alike.
    """
    from sklearn.linear_model import LogisticRegression

    weight_table, present_labels = np.zeros((BUCKETS + 1, label_count)), np.unique(label_of)
    weight_table[-1] = NEVER
    if len(present_labels) < 2:
        weight_table[-1, present_labels] = 0.0
        return weight_table
    text_count_by_feature = np.bincount(rows.indices, minlength=BUCKETS)
    # The other columns would get weights of zero, and take half of the fit's time.
    used_columns = np.flatnonzero(text_count_by_feature)
    inverse_frequencies = np.log((1 + len(label_of)) / (1 + text_count_by_feature[used_columns])) + 1.0
    with one_library_thread():
        model = LogisticRegression(C=STRENGTH, max_iter=MOST_STEPS)
        model.fit(rows[:, used_columns] * inverse_frequencies, label_of, weights)
    # scikit-learn has one row for two labels, the logit of the second.
    if len(present_labels) == 2:
        factors_of_label = np.array([[-0.5], [0.5]])
    else:
        factors_of_label = np.eye(len(present_labels))
    weight_table[np.ix_(used_columns, present_labels)] = (factors_of_label @ model.coef_ * inverse_frequencies).T
    weight_table[-1, present_labels] = factors_of_label @ model.intercept_
    return weight_table
