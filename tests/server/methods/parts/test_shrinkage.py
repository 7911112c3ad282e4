"""What noisy evidence is believed: nothing where noise explains it, everything where there is none."""

import numpy as np
import pytest

from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency
from undersong_server.methods.parts.judging import combined_weights, label_shares, records_shares, trust, usefulness
from undersong_server.methods.parts.shrinkage import (
    expected_counts,
    expected_shares,
    shrink_to_mean,
    signal_fraction,
    smoothed_counts,
)


def trusted(useful, *, sample_variance=0.0, strength=40.0, alike=(0, 1, 2), parts=(1.0,)):
    found = usefulness(useful, np.array(parts), np.array(alike), records=1000.0, sample_variance=sample_variance)
    return trust(*found, np.array(alike), strength=strength, rng=lambda: np.random.default_rng(0))


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
    assert unsure.sum() == pytest.approx(1.0)
    assert unsure[0] < certain[0]  # the mean of the shares, not the shares of the mean
    # The true best is often another one than it seems: shares that hedge have the better expected logarithm.
    hedged, plugged = [], []
    for _ in range(300):
        true = rng.normal(0, 0.1, 4)
        seen = true + rng.normal(0, 0.1, 4)
        likely, left = shrink_to_mean(seen, 0.1), 0.1 * np.sqrt(signal_fraction(seen, 0.1))
        likeliest = np.exp(40 * likely)
        hedged.append(np.log(expected_shares(likely, left, 40.0, rng)[true.argmax()]))
        plugged.append(np.log((likeliest / likeliest.sum())[true.argmax()]))
    assert np.mean(hedged) > np.mean(plugged) + 0.04


def test_without_evidence_the_weights_are_the_mixtures():
    equal = np.full(3, 1 / 3)
    unsure = trusted(opened([6, -6, 0], 1000.0))
    assert unsure[:, 0] == pytest.approx(equal)
    assert combined_weights(equal, unsure)[:, 0] == pytest.approx(equal)
    assert trusted(opened([6, -6, 0, -3, 3, 0], 1000.0), parts=(0.5, 0.5)) == pytest.approx(np.full((3, 2), 1 / 3))
    assert label_shares(opened([3, -3, 0], 500.0)) == pytest.approx(equal)


def test_strong_evidence_prefers_the_useful_and_well_matched():
    matched, useful = np.array([0.5, 0.3, 0.2]), opened([100, 0, -100], 1.0)
    found = trusted(useful)
    assert 5 < found[0, 0] / found[1, 0] < np.exp(40 * 0.1)  # the records are few, so less than all of it
    weights = combined_weights(matched, found)[:, 0]
    assert weights[0] > 3 * weights[1] > 9 * weights[2]
    assert weights.sum() == pytest.approx(1.0)
    assert trusted(useful, sample_variance=0.1)[:, 0] == pytest.approx([1 / 3] * 3)  # no more than luck
    assert trusted(useful, strength=0.0)[:, 0] == pytest.approx([1 / 3] * 3)
    assert combined_weights(matched, np.full((3, 2), 1 / 3)) == pytest.approx(np.stack([matched] * 2, axis=1))


def test_generators_of_one_source_have_one_trust():
    useful = opened([100, 0, -100], 1.0)
    found = trusted(useful, alike=(0, 0, 2))[:, 0]
    assert found[0] == found[1] > found[2]
    assert trusted(useful, alike=(0, 0, 0))[:, 0] == pytest.approx([1 / 3] * 3)


def test_generators_are_trusted_for_the_labels_that_they_are_right_about():
    answers = np.array([[90, -90, 0], [-30, 30, 0]])  # of 750 and 250 records, 0.12 each: on the whole the first wins
    found = trusted(opened(answers.ravel(), 1.0), parts=(0.75, 0.25))
    assert found[0, 0] > 3 * found[1, 0]
    assert found[1, 1] > 3 * found[0, 1]
    whole = trusted(opened(answers.sum(axis=0), 1.0))
    assert whole[0, 0] > 3 * whole[1, 0]
    weights = combined_weights(found.mean(axis=1), found)
    assert weights.sum(axis=0) == pytest.approx([1.0, 1.0])
    assert weights[1, 1] > found[1, 1]
    alike = trusted(opened([60, -60, 0, 20, -20, 0], 1.0), parts=(0.75, 0.25))  # both labels say what the whole says
    assert alike[:, 0] == pytest.approx(alike[:, 1], abs=0.01)


@pytest.mark.parametrize("different", [0.0, 0.02, 0.1])
def test_usefulness_by_label_is_nearer_to_the_true_one_than_what_was_opened(different):
    rng, size, sigma = np.random.default_rng(1), np.array([100.0, 300.0, 600.0]), 4.0
    raw, pulled, told = [], [], []
    for _ in range(200):
        true = 0.03 * rng.normal(size=(6, 1)) + different * rng.normal(size=(6, 3))
        true -= true.mean(axis=0)
        seen = true * size + np.sqrt(0.12 * size + sigma**2) * rng.normal(size=(6, 3))
        found, unknown = usefulness(
            opened(seen.T.ravel(), sigma), size / 1000.0, np.arange(6), records=1000.0, sample_variance=0.0
        )
        raw.append(((seen / size - true) ** 2).mean())
        pulled.append(((found - true) ** 2).mean())
        told.append((unknown**2).mean())
    assert np.mean(pulled) < {0.0: 0.3, 0.02: 0.5, 0.1: 0.95}[different] * np.mean(raw)
    assert 0.5 < np.mean(told) / np.mean(pulled) < 1.5


def specialists(rng, known, count=60):
    """Texts of four labels and generators that name those of ``known`` rightly and the others at random."""
    true = np.tile(np.arange(4), len(known) * count // 4)
    embeddings = (np.eye(4, 8)[true] + 0.2 * rng.normal(size=(len(true), 8))).astype(np.float32)
    author = np.repeat(np.arange(len(known)), count)
    right = np.array([label in known[k] for label, k in zip(true, author, strict=True)])
    return embeddings, np.where(right, true, rng.integers(0, 4, len(true))), author, len(known), 4


def test_labels_are_judged_one_by_one_where_generators_contradict_each_other_label_by_label():
    rng = np.random.default_rng(0)
    blocks = []
    for known in ([(0, 1), (2, 3), (0, 2), (1, 3)], [(0, 1, 2, 3)] * 3 + [()], [(0, 1, 2, 3)] * 4, [(0, 1), (2, 3)]):
        texts = specialists(rng, known)
        halves = consistency.Halves.of(*texts, rng)
        assert np.bincount(halves.half_of).tolist() == [len(texts[0]) // 2] * 2
        blocks.append(consistency.blocks([halves], texts[0]).tolist())
    # one that is wrong about all labels is judged whole, and of two nobody can say which one the other contradicts
    assert blocks == [[0, 1, 2, 3], [0] * 4, [0] * 4, [0] * 4]
    embeddings, labels, author, *counts = specialists(rng, [(0, 1, 2, 3)] * 4)
    wrote = ((labels != 3) | (author > 0)) & ((labels != 2) | (author != 1))  # what is not written contradicts nobody
    halves = consistency.Halves.of(embeddings[wrote], labels[wrote], author[wrote], *counts, rng)
    assert consistency.blocks([halves], embeddings[wrote]).tolist() == [0] * 4
    two = (labels < 2) & (rng.random(len(labels)) < np.where((author < 2) & (author != labels), 0.2, 1.0))
    blurred = embeddings[two, :4] + rng.normal(size=(two.sum(), 4)).astype(np.float32)
    halves = consistency.Halves.of(blurred, labels[two], author[two], 4, 2, rng)
    assert max(consistency.agreement(halves, blurred)) < 0.005  # two prefer a label everywhere: so do their classifiers
    few = consistency.Halves.of(embeddings[:2], labels[:2], author[:2], *counts, rng)
    assert consistency.blocks([few], embeddings[:2]).tolist() == [0] * 4


def test_label_shares_lie_half_way_to_those_estimated_of_the_records():
    halfway = np.sqrt([0.9, 0.09, 0.01 / 0.3])  # the rarest is held at a tenth of an equal share
    found = label_shares(opened([9000, 900, 10], 0.5))
    assert found == pytest.approx(halfway / halfway.sum(), abs=0.01)
    assert records_shares(found) == pytest.approx(halfway**2 / (halfway**2).sum(), abs=0.01)
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
    support = consistency.support(heads, np.tile([[0.5], [0.4], [0.1]], 2), embeddings, labels, author)
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

    def luck(embeddings, labels, author, generators):
        halves = consistency.Halves.of(embeddings, labels, author, generators, 2, rng)
        return consistency.training_sample_variance(halves, embeddings, labels, author)

    estimates = [luck(*texts(80), 2) for _ in range(40)]
    # Halves vary a little more than twice as much, and 40 of the other's texts add their own luck.
    assert 0.7 < np.mean(estimates) / np.var(accuracies) < 4.0
    assert luck(*texts(800), 2) < np.mean(estimates)
    embeddings, labels, _ = texts(20)
    assert luck(embeddings, labels, np.zeros(20, dtype=np.int64), 1) == 0.0


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
