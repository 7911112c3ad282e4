"""Deep CORAL brings covariances together where the source says nothing against it; sequences are judged alone."""

import json

import numpy as np
import pytest

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import Table
from undersong_server import learning
from undersong_server.evaluation import evaluate as evaluation
from undersong_server.evaluation.evaluate import read_sequences, sequences_of
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.evaluation.panel import score
from undersong_server.learning import WEIGHTS, adapt, covariance_distance, predict
from undersong_server.operations.releases import evaluate as evaluate_run


def blobs(count, seed, turn=0.0, noise=0.35):
    """Two labels on the unit sphere; ``turn`` adds a direction that only this domain varies along."""
    rng = np.random.default_rng(seed)
    labels = ["ab"[n % 2] for n in range(count)]
    x = noise * rng.normal(size=(count, 16))
    x[:, 0] += np.array([1.0 if label == "a" else -1.0 for label in labels])
    x[:, 1] += turn * rng.normal(size=count)
    x = x.astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


@pytest.mark.slow
def test_adaptation_aligns_covariances_and_keeps_labels_separable():
    source, labels = blobs(160, 0)
    target, truth = blobs(160, 1, turn=1.5)
    adapted = adapt(source, labels, target, seed=0)
    assert adapted.chosen in WEIGHTS
    assert adapted.chosen > 0
    before, after = map(float, adapted.description.rpartition(": covariance distance ")[2].split(" -> "))
    assert after < 0.9 * before
    assert after == pytest.approx(covariance_distance(adapted, source, target), abs=5e-4)
    assert score(truth, predict(adapted, target)).accuracy > 0.8
    again = adapt(source, labels, target, seed=0)
    assert np.array_equal(again.hidden[0][0], adapted.hidden[0][0])


@pytest.mark.heavy
def test_three_layer_head_is_trained_with_the_deep_coral_loss():
    """DP-KPS B.1.2, independent: |C_A - C_B|^2 / (4 d^2), weight 1; its three layers."""
    source, labels = blobs(120, 0)
    target, _ = blobs(120, 1, turn=1.5)
    import torch

    a, b = (torch.from_numpy(x.astype(np.float64)) for x in (source, target))
    means = [x.astype(np.float64) - x.astype(np.float64).mean(axis=0) for x in (source, target)]
    one, two = (x.T @ x / (len(x) - 1) for x in means)
    expected = ((one - two) ** 2).sum() / (4 * 16**2)
    assert float(learning._coral_distance(a, b, relative=False)) == pytest.approx(expected)
    adapted = adapt(source, labels, target, seed=0, head="three-layer")
    assert adapted.chosen == 1.0
    assert len(adapted.hidden) == 2


def test_adaptation_to_too_few_texts_or_labels_is_refused():
    source, labels = blobs(60, 0)
    with raises(ConfigurationError, "too-few-texts"):
        adapt(source, labels, source[:5])
    with raises(ConfigurationError, "too-few-labels"):
        adapt(source, ["a"] * 60, source)


def embed_words(texts):
    words = ("fever", "cough", "knee", "fall", "today")
    x = np.array([[1e-3 + text.lower().count(word) for word in words] for text in texts], dtype=np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


SEQUENCES = [("lung", ["fever", "cough"]), ("leg", ["knee", "fall"])] * 20


@pytest.mark.slow
def test_evaluation_scores_the_runs_and_the_records_key_phrase_sequences(tmp_path):
    lines = [json.dumps({"label": label, "terms": terms}) for label, terms in SEQUENCES]
    (tmp_path / "sequences.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "synthetic.jsonl").write_text(
        "".join(
            json.dumps({"text": f"{terms[0]} today {n}", "label": y}) + "\n" for n, (y, terms) in enumerate(SEQUENCES)
        )
    )
    rows = [("Cough, fever today", "lung"), ("a fall on the KNEE", "leg"), ("nothing", "leg")] * 30
    for name in ("test", "private"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    embedded = []
    report = evaluate_run(
        tmp_path,
        EvaluationOptions(
            test=tmp_path / "test.jsonl",
            train_private=tmp_path / "private.jsonl",
            adapt_to=tmp_path / "private.jsonl",
            sequences=True,
            head="three-layer",
        ),
        embed=lambda texts: embedded.append(texts) or embed_words(texts),
    )
    panel, layers = (each for each in report.trained if each.data == evaluation.SEQUENCES)
    assert (panel.rows, panel.scores.models["head"].recall.max()) == (40, 1.0)
    (judged,) = layers.scores.models.values()
    assert judged.accuracy >= 2 / 3  # "nothing" has an empty sequence; the others are told apart
    assert sorted(filter(None, embedded[-1])) == ["cough, fever"] * 30 + ["fall, knee"] * 30
    found = {each.data: each for each in report.trained}
    assert found[evaluation.OWN_SEQUENCES].rows == 60  # a record without any of the terms has no sequence
    assert any("adapted to 90 unlabelled texts" in data for data in found)


def test_records_own_sequences_list_terms_in_the_order_of_the_text():
    sequences = Table(("fever, chest pain", "knee, fall"), ("a", "b"), None)
    table = Table(("Chest  PAIN then fever and a knee", "none"), ("a", "b"), None)
    own = sequences_of(table, sequences)
    assert own.texts == ("chest pain, fever",)  # no longer than the run's sequences
    assert own.labels == ("a",)
    every = sequences_of(table, sequences, keep_empty=True)
    assert (every.texts, every.labels) == (("chest pain, fever", ""), ("a", "b"))


def test_a_run_without_sequences_is_refused_by_name(tmp_path):
    with raises(ConfigurationError, "sequences-missing"):
        read_sequences(tmp_path / "sequences.jsonl")
