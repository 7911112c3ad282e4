"""Biases move by how far records lie from their labels' texts, as far as noise lets them, and nothing else moves."""

import numpy as np
import pytest

from undersong_common.embedding import quantise
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.projections import Projections
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import consistency, thresholds

WIDTH = 8
EQUAL = {2: [0.5, 0.5], 4: [0.25] * 4}
UNEQUAL = {2: [0.7, 0.3], 4: [0.4, 0.3, 0.2, 0.1]}


class Labelled:
    """Vectors around a centre for each label, all moved by the same."""

    def __init__(self, rng, count, shares, moved):
        self.labels = rng.choice(len(shares), size=count, p=shares)
        centres = 1.2 * np.eye(WIDTH)[: len(shares)]
        self.embeddings = quantise((centres[self.labels] + moved + 0.6 * rng.normal(size=(count, WIDTH))) / 3.0)
        self.units = np.arange(count)

    def __len__(self):
        return len(self.units)


def shifted(labels, seed, shares=EQUAL):
    """Texts, records that lie elsewhere (in a direction that tells the first label from the second), a classifier."""
    rng = np.random.default_rng(seed)
    texts = Labelled(rng, 1500, EQUAL[labels], 0.0)
    records = Labelled(rng, 6000, shares[labels], 0.12 * (np.eye(WIDTH)[0] - np.eye(WIDTH)[1]))
    return texts, records, consistency.classifier(texts.embeddings, texts.labels, labels, strength=1.0)


def at_thresholds(head, texts, records, sigma, seed=0):
    statistic, rng = Projections(directions=head.shape[1] - 1, labels=head.shape[1]), np.random.default_rng(seed)

    def ask(projections):
        public = PublicInputs(numbers={"projections": projections})
        total = statistic.rows(records, public, {}).take(np.arange(len(records))).sum(axis=0)
        values = total + sigma * rng.normal(size=total.shape)
        return NoisySum(np.rint(values * 4096).astype(np.int64), 4096, sigma, ("p",))

    return thresholds.at_thresholds(head, texts.embeddings, texts.labels, np.ones(len(texts)), len(records), ask)


def logits(head, labelled):
    """Of each label's vectors their mean logits, around the mean of the logits: float64 [C, C]."""
    found = labelled.embeddings @ head[:-1] + head[-1]
    found -= found.mean(axis=1, keepdims=True)
    return np.stack([found[labelled.labels == label].mean(axis=0) for label in range(head.shape[1])])


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("shares", [EQUAL, UNEQUAL])
def test_records_get_the_logits_that_texts_of_their_label_have_however_many_bear_it(labels, shares):
    texts, records, head = shifted(labels, 5, shares)
    found = at_thresholds(head, texts, records, 2.0)
    np.testing.assert_array_equal(found[:-1], head[:-1])  # only biases move
    far = logits(head, records) - logits(head, texts)
    left = logits(found, records) - logits(head, texts)
    assert np.abs(far.mean(axis=0)).max() > 0.12
    assert np.abs(left.mean(axis=0)).max() < 0.04


@pytest.mark.parametrize("labels", [2, 4])
def test_thresholds_stay_where_noise_is_all(labels):
    texts, records, head = shifted(labels, 6)
    found = at_thresholds(head, texts, records, 1e6)
    np.testing.assert_allclose(found - head, 0.0, atol=1e-3)


def test_a_bias_moves_by_what_is_expected_beside_the_known_noise():
    """With noise of the size of what is expected, half-way; a hundred records' own chance is smaller than that."""
    texts, _, head = shifted(2, 7)
    contrast = np.array([1.0, -1.0]) / np.sqrt(2)
    along = texts.embeddings @ head[:-1] @ contrast
    for label in (0, 1):
        along[texts.labels == label] -= along[texts.labels == label].mean()
    spread, asked = float((along**2).mean()), {}

    def ask(projections):
        along, published = head[:-1] @ contrast, projections[:WIDTH, 0]
        asked["unit"] = float(along @ along / (along @ published))  # its sign is that of the direction
        sigma = 0.15 * np.sqrt(spread) * 1e6 * np.sqrt(0.75) / abs(asked["unit"])
        return NoisySum(np.array([5e5, 1e5]) * 1024, 1024, sigma, ("p",))

    found = thresholds.at_thresholds(head, texts.embeddings, texts.labels, np.ones(len(texts)), 1e6, ask)
    moved = (found[-1] - head[-1]) @ contrast
    assert moved == pytest.approx(-0.5 * 0.1 * asked["unit"] / np.sqrt(0.75), rel=1e-3)
    assert (found[-1] - head[-1]).sum() == pytest.approx(0.0, abs=1e-12)


def test_thresholds_do_not_depend_on_a_constant_added_to_all_logits():
    texts, records, head = shifted(4, 7)
    raised = head.copy()
    raised[-1] += 2.0
    plain, found = (at_thresholds(each, texts, records, 5.0) for each in (head, raised))
    np.testing.assert_allclose(found[-1] - plain[-1], 2.0, atol=1e-9)


def test_texts_count_by_their_weights():
    """A text without weight is as if it were not there."""
    texts, _, head = shifted(2, 8)
    given_ = {}

    def ask(projections):
        given_[len(given_)] = projections
        return NoisySum(np.array([0, 0]), 1024, 1.0, ("p",))

    half = np.arange(len(texts)) < 700
    thresholds.at_thresholds(head, texts.embeddings, texts.labels, half * 2.0, 100.0, ask)
    thresholds.at_thresholds(head, texts.embeddings[half], texts.labels[half], np.ones(700), 100.0, ask)
    centres = [each[WIDTH:] / np.linalg.norm(each[:WIDTH]) for each in given_.values()]
    assert centres[0] == pytest.approx(centres[1], abs=1e-3)


def test_a_label_without_texts_leaves_the_others_comparable_even_without_noise():
    texts, records, _ = shifted(2, 8)
    head = consistency.classifier(texts.embeddings, texts.labels, 3, strength=1.0)  # the third has no text
    found = at_thresholds(head, texts, records, 0.0)
    assert np.isfinite(found).all()
    left = logits(found[:, :2], records) - logits(head[:, :2], texts)
    assert np.abs(left.mean(axis=0)).max() < 0.04
    assert set((records.embeddings @ found[:-1] + found[-1]).argmax(axis=1).tolist()) == {0, 1}
