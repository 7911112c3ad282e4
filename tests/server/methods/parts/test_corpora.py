"""The menu and the verdict: weights give cells their shares, evidence moves them, and without it they stay."""

import numpy as np
import pytest

from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import corpora, moments

MIXTURE, TRUSTED, MATCHED, OWN = range(4)


def facts(trust=(0.5, 0.5), label_shares=(0.5, 0.5), own=None, counts=((30, 10), (5, 15))):
    label_of = np.concatenate([np.repeat([0, 1], row) for row in counts])
    generator_of = np.repeat([0, 1], [sum(row) for row in counts])
    trusted = np.broadcast_to(np.array(trust).reshape(2, -1), (2, 2))
    return corpora.Facts(label_of, generator_of, np.array(label_shares), trusted, trusted, own)


def verdict(values, *, sigma, records, expected=(0.0, 0.0, 0.0, -0.01), flattery=(0, 0, 0, 0)):
    """The shares that opened answers give; ``values`` are right answers a record."""
    answers = np.random.default_rng(0).random((2000, 4)) < 0.8
    centred = np.array(values) - np.mean(values)
    opened = NoisySum(np.rint(centred * records * 4096).astype(np.int64), 4096, sigma, ("p",))
    return corpora.verdict(
        corpora.menu("", voted=False), opened, records, answers, np.array(expected), np.array(flattery)
    )


def test_weights_give_generators_and_labels_their_shares_whatever_was_written():
    found = facts(trust=(0.8, 0.2), label_shares=(0.7, 0.3))
    weights = corpora.MENU["trusted"].weigh(found)
    assert np.bincount(found.generator_of, weights=weights) == pytest.approx([0.8, 0.2])
    assert np.bincount(found.label_of, weights=weights) == pytest.approx([0.7, 0.3])
    by_label = facts(trust=((0.9, 0.2), (0.1, 0.8)), label_shares=(0.7, 0.3))
    cells = np.bincount(2 * by_label.generator_of + by_label.label_of, corpora.MENU["trusted"].weigh(by_label))
    assert cells == pytest.approx([0.63, 0.06, 0.07, 0.24])
    plain = corpora.MENU["mixture"].weigh(found)
    assert np.bincount(found.generator_of, weights=plain) == pytest.approx([0.5, 0.5])
    own = facts(own=np.linspace(0.1, 1.0, 60))
    assert corpora.MENU["own-labels"].weigh(own) == pytest.approx(
        corpora.by_shares(own, np.full((2, 2), 0.5)) * own.own
    )


def test_votes_move_weight_within_a_label_and_none_between_labels():
    votes = np.tile([1.0, 9.0], 30)
    found = facts(label_shares=(0.7, 0.3))._replace(voted=votes)
    weights = corpora.MENU["voted"].weigh(found)
    label = found.label_of == 1  # of either generator, whose texts are not equally many
    assert weights[label] / weights[label].min() == pytest.approx(votes[label])
    assert np.bincount(found.label_of, weights=weights) == pytest.approx([0.7, 0.3])
    unasked = facts(label_shares=(0.7, 0.3))
    assert corpora.MENU["voted"].weigh(unasked) == pytest.approx(corpora.MENU["mixture"].weigh(unasked))
    assert "voted" not in corpora.menu("", voted=False)
    assert list(corpora.menu("matched", voted=True)) == ["mixture", "trusted", "own-labels", "voted"]


def test_without_evidence_the_corpus_stays_near_the_one_that_was_expected():
    shares, gains = verdict((0.1, 0.9, 0.1, 0.1), sigma=1e6, records=100.0)
    assert gains == pytest.approx([0, 0, 0, -0.01], abs=1e-3)
    equal, _ = verdict((0.0, 0.0, 0.0, 0.0), sigma=1e6, records=100.0)
    assert shares == pytest.approx(equal, abs=0.01)


def test_evidence_beyond_the_noise_decides():
    shares, gains = verdict((0.5, 0.5, 0.5, 0.9), sigma=2.0, records=1000.0)
    assert shares[OWN] > 0.97
    assert 0.3 < gains[OWN] < 0.4  # shrunk
    shares, _ = verdict((0.8, 0.8, 0.8, 0.6), sigma=2.0, records=1000.0)
    assert shares[OWN] < 0.01
    noisy, _ = verdict((0.80, 0.83, 0.80, 0.80), sigma=20.0, records=1000.0)
    clear, _ = verdict((0.80, 0.83, 0.80, 0.80), sigma=1.0, records=1000.0)
    assert noisy[TRUSTED] < clear[TRUSTED]
    assert clear[TRUSTED] > 0.5


def test_what_was_fitted_to_the_records_is_believed_less_by_what_that_flatters():
    plain, _ = verdict((0.80, 0.80, 0.80, 0.86), sigma=1.0, records=1000.0)
    believed, _ = verdict((0.80, 0.80, 0.80, 0.86), sigma=1.0, records=1000.0, flattery=(0, 0, 0, 0.06))
    assert plain[OWN] > 0.9 > 0.2 > believed[OWN]


def test_a_verdict_without_noise_is_finite():
    shares, gains = verdict((0.8, 0.8, 0.8, 0.8), sigma=0.0, records=100.0)
    assert np.isfinite(shares).all()
    assert np.isfinite(gains).all()
    assert shares.sum() == pytest.approx(1.0)


def test_usefulness_sets_what_is_expected_and_the_bar_what_must_be_passed():
    found = facts(trust=(0.9, 0.1))
    gains = corpora.expected_gains(corpora.MENU, found, np.array([[0.1, 0.1], [-0.1, -0.1]]))
    assert gains[MIXTURE] == 0.0
    assert gains[TRUSTED] == pytest.approx(corpora.GAIN_PER_USEFULNESS * 0.08)
    assert gains[MATCHED] < gains[TRUSTED]
    assert gains[OWN] < 0.0


def labelled(rng, count, wrong=0.0):
    true = rng.integers(0, 2, count)
    texts = (np.eye(2, 8)[true] + 0.3 * rng.normal(size=(count, 8))).astype(np.float32)
    return texts, np.where(rng.random(count) < wrong, 1 - true, true), true


def asked(frame, texts, labels, sigma, rng):
    published = frame.published()
    places = texts.astype(np.float64) @ published[:8] - published[8 + labels]
    places /= np.maximum(1.0, np.linalg.norm(places, axis=1, keepdims=True))
    table = np.zeros((2, moments.DIRECTIONS + 1))
    np.add.at(table, labels, np.column_stack([np.full(len(labels), moments.COUNT), moments.PLACE * places]))
    values = table.ravel() + sigma * rng.normal(size=table.size)
    return moments.LabelMoments.of(frame, NoisySum(np.rint(values * 4096).astype(np.int64), 4096, sigma, ("p",)))


def test_the_records_tell_right_labels_where_most_texts_are_wrong():
    rng = np.random.default_rng(0)
    texts, labels, true = labelled(rng, 800, wrong=0.7)
    records, names, _ = labelled(rng, 400)
    frame = moments.Frame.of(texts, labels, 2)
    found = asked(frame, records, names, 2.0, rng)
    assert found.counts == pytest.approx(np.bincount(names), abs=20)
    own, leverage = moments.posterior(texts, labels, np.ones(800), 2, found)
    assert own[labels == true].mean() > 0.8 > 0.2 > own[labels != true].mean()
    alone, none = moments.posterior(texts, labels, np.ones(800), 2, None)
    assert 0.0 == none < leverage < 1.0
    assert alone[labels == true].mean() < alone[labels != true].mean()  # the public majority is wrong
    drowned, _ = moments.posterior(texts, labels, np.ones(800), 2, asked(frame, records, names, 1e5, rng))
    assert drowned == pytest.approx(alone, abs=0.1)


def test_frames_of_short_embeddings_and_of_missing_labels_are_whole():
    texts, labels, _ = labelled(np.random.default_rng(1), 50)
    frame = moments.Frame.of(texts, np.zeros(50, dtype=np.int64), 3)
    assert frame.directions.shape == (8, moments.DIRECTIONS)
    assert np.isfinite(frame.published()).all()
    assert np.isfinite(moments.posterior(texts, labels, np.ones(50), 3, None)[0]).all()
