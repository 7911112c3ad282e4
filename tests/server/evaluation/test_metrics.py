import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from undersong_common.errors import ConfigurationError
from undersong_server.evaluation import metrics


def cloud(rows, width=12, shift=0.0, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return (shift + scale * rng.normal(size=(rows, width))).astype(np.float32)


def test_frechet_distance_equals_the_textbook_formula():
    a, b = cloud(500), cloud(500, shift=0.3, scale=1.4, seed=1) @ np.diag(np.linspace(0.5, 2, 12)).astype(np.float32)
    cov_a, cov_b = np.cov(a.astype(np.float64), rowvar=False), np.cov(b.astype(np.float64), rowvar=False)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    means = ((a.mean(0, dtype=np.float64) - b.mean(0, dtype=np.float64)) ** 2).sum()
    assert metrics.frechet_distance(a, b) == pytest.approx(means + np.trace(cov_a + cov_b - 2 * root), rel=1e-6)


@pytest.mark.parametrize("rows", [2, 10, 63, 64, 65, 200])
def test_frechet_distance_of_a_set_to_itself_is_zero_also_with_fewer_rows_than_dimensions(rows):
    a = cloud(rows, width=64)
    assert metrics.frechet_distance(a, a[::-1]) < 1e-9
    assert metrics.frechet_distance(a, a + np.float32(1)) == pytest.approx(64, rel=1e-5)


def test_frechet_distance_refuses_unequal_sizes():
    with pytest.raises(ValueError, match="bias"):
        metrics.frechet_distance(cloud(10), cloud(11))
    a, b = metrics.equal_rows(cloud(10), cloud(25), seed=4)
    assert len(a) == len(b) == 10
    assert metrics.equal_rows(cloud(10), cloud(25), rows=7)[0].shape == (7, 12)
    with pytest.raises(ValueError, match="cannot draw"):
        metrics.equal_rows(cloud(10), cloud(25), rows=11)


@given(st.integers(2, 9), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_self_similarity_is_the_mean_over_pairs(rows, seed):
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [float(a @ b) for a, b in itertools.combinations(unit, 2)]
    assert metrics.self_similarity(x) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_divergences():
    from scipy.spatial.distance import jensenshannon

    assert metrics.jensen_shannon([3, 1, 0], [1, 1, 5]) == pytest.approx(
        jensenshannon([3, 1, 0], [1, 1, 5], base=2) ** 2
    )
    assert metrics.jensen_shannon([2, 4], [1, 2]) == 0
    assert metrics.length_divergence(["one two"], ["three four"]) == 0
    assert metrics.length_divergence(["one two"], ["word " * 5000]) == 1
    assert metrics.label_divergence(["a", "a"], ["a", "b"]) == pytest.approx(metrics.jensen_shannon([2, 0], [1, 1]))
    with pytest.raises(ValueError, match="not all zero"):
        metrics.jensen_shannon([0, 0], [1, 2])


def test_equal_weights_give_the_draw_of_no_weights():
    rng = np.random.default_rng([3, 0xE9])
    old = [np.sort(rng.choice(size, size=20, replace=False)) for size in (50, 30)]
    for weights in (None, np.ones(50), np.full(50, 0.3), np.full(50, 0.1) * (1 + 1e-15 * np.arange(50))):
        found = metrics.equal_choice(50, 30, rows=20, seed=3, weights=weights)
        assert [each.tolist() for each in found] == [each.tolist() for each in old]
        ours, theirs = metrics.equal_choice(50, 80, seed=3, weights=weights)
        assert ours.tolist() == list(range(50))
        assert theirs.tolist() == metrics.equal_choice(50, 80, seed=3)[1].tolist()


@given(st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.0, 7.0, 1e6]), min_size=1, max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_a_weighted_draw_has_different_rows_that_weigh_something(weights, data):
    there = np.count_nonzero(weights)
    if there == 0:
        assert len(metrics.equal_choice(len(weights), 9, weights=weights)[0]) == 0
        return
    rows = data.draw(st.integers(0, there))
    drawn = metrics.equal_choice(len(weights), 30, rows=rows, seed=data.draw(st.integers(0, 99)), weights=weights)[0]
    assert len(set(drawn.tolist())) == len(drawn) == rows
    assert drawn.tolist() == sorted(drawn)
    assert all(weights[row] > 0 for row in drawn)
    with pytest.raises(ValueError, match="cannot draw"):
        metrics.equal_choice(len(weights), 99, rows=there + 1, weights=weights)


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = np.repeat([4.0, 1.0], [100, 200])
    drawn = np.zeros(300)
    for seed in range(400):
        drawn[metrics.equal_choice(300, 150, rows=150, seed=seed, weights=weights)[0]] += 1
    assert (drawn[:100] == 400).all()  # each heavy row at its bound, drawn for certain
    assert drawn[100:].mean() == pytest.approx(100)
    assert abs(drawn[100:] - 100).max() < 5.5 * np.sqrt(400 * 0.25 * 0.75)  # false alarm about 1e-5


def test_the_distance_is_that_of_the_weighted_mixture():
    """Two clusters of 800 texts, three quarters of the weight on the second: as a corpus of a quarter and three."""
    near, far = cloud(800), cloud(800, shift=2.0, seed=1)
    corpus = np.concatenate([near, far])
    reference = cloud(600, seed=2)
    draws = [metrics.equal_choice(1600, 600, seed=seed, weights=np.repeat([1.0, 3.0], 800)) for seed in range(20)]
    assert {len(ours) for ours, _ in draws} == {600}
    weighted = np.mean([metrics.frechet_distance(corpus[ours], reference[theirs]) for ours, theirs in draws])
    mixture = metrics.frechet_distance(np.concatenate([near[:150], far[:450]]), reference)
    unweighted = metrics.frechet_distance(np.concatenate([near[:300], far[:300]]), reference)
    assert weighted == pytest.approx(mixture, rel=0.03)
    assert unweighted < 0.8 * mixture


def test_where_weights_differ_as_many_are_drawn_as_the_effective_number():
    weights = np.repeat([1.0, 3.0], 50)  # (50 + 150)^2 / (50 + 450)
    assert metrics.effective_number(weights) == 80
    assert [len(each) for each in metrics.equal_choice(100, 500, weights=weights)] == [80, 80]
    assert [len(each) for each in metrics.equal_choice(100, 60, weights=weights)] == [60, 60]
    assert [len(each) for each in metrics.equal_choice(100, 500, rows=100, weights=weights)] == [100, 100]
    assert metrics.effective_number(np.full(12345, 0.1)) == 12345
    assert metrics.effective_number([]) == metrics.effective_number([0.0, 0.0]) == 0
    assert metrics.effective_number([1e300, 1e300]) == metrics.effective_number([1e-300, 1e-300]) == 2


def test_rows_of_one_text_under_several_labels_are_one_text():
    def found(texts, labels, weights):
        rows, weighed = metrics.distinct_texts(texts, labels, weights)
        return rows.tolist(), weighed.tolist()

    assert found("abac", "xxyx", [0.25, 1.0, 0.75, 1.0]) == ([0, 1, 3], [1.0, 1.0, 1.0])
    assert found("abac", "xxyx", [1.0, 1.0, 1.0, 1.0]) == ([0, 1, 3], [1.5, 0.75, 0.75])
    assert found("aab", None, [1.0, 2.0, 1.0]) == ([0, 2], [1.5, 0.5])
    assert found("aabb", "xyxy", [0.5] * 4) == ([0, 2], [1.0, 1.0])
    # A generator's repetitions are no text under several labels, and nothing is known without weights.
    assert found("aab", "xxx", [2.0, 2.0, 2.0]) == ([0, 1, 2], [1.0, 1.0, 1.0])
    assert found("aab", "xyx", None) == ([0, 1, 2], [1.0, 1.0, 1.0])


def test_weights_at_their_edges():
    rows, weights = metrics.distinct_texts("abc", "xxy", [0.0, 4.0, 0.0])  # all on one text
    assert (rows.tolist(), weights.tolist()) == ([1], [1.0])
    assert [len(each) for each in metrics.equal_choice(1, 5, weights=weights)] == [1, 1]
    assert np.isnan(metrics.self_similarity(cloud(3), [0.0, 4.0, 0.0]))
    rows, weights = metrics.distinct_texts("abc", "xxy", [0.0, 0.0, 0.0])
    assert len(rows) == len(weights) == 0
    assert np.isnan(metrics.label_divergence("xxy", "xy", [0, 0, 0]))
    assert np.isnan(metrics.length_divergence([], ["a b"], []))
    assert metrics.distinct_texts("a", "x", [0.3])[1].tolist() == [1.0]
    assert len(metrics.distinct_texts((), (), ())[0]) == 0
    for wrong in ([1.0], [1.0, -1.0, 1.0], [1.0, np.nan, 1.0]):
        with pytest.raises(ConfigurationError, match="not usable"):
            metrics.distinct_texts("abc", "xxy", wrong)


def test_figures_of_all_texts_are_of_a_corpus_that_has_each_as_often_as_it_weighs():
    texts, labels, weights = ["one two", "one two three four", "one"], ["x", "x", "y"], [1, 2, 5]
    often = np.repeat(np.arange(3), weights)
    others, other_labels = ["one", "one two three"], ["x", "y"]
    assert metrics.length_divergence(texts, others, weights) == pytest.approx(
        metrics.length_divergence([texts[row] for row in often], others)
    )
    assert metrics.label_divergence(labels, other_labels, weights) == pytest.approx(
        metrics.label_divergence([labels[row] for row in often], other_labels)
    )
    x = cloud(3)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = [weights[a] * weights[b] * float(unit[a] @ unit[b]) for a, b in itertools.combinations(range(3), 2)]
    assert metrics.self_similarity(x, weights) == pytest.approx(sum(cosines) / (1 * 2 + 1 * 5 + 2 * 5))
    assert metrics.self_similarity(x, [0.2] * 3) == metrics.self_similarity(x)
