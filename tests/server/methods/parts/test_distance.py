"""The private distance by round: unbiased, with the standard errors that it states, and paid for once."""

import numpy as np
import pytest

from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelHistogram, TopQVotes
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.distance import (
    NAME,
    squared_distance,
    squared_distance_change,
    with_distance,
)

SIZE, RECORDS, SIGMA, SCALE, DRAWS = 40, 300, 9.0, 1 << 20, 4000


def opened(noisy: np.ndarray) -> NoisySum:
    values = np.rint(noisy * SCALE).astype(np.int64)
    return NoisySum(values=values, scale=SCALE, sigma=SIGMA, survivors=())


@pytest.mark.heavy
def test_distance_estimates_are_unbiased_and_their_stated_errors_hold():
    """Bounds of five standard errors of the mean, and 8 % of the deviation: an alarm in fewer than one of 10^5 runs."""
    rng = np.random.default_rng(3)
    records = rng.normal(size=SIZE)
    records *= 0.6 * RECORDS / np.linalg.norm(records)
    means = rng.normal(size=(2, SIZE)) * 0.06
    truth = np.square(means - records / RECORDS).sum(axis=1)
    found, changes = [], []
    for _ in range(DRAWS):
        noisy = opened(records + rng.normal(0.0, SIGMA, SIZE))
        found.append(squared_distance(noisy, RECORDS, means[1]).value)
        changes.append(squared_distance_change(noisy, RECORDS, means[1], means[0]).value)
    exact = opened(records)
    noise = SIGMA / RECORDS
    error = np.sqrt(4 * noise**2 * truth[1] + 2 * SIZE * noise**4)
    change = squared_distance_change(exact, RECORDS, means[1], means[0])
    assert np.mean(found) == pytest.approx(truth[1], abs=5 * error / np.sqrt(DRAWS))
    assert np.std(found) == pytest.approx(error, rel=0.08)
    assert np.mean(changes) == pytest.approx(truth[1] - truth[0], abs=5 * change.error / np.sqrt(DRAWS))
    assert np.std(changes) == pytest.approx(change.error, rel=0.08)
    assert change.error == pytest.approx(2 * SIGMA * np.linalg.norm(means[1] - means[0]) / RECORDS)
    assert change.error < error


def votes(noise_multiplier: float | None = None) -> list[SumRequest]:
    statistic = TopQVotes(q=1, candidates=60, labels=2, furthest=False)
    return [SumRequest(f"votes/{t}", statistic, noise_multiplier=noise_multiplier) for t in range(3)]


def test_distance_sum_gets_its_share_of_mu_squared_and_epsilon_is_kept():
    plan = plan_sums(with_distance(votes(), SIZE, 0.05), Privacy(4.0, 1e-5), Quorum(1, 1, 0, 0))
    mu_squared = {planned.name: (planned.l2 / planned.sigma) ** 2 for planned in plan.sums}
    assert list(mu_squared)[-1] == NAME
    assert mu_squared[NAME] / sum(mu_squared.values()) == pytest.approx(0.05, rel=1e-3)
    assert plan.epsilon() == pytest.approx(4.0, rel=1e-4)


def test_distance_sum_gets_the_budget_left_by_a_papers_fixed_noise():
    plan = plan_sums(with_distance(votes(noise_multiplier=8.0), SIZE, 0.05), Privacy(4.0, 1e-5), Quorum(1, 1, 0, 0))
    assert [planned.sigma for planned in plan.sums[:3]] == pytest.approx([8.0] * 3, rel=1e-3)
    assert plan.epsilon() == pytest.approx(4.0, rel=1e-4)


def test_distance_sum_beside_laplace_sums_is_refused():
    laplace = [SumRequest("labels", LabelHistogram(2), law="laplace", epsilon=1.0)]
    with pytest.raises(ConfigurationError, match=r"privacy\.distance"):
        with_distance(laplace, SIZE, 0.05)
