"""What noisy evidence is believed: nothing where noise explains it, everything where there is none."""

import numpy as np
import pytest

from protocol.vectors import NoisySum
from server import consistency
from server.methods.undersong import Options, believed, plan, trusted
from server.run import Setting
from server.trust import shrunk


def opened(values, sigma):
    return NoisySum(np.rint(np.array(values) * 256).astype(np.int64), 256, sigma, ("p",))


def test_shrinking_estimates_better_than_the_noisy_values():
    rng = np.random.default_rng(0)
    for spread in (0.0, 0.5, 3.0):
        raw, pulled = [], []
        for _ in range(400):
            true = rng.normal(0, spread, 6)
            true -= true.mean()
            seen = true + rng.normal(0, 1.0, 6)
            raw.append(((seen - seen.mean() - true) ** 2).sum())
            pulled.append(((shrunk(seen, 1.0) - true) ** 2).sum())
        # Caution costs a little where the spread is plain, and saves most where there is none.
        assert np.mean(pulled) < {0.0: 0.25, 0.5: 0.5, 3.0: 1.15}[spread] * np.mean(raw)
    assert shrunk(np.array([5.0, 1.0, 0.0]), 0.0) == pytest.approx([3.0, -1.0, -2.0])


def test_without_evidence_the_weights_are_the_mixtures():
    equal = np.full(3, 1 / 3)
    trust = trusted(Options(), 500.0, opened([3, -3, 0], 500.0), 0.0)
    assert trust == pytest.approx(equal)
    assert believed(Options(), equal, trust) == pytest.approx(equal)


def test_strong_evidence_prefers_the_useful_and_well_matched():
    matched, useful = np.array([0.5, 0.3, 0.2]), opened([100, 0, -100], 1.0)
    trust = trusted(Options(), 1000.0, useful, 0.0)
    assert trust[0] / trust[1] == pytest.approx(np.exp(40 * 0.1), rel=0.1)
    weights = believed(Options(), matched, trust)
    assert weights[0] > 10 * weights[1] > 100 * weights[2]
    assert weights.sum() == pytest.approx(1.0)
    assert trusted(Options(), 1000.0, useful, 0.1) == pytest.approx([1 / 3] * 3)  # no more than luck
    assert believed(Options(usefulness=0.0), matched, np.full(3, 1 / 3)) == pytest.approx(matched)
    assert believed(Options(matching=0.0), matched, trust) == pytest.approx(trust)
    silent = believed(Options(), np.array([1.0, 0.0, 0.0]), np.full(3, 1 / 3))
    assert silent.min() == pytest.approx(0.03 / 3.06)


def test_the_plan_asks_for_the_generators_once_and_most():
    requests = plan(Options(rounds=3), Setting(("a", "b"), ("one", "two")))
    assert [request.name for request in requests] == ["places", "useful", "votes/1", "votes/2"]
    assert [request.budget_share for request in requests] == pytest.approx([0.225, 0.675, 0.05, 0.05])
    assert [r.name for r in plan(Options(rounds=2), Setting((), ("one", "two")))] == ["places", "votes/1"]
    assert [r.name for r in plan(Options(rounds=2), Setting(("a", "b"), ("one",)))] == ["votes/1"]


def test_others_judge_a_text_and_its_author_does_not():
    rng = np.random.default_rng(0)
    true = np.tile([0, 1], 60)
    embeddings = (np.eye(2, 6)[true] + 0.2 * rng.normal(size=(120, 6))).astype(np.float32)
    author = np.repeat([0, 1, 2], 40)
    labels = np.where(author == 2, 1 - true, true)  # the third generator swaps every label
    heads = consistency.classifiers(embeddings, labels, author, 3, 2, strength=3.0)
    support = consistency.support(heads, np.array([0.5, 0.4, 0.1]), embeddings, labels, author)
    assert (support[author == 2] < 0).all()
    assert (support[author != 2] > 0).all()


def test_a_label_that_a_generator_never_wrote_is_never_its_answer():
    embeddings = np.eye(3, dtype=np.float32)
    head = consistency.classifier(embeddings, np.array([0, 0, 2]), 3, strength=3.0)
    assert consistency.probabilities(head, embeddings)[:, 1] == pytest.approx([0.0] * 3)
    single = consistency.classifier(embeddings[:1], np.array([1]), 3, strength=3.0)
    assert consistency.probabilities(single, embeddings).argmax(axis=1).tolist() == [1, 1, 1]


def test_the_luck_of_a_classifiers_training_is_its_variance_over_samples():
    rng = np.random.default_rng(0)

    def texts(count):
        true, author = rng.integers(0, 2, count), np.arange(count) % 2
        embeddings = (np.eye(2, 30)[true] + 0.8 * rng.normal(size=(count, 30))).astype(np.float32)
        return embeddings, true, author

    accuracies = []
    for _ in range(40):
        embeddings, labels, author = texts(80)
        head = consistency.classifier(embeddings[author == 0], labels[author == 0], 2, strength=3.0)
        fresh, truth, _ = texts(2000)
        accuracies.append(np.mean(consistency.probabilities(head, fresh).argmax(axis=1) == truth))
    estimates = [consistency.luck(*texts(80), 2, 2, rng, strength=3.0) for _ in range(40)]
    # Halves vary a little more than twice as much, and 40 of the other's texts add their own luck.
    assert 0.7 < np.mean(estimates) / np.var(accuracies) < 4.0
    assert consistency.luck(*texts(800), 2, 2, rng, strength=3.0) < np.mean(estimates)
    embeddings, labels, _ = texts(20)
    assert consistency.luck(embeddings, labels, np.zeros(20, dtype=np.int64), 1, 2, rng, strength=3.0) == 0.0
