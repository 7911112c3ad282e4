"""MAUVE, diversity and label errors: against the authors' own packages, and where they must end."""

from __future__ import annotations

import numpy as np
import pytest

from undersong_server.evaluation.metrics import (
    corpus_label_errors,
    distinct_n,
    label_errors,
    mauve,
    mauve_of_counts,
    vendi_score,
)


def clouds(shift: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    first = rng.normal(size=(400, 6)).astype(np.float32)
    return first, (rng.normal(size=(400, 6)) + np.array([shift, 0, 0, 0, 0, 0])).astype(np.float32)


def test_mauve_of_given_counts_equals_mauve_text() -> None:
    """mauve-text 0.4.0, mauve_star of these smoothed counts."""
    assert mauve_of_counts([5, 0, 12, 3, 9], [1, 4, 10, 10, 2]) == pytest.approx(0.6113833913906019, abs=1e-12)


@pytest.mark.heavy
def test_mauve_of_embeddings_is_near_that_of_mauve_text() -> None:
    """mauve-text 0.4.0 with faiss: 0.835, 0.832 and 0.850 for three seeds; another k-means clusters otherwise."""
    assert mauve(*clouds(0.9), seed=1) == pytest.approx(0.835, abs=0.04)


def test_mauve_falls_with_distance_and_is_one_for_equal_sets() -> None:
    near, far = mauve(*clouds(0.3)), mauve(*clouds(3.0))
    assert near > 0.9 > 0.2 > far
    points = clouds(0.0)[0]
    assert mauve(points, points) == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(ValueError, match="too few"):
        mauve(points[:19], points)


def test_vendi_score_equals_the_package_and_counts_distinct_texts() -> None:
    """vendi-score 0.0.3, score_dual of the same unit rows: 4.829817278968149."""
    rows = np.random.default_rng(7).normal(size=(60, 5)).astype(np.float32)
    assert vendi_score(rows) == pytest.approx(4.829817278968149, rel=1e-6)
    assert vendi_score(np.eye(4)) == pytest.approx(4.0)
    assert vendi_score(np.ones((9, 3))) == pytest.approx(1.0)
    few = rows[:3]  # fewer rows than coordinates: the other side's eigenvalues
    assert vendi_score(np.tile(few, (4, 1))) == pytest.approx(vendi_score(few))


def test_distinct_n_equals_a_count_by_hand() -> None:
    assert distinct_n(["a b a b", "a b"], 1) == pytest.approx(2 / 6)
    assert distinct_n(["a b a b", "a b"], 2) == pytest.approx(2 / 4)
    assert np.isnan(distinct_n(["a"], 2))


def test_label_errors_equal_those_of_cleanlab() -> None:
    """cleanlab 2.9.0: confident joint, and find_label_issues(filter_by="prune_by_noise_rate")."""
    rng = np.random.default_rng(3)
    true = rng.integers(0, 3, 200)
    given = true.copy()
    flipped = rng.random(200) < 0.2
    given[flipped] = (given[flipped] + 1) % 3
    logits = rng.normal(size=(200, 3))
    logits[np.arange(200), true] += 3
    probabilities = np.exp(logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = label_errors(given, probabilities)
    assert np.rint(found.joint).astype(int).tolist() == [[56, 0, 9], [16, 55, 0], [1, 8, 54]]
    assert sorted(found.suspected.tolist()) == [
        4, 15, 33, 37, 38, 43, 46, 52, 57, 60, 62, 66, 67, 81, 86, 90, 102, 110, 114, 115, 121, 125, 138, 156, 157,
        158, 163, 176, 180, 183, 184, 192,
    ]  # fmt: skip
    assert found.share == pytest.approx(0.173, abs=1e-3)
    assert flipped[found.suspected].mean() > 0.9


def test_row_below_every_class_threshold_counts_under_its_given_label() -> None:
    found = label_errors(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]))
    assert found.joint.sum() == pytest.approx(3.0)
    assert found.joint[1, 1] + found.joint[1, 0] == pytest.approx(1.0)


def test_label_error_models_do_not_see_the_texts_that_they_judge() -> None:
    """A model that had seen a text would repeat its label: in 64 dimensions it fits any 60 labels."""
    rng = np.random.default_rng(5)
    embeddings = rng.normal(size=(60, 64)).astype(np.float32)
    found = corpus_label_errors(embeddings, ["ab"[label] for label in rng.integers(0, 2, 60)])
    assert found.share > 0.3
    assert len(found.suspected) > 15


def test_wrong_labels_are_found_by_models_that_did_not_see_the_texts() -> None:
    rng = np.random.default_rng(11)
    centres = np.array([[4.0, 0, 0, 0], [0, 4.0, 0, 0]])
    true = rng.integers(0, 2, 200)
    embeddings = (centres[true] + rng.normal(size=(200, 4))).astype(np.float32)
    given = true.copy()
    given[:20] = 1 - given[:20]
    found = corpus_label_errors(embeddings, ["ab"[label] for label in given])
    assert found.share == pytest.approx(0.1, abs=0.04)
    assert len(set(found.suspected.tolist()) & set(range(20))) >= 16
    assert found.to_json()["rows"][0] == int(found.suspected[0]) + 1
