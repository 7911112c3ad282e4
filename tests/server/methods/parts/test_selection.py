import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from undersong_server.methods.parts.selection import (
    balanced_labels,
    draw_by_weight,
    effective_size,
    highest,
    largest_remainder,
    noise_effect,
    significant_votes,
    weights_by_votes,
)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 1000))
def test_largest_remainder_counts_lie_within_one_of_the_exact_shares(weights, total):
    counts = largest_remainder(weights, total)
    assert counts.sum() == total
    exact = (
        np.array(weights) / sum(weights) * total if sum(weights) > 0 else np.full(len(weights), total / len(weights))
    )
    assert np.all(np.abs(counts - exact) < 1 + 1e-6)


def test_noise_effect_on_weights_equals_the_deviation_over_many_draws():
    received, written = np.array([80.0, 40.0, 30.0]), np.array([60, 50, 40])
    deviations = 0.6 * np.sqrt(written)
    told = noise_effect(lambda votes: weights_by_votes(votes, written), received, deviations)
    drawn = received + np.random.default_rng(5).normal(size=(2000, 3)) * deviations
    shown = np.std([weights_by_votes(votes, written) for votes in drawn], axis=0)
    assert np.all(np.abs(told / shown - 1.0) < 0.15)


def test_highest_prefers_the_lower_index_in_a_tie():
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), np.array([0, 1, 2, 3]), 3).tolist() == [1, 2, 3]
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), np.array([3, 0]), 5).tolist() == [3, 0]


def test_weights_are_votes_per_sample_with_negative_sums_as_zero():
    weights = weights_by_votes(np.array([7.0 - 1.0, -30.0, 3.0]), np.array([2, 1, 1]))
    # votes a sample: (7 - 1) / 2, none (a negative sum), 3
    assert weights.tolist() == [0.5, 0.0, 0.5]


def test_weights_are_equal_when_no_sum_is_positive():
    assert weights_by_votes(np.array([-1.0, -2.0]), np.array([1, 1])).tolist() == [0.5, 0.5]


def test_generator_without_samples_gets_the_mean_weight():
    weights = weights_by_votes(np.array([4.0, 2.0, 0.0]), np.array([1, 1, 0]))
    assert np.allclose(weights, np.array([4.0, 2.0, 3.0]) / 9.0)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 8))
def test_balanced_label_counts_differ_by_at_most_one(count, labels, start):
    already = np.arange(labels) + start
    dealt = np.bincount(balanced_labels(count, labels, already), minlength=labels)
    assert dealt.sum() == count
    assert dealt.max() - dealt.min() <= 1


@pytest.mark.parametrize(
    ("count", "already", "expected"), [(1, [5, 2, 9], [0, 1, 0]), (5, [5, 2, 3], [1, 2, 2]), (4, [1, 1, 1], [2, 1, 1])]
)
def test_balanced_labels_gives_the_rest_to_labels_with_fewest_samples(count, already, expected):
    dealt = balanced_labels(count, 3, np.array(already))
    assert np.bincount(dealt, minlength=3).tolist() == expected


def test_only_votes_above_what_noise_explains_are_significant():
    rng = np.random.default_rng(0)
    among = np.arange(1000)
    alone = [len(significant_votes(rng.normal(0, 5.0, 1000), among, 5.0)) for _ in range(2000)]
    assert 0.002 < np.mean(alone) < 0.03
    scores = rng.normal(0, 5.0, 1000)
    scores[:20] += 60.0
    assert set(range(20)) <= set(significant_votes(scores, among, 5.0).tolist())
    assert significant_votes(np.array([0.0, 1.0, -1.0]), np.arange(3), 0.0).tolist() == [1]
    assert len(significant_votes(scores, among[:0], 5.0)) == 0


@pytest.mark.heavy
@given(st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.0, 7.0, 1e6]), min_size=1, max_size=30), st.integers(0, 99))
@settings(max_examples=examples(50, 200), deadline=None)
def test_weighted_draw_gives_distinct_texts_as_many_as_the_effective_size(weights, seed):
    w = np.array(weights)
    drawn = draw_by_weight(w, np.random.default_rng(seed)).tolist()
    assert drawn == sorted(set(drawn))
    assert all(weights[row] > 0 for row in drawn)
    assert effective_size(w) - 1 < len(drawn) <= effective_size(w) + 1e-6


@pytest.mark.heavy
def test_text_is_drawn_in_proportion_to_its_weight_but_at_most_once():
    weights = np.repeat([1.5, 0.5, 0.1], 400)
    drawn = np.zeros(1200)
    for seed in range(400):
        drawn[draw_by_weight(weights, np.random.default_rng(seed))] += 1 / 400
    assert drawn.sum() == pytest.approx(int(effective_size(weights)))
    chance = np.repeat(drawn.reshape(3, 400).mean(axis=1), 400)
    assert chance[0] == pytest.approx(1.0)
    assert chance[400] / chance[800] == pytest.approx(5.0, abs=0.02)
    assert (
        np.abs(drawn - chance) <= 5.5 * np.sqrt(chance * np.maximum(1 - chance, 0.0) / 400) + 1e-9
    ).all()  # false alarm about 1e-5


def test_weighted_draw_keeps_all_texts_when_weights_are_equal():
    for weight in (0.1, 0.3, 1e300, 1e-300):
        assert draw_by_weight(np.full(12345, weight), np.random.default_rng(0)).tolist() == list(range(12345))
