"""MAUVE: how far two sets of texts are apart, seen from every mixture of the two (Pillutla et al. 2021 and 2023)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64, Floats, Int64

EXPLAINED = 0.9  # of the variance, kept before clustering
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
    assigned = _clusters(np.concatenate([synthetic, real]), clusters, seed)
    ours = np.bincount(assigned[: len(synthetic)], minlength=clusters)
    theirs = np.bincount(assigned[len(synthetic) :], minlength=clusters)
    return mauve_of_counts(ours, theirs)


def mauve_of_counts(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """MAUVE* of two histograms over the same clusters.

    >>> round(mauve_of_counts([10, 10], [10, 10]), 6)
    1.0
    """
    p, q = (
        (np.asarray(each, dtype=np.float64) + 0.5) / (np.sum(each) + 0.5 * np.size(each)) for each in (first, second)
    )
    weights = np.linspace(1e-6, 1 - 1e-6, MIXTURES)
    mixtures = weights[:, None] * p + (1 - weights[:, None]) * q
    x = np.exp(-SCALING * np.concatenate([[0.0], _divergence(q, mixtures), [np.inf]]))
    y = np.exp(-SCALING * np.concatenate([[np.inf], _divergence(p, mixtures), [0.0]]))
    across, along = np.argsort(x), np.argsort(y)
    return float(0.5 * (np.trapezoid(y[across], x[across]) + np.trapezoid(x[along], y[along])))


def _divergence(p: Float64, mixtures: Float64) -> Float64:
    """Kullback-Leibler divergence of ``p`` from each mixture, natural logarithm, float64 [MIXTURES]."""
    divergences: Float64 = (p * np.log(p / mixtures)).sum(axis=1)
    return divergences


def _clusters(points: Floats, clusters: int, seed: int) -> Int64:
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    scaled = normalize(np.asarray(points, dtype=np.float64))
    reduced = PCA(n_components=EXPLAINED, svd_solver="full").fit_transform(scaled)
    # From random points and in single precision, as the authors' package (faiss) does: spreading a thousand starting
    # points out would take four fifths of the time that all other figures take together.
    starts = KMeans(clusters, init="random", n_init=RESTARTS, random_state=seed)
    found = starts.fit_predict(reduced.astype(np.float32))
    return np.asarray(found, dtype=np.int64)
