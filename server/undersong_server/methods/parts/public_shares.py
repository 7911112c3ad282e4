"""Label shares of a method without a histogram of the records' labels: equal ones, or what a task names."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from undersong_common.arrays import Float64, Int64
from undersong_server.methods.parts.selection import balanced_labels, largest_remainder
from undersong_server.methods.parts.shares import SharesTable, wanted_shares


def _refuse_records_shares(wanted: Any) -> Any:
    if wanted in ("half", "records"):
        raise ValueError(
            f'"{wanted}" needs a private histogram of the records\' labels, which this method does not ask for; write'
            ' "even" or a table, or take a method that asks for one, such as "undersong" or "mixture+labels"'
        )
    return wanted


PublicShares = Annotated[Literal["even"] | SharesTable, BeforeValidator(_refuse_records_shares)]
"""The option ``label_shares`` of a method without a histogram of labels: it has only what is public."""


def public_shares(wanted: PublicShares, labels: Sequence[str]) -> Float64:
    """Shares that the corpus of a method without a histogram of labels is to have, float64 [C]; [1] without labels."""
    label_count = max(1, len(labels))
    return wanted_shares(wanted, np.full(label_count, 1.0 / label_count), labels)


def deal_labels(text_count: int, shares: Float64, written_counts: Int64) -> Int64:
    """Labels of ``text_count`` further texts, int64 ascending, by which all texts come near ``shares``, float64 [C].

    ``written_counts``: numbers of texts of each label so far, int64 [C].

    >>> deal_labels(4, np.array([0.75, 0.25]), np.array([0, 1])).tolist()
    [0, 0, 0, 0]
    """
    if (shares == shares[0]).all():  # Equal shares are counted in integers, so that rounding decides no tie.
        return balanced_labels(text_count, len(shares), written_counts)
    missing_counts = np.maximum(shares * (written_counts.sum() + text_count) - written_counts, 0.0)
    return np.repeat(
        np.arange(len(shares)), largest_remainder(missing_counts if missing_counts.any() else shares, text_count)
    )
