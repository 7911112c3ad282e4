"""The private score: how many of the records a classifier of the published corpus labels rightly."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from undersong_protocol.statistics.vectors import NoisySum

RECORD = "score"  # name under which a run records its score
NORMAL_95 = 1.959963984540054  # standard deviations to either end of a 95 % interval


@dataclass(frozen=True)
class PrivateScore:
    """Share of the records that classifiers of the corpus label rightly, with its 95 % interval.

    Attributes:
        value: the mean over a classifier of embeddings and one of words.
        low, high: ends of the interval, in [0, 1].
        noise: standard error that the noise of the private sums gives; sample: that of the records as a sample.
    """

    value: float
    low: float
    high: float
    noise: float
    sample: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        """The score in words that a receiver of the corpus reads."""
        figures = f"{100 * self.value:.0f} % of cases ({100 * self.low:.0f} to {100 * self.high:.0f})"
        return (
            f"A classifier trained on these texts labels the hospitals' own records right in {figures}, measured"
            " privately"
        )


def score_of(noisy_sum: NoisySum, records: float, records_error: float, *, second: bool) -> PrivateScore:
    """Estimates the score of one of two corpora from an opened :class:`ScoredComparison`.

    Args:
        records: noisy number of records, m; ``records_error`` is its standard deviation.
        second: True for the second corpus, False for the first.
    """
    gain, total = noisy_sum.natural[:2]
    excess = float(total + gain if second else total - gain) / records  # twice the score, less one
    value = min(1.0, max(0.0, (1.0 + excess) / 2.0))
    # The sum of two coordinates has twice the variance of one; m stands in the denominator of the excess.
    noise = float(np.hypot(noisy_sum.sigma / np.sqrt(2.0), excess / 2.0 * records_error)) / records
    # A variable in [0, 1] of this mean varies at most so much (Bhatia and Davis 2000). At the ends of the scale a
    # sample of m would show no spread at all, so the mean is taken as if half a record more were on either side.
    smooth = (value * records + 0.5) / (records + 1.0)
    sample = float(np.sqrt(smooth * (1.0 - smooth) / records))
    reach = NORMAL_95 * float(np.hypot(noise, sample))
    return PrivateScore(value, max(0.0, value - reach), min(1.0, value + reach), noise, sample)
