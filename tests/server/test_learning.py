import numpy as np
import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import slow_after
from undersong_common.errors import ConfigurationError
from undersong_server import learning
from undersong_server.defaults import HEADS
from undersong_server.evaluation.panel import score


def clusters(rows, classes=3, width=16, spread=0.15, seed=0, flips=0.0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    y = rng.integers(classes, size=rows)
    x = centres[y] + spread * rng.normal(size=(rows, width))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    wrong = rng.random(rows) < flips
    told = np.where(wrong, rng.integers(classes, size=rows), y)
    return x, [f"c{k}" for k in told], [f"c{k}" for k in y]


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_linear_head_learns_separable_classes_deterministically(head):
    x, labels, _ = clusters(300)
    test_x, test_labels, _ = clusters(200, seed=1)
    model = learning.train(x, labels, head=head, seed=3)
    assert score(test_labels, learning.predict(model, test_x)).accuracy > 0.97
    probabilities = model.probabilities(test_x)
    assert probabilities.shape == (200, 3)
    assert np.allclose(probabilities.sum(axis=1), 1)
    again = learning.train(x, labels, head=head, seed=3)
    assert np.array_equal(again.probabilities(test_x), probabilities)


@pytest.mark.slow
def test_training_does_not_change_the_global_random_state():
    import torch

    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.random.get_rng_state().clone(), np.random.get_state()[1].copy()
    threads = torch.get_num_threads()
    x, labels, _ = clusters(80)
    learning.train(x, labels, head="mlp")
    learning.adapt(x, labels, x)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert torch.get_num_threads() == threads


def test_linear_head_is_the_regularised_optimum():
    from sklearn.linear_model import LogisticRegression

    x, labels, _ = clusters(400, spread=0.5)
    model = learning.train(x, labels, head="linear")
    reference = LogisticRegression(C=model.chosen, max_iter=5000, tol=1e-8).fit(x, labels)
    assert np.abs(model.probabilities(x) - reference.predict_proba(x)).max() < 0.01


def test_noisier_labels_get_stronger_regularisation():
    x, labels, _ = clusters(600, spread=0.3, flips=0.6)
    noisy = learning.train(x, labels, head="linear")
    x, labels, _ = clusters(600, spread=0.05)
    clean = learning.train(x, labels, head="linear")
    assert noisy.chosen < clean.chosen


@pytest.mark.slow
def test_automatic_head_is_usually_the_one_that_validates_better():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 8)).astype(np.float32)
    labels = ["odd" if a * b > 0 else "even" for a, b in x[:, :2]]  # no linear head can do this
    assert learning.train(x, labels, head="auto").hidden
    noisy = [clusters(60, spread=0.5, flips=0.5, width=64, seed=seed) for seed in range(6)]
    chosen = [learning.train(x, labels, head="auto").hidden for x, labels, _ in noisy]
    assert sum(map(bool, chosen)) < 3  # a dozen held-out texts decide, so not each time


@pytest.mark.slow
@pytest.mark.parametrize("head", slow_after(["mlp", "three-layer"], 1))
@pytest.mark.parametrize("classes", [2, 4])
def test_mlp_head_predicts_like_scikit_learns_mlp(head, classes, monkeypatch):
    from sklearn.neural_network import MLPClassifier

    made = []
    fit = MLPClassifier.partial_fit
    monkeypatch.setattr(
        MLPClassifier, "partial_fit", lambda self, *a, **k: made.append((self, a[0])) or fit(self, *a, **k)
    )
    x, labels, _ = clusters(120, classes=classes)
    model = learning.train(x, labels, head=head)
    last, inputs = made[-1]
    assert np.allclose(model.probabilities(x), last.predict_proba(inputs), atol=1e-5)


@pytest.mark.slow
def test_three_layer_head_has_two_hidden_layers_and_an_output():
    x, labels, _ = clusters(60)
    model = learning.train(x, labels, head="three-layer")
    assert [weight.shape for weight, _ in model.hidden] == [(16, 256), (256, 256)]
    assert model.weight.shape == (256, 3)
    assert model.features(x).min() == 0.0
    assert "256 and 256 units" in model.description
    assert len(learning.train(x, labels, head="mlp").hidden) == 1


@pytest.mark.slow
def test_heads_can_be_trained_on_tiny_sets_and_a_class_of_one_text():
    x = np.eye(4, dtype=np.float32)
    for head in HEADS:
        model = learning.train(x[:2], ["a", "b"], head=head)
        assert learning.predict(model, x[:2]) == ["a", "b"]
        model = learning.train(x, ["a", "a", "a", "b"], head=head)
        assert set(model.labels) == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"labels": ["a"] * 10}, "too-few-labels"),
        ({"labels": ["a", "b"]}, "labels-do-not-fit"),
        ({"head": "svm"}, "unknown-head"),
    ],
)
def test_training_refuses_invalid_or_single_label_data(arguments, code):
    given = {"labels": ["a", "b"] * 5, **arguments}
    with raises(ConfigurationError, code):
        learning.train(np.zeros((10, 4), dtype=np.float32), **given)


def test_unseen_test_label_counts_as_a_wrong_prediction():
    x, labels, _ = clusters(100)
    model = learning.train(x, labels, head="linear")
    scores = score(["new", "new", *labels[2:4]], learning.predict(model, x[:4]))
    assert scores.accuracy == 0.5
    assert "new" in scores.labels


@pytest.mark.slow
def test_adamw_steps_equal_torchs_adamw_bit_by_bit():
    import torch

    def trained(make):
        rng = torch.Generator().manual_seed(1)
        x, y = torch.randn(64, 8, generator=rng), torch.randint(3, (64,), generator=rng)
        weights = [torch.randn(8, 16, generator=rng), torch.zeros(16), torch.randn(16, 3, generator=rng)]
        optimiser = make([each.requires_grad_() for each in weights])
        for _ in range(30):
            scores = torch.relu(x @ weights[0] + weights[1]) @ weights[2]
            torch.nn.functional.cross_entropy(scores, y).backward()
            optimiser.step()
            for each in weights:
                each.grad = None
        return weights

    ours = trained(lambda weights: learning._AdamW(weights, rate=2e-3, decay=1e-2))
    theirs = trained(lambda weights: torch.optim.AdamW(weights, lr=2e-3, weight_decay=1e-2))
    assert all(map(torch.equal, ours, theirs))
