"""Label shares of a corpus from a noisy histogram of the records' labels."""

import numpy as np

from undersong_common.arrays import Float64
from undersong_protocol.statistics.vectors import NoisySum

LABEL_CAUTION = 2.0
LEAST_LABEL_SHARE = 0.1  # of an equal share


def label_shares(counts: NoisySum) -> Float64:
    """Shares of the labels, float64 [C], sum 1: the geometric mean of equal shares and the records' estimated ones.

    Differences from equal shares are pulled to zero as far as noise explains them.

    Half-way, because a task model trained on the records' own shares gains its accuracy from the common labels alone:
    on clinical notes of twenty headers, balanced accuracy fell by a third.
    """
    equal = 1.0 / len(counts.natural)
    records = max(float(counts.natural.sum()), counts.sigma, 1.0)
    shares = counts.natural / records
    noise = np.sqrt((counts.sigma / records) ** 2 + equal / records)
    different = shrink_to_mean(shares, float(noise), LABEL_CAUTION)
    found: Float64 = np.sqrt(np.maximum(equal + different, LEAST_LABEL_SHARE * equal))
    found /= found.sum()
    return found


def records_of(counts: NoisySum) -> float:
    """Returns the noisy number of records of a label histogram: at least the deviation of its noise, and at least 1."""
    return max(float(counts.natural.sum()), counts.sigma * float(np.sqrt(len(counts.natural))), 1.0)


def records_shares(label_shares: Float64) -> Float64:
    """Returns the estimated label shares of the records, float64 [C], by inverting the mean in :func:`label_shares`."""
    found: Float64 = label_shares**2 / (label_shares**2).sum()
    return found


# Estimates of the true coordinates of a noisy low-dimensional sum, by empirical Bayes with the known noise.


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
