"""The distance of a corpus to the records after each round, from one private sum of the records' embeddings.

With n records of the summed unit embeddings S, opened once as S + z (z of standard deviation sigma in each of d
coordinates), and m the mean embedding of a corpus, |m - (S + z) / n|^2 - d sigma^2 / n^2 estimates the squared distance
|m - S / n|^2 of the two means without bias. All rounds share z: further rounds cost nothing, and the difference of two
rounds has the standard error 2 sigma |m_t - m_s| / n, which is far below that of either.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import EmbeddingSum
from undersong_protocol.statistics.vectors import NoisySum

NAME = "distance"


@dataclass(frozen=True)
class DistanceEstimate:
    """An estimate with the standard error that the noise of the sum gives it."""

    value: float
    error: float


def with_distance(requests: Sequence[SumRequest], embedding_size: int, share: float) -> list[SumRequest]:
    """Returns the requests and, after them, one for the records' mean embedding, which gets ``share`` of the budget."""
    return append_sum(requests, SumRequest(NAME, EmbeddingSum(embedding_size)), share, "privacy.distance")


def append_sum(requests: Sequence[SumRequest], further_request: SumRequest, share: float, key: str) -> list[SumRequest]:
    """Returns the requests and, after them, ``further_request``, which gets ``share`` of the budget.

    If each other request has a noise of its own, such as its paper's, ``further_request`` gets all that they leave.
    Raises ConfigurationError, which names the option ``key``, for Laplace sums, because these divide epsilon otherwise.
    """
    if any(request.law != "gaussian" for request in requests):
        raise ConfigurationError(
            f"{key}: this sum cannot be added to a method whose sums have Laplace noise", f"set {key} = false"
        )
    total_share = sum(request.budget_share for request in requests if request.noise_multiplier is None)
    return [
        *requests,
        replace(further_request, budget_share=total_share * share / (1.0 - share) if total_share else 1.0),
    ]


def squared_distance(opened: NoisySum, record_count: int, mean: Float64) -> DistanceEstimate:
    """Estimates the squared distance of a corpus's ``mean`` embedding, float64 [d], to the records' mean embedding."""
    noise = opened.sigma / record_count
    noisy_distance = float(np.square(mean - opened.natural / record_count).sum())
    debiased_distance = noisy_distance - len(mean) * noise**2
    return DistanceEstimate(
        debiased_distance, math.sqrt(4 * noise**2 * max(debiased_distance, 0.0) + 2 * len(mean) * noise**4)
    )


def squared_distance_change(opened: NoisySum, record_count: int, mean: Float64, earlier: Float64) -> DistanceEstimate:
    """Returns by how much the squared distance of ``mean`` is above that of an ``earlier`` mean, float64 [d] both."""
    distance_change = (
        squared_distance(opened, record_count, mean).value - squared_distance(opened, record_count, earlier).value
    )
    return DistanceEstimate(distance_change, 2 * opened.sigma * float(np.linalg.norm(mean - earlier)) / record_count)
