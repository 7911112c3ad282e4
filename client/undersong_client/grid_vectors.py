"""A party's exact contribution to one private sum: records and public inputs in, a GridVector out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from undersong_client.records import PrivateRecords
from undersong_common.arrays import Bools
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.vectors import GridVector


class Contribution(Protocol):
    """How a party computes its exact vector: :func:`grid_vector`, or what an audit puts around it."""

    def __call__(
        self,
        planned: PlannedSum,
        records: PrivateRecords,
        public: PublicInputs,
        privacy: Privacy,
        *,
        coins: bytes,
        memory: dict[str, Any],
    ) -> GridVector: ...


def grid_vector(
    planned: PlannedSum,
    records: PrivateRecords,
    public: PublicInputs,
    privacy: Privacy,
    *,
    coins: bytes,
    memory: dict[str, Any],
) -> GridVector:
    """The statistic's rows of this party's records, clipped, averaged or summed by unit, scaled and rounded.

    Args:
        coins: secret 32-byte seed of the Poisson subsample of units, fresh for every attempt; unused at rate 1.
        memory: what the statistic keeps between sums over growing inputs (embeddings compared so far).
    """
    statistic = planned.build()
    rows = statistic.rows(records, public, memory)
    if planned.sampling_rate < 1.0:
        rows = rows.keep_units(poisson_subsample(records.unit_count, planned.sampling_rate, coins))
    return contribute(
        statistic,
        rows,
        scale=planned.scale,
        unit_contribution=privacy.contribution,
        max_per_unit=privacy.max_per_unit,
        max_records=privacy.max_records,
    )


def poisson_subsample(units: int, rate: float, coins: bytes) -> Bools:
    """Which units take part, bool [units]: each by its own coin from a cryptographic stream.

    The probability is ``rate`` rounded down to a multiple of 2^-64, so never more than what is charged.
    """
    words = np.frombuffer(KeyStream(coins).read(8 * units), dtype="<u8")
    return words < np.uint64(min(int(rate * 2.0**64), 2**64 - 1))
