"""Shares, length ranges and draws from noisy label, length and keyword counts (DPGA-TextSyn); all post-processing."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import LengthHistogram
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.generators.reading import listed
from undersong_server.methods.interface import RunContext
from undersong_server.prompts.rendering import readable_label

# Edges in words. Each bin is at most 1.5 times as wide as the one before, so that a range is close.
RANGE_EDGES = (
    *(0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 34, 44, 57, 74, 96, 125, 162, 211, 274, 356, 463, 602, 783, 1018),
    *(1323, 1720, 2236, 2907, 3779, 4913),
)
RANGE_TAIL = 0.005  # share of the records that may lie beyond either end of the range
RANGE_DEVIATIONS = 3.0  # A tail counts if it is above so many standard deviations of its noise.


def shares_of_counts(counts: Float64) -> Float64:
    """Probabilities from noisy counts: the nearest counts that are not negative and have the same total.

    All counts are lowered by one amount and clipped at zero. Clipping alone would add 0.4 sigma to every empty bin,
    which drowns the few full ones of a long histogram. Without a positive total the shares are equal.

    >>> shares_of_counts(np.array([6.0, 3.0, -1.0])).tolist()
    [0.6875, 0.3125, 0.0]
    """
    total_count = float(counts.sum())
    if not total_count > 0.0:
        return np.full(len(counts), 1.0 / len(counts))
    falling_counts = np.sort(counts)[::-1]
    excess_by_size = (np.cumsum(falling_counts) - total_count) / np.arange(1, len(counts) + 1)
    last_bin_index = int(np.flatnonzero(falling_counts > excess_by_size)[-1])
    lowered_counts = np.maximum(counts - excess_by_size[last_bin_index], 0.0)
    shares: Float64 = lowered_counts / lowered_counts.sum()
    return shares


def length_range(counts: Float64, sigma: float, edges: Sequence[int] = RANGE_EDGES) -> tuple[int, int]:
    """Shortest and longest length (words) that more than a few records have, by tail sums of one noisy histogram.

    A true sparse vector search would need that nothing but its answers leaves the parties; several parties' noisy
    counts do leave them, so the whole histogram is charged and searched for free (docs/privacy.md, "Statistics").

    Args:
        counts: noisy counts between ``edges``, float64 [len(edges) - 1]; ``sigma`` is their noise.

    Returns:
        The edges around the bins whose tails exceed their noise; the whole range where none does.
    """
    least_tail = RANGE_TAIL * max(float(counts.sum()), 0.0)

    def count_bins_beyond(tails: Float64) -> int:
        """Counts the bins at the start of ``tails`` before the running total exceeds its limit; 0 if never."""
        limits = np.maximum(least_tail, RANGE_DEVIATIONS * sigma * np.sqrt(np.arange(1, len(tails) + 1)))
        bins_beyond = np.flatnonzero(np.cumsum(tails) > limits)
        if len(bins_beyond):
            return int(bins_beyond[0])
        return 0

    first_bin, last_bin = count_bins_beyond(counts), len(counts) - count_bins_beyond(counts[::-1])
    if first_bin < last_bin:
        return (edges[first_bin], edges[last_bin])
    return (edges[0], edges[-1])


def length_edges(shortest: int, longest: int, bin_count: int) -> Float64:
    """Edges of at most ``bin_count`` bins of lengths, ``shortest`` to below ``longest`` words, float64 [bins + 1]."""
    return np.unique(np.rint(np.linspace(shortest, longest, min(bin_count, longest - shortest) + 1)))


def shares_by_label(votes: Float64, label_of: Int64, label_count: int, softmax: bool = False) -> list[Float64]:
    """Returns, for each label, the shares of its votes that its keywords have, by noisy votes; empty without keywords.

    Sun et al. 2025 (3.2.2) take the softmax of the noisy histogram, which is nearly one-hot; the code published for
    them takes that of the shares, which is nearly even.

    Args:
        votes: noisy votes, float64 [K]; ``label_of``: each keyword's label, int64 [K].
        softmax: True takes the softmax of the noisy votes, as in 3.2.2, in place of their shares.

    >>> shares_by_label(np.array([9.0, 3.0, 0.0]), np.array([0, 0, 0]), 1)[0].tolist()
    [0.75, 0.25, 0.0]
    """
    from scipy.special import softmax as scipy_softmax

    def shares_of_votes(noisy_votes: Float64) -> Float64:
        if softmax:
            return np.asarray(scipy_softmax(noisy_votes), dtype=np.float64)
        return shares_of_counts(noisy_votes)

    return [
        shares_of_votes(label_votes) if len(label_votes) else label_votes
        for label_votes in (votes[label_of == label] for label in range(label_count))
    ]


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
        """Draws labels by their shares, int64 [count], in random order; each label's number is within 1 of its mean.

        Systematic sampling, with one random start. Independent draws would give a label that expects 7 texts fewer than
        4 in every twelfth run.
        """
        label_points = (rng.random() + np.arange(count)) / max(1, count)
        # Rounding may point beyond the last label that has a share.
        last_label_index = int(np.flatnonzero(self.labels)[-1])
        label_numbers = np.minimum(
            np.searchsorted(np.cumsum(self.labels), label_points, side="right"), last_label_index
        )
        return rng.permutation(label_numbers).astype(np.int64)

    def draw_words(self, rng: np.random.Generator) -> int | None:
        """Draws a length in words: a bin by its share, uniform within the bin; None where lengths are not used."""
        if self.edges is None or self.lengths is None:
            return None
        length_bin = int(rng.choice(len(self.lengths), p=self.lengths))
        return max(1, int(rng.integers(int(self.edges[length_bin]), int(self.edges[length_bin + 1]))))

    def draw_terms(self, label: int, rng: np.random.Generator) -> tuple[str, ...]:
        """Draws one keyword of the label by its share; empty if the label has no keywords."""
        if not self.keywords or not self.keywords[label]:
            return ()
        return (self.keywords[label][int(rng.choice(len(self.keywords[label]), p=self.keyword_shares[label]))],)


# The lengths of the private texts, from one noisy histogram that any method may be given: 2 % of its budget.

NAME = "lengths"


def with_lengths(requests: Sequence[SumRequest], share: float) -> list[SumRequest]:
    """Returns a request for a histogram of text lengths, with ``share`` of the budget, and after it ``requests``.

    The other requests divide the rest in their own ratios. Raises ConfigurationError for requests that divide their
    budget themselves (a method whose paper states the noise of each sum).
    """
    lengths_request = SumRequest(NAME, LengthHistogram(RANGE_EDGES), 1.0)
    if any(request.epsilon is not None or request.noise_multiplier is not None for request in requests):
        raise ConfigurationError(
            "privacy.lengths: a sum cannot be added, because the method divides its budget itself",
            'set privacy.lengths = false, or accounting = "joint"',
        )
    total_share = sum(request.budget_share for request in requests)
    return [replace(lengths_request, budget_share=total_share * share / (1.0 - share), law=requests[0].law), *requests]


def likely_lengths(opened: NoisySum) -> Float64:
    """Returns the share of each bin of the opened histogram, 0 outside its :func:`length_range`."""
    shortest, longest = length_range(opened.natural, opened.sigma)
    length_edges = np.array(RANGE_EDGES)
    is_inside = (length_edges[:-1] >= shortest) & (length_edges[1:] <= longest)
    inside_shares = shares_of_counts(np.where(is_inside, opened.natural, 0.0))
    likely_shares = np.where(is_inside, inside_shares, 0.0)
    if likely_shares.sum() > 0:
        bin_weights = likely_shares
    else:
        bin_weights = is_inside.astype(np.float64)
    bin_shares: Float64 = bin_weights / bin_weights.sum()
    return bin_shares


def make_length_draw(opened: NoisySum) -> Callable[[Random], int]:
    """Returns a function that draws a length in words: a bin of the opened histogram by its share, uniform within it.

    Bins outside the :func:`length_range` of the histogram are left out.
    """
    bin_weights = likely_lengths(opened).tolist()
    bin_edges = list(pairwise(RANGE_EDGES))

    def draw(random: Random) -> int:
        shortest, upper_edge = random.choices(bin_edges, bin_weights)[0]
        return max(1, random.randrange(shortest, upper_edge))

    return draw


RECORD = "lengths"  # name under which a run records the quantiles of the records' lengths
LEVELS = (0.1, 0.5, 0.9)  # recorded quantiles
ALIKE = 1.5  # largest ratio of two lengths at which texts are called as long as the records


def length_quantiles(opened: NoisySum) -> list[float]:
    """Returns the lengths in words that a tenth, half and nine tenths of the records do not exceed."""
    bin_shares = likely_lengths(opened)
    cumulative_shares = np.concatenate([[0.0], np.cumsum(bin_shares)])
    upper_edges = np.flatnonzero(bin_shares) + 1  # the upper edges of the bins with records; flat parts have no inverse
    step_edges = np.concatenate([[upper_edges[0] - 1], upper_edges])
    return [
        float(level)
        for level in np.interp(LEVELS, cumulative_shares[step_edges], np.array(RANGE_EDGES, dtype=float)[step_edges])
    ]


def compare_lengths(records: Sequence[float], texts: Sequence[str]) -> str:
    """Returns the sentence for the report on how long the texts are, beside the quantiles of the records' lengths."""
    low_length, median_length, high_length = np.quantile([len(text.split()) for text in texts], LEVELS)
    low_record, median_record, high_record = records
    length_ratio = median_length / max(median_record, 1.0)
    if max(length_ratio, 1 / max(length_ratio, 1e-9)) <= ALIKE:
        comparison_words = "as long as the records"
    else:
        comparison_words = f"{length_ratio:.1f} times as long as the records, so their form is another"
    return (
        f"Length: the texts have {median_length:.0f} words at the median ({low_length:.0f} to {high_length:.0f} in"
        " four of five), the"
        f" records {median_record:.0f} ({low_record:.0f} to {high_record:.0f}), by a private histogram: they are"
        f" {comparison_words}."
    )


def draw_lengths(run: RunContext, opened: NoisySum) -> Callable[[Random], int]:
    """Returns :func:`make_length_draw`, and records the quantiles of the lengths, with which the report compares."""
    run.record(RECORD, 0, length_quantiles(opened))
    return make_length_draw(opened)


# Keywords of each label from a generator's answers: lists that it wrote, or the distinctive words of its texts.

SHORTEST_LETTERS = 4  # letters of a distinctive word, unlike "the" and "is"

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


def keywords(answers: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """Returns at most ``most`` different keywords of each label, from the generators' ``answers`` for that label.

    A language model answers with a list. The embedded generators follow no instructions and answer with texts of the
    label: keywords are then the words that are frequent in its texts and rare in the others' (tf-idf over labels).

    >>> keywords([["card lost, card stolen, PIN blocked"], ["my transfer is late", "a late transfer"]], 2)
    [['card lost', 'card stolen'], ['late', 'transfer']]
    """
    texts_by_label: list[list[str]] = []
    items_by_label: list[list[str]] = []
    for label_answers in answers:
        texts_by_label.append([])
        items_by_label.append([])
        for answer in label_answers:
            listed_items = listed(answer)
            if listed_items:
                items_by_label[-1] += listed_items
            else:
                texts_by_label[-1].append(answer)
    return [
        _different_items([*label_items, *label_words], most)
        for label_items, label_words in zip(items_by_label, _distinctive_words(texts_by_label, most), strict=True)
    ]


def keywords_by_label(answers: Sequence[str], labels: Sequence[str], most: int) -> list[list[str]]:
    """Returns at most ``most`` keywords of each label, no keyword twice, from answers with a JSON object of lists.

    >>> keywords_by_label(['Sure: {"a card": ["lost", "Stolen"], "fee": ["lost", "yearly"]}'], ["a_card", "fee"], 9)
    [['lost', 'Stolen'], ['yearly']]
    """
    keyword_lists: list[list[str]] = [[] for _ in labels]
    label_index = {_fold_label(label): label_number for label_number, label in enumerate(labels)}
    used_keywords: set[str] = set()
    for answer in answers:
        try:
            keywords_of_label = json.loads(answer[answer.find("{") : answer.rfind("}") + 1])
        except ValueError:
            continue
        for label, label_items in keywords_of_label.items():
            label_number = label_index.get(_fold_label(label), -1)
            for listed_item in label_items if label_number >= 0 and isinstance(label_items, list) else ():
                if (
                    isinstance(listed_item, str)
                    and listed_item.casefold() not in used_keywords
                    and len(keyword_lists[label_number]) < most
                ):
                    used_keywords.add(listed_item.casefold())
                    keyword_lists[label_number].append(listed_item)
    return keyword_lists


def _fold_label(label: str) -> str:
    return readable_label(label).strip().casefold()


def _distinctive_words(texts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    word_counters = [Counter(word for text in label_texts for word in set(_split_words(text))) for label_texts in texts]
    label_count_of_word = Counter(word for label_counter in word_counters for word in label_counter)

    def rank(counts: Counter[str], word: str) -> tuple[float, str]:
        return -counts[word] * math.log((1 + len(texts)) / label_count_of_word[word]), word

    return [sorted(counts, key=lambda word, counts=counts: rank(counts, word))[:most] for counts in word_counters]  # type: ignore[misc]


def _split_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if len(word) >= SHORTEST_LETTERS]


def _different_items(items: Sequence[str], most: int) -> list[str]:
    items_by_key: dict[str, str] = {}
    for listed_item in items:
        items_by_key.setdefault(listed_item.casefold(), listed_item)
    return list(items_by_key.values())[:most]
