"""Privacy loss of a Gaussian release on a Poisson subsample, all points of the grid at once.

What is computed is dp-accounting's own discretisation (Connect the Dots: Doroshenko et al. 2022, algorithm 1, never
below the truth); only the inverse of the loss, which that library takes point by point, is in closed form here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from undersong_common.arrays import Float64


def loss_distribution(noise_multiplier: float, sampling_rate: float, cell: float) -> Any:
    """dp_accounting's PrivacyLossDistribution of one release, both directions of add/remove adjacency.

    Args:
        noise_multiplier: above 0. ``sampling_rate``: in (0, 1). ``cell``: interval of the losses.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    masses = []
    for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        bounds = GaussianPrivacyLoss(
            noise_multiplier, sampling_prob=sampling_rate, adjacency_type=adjacency
        ).connect_dots_bounds()
        lowest, highest = math.floor(bounds.epsilon_lower / cell), math.ceil(bounds.epsilon_upper / cell)
        losses = np.arange(lowest, highest + 1) * cell
        deltas = hockey_stick(losses, noise_multiplier, sampling_rate, removed=adjacency is AdjacencyType.REMOVE)
        masses.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(cell, lowest, highest, deltas))
    return PrivacyLossDistribution(*masses)


def hockey_stick(losses: Float64, sigma: float, rate: float, *, removed: bool) -> Float64:
    """sup over sets of P - e^loss Q, float64 [n], where N is N(0, sigma^2) and M is (1 - rate) N + rate N(1, sigma^2).

    With ``removed`` P = M and Q = N: a unit that takes part with probability ``rate`` is taken out; else P = N and
    Q = M. M / N rises with x, so that the best set is a half-line whose end solves M / N = e^loss (or e^-loss).

    >>> hockey_stick(np.array([0.0, 0.5]), 1.0, 0.5, removed=True).round(6).tolist()
    [0.191462, 0.079945]
    """
    from scipy.special import log_ndtr, ndtr

    signed = losses if removed else -losses
    above, below = (
        np.maximum(signed, 0.0),
        np.minimum(signed, 0.0),
    )  # each is used in the range in which it neither overflows nor cancels
    weight = np.expm1(below) + rate  # (M / N at the end - (1 - rate)); not above 0 where M / N never falls so low
    with np.errstate(divide="ignore"):
        logarithm = np.where(
            signed > 0.0, above + np.log1p((rate - 1.0) * np.exp(-above)), np.log(np.maximum(weight, 0.0))
        )
    end = sigma * (logarithm - math.log(rate)) + 0.5 / sigma  # in units of sigma
    if removed:
        nothing = np.where(signed > 0.0, np.exp(logarithm + log_ndtr(-end)), weight * ndtr(-end))
        found = rate * ndtr(1.0 / sigma - end) - nothing
    else:
        mixed = np.logaddexp(math.log1p(-rate) + log_ndtr(end), math.log(rate) + log_ndtr(end - 1.0 / sigma))
        found = ndtr(end) - np.exp(losses + mixed)
    result: Float64 = np.clip(found, 0.0, 1.0)
    return result
