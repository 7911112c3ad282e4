"""Soft labels: a strength that holds for other generators' texts, and labels that teach a given classifier."""

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_server.evaluation import task_model
from undersong_server.methods.parts import consistency, soft_labels

WIDTH, EACH = 24, 60


def unit(rng, count):
    return quantise(rng.normal(size=(count, WIDTH)))


def pools(rng, generators, quirk):
    """Texts of several generators whose labels follow one boundary and, so far, one of each generator's own."""
    x = unit(rng, EACH * generators)
    author = np.repeat(np.arange(generators), EACH)
    own = rng.normal(size=(generators, WIDTH)) * quirk
    return x, (x[:, 0] * 3 + (x * own[author]).sum(axis=1) > 0).astype(np.int64), author


def rightness(x, y, author, generators, weights=None):
    weights = np.ones(len(x)) if weights is None else weights
    return soft_labels.rightness_for_others(x, y, author, generators, 2, weights)


def taught(head, x, y, weights):
    """The task model that learns from the labels, as probabilities of label 1."""
    found = soft_labels.labels_that_teach(head, x, y, weights, soft_labels.STRONGEST)
    text, label = np.nonzero(found)
    model = task_model.fit_linear(
        x[text],
        label,
        _mean_one(weights[text] * found[text, label]),
        2,
        soft_labels.STRONGEST * len(x) / len(text),
    )
    return consistency.probabilities(model, x)[:, 1]


def _mean_one(weights):
    return weights / weights.mean()


def test_generators_with_quirks_of_their_own_are_followed_less_closely():
    rng = np.random.default_rng(0)
    common, quirky = (rightness(*pools(rng, 4, quirk), 4) for quirk in (0.0, 1.5))
    assert len(common) == len(quirky) == len(soft_labels.STRENGTHS)
    assert common.min() > quirky.max() > 0.5
    assert soft_labels.strength_for_others(None, quirky) in soft_labels.CAREFUL
    assert soft_labels.strength_for_others(None, common) not in soft_labels.CAREFUL


def test_what_falls_twice_is_tried_no_further_but_up_to_the_first_close_strength(monkeypatch):
    x, y, author = pools(np.random.default_rng(6), 2, 0.0)
    tried = []

    def right(head, held, *_):
        tried.append(head)
        return len(held) / (1.0 + head)

    monkeypatch.setattr(soft_labels, "classifier", lambda *_, strength, **__: strength)
    monkeypatch.setattr(soft_labels, "_rightness", right)
    found = rightness(x, y, author, 2)
    assert sorted(set(tried)) == [*soft_labels.CAREFUL, soft_labels.CLOSE[0]]
    assert found == pytest.approx([1 / 1.1, 1 / 1.2, 1 / 1.3, 1 / 1.5, 0.5, 0.5, 0.5, 0.5])


def test_what_is_tried_on_little_of_the_corpus_counts_little(monkeypatch):
    x, y, author = pools(np.random.default_rng(5), 2, 0.0)
    weights = np.where(author == 0, 1.9, 0.1)
    monkeypatch.setattr(soft_labels, "classifier", lambda *_, strength, **__: strength)
    monkeypatch.setattr(
        soft_labels, "_rightness", lambda head, tried, *_: 0.5 * len(tried) * np.array_equal(tried[0], x[0])
    )
    assert rightness(x, y, author, 2) == pytest.approx(np.full(8, 0.25))
    # texts of the first, tried on 0.05 of the corpus, beside 0.95 of it
    weighed = 0.05**2 * 0.5 * EACH / (0.05**2 * 1.9 * EACH + 0.95**2 * 0.1 * EACH)
    assert rightness(x, y, author, 2, weights) == pytest.approx(np.full(8, weighed))


FLAT, CLOSER, LOOSER = np.full(8, 0.8), np.linspace(0.80, 0.82, 8), np.linspace(0.82, 0.80, 8)


def test_first_round_and_corpus_decide_together_whether_to_be_careful_and_the_corpus_how_much():
    chosen = soft_labels.strength_for_others
    assert chosen(None, CLOSER) == 5.0
    assert chosen(2 * LOOSER - 0.8, CLOSER) == soft_labels.CAREFUL[-1]  # together flat: the corpus counts twice
    assert chosen(LOOSER, CLOSER) == 5.0
    assert chosen(FLAT, CLOSER) == 5.0
    assert chosen(CLOSER, LOOSER + 0.001 * (np.arange(8) == 1)) in soft_labels.CAREFUL
    assert chosen(4 * CLOSER - 2.4, LOOSER) == soft_labels.CLOSE[0]  # the best of those that are left
    assert chosen(FLAT, FLAT) == soft_labels.CAREFUL[0]


def test_a_little_that_is_more_right_does_not_speak_against_care():
    for more, careful in ((0.0014, True), (0.0016, False)):
        found = soft_labels.strength_for_others(None, FLAT + more * (np.arange(8) == 5))
        assert (found in soft_labels.CAREFUL) == careful


@pytest.mark.parametrize("best", range(8))
def test_the_first_round_alone_is_sure_below_the_largest_careful_strength(best):
    peak = FLAT + 0.01 * (np.arange(8) == best)
    assert soft_labels.surely_careful(peak) == (soft_labels.STRENGTHS[best] <= 0.3)


def test_nothing_is_known_where_no_generator_can_be_tried_on_another():
    x, y, author = pools(np.random.default_rng(1), 2, 0.0)
    assert rightness(x, y, np.zeros_like(author), 1) is None
    assert rightness(x, y, author, 2, weights=2.0 * (author == 0)) is None
    assert rightness(x, y, author, 2) is not None
    apart = np.where(author == 0, 0, 1)  # each wrote another label: nothing that one says can be tried on the other
    assert rightness(x, apart, author, 2) is None


def test_a_task_model_learns_the_classifier_from_its_labels():
    rng = np.random.default_rng(2)
    x, y, _ = pools(rng, 4, 1.5)
    weights = _mean_one(rng.uniform(0.5, 1.5, size=len(x)))
    for strength_ in (0.3, 1.0, 3.0):
        head = consistency.classifier(x, y, 2, strength=strength_, weights=weights)
        wanted = consistency.probabilities(head, x)[:, 1]
        assert taught(head, x, y, weights) == pytest.approx(wanted, abs=0.03)


def test_labels_are_shares_of_few_labels_that_occur():
    rng = np.random.default_rng(3)
    x = unit(rng, 200)
    y = x[:, :5].argmax(axis=1)
    y[y == 4] = 0  # a label without a text
    head = consistency.classifier(x, y, 5, strength=1.0, weights=np.ones(200))
    found = soft_labels.labels_that_teach(head, x, y, np.ones(200), soft_labels.STRONGEST)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert not found[:, 4].any()
    assert found[found > 0].min() >= soft_labels.LEAST_PROBABILITY
    assert (found > 0).sum(axis=1).max() <= soft_labels.LIKELIEST


def test_fewer_texts_than_components_have_labels_too():
    rng = np.random.default_rng(4)
    x = unit(rng, 10)
    y = np.arange(10) % 2
    head = consistency.classifier(x, y, 2, strength=1.0)
    found = soft_labels.labels_that_teach(head, x, y, np.ones(10), soft_labels.STRONGEST)
    assert np.isfinite(found).all()
    assert (found.argmax(axis=1) == y).mean() >= 0.7


def test_a_text_that_all_of_many_labels_fit_alike_has_few_labels_too():
    x, y = unit(np.random.default_rng(5), 1)[np.zeros(60, dtype=np.int64)], np.arange(60)
    found = soft_labels.labels_that_teach(np.zeros((x.shape[1] + 1, 60)), x, y, np.ones(60), soft_labels.STRONGEST)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert (found > 0).sum(axis=1).max() <= soft_labels.LIKELIEST
