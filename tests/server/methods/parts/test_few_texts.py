"""Texts too few or too alike for a variance: every part of the method still gives finite numbers."""

import numpy as np
import pytest

from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts import corpora, moments, record_gradients

ONE = np.eye(8, dtype=np.float32)[:1]


def test_one_text_has_a_frame():
    frame = moments.Frame.of(ONE, np.zeros(1, dtype=np.int64), 2)
    assert np.isfinite(frame.published()).all()


def test_one_text_is_enough_for_a_verdict():
    menu = corpora.menu("", voted=False)
    nothing, answers = np.zeros(len(menu)), np.ones((1, len(menu)), dtype=np.bool_)
    opened = NoisySum(np.zeros(len(menu), dtype=np.int64), 256, 1.0, ())
    found, _ = corpora.verdict(menu, opened, 100.0, answers, nothing, nothing)
    assert found.sum() == pytest.approx(1.0)


def test_texts_whose_labels_the_records_contradict_altogether_are_still_a_corpus():
    labels, x = np.zeros(4, dtype=np.int64), np.repeat(ONE, 4, axis=0)
    frame = moments.Frame.of(x, labels, 2)
    means = np.full((2, moments.DIRECTIONS), 1e3) * np.array([[1.0], [0.0]])
    said = moments.LabelMoments(frame, np.full(2, 1e6), 1e-6, means, np.full(2, 1e-6))
    own, _ = moments.posterior(x, labels, np.ones(4), 2, said)
    assert np.isfinite(own).all()
    assert own.min() > 0


def test_a_gradient_without_noise_moves_what_one_text_says_nothing_of_nowhere():
    def ask(classifier, projections):
        return NoisySum(np.zeros((record_gradients.DIRECTIONS + 1) * 2, dtype=np.int64), 256, 0.0, ())

    found = record_gradients.moved(np.zeros((9, 2)), ONE * 0, np.ones(1), 10.0, [ask])
    assert np.isfinite(found).all()
