"""What noisy low-dimensional sums say of each generator, and how much of it to believe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


@dataclass
class Evidence:
    """A K-dimensional private sum opened several times: its running mean and the known variance of its noise."""

    total: Float
    variance: float = 0.0
    releases: int = 0

    @classmethod
    def none(cls, generators: int) -> Evidence:
        return cls(np.zeros(generators))

    def add(self, natural: Float, sigma: float) -> None:
        """One more release with noise of standard deviation ``sigma`` (natural units)."""
        self.total = self.total + natural
        self.variance += sigma * sigma
        self.releases += 1

    @property
    def mean(self) -> Float:
        return self.total / max(1, self.releases)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise in ``mean``."""
        return float(np.sqrt(self.variance)) / max(1, self.releases)


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
