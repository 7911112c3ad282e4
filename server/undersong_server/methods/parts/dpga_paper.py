"""DPGA-TextSyn's own accounting (Sun et al. 2025), for comparison: epsilon is divided, each mechanism stands alone.

0.2 of epsilon is for two searches of the length range, 0.1 for each of three Laplace histograms, 0.5 for all votes.
Here one coarse Laplace histogram takes the place of the two searches (docs/dpga.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import Privacy, SumRequest
from undersong_protocol.statistics import LengthHistogram, TopQVotes
from undersong_protocol.statistics.metadata import MetadataHistograms
from undersong_protocol.wire.public import Input
from undersong_server.methods.interface import RunContext
from undersong_server.methods.parts.metadata import RANGE_EDGES

RANGE, HISTOGRAM, VOTES = 0.2, 0.1, 0.5  # of epsilon


def requests(
    privacy: Privacy | None, metadata: MetadataHistograms, votes: TopQVotes, *, rounds: int, sampling: float
) -> list[SumRequest]:
    """The private sums of the paper's division: the parts of ``metadata`` one by one, then ``rounds`` votes.

    Raises ConfigurationError where epsilon is not known.
    """
    if privacy is None:
        raise ConfigurationError('method.accounting = "paper" divides epsilon, which is not known here')
    labels, one = metadata.labels, HISTOGRAM * privacy.epsilon
    asked = []
    if metadata.length_bins:
        coarse = LengthHistogram(RANGE_EDGES)
        lengths = MetadataHistograms(labels, length_bins=metadata.length_bins, count_labels=False)
        asked.append(SumRequest("length range", coarse, law="laplace", epsilon=RANGE * privacy.epsilon))
        asked.append(SumRequest("metadata/length", lengths, law="laplace", epsilon=one))
    asked.append(SumRequest("metadata/label", MetadataHistograms(labels), law="laplace", epsilon=one))
    if metadata.keywords:
        subclasses = MetadataHistograms(labels, keywords=metadata.keywords, count_labels=False)
        asked.append(SumRequest("metadata/keyword", subclasses, law="laplace", epsilon=one))
    multiplier = sigma(privacy.epsilon, privacy.delta, rounds, sampling)
    return asked + [
        SumRequest(f"votes/{t}", votes, sampling_rate=sampling, noise_multiplier=multiplier)
        for t in range(1, rounds + 1)
    ]


def histograms(run: RunContext, inputs: Sequence[Input]) -> tuple[tuple[Float64, Float64, Float64], float]:
    """Noisy label, length and keyword counts, one release each, and the noise of a label's count.

    Args:
        inputs: "length_edges" and "keywords" as far as they are in the plan; the other counts are empty.
    """
    given = {one.name: one for one in inputs}
    by_label = run.private_sum("metadata/label", [])

    def counts(name: str, needed: str) -> Float64:
        return run.private_sum(name, [given[needed]]).natural if needed in given else np.zeros(0)

    by_length = counts("metadata/length", "length_edges")
    by_keyword = counts("metadata/keyword", "keywords")
    return (by_label.natural, by_length, by_keyword), by_label.sigma


@cache
def sigma(epsilon: float, delta: float, rounds: int, sampling: float) -> float:
    """Noise of one vote where all votes have half of epsilon for themselves, accounted exactly.

    >>> sigma(float("inf"), 1e-5, 10, 0.8)
    0.0
    """
    return accounting.calibrate(lambda one: [accounting.Gaussian(one, sampling, rounds)], VOTES * epsilon, delta)


@cache
def sigma_composed_jointly(epsilon: float, delta: float, rounds: int, sampling: float) -> float:
    """Noise of one vote where the paper's own mechanisms are composed exactly instead of divided."""
    return accounting.calibrate(
        lambda one: [*_metadata(epsilon), accounting.Gaussian(one, sampling, rounds)], epsilon, delta
    )


def figures(privacy: Privacy, *, rounds: int, sampling: float, divided: bool) -> Mapping[str, float]:
    """The paper's sigma and what its mechanisms really spend with it; if ``divided``, its sigma composed jointly."""
    given = privacy.epsilon, privacy.delta, rounds, sampling
    own = sigma(*given)
    spent = accounting.epsilon([*_metadata(privacy.epsilon), accounting.Gaussian(own, sampling, rounds)], privacy.delta)
    found = {"sigma": own * privacy.norm_factor, "epsilon_really_spent": spent}
    if divided:
        found["sigma_composed_jointly"] = sigma_composed_jointly(*given) * privacy.norm_factor
    return found


def note(asked: Sequence[SumRequest], epsilon: float) -> str:
    """Returns the division of ``epsilon`` among the private sums, for ``undersong plan``."""
    parts = [f"{request.epsilon:g} {request.name}" for request in asked if request.epsilon is not None]
    return (
        f"Budget divided as in the paper (epsilon): {', '.join([*parts, f'{VOTES * epsilon:g} all votes together'])}."
    )


def _metadata(epsilon: float) -> list[accounting.Event]:
    """Two searches for the ends of the range, of which only pure epsilon is known, and three Laplace histograms."""
    return [accounting.Pure(RANGE / 2 * epsilon, 2), accounting.Laplace(1 / (HISTOGRAM * epsilon), 3)]
