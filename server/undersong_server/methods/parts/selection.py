"""Selections that several methods make: shares by largest remainder, the best candidates, weights of generators."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.program.library_threads import one_library_thread

HERD_ROWS = 10_000  # that are herded at once: half a second for half of them
FALSE_RATE = 0.01  # rate at which noise alone may make any candidate significant


def largest_remainder(weights: Sequence[float] | Float64, total_count: int) -> Int64:
    """Divides ``total_count`` in proportion to non-negative ``weights``: int64 [len(weights)] of that sum.

    Ties go to the lower index; weights that sum to zero count as equal.

    >>> largest_remainder([0.5, 0.25, 0.25], 5).tolist()
    [3, 1, 1]
    """
    weight_shares = np.asarray(weights, dtype=np.float64)
    if weight_shares.sum() > 0:
        weight_shares = weight_shares / weight_shares.sum()
    else:
        weight_shares = np.full(len(weight_shares), 1.0 / len(weight_shares))
    exact_counts = weight_shares * total_count
    whole_counts = np.floor(exact_counts).astype(np.int64)
    remainder_order = np.argsort(-(exact_counts - whole_counts), kind="stable")
    whole_counts[remainder_order[: total_count - int(whole_counts.sum())]] += 1
    return whole_counts


def places_by_label(available: Int64, shares: Float64, place_count: int, *, least: int = 0) -> Int64:
    """Divides the number ``place_count`` of texts to select over labels in proportion to their shares: int64 [L].

    No label gets more than it has texts (``available``); what it cannot fill goes to the others. With ``least`` 1 each
    label that has texts gets at least one, as far as ``place_count`` suffices, at the cost of those that have most.

    >>> places_by_label(np.array([9, 9, 1, 0]), np.array([0.6, 0.4, 0.0, 0.0]), 7).tolist()
    [4, 3, 0, 0]
    >>> places_by_label(np.array([9, 9, 1, 0]), np.array([0.6, 0.4, 0.0, 0.0]), 7, least=1).tolist()
    [3, 3, 1, 0]
    """
    place_count = min(place_count, int(available.sum()))
    place_counts = np.zeros(len(available), dtype=np.int64)
    while place_counts.sum() < place_count:  # each turn gives a label all its texts, or reaches the total
        is_free = place_counts < available
        free_shares = np.where(is_free, shares, 0.0)
        if not free_shares.any():
            free_shares = is_free.astype(np.float64)
        place_counts = np.minimum(
            place_counts + largest_remainder(free_shares, place_count - int(place_counts.sum())), available
        )
    for label in np.flatnonzero((place_counts < least) & (available > 0)):
        if place_counts.max(initial=0) <= 1:
            break
        place_counts[int(place_counts.argmax())] -= 1
        place_counts[label] += 1
    return place_counts


def highest(scores: Float64, among: Int64, size: int) -> Int64:
    """The ``size`` positions in ``among`` with the highest scores, int64, best first, ties to the lower position."""
    score_order = np.argsort(-scores[among], kind="stable")[:size]
    return among[score_order]


def herded(offsets: Float64, target: Float64, size: int) -> Int64:
    """Returns ``size`` rows of ``offsets`` [n, a], int64, each chosen so that their mean is nearest to ``target``.

    The mean of the ``size`` rows that are nearest one by one would lie between the target and the middle of all rows
    (kernel herding: Chen, Welling and Smola, UAI 2010). Ties go to the lower row.

    >>> herded(np.array([[0.0], [3.0], [1.0], [0.9]]), np.array([1.0]), 3).tolist()
    [2, 3, 0]
    """
    rows = np.empty(min(size, len(offsets)), dtype=np.int64)
    squared_lengths = (offsets**2).sum(axis=1)
    herd_sum = np.zeros_like(target)
    for place in range(len(rows)):
        # |(place + 1) target - herd_sum - offset|^2 without its part that is the same for all offsets.
        distances = squared_lengths - offsets @ (2.0 * ((place + 1) * target - herd_sum))
        row = distances.argmin()
        rows[place] = row
        herd_sum += offsets[row]
        squared_lengths[row] = np.inf  # so that it is not chosen again
    return rows


@one_library_thread()
def herded_by_label(offsets: Float64, label_of: Int64, targets: Float64, sizes: Int64) -> Int64:
    """Returns the rows that :func:`herded` chooses for each label, int64, ascending.

    The time grows with a label's rows times their size, so more than :data:`HERD_ROWS` are divided into equal portions,
    in order, each with its part of the size.

    Args:
        offsets: of all rows, [n, a], and ``label_of`` each, [n].
        targets: of each label, [L, a].
        sizes: number of rows to choose of each label, [L].
    """
    chosen_rows = []
    for label, (target, size) in enumerate(zip(targets, sizes, strict=True)):
        label_rows = np.flatnonzero(label_of == label)
        portions = np.array_split(label_rows, max(1, math.ceil(len(label_rows) / HERD_ROWS)))
        portion_sizes = largest_remainder([len(portion) for portion in portions], int(size))
        chosen_rows += [
            portion[herded(offsets[portion], target, int(portion_size))]
            for portion, portion_size in zip(portions, portion_sizes, strict=True)
        ]
    return np.sort(np.concatenate(chosen_rows))


def significant_votes(scores: Float64, among: Int64, sigma: float) -> Int64:
    """Positions in ``among`` with scores that noise of deviation ``sigma`` alone gives any of them in 1 % of all cases.

    The bound is the (1 - 0.01/n) quantile of the noise for n positions; without noise, 0. A single example that noise
    alone chose would be shown in every prompt, so such a choice must be rare.

    >>> significant_votes(np.array([0.0, 9.0, 1.0, 2.0]), np.arange(4), 2.0).tolist()
    [1]
    """
    from scipy.special import ndtri

    if not len(among):
        return among
    vote_threshold = sigma * float(ndtri(1.0 - FALSE_RATE / len(among)))
    return among[scores[among] > vote_threshold]


def weights_by_votes(received: Float64, written: Int64) -> Float64:
    """Weights proportional to (votes for k's samples / all votes) / (k's samples / all samples): float64 [K], sum 1.

    WASP (Zou et al. 2025), section 4.5, Eq. 8. Each generator's noisy votes are summed and the sum clipped at zero:
    normalising by a noisy, possibly negative total would reverse the ranking, and clipping single candidates would add
    0.4 sigma to each, which drowns the differences. A generator without samples keeps the mean weight of the others.

    Args:
        received: sum of each generator's noisy nearest votes, float64 [K].
        written: number of its samples, int64 [K].
    """
    return weights_by_rates(vote_rates(np.maximum(received, 0.0), written))


def vote_rates(received: Float64, written: Int64) -> Float64:
    """Mean votes per written text of each generator, float64 [K]; one without texts gets the mean of the others."""
    has_texts = written > 0
    rates = np.zeros(len(written))
    rates[has_texts] = received[has_texts] / written[has_texts]
    if not has_texts.all() and has_texts.any():
        rates[~has_texts] = rates[has_texts].mean()
    return rates


def weights_by_rates(rates: Float64) -> Float64:
    """Weights proportional to ``rates``, float64 [K] of at least 0: float64 [K], sum 1; equal ones where all are 0."""
    total_rate = rates.sum()
    return rates / total_rate if total_rate > 0 else np.full(len(rates), 1.0 / len(rates))


def noise_effect(compute: Callable[[Float64], Float64], numbers: Float64, deviations: Float64) -> Float64:
    """Standard deviation that independent noise of ``numbers`` gives the values computed from them, float64 [k].

    It is of first order: each number in turn is raised by its standard deviation, and the effects are added in squares.

    Args:
        compute: function from numbers, float64 [n], to values, float64 [k].
        numbers: noisy, float64 [n].
        deviations: of their noise, float64 [n].

    >>> noise_effect(lambda x: x / x.sum(), np.array([8.0, 8.0]), np.array([0.0, 0.0])).tolist()
    [0.0, 0.0]
    >>> noise_effect(lambda x: x[:1] - x[1:], np.array([8.0, 8.0]), np.array([3.0, 4.0])).tolist()
    [5.0]
    """
    values = compute(numbers)
    value_changes = np.stack([compute(numbers + change) - values for change in np.diag(deviations)])
    effect_deviations: Float64 = np.sqrt(np.square(value_changes).sum(axis=0))
    return effect_deviations


def balanced_labels(count: int, label_count: int, written_counts: Int64) -> Int64:
    """Returns ``count`` labels, int64, as evenly as possible; the remainder goes to those with the fewest samples.

    ``written_counts``: numbers of samples of each label so far, int64 [label_count].
    """
    counts = np.full(label_count, count // label_count, dtype=np.int64)
    count_order = np.argsort(written_counts + counts, kind="stable")
    counts[count_order[: count % label_count]] += 1
    return np.repeat(np.arange(label_count), counts)


def sample_without_replacement(rng: np.random.Generator, texts: Sequence[str], count: int) -> tuple[str, ...]:
    """Draws ``count`` of the texts, or all if there are fewer, each at most once, in random order."""
    if not texts or not count:
        return ()
    return tuple(texts[i] for i in rng.choice(len(texts), size=min(count, len(texts)), replace=False))


def effective_size(weights: Float64) -> float:
    """Returns the effective sample size (sum w)^2 / sum w^2 (Kish 1965); 0 if all weights are 0."""
    if not weights.any():
        return 0.0
    relative_weights = weights / weights.max()
    return float(relative_weights.sum() ** 2 / (relative_weights**2).sum())


def draw_by_weight(weights: Float64, rng: np.random.Generator) -> Int64:
    """Draws texts that represent a weighted corpus without weights: positions, int64, ascending.

    They are as many as its effective size; a text is drawn with a chance in proportion to its weight, at most 1.

    >>> draw_by_weight(np.array([2.0, 2.0, 0.0, 2.0]), np.random.default_rng(0)).tolist()
    [0, 1, 3]
    """
    text_count = int(effective_size(weights) * (1 + 1e-12))  # rounding must not take a text from equal weights
    if text_count:
        return _draw_proportional(weights / weights.mean(), text_count, rng)
    return np.zeros(0, dtype=np.int64)


def _draw_proportional(weights: Float64, count: int, rng: np.random.Generator) -> Int64:
    """Draws ``count`` different positions, sorted, each with a chance in proportion to its weight, at most 1.

    Systematic sampling in random order (Hartley and Rao 1962). Draws one after the other, each in proportion to what is
    left (``rng.choice``), take heavy rows too rarely: half of the rows then hold four fifths of what they should where
    a third of all weighs four times as much as the rest.
    """
    is_certain = np.zeros(len(weights), dtype=bool)
    while True:
        open_count = count - int(is_certain.sum())
        draw_chances = np.where(is_certain, 0.0, weights)
        if open_count == 0:
            return np.flatnonzero(is_certain)
        draw_chances *= open_count / draw_chances.sum()
        is_sure = draw_chances > 1 - 1e-9
        if not is_sure.any():
            break
        is_certain |= is_sure
    draw_order = rng.permutation(np.flatnonzero(draw_chances))
    cumulative_chances = np.floor(np.cumsum(draw_chances[draw_order]) + rng.random())
    cumulative_chances[-1] = open_count  # Rounding could miss the last step.
    return np.sort(
        np.concatenate([np.flatnonzero(is_certain), draw_order[np.diff(cumulative_chances, prepend=0.0) > 0]])
    )


# Selection by votes with similarity suppression, and an estimate of the records' mean similarity (DPGA-TextSyn).

STEP = 0.01  # by which tau rises when no text is left below it
BLOCK = 512  # candidates that are compared among themselves at a time: the largest array is [n, 512] float32


def select_with_suppression(
    embeddings: Float32, votes: Float64, elite_size: int, tau: float, tau_step: float = STEP
) -> tuple[Int64, float]:
    """Selects the elite: in descending votes, each chosen sample excludes all others more similar to it than tau.

    When none is left, tau rises by ``tau_step`` and the samples that are no longer too similar to any chosen one may be
    chosen, until ``elite_size`` are chosen or none is left. Similarity is the dot product; for quantised embeddings it
    is exact in float32, so that the blocks change nothing. Source: Sun et al. 2025 (DPGA-TextSyn), selection.

    Args:
        embeddings: float32 [n, d], of norm at most 1.
        votes: float64 [n]; ties go to the lower position.
        elite_size: texts to choose; all n where there are fewer.
        tau: largest similarity of two chosen samples at first, in [-1, 1].

    Returns:
        int64 [min(elite_size, n)] positions in the order in which they were chosen, and the last tau.
    """
    vote_order = np.argsort(-votes, kind="stable")
    ordered_embeddings = np.ascontiguousarray(embeddings[vote_order])
    elite_size = min(elite_size, len(ordered_embeddings))
    # The largest similarity of each sample to any chosen one.
    nearest_similarity = np.full(len(ordered_embeddings), -np.inf, dtype=np.float32)
    is_open = np.ones(len(ordered_embeddings), dtype=np.bool_)
    accepted_blocks: list[Int64] = []
    accepted_count, raise_count = 0, 0
    similarity_limit = tau
    while accepted_count < elite_size:
        next_position = 0
        while accepted_count < elite_size:
            block_positions = (
                next_position
                + np.flatnonzero(is_open[next_position:] & (nearest_similarity[next_position:] <= similarity_limit))[
                    :BLOCK
                ]
            )
            if not len(block_positions):
                break
            next_position = int(block_positions[-1]) + 1
            accepted_positions = block_positions[
                _rows_apart(ordered_embeddings[block_positions], similarity_limit, elite_size - accepted_count)
            ]
            is_open[accepted_positions] = False
            accepted_count += len(accepted_positions)
            accepted_blocks.append(accepted_positions)
            open_positions = np.flatnonzero(is_open)
            if accepted_count < elite_size and len(open_positions):
                nearest_similarity[open_positions] = np.maximum(
                    nearest_similarity[open_positions],
                    (ordered_embeddings[open_positions] @ ordered_embeddings[accepted_positions].T).max(axis=1),
                )
        if accepted_count < elite_size:
            raise_count += 1
            similarity_limit = tau + raise_count * tau_step
    return vote_order[np.concatenate(accepted_blocks)] if accepted_blocks else vote_order[:0], similarity_limit


def _rows_apart(x: Float32, similarity_limit: float, row_limit: int) -> Int64:
    """Chooses, in order, at most ``row_limit`` rows of ``x``, none more similar to a chosen one than the limit."""
    is_apart = x @ x.T <= similarity_limit
    is_open = np.ones(len(x), dtype=np.bool_)
    chosen_row_numbers: list[int] = []
    for row_number in range(len(x)):
        if is_open[row_number]:
            chosen_row_numbers.append(row_number)
            if len(chosen_row_numbers) == row_limit:
                break
            is_open &= is_apart[row_number]
    return np.array(chosen_row_numbers, dtype=np.int64)


def median_nearest(embeddings: Float32, groups: Sequence[Int64]) -> float:
    """Returns the median of a text's similarity to its nearest other text of its group; 1 where no text has another.

    It is a public threshold in the embedder's own scale: about half of the texts have a neighbour above it, whether
    the embeddings fill a narrow cone or a wide one.

    Args:
        embeddings: float32 [n, d], of norm at most 1.
        groups: positions in ``embeddings``, int64, of the texts that are compared with one another.
    """
    nearest_similarities = []
    for group_rows in groups:
        group_embeddings = embeddings[group_rows]
        for block_start in range(0, len(group_rows) if len(group_rows) > 1 else 0, BLOCK):
            similarities = group_embeddings[block_start : block_start + BLOCK] @ group_embeddings.T
            row_numbers = np.arange(len(similarities))
            similarities[row_numbers, block_start + row_numbers] = -np.inf
            nearest_similarities.append(similarities.max(axis=1))
    if nearest_similarities:
        return float(np.median(np.concatenate(nearest_similarities)))
    return 1.0


@dataclass(frozen=True)
class MeanSimilarity:
    """Estimate of the mean cosine of all pairs of private records, and its standard error by noise."""

    value: float
    error: float


def mean_similarity(
    embedding_sum: Float64, sigma: float, record_count: float, count_sigma: float = 0.0
) -> MeanSimilarity:
    """Estimates (|S|^2 - d sigma^2 - n) / (n (n - 1)) from a noisy sum S of unit embeddings; unbiased for a known n.

    Args:
        embedding_sum: S with noise of standard deviation ``sigma`` a coordinate, float64 [d], natural units.
        record_count: n, with noise of standard deviation ``count_sigma``; with fewer than two the error is infinite.
    """
    if record_count < 2.0:
        return MeanSimilarity(math.nan, math.inf)
    pair_count = record_count * (record_count - 1.0)
    noise = len(embedding_sum) * sigma**2
    squared_norm = float(embedding_sum @ embedding_sum) - noise
    deviation = math.hypot(
        math.sqrt(2.0 * len(embedding_sum)) * sigma**2, 2.0 * sigma * math.sqrt(max(squared_norm, 0.0))
    )
    similarity_estimate = (squared_norm - record_count) / pair_count
    # The number of records stands squared in the denominator: its relative error counts twice in the value.
    return MeanSimilarity(
        similarity_estimate,
        math.hypot(deviation / pair_count, 2.0 * abs(similarity_estimate) * count_sigma / record_count),
    )
