"""DPGA-TextSyn's own accounting (Sun et al. 2025, section 4, App. B, D.3): epsilon is divided, each part stands alone.

0.2 of epsilon is for two searches of the length range, 0.1 for each of three Laplace histograms, 0.5 for all votes.
Several parties cannot run the searches; one coarse Laplace histogram takes their place (docs/dpga.md), or in a
simulation a curator's AboveThreshold over exact lengths.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from undersong_common.arrays import Float64
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import accounting
from undersong_protocol.statistics import LengthHistogram, MetadataHistograms, TopQVotes
from undersong_server.methods.interface import Input, Privacy, RunContext, SumRequest
from undersong_server.methods.parts.metadata import RANGE_EDGES

RANGE, HISTOGRAM, VOTES = 0.2, 0.1, 0.5  # of epsilon
LONGEST = 1023  # words, in the exact histogram of a curator


def requests(
    privacy: Privacy | None,
    metadata: MetadataHistograms,
    votes: TopQVotes,
    *,
    rounds: int,
    sampling: float,
    curator: bool = False,
) -> list[SumRequest]:
    """The private sums of the paper's division: the parts of ``metadata`` one by one, then ``rounds`` votes.

    Args:
        privacy: the promise by the paper's accounting; None if it is not known.
        curator: counts every length without noise, for AboveThreshold.

    Raises ConfigurationError where epsilon is not known.
    """
    if privacy is None:
        raise ConfigurationError('method.accounting = "paper" divides epsilon, which is not known here')
    labels, one = metadata.labels, HISTOGRAM * privacy.epsilon
    asked = []
    if metadata.length_bins:
        found = SumRequest("length range", LengthHistogram(RANGE_EDGES), law="laplace", epsilon=RANGE * privacy.epsilon)
        if curator:
            found = SumRequest("length range", LengthHistogram(tuple(range(LONGEST + 1))), noise_multiplier=0.0)
        lengths = MetadataHistograms(labels, length_bins=metadata.length_bins, count_labels=False)
        asked.append(found)
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
    """Opens the label, length and keyword histograms: their noisy counts, and the standard deviation of a label's.

    Args:
        inputs: "length_edges" and "keywords", if the plan has their histograms; counts without an input are empty.
    """
    given = {one.name: one for one in inputs}
    by_label = run.private_sum("metadata/label", [])

    def counts(name: str, needed: str) -> Float64:
        return run.private_sum(name, [given[needed]]).natural if needed in given else np.zeros(0)

    by_length = counts("metadata/length", "length_edges")
    by_keyword = counts("metadata/keyword", "keywords")
    return (by_label.natural, by_length, by_keyword), by_label.sigma


def length_range(counts: Float64, epsilon: float | None, rng: np.random.Generator) -> tuple[int, int]:
    """Shortest and longest length by two searches of half of the part of ``epsilon`` each (3.2.1, 4.1).

    From 0 up, the first length that no more records than a noisy threshold of 0 exceed; from there down, likewise, the
    first below which there are no more. The paper says of the minimum that it is found in the same way.

    Args:
        counts: exact records of each length, float64 [n].
        epsilon: epsilon of all mechanisms together; None adds no noise.
    """
    half = math.inf if epsilon is None else RANGE * epsilon / 2
    longest = above_threshold(counts.sum() - np.cumsum(counts), half, rng)
    shorter = np.cumsum(counts)[:longest][::-1] - counts[:longest][::-1]  # than longest - 1, longest - 2, ...
    shortest = longest - 1 - above_threshold(shorter, half, rng)
    return max(0, shortest), max(longest, shortest, 0) + 1


def above_threshold(queries: Float64, epsilon: float, rng: np.random.Generator) -> int:
    """DPGA-TextSyn, App. B.2, Algorithm 1, with threshold 0: the first query whose noisy answer does not exceed it.

    Noise of Laplace scale 2 / epsilon for the threshold and 4 / epsilon for each answer; the last query if none ends.
    """
    threshold = rng.laplace(0.0, 2.0 / epsilon)
    ended = np.flatnonzero(queries + rng.laplace(0.0, 4.0 / epsilon, len(queries)) <= threshold)
    return int(ended[0]) if len(ended) else max(0, len(queries) - 1)


@cache
def sigma(epsilon: float, delta: float, rounds: int, sampling: float) -> float:
    """Noise of one vote by 4.2: analytic Gaussian of sigma / sqrt(T) (Lemma B.4), amplified as one mechanism (B.5).

    The votes have half of epsilon, which is ln(1 + q (e^e - 1)), and delta, which is q d; sigma is that of (e, d).

    >>> round(sigma(1.0, 1 / (8396 * math.log(8396)), 10, 0.8), 2)
    18.37
    >>> sigma(math.inf, 1e-5, 10, 0.8)
    0.0
    """
    whole = math.log1p(math.expm1(min(VOTES * epsilon, 700.0)) / sampling)
    if math.isinf(epsilon):
        return 0.0
    return accounting.calibrate(lambda one: [accounting.Gaussian(one, count=rounds)], whole, delta / sampling)


@cache
def exact_sigma(epsilon: float, delta: float, rounds: int, sampling: float) -> float:
    """Sigma of one vote if all votes share half of epsilon, by exact accounting of a fresh subsample in each round."""
    return accounting.calibrate(lambda one: [accounting.Gaussian(one, sampling, rounds)], VOTES * epsilon, delta)


@cache
def sigma_composed_jointly(epsilon: float, delta: float, rounds: int, sampling: float) -> float:
    """Sigma of one vote if the paper's mechanisms are composed exactly, where the paper divides epsilon among them."""
    return accounting.calibrate(
        lambda one: [*_metadata(epsilon), accounting.Gaussian(one, sampling, rounds)], epsilon, delta
    )


def figures(privacy: Privacy, *, rounds: int, sampling: float) -> Mapping[str, float]:
    """The paper's sigma, the epsilon that it really spends, and sigma by exact accounting, apart and jointly."""
    given = privacy.epsilon, privacy.delta, rounds, sampling
    own = sigma(*given)
    spent = accounting.epsilon([*_metadata(privacy.epsilon), accounting.Gaussian(own, sampling, rounds)], privacy.delta)
    return {
        "sigma": own * privacy.norm_factor,
        "epsilon_really_spent": spent,
        "sigma_accounted_exactly": exact_sigma(*given) * privacy.norm_factor,
        "sigma_composed_jointly": sigma_composed_jointly(*given) * privacy.norm_factor,
    }


def note(asked: Sequence[SumRequest], epsilon: float) -> str:
    """Returns the division of ``epsilon`` among the private sums, for ``undersong plan``."""
    parts = [f"{request.epsilon:g} {request.name}" for request in asked if request.epsilon is not None]
    return (
        f"Budget divided as in the paper (epsilon): {', '.join([*parts, f'{VOTES * epsilon:g} all votes together'])}."
    )


def _metadata(epsilon: float) -> list[accounting.Event]:
    """Two searches for the ends of the range, of which only pure epsilon is known, and three Laplace histograms."""
    return [accounting.Pure(RANGE / 2 * epsilon, 2), accounting.Laplace(1 / (HISTOGRAM * epsilon), 3)]
