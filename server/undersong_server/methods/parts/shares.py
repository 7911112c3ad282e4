"""Numbers of texts per generator and label, such that the whole corpus comes near to given shares."""

import numpy as np

from undersong_common.arrays import Bools, Float64, Int64
from undersong_server.methods.parts.selection import largest_remainder

LEAST_YIELD = 0.5  # of the texts asked for: a generator that gives less of a label is not asked for that label again


def to_write(written: Int64, weights: Float64, label_shares: Float64, spent: Bools, count: int) -> Int64:
    """``count`` orders over generators and labels, int64 [K, C], so that the whole comes as near as it can.

    What a generator has no more of is asked of the others that have a weight. Where none of those has more, they are
    asked once again: a generator without a weight writes nothing in their place.

    Args:
        written: texts so far, int64 [K, C].
        weights: of the generators for each label, float64 [K, C]; ``label_shares`` of the labels, float64 [C].
        spent: which generator has no more of which label, bool [K, C].
    """
    total = written.sum() + count
    of_label = largest_remainder(np.maximum(label_shares * total - written.sum(axis=0), 0.0), count)
    orders = np.zeros_like(written)
    for label, wanted in enumerate(of_label):
        able = (weights[:, label] > 0) & ~spent[:, label]
        free = np.where(able, weights[:, label], 0.0) if able.any() else weights[:, label]
        left = written[free > 0, label].sum() + wanted
        missing = np.where(free > 0, np.maximum(free / free.sum() * left - written[:, label], 0.0), 0.0)
        turn = np.roll(np.arange(len(weights)), -label)  # whom a remainder goes to changes from label to label
        orders[turn, label] = largest_remainder((missing if missing.sum() > 0.0 else free)[turn], int(wanted))
    return orders


def table(generator_of: Int64, label_of: Int64, generators: int, labels: int) -> Int64:
    """Texts of each generator and label, int64 [K, C]."""
    return np.bincount(generator_of * labels + label_of, minlength=generators * labels).reshape(generators, labels)


def spent(orders: Int64, received: Int64) -> Bools:
    """Marks the cells that yielded less than ``LEAST_YIELD`` of their orders, bool [K, C]."""
    found: Bools = (orders > 0) & (received < LEAST_YIELD * orders)
    return found
