"""Computes a party's exact vector for one private sum from its records and the public inputs."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from undersong_client.records.private import PrivateRecords
from undersong_common.arrays import Bools, Int64, UInt64
from undersong_common.canonical import tagged_hash
from undersong_common.program.library_threads import one_library_thread
from undersong_protocol.agreement.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs, RecordView, Rows, Statistic
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.vectors import GridVector


class Contribution(Protocol):
    """Interface of :func:`grid_vector`, which an audit may wrap."""

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


@one_library_thread()
def grid_vector(
    planned: PlannedSum,
    records: PrivateRecords,
    public: PublicInputs,
    privacy: Privacy,
    *,
    coins: bytes,
    memory: dict[str, Any],
    rows: Callable[[Statistic, RecordView, PublicInputs, dict[str, Any]], Rows] | None = None,
) -> GridVector:
    """Returns this party's vector for a sum: the rows of its records, clipped, combined by unit, scaled and rounded.

    It never fails for public inputs that ``Statistic.check_inputs`` has accepted.

    Args:
        public: the checked public inputs.
        coins: secret 32-byte seed of the Poisson subsample of units, fresh for every attempt; unused at rate 1.
        memory: cache of the statistic between sums over growing inputs, such as embeddings compared so far.
        rows: computes the rows in an audit; None asks the statistic.
    """
    statistic = planned.build()
    if rows is None:
        record_rows = statistic.rows(records, public, memory)
    else:
        record_rows = rows(statistic, records, public, memory)
    if planned.sampling_rate < 1.0:
        record_rows = record_rows.keep_units(poisson_subsample(records, planned.sampling_rate, coins))
    return contribute(
        statistic,
        record_rows,
        scale=planned.scale,
        unit_contribution=privacy.contribution,
        max_per_unit=privacy.max_per_unit,
        max_records=privacy.max_records,
        law=planned.law,
    )


def poisson_subsample(records: PrivateRecords, rate: float, coins: bytes) -> Bools:
    """Draws the units that take part, bool [units]; each by its own coin, which does not depend on other units.

    A coin is a keyed permutation of the unit's hash. Units with the same hash (samples equal in every column) are
    counted, and the count enters the coin. Their order does not matter, because they contribute the same. The
    probability is ``rate`` rounded down to a multiple of 2^-64, so it never exceeds the rate that is charged.
    """
    first_rows = np.unique(records.units, return_index=True)[1]
    unit_hashes = records.unit_hashes[first_rows]
    hash_blocks = np.empty((len(unit_hashes), 2), dtype="<u8")
    hash_blocks[:, 0], hash_blocks[:, 1] = unit_hashes, _count_occurrences(unit_hashes)
    encryptor = Cipher(algorithms.AES256(tagged_hash("poisson subsample", coins)), modes.ECB()).encryptor()  # noqa: S305
    random_words = np.frombuffer(encryptor.update(hash_blocks.tobytes()), dtype="<u8")[::2]
    return random_words < np.uint64(min(int(rate * 2.0**64), 2**64 - 1))


def _count_occurrences(values: UInt64) -> Int64:
    """Returns, for each value, the number of equal values before it, int64 [n]."""
    value_order = np.argsort(values, kind="stable")
    sorted_values = values[value_order]
    group_starts = np.flatnonzero(np.concatenate([[True], sorted_values[1:] != sorted_values[:-1]])[: len(values)])
    group_sizes = np.diff(np.append(group_starts, len(values)))
    earlier_equals = np.empty(len(values), dtype=np.int64)
    earlier_equals[value_order] = np.arange(len(values)) - np.repeat(group_starts, group_sizes)
    return earlier_equals
