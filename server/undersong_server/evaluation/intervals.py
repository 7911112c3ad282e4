"""Estimates with their intervals, and lower bounds of the privacy loss that an attack's success proves.

A mechanism that is (epsilon, delta)-differentially private bounds how well anybody can tell that a record was there. An
attack that does better than a promise allows refutes the promise; one that does not proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Bools, Float64
from undersong_common.privacy.accounting import gaussian_epsilon

CONFIDENCE = 0.999  # of all bounds of one audit together
STAKES = np.array([[0.125], [0.25], [0.5], [1.0]])  # shares of the wealth that the bets of mean_at_least risk


@dataclass(frozen=True)
class Detection:
    """Success of an attack with a threshold fixed beforehand at telling which records were there.

    The records of one run share its noise, its candidates and its corpus, so that guesses about them are dependent.
    Bounds are therefore computed over runs, which are independent.

    Attributes:
        hits, present: scores over the threshold, of the trials with the record.
        false_alarms, absent: scores over the threshold, of the trials without it.
        right: share of right guesses in each run.
        alarm: chance that a bound below is wrong.
    """

    hits: int
    present: int
    false_alarms: int
    absent: int
    right: tuple[float, ...]
    alarm: float = 1.0 - CONFIDENCE

    @classmethod
    def of_runs(
        cls, runs: Sequence[tuple[Bools, Float64]], threshold: float, alarm: float = 1.0 - CONFIDENCE
    ) -> Detection:
        """Counts runs of (presence bool [c], scores float64 [c]) at a ``threshold`` that they did not choose.

        Each record must have been present by a fair coin of its own.
        """
        said = [(present, scores > threshold) for present, scores in runs]
        return cls(
            hits=sum(int((over & present).sum()) for present, over in said),
            present=sum(int(present.sum()) for present, _ in said),
            false_alarms=sum(int((over & ~present).sum()) for present, over in said),
            absent=sum(int((~present).sum()) for present, _ in said),
            right=tuple(float((over == present).mean()) for present, over in said),
            alarm=alarm,
        )

    @property
    def accuracy(self) -> float:
        """Lower bound of the expected share of right guesses."""
        return mean_at_least(self.right, self.alarm)

    @property
    def mu(self) -> float:
        """Lower bound of mu of a Gaussian mechanism; 0 if nothing is proven.

        A guess about a fair coin is right with probability (1 + TPR - FPR) / 2, which mu-Gaussian privacy bounds by
        Phi(mu / 2) (Dong, Roth and Su 2022, section 2: the trade-off curve of two unit normals mu apart). The bound is
        exact for the mean over a run's records; with TPR = 1 - FPR it is inv_Phi(TPR) - inv_Phi(FPR).
        """
        from scipy.stats import norm

        return max(0.0, 2.0 * float(norm.ppf(self.accuracy)))

    def epsilon_if_gaussian(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of a mechanism known to be Gaussian; 0 if nothing is proven."""
        return float(gaussian_epsilon(self.mu, delta)) if self.mu > 0.0 else 0.0

    def epsilon(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of any mechanism; 0 if nothing is proven.

        TPR <= e^epsilon FPR + delta and the same of the complements (Kairouz, Oh and Viswanath 2015, theorem 2.1) add
        up to accuracy <= (e^epsilon + delta) / (e^epsilon + 1).
        """
        accuracy = self.accuracy
        return max(0.0, math.log((accuracy - delta) / (1.0 - accuracy))) if accuracy > delta else 0.0


def mean_at_least(values: Sequence[float], alarm: float) -> float:
    """Lower bound of the mean of independent numbers in [0, 1] of any law, wrong with a chance of ``alarm`` at most.

    Whoever bets against a mean of m multiplies a wealth of 1 by 1 + stake (x / m - 1) at each number x. If the mean is
    m or less, that wealth, averaged over the stakes, is expected to stay at 1 at most, and it passes 1 / alarm with a
    chance of ``alarm`` at most (Waudby-Smith and Ramdas 2024, section 4). The bound is the largest m that is refuted.

    >>> round(mean_at_least([1.0] * 20, 1e-3), 3), mean_at_least([0.0] * 20, 1e-3)
    (0.661, 0.0)
    """
    found = np.asarray(values, dtype=np.float64)
    if not found.any():
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):
            wealth = np.log1p(STAKES * (found / middle - 1.0)).sum(axis=1)
        refuted = float(np.logaddexp.reduce(wealth)) - math.log(len(STAKES)) >= -math.log(alarm)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def orthogonal_scores(
    rows: Float64, residual: Float64, present: Bools, *, rate: float = 1.0
) -> tuple[Float64, Float64]:
    """Scores of several known contributions to one noisy vector, with independent noise, and their signals.

    Each contribution is seen along the part of it that is orthogonal to those before it, after everything else that is
    present has been taken away (whoever attacks one record knows all others). With noise N(0, 1) per coordinate and
    ``rate`` 1 the scores are independent N(present * signal, 1).

    Args:
        rows: contributions in units of the noise's deviation, float64 [c, k].
        residual: opened vector less ``rate`` times the contributions of all that is present, these rows among it, same
            units, float64 [k].
        present: which contributions are in it, bool [c].
        rate: at which units are sub-sampled; what nobody can know, who was drawn, adds to the noise.

    Returns:
        (scores, signals), float64 [c] each; both are zero for a row that the others before it span.
    """
    basis, triangle = np.linalg.qr(rows.T)  # rows.T = basis @ triangle, column by column
    diagonal = np.zeros(len(rows))
    diagonal[: min(rows.shape)] = np.diag(triangle)
    scores = np.zeros(len(rows))
    scores[: basis.shape[1]] = basis.T @ residual
    usable = np.abs(diagonal) > 1e-9
    signals = np.where(usable, np.abs(diagonal), 0.0)
    return np.where(usable, np.sign(diagonal) * scores, 0.0) + rate * present * signals, signals
