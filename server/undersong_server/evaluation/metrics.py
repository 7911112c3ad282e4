"""Distances between two sets of texts: their embeddings, their lengths, their labels.

All are computed in the clear. Nothing here is differentially private: a figure that reads private records says
something about them, so these functions are called only where the caller holds the records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64, Floats, Int64

BLOCK_ROWS = 1024  # rows of a distance block: 1 024 x 50 000 float32 are 200 MB
# Fixed and public, so that figures of different runs compare; finer where texts are short, as tweets and questions are.
LENGTH_EDGES = (0, 3, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, 60, 76, 96, 120, 152, 192, 240, 304, 384, 512, 768, 1024)


def equal_rows(first: Floats, second: Floats, *, rows: int | None = None, seed: int = 0) -> tuple[Floats, Floats]:
    """Equally many rows of both: those of :func:`equal_choice`."""
    ours, theirs = equal_choice(len(first), len(second), rows=rows, seed=seed)
    return first[ours], second[theirs]


def equal_choice(first: int, second: int, *, rows: int | None = None, seed: int = 0) -> tuple[Int64, Int64]:
    """Row numbers of two sets, equally many of each, drawn without replacement and sorted: int64.

    Without ``rows`` as many are drawn as the smaller set has. Raises ValueError where a set has fewer than ``rows``.
    """
    there = min(first, second)
    count = there if rows is None else rows
    if count > there:
        raise ValueError(f"cannot draw {count} rows of {first} and {second}")
    rng = np.random.default_rng([seed, 0xE9])

    def draw(size: int) -> Int64:
        return np.arange(size) if size == count else np.sort(rng.choice(size, size=count, replace=False))

    return draw(first), draw(second)


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
    """Mean [d], and R [min(n, d), d] with R'R the unbiased covariance."""
    mean = x.mean(axis=0, dtype=np.float64)
    centred = (x - mean) / np.sqrt(len(x) - 1)
    factor: Float64 = np.asarray(np.linalg.qr(centred, mode="r")) if len(x) > x.shape[1] else centred
    return mean, factor


def self_similarity(embeddings: Floats) -> float:
    """Mean cosine of all pairs of different rows of [n, d]; lower is more diverse. NaN with fewer than two rows.

    The sum over pairs of unit vectors is (|sum x|^2 - n) / 2, so no pair is ever formed.
    """
    if len(embeddings) < 2:
        return float("nan")
    norms = np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings, dtype=np.float64))
    total = np.zeros(embeddings.shape[1])
    for start in range(0, len(embeddings), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        total += (embeddings[rows].astype(np.float64) / np.maximum(norms[rows], 1e-12)[:, None]).sum(axis=0)
    themselves = int((norms > 1e-12).sum())  # a zero row has no direction: its cosine with everything is 0
    return float((total @ total - themselves) / (len(embeddings) * (len(embeddings) - 1)))


def jensen_shannon(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Jensen-Shannon divergence in bits (0: equal shares, 1: nothing in common) of two count vectors of equal length.

    >>> jensen_shannon([1, 0], [0, 3])
    1.0
    """
    p, q = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if p.shape != q.shape or p.sum() <= 0 or q.sum() <= 0 or (p < 0).any() or (q < 0).any():
        raise ValueError("counts must be non-negative, not all zero, and of equal length")
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2

    def excess(x: Float64) -> float:
        some = x > 0
        return float((x[some] * np.log2(x[some] / middle[some])).sum())

    return max(0.0, (excess(p) + excess(q)) / 2)


def word_lengths(texts: Sequence[str]) -> Int64:
    """Words (separated by white space) of each text, int64 [n]."""
    return np.array([len(text.split()) for text in texts], dtype=np.int64)


def length_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' word-length histograms over the fixed ``LENGTH_EDGES``.

    NaN where a set is empty.
    """
    if not first or not second:
        return float("nan")
    edges = np.array([*LENGTH_EDGES, np.inf])
    ours, theirs = (np.histogram(word_lengths(texts), bins=edges)[0] for texts in (first, second))
    return jensen_shannon(ours, theirs)


def label_divergence(first: Sequence[str], second: Sequence[str]) -> float:
    """Jensen-Shannon divergence, bits, of two sets' label shares. NaN where a set is empty."""
    if not first or not second:
        return float("nan")
    names = {name: index for index, name in enumerate(sorted(set(first) | set(second)))}
    ours, theirs = (np.bincount([names[name] for name in labels], minlength=len(names)) for labels in (first, second))
    return jensen_shannon(ours, theirs)
