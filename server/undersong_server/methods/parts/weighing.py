"""Weights of generators by the records' votes for their texts, shrunk by the noise, and the noise of the weights."""

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_server.methods.parts.selection import noise_effect, weights_by_rates
from undersong_server.methods.parts.shares import shrunk_rates, signal_fraction


def weigh_generators(
    votes: Float64, generator_of: Int64, is_candidate: Bools, sigma: float
) -> tuple[Float64, Float64] | None:
    """Returns weights of the generators that ``is_candidate`` marks, and their standard errors, float64 [K] both.

    Args:
        votes: noisy votes for each text, float64 [n]; ``sigma`` is their noise.
        generator_of: number of each text's generator, int64 [n].
        is_candidate: whether a generator may get a weight, bool [K].

    Returns None if no such generator has votes.
    """
    text_count_of_generator = np.maximum(np.bincount(generator_of, minlength=len(is_candidate)), 1)
    vote_rates = np.bincount(generator_of, weights=votes, minlength=len(is_candidate)) / text_count_of_generator
    signal_share = signal_fraction(vote_rates, float(sigma / np.sqrt(text_count_of_generator.mean())))

    def weigh(rates: Float64) -> Float64:
        return weights_by_rates(shrunk_rates(rates, signal_share) * is_candidate)

    if not (shrunk_rates(vote_rates, signal_share) * is_candidate).any():
        return None
    return weigh(vote_rates), noise_effect(weigh, vote_rates, sigma / np.sqrt(text_count_of_generator))
