"""What noisy low-dimensional sums say of each generator, and how much of it to believe."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
SMALLEST_SIGMA = 1e-3  # natural units: without noise (epsilon infinity) every release weighs the same


@dataclass
class Evidence:
    """A K-dimensional private sum opened several times: its mean weighted by precision, and that mean's known noise."""

    total: Float
    precision: float = 0.0

    @classmethod
    def none(cls, generators: int) -> Evidence:
        return cls(np.zeros(generators))

    def add(self, natural: Float, sigma: float) -> None:
        """One more release with noise of standard deviation ``sigma`` (natural units)."""
        weight = 1.0 / max(sigma, SMALLEST_SIGMA) ** 2
        self.total = self.total + weight * natural
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

    Positive-part James-Stein with the known noise variance (Efron and Morris 1973): the spread of the true values is
    estimated as the observed spread minus the noise's, and where nothing is left every value is the mean.

    >>> shrunk(np.array([1.0, -1.0, 0.0]), 10.0).tolist()
    [0.0, 0.0, 0.0]
    """
    deviations = values - values.mean()
    free = len(values) - 3  # the mean is estimated too
    observed = float(deviations @ deviations)
    if free < 1 or observed <= 0:
        spread = max(0.0, observed / max(1, len(values) - 1) - noise * noise)
        factor = spread / (spread + noise * noise) if spread + noise > 0 else 0.0
    else:
        factor = max(0.0, 1.0 - free * noise * noise / observed)
    result: Float = deviations * factor
    return result
