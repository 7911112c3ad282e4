"""What noisy evidence is believed: nothing where noise explains it, everything where there is none."""

import numpy as np
import pytest

from undersong_protocol.vectors import NoisySum
from undersong_server.methods.parts import consistency
from undersong_server.methods.parts.judging import combined_weights, label_shares, trust
from undersong_server.methods.parts.shrinkage import expected_counts, expected_shares, shrink_to_mean, smoothed_counts


def trusted(useful, *, sample_variance=0.0, strength=40.0, alike=(0, 1, 2)):
    return trust(
        useful,
        np.array(alike),
        records=1000.0,
        sample_variance=sample_variance,
        strength=strength,
        rng=np.random.default_rng(0),
    )[1]


def opened(values, sigma):
    return NoisySum(np.rint(np.array(values) * 256).astype(np.int64), 256, sigma, ("p",))


def test_expected_counts_are_nearer_to_the_true_ones_and_alike_where_noise_is_all():
    rng = np.random.default_rng(0)
    true = np.where(rng.random(400) < 0.6, 0.0, rng.exponential(8.0, 400))
    for noise, part in ((0.5, 1.05), (3.0, 0.6), (9.0, 0.35)):
        seen = true + noise * rng.normal(size=400)
        found = expected_counts(seen, noise)
        assert ((found - true) ** 2).mean() < part * noise**2
        assert found.min() > 0.0
        assert found[true == 0.0].mean() < true.mean()
    drowned = expected_counts(5.0 + 1000.0 * rng.normal(size=400), 1000.0)
    assert drowned.max() < 1.5 * drowned.min()
    assert expected_counts(true, 0.0) == pytest.approx(true, abs=1.5)
    assert np.isfinite(expected_counts(np.zeros(3), 0.0)).all()


def test_counts_below_the_noise_are_pulled_to_those_of_near_texts_of_their_label():
    rng = np.random.default_rng(0)
    place, labels = rng.normal(size=(400, 3)), np.arange(400) % 2
    x = (place / np.linalg.norm(place, axis=1, keepdims=True)).astype(np.float32)
    true = 4.0 * (1.0 + np.where(labels, x[:, 0], -x[:, 0]))
    seen = true + 5.0 * rng.normal(size=400)
    found, left = smoothed_counts(seen, 5.0, x, labels)
    assert np.sqrt(((found - true) ** 2).mean()) < 0.4 * 5.0
    assert left < 0.5 * 5.0
    drowned, left = smoothed_counts(true + 1e4 * rng.normal(size=400), 1e4, x, labels)
    assert max(drowned.std(), left) < 2e3
    # what stands above its noise stays, and a text without fellows of its label keeps its count
    for counts, noise, where in ((seen, 3.0, labels), (np.array([3.0, 5.0]), 9.0, np.array([0, 1]))):
        kept, left = smoothed_counts(counts, noise, x[: len(counts)], where)
        assert (kept.tolist(), left) == (counts.tolist(), noise)


def test_shrinking_estimates_better_than_the_noisy_values():
    rng = np.random.default_rng(0)
    for spread in (0.0, 0.5, 3.0):
        raw, pulled = [], []
        for _ in range(400):
            true = rng.normal(0, spread, 6)
            true -= true.mean()
            seen = true + rng.normal(0, 1.0, 6)
            raw.append(((seen - seen.mean() - true) ** 2).sum())
            pulled.append(((shrink_to_mean(seen, 1.0) - true) ** 2).sum())
        assert np.mean(pulled) < {0.0: 0.4, 0.5: 0.55, 3.0: 1.02}[spread] * np.mean(raw)
    assert not shrink_to_mean(np.array([1.2, -1.2]), 1.0, caution=3.0).any()
    assert shrink_to_mean(np.array([5.0, 1.0, 0.0]), 0.0) == pytest.approx([3.0, -1.0, -2.0])


def test_expected_shares_hedge_as_far_as_the_values_are_uncertain():
    rng = np.random.default_rng(0)
    values = np.array([0.1, 0.0, -0.1])
    certain = expected_shares(values, 0.0, 40.0, rng)
    assert certain == pytest.approx(np.exp(40 * values) / np.exp(40 * values).sum())
    unsure = expected_shares(values, 0.05, 40.0, rng)
    staked = np.exp(40 * shrink_to_mean(values, 0.05)) / np.exp(40 * shrink_to_mean(values, 0.05)).sum()
    assert unsure.sum() == pytest.approx(1.0)
    assert unsure[0] < staked[0]  # the mean of the shares, not the shares of the mean
    # The true best is often another one than it seems: shares that hedge have the better expected logarithm.
    hedged, plugged = [], []
    for _ in range(300):
        true = rng.normal(0, 0.1, 4)
        seen = true + rng.normal(0, 0.1, 4)
        likeliest = np.exp(40 * shrink_to_mean(seen, 0.1))
        hedged.append(np.log(expected_shares(seen, 0.1, 40.0, rng)[true.argmax()]))
        plugged.append(np.log((likeliest / likeliest.sum())[true.argmax()]))
    assert np.mean(hedged) > np.mean(plugged) + 0.04


def test_without_evidence_the_weights_are_the_mixtures():
    equal = np.full(3, 1 / 3)
    unsure = trusted(opened([6, -6, 0], 1000.0))
    assert unsure == pytest.approx(equal)
    assert combined_weights(equal, unsure) == pytest.approx(equal)
    assert label_shares(opened([3, -3, 0], 500.0)) == pytest.approx(equal)


def test_strong_evidence_prefers_the_useful_and_well_matched():
    matched, useful = np.array([0.5, 0.3, 0.2]), opened([100, 0, -100], 1.0)
    found = trusted(useful)
    assert 5 < found[0] / found[1] < np.exp(40 * 0.1)  # the records are few, so less than all of it
    weights = combined_weights(matched, found)
    assert weights[0] > 3 * weights[1] > 9 * weights[2]
    assert weights.sum() == pytest.approx(1.0)
    assert trusted(useful, sample_variance=0.1) == pytest.approx([1 / 3] * 3)  # no more than luck
    assert trusted(useful, strength=0.0) == pytest.approx([1 / 3] * 3)
    assert combined_weights(matched, np.full(3, 1 / 3)) == pytest.approx(matched)


def test_generators_of_one_source_have_one_trust():
    useful = opened([100, 0, -100], 1.0)
    found = trusted(useful, alike=(0, 0, 2))
    assert found[0] == found[1] > found[2]
    assert trusted(useful, alike=(0, 0, 0)) == pytest.approx([1 / 3] * 3)


def test_label_shares_lie_half_way_to_those_estimated_of_the_records():
    halfway = np.sqrt([0.9, 0.09, 0.01 / 0.3])  # the rarest is held at a tenth of an equal share
    assert label_shares(opened([9000, 900, 10], 0.5)) == pytest.approx(halfway / halfway.sum(), abs=0.01)
    raw = np.sqrt([6, 3, 1]) / np.sqrt([6, 3, 1]).sum()
    unsure = label_shares(opened([60, 30, 10], 15.0))
    assert 1 / 3 < unsure[0] < raw[0]
    assert label_shares(opened([-50, 5, 3000], 30.0)).min() > 0.1


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


@pytest.mark.heavy
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
    estimates = [consistency.training_sample_variance(*texts(80), 2, 2, rng, strength=3.0) for _ in range(40)]
    # Halves vary a little more than twice as much, and 40 of the other's texts add their own luck.
    assert 0.7 < np.mean(estimates) / np.var(accuracies) < 4.0
    assert consistency.training_sample_variance(*texts(800), 2, 2, rng, strength=3.0) < np.mean(estimates)
    embeddings, labels, _ = texts(20)
    assert (
        consistency.training_sample_variance(embeddings, labels, np.zeros(20, dtype=np.int64), 1, 2, rng, strength=3.0)
        == 0.0
    )


def test_generators_are_alike_where_their_texts_cannot_be_told_apart():
    rng = np.random.default_rng(0)
    labels, author = rng.integers(0, 2, 900), np.arange(900) % 3
    shift = np.where(author == 2, 0.3, 0.0)[:, None] * np.eye(12)[5]
    texts = (np.eye(2, 12)[labels] + shift + 0.3 * rng.normal(size=(900, 12))).astype(np.float32)
    assert consistency.alike(texts, labels, author, 3, 2).tolist() == [0, 0, 2]
    swapped = np.where(author == 1, 1 - labels, labels)  # the same texts under wrong labels are not the same source
    assert len(set(consistency.alike(texts, swapped, author, 3, 2).tolist())) == 3
    same = (np.eye(2, 12)[labels] + 0.3 * rng.normal(size=(900, 12))).astype(np.float32)
    assert consistency.alike(same, labels, author, 3, 2).tolist() == [0, 0, 0]
