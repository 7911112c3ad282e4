"""Counted n-grams as flat arrays, made for drawing: one dictionary look-up and one bisection per draw."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from undersong_common.arrays import Int64

START, END = 0, 1
"""Token ids before and behind every text."""

_BITS = 24  # of a token id inside a packed context

# Escape mass of a context with T different successors, in occurrences: T as Witten and Bell (1991) have it where a
# shorter context is left, a small part of it where only single words are, because those do not make sentences.
_ESCAPE = 1.0
_ESCAPE_TO_WORDS = 0.02


def context_key(context: Sequence[int]) -> int:
    """One dictionary key for a context (oldest token first)."""
    key = 0
    for token in context:
        key = key << _BITS | token
    return key


class Counts:
    """Successor counts of every context of 0 to order-1 tokens in a set of texts."""

    def __init__(self, texts: Sequence[Sequence[int]], order: int, temperature: float) -> None:
        """Counts once.

        Args:
            texts: the token ids of each text, >= 2 and < 2^24.
            order: length of the longest n-gram, >= 2.
            temperature: counts are raised to 1/temperature before they become probabilities.
        """
        padded = [token for text in texts for token in (*[START] * (order - 1), *text, END)]
        stream = np.asarray(padded, np.int64)
        lengths = np.asarray([len(text) + order for text in texts], np.int64)
        within = np.arange(stream.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        written = np.flatnonzero(within >= order - 1)
        self._levels = [_Level(stream, written, size, 1.0 / temperature) for size in range(order)]

    def row(self, size: int, key: int) -> int | None:
        """Where the context of ``size`` tokens stands, or None where it never occurred."""
        return self._levels[size].rows.get(key)

    def escape(self, size: int, row: int) -> float:
        """Probability of leaving this context for a shorter one."""
        return self._levels[size].escape[row]

    def pick(self, size: int, row: int, uniform: float) -> int:
        """The successor at ``uniform`` in [0, 1) of the context's distribution."""
        level = self._levels[size]
        start, end = level.starts[row], level.starts[row + 1]
        low, high = level.cumulative[start], level.cumulative[end]
        index = bisect_right(level.cumulative, low + uniform * (high - low), start, end + 1) - 1
        return level.successors[min(index, end - 1)]

    def follows(self, token: int, successor: int) -> bool:
        """Whether the successor ever followed the token."""
        level = self._levels[1]
        row = level.rows.get(token)
        if row is None:
            return False
        start, end = level.starts[row], level.starts[row + 1]
        index = bisect_left(level.successors, successor, start, end)
        return index < end and level.successors[index] == successor


class _Level:
    """Contexts of one size. Row r owns successors[starts[r]:starts[r+1]], sorted by id."""

    def __init__(self, stream: Int64, written: Int64, size: int, power: float) -> None:
        columns = [stream[written - back] for back in range(size, 0, -1)]
        group = np.zeros(written.size, np.int64)
        for column in columns:
            _, group = np.unique(group << _BITS | column, return_inverse=True)
        pairs, counts = np.unique(group << _BITS | stream[written], return_counts=True)
        owners = pairs >> _BITS
        groups, first = np.unique(group, return_index=True)
        starts = np.searchsorted(owners, np.arange(groups.size + 1))
        keys = [0] * groups.size
        for column in columns:
            keys = [key << _BITS | token for key, token in zip(keys, column[first].tolist(), strict=True)]
        occurrences = np.add.reduceat(counts, starts[:-1]) if counts.size else np.zeros(0)
        different = np.diff(starts) * (_ESCAPE if size > 1 else _ESCAPE_TO_WORDS)
        self.rows = {key: row for row, key in enumerate(keys)}
        self.starts: list[int] = starts.tolist()
        self.successors: array[int] = array("i", (pairs & (1 << _BITS) - 1).astype(np.int32).tobytes())
        self.cumulative: array[float] = array("d", np.concatenate(([0.0], np.cumsum(counts**power))).tobytes())
        self.escape: list[float] = (different / (occurrences + different)).tolist()
