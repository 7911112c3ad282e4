"""Shares of the generators whose mixture lies where the private records lie: moments along a few public directions.

The generators' texts have means mu_k around their label's centre, the mean over the generators. Only K - 1 directions
tell them apart, so only there is the records' own mean asked for (``protocol/statistics/projections``): K - 1 noisy
numbers, whatever the number of candidates. The shares are those of the mixture whose mean comes near (the linear
maximum mean discrepancy, Gretton et al. 2012) and that is no farther from given shares than the known noise requires.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.projections import COUNT, PLACE
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.places import Directions, cell_means, radius_of

LEAST_VARIANCE = 1e-6  # of the records' mean: with none, records outside the means' hull have no shares


@dataclass(frozen=True, eq=False)
class Basis(Directions):
    """The K - 1 directions in which the generators' means differ.

    Attributes:
        spread: variance of one text's coordinate, averaged over the directions.
    """

    spread: float

    @classmethod
    def of(cls, embeddings: Float32, labels: Int64, author: Int64, generators: int, classes: int) -> Basis:
        """Computes the basis from unit embeddings, float32 [n, d]; labels (-1 if unlabelled), authors, int64 [n]."""
        group = np.maximum(labels, 0)
        means = cell_means(embeddings, group, author, generators, max(1, classes))
        centres: Float64 = np.nan_to_num(np.nanmean(means, axis=0))
        differences = np.nan_to_num(means - centres).mean(axis=1)
        directions = np.linalg.svd(differences, full_matrices=False)[2][: generators - 1].T
        places = (embeddings - centres[group]) @ directions
        return cls(directions, centres, radius_of(places), float(places.var(axis=0).mean()))

    def means(self, embeddings: Float32, labels: Int64, author: Int64, generators: int) -> Float64:
        """Each generator's mean around the centres along the directions, labels weighed alike: float64 [K, K - 1]."""
        group = np.maximum(labels, 0)
        found = cell_means(embeddings, group, author, generators, len(self.centres)) - self.centres
        result: Float64 = np.nan_to_num(found).mean(axis=1) @ self.directions
        return result


def records_of(places: NoisySum) -> float:
    """Returns the noisy number of records that answered: at least the deviation of its noise, and at least 1."""
    return max(float(places.natural[0]), places.sigma, COUNT) / COUNT


def fewest_of(places: NoisySum) -> float:
    """Returns a lower bound of the number of records at 2 sigma (too high in one case of forty), and at least 1."""
    return max(float(places.natural[0]) - 2.0 * places.sigma, COUNT) / COUNT


def matched_shares(places: NoisySum, basis: Basis, means: Float64, prior: Float64) -> Float64:
    """The generators' shares, float64 [K], positive, sum 1.

    With r the records' mean along the directions, v its variance (the known noise and the records' spread, over no more
    records than there surely are) and D the means: the w on the simplex that minimises
    |D' w - r|^2 / (2 v) + KL(w || prior). Much noise gives the prior, and it decides between generators whose texts lie
    in one place.

    Where the records lie outside the generators' hull no mixture comes near, and the nearest one would have all the
    weight on one generator. So the squared distance that is left is added to v, and the shares are solved for again.
    """
    unit, fewest = basis.radius / PLACE, fewest_of(places)
    place = places.natural[1:] * unit / records_of(places)
    variance = (places.sigma * unit / fewest) ** 2 + basis.spread / fewest
    shares = tilted_towards(place, variance, means, prior)
    # What no mixture of these generators reaches is no evidence for any of them.
    return tilted_towards(place, variance + float(((means.T @ shares - place) ** 2).sum()), means, prior)


def tilted_towards(place: Float64, variance: float, means: Float64, prior: Float64) -> Float64:
    """The w on the simplex, float64 [K], that minimises |means' w - place|^2 / (2 variance) + KL(w || prior).

    Solved in its dual: w_k is proportional to prior_k exp(means_k l), where the numbers l minimise
    log sum_k prior_k exp(means_k l) - place l + variance |l|^2 / 2 (exponential tilting; Csiszar 1975).

    Args:
        place: float64 [P]; variance: of its coordinates; means: float64 [K, P]; prior: float64 [K].
    """
    from scipy.optimize import minimize

    variance = max(variance, LEAST_VARIANCE)
    start = np.log(np.maximum(prior, np.finfo(np.float64).tiny))

    def tilted(direction: Float64) -> tuple[Float64, float]:
        exponents = start + means @ direction
        odds = np.exp(exponents - exponents.max())
        return odds / odds.sum(), float(np.log(odds.sum()) + exponents.max())

    def dual(direction: Float64) -> float:
        return tilted(direction)[1] - float(place @ direction) + variance * float(direction @ direction) / 2.0

    def slope(direction: Float64) -> Float64:
        result: Float64 = means.T @ tilted(direction)[0] - place + variance * direction
        return result

    def curvature(direction: Float64) -> Float64:
        w = tilted(direction)[0]
        mean = means.T @ w
        result: Float64 = (means.T * w) @ means - np.outer(mean, mean) + variance * np.eye(len(mean))
        return result

    return tilted(minimize(dual, np.zeros(len(place)), jac=slope, hess=curvature, method="trust-exact").x)[0]
