"""Votes in two levels, where candidates are far more than the records can tell apart.

First every record votes for cells of the candidates, which are public; then for the candidates of the cells that stand
out of the noise. Two private sums share the budget, so the noise of each coordinate is sqrt(2) times that of one flat
vote; but the sums have K + n coordinates instead of N, a cell collects the votes of all its candidates, and the noise
of candidates that nobody is near to is not drawn at all (docs/performance.md, "Many candidates").
"""

from dataclasses import dataclass

import numpy as np

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.embedding import publishable
from undersong_protocol.agreement.plan import SumRequest
from undersong_protocol.statistics import TopQVotes
from undersong_server.methods.interface import RunContext
from undersong_server.methods.parts.selection import highest, significant_votes

ROUNDS = 3  # of the clustering, over all candidates
BATCH = 4096
UNSEEN = -np.inf  # votes of a candidate outside of the cells that stand out


@dataclass(frozen=True)
class Cells:
    """Public groups of candidates.

    Attributes:
        centres: one embedding per cell, float32 [K, d], on the public grid.
        of: the cell of each candidate, int64 [N].
    """

    centres: Float32
    of: Int64


def cells_of(embeddings: Float32, count: int, seed: int) -> Cells:
    """Cells by k-means over public embeddings, float32 [N, d]; at most ``count``, each with a candidate or more."""
    from sklearn.cluster import MiniBatchKMeans

    count = min(count, len(embeddings))
    found = MiniBatchKMeans(count, random_state=seed, n_init=1, max_iter=ROUNDS, batch_size=BATCH).fit(embeddings)
    kept, of = np.unique(found.labels_, return_inverse=True)
    return Cells(publishable(found.cluster_centers_[kept].astype(np.float32)), of.astype(np.int64))


def sums(name: str, *, cells: int, within: int, q: int, labels: int = 0, share: float = 1.0) -> list[SumRequest]:
    """The two private sums of one vote, which divide its ``share`` of the budget equally; nearest votes only.

    Args:
        within: the most candidates that the second one is asked for.
    """
    first = TopQVotes(q=q, candidates=cells, furthest=False)
    second = TopQVotes(q=q, candidates=within, labels=labels, furthest=False)
    return [SumRequest(f"{name}/cells", first, share / 2), SumRequest(f"{name}/within", second, share / 2)]


def standing_out(votes: Float64, sigma: float) -> Int64:
    """Returns the cells with significant votes, best first, int64; all cells if no cell is significant.

    >>> standing_out(np.array([0.0, 90.0, 70.0, 1.0]), 1.0).tolist()
    [1, 2]
    """
    every = np.arange(len(votes))
    among = significant_votes(votes, every, sigma)
    return highest(votes, among if len(among) else every, len(votes))


def members(cells: Cells, embeddings: Float32, order: Int64, room: int) -> Int64:
    """Returns positions of at most ``room`` candidates, ascending, int64; cells are filled in the given order.

    If a cell does not fit, the candidates nearest to its centre are taken.
    """
    chosen: list[Int64] = []
    for cell in order:
        found = np.flatnonzero(cells.of == cell)
        if len(found) > room:
            closeness = embeddings[found] @ cells.centres[cell]
            found = found[np.argsort(-closeness, kind="stable")[:room]]
        chosen.append(found)
        room -= len(found)
        if not room:
            break
    return np.sort(np.concatenate(chosen))


def votes(run: RunContext, name: str, embeddings: Float32, labels: Int64, *, cells: int, within: int) -> Float64:
    """Opens the two sums planned as ``name`` (:func:`sums`): noisy nearest votes, float64 [N], in votes.

    ``UNSEEN`` for candidates of cells that do not stand out.

    Args:
        embeddings: of the candidates, as published, float32 [N, d].
        labels: their labels, int64 [N].
        cells, within: as planned.
    """
    made = cells_of(embeddings, cells, int(run.rng(f"{name}/cells").integers(2**31)))
    none = np.full(len(made.centres), -1, dtype=np.int64)
    shown = run.publish_vectors("candidates", f"{name}/cells", made.centres, none)
    opened = run.private_sum(f"{name}/cells", [shown])
    order = standing_out(opened.natural[: len(made.centres)], opened.sigma)
    positions = members(made, embeddings, order, within)
    shown = run.publish_vectors("candidates", f"{name}/within", embeddings[positions], labels[positions])
    found = np.full(len(embeddings), UNSEEN)
    found[positions] = run.private_sum(f"{name}/within", [shown]).natural[: len(positions)]
    return found
