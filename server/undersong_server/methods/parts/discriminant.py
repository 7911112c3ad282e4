"""Scores of how private candidates look, linear, from noisy votes or noisy moments. All is post-processing.

Both discriminators are linear in the embedding, with one direction per class, and both are Bayesian with known noise:
what noise alone explains is shrunk to 0, and a class with few records takes more of the direction that the classes
share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.outer_products import symmetric
from undersong_protocol.statistics.teachers import Whitening

# Prior variances are chosen among these by marginal likelihood.
LEVELS = (0.0, *(float(level) for level in np.logspace(-4, 1, 11)))
VOTE_LEVELS = tuple(float(level) for level in np.logspace(-4, 0, 13))  # of the variance of votes, to the largest
RESIDUAL = 0.3  # share of the votes' variance (without noise) that no linear score explains
OWN_SHARE = 1.0  # prior variance of a class's deviation beside that of the common direction, for votes
FITTING = 0.95  # share of the candidates whose projection has at most norm 1
CURVATURES = (0.2, 5.0)  # bounds of the records' variances relative to the candidates'
DAMPING = 0.25  # of the quadratic part: whole, it lost on both data sets of docs/discriminator.md


@dataclass(frozen=True, eq=False)
class Discriminator:
    """Scores, higher for what could have been private; only scores within one class compare.

    Attributes:
        whitening: to coordinates in which the public candidates of every class have mean 0.
        directions: float64 [classes, d].
        projection, curvature: float64 [p, d] and symmetric [p, p], whose quadratic form is added; None where only means
            were asked for.
    """

    whitening: Whitening
    directions: Float64
    projection: Float64 | None = None
    curvature: Float64 | None = None

    def scores(self, _texts: Sequence[str], embeddings: Float32, classes: Int64) -> Float64:
        """Scores of texts with their embeddings, float32 [n, d], and given classes, int64 [n]: float64 [n]."""
        x = self.whitening(embeddings, classes).astype(np.float64)
        found: Float64 = np.einsum("nd,nd->n", x, self.directions[classes])
        if self.projection is not None and self.curvature is not None:
            y = projected(self.whitening, self.projection, embeddings, classes)
            found = found + np.einsum("np,np->n", y @ self.curvature, y)
        return found


def distilled(
    whitening: Whitening,
    queries: Float32,
    query_classes: Int64,
    counts: Float64,
    *,
    sigma: float,
    teachers: int,
    classes: int,
) -> Discriminator:
    """The student: Bayesian linear regression of noisy vote counts on the queries.

    Counts are centred by class, since the number of teachers that voted is private. Weighing them by their known noise
    says more than their majorities would, and needs no threshold. The variance of the votes without the noise is the
    likeliest one; scores are in its standard deviations.

    Args:
        queries, query_classes: float32 [r, d] and int64 [r]; ``counts`` of each with noise ``sigma``, float64 [r].
        teachers: at most so many voted, in all.
    """
    x = whitening(queries, query_classes).astype(np.float64)
    y = counts - averaged(counts, query_classes)
    same = query_classes[:, None] == query_classes
    kernel = x @ x.T * (1.0 + OWN_SHARE * same)
    scale = max(float(np.trace(kernel)) / max(1, len(y)), 1e-12)
    values, vectors = np.linalg.eigh(kernel / scale)
    turned = vectors.T @ y

    def log_likelihood(signal: float) -> float:
        variance = signal * np.maximum(values, 0.0) + sigma**2 + RESIDUAL * signal
        return float(-0.5 * (np.log(variance) + turned**2 / variance).sum())

    # A vote is 0 or 1, so counts vary by at most half of the teachers.
    signal = max((teachers**2 / 4 * level for level in VOTE_LEVELS), key=log_likelihood)
    alpha = math.sqrt(signal) / scale * (vectors @ (turned / (signal * (values + RESIDUAL) + sigma**2)))
    own = np.stack([(alpha * (query_classes == label)) @ x for label in range(classes)])
    return Discriminator(whitening, alpha @ x + OWN_SHARE * own)


def linear_discriminant(
    whitening: Whitening, sums: Float64, counts: Float64, *, sigma: float, count_sigma: float
) -> Discriminator:
    """Linear discriminants from noisy sums of the private embeddings of each class against the public candidates.

    In the axes of the public covariance a class's difference of means is a common part plus its own, both normal with
    variances in proportion to that covariance, observed with known noise and the sampling error of its records; the
    two proportions are those of the highest marginal likelihood. Fisher's direction is then the posterior mean of the
    difference, divided by the covariance.

    Args:
        sums: noisy, float64 [classes, d]; ``sigma`` a coordinate.
        counts: noisy records of each class, float64 [classes]; ``count_sigma`` of each.
    """
    records = np.maximum(counts, max(1.0, count_sigma))[:, None]
    basis, variances = whitening.axes, whitening.variances
    observed = (sums / records - whitening.means) @ basis
    noise = (sigma / records) ** 2 + variances / records
    common, own = max(
        ((a, b) for a in LEVELS for b in (LEVELS if len(sums) > 1 else (0.0,))),
        key=lambda pair: _log_likelihood(observed, noise, pair[0] * variances, pair[1] * variances),
    )
    precision = 1.0 / (own * variances + noise)
    if common:
        shared = (observed * precision).sum(axis=0) / (1.0 / (common * variances) + precision.sum(axis=0))
    else:
        shared = np.zeros(observed.shape[1])
    difference = shared + own * variances * precision * (observed - shared)
    return Discriminator(whitening, whitening.whitened_direction(difference / variances))


def projection(whitening: Whitening, embeddings: Float32, classes: Int64, size: int) -> Float64:
    """The ``size`` axes in which candidates vary most, float64 [p, d], so scaled that nearly all fit into norm 1."""
    axes = whitening.axes[:, ::-1][:, :size].T
    norms = np.linalg.norm((embeddings - whitening.means[classes]) @ axes.T, axis=1)
    result: Float64 = axes / max(float(np.quantile(norms, FITTING)), 1e-12)
    return result


def projected(whitening: Whitening, projection: Float64, embeddings: Float32, classes: Int64) -> Float64:
    """The vectors of which undersong_protocol.statistics.outer_products takes products: float64 [n, p], norms <= 1."""
    y = (embeddings - whitening.means[classes]) @ projection.T
    result: Float64 = y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1.0)
    return result


def curved(
    found: Discriminator, projection: Float64, embeddings: Float32, classes: Int64, products: Float64, noise: float
) -> Discriminator:
    """Adds the difference of second moments about the public means, as in a quadratic discriminant, damped.

    Relative to the candidates' own second moments (the identity, in suitable axes), what the noise explains is taken
    away coordinate by coordinate, and eigenvalues are kept within ``CURVATURES``.

    Args:
        embeddings, classes: of the public candidates.
        products: noisy mean of the records' outer products, upper triangle, float64 [p (p + 1) / 2]; ``noise`` is the
            deviation of each.
    """
    size = len(projection)
    y = projected(found.whitening, projection, embeddings, classes)
    values, vectors = np.linalg.eigh(y.T @ y / len(y))
    axes = vectors / np.sqrt(np.maximum(values, 1e-9 * max(float(values[-1]), 1e-12)))
    relative = axes.T @ symmetric(products, size) @ axes - np.eye(size)
    # Off the diagonal a coordinate carries half the variance; rotating leaves that as it is, but for the scaling.
    variance = noise**2 / 2 * np.outer((axes * axes).sum(axis=0), (axes * axes).sum(axis=0)) * (1 + np.eye(size))
    signal = max(float((relative**2).sum() - variance.sum()), 0.0) / size**2
    values, vectors = np.linalg.eigh(np.eye(size) + relative * signal / (signal + variance))
    inner = (vectors * (1.0 - 1.0 / np.clip(values, *CURVATURES))) @ vectors.T
    return replace(found, projection=projection, curvature=0.5 * DAMPING * axes @ inner @ axes.T)


def _log_likelihood(observed: Float64, noise: Float64, common: Float64, own: Float64) -> float:
    """Log-likelihood of ``observed`` [classes, d] up to a constant: a common variance [d], and ``own + noise``."""
    alone = own + noise
    precision = (1.0 / alone).sum(axis=0)
    quadratic = (observed**2 / alone).sum() - (
        common * (observed / alone).sum(axis=0) ** 2 / (1.0 + common * precision)
    ).sum()
    return float(-0.5 * (np.log(alone).sum() + np.log1p(common * precision).sum() + quadratic))


def averaged(values: Float64, group: Int64) -> Float64:
    """Each value replaced by the mean of its group's: float64 [n], of groups numbered from 0, int64 [n]."""
    found: Float64 = (np.bincount(group, weights=values) / np.maximum(np.bincount(group), 1))[group]
    return found
