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
    nuclear = np.linalg.svd(factor_a @ factor_b.T, compute_uv=False).sum()
    distance = ((mean_a - mean_b) ** 2).sum() + (factor_a**2).sum() + (factor_b**2).sum() - 2 * nuclear
    return max(0.0, float(distance))


def _mean_and_factor(x: Floats) -> tuple[Float64, Float64]:
    """Returns the mean [d], and R [min(n, d), d] with R'R the unbiased covariance."""
    mean = x.mean(axis=0, dtype=np.float64)
    centred = (x - mean) / np.sqrt(len(x) - 1)
    factor: Float64 = np.asarray(np.linalg.qr(centred, mode="r")) if len(x) > x.shape[1] else centred
    return mean, factor


def self_similarity(embeddings: Floats) -> float:
    """Mean cosine of all pairs of different rows of [n, d]; lower is more diverse. NaN with fewer than two rows.

    The sum over pairs of unit vectors is (|sum x|^2 - n) / 2, so no pair is ever formed.
    """
    from sklearn.preprocessing import normalize

    if len(embeddings) < 2:
        return math.nan
    unit = normalize(embeddings.astype(np.float64))
    total, themselves = unit.sum(axis=0), unit.any(axis=1).sum()  # a zero row's cosine with everything is 0
    return float((total @ total - themselves) / (len(unit) * (len(unit) - 1)))


def length_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' histograms of lengths in words over the fixed ``LENGTH_EDGES``.

    NaN if a set is empty.
    """
    edges = [*LENGTH_EDGES, np.inf]
    return _divergence_bits(
        *(np.histogram([len(text.split()) for text in texts], edges)[0] for texts in (first, second))
    )


def label_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' label shares. NaN if a set is empty."""
    first_counts, second_counts = Counter(first), Counter(second)
    names = sorted({*first_counts, *second_counts})
    return _divergence_bits(*(np.array([counts[name] for name in names]) for counts in (first_counts, second_counts)))


def _divergence_bits(first: Int64, second: Int64) -> float:
    """Jensen-Shannon divergence of two count vectors: 0 for equal shares, 1 for nothing in common, NaN for no count."""
    from scipy.spatial.distance import jensenshannon

    if first.any() and second.any():
        return float(jensenshannon(first, second, base=2) ** 2)
    return math.nan


def neighbourhoods(
    synthetic: Floats, real: Floats, *, neighbours: int = 3, coverage_neighbours: int = 5
) -> dict[str, float]:
    """Compares two sets of embeddings, [n, d] and [m, d], by the balls around them; compare at equal n and m only.

    * precision: share of synthetic texts within at least one real text's ball;
    * recall: share of real texts within at least one synthetic text's ball (Kynkaanniemi et al. 2019, equations 1 and
      2, both with ``neighbours``);
    * density: real balls that hold a synthetic text, mean over the synthetic texts, per neighbour: about 1 if both sets
      come from one distribution, above 1 if synthetic texts crowd where real ones are dense;
    * coverage: share of real texts whose own ball holds at least one synthetic text (Naeem et al. 2020, equations 4 and
      5, both with ``coverage_neighbours``).

    An outlier among the real texts makes precision large, and neither density nor coverage.

    A ball reaches to the k-th nearest other point and includes its edge. O(n + m) memory beside
    one block of distances. Raises ValueError if a set has no k-th neighbour.
    """
    from sklearn.metrics import pairwise_distances_chunked

    largest_k = max(neighbours, coverage_neighbours)
    if min(len(synthetic), len(real)) <= largest_k:
        raise ValueError(f"{min(len(synthetic), len(real))} points have no {largest_k} neighbours")
    real_radius, wide_radius = _ball_radii(real, (neighbours, coverage_neighbours))
    (own_radius,) = _ball_radii(synthetic, (neighbours,))
    inside_real, balls, covered = 0, 0, np.zeros(len(real), dtype=bool)
    for block in pairwise_distances_chunked(synthetic, real, working_memory=BLOCK_MIB):
        inside_real += int((block <= real_radius).any(axis=1).sum())
        is_inside = block <= wide_radius
        balls += int(is_inside.sum())
        covered |= is_inside.any(axis=0)
    blocks = pairwise_distances_chunked(real, synthetic, working_memory=BLOCK_MIB)
    inside_synthetic = sum(int((block <= own_radius).any(axis=1).sum()) for block in blocks)
    return {
        "precision": inside_real / len(synthetic),
        "recall": inside_synthetic / len(real),
        "density": balls / (coverage_neighbours * len(synthetic)),
        "coverage": float(covered.mean()),
    }


def _ball_radii(points: Floats, neighbours: tuple[int, ...]) -> Float64:
    """Distance of every point to its k-th nearest other point, float64 [len(neighbours), n]."""
    from sklearn.metrics import pairwise_distances_chunked

    blocks = pairwise_distances_chunked(points, working_memory=BLOCK_MIB)  # a point is at the distance 0 of itself
    return np.concatenate([np.partition(block, neighbours, axis=1)[:, neighbours] for block in blocks]).T


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Different n-grams over all n-grams of all texts, words split at white space, 0 to 1 (Li et al. 2016).

    It falls as a corpus grows: compare corpora of equal size. NaN if no text has n words.

    >>> distinct_n(["a b a b"], 2)
    0.6666666666666666
    """
    distinct: set[tuple[str, ...]] = set()
    total = 0
    for text in texts:
        words = text.split()
        grams = list(zip(*(words[start:] for start in range(n)), strict=False))
        distinct.update(grams)
        total += len(grams)
    if total:
        return len(distinct) / total
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
    rows = normalize(np.asarray(embeddings, dtype=np.float64))
    gram = rows.T @ rows if rows.shape[1] < len(rows) else rows @ rows.T
    values = np.linalg.eigvalsh(gram / len(rows))
    positive = values[values > 1e-12]
    return float(np.exp(-(positive * np.log(positive)).sum()))


EXPLAINED = 0.9  # share of the variance that is kept before clustering
POINTS_PER_CLUSTER = 10
MIXTURES = 25  # points of the divergence curve
SCALING = 5.0  # c of exp(-c KL)
RESTARTS = 5
FEWEST_TEXTS = 2 * POINTS_PER_CLUSTER


def mauve(synthetic: Floats, real: Floats, *, seed: int = 0) -> float:
    """Area under the divergence curve of two sets of embeddings, [n, d] and [m, d]: 0 to 1, 1 for equal sets.

    As the authors' package does it: unit length, principal components, k-means with one cluster per ten texts of the
    smaller set, counts smoothed by one half per cluster (MAUVE*, Pillutla et al. 2023, Krichevsky-Trofimov), and the
    area between the Kullback-Leibler divergences to 25 mixtures. The embeddings are this project's own, not a language
    model's: figures compare with each other, not with published ones. Depends on n and m: compare at equal sizes.

    Raises ValueError with fewer than 20 texts on a side.
    """
    if min(len(synthetic), len(real)) < FEWEST_TEXTS:
        raise ValueError(f"{min(len(synthetic), len(real))} texts are too few for two clusters of ten")
    clusters = max(2, round(min(len(synthetic), len(real)) / POINTS_PER_CLUSTER))
    assigned = _assign_clusters(np.concatenate([synthetic, real]), clusters, seed)
    synthetic_counts = np.bincount(assigned[: len(synthetic)], minlength=clusters)
    real_counts = np.bincount(assigned[len(synthetic) :], minlength=clusters)
    return mauve_of_counts(synthetic_counts, real_counts)


def mauve_of_counts(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """MAUVE* of two histograms over the same clusters.

    >>> round(mauve_of_counts([10, 10], [10, 10]), 6)
    1.0
    """
    from scipy.integrate import trapezoid

    p, q = (
        (np.asarray(counts, dtype=np.float64) + 0.5) / (np.sum(counts) + 0.5 * np.size(counts))
        for counts in (first, second)
    )
    weights = np.linspace(1e-6, 1 - 1e-6, MIXTURES)
    mixtures = weights[:, None] * p + (1 - weights[:, None]) * q
    x = np.exp(-SCALING * np.concatenate([[0.0], _kl_divergence(q, mixtures), [np.inf]]))
    y = np.exp(-SCALING * np.concatenate([[np.inf], _kl_divergence(p, mixtures), [0.0]]))
    across, along = np.lexsort((-y, x)), np.lexsort((-x, y))  # Equal coordinates stay in the curve's order.
    return float(0.5 * (trapezoid(y[across], x[across]) + trapezoid(x[along], y[along])))


def _kl_divergence(p: Float64, mixtures: Float64) -> Float64:
    """Kullback-Leibler divergence of ``p`` from each mixture, natural logarithm, float64 [MIXTURES]."""
    divergences: Float64 = (p * np.log(p / mixtures)).sum(axis=1)
    return divergences


def _assign_clusters(points: Floats, clusters: int, seed: int) -> Int64:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    scaled = normalize(np.asarray(points, dtype=np.float64))
    reduced = PCA(n_components=EXPLAINED, svd_solver="full").fit_transform(scaled)
    # The authors' package (faiss) starts from random points in single precision, too. Spreading a thousand starting
    # points out would take four fifths of the time that all other figures take together.
    starts = KMeans(clusters, init="random", n_init=RESTARTS, random_state=seed)
    cluster_of = starts.fit_predict(reduced.astype(np.float32))
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
    bits = [-math.log2(model.probability(word, context)) for word, context in places(texts)]
    if bits:
        return sum(bits) / len(bits)
    return math.nan


def places(texts: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (word, context) for each word of the texts; the context is the words before it that the model sees."""
    for text in texts:
        padded = [START] * (ORDER - 1) + [*TOKEN.findall(text.lower()), END]
        for place in range(ORDER - 1, len(padded)):
            yield padded[place], tuple(padded[place - ORDER + 1 : place])


class Trigrams:
    """A trigram model: counts of the words that follow each context, and general frequencies for what they lack.

    Attributes:
        general: frequencies of the words that the language's list knows, of punctuation marks and of a text's end.
    """

    def __init__(self, training: Sequence[str], language: str) -> None:
        from wordfreq import get_frequency_dict

        frequencies = get_frequency_dict(language, wordlist="small")
        # A text of some twenty words, with a mark now and then: what the list, which is of words alone, does not say.
        marks = {END: 0.05, ".": 0.05, ",": 0.05}
        self.general = {**{word: 0.85 * share for word, share in frequencies.items()}, **marks}
        self._scale = (1.0 - UNKNOWN_SHARE) / sum(self.general.values())
        self._followers: list[dict[tuple[str, ...], dict[str, int]]] = [defaultdict(dict) for _ in range(ORDER)]
        for word, context in places(training):
            for size, level in enumerate(self._followers):
                counts = level[context[ORDER - 1 - size :]]
                counts[word] = counts.get(word, 0) + 1
        self._totals = [
            {context: sum(followers.values()) for context, followers in level.items()} for level in self._followers
        ]

    def probability(self, word: str, context: tuple[str, ...]) -> float:
        """Returns the probability of the word after the context, which may be shorter than the model's."""
        spelled: float = UNKNOWN_SHARE * LETTERS ** -(len(word) + 1.0)
        probability = float(self._scale * self.general.get(word, 0.0) + spelled)
        for size in range(len(context) + 1):
            end = context[len(context) - size :]
            if followers := self._followers[size].get(end):
                kinds, total = len(followers), self._totals[size][end]
                probability = (followers.get(word, 0.0) + kinds * probability) / (total + kinds)
        return probability


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
        total = float(self.joint.sum())
        if total:
            return 1.0 - float(np.trace(self.joint)) / total
        return float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; rows are counted from 1, as in the corpus file."""
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
    n, classes = probabilities.shape
    if labels.shape != (n,):
        raise ValueError(f"{len(labels)} labels for {n} rows of probabilities")
    label_counts = np.bincount(labels, minlength=classes)
    thresholds = np.array(
        [probabilities[labels == label, label].mean() if label_counts[label] else np.inf for label in range(classes)]
    )
    reached = probabilities >= thresholds - 1e-6
    likeliest = np.where(reached, probabilities, -1.0).argmax(axis=1)
    is_counted = reached.any(axis=1)
    joint = np.zeros((classes, classes))
    np.add.at(joint, (labels[is_counted], likeliest[is_counted]), 1.0)
    rows = joint.sum(axis=1, keepdims=True)
    # A label none of whose texts counts is taken at its word.
    joint = np.where(rows > 0, joint / np.maximum(rows, 1.0), np.eye(classes)) * label_counts[:, None]
    margins = probabilities.max(axis=1) - probabilities[np.arange(n), labels]
    suspected: set[int] = set()
    for label, rival in permutations(range(classes), 2):
        members = np.flatnonzero(labels == label)
        ahead = probabilities[members, rival] - probabilities[members, label]
        first = members[np.argsort(-ahead, kind="stable")[: round(float(joint[label, rival]))]]
        suspected.update(first[probabilities[first].argmax(axis=1) != label].tolist())
    surest = np.array(sorted(suspected, key=lambda index: (-margins[index], index)), dtype=np.int64)
    return LabelErrors(joint, surest)


def corpus_label_errors(embeddings: Float32, labels: Sequence[str], *, seed: int = 0) -> LabelErrors:
    """:func:`label_errors` of a labelled corpus, float32 [n, d], by linear task models of five folds.

    Every text is judged by the model of the four folds it is not in.
    """
    names = {name: number for number, name in enumerate(sorted(set(labels)))}
    y = np.array([names[label] for label in labels], dtype=np.int64)
    fold = np.random.default_rng([seed, 0x1E]).permutation(len(y)) % FOLDS
    probabilities = np.zeros((len(y), len(names)))
    for number in range(FOLDS):
        judged_rows = np.flatnonzero(fold == number)
        fit_rows = np.flatnonzero(fold != number)
        fit_labels = [labels[row] for row in fit_rows.tolist()]
        if not len(judged_rows) or len(set(fit_labels)) < 2:
            continue
        model = train(embeddings[fit_rows], fit_labels, head="linear", seed=seed)
        columns = np.array([names[label] for label in model.labels])
        probabilities[np.ix_(judged_rows, columns)] = model.probabilities(embeddings[judged_rows])
    return label_errors(y, probabilities)
