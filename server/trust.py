"""What noisy low-dimensional sums say of each generator, and how much of it to believe."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.vectors import NoisySum

Float = npt.NDArray[np.float64]
SMALLEST_SIGMA = 1e-3  # natural units: without noise (epsilon infinity) every release weighs the same
CAUTION = 1.5  # times the noise's variance is put down to noise: its own estimate from a few values varies by as much


@dataclass
class Evidence:
    """A K-dimensional private sum opened several times: its mean weighted by precision, and that mean's known noise."""

    total: Float
    precision: float = 0.0

    @classmethod
    def none(cls, generators: int) -> Evidence:
        return cls(np.zeros(generators))

    def add(self, opened: NoisySum) -> None:
        """One more release (natural units)."""
        weight = 1.0 / max(opened.sigma, SMALLEST_SIGMA) ** 2
        self.total = self.total + weight * opened.natural
        self.precision += weight

    @property
    def mean(self) -> Float:
        return self.total / self.precision if self.precision else self.total

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in ``mean``; infinite before anything was opened."""
        return 1.0 / math.sqrt(self.precision) if self.precision else math.inf


def shrunk(values: Float, noise: float) -> Float:
    """Deviations from the mean, pulled to zero as far as noise alone explains them: float64 [K], sums to 0.

    Empirical Bayes with the known noise (Efron and Morris 1973): the variance of the true values is estimated by
    moments, as the observed variance minus ``CAUTION`` times ``noise`` squared and at least 0, and every deviation is
    multiplied by the share of that variance in the observed one. Where noise explains it all, every value becomes the
    mean.

    >>> shrunk(np.array([1.0, -1.0, 0.0]), 10.0).tolist()
    [0.0, 0.0, 0.0]
    >>> shrunk(np.array([3.0, 1.0]), 0.0).tolist()
    [1.0, -1.0]
    """
    deviations = values - values.mean()
    observed = float(deviations @ deviations) / max(1, len(values) - 1)
    factor = max(0.0, 1.0 - CAUTION * noise * noise / observed) if observed > 0 else 0.0
    result: Float = deviations * factor + 0.0  # + 0.0: no minus zero
    return result
