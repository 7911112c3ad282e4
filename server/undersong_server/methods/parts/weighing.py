"""Weights of generators by the records' votes for their texts, shrunk by the noise, and the noise of the weights."""

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_server.methods.parts.selection import noise_effect, weights_by_rates
from undersong_server.methods.parts.shares import shrunk_rates, signal_fraction


def weigh_generators(votes: Float64, author: Int64, among: Bools, sigma: float) -> tuple[Float64, Float64] | None:
    """Returns weights of the generators that ``among`` marks, bool [K], and their standard errors, float64 [K] both.

    Args:
        votes: noisy votes for each text, float64 [n]; ``sigma`` is their noise.
        author: number of each text's generator, int64 [n].

    Returns None if no marked generator has votes.
    """
    texts_of_generator = np.maximum(np.bincount(author, minlength=len(among)), 1)
    vote_rates = np.bincount(author, weights=votes, minlength=len(among)) / texts_of_generator
    signal_share = signal_fraction(vote_rates, float(sigma / np.sqrt(texts_of_generator.mean())))

    def weigh(rates: Float64) -> Float64:
        return weights_by_rates(shrunk_rates(rates, signal_share) * among)

    if not (shrunk_rates(vote_rates, signal_share) * among).any():
        return None
    return weigh(vote_rates), noise_effect(weigh, vote_rates, sigma / np.sqrt(texts_of_generator))
