"""The lengths of the private texts, from one noisy histogram that any method may be given: 2 % of its budget."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np

from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LengthHistogram
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.metadata import RANGE_EDGES, length_range, shares_of_counts

NAME = "lengths"


def with_lengths(requests: Sequence[SumRequest], share: float) -> list[SumRequest]:
    """The requests, and before them the histogram with its share of the budget; their shares keep their ratios.

    Raises ConfigurationError for sums that divide their budget themselves.
    """
    asked = SumRequest(NAME, LengthHistogram(RANGE_EDGES), 1.0)
    if any(request.epsilon is not None or request.noise_multiplier is not None for request in requests):
        raise ConfigurationError(
            "privacy.lengths: the method divides its budget itself",
            'set privacy.lengths = false, or accounting = "joint"',
        )
    total = sum(request.budget_share for request in requests)
    return [replace(asked, budget_share=total * share / (1.0 - share), law=requests[0].law), *requests]


def draw_by(opened: NoisySum) -> Callable[[Random], int]:
    """Draws lengths in words as the opened histogram has them: a bin by its share, any length within it alike.

    Bins outside the range that stands out of the noise are left out.
    """
    low, high = length_range(opened.natural, opened.sigma)
    edges = np.array(RANGE_EDGES)
    inside = (edges[:-1] >= low) & (edges[1:] <= high)
    shares = shares_of_counts(np.where(inside, opened.natural, 0.0))
    likely = np.where(inside, shares, 0.0)
    weights = (likely if likely.sum() > 0 else inside.astype(np.float64)).tolist()
    bins = list(pairwise(RANGE_EDGES))

    def draw(random: Random) -> int:
        first, beyond = random.choices(bins, weights)[0]
        return max(1, random.randrange(first, beyond))

    return draw
