"""Hub-corrected nearest candidates: without the correction, candidates near everything would collect most votes.

A candidate's score for a record is 2 cos(z, x) - r(x), where r(x) is its mean similarity to its nearest fellow
candidates, computed from public data (CSLS: Conneau et al. 2018, section 2.3). Whatever the correction, a record still
casts the same votes, so that no sensitivity changes.
"""

from collections.abc import Iterator

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_protocol.statistics.inputs import Grid
from undersong_protocol.statistics.interface import PublicInputs
from undersong_protocol.statistics.nearest import NONE, by_label

NEIGHBOURS = 10
# Scores 2 cos(z, x) of quantised embeddings are multiples of 2^-21 of at most 2: with r on the same grid and at most 1
# float32 holds every one exactly, so that every party and every rerun finds the same nearest candidates.
CORRECTION = Grid(bits=21, largest=1.0)
BLOCK_ELEMENTS = 1 << 22


def hubness_correction(candidates: Float32, labels: Int64, *, neighbours: int = NEIGHBOURS) -> Float64:
    """r(x): mean inner product of each candidate with its nearest others of its label, float64 [N] on the grid.

    A candidate without others of its label has 0. Public data only: the coordinator computes and publishes it.
    """
    found = np.zeros(len(candidates))
    for rows, block, products in products_with_others(candidates, labels):
        others = len(rows) - min(neighbours, len(rows) - 1)
        nearest = np.partition(products, others, axis=1)[:, others:]
        found[block] = nearest.mean(axis=1, dtype=np.float64)
    return CORRECTION.quantised(found)


def products_with_others(embeddings: Float32, labels: Int64) -> Iterator[tuple[Int64, Int64, Float32]]:
    """Inner products of texts with the others of their label, in blocks of at most ``BLOCK_ELEMENTS``.

    Each block: the label's positions [k], those of the block among them [b], and their products, float32 [b, k], with
    -inf where a text meets itself. A label of a single text is left out.
    """
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 2:
            continue
        step = max(1, BLOCK_ELEMENTS // len(rows))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            products = embeddings[block] @ embeddings[rows].T
            products[np.arange(len(block)), start + np.arange(len(block))] = -np.inf
            yield rows, block, products


def nearest(embeddings: Float32, labels: Int64 | None, public: PublicInputs, q: int) -> Int64:
    """The q highest scoring candidates of each record's label, int64 [M, q], best first, ties to the lower index.

    ``NONE`` stands where a record has fewer. Public inputs: embeddings "candidates", numbers "hubness correction".

    Args:
        embeddings: of the records, float32 [M, d].
        labels: of the records, int64 [M]; None compares every record with every candidate.
    """
    given, correction = public.embeddings_of("candidates"), public.numbers_of("hubness correction").astype(np.float32)
    found = np.full((len(embeddings), q), NONE, dtype=np.int64)
    for rows, columns in by_label(labels, None if labels is None else given.labels, len(embeddings), len(given.values)):
        kept = min(q, len(columns))
        step = max(1, BLOCK_ELEMENTS // len(columns))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            scores = 2 * (embeddings[block] @ given.values[columns].T) - correction[columns]
            found[block, :kept] = columns[np.argsort(-scores, axis=1, kind="stable")[:, :kept]]
    return found
