"""The private score: the share of the records that a classifier of the corpus labels rightly.

Without labels it is how near the records' nearest texts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from undersong_common.arrays import Bools
from undersong_common.intervals import DIFFERENCE_WORDS, difference_sign
from undersong_protocol.statistics.classifier_votes import SQUARE
from undersong_protocol.statistics.similarity import COUNT, FIRST, SECOND
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.interface import RunContext

RECORD = "score"  # name under which a run records its score
ACCURACY, SIMILARITY = "accuracy", "similarity"  # what is measured, with labels and without
NORMAL_95 = 1.959963984540054  # standard deviations to either end of a 95 % interval


@dataclass(frozen=True)
class ZeroShot:
    """The score of texts that no record has steered, beside that of as many texts of the corpus.

    Attributes:
        texts: number of texts of either side.
        value: the score, in [0, 1]; error: standard error of its difference from the corpus's.
    """

    texts: int
    value: float
    error: float


SUMS = ("verdict", "score")  # names of the private sums that measure the score


@dataclass(frozen=True)
class PrivateScore:
    """Score of a corpus by the records, with its 95 % interval.

    Attributes:
        value: share of the records that classifiers label rightly, the mean over one of embeddings and one of words;
            without labels the records' mean cosine to the nearest text.
        low, high: ends of the interval, in [0, 1].
        noise: standard error that the noise of the private sums gives; sample: that of the records as a sample.
        measure: ACCURACY or SIMILARITY.
        zero_shot: the score of unsteered texts; None with labels, because the report's verdict compares with them.
    """

    value: float
    low: float
    high: float
    noise: float
    sample: float
    measure: str = ACCURACY
    zero_shot: ZeroShot | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> PrivateScore:
        """Reads what :meth:`to_json` wrote; scores of earlier versions have no measure."""
        zero_shot = recorded.get("zero_shot")
        return cls(**{**recorded, "zero_shot": zero_shot and ZeroShot(**zero_shot)})

    @property
    def is_share(self) -> bool:
        """True for a share of records, False for a similarity."""
        return self.measure == ACCURACY

    @property
    def figure(self) -> str:
        """The score with its interval: in per cent, or as a similarity."""
        if self.is_share:
            return f"{100 * self.value:.0f} % of cases ({100 * self.low:.0f} to {100 * self.high:.0f})"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def sentence(self, *, is_private: bool) -> str:
        """Returns the score in words that a receiver of the corpus reads.

        Args:
            is_private: True if the noise of the sum that measured it protects the records.
        """
        method_words = measured_words(is_private=is_private)
        if self.zero_shot is None:
            return (
                f"A classifier trained on these texts labels the hospitals' own records right in {self.figure},"
                f" {method_words}"
            )
        zero_shot, gain = self.zero_shot, self.value - self.zero_shot.value
        if difference_sign(gain, zero_shot.error):
            chance_clause = ""
        else:
            chance_clause = f", which is {DIFFERENCE_WORDS[0]}"
        return (
            f"Each record of the hospitals was compared with {zero_shot.texts} of these texts. The nearest of them is"
            f" on average {self.figure} similar to the record, {method_words}; of {zero_shot.texts} texts that no"
            f" record has steered, {zero_shot.value:.2f}. The record's own text would be 1 similar to it, and one"
            f" with nothing in common 0. A difference above 0 is good: it is {gain:+.2f}, give or take"
            f" {zero_shot.error:.2f}{chance_clause}"
        )


def measured_words(*, is_private: bool) -> str:
    """Returns the clause on how a private sum measured a score: privately, or with noise that protects nobody."""
    if is_private:
        return "measured privately"
    return "measured by a sum that protects nobody"


def score_of(noisy_sum: NoisySum, record_count: float, records_error: float, *, second: bool) -> PrivateScore:
    """Estimates the score of one of two corpora from an opened :class:`ScoredComparison`.

    Args:
        record_count: noisy number of records; ``records_error`` is its standard deviation.
        second: True for the second corpus, False for the first.
    """
    gain, vote_total = noisy_sum.natural[:2]
    # Twice the score, less one.
    doubled_excess = float(vote_total + gain if second else vote_total - gain) / record_count
    score_value = min(1.0, max(0.0, (1.0 + doubled_excess) / 2.0))
    # The sum of two coordinates has twice the variance of one. The noisy ``record_count`` divides the excess, so its
    # error counts too.
    noise = float(np.hypot(noisy_sum.sigma / np.sqrt(2.0), doubled_excess / 2.0 * records_error)) / record_count
    # A variable in [0, 1] of this mean varies at most so much (Bhatia and Davis 2000). At the ends of the scale a
    # sample of the records would show no spread at all, so the mean is taken as if half a record more were on either
    # side.
    smoothed_score = (score_value * record_count + 0.5) / (record_count + 1.0)
    sampling_error = float(np.sqrt(smoothed_score * (1.0 - smoothed_score) / record_count))
    interval_radius = NORMAL_95 * float(np.hypot(noise, sampling_error))
    return PrivateScore(
        score_value,
        max(0.0, score_value - interval_radius),
        min(1.0, score_value + interval_radius),
        noise,
        sampling_error,
    )


def similarity_score(run: RunContext, name: str, published: Bools, unsteered: Bools) -> PrivateScore:
    """Opens the planned :class:`ScoredSimilarity` ``name``, which compares published texts with unsteered ones.

    Both arguments mark texts of the pool, bool [n]. Equally many of both are compared, drawn by chance.
    """
    text_count, rng = int(min(published.sum(), unsteered.sum())), run.rng("score")
    corpus_bits = np.zeros(len(published))
    for corpus_bit, corpus_members in ((FIRST, unsteered), (SECOND, published)):
        corpus_bits[rng.permutation(np.flatnonzero(corpus_members))[:text_count]] += corpus_bit
    comparison_sum = run.private_sum(name, [run.publish_pool(), run.publish_numbers("corpora", corpus_bits)])
    records_error = float(comparison_sum.sigma) / COUNT
    record_count = max(float(comparison_sum.natural[-1]) / COUNT, records_error, 1.0)
    score = score_of(comparison_sum, record_count, records_error, second=True)
    gain, mean_square = float(comparison_sum.natural[0]) / record_count, float(comparison_sum.natural[2]) / record_count
    sampling_variance = max(0.0, mean_square / SQUARE - gain**2) / record_count
    noise = np.hypot(comparison_sum.sigma, gain * records_error) / record_count  # the number of records is noisy, too
    error = float(np.hypot(noise, np.sqrt(sampling_variance)))
    zero_shot = ZeroShot(text_count, min(1.0, max(0.0, score.value - gain)), error)
    return replace(score, measure=SIMILARITY, zero_shot=zero_shot)
