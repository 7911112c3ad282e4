"""Students and discriminants: they find what the sums say, and believe no noise."""

import numpy as np
import pytest

from undersong_common.models.embedding import quantise
from undersong_protocol.statistics.teachers import Whitening
from undersong_server.methods import discriminator
from undersong_server.methods.parts.discrimination import discrimination

WIDTH, CLASSES = 12, 3


def candidates(count=900, seed=0):
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % CLASSES
    spread = np.linspace(0.02, 0.12, WIDTH)
    return quantise(0.4 * np.eye(WIDTH)[classes] + spread * rng.normal(size=(count, WIDTH))), classes


def draw_records(shift, seed=1, count=900):
    x, classes = candidates(count, seed)
    return quantise(x + shift[classes]), classes


SHIFT = np.stack([0.08 * np.eye(WIDTH)[6] + 0.08 * np.eye(WIDTH)[7 + label] for label in range(CLASSES)])


def auc(found, shift, seed=5):
    x, classes = draw_records(shift, seed)
    other, of = candidates(seed=seed + 1)
    return discrimination(found.scores((), x, classes), classes, found.scores((), other, of), of)[1]


def moments(sigma, shift=SHIFT, weights=(1.0, 1.0, 1.0), seed=3):
    x, classes = candidates()
    real, of = draw_records(shift)
    rng = np.random.default_rng(seed)
    chosen = rng.random(len(of)) < np.array(weights)[of]
    real, of = real[chosen], of[chosen]
    sums = np.stack([real[of == label].sum(axis=0) for label in range(CLASSES)])
    counts = np.bincount(of, minlength=CLASSES).astype(float)
    return discriminator.linear_discriminant(
        Whitening(x, classes, CLASSES),
        sums + sigma * rng.normal(size=sums.shape),
        counts + sigma * rng.normal(size=CLASSES),
        sigma=sigma,
        count_sigma=sigma,
    )


def test_moments_separate_shifted_texts_and_ignore_pure_noise():
    exact, noisy = moments(0.0), moments(4.0)
    assert auc(exact, SHIFT) > 0.8
    assert auc(exact, SHIFT) - 0.05 < auc(noisy, SHIFT) <= auc(exact, SHIFT) + 0.02
    drowned = [np.linalg.norm(moments(1e3, 0 * SHIFT, seed=seed).directions) for seed in range(10)]
    assert np.median(drowned) < 0.3 * np.linalg.norm(exact.directions)


def test_rare_class_borrows_the_direction_of_the_other_classes():
    common = np.tile(0.1 * np.eye(WIDTH)[6], (CLASSES, 1))
    found = moments(4.0, common, weights=(1.0, 1.0, 0.02))
    rare = found.directions[2] / np.linalg.norm(found.directions[2])
    rich = found.directions[0] / np.linalg.norm(found.directions[0])
    assert rare @ rich > 0.7


def test_discriminant_scores_are_finite_without_any_records():
    x, classes = candidates()
    found = discriminator.linear_discriminant(
        Whitening(x, classes, CLASSES), np.zeros((CLASSES, WIDTH)), np.full(CLASSES, -2.0), sigma=1.0, count_sigma=1.0
    )
    assert np.isfinite(found.scores((), x, classes)).all()


def student(sigma, votes):
    x, classes = candidates()
    q, of = candidates(600, seed=9)
    truth = (q * SHIFT[of]).sum(axis=1)
    truth -= np.array([truth[of == label].mean() for label in range(CLASSES)])[of]
    counts = votes * (0.5 + np.clip(truth / truth.std() / 6, -0.5, 0.5))
    counts += sigma * np.random.default_rng(4).normal(size=len(q))
    return discriminator.fit_student(
        Whitening(x, classes, CLASSES), q, of, counts, sigma=sigma, teacher_count=100, class_count=CLASSES
    )


@pytest.mark.heavy
def test_student_learns_from_clear_votes_but_not_from_noise():
    assert auc(student(0.0, 100.0), SHIFT) > 0.75
    assert auc(student(10.0, 100.0), SHIFT) > 0.7  # sigma a tenth of the teachers: what the plan calls useful
    drowned = student(10_000.0, 100.0)
    clear = student(0.0, 100.0)
    assert np.linalg.norm(drowned.directions) < 0.2 * np.linalg.norm(clear.directions)
    silent = discriminator.fit_student(
        Whitening(*candidates(), CLASSES),
        *candidates(30),
        np.zeros(30),
        sigma=5.0,
        teacher_count=9,
        class_count=CLASSES,
    )
    assert not silent.directions.any()


def test_discrimination_compares_only_pairs_of_the_same_class():
    rng = np.random.default_rng(0)
    real, synthetic = rng.integers(0, 6, 40).astype(float), rng.integers(0, 5, 60).astype(float)
    of, other = np.arange(40) % 2, np.arange(60) % 3
    accuracy, area = discrimination(real, of, synthetic, other)
    pairs = [(np.sign(real[of == label][:, None] - synthetic[other == label]).mean() + 1) / 2 for label in (0, 1)]
    assert area == pytest.approx(np.mean(pairs))
    assert 0.0 <= accuracy <= 1.0
    assert discrimination(real, of, synthetic, other + 5) == (0.5, 0.5)
    same = np.zeros(40)
    assert discrimination(same, of, np.zeros(60), other) == (0.5, 0.5)
