"""Shares, length ranges and draws from noisy label, length and keyword counts (DPGA-TextSyn); all post-processing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float64, Int64

# In words; each bin is at most half as wide again as the one before, so that a range found by them is close.
RANGE_EDGES = (
    *(0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 34, 44, 57, 74, 96, 125, 162, 211, 274, 356, 463, 602, 783, 1018),
    *(1323, 1720, 2236, 2907, 3779, 4913),
)
RANGE_TAIL = 0.005  # share of the records that may lie beyond either end of the range
RANGE_DEVIATIONS = 3.0  # standard deviations of its noise that a tail must exceed to count


def shares_of_counts(counts: Float64) -> Float64:
    """Probabilities from noisy counts: the nearest counts that are not negative and have the same total.

    All counts are lowered by one amount and clipped at zero. Clipping alone would add 0.4 sigma to every empty bin,
    which drowns the few full ones of a long histogram. Without a positive total the shares are equal.

    >>> shares_of_counts(np.array([6.0, 3.0, -1.0])).tolist()
    [0.6875, 0.3125, 0.0]
    """
    total = float(counts.sum())
    if not total > 0.0:
        return np.full(len(counts), 1.0 / len(counts))
    falling = np.sort(counts)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(counts) + 1)
    kept = int(np.flatnonzero(falling > excess)[-1])
    lowered = np.maximum(counts - excess[kept], 0.0)
    result: Float64 = lowered / lowered.sum()
    return result


def length_range(counts: Float64, sigma: float, edges: Sequence[int] = RANGE_EDGES) -> tuple[int, int]:
    """Shortest and longest length (words) that more than a few records have, by tail sums of one noisy histogram.

    A true sparse vector search would need that nothing but its answers leaves the parties; several parties' noisy
    counts do leave them, so the whole histogram is charged and searched for free (docs/privacy.md, "Statistics").

    Args:
        counts: noisy counts between ``edges``, float64 [len(edges) - 1]; ``sigma`` is their noise.

    Returns:
        The edges around the bins whose tails exceed their noise; the whole range where none does.
    """
    floor = RANGE_TAIL * max(float(counts.sum()), 0.0)

    def beyond(tails: Float64) -> int:
        """Counts the bins at the start of ``tails`` before the running total exceeds its limit; 0 if never."""
        limits = np.maximum(floor, RANGE_DEVIATIONS * sigma * np.sqrt(np.arange(1, len(tails) + 1)))
        found = np.flatnonzero(np.cumsum(tails) > limits)
        return int(found[0]) if len(found) else 0

    first, last = beyond(counts), len(counts) - beyond(counts[::-1])
    return (edges[first], edges[last]) if first < last else (edges[0], edges[-1])


def length_edges(shortest: int, longest: int, bins: int) -> Float64:
    """At most ``bins`` bins of whole numbers of words from ``shortest`` to below ``longest``: float64 [<= bins + 1]."""
    return np.unique(np.rint(np.linspace(shortest, longest, min(bins, longest - shortest) + 1)))


def shares_by_label(votes: Float64, label_of: Int64, labels: int, softmax: bool = False) -> list[Float64]:
    """For each label its keywords' noisy shares of its votes; empty without keywords.

    Sun et al. 2025 (3.2.2) take the softmax of the noisy histogram, which is nearly one-hot; the code published for
    them takes that of the shares, which is nearly even.

    Args:
        votes: noisy votes, float64 [K]; ``label_of``: each keyword's label, int64 [K].
        softmax: of the noisy votes, as in 3.2.2.

    >>> shares_by_label(np.array([9.0, 3.0, 0.0]), np.array([0, 0, 0]), 1)[0].tolist()
    [0.75, 0.25, 0.0]
    """
    chances = _softmax if softmax else shares_of_counts
    return [chances(mine) if len(mine) else mine for mine in (votes[label_of == label] for label in range(labels))]


def _softmax(votes: Float64) -> Float64:
    raised = np.exp(votes - votes.max())
    found: Float64 = raised / raised.sum()
    return found


@dataclass(frozen=True, eq=False)
class Metadata:
    """Estimates of the private records' metadata, from noisy sums alone.

    Attributes:
        records: noisy number of records (with a label, where there are labels); ``records_sigma`` is its noise.
        labels: share of each label, float64 [L].
        edges, lengths: bins of the number of words and their shares; None where lengths are not used.
        keywords: the keywords of each label, and ``keyword_shares`` their probabilities; empty where not used.
    """

    records: float
    labels: Float64
    edges: Float64 | None
    lengths: Float64 | None
    keywords: tuple[tuple[str, ...], ...]
    keyword_shares: tuple[Float64, ...]
    records_sigma: float = 0.0

    def draw_labels(self, count: int, rng: np.random.Generator) -> Int64:
        """Labels by their shares, int64 [count], in random order: each label's number is within 1 of its expectation.

        Systematic sampling, with one random start. Independent draws would give a label that expects 7 texts fewer than
        4 in every twelfth run.
        """
        at = (rng.random() + np.arange(count)) / max(1, count)
        last = int(np.flatnonzero(self.labels)[-1])  # rounding may point beyond the last label that has a share
        drawn = np.minimum(np.searchsorted(np.cumsum(self.labels), at, side="right"), last)
        return rng.permutation(drawn).astype(np.int64)

    def draw_words(self, rng: np.random.Generator) -> int | None:
        """A length in words: a bin drawn by its share, uniform within the bin; None where lengths are not used."""
        if self.edges is None or self.lengths is None:
            return None
        bin_ = int(rng.choice(len(self.lengths), p=self.lengths))
        return max(1, int(rng.integers(int(self.edges[bin_]), int(self.edges[bin_ + 1]))))

    def draw_terms(self, label: int, rng: np.random.Generator) -> tuple[str, ...]:
        """One keyword of the label, or none."""
        if not self.keywords or not self.keywords[label]:
            return ()
        return (self.keywords[label][int(rng.choice(len(self.keywords[label]), p=self.keyword_shares[label]))],)
