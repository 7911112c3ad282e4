"""Choice of generators by how well the classifiers of their texts label the records; docs/method.md, step 3."""

from typing import NamedTuple

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_protocol.statistics.vectors import NoisySum
from undersong_server.methods.parts.undersong_tuning import TUNING


class Usefulness(NamedTuple):
    """Accuracy of each generator's classifier around the generators' mean, and its variance: float64 [K, C] each.

    ``by_label`` is True if generators differ so much from label to label that each label chooses its own.
    """

    gains: Float64
    variance: Float64
    by_label: bool

    def chosen(self, among: Bools) -> Bools:
        """The generators that cannot be told from the best of ``among``, for each label: bool [K, C] of bool [K, C]."""
        gains = np.where(among, self.gains, -np.inf)
        best, column = gains.argmax(axis=0), np.arange(gains.shape[1])
        apart = self.variance + self.variance[best, column]
        found: Bools = among & (gains[best, column] - gains <= TUNING.tie * np.sqrt(apart))
        return found


def usefulness(opened: NoisySum, block_of: Int64, records_of_label: Float64, texts: Int64) -> Usefulness:
    """Estimates from the opened sum of centred answers, C blocks of K.

    Args:
        block_of: the block of each label, int64 [C]: 0 for all, or its number.
        records_of_label: estimated number of records of each label, float64 [C], positive.
        texts: that each generator wrote of each label, int64 [K, C].
    """
    labels, records = len(records_of_label), float(records_of_label.sum())
    blocks = int(block_of.max()) + 1
    answers = opened.natural.reshape(labels, -1).T[:, :blocks]  # the other blocks hold noise alone
    deviations = (opened.sigma / records) ** 2
    whole = answers.sum(axis=1) / records
    written = np.maximum(texts, 1)
    luck = TUNING.training_variance / written.sum(axis=1)
    variance = blocks * deviations + TUNING.answer_variance / records + luck
    if blocks > 1:
        each = answers / records_of_label
        apart = (opened.sigma / records_of_label) ** 2 + TUNING.answer_variance / records_of_label
        apart = apart + TUNING.training_variance / written
        left = each - whole[:, None]
        different = float((left**2 - apart).mean())
        if different > TUNING.by_label_variance:
            return Usefulness(each, apart, True)
    return Usefulness(np.repeat(whole[:, None], labels, axis=1), np.repeat(variance[:, None], labels, axis=1), False)
