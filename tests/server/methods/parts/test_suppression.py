"""Suppression equals the definition in plain loops; the private mean similarity is unbiased and knows its error."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from undersong_common.models.embedding import quantise
from undersong_server.evaluation.metrics import self_similarity
from undersong_server.methods.parts import selection
from undersong_server.methods.parts.selection import mean_similarity, median_nearest, select_with_suppression


def plain(x, votes, size, tau, step=0.01):
    """The definition: one pass a tau, in descending votes, over those not chosen yet."""
    order = sorted(range(len(x)), key=lambda i: (-votes[i], i))
    chosen, raised = [], 0
    while len(chosen) < min(size, len(x)):
        limit = tau + raised * step
        for i in order:
            if len(chosen) == size:
                break
            if i not in chosen and all(float(x[i].astype(np.float64) @ x[j]) <= limit for j in chosen):
                chosen.append(i)
        raised += 1
    return chosen, tau + (raised - 1) * step


def clustered(rng, count, dimension=6, clusters=4):
    centres = rng.normal(size=(clusters, dimension))
    x = centres[rng.integers(0, clusters, count)] + rng.normal(scale=0.4, size=(count, dimension))
    return quantise((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))


@settings(max_examples=examples(15, 40), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 5), st.sampled_from([1, 3, 512]))
def test_median_nearest_equals_its_definition(seed, count, labels, block):
    rng = np.random.default_rng(seed)
    x, label = clustered(rng, count), rng.integers(0, labels, count)
    nearest = [
        max(float(x[i].astype(np.float64) @ x[j]) for j in range(count) if j != i and label[j] == label[i])
        for i in range(count)
        if (label == label[i]).sum() > 1
    ]
    groups = [np.flatnonzero(label == number) for number in range(labels)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "BLOCK", block)
        tau = median_nearest(x, groups)
    assert tau == pytest.approx(np.median(nearest) if nearest else 1.0, abs=1e-6)


@pytest.mark.heavy
@settings(max_examples=examples(20, 60), deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 50), st.integers(1, 60), st.floats(-0.5, 1.0), st.sampled_from([1, 3, 512])
)
def test_suppression_equals_a_simple_reference_implementation(seed, count, size, tau, block):
    rng = np.random.default_rng(seed)
    x, votes = clustered(rng, count), rng.integers(0, 6, count).astype(np.float64)  # many ties
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "BLOCK", block)
        chosen, last = select_with_suppression(x, votes, size, tau)
    expected, expected_tau = plain(x, votes, size, tau)
    assert chosen.tolist() == expected
    assert last == pytest.approx(expected_tau)


def test_suppression_terminates_when_texts_are_duplicates():
    x = quantise(np.ones((5, 4), dtype=np.float32) / 2)
    chosen, last = select_with_suppression(x, np.arange(5.0), 4, 0.9)
    assert chosen.tolist() == [4, 3, 2, 1]
    assert last == pytest.approx(1.0)


def test_suppression_makes_the_elite_more_diverse_than_ranking_by_votes():
    rng = np.random.default_rng(3)
    x = clustered(rng, 400, dimension=32, clusters=10)
    votes = (x @ x[0]).astype(np.float64)  # everybody votes for one region
    elite, _ = select_with_suppression(x, votes, 40, 0.1)
    assert self_similarity(x[elite]) < self_similarity(x[np.argsort(-votes)[:40]]) - 0.2
    assert elite[0] == np.argmax(votes)


def test_mean_similarity_is_unbiased_and_its_stated_error_holds():
    rng = np.random.default_rng(0)
    x = clustered(rng, 300, dimension=40, clusters=2).astype(np.float64)
    truth, sigma = self_similarity(x), 8.0
    found = [mean_similarity(x.sum(axis=0) + rng.normal(scale=sigma, size=40), sigma, 300) for _ in range(2000)]
    values = np.array([one.value for one in found])
    # the standard error of the mean of 2 000; four of them leave a false alarm rate of 1e-4
    assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(2000) + 1e-4
    assert np.mean([one.error for one in found]) == pytest.approx(values.std(), rel=0.1)
    assert mean_similarity(np.zeros(3), 1.0, 1.2).error == np.inf


def test_error_of_the_mean_similarity_includes_the_noise_of_the_count():
    """As in a run: n comes from a noisy histogram. 2000 draws: the deviation is known to 2 %."""
    rng = np.random.default_rng(4)
    x = clustered(rng, 300, dimension=40, clusters=2).astype(np.float64)
    found = [
        mean_similarity(x.sum(axis=0) + rng.normal(scale=1.0, size=40), 1.0, 300 + rng.normal(scale=9.0), 9.0)
        for _ in range(2000)
    ]
    assert np.mean([each.error for each in found]) == pytest.approx(np.std([each.value for each in found]), rel=0.1)
