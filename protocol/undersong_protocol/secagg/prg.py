"""Masks: a 32-byte key expanded by AES-256-CTR and added to, or taken from, a ring vector in bounded memory.

The mask of key ``k`` for a vector of ``d`` words is the first ``d`` words of the stream of ``privacy.stream``,
uint32 little-endian in Z_2^32 and uint64 little-endian in Z_2^64; every operation wraps around. Bonawitz et al. 2017,
section 4 (PRG), at the full 256-bit key.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from undersong_common.errors import InternalError
from undersong_common.privacy.stream import (
    CHUNK_BYTES,
    HEAD_BYTES,
    TAG_BYTES,
    ZEROS,
    KeyStream,
    ShortStreams,
    XorInto,
    gcm_is_faster,
    long_stream,
    wipe,
)
from undersong_protocol.statistics.vectors import Ring

Sign = Literal[1, -1]
_CACHE_LINE_BYTES = 64
# Of all masks together, from where one call for each pays for the heads that it leaves out.
_SHORT_FROM_BYTES = 1 << 18
_WORDS: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def add_masks(accumulator: Ring, masks: Iterable[tuple[bytes, Sign]]) -> None:
    """Adds (sign 1) or subtracts (-1) the masks of many keys, in place; uint32 or uint64 [d], contiguous.

    Chunks are the outer loop: a chunk of the accumulator stays in the cache while every key's stream passes over it,
    which keeps the cost close to that of the cipher alone for vectors of any length. Memory beyond the accumulator is
    one chunk of 128 KiB.

    Raises InternalError for another dtype, a non-contiguous accumulator, a key that is not 32 bytes or another sign.
    """
    if accumulator.dtype.kind != "u" or accumulator.ndim != 1 or not accumulator.flags.c_contiguous:
        raise InternalError(
            f"a mask accumulator is a contiguous uint32 or uint64 [d], got {accumulator.dtype} {accumulator.shape}"
        )
    streams = MaskStreams(masks, accumulator.dtype, len(accumulator))
    for start in range(0, len(accumulator), streams.words):
        streams.add_to(accumulator[start : start + streams.words])
    streams.close()


class MaskStreams:
    """The masks of many keys, added chunk after chunk to successive parts of one vector."""

    def __init__(self, masks: Iterable[tuple[bytes, Sign]], dtype: np.dtype[np.generic], count: int) -> None:
        """Start every key's stream for a vector of ``count`` words; all its parts but the last are ``words`` long.

        Raises InternalError as :func:`add_masks`.
        """
        word = _WORDS.get(dtype.itemsize) if dtype.kind == "u" else None
        if word is None:
            raise InternalError(f"masks are words of uint32 or uint64, not {dtype}")
        chunk = CHUNK_BYTES // word.itemsize
        self.words = max(1, min(chunk, count))
        size = self.words * word.itemsize
        keys: list[bytes] = []
        combines: list[np.ufunc] = []
        for key, sign in masks:
            if sign not in (1, -1):
                raise InternalError(f"a mask's sign is 1 or -1, got {sign!r}")
            keys.append(key)
            combines.append(np.add if sign == 1 else np.subtract)
        self._heads: list[tuple[XorInto, np.ufunc]] = []
        self._streams: list[tuple[XorInto, np.ufunc]] = []
        self._short: tuple[ShortStreams, list[np.ufunc]] | None = None
        if count > chunk:
            for key, combine in zip(keys, combines, strict=True):
                head, rest = long_stream(key)
                self._heads.append((head, combine))
                self._streams.append((rest, combine))
        elif len(keys) * size >= _SHORT_FROM_BYTES and size > HEAD_BYTES and gcm_is_faster():
            self._short = ShortStreams(keys), combines
        else:
            self._streams = [(KeyStream(key).xor_into, combine) for key, combine in zip(keys, combines, strict=True)]
        self._room = aligned_bytes(size + TAG_BYTES)
        self._window = self._room[:size]
        self._source: npt.NDArray[np.generic] = np.frombuffer(self._window, dtype=word)

    def add_to(self, target: Ring) -> None:
        """Add the next ``len(target)`` words of every mask, in place."""
        if self._short is not None:
            streams, combines = self._short
            for combine, _ in zip(combines, streams.each_into(self._room), strict=True):
                combine(target, self._source, target)
            return
        if self._heads:
            head = HEAD_BYTES // target.itemsize
            self._add(self._heads, target[:head])
            self._heads, target = [], target[head:]
        self._add(self._streams, target)

    def _add(self, streams: list[tuple[XorInto, np.ufunc]], target: Ring) -> None:
        source, out, zeros = self._source[: len(target)], self._window[: target.nbytes], ZEROS[: target.nbytes]
        for xor_into, combine in streams:
            xor_into(zeros, out)
            combine(target, source, target)

    def close(self) -> None:
        """Forget the masks."""
        if self._short is not None:
            self._short[0].close()
        self._heads, self._streams, self._short = [], [], None
        wipe(self._room)


def aligned_bytes(size: int) -> memoryview:
    """A zeroed buffer that begins at a cache line: adding from it is a quarter faster than from an odd address."""
    buffer = np.zeros(size + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -buffer.ctypes.data % _CACHE_LINE_BYTES
    return buffer[start : start + size].data
