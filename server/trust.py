"""How much to believe of what a noisy low-dimensional sum says of each generator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
CAUTION = 1.5  # times the noise's variance is put down to noise: its own estimate from a few values varies by as much


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
