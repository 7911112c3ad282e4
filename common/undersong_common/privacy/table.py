"""Exact sampling from a 128-bit cumulative table, vectorised: the core of every discrete noise law here.

A law on 0, 1, 2, ... is given by integer weights, so the table is the same on every machine. One sample consumes one
16-byte block of the stream, read as two little-endian 64-bit words (high, low): the upper 127 of the 128 bits choose
the value, the last bit is a free sign. The value is the number of cumulative boundaries that do not exceed the 127
bits. A guide of 2^14 entries answers from the top 14 bits where the bucket holds at most one boundary, and a binary
search elsewhere (Chen and Asau 1974, "guide tables"); the low word decides only where the high words tie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from undersong_common.arrays import Int64, UInt64
from undersong_common.errors import InternalError

BLOCK_BYTES = 16
GUIDE_BITS = 14
TABLE_BITS = 127
_SEARCH = -2
_GUIDE_SHIFT = np.uint64(64 - GUIDE_BITS)


@dataclass(frozen=True, repr=False, eq=False)
class CumulativeTable:
    """Boundaries F_1 <= F_2 <= ... of a law on 0, 1, 2, ..., in units of 2^-127.

    Attributes:
        high, low: the two words of 2 F_j, uint64 [boundaries + 1]; the last entry is a sentinel no draw passes.
        guide: int64 [2^14], the first candidate value of a bucket, or -2 where a search is needed.
        distance: a bound on the statistical distance of one draw from the exact law.
    """

    high: UInt64
    low: UInt64
    guide: Int64
    distance: Fraction

    def __repr__(self) -> str:
        return f"CumulativeTable(values={len(self.high)}, distance=2^{_log2(self.distance):.2f})"

    @staticmethod
    def of_weights(weights: Sequence[int], tail: Fraction) -> CumulativeTable:
        """The table of a law proportional to ``weights``, where the exact law has mass at most ``tail`` beyond them.

        ``weights`` must be accurate to well below 2^-128 of their sum (the callers work with 256 fractional bits).
        Each boundary is rounded to 2^-127, so a value's probability is off by at most 2^-127 and the draw is within
        ``len(weights) * 2^-128 + tail`` of the exact law. Raises InternalError for weights that are no law.
        """
        total = sum(weights)
        if total <= 0 or min(weights) < 0:
            raise InternalError("a table needs non-negative weights with a positive sum")
        boundaries: list[bytes] = []
        top = 1 << TABLE_BITS
        running = 0
        for weight in weights:
            running += weight
            boundary = ((running << (TABLE_BITS + 1)) + total) // (2 * total)
            if boundary >= top:
                break
            boundaries.append((2 * boundary).to_bytes(BLOCK_BYTES, "little"))
        words = np.frombuffer(bytearray().join(boundaries), dtype="<u8").reshape(-1, 2).astype(np.uint64)
        sentinel = np.array([2**64 - 1], dtype=np.uint64)
        high = np.concatenate([words[:, 1], sentinel])
        low = np.concatenate([words[:, 0], sentinel])
        starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << _GUIDE_SHIFT
        guide = np.searchsorted(high[:-1], starts, side="left").astype(np.int64)
        inside = np.diff(guide, append=np.int64(len(high) - 1))
        guide[inside > 1] = _SEARCH
        for array in (high, low, guide):
            array.setflags(write=False)
        return CumulativeTable(high, low, guide, Fraction(len(weights), 1 << (TABLE_BITS + 1)) + tail)

    def draw(self, high: UInt64, low: UInt64) -> Int64:
        """One value for each pair of words, int64 like ``high``; the last bit of ``low`` is not used."""
        value = np.take(self.guide, (high >> _GUIDE_SHIFT).view(np.int64), mode="clip")
        boundary = np.take(self.high, value, mode="clip")
        value += high > boundary
        tied = bool((high == boundary).any())
        # Still negative after the increment: more than one boundary lies in the bucket.
        searched = np.flatnonzero(value < 0)
        if searched.size:
            wanted = high[searched]
            found = np.searchsorted(self.high, wanted, side="left")
            value[searched] = found
            tied = tied or bool((self.high[found] == wanted).any())
        if tied:
            self._settle(value, high, low)
        return value

    def _settle(self, value: Int64, high: UInt64, low: UInt64) -> None:
        """Count the boundaries whose high word equals the draw's and whose low word does not exceed it, in place."""
        last = len(self.high) - 1
        for index in np.flatnonzero(self.high[np.minimum(value, last)] == high):
            first = np.searchsorted(self.high[:last], high[index], side="left")
            behind = np.searchsorted(self.high[:last], high[index], side="right")
            value[index] = first + np.searchsorted(self.low[first:behind], low[index], side="right")


def _log2(value: Fraction) -> float:
    return math.log2(value) if value else -math.inf
