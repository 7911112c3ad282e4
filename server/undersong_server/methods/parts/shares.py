"""Numbers of texts per generator and label, such that the whole corpus comes near to given shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_server.methods.parts.selection import largest_remainder
from undersong_server.pool import Pool, Sample


def generator_counts(pool: Pool, weights: Float64, count: int) -> Int64:
    """``count`` texts over the generators, int64 [K], so that the corpus comes as near to ``weights`` as it can."""
    written = np.bincount(pool.generator_of, minlength=len(weights))
    return largest_remainder(np.maximum(weights * (written.sum() + count) - written, 0.0), count)


def labels_to_write(counts: Int64, label_shares: Float64, ordered: Int64) -> list[Int64]:
    """The labels that each generator writes, so that all orders come as near to the shares as they can.

    Args:
        counts: texts that each generator writes, int64 [K].
        label_shares: float64 [C], sum 1.
        ordered: orders so far per label, int64 [C].
    """
    wanted, so_far = [], ordered.copy()
    missing = label_shares * (ordered.sum() + counts.sum())
    for count in counts:
        table = largest_remainder(np.maximum(missing - so_far, 0.0), int(count))
        so_far += table
        wanted.append(np.repeat(np.arange(len(table)), table))
    return wanted


def thinned(pool: Pool, weights: Float64, label_shares: Float64, rng: np.random.Generator) -> Sequence[Sample]:
    """The corpus without what each generator wrote beyond its weight's share of it; labels stay near their shares."""
    label_of = pool.label_of
    keep: list[Int64] = []
    for generator, share in enumerate(weights):
        mine = rng.permutation(np.flatnonzero(pool.generator_of == generator))
        allowed = int(np.ceil(share * len(pool)))
        # Labels take turns; one with twice the share has two turns.
        turn = np.zeros(len(mine))
        for label in np.unique(label_of[mine]):
            members = np.flatnonzero(label_of[mine] == label)
            turn[members] = (np.arange(len(members)) + 0.5) / label_shares[max(label, 0)]
        keep.append(mine[np.argsort(turn, kind="stable")[:allowed]])
    return [pool.samples[i] for i in sorted(np.concatenate(keep).tolist())]
