from types import SimpleNamespace

import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.tiny_bert import write_bert
from undersong_common.errors import ConfigurationError
from undersong_common.models import fine_tuning
from undersong_common.models.fine_tuning import FineTuning
from undersong_common.text.table import Table
from undersong_server.evaluation import evaluate as evaluation
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.learning import fine_tune, predict

pytestmark = pytest.mark.heavy

GOOD = ["warm calm kind", "kind calm", "warm kind calm calm", "calm warm"]
BAD = ["cold loud rude", "rude loud", "cold rude loud loud", "loud cold"]


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    words = ["warm", "calm", "kind", "cold", "loud", "rude"]
    return write_bert(tmp_path_factory.mktemp("bert"), words)


@pytest.mark.slow
def test_fine_tuned_encoder_learns_and_is_reproducible(tiny_bert):
    settings = FineTuning(tiny_bert, epochs=6, batch=8, learning_rate=2e-2)
    texts, labels = (GOOD + BAD) * 6, (["good"] * 4 + ["bad"] * 4) * 6
    model = fine_tune(texts, labels, settings, seed=1)
    assert predict(model, ["kind warm", "rude cold"]) == ["good", "bad"]
    assert model.probabilities(texts[:3]).shape == (3, 2)
    again = fine_tune(texts, labels, settings, seed=1)
    assert np.array_equal(model.probabilities(texts), again.probabilities(texts))
    assert predict(model, []) == []


@pytest.mark.slow
def test_sample_weights_reach_the_loss_of_fine_tuning(tiny_bert):
    settings = FineTuning(tiny_bert, epochs=6, batch=8, learning_rate=2e-2)
    texts = (GOOD + BAD) * 6
    labels = (["good"] * 4 + ["bad"] * 4) * 6
    swapped = ["bad" if label == "good" else "good" for label in labels]
    weights = np.concatenate([np.full(len(texts), 0.01), np.ones(len(texts))])
    model = fine_tune(texts * 2, labels + swapped, settings, weights=weights, seed=1)
    assert predict(model, ["kind warm", "rude cold"]) == ["bad", "good"]


def test_a_text_beyond_the_model_s_window_is_cut(tiny_bert):
    encoder, tokenizer = fine_tuning.load(tiny_bert, classes=2)
    tokenizer.model_max_length = 8
    settings = FineTuning(tiny_bert, max_tokens=256)
    long_text = " ".join(GOOD)
    assert len(long_text.split()) > tokenizer.model_max_length
    cut_text = " ".join(long_text.split()[:6])  # beside the tokens of its begin and end
    long_logits, cut_logits = fine_tuning.logits(encoder, tokenizer, [long_text, cut_text], settings)
    assert np.array_equal(long_logits, cut_logits)


def test_fine_tuning_says_what_is_wrong_with_the_model_folder(tmp_path):
    with raises(ConfigurationError, "folder-missing"):
        fine_tune(["a", "b"], ["x", "y"], FineTuning(tmp_path / "none"))
    with raises(ConfigurationError, "model-unloadable"):
        fine_tune(["a", "b"], ["x", "y"], FineTuning(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with raises(ConfigurationError, "model-unloadable"):
        fine_tune(["a", "b"], ["x", "y"], FineTuning(tmp_path))
    with raises(ConfigurationError, "too-few-labels"):
        fine_tune(["a", "b"], ["x", "x"], FineTuning(tmp_path))


def test_an_evaluation_s_settings_reach_the_fine_tuning(tiny_bert, monkeypatch):
    seen = []

    def trained(texts, labels, settings, *, seed):
        seen.append(settings)
        return SimpleNamespace(description="tuned", labels=("a",), probabilities=lambda texts: np.ones((len(texts), 1)))

    monkeypatch.setattr(evaluation.learning, "fine_tune", trained)
    table = Table(("one", "two", "three", "four"), ("a", "b", "a", "b"), None)
    options = EvaluationOptions(test=table, bert=tiny_bert, epochs=10, batch=64, learning_rate=1e-5, max_tokens=512)
    vectors = np.eye(4, 8, dtype=np.float32)
    evaluation.evaluate_tables("r", table, options, embed=lambda texts: vectors[: len(texts)], only_task_models=True)
    (settings,) = seen
    assert (settings.epochs, settings.batch, settings.learning_rate, settings.max_tokens) == (10, 64, 1e-5, 512)
