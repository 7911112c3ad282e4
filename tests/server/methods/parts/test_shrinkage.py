"""What noisy evidence is believed: nothing where noise explains it, everything where there is none."""

import numpy as np
import pytest

from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.label_shares import label_shares, records_shares
from undersong_server.methods.parts.shrinkage import (
    shrink_to_mean,
    smoothed_counts,
)


def opened(values, sigma):
    return NoisySum(np.rint(np.array(values) * 256).astype(np.int64), 256, sigma, ("p",))


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


def test_label_shares_lie_half_way_to_those_estimated_of_the_records():
    halfway = np.sqrt([0.9, 0.09, 0.01 / 0.3])  # the rarest is held at a tenth of an equal share
    found = label_shares(opened([9000, 900, 10], 0.5))
    assert found == pytest.approx(halfway / halfway.sum(), abs=0.01)
    assert records_shares(found) == pytest.approx(halfway**2 / (halfway**2).sum(), abs=0.01)
    raw = np.sqrt([6, 3, 1]) / np.sqrt([6, 3, 1]).sum()
    unsure = label_shares(opened([60, 30, 10], 15.0))
    assert 1 / 3 < unsure[0] < raw[0]
    assert label_shares(opened([-50, 5, 3000], 30.0)).min() > 0.1
