"""Precision, recall, density and coverage: against plain loops and the authors' own packages."""

import numpy as np
import pytest

import undersong_server.evaluation.metrics as module
from undersong_server.evaluation.metrics import neighbourhoods


def cloud(rows, *, width=12, shift=0.0, scale=1.0, seed=0):
    return (np.random.default_rng(seed).normal(size=(rows, width)) * scale + shift).astype(np.float32)


def test_precision_and_recall_equal_a_plain_loop(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_MIB", 7 * 40 * 8 / 2**20)  # the blocks' seams are what can go wrong
    a, b = cloud(40, width=3), cloud(40, width=3, shift=0.8, scale=0.7, seed=1)

    def covered(points, balls):
        radius = [sorted(np.linalg.norm(x - y) for j, y in enumerate(balls) if j != i)[2] for i, x in enumerate(balls)]
        return np.mean([any(np.linalg.norm(p - c) <= r for c, r in zip(balls, radius, strict=True)) for p in points])

    found = neighbourhoods(a, b)
    assert found["precision"] == pytest.approx(covered(a, b))
    assert found["recall"] == pytest.approx(covered(b, a))


def test_precision_of_identical_sets_is_one_despite_duplicate_points():
    points = np.zeros((6, 3), dtype=np.float32)
    assert neighbourhoods(points, points)["precision"] == 1


def test_density_and_coverage_equal_those_of_prdc():
    """prdc 0.2, compute_prdc(real_features=real, fake_features=synthetic) with nearest_k=3 and 5."""
    rng = np.random.default_rng(7)
    synthetic = rng.normal(size=(60, 5)).astype(np.float32)
    real = (rng.normal(size=(60, 5)) * 0.8 + 0.4).astype(np.float32)
    narrow, wide = neighbourhoods(synthetic, real), neighbourhoods(synthetic, real, neighbour_count=5)
    assert (narrow["precision"], narrow["recall"]) == pytest.approx((0.6666666666666666, 0.95))
    assert (wide["precision"], wide["recall"]) == pytest.approx((0.8, 0.9666666666666667))
    assert (narrow["density"], narrow["coverage"]) == pytest.approx((0.4966666666666667, 0.7166666666666667))


def test_neighbourhood_figures_of_too_few_points_are_refused():
    with pytest.raises(ValueError, match="no 5 neighbours"):
        neighbourhoods(cloud(5), cloud(50))
