"""Estimates of the true coordinates of a noisy low-dimensional sum, by empirical Bayes with the known noise."""

from undersong_common.arrays import Float64


def signal_fraction(values: Float64, noise: float, caution: float = 1.0) -> float:
    """Share of the observed variance of ``values``, float64 [K], that noise of deviation ``noise`` does not explain.

    Empirical Bayes with the known noise (Efron and Morris 1973): the variance of the true values is estimated by
    moments, as the observed one minus ``caution`` times ``noise`` squared and at least 0. The observed variance of a
    few values varies itself: with a caution above 1, chance is seldom taken for evidence.

    >>> import numpy as np
    >>> signal_fraction(np.array([1.0, -1.0]), 1.0)
    0.5
    """
    deviations = values - values.mean()
    observed = float(deviations @ deviations) / max(1, len(values) - 1)
    return max(0.0, 1.0 - caution * noise * noise / observed) if observed > 0 else 0.0


def shrink_to_mean(values: Float64, noise: float, caution: float = 1.0) -> Float64:
    """Deviations from the mean, shrunk as far as noise alone explains them: float64 [K], sum 0.

    >>> import numpy as np
    >>> shrink_to_mean(np.array([1.0, -1.0, 0.0]), 10.0).tolist()
    [0.0, 0.0, 0.0]
    >>> shrink_to_mean(np.array([3.0, 1.0]), 0.0).tolist()
    [1.0, -1.0]
    """
    result: Float64 = (values - values.mean()) * signal_fraction(values, noise, caution) + 0.0  # + 0.0: no minus zero
    return result
