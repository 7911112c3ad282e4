"""Attacks of an audit on opened sums and on the published corpus, and what they prove."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from undersong.auditing.canaries import Canary
from undersong_common.arrays import Bools, Float64
from undersong_common.intervals import clopper_pearson
from undersong_common.models.embedding import Embed
from undersong_common.privacy.accounting import gaussian_epsilon
from undersong_server import learning
from undersong_server.evaluation.evaluate import entropy, of_label
from undersong_server.pool import Sample

CONFIDENCE = 0.999  # confidence with which all bounds of one audit hold together
STAKES = np.array([[0.125], [0.25], [0.5], [1.0]])  # shares of its wealth that each bettor of mean_at_least risks


@dataclass(frozen=True)
class Detection:
    """Success of an attack that tells, by a threshold fixed beforehand, which records were there.

    The records of one run share its noise, its candidates and its corpus, so that guesses about them are dependent.
    Bounds are therefore computed over runs, which are independent.

    Attributes:
        hits, present: number of scores over the threshold, and of all trials, of those with the record.
        false_alarms, absent: the same of the trials without the record.
        right: share of right guesses in each run.
        caught, alarms: hits, and false alarms, of each run as a share of all its records.
        alarm: largest chance that a bound that this object computes is wrong.
    """

    hits: int
    present: int
    false_alarms: int
    absent: int
    right: tuple[float, ...]
    caught: tuple[float, ...] = ()
    alarms: tuple[float, ...] = ()
    alarm: float = 1.0 - CONFIDENCE

    @classmethod
    def of_runs(
        cls, runs: Sequence[tuple[Bools, Float64]], threshold: float, alarm: float = 1.0 - CONFIDENCE
    ) -> "Detection":
        """Counts runs of (presence bool [c], scores float64 [c]) at a ``threshold`` that was chosen without them.

        Each record must have been present by a fair coin of its own.
        """
        present_and_claimed = [(present, scores > threshold) for present, scores in runs]
        return cls(
            hits=sum(int((is_claimed & present).sum()) for present, is_claimed in present_and_claimed),
            present=sum(int(present.sum()) for present, _ in present_and_claimed),
            false_alarms=sum(int((claims & ~present).sum()) for present, claims in present_and_claimed),
            absent=sum(int((~present).sum()) for present, _ in present_and_claimed),
            right=tuple(float((claims == present).mean()) for present, claims in present_and_claimed),
            caught=tuple(float((claims & present).mean()) for present, claims in present_and_claimed),
            alarms=tuple(float((claims & ~present).mean()) for present, claims in present_and_claimed),
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

        return max(0.0, 2.0 * float(norm.ppf(self.accuracy)))

    def epsilon_if_gaussian(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of a mechanism known to be Gaussian; 0 if nothing is proven."""
        if self.mu > 0.0:
            return float(gaussian_epsilon(self.mu, delta))
        return 0.0

    def epsilon(self, delta: float) -> float:
        """Lower bound of epsilon at ``delta`` of any mechanism; 0 if nothing is proven.

        TPR <= e^epsilon FPR + delta and the same of the complements (Kairouz, Oh and Viswanath 2015, theorem 2.1) add
        up to accuracy <= (e^epsilon + delta) / (e^epsilon + 1).
        """
        accuracy = self.accuracy
        if accuracy > delta:
            return max(0.0, math.log((accuracy - delta) / (1.0 - accuracy)))
        return 0.0

    def rates(self, independent: bool) -> tuple[float, float]:
        """Lower bound of the true-positive and upper bound of the false-positive rate; they hold together.

        A fair coin plants a record, so that a run's hits over all its records are expected to be half the rate.

        Args:
            independent: True if the noise of a run's scores is independent, as that of :func:`orthogonal_scores` is in
                Gaussian sums: trials are then counted one by one.
        """
        if not self.present or not self.absent:
            return 0.0, 1.0
        if independent:
            # Of each interval one side is used, so that each may be wrong with chance alarm / 2.
            confidence = 1.0 - self.alarm
            hit_counts = (self.hits, self.present)
            alarm_counts = (self.false_alarms, self.absent)
            return clopper_pearson(*hit_counts, confidence).low, clopper_pearson(*alarm_counts, confidence).high
        missed_share = mean_at_least([1.0 - share for share in self.alarms], self.alarm / 2)
        return 2.0 * mean_at_least(self.caught, self.alarm / 2), min(1.0, 2.0 * (1.0 - missed_share))

    def epsilon_of_rates(self, delta: float, gaussian: bool) -> float:
        """Lower bound of epsilon by both rates: of a mechanism known to be Gaussian, or of any; 0 if nothing is proven.

        TPR <= e^epsilon FPR + delta (Kairouz, Oh and Viswanath 2015, theorem 2.1); of a Gaussian mechanism,
        inv_Phi(TPR) <= inv_Phi(FPR) + mu (Dong, Roth and Su 2022, section 2).
        """
        true_rate, false_rate = self.rates(independent=gaussian)
        if gaussian:
            mu = float(norm.ppf(true_rate) - norm.ppf(false_rate))
            if mu > 0.0:
                return float(gaussian_epsilon(mu, delta))
            return 0.0
        if true_rate > delta:
            return max(0.0, math.log((true_rate - delta) / false_rate))
        return 0.0


def mean_at_least(values: Sequence[float], alarm: float) -> float:
    """Lower bound of the mean of independent numbers in [0, 1] of any law, wrong with a chance of ``alarm`` at most.

    Whoever bets against a mean of m multiplies a wealth of 1 by 1 + stake (x / m - 1) at each number x. If the mean is
    m or less, that wealth, averaged over the stakes, is expected to stay at 1 at most, and it passes 1 / alarm with a
    chance of ``alarm`` at most (Waudby-Smith and Ramdas 2024, section 4). The bound is the largest m that is refuted.

    >>> round(mean_at_least([1.0] * 20, 1e-3), 3), mean_at_least([0.0] * 20, 1e-3)
    (0.661, 0.0)
    """
    share_values = np.asarray(values, dtype=np.float64)
    if not share_values.any():
        return 0.0
    low_mean, high_mean = 0.0, 1.0
    while high_mean - low_mean > 1e-9:
        middle_mean = (low_mean + high_mean) / 2
        with np.errstate(divide="ignore"):
            log_wealth = np.log1p(STAKES * (share_values / middle_mean - 1.0)).sum(axis=1)
        is_refuted = float(np.logaddexp.reduce(log_wealth)) - math.log(len(STAKES)) >= -math.log(alarm)
        if is_refuted:
            low_mean, high_mean = middle_mean, high_mean
        else:
            low_mean, high_mean = low_mean, middle_mean
    return low_mean


def whole_scores(rows: Float64, residual: Float64, present: Bools, rate: float = 1.0) -> tuple[Float64, Float64]:
    """Returns scores and signals as :func:`orthogonal_scores`, but along whole contributions: overlaps share noise."""
    row_norms = np.linalg.norm(rows, axis=1)
    return rows @ residual / np.maximum(row_norms, 1e-9) + rate * present * row_norms, row_norms


def orthogonal_scores(rows: Float64, residual: Float64, present: Bools, rate: float = 1.0) -> tuple[Float64, Float64]:
    """Returns scores of several known contributions to one noisy vector, with independent noise, and their signals.

    Each contribution is scored along the part of it that is orthogonal to those before it, after everything else that
    is present was subtracted (whoever attacks one record knows all others). With noise N(0, 1) per coordinate and
    ``rate`` 1 the scores are independent N(present * signal, 1).

    Args:
        rows: contributions in units of the noise's deviation, float64 [c, k].
        residual: opened vector less ``rate`` times the contributions of all that is present, these rows among it, same
            units, float64 [k].
        present: True for each contribution that is in the vector, bool [c].
        rate: sampling rate of the units; the attacker does not know which were drawn, which adds to the noise.

    Returns:
        (scores, signals), float64 [c] each; both are zero for a row that the others before it span.
    """
    row_basis, triangular_factor = np.linalg.qr(rows.T)  # rows.T = basis @ triangle, column by column
    factor_diagonal = np.zeros(len(rows))
    factor_diagonal[: min(rows.shape)] = np.diag(triangular_factor)
    row_scores = np.zeros(len(rows))
    row_scores[: row_basis.shape[1]] = row_basis.T @ residual
    is_usable = np.abs(factor_diagonal) > 1e-9
    signal_norms = np.where(is_usable, np.abs(factor_diagonal), 0.0)
    return np.where(is_usable, np.sign(factor_diagonal) * row_scores, 0.0) + rate * present * signal_norms, signal_norms


SIMILARITY = "the corpus alone: similarity of its nearest text"
TRIPLES = "the corpus alone: word triples it shares"
ENTROPY = "a task model trained on the corpus: entropy of its prediction"
CERTAINTY = "a task model trained on the corpus: confidence in the true label"


def attack_corpus(
    samples: Sequence[Sample], canaries: Sequence[Canary], labels: Sequence[str], embed: Embed
) -> dict[str, Float64]:
    """Attacks the corpus: scores of the canaries, float64 [c], by attack; zeros for an attack with nothing to read.

    The attacks are the nearest text's cosine and the share of shared word triples (after Meeus et al. 2025, section 3);
    with ``labels``, also a task model trained on the corpus (Salem et al. 2019, Yeom et al. 2018).
    """
    attack_names = [SIMILARITY, TRIPLES, *([ENTROPY, CERTAINTY] if len(labels) > 1 else [])]
    scores_by_attack = {name: np.zeros(len(canaries)) for name in attack_names}
    if not samples:
        return scores_by_attack
    corpus_texts = [sample.text for sample in samples]
    canary_embeddings = embed([canary.rows.texts[0] for canary in canaries])
    sample_embeddings = embed(corpus_texts)
    scores_by_attack[SIMILARITY] = np.asarray(canary_embeddings @ sample_embeddings.T, dtype=np.float64).max(axis=1)
    corpus_triples = {triple for text in corpus_texts for triple in _word_triples(text)}
    scores_by_attack[TRIPLES] = np.array(
        [_share_of_triples(canary.rows.texts[0], corpus_triples) for canary in canaries]
    )
    sample_labels = [sample.label for sample in samples]
    if ENTROPY in scores_by_attack and len(set(sample_labels)) > 1:
        model = learning.train(sample_embeddings, sample_labels, head="linear")
        probabilities = model.probabilities(canary_embeddings)
        scores_by_attack[ENTROPY] = -entropy(probabilities)
        true_labels = tuple(canary.rows.labels[0] if canary.rows.labels else "" for canary in canaries)
        scores_by_attack[CERTAINTY] = of_label(probabilities, model.labels, true_labels)
    return scores_by_attack


def _share_of_triples(text: str, corpus_triples: set[tuple[str, str, str]]) -> float:
    text_triples = _word_triples(text)
    return sum(triple in corpus_triples for triple in text_triples) / max(1, len(text_triples))


def _word_triples(text: str) -> list[tuple[str, str, str]]:
    words = text.lower().split()
    return list(zip(words, words[1:], words[2:], strict=False))
