"""The panel's three task models: what they learn, what they read, what they are worth."""

from __future__ import annotations

import numpy as np
import pytest

from undersong_common.errors import ConfigurationError
from undersong_server.evaluation import panel
from undersong_server.evaluation.panel import Labelled

pytestmark = pytest.mark.heavy

WORDS = {"heart": ("chest pain", "palpitations", "murmur"), "injury": ("fracture", "swollen ankle", "deep cut")}


def draw_labelled_notes(count: int, seed: int, *, wrong: float = 0.0) -> Labelled:
    """Notes of two labels whose words and embeddings both tell them apart."""
    rng = np.random.default_rng(seed)
    names = sorted(WORDS)
    truth = rng.integers(len(names), size=count)
    texts = [f"{rng.choice(WORDS[names[k]])} since {rng.integers(99)} days, case {rng.integers(999)}" for k in truth]
    x = rng.normal(size=(count, 16)).astype(np.float32)
    x[:, 0] += 4 * truth - 2
    flipped = np.where(rng.random(count) < wrong, 1 - truth, truth)
    return Labelled(texts, [names[k] for k in flipped], x)


@pytest.mark.slow
def test_every_model_learns_and_the_panel_score_is_their_mean_accuracy() -> None:
    found = panel.judge(draw_labelled_notes(80, 0), draw_labelled_notes(60, 1))
    figures, accuracies = found.figures(), found.accuracies()
    assert list(figures) == ["accuracy", "balanced_accuracy", "macro_f1", "rarest_recall"]
    assert list(accuracies) == ["words", "head", "mlp"]
    assert min([*figures.values(), *accuracies.values()]) > 0.9
    assert figures["accuracy"] == pytest.approx(np.mean(list(accuracies.values())))


@pytest.mark.slow
def test_words_model_uses_only_texts_and_other_models_only_embeddings() -> None:
    corpus, test = draw_labelled_notes(80, 0), draw_labelled_notes(60, 1)
    shuffled = Labelled(corpus.texts, corpus.labels, np.random.default_rng(2).permutation(corpus.embeddings))
    found = panel.judge(shuffled, test).accuracies()
    assert found["words"] > 0.9
    assert max(found["head"], found["mlp"]) < 0.8
    found = panel.judge(Labelled(["same text"] * 80, corpus.labels, corpus.embeddings), test).accuracies()
    assert found["words"] < 0.8
    assert min(found["head"], found["mlp"]) > 0.9


@pytest.mark.slow
def test_wrong_labels_lower_accuracy_and_rarest_recall_uses_the_test_set() -> None:
    test = draw_labelled_notes(60, 1)
    rare = [label == "heart" or row < 4 for row, label in enumerate(test.labels)]
    test = Labelled(
        [text for text, kept in zip(test.texts, rare, strict=True) if kept],
        [label for label, kept in zip(test.labels, rare, strict=True) if kept],
        test.embeddings[rare],
    )
    good, bad = panel.judge(draw_labelled_notes(80, 0), test), panel.judge(draw_labelled_notes(80, 0, wrong=0.45), test)
    assert good.figures()["accuracy"] > bad.figures()["accuracy"] + 0.05
    injuries = [scores.recall[scores.labels.index("injury")] for scores in bad.models.values()]
    assert bad.figures()["rarest_recall"] == pytest.approx(np.mean(injuries))


def test_panel_trained_on_one_label_predicts_it() -> None:
    corpus, test = draw_labelled_notes(10, 0), draw_labelled_notes(60, 1)
    found = panel.judge(Labelled(corpus.texts, ["heart"] * 10, corpus.embeddings), test)
    assert found.figures()["accuracy"] == pytest.approx(test.labels.count("heart") / 60)


def test_panel_refuses_texts_and_labels_of_different_numbers() -> None:
    corpus, test = draw_labelled_notes(10, 0), draw_labelled_notes(10, 1)
    with pytest.raises(ConfigurationError):
        panel.judge(Labelled(corpus.texts, corpus.labels[:-1], corpus.embeddings), test)
    with pytest.raises(ConfigurationError):
        panel.judge(corpus, Labelled(test.texts, test.labels, test.embeddings[:-1]))


def test_accuracy_by_label_is_a_mean_over_models_and_seeds():
    true = ["a", "a", "b", "b"]
    runs = tuple(
        panel.PanelScores({"words": panel.score(true, words), "head": panel.score(true, head)})
        for words, head in (
            (["a", "a", "b", "a"], ["a", "b", "b", "b"]),
            (["a", "a", "b", "b"], ["a", "a", "c", "b"]),  # c has no test text
        )
    )
    trained = panel.TrainedModels("corpus", 4, "panel", runs, {})
    assert trained.accuracy_by_label == {"a": 0.875, "b": 0.75}
