"""Distances between two sets of texts: their embeddings, their lengths, their labels.

A corpus may weigh its texts: :func:`distinct_texts` says what its texts are, :func:`equal_choice` which of them are
compared.

All are computed in the clear. Nothing here is differentially private: a figure that reads private records says
something about them, so these functions are called only where the caller holds the records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from undersong_common.arrays import Float64, Floats, Int64
from undersong_common.errors import ConfigurationError

BLOCK_ROWS = 1024  # rows of a distance block: 1 024 x 50 000 float32 are 200 MB
# Fixed and public, so that figures of different runs compare; finer where texts are short, as tweets and questions are.
LENGTH_EDGES = (0, 3, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, 60, 76, 96, 120, 152, 192, 240, 304, 384, 512, 768, 1024)


def equal_rows(first: Floats, second: Floats, *, rows: int | None = None, seed: int = 0) -> tuple[Floats, Floats]:
    """Equally many rows of both: those of :func:`equal_choice`."""
    ours, theirs = equal_choice(len(first), len(second), rows=rows, seed=seed)
    return first[ours], second[theirs]


def equal_choice(
    first: int, second: int, *, rows: int | None = None, seed: int = 0, weights: npt.ArrayLike | None = None
) -> tuple[Int64, Int64]:
    """Row numbers of two sets, equally many of each, drawn without replacement and sorted: int64.

    Where the first set's ``weights`` [first] differ, its rows are drawn in proportion to them, so that those drawn
    stand for the weighted set. The fewer are left out, the less can weights count: a row that should be drawn more than
    once is drawn once. So ``rows`` should be well below ``first``; without it as many are drawn as the smaller set has,
    for weights that differ their :func:`effective_number`.

    Raises ValueError where a set has fewer than ``rows``, rows without weight not counted.
    """
    w = _relative(weights, first)
    there = min(int(np.count_nonzero(w)), second)
    count = min(effective_number(w), second) if rows is None else rows
    if count > there:
        raise ValueError(f"cannot draw {count} rows of {first} and {second}")
    rng = np.random.default_rng([seed, 0xE9])

    def draw(size: int) -> Int64:
        return np.arange(size) if size == count else np.sort(rng.choice(size, size=count, replace=False))

    return (draw(first) if (w == 1.0).all() else _proportional(w, count, rng)), draw(second)


def distinct_texts(
    texts: Sequence[str], labels: Sequence[str] | None, weights: npt.ArrayLike | None
) -> tuple[Int64, Float64]:
    """The texts of a weighted corpus: the first row of each, int64 [t], ascending, and its weight, float64 [t], mean 1.

    A text that stands under several labels has a row for each. It is one text and weighs as much as its rows together.
    Texts of weight 0 are left out. Without weights every row is a text, repetitions too, since they show how much a
    generator repeats itself; the same holds where all rows weigh the same and no text has several labels.

    >>> distinct_texts(["a", "b", "a"], ["x", "x", "y"], [1.0, 2.0, 3.0])
    (array([0, 1]), array([1.33333333, 0.66666667]))
    """
    w = _relative(weights, len(texts))
    if weights is None:
        return np.arange(len(texts)), w
    places: dict[str, int] = {}
    text_of = np.array([places.setdefault(text, len(places)) for text in texts], dtype=np.int64)
    several = labels is not None and len(set(zip(text_of.tolist(), labels, strict=True))) > len(places)
    if (w == 1.0).all() and not several:
        return np.arange(len(texts)), w
    total = np.bincount(text_of, weights=w, minlength=len(places))
    rows = np.unique(text_of, return_index=True)[1][total > 0]
    return rows, _relative(total[total > 0], len(rows))


def effective_size(weights: npt.ArrayLike) -> float:
    """Of how many texts of equal weight a weighted mean is as precise: (sum w)^2 / sum w^2 (Kish 1965); 0 of none."""
    w = np.asarray(weights, dtype=np.float64)
    if not w.any():
        return 0.0
    w = w / w.max()
    return float(w.sum() ** 2 / (w**2).sum())


def effective_number(weights: npt.ArrayLike) -> int:
    """The :func:`effective_size` in whole texts, rounded down.

    >>> effective_number([1, 1, 1, 1]), effective_number([3, 1]), effective_number([0, 5])
    (4, 1, 1)
    """
    return int(effective_size(weights) * (1 + 1e-12))  # rounding must not take a text from equal weights


def _relative(weights: npt.ArrayLike | None, rows: int) -> Float64:
    """Weights of mean 1, float64 [rows]; exactly 1 where none are given or all are the same up to rounding.

    Raises ConfigurationError where they do not fit.
    """
    if weights is None:
        return np.ones(rows)
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (rows,) or not np.isfinite(w).all() or (w < 0).any():
        raise ConfigurationError(
            f"weights of shape {w.shape} for {rows} rows are not usable", "give one finite weight >= 0 a row"
        )
    if not w.any():
        return w
    w = w / w.max()
    return np.ones(rows) if w.min() > 1 - 1e-9 else w / w.mean()


def _proportional(weights: Float64, count: int, rng: np.random.Generator) -> Int64:
    """``count`` different numbers, sorted; each is drawn with a chance in proportion to its weight, at most 1.

    Systematic sampling in random order (Hartley and Rao 1962). Draws one after the other, each in proportion to what is
    left (``rng.choice``), take heavy rows too rarely: half of the rows then hold four fifths of what they should where
    a third of all weighs four times as much as the rest.
    """
    certain = np.zeros(len(weights), dtype=bool)
    while True:
        left = count - int(certain.sum())
        chance = np.where(certain, 0.0, weights)
        if left == 0:
            return np.flatnonzero(certain)
        chance *= left / chance.sum()
        more = chance > 1 - 1e-9
        if not more.any():
            break
        certain |= more
    order = rng.permutation(np.flatnonzero(chance))
    steps = np.floor(np.cumsum(chance[order]) + rng.random())
    steps[-1] = left  # which rounding could miss
    return np.sort(np.concatenate([np.flatnonzero(certain), order[np.diff(steps, prepend=0.0) > 0]]))


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


def self_similarity(embeddings: Floats, weights: npt.ArrayLike | None = None) -> float:
    """Mean cosine of all pairs of different rows of [n, d]; lower is more diverse. NaN with fewer than two rows.

    A pair weighs the product of its rows' ``weights`` [n]. The sum over pairs of unit vectors is
    (|sum w x|^2 - sum w^2) / 2, so no pair is ever formed.
    """
    w = _relative(weights, len(embeddings))
    pairs = float(w.sum() ** 2 - (w**2).sum())
    if len(embeddings) < 2 or pairs <= 0:
        return float("nan")
    norms = np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings, dtype=np.float64))
    total = np.zeros(embeddings.shape[1])
    for start in range(0, len(embeddings), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        unit = embeddings[rows].astype(np.float64) / np.maximum(norms[rows], 1e-12)[:, None]
        total += (unit * w[rows, None]).sum(axis=0)
    themselves = float((w[norms > 1e-12] ** 2).sum())  # a zero row has no direction: its cosine with everything is 0
    return float((total @ total - themselves) / pairs)


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


def length_divergence(first: Sequence[str], second: Sequence[str], weights: npt.ArrayLike | None = None) -> float:
    """Jensen-Shannon divergence, bits, of two sets' word-length histograms over the fixed ``LENGTH_EDGES``.

    ``weights`` are of the first set's texts. NaN where all are 0.
    """
    edges = np.array([*LENGTH_EDGES, np.inf])
    w = _relative(weights, len(first))
    if not w.any():
        return float("nan")
    return jensen_shannon(
        np.histogram(word_lengths(first), bins=edges, weights=w)[0], np.histogram(word_lengths(second), bins=edges)[0]
    )


def label_divergence(first: Sequence[str], second: Sequence[str], weights: npt.ArrayLike | None = None) -> float:
    """Jensen-Shannon divergence, bits, of two sets' label shares: of rows, since a text may have several labels.

    ``weights`` are of the first set's rows. NaN where all are 0.
    """
    names = {name: index for index, name in enumerate(sorted(set(first) | set(second)))}
    w = _relative(weights, len(first))
    if not w.any():
        return float("nan")
    ours, theirs = ([names[name] for name in labels] for labels in (first, second))
    return jensen_shannon(np.bincount(ours, weights=w, minlength=len(names)), np.bincount(theirs, minlength=len(names)))
