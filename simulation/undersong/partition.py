"""Deals one file of records to several parties, non-IID: a Dirichlet partition over labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from undersong_common.errors import ConfigurationError

TRIES = 100


def dirichlet(labels: Sequence[str] | None, count: int, parties: int, alpha: float, seed: int) -> list[list[int]]:
    """Row numbers of each party, sorted; every row goes to exactly one party and no party stays empty.

    For each label its rows are divided in proportions drawn from Dirichlet(alpha) over the parties (Hsu, Qi, Brown
    2019; Yurochkin et al. 2019); ``alpha`` inf deals evenly (IID). A draw that leaves a party empty is drawn again;
    after 100 such draws the largest parties give single rows to the empty ones.

    Args:
        labels: one a row, or None (all rows count as one class).
        count: number of rows.

    Raises:
        ConfigurationError: fewer rows than parties.
    """
    if count < parties:
        raise ConfigurationError(
            f"data.path has {count} records for {parties} parties", "lower federation.parties, or name more records"
        )
    rng = np.random.default_rng([seed, 0xD1A1])
    classes = sorted(set(labels)) if labels is not None else [""]
    rows_of = {name: [row for row in range(count) if labels is None or labels[row] == name] for name in classes}
    shares: list[list[int]] = []
    for _ in range(TRIES):
        shares = [[] for _ in range(parties)]
        for offset, name in enumerate(classes):
            rows = rng.permutation(rows_of[name])
            if math.isinf(alpha):
                pieces = [rows[(party - offset) % parties :: parties] for party in range(parties)]
            else:
                proportions = rng.dirichlet(np.full(parties, alpha))
                cuts = np.floor(np.cumsum(proportions)[:-1] * len(rows) + 0.5).astype(int)
                pieces = np.split(rows, cuts)
            for party, piece in enumerate(pieces):
                shares[party].extend(int(row) for row in piece)
        if all(shares):
            break
    for party in range(parties):
        if not shares[party]:
            largest = max(range(parties), key=lambda other: len(shares[other]))
            shares[party].append(shares[largest].pop())
    return [sorted(share) for share in shares]
