import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from undersong_server.methods.parts.doubt import noise_effect
from undersong_server.methods.parts.selection import (
    balanced_labels,
    generator_weights,
    highest,
    largest_remainder,
    significant_votes,
    weights_by_votes,
)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 1000))
def test_largest_remainder_deals_everything_and_is_within_one_of_the_exact_share(weights, total):
    counts = largest_remainder(weights, total)
    assert counts.sum() == total
    exact = (
        np.array(weights) / sum(weights) * total if sum(weights) > 0 else np.full(len(weights), total / len(weights))
    )
    assert np.all(np.abs(counts - exact) < 1 + 1e-6)


def test_the_effect_of_noise_on_weights_is_what_many_draws_show():
    received, written = np.array([80.0, 40.0, 30.0]), np.array([60, 50, 40])
    deviations = 0.6 * np.sqrt(written)
    told = noise_effect(lambda votes: weights_by_votes(votes, written), received, deviations)
    drawn = received + np.random.default_rng(5).normal(size=(2000, 3)) * deviations
    shown = np.std([weights_by_votes(votes, written) for votes in drawn], axis=0)
    assert np.all(np.abs(told / shown - 1.0) < 0.15)


def test_highest_breaks_ties_towards_the_lower_index():
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), np.array([0, 1, 2, 3]), 3).tolist() == [1, 2, 3]
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), np.array([3, 0]), 5).tolist() == [3, 0]


def test_weights_follow_votes_per_sample_with_a_negative_sum_counted_as_none():
    votes = np.array([7.0, -1.0, -30.0, 3.0])
    weights = generator_weights(votes, np.array([0, 0, 1, 2]), 3)
    # votes a sample: (7 - 1) / 2, none (a negative sum), 3
    assert weights.tolist() == [0.5, 0.0, 0.5]


def test_no_votes_at_all_means_equal_weights():
    assert generator_weights(np.array([-1.0, -2.0]), np.array([0, 1]), 2).tolist() == [0.5, 0.5]


def test_a_generator_without_samples_keeps_the_mean_weight():
    weights = generator_weights(np.array([4.0, 2.0]), np.array([0, 1]), 3)
    assert np.allclose(weights, np.array([4.0, 2.0, 3.0]) / 9.0)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 8))
def test_labels_are_as_even_as_can_be(count, labels, start):
    already = np.arange(labels) + start
    dealt = np.bincount(balanced_labels(count, labels, already), minlength=labels)
    assert dealt.sum() == count
    assert dealt.max() - dealt.min() <= 1


def test_only_scores_that_noise_does_not_explain_stand_out():
    rng = np.random.default_rng(0)
    among = np.arange(1000)
    alone = [len(significant_votes(rng.normal(0, 5.0, 1000), among, 5.0)) for _ in range(2000)]
    assert 0.002 < np.mean(alone) < 0.03
    scores = rng.normal(0, 5.0, 1000)
    scores[:20] += 60.0
    assert set(range(20)) <= set(significant_votes(scores, among, 5.0).tolist())
    assert significant_votes(np.array([0.0, 1.0, -1.0]), np.arange(3), 0.0).tolist() == [1]
    assert len(significant_votes(scores, among[:0], 5.0)) == 0
