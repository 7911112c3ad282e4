"""Measures of a set of texts, its probable label errors, and distances between two sets.

Closeness is measured by the Frechet distance, precision, recall, density, coverage, MAUVE and the distance to the
closest record; diversity by different n-grams, the Vendi score and self-similarity. The loss of a small language model
on real texts is the utility of a corpus without labels.

All are computed in the clear. Nothing here is differentially private: a figure that reads private records says
something about them, so these functions are called only by who holds the records.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float32, Float64, Floats, Int64
from undersong_server.learning import train

BLOCK_MIB = 256  # size of the block of distances that is in memory at a time
# Fixed and public, so that figures of different runs compare; finer where texts are short, as tweets and questions are.
LENGTH_EDGES = (0, 3, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, 60, 76, 96, 120, 152, 192, 240, 304, 384, 512, 768, 1024)


def frechet_distance(first: Floats, second: Floats) -> float:
    """Frechet distance of the Gaussians fitted to two embedding sets [n, d] (Heusel et al. 2017, equation 6).

    Its bias depends on n: compare figures at equal n only, and draw equal sizes with ``equal_rows``. The trace of the
    covariances' geometric mean is computed as the nuclear norm of a product of triangular factors,
    tr((A'A B'B)^1/2) = |A B'|_*, so that no square root of a rounding error is taken: with fewer rows than dimensions
    the covariances are singular and the usual matrix square root loses half of the digits.

    Raises ValueError with fewer than two rows or different n.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} rows: the bias differs, draw equal sizes first")
    if len(first) < 2:
        raise ValueError("a covariance needs two rows")
    mean_a, factor_a = _mean_and_factor(first)
    mean_b, factor_b = _mean_and_factor(second)
    nuclear_norm = np.linalg.svd(factor_a @ factor_b.T, compute_uv=False).sum()
    squared_distance = ((mean_a - mean_b) ** 2).sum() + (factor_a**2).sum() + (factor_b**2).sum() - 2 * nuclear_norm
    return max(0.0, float(squared_distance))


def _mean_and_factor(x: Floats) -> tuple[Float64, Float64]:
    """Returns the mean [d], and R [min(n, d), d] with R'R the unbiased covariance."""
    mean = x.mean(axis=0, dtype=np.float64)
    scaled_rows = (x - mean) / np.sqrt(len(x) - 1)
    factor: Float64 = np.asarray(np.linalg.qr(scaled_rows, mode="r")) if len(x) > x.shape[1] else scaled_rows
    return mean, factor


def self_similarity(embeddings: Floats) -> float:
    """Mean cosine of all pairs of different rows of [n, d]; lower is more diverse. NaN with fewer than two rows.

    The sum over pairs of unit vectors is (|sum x|^2 - n) / 2, so no pair is ever formed.
    """
    from sklearn.preprocessing import normalize

    if len(embeddings) < 2:
        return math.nan
    unit_rows = normalize(embeddings.astype(np.float64))
    # A zero row's cosine with everything is 0, with itself too.
    row_sum, nonzero_rows = unit_rows.sum(axis=0), unit_rows.any(axis=1).sum()
    return float((row_sum @ row_sum - nonzero_rows) / (len(unit_rows) * (len(unit_rows) - 1)))


def length_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' histograms of lengths in words over the fixed ``LENGTH_EDGES``.

    NaN if a set is empty.
    """
    length_edges = [*LENGTH_EDGES, np.inf]
    return _divergence_bits(
        *(np.histogram([len(text.split()) for text in texts], length_edges)[0] for texts in (first, second))
    )


def label_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' label shares. NaN if a set is empty."""
    first_counts, second_counts = Counter(first), Counter(second)
    label_names = sorted({*first_counts, *second_counts})
    return _divergence_bits(
        *(np.array([text_counts[label] for label in label_names]) for text_counts in (first_counts, second_counts))
    )


def _divergence_bits(first: Int64, second: Int64) -> float:
    """Jensen-Shannon divergence of two count vectors: 0 for equal shares, 1 for nothing in common, NaN for no count."""
    from scipy.spatial.distance import jensenshannon

    if first.any() and second.any():
        return float(jensenshannon(first, second, base=2) ** 2)
    return math.nan


def neighbourhoods(
    synthetic: Floats, real: Floats, *, neighbour_count: int = 3, coverage_neighbour_count: int = 5
) -> dict[str, float]:
    """Compares two sets of embeddings, [n, d] and [m, d], by the balls around them; compare at equal n and m only.

    * precision: share of synthetic texts within at least one real text's ball;
    * recall: share of real texts within at least one synthetic text's ball (Kynkaanniemi et al. 2019, equations 1 and
      2, both with ``neighbour_count``);
    * density: real balls that hold a synthetic text, mean over the synthetic texts, per neighbour: about 1 if both sets
      come from one distribution, above 1 if synthetic texts crowd where real ones are dense;
    * coverage: share of real texts whose own ball holds at least one synthetic text (Naeem et al. 2020, equations 4 and
      5, both with ``coverage_neighbour_count``).

    An outlier among the real texts makes precision large, and neither density nor coverage.

    A ball reaches to the k-th nearest other point and includes its edge. O(n + m) memory beside
    one block of distances. Raises ValueError if a set has no k-th neighbour.
    """
    from sklearn.metrics import pairwise_distances_chunked

    largest_neighbour_count = max(neighbour_count, coverage_neighbour_count)
    if min(len(synthetic), len(real)) <= largest_neighbour_count:
        raise ValueError(f"{min(len(synthetic), len(real))} points have no {largest_neighbour_count} neighbours")
    real_radius, wide_radius = _ball_radii(real, (neighbour_count, coverage_neighbour_count))
    (synthetic_radius,) = _ball_radii(synthetic, (neighbour_count,))
    text_count_in_balls, ball_count, is_covered = 0, 0, np.zeros(len(real), dtype=bool)
    for distance_block in pairwise_distances_chunked(synthetic, real, working_memory=BLOCK_MIB):
        text_count_in_balls += int((distance_block <= real_radius).any(axis=1).sum())
        is_inside = distance_block <= wide_radius
        ball_count += int(is_inside.sum())
        is_covered |= is_inside.any(axis=0)
    distance_blocks = pairwise_distances_chunked(real, synthetic, working_memory=BLOCK_MIB)
    real_count_in_balls = sum(int((block <= synthetic_radius).any(axis=1).sum()) for block in distance_blocks)
    return {
        "precision": text_count_in_balls / len(synthetic),
        "recall": real_count_in_balls / len(real),
        "density": ball_count / (coverage_neighbour_count * len(synthetic)),
        "coverage": float(is_covered.mean()),
    }


def _ball_radii(points: Floats, neighbour_counts: tuple[int, ...]) -> Float64:
    """Distance of every point to its k-th nearest other point, float64 [len(neighbour_counts), n]."""
    from sklearn.metrics import pairwise_distances_chunked

    # Each point is its own nearest one, at the distance 0, so the k-th other point has the index k.
    distance_blocks = pairwise_distances_chunked(points, working_memory=BLOCK_MIB)
    return np.concatenate(
        [
            np.partition(distance_block, neighbour_counts, axis=1)[:, neighbour_counts]
            for distance_block in distance_blocks
        ]
    ).T


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Different n-grams over all n-grams of all texts, words split at white space, 0 to 1 (Li et al. 2016).

    It falls as a corpus grows: compare corpora of equal size. NaN if no text has n words.

    >>> distinct_n(["a b a b"], 2)
    0.6666666666666666
    """
    distinct_grams: set[tuple[str, ...]] = set()
    gram_count = 0
    for text in texts:
        text_words = text.split()
        text_grams = list(zip(*(text_words[first_word:] for first_word in range(n)), strict=False))
        distinct_grams.update(text_grams)
        gram_count += len(text_grams)
    if gram_count:
        return len(distinct_grams) / gram_count
    return float("nan")


def vendi_score(embeddings: Floats) -> float:
    """Effective number of different texts, 1 to n: exp of the entropy of the similarities' eigenvalues.

    Friedman and Dieng 2023, definition 3.1, with cosine similarity of unit vectors [n, d]. The eigenvalues of the
    n x n matrix X X'/n are those of X' X/n, which is d x d; so it is at most d: compare corpora of equal size. NaN
    without rows.
    """
    from sklearn.preprocessing import normalize

    if not len(embeddings):
        return math.nan
    unit_rows = normalize(np.asarray(embeddings, dtype=np.float64))
    if unit_rows.shape[1] < len(unit_rows):
        gram_matrix = unit_rows.T @ unit_rows
    else:
        gram_matrix = unit_rows @ unit_rows.T
    eigenvalues = np.linalg.eigvalsh(gram_matrix / len(unit_rows))
    positive_values = eigenvalues[eigenvalues > 1e-12]
    return float(np.exp(-(positive_values * np.log(positive_values)).sum()))


EXPLAINED = 0.9  # share of the variance that is kept before clustering
POINTS_PER_CLUSTER = 10
MIXTURES = 25  # mixtures of both distributions, each a point of the divergence curve
SCALING = 5.0  # c of exp(-c KL)
RESTARTS = 5  # of k-means
FEWEST_TEXTS = 2 * POINTS_PER_CLUSTER


def mauve(synthetic: Floats, real: Floats, *, seed: int = 0) -> float:
    """Area under the divergence curve of two sets of embeddings, [n, d] and [m, d]: 0 to 1, 1 for equal sets.

    It is computed as by the authors' package: unit length, principal components, k-means with one cluster per ten texts
    of the smaller set, counts smoothed by one half per cluster (MAUVE*, Pillutla et al. 2023, Krichevsky-Trofimov), and
    the area between the Kullback-Leibler divergences to 25 mixtures. The embeddings are this project's own, not a
    language model's: figures compare with each other, not with published ones. The area depends on n and m: compare it
    at equal sizes.

    Raises ValueError with fewer than 20 texts on a side.
    """
    if min(len(synthetic), len(real)) < FEWEST_TEXTS:
        raise ValueError(f"{min(len(synthetic), len(real))} texts are too few for two clusters of ten")
    cluster_count = max(2, round(min(len(synthetic), len(real)) / POINTS_PER_CLUSTER))
    cluster_of_point = _assign_clusters(np.concatenate([synthetic, real]), cluster_count, seed)
    synthetic_counts = np.bincount(cluster_of_point[: len(synthetic)], minlength=cluster_count)
    real_counts = np.bincount(cluster_of_point[len(synthetic) :], minlength=cluster_count)
    return mauve_of_counts(synthetic_counts, real_counts)


def mauve_of_counts(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """MAUVE* of two histograms over the same clusters.

    >>> round(mauve_of_counts([10, 10], [10, 10]), 6)
    1.0
    """
    from scipy.integrate import trapezoid

    p, q = (
        (np.asarray(cluster_counts, dtype=np.float64) + 0.5) / (np.sum(cluster_counts) + 0.5 * np.size(cluster_counts))
        for cluster_counts in (first, second)
    )
    mixture_weights = np.linspace(1e-6, 1 - 1e-6, MIXTURES)
    mixtures = mixture_weights[:, None] * p + (1 - mixture_weights[:, None]) * q
    x = np.exp(-SCALING * np.concatenate([[0.0], _kl_divergence(q, mixtures), [np.inf]]))
    y = np.exp(-SCALING * np.concatenate([[np.inf], _kl_divergence(p, mixtures), [0.0]]))
    order_by_x, order_by_y = np.lexsort((-y, x)), np.lexsort((-x, y))  # Equal coordinates stay in the curve's order.
    return float(0.5 * (trapezoid(y[order_by_x], x[order_by_x]) + trapezoid(x[order_by_y], y[order_by_y])))


def _kl_divergence(p: Float64, mixtures: Float64) -> Float64:
    """Kullback-Leibler divergence of ``p`` from each mixture, natural logarithm, float64 [MIXTURES]."""
    divergences: Float64 = (p * np.log(p / mixtures)).sum(axis=1)
    return divergences


def _assign_clusters(points: Floats, cluster_count: int, seed: int) -> Int64:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    unit_points = normalize(np.asarray(points, dtype=np.float64))
    reduced_points = PCA(n_components=EXPLAINED, svd_solver="full").fit_transform(unit_points)
    # The authors' package (faiss) starts from random points in single precision, too. Spreading a thousand starting
    # points out would take four fifths of the time that all other figures take together.
    clustering = KMeans(cluster_count, init="random", n_init=RESTARTS, random_state=seed)
    cluster_of = clustering.fit_predict(reduced_points.astype(np.float32))
    return np.asarray(cluster_of, dtype=np.int64)


ORDER = 3
UNKNOWN_SHARE = 0.01  # share of the base distribution for words that no list knows, spelled letter by letter
LETTERS = 27.0  # equally likely letters and the end of the word
TOKEN = re.compile(r"\w+|[^\w\s]")
START = "\x02"
END = "\x03"


def next_word_loss(training: Sequence[str], texts: Sequence[str], *, language: str = "en") -> float:
    """Mean bits per word that a trigram model needs for ``texts`` after it has read ``training``; lower is better.

    Without training texts it is the loss of general word frequencies alone (wordfreq, ``language``), so the difference
    of the two is what a corpus taught. The model interpolates by Witten and Bell (1991, method C) down to these
    frequencies, and to spelling for words they do not know: every text has a finite loss, and both models predict over
    the same words. Words in lower case, punctuation marks and the end of a text count as words. Returns NaN without
    texts.
    """
    model = Trigrams(training, language)
    word_bits = [-math.log2(model.probability(word, context)) for word, context in places(texts)]
    if word_bits:
        return sum(word_bits) / len(word_bits)
    return math.nan


def places(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (word, context) for each word of the texts; the context is the words before it that the model sees."""
    for text in texts:
        padded_words = [START] * (ORDER - 1) + [*TOKEN.findall(text.lower()), END]
        for position in range(ORDER - 1, len(padded_words)):
            yield padded_words[position], tuple(padded_words[position - ORDER + 1 : position])


class Trigrams:
    """A trigram model: counts of the words that follow each context, and general frequencies for what they lack.

    Attributes:
        general: frequencies of the words that the language's list knows, of punctuation marks and of a text's end.
    """

    def __init__(self, training: Sequence[str], language: str) -> None:
        from wordfreq import get_frequency_dict

        word_frequencies = get_frequency_dict(language, wordlist="small")
        # The list has words alone. The shares of ends and marks are those of a text of some twenty words.
        mark_frequencies = {END: 0.05, ".": 0.05, ",": 0.05}
        self.general = {**{word: 0.85 * share for word, share in word_frequencies.items()}, **mark_frequencies}
        self._scale = (1.0 - UNKNOWN_SHARE) / sum(self.general.values())
        self._followers: list[dict[tuple[str, ...], dict[str, int]]] = [defaultdict(dict) for _ in range(ORDER)]
        for word, context in places(training):
            for context_length, level in enumerate(self._followers):
                follower_counts = level[context[ORDER - 1 - context_length :]]
                follower_counts[word] = follower_counts.get(word, 0) + 1
        self._totals = [
            {context: sum(followers.values()) for context, followers in level.items()} for level in self._followers
        ]

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        """Returns the probability of the word after the context, which may be shorter than the model's."""
        spelling_probability: float = UNKNOWN_SHARE * LETTERS ** -(len(word) + 1.0)
        word_probability = float(self._scale * self.general.get(word, 0.0) + spelling_probability)
        for context_length in range(len(context) + 1):
            context_end = context[len(context) - context_length :]
            if followers := self._followers[context_length].get(context_end):
                distinct_count, follower_total = len(followers), self._totals[context_length][context_end]
                word_probability = (followers.get(word, 0.0) + distinct_count * word_probability) / (
                    follower_total + distinct_count
                )
        return word_probability


# Texts of a corpus whose label is probably wrong, by confident learning (Northcutt, Jiang and Chuang 2021).
FOLDS = 5


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """Estimated label errors of a corpus, by confident learning.

    Attributes:
        joint: estimated number of texts by given label (rows) and true label (columns), float64 [C, C], sums to n.
        suspected: indices of the texts that most probably have another label, int64, the surest first; as many as the
            joint has off its diagonal.
    """

    joint: Float64
    suspected: Int64

    @property
    def share(self) -> float:
        """Estimated share of texts with a wrong label."""
        joint_total = float(self.joint.sum())
        if joint_total:
            return 1.0 - float(np.trace(self.joint)) / joint_total
        return float("nan")

    def to_json(self) -> dict[str, Any]:
        """Returns the share and the suspected rows, counted from 1 as in the corpus file, as plain JSON values."""
        return {"share": self.share, "rows": [int(index) + 1 for index in self.suspected]}


def label_errors(labels: Int64, probabilities: Float64) -> LabelErrors:
    """Estimates how many labels are wrong, and which.

    Args:
        labels: given label of each text, int64 [n], 0 to C-1.
        probabilities: probability of each label for each text, float64 [n, C], by a model not trained on that text.

    The threshold of a label is the mean probability of it among the texts that carry it (section 3.1, equation 2);
    a text counts for the likeliest label whose threshold it reaches (equation 1); counts are scaled to the labels'
    own numbers (equation 3). Suspects are pruned by noise rate, the largest margin first (section 3.2).
    Raises ValueError if shapes differ.
    """
    row_count, class_count = probabilities.shape
    if labels.shape != (row_count,):
        raise ValueError(f"{len(labels)} labels for {row_count} rows of probabilities")
    label_counts = np.bincount(labels, minlength=class_count)
    class_thresholds = np.array(
        [
            probabilities[labels == label, label].mean() if label_counts[label] else np.inf
            for label in range(class_count)
        ]
    )
    is_reached = probabilities >= class_thresholds - 1e-6
    likeliest_labels = np.where(is_reached, probabilities, -1.0).argmax(axis=1)
    is_counted = is_reached.any(axis=1)
    joint_counts = np.zeros((class_count, class_count))
    np.add.at(joint_counts, (labels[is_counted], likeliest_labels[is_counted]), 1.0)
    label_totals = joint_counts.sum(axis=1, keepdims=True)
    # If no text of a label counts, all of its texts are taken to have that label.
    joint_counts = (
        np.where(label_totals > 0, joint_counts / np.maximum(label_totals, 1.0), np.eye(class_count))
        * label_counts[:, None]
    )
    label_margins = probabilities.max(axis=1) - probabilities[np.arange(row_count), labels]
    suspected_row_numbers: set[int] = set()
    for label, rival in permutations(range(class_count), 2):
        label_row_numbers = np.flatnonzero(labels == label)
        rival_leads = probabilities[label_row_numbers, rival] - probabilities[label_row_numbers, label]
        leading_row_numbers = label_row_numbers[
            np.argsort(-rival_leads, kind="stable")[: round(float(joint_counts[label, rival]))]
        ]
        suspected_row_numbers.update(
            leading_row_numbers[probabilities[leading_row_numbers].argmax(axis=1) != label].tolist()
        )
    surest_row_numbers = np.array(
        sorted(suspected_row_numbers, key=lambda row_number: (-label_margins[row_number], row_number)), dtype=np.int64
    )
    return LabelErrors(joint_counts, surest_row_numbers)


def corpus_label_errors(embeddings: Float32, labels: Sequence[str], *, seed: int = 0) -> LabelErrors:
    """Estimates the label errors of a corpus, embeddings float32 [n, d], by linear task models (:func:`label_errors`).

    Each text is judged by a model that was trained on the four of five folds that it is not in.
    """
    label_index = {label: label_number for label_number, label in enumerate(sorted(set(labels)))}
    label_numbers = np.array([label_index[label] for label in labels], dtype=np.int64)
    fold_of_row = np.random.default_rng([seed, 0x1E]).permutation(len(label_numbers)) % FOLDS
    fold_probabilities = np.zeros((len(label_numbers), len(label_index)))
    for fold_number in range(FOLDS):
        judged_row_numbers = np.flatnonzero(fold_of_row == fold_number)
        fit_row_numbers = np.flatnonzero(fold_of_row != fold_number)
        fit_labels = [labels[row_number] for row_number in fit_row_numbers.tolist()]
        if not len(judged_row_numbers) or len(set(fit_labels)) < 2:
            continue
        model = train(embeddings[fit_row_numbers], fit_labels, head="linear", seed=seed)
        columns = np.array([label_index[label] for label in model.labels])
        fold_probabilities[np.ix_(judged_row_numbers, columns)] = model.probabilities(embeddings[judged_row_numbers])
    return label_errors(label_numbers, fold_probabilities)
