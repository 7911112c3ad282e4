"""What noisy evidence is believed: nothing where noise explains it, everything where there is none."""

import numpy as np
import pytest

from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.shares import label_shares, records_shares, shrink_to_mean


def opened(values, sigma):
    return NoisySum(np.rint(np.array(values) * 256).astype(np.int64), 256, sigma, ("p",))


def test_shrunk_estimates_are_nearer_to_the_truth_than_noisy_values():
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


def test_label_shares_lie_halfway_between_equal_and_estimated_shares():
    halfway = np.sqrt([0.9, 0.09, 0.01 / 0.3])  # the rarest is held at a tenth of an equal share
    found = label_shares(opened([9000, 900, 10], 0.5))
    assert found == pytest.approx(halfway / halfway.sum(), abs=0.01)
    assert records_shares(found) == pytest.approx(halfway**2 / (halfway**2).sum(), abs=0.01)
    raw = np.sqrt([6, 3, 1]) / np.sqrt([6, 3, 1]).sum()
    unsure = label_shares(opened([60, 30, 10], 15.0))
    assert 1 / 3 < unsure[0] < raw[0]
    assert label_shares(opened([-50, 5, 3000], 30.0)).min() > 0.1
