import itertools

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from undersong_common.text import overlap
from undersong_server.evaluation import metrics
from undersong_server.evaluation.panel import score


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
def test_frechet_distance_to_itself_is_zero_also_for_few_rows(rows):
    a = cloud(rows, width=64)
    assert metrics.frechet_distance(a, a[::-1]) < 1e-9
    assert metrics.frechet_distance(a, a + np.float32(1)) == pytest.approx(64, rel=1e-5)


def test_frechet_distance_refuses_unequal_sizes():
    with pytest.raises(ValueError, match="bias"):
        metrics.frechet_distance(cloud(10), cloud(11))
    a, b = overlap.equal_rows(cloud(10), cloud(25), seed=4)
    assert len(a) == len(b) == 10
    assert overlap.equal_rows(cloud(10), cloud(25), rows=7)[0].shape == (7, 12)
    with pytest.raises(ValueError, match="cannot draw"):
        overlap.equal_rows(cloud(10), cloud(25), rows=11)


@given(st.integers(2, 9), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_self_similarity_is_the_mean_over_pairs(rows, seed):
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [float(a @ b) for a, b in itertools.combinations(unit, 2)]
    assert metrics.self_similarity(x) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_label_and_length_divergences_equal_jensen_shannon():
    from scipy.spatial.distance import jensenshannon

    assert metrics.label_divergence("aaab", "abccccc") == pytest.approx(
        jensenshannon([3, 1, 0], [1, 1, 5], base=2) ** 2
    )
    assert metrics.label_divergence("abb", "aabbbb") == pytest.approx(0)
    assert metrics.length_divergence(["one two"], ["three four"]) == 0
    assert metrics.length_divergence(["one two"], ["word " * 5000]) == pytest.approx(1)


def test_divergence_from_an_empty_set_is_not_a_number():
    assert np.isnan(metrics.length_divergence([], ["a b"]))
    assert np.isnan(metrics.label_divergence([], ["a"]))
    assert np.isnan(metrics.self_similarity(cloud(1)))


def test_macro_and_weighted_averages_equal_scikit_learn_s():
    """Song et al. 2024, Table 1: precision, recall and F1 of the task model, against an independent computation."""
    from sklearn.metrics import precision_recall_fscore_support

    rng = np.random.default_rng(0)
    true, predicted = (rng.choice(list(names), size=90).tolist() for names in ("abcd", "abce"))
    found = score(true, predicted).averages
    for average, ending in (("macro", "_of_all_labels"), ("weighted", "")):
        figures = precision_recall_fscore_support(true, predicted, average=average, zero_division=0)
        for name, figure in zip(("precision", "recall", "f1"), figures, strict=False):
            assert found[f"{average}_{name}{ending}"] == pytest.approx(figure)
    assert found.items() <= score(true, predicted).as_dict().items()  # as `undersong evaluate --json` prints it
