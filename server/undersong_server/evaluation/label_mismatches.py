"""Rows of a corpus whose text reads like another label than their own, by the words of the other rows alone.

The classifier is complement naive Bayes on counts of words (Rennie et al. 2003, section 3.1). It reads no private
record and shares nothing with the encoder by which records vote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.printable import number, printable
from undersong_common.program.library_threads import one_library_thread

FEWEST_ROWS = 50  # rows below which nothing is measured
FOLDS = 5
MARGIN = 0.5  # least probability of another label beyond that of a row's own
SHOWN_ROWS = 10
MISMATCH = "another label than their own"


@dataclass(frozen=True)
class LabelMismatches:
    """Rows that read like another label.

    Attributes:
        rows: number of rows that were judged: those of labels with two rows or more. 0 if nothing was measured.
        label_by_row: the label that each of them reads like, by its row in the corpus, from 1; the surest row first.
    """

    rows: int = 0
    label_by_row: Mapping[int, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Says how many of the judged rows read like another label, and that chance is not subtracted."""
        if not self.rows:
            return f"Rows that read like {MISMATCH}: not measured: fewer than {FEWEST_ROWS} rows or two labels."
        mismatch_count = len(self.label_by_row)
        return (
            f"{number(mismatch_count)} of {number(self.rows)} rows ({100 * mismatch_count / self.rows:.1f} %) read like"
            f" {MISMATCH}, by the words of the other rows; how many by chance is not known here, and a wrong label that"
            " many rows share goes unseen."
        )

    @property
    def rows_sentence(self) -> str:
        """Names the surest rows with the label that each reads like; "" if there is none."""
        if not self.label_by_row:
            return ""
        surest_rows = [*self.label_by_row.items()][:SHOWN_ROWS]
        shown = [f"row {row} reads like {printable(label, 60)}" for row, label in surest_rows]
        further_count = len(self.label_by_row) - len(shown)
        further_words = f", and {number(further_count)} more, which `undersong verify . --json` lists"
        return (
            f"Rows of synthetic.jsonl, counted from 1, that read like {MISMATCH}, the surest first:"
            f" {', '.join(shown)}{further_words if further_count else ''}."
        )


def find_mismatches(texts: Sequence[str], labels: Sequence[str]) -> LabelMismatches:
    """Finds the rows to which a classifier of the other rows' words gives another label with :data:`MARGIN`.

    Each row is judged by the model of the four folds that it is not in; the folds are the same every time.

    Args:
        labels: one for each text; () without labels.
    """
    label_names, row_labels = np.unique(np.array(labels, dtype=str), return_inverse=True)
    label_counts = np.bincount(row_labels, minlength=1)
    if len(row_labels) < FEWEST_ROWS or (label_counts > 1).sum() < 2:
        return LabelMismatches()
    with one_library_thread():
        probabilities = _judge_by_words(texts, row_labels, len(label_names))
    if probabilities is None:
        return LabelMismatches()
    is_judged = label_counts[row_labels] > 1  # A label of one row has no other row to learn from.
    rows = np.arange(len(row_labels))
    own_probabilities = probabilities[rows, row_labels]
    probabilities[rows, row_labels] = -1.0
    margins = np.where(is_judged, probabilities.max(axis=1) - own_probabilities, -1.0)
    surest_rows = np.argsort(-margins, kind="stable")
    return LabelMismatches(
        int(is_judged.sum()),
        {
            int(row) + 1: str(label_names[probabilities[row].argmax()])
            for row in surest_rows[margins[surest_rows] >= MARGIN]
        },
    )


def _judge_by_words(texts: Sequence[str], row_labels: Int64, label_count: int) -> Float64 | None:
    """Returns each label's probability, [n, L], by a model of the other folds; None if no text has a word."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import ComplementNB

    try:
        word_counts = CountVectorizer().fit_transform(texts)
    except ValueError:  # scikit-learn's error for an empty vocabulary
        return None
    fold_of_row = _draw_folds(row_labels, label_count)
    probabilities = np.zeros((len(row_labels), label_count))
    for fold in range(FOLDS):
        judged_rows, fit_rows = np.flatnonzero(fold_of_row == fold), np.flatnonzero(fold_of_row != fold)
        if not len(judged_rows):
            continue
        is_known_word = np.asarray(word_counts[fit_rows].sum(axis=0)).ravel() > 0
        model = ComplementNB().fit(word_counts[fit_rows][:, is_known_word], row_labels[fit_rows])
        judged_counts = word_counts[judged_rows][:, is_known_word]
        probabilities[np.ix_(judged_rows, model.classes_)] = model.predict_proba(judged_counts)
    return probabilities


def _draw_folds(row_labels: Int64, label_count: int) -> Int64:
    """Draws the fold of each row, with each label's rows spread over the folds."""
    rng = np.random.default_rng(0)
    fold_of_row = np.zeros(len(row_labels), dtype=np.int64)
    for label in range(label_count):
        label_rows = rng.permutation(np.flatnonzero(row_labels == label))
        fold_of_row[label_rows] = np.arange(len(label_rows)) % FOLDS
    return fold_of_row
