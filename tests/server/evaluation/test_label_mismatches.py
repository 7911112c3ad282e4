"""Rows that read like another label than their own, by the words of the other rows alone."""

import json
from importlib.resources import files

import numpy as np
import pytest

from benchmarks.label_mismatches import swap_label
from undersong_server.evaluation.label_mismatches import FEWEST_ROWS, MARGIN, SHOWN_ROWS, find_mismatches

NOT_MEASURED = "Rows that read like another label than their own: not measured: fewer than 50 rows or two labels."


@pytest.fixture(scope="module")
def labelled_notes():
    """600 rightly labelled triage notes of six labels: texts and labels."""
    lines = files("undersong_server.operations").joinpath("example/handbook.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines][:600]
    return [row["text"] for row in rows], [row["label"] for row in rows]


@pytest.mark.heavy
def test_planted_wrong_labels_are_named_and_right_ones_are_not(labelled_notes):
    texts, labels = labelled_notes
    rng = np.random.default_rng(3)
    planted = set(rng.permutation(len(texts))[:60].tolist())
    wrong = [swap_label(labels, row, rng) if row in planted else label for row, label in enumerate(labels)]
    mismatches = find_mismatches(texts, wrong)
    found = {row - 1 for row in mismatches.label_by_row}
    assert mismatches.rows == 600
    assert len(found & planted) >= 48
    assert len(found - planted) <= 0.04 * 540
    named = [mismatches.label_by_row[row + 1] == labels[row] for row in found & planted]
    assert np.mean(named) > 0.9
    assert len(find_mismatches(texts, labels).label_by_row) <= 0.03 * 600


@pytest.mark.heavy
def test_label_mismatch_model_does_not_see_the_row_that_it_judges():
    rng = np.random.default_rng(5)
    texts = [" ".join(f"word{word}" for word in rng.integers(400, size=12)) for _ in range(200)]
    mismatches = find_mismatches(texts, rng.choice(["a", "b"], size=200).tolist())
    assert len(mismatches.label_by_row) > 40  # A reader that has seen the row names four.


@pytest.mark.heavy
def test_text_about_another_label_is_always_reported_with_that_label(labelled_notes):
    texts, labels = labelled_notes
    row = labels.index("infection")
    other = [text for text, label in zip(texts, labels, strict=True) if label == "injury"]
    mixed = [*texts[:row], f"{' '.join(texts[row].split()[:5])} {' '.join(other[:2])}", *texts[row + 1 :]]
    mismatches = find_mismatches(mixed, labels)
    assert mismatches.label_by_row[row + 1] == "injury"
    assert list(find_mismatches(mixed, labels).label_by_row.items()) == list(mismatches.label_by_row.items())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["fever", "ankle"] * 24 + ["fever"], ["a", "b"] * 24 + ["a"]),  # a row short
        (["fever"] * FEWEST_ROWS, ["a"] * FEWEST_ROWS),
        (["fever"] * FEWEST_ROWS, [""] * FEWEST_ROWS),
        (["fever"] * FEWEST_ROWS, ()),
        (["fever"] * FEWEST_ROWS, ["a"] * (FEWEST_ROWS - 1) + ["b"]),  # nothing to learn b from
        (["?"] * FEWEST_ROWS, ["a", "b"] * (FEWEST_ROWS // 2)),  # no word
    ],
)
def test_label_mismatches_are_not_measured_on_too_few_rows_labels_or_words(texts, labels):
    mismatches = find_mismatches(texts, labels)
    assert (mismatches.rows, dict(mismatches.label_by_row)) == (0, {})
    assert mismatches.sentence == NOT_MEASURED
    assert mismatches.rows_sentence == ""


@pytest.mark.heavy
def test_row_whose_label_occurs_once_is_not_called_mislabelled():
    texts, labels = ["fever and cough", "a broken ankle"] * 30, ["a", "b"] * 30
    mismatches = find_mismatches([*texts, "a fever"], [*labels, "c"])
    assert (mismatches.rows, dict(mismatches.label_by_row)) == (60, {})
    assert find_mismatches([*texts, "fever and cough"], [*labels, "b"]).label_by_row == {61: "a"}


@pytest.mark.heavy
def test_row_without_any_known_word_is_not_reported_as_mislabelled():
    texts, labels = ["fever and cough", "a broken ankle"] * 30, ["a", "b"] * 30
    assert not find_mismatches([*texts, "unseen"], [*labels, "b"]).label_by_row
    assert MARGIN > 0


@pytest.mark.heavy
def test_mismatch_sentence_names_the_surest_rows_with_their_labels():
    texts, labels = ["fever and cough", "a broken ankle"] * 100, ["a", "b"] * 100
    wrong = ["b" if row < 2 * (SHOWN_ROWS + 3) and label == "a" else label for row, label in enumerate(labels)]
    mismatches = find_mismatches(texts, wrong)
    assert mismatches.sentence == (
        "13 of 200 rows (6.5 %) read like another label than their own, by the words of the other rows; how many by"
        " chance is not known here, and a wrong label that many rows share goes unseen."
    )
    assert mismatches.rows_sentence.count(" reads like a,") == SHOWN_ROWS
    assert mismatches.rows_sentence.endswith(", and 3 more, which `undersong verify . --json` lists.")
