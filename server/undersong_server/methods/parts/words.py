"""Classifiers of words: hashed word features of texts, a logistic regression on them, and windows of a text's words."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from undersong_common.arrays import Float64, Int64
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.statistics.classifier_votes import BUCKETS, NEVER, word_features

STRENGTH = 3.0  # inverse regularisation (C), that of the panel's words
MOST_STEPS = 300  # most steps of the fit, as in the panel
WINDOW, STEP = 8, 4  # words of a window, and from one window's first word to the next one's


def windows(text: str) -> list[str]:
    """Returns the pieces of ``WINDOW`` words that begin at every ``STEP``-th word and cover the text.

    >>> windows("a b c d e f g h i j")
    ['a b c d e f g h', 'e f g h i j']
    """
    words = text.split()
    if len(words) <= WINDOW:
        return [text]
    return [" ".join(words[start : start + WINDOW]) for start in range(0, len(words) - WINDOW + STEP, STEP)]


def word_rows(texts: Sequence[str]) -> Any:
    """Hashed word features of each text, sparse [n, BUCKETS]: each is 1 / sqrt(number of features of the text)."""

    features = [_word_features(text) for text in texts]
    sizes = np.array([len(each) for each in features], dtype=np.int64)
    columns, starts = np.concatenate([np.zeros(0, np.int64), *features]), np.cumsum([0, *sizes])
    values = np.repeat(1.0 / np.sqrt(np.maximum(sizes, 1)), sizes)
    return sp.csr_array((values, columns, starts), shape=(len(texts), BUCKETS))


_word_features = lru_cache(maxsize=4096)(word_features)  # a corpus is cleaned, then compared


def word_classifier(rows: Any, label_of: Int64, labels: int, weights: Float64 | None = None) -> Float64:
    """Trains a logistic regression on :func:`word_rows`, float64 [BUCKETS + 1, C], bias last.

    A feature weighs its inverse document frequency among the rows, ln((1 + n) / (1 + n_f)) + 1. A label without texts
    has the bias ``NEVER``. ``weights``: of the rows, positive, with mean 1; None weighs all alike.
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
    with one_library_thread():
        model = LogisticRegression(C=STRENGTH, max_iter=MOST_STEPS)
        model.fit(rows[:, used] * rarity, label_of, weights)
    # scikit-learn has one row for two labels, the logit of the second.
    sides = np.array([[-0.5], [0.5]]) if len(present) == 2 else np.eye(len(present))
    found[np.ix_(used, present)] = (sides @ model.coef_ * rarity).T
    found[-1, present] = sides @ model.intercept_
    return found
