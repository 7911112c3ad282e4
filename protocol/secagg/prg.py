"""Masks: a 32-byte key expanded by AES-256-CTR and added to, or taken from, a ring vector in bounded memory.

The mask of key ``k`` for a vector of ``d`` words is the first ``d`` words of the stream of ``common.privacy.stream``,
uint32 little-endian in Z_2^32 and uint64 little-endian in Z_2^64; every operation wraps around. Bonawitz et al. 2017,
section 4 (PRG), at the full 256-bit key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from common.errors import InternalError
from common.privacy.stream import CHUNK_BYTES, KeyStream, wipe
from protocol.vectors import Ring

Sign = Literal[1, -1]
_WORDS: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def add_mask(accumulator: Ring, key32: bytes, sign: Sign = 1) -> None:
    """Add (``sign`` = 1) or subtract (-1) the mask of ``key32``, in place; uint32 or uint64 [d], contiguous.

    Raises InternalError for another dtype, a non-contiguous accumulator, a key that is not 32 bytes or another sign.
    """
    add_masks(accumulator, ((key32, sign),))


def add_masks(accumulator: Ring, masks: Iterable[tuple[bytes, Sign]]) -> None:
    """Add or subtract the masks of many keys, in place; memory beyond the accumulator is one chunk of 64 KiB.

    Chunks are the outer loop: a chunk of the accumulator stays in the cache while every key's stream passes over it,
    which keeps the cost close to that of the cipher alone for vectors of any length.

    Raises InternalError as :func:`add_mask` does.
    """
    word = _WORDS.get(accumulator.dtype.itemsize) if accumulator.dtype.kind == "u" else None
    if word is None or accumulator.ndim != 1 or not accumulator.flags.c_contiguous:
        raise InternalError(
            f"a mask accumulator is a contiguous uint32 or uint64 [d], got {accumulator.dtype} {accumulator.shape}"
        )
    streams: list[tuple[KeyStream, np.ufunc]] = []
    for key, sign in masks:
        if sign not in (1, -1):
            raise InternalError(f"a mask's sign is 1 or -1, got {sign!r}")
        streams.append((KeyStream(key), np.add if sign == 1 else np.subtract))
    size = min(CHUNK_BYTES, accumulator.nbytes)
    if not streams or not size:
        return
    scratch = bytearray(size)
    window = memoryview(scratch)
    words = np.frombuffer(scratch, dtype=word)
    step = len(words)
    for start in range(0, len(accumulator), step):
        target = accumulator[start : start + step]
        source = words[: len(target)]
        out = window[: target.nbytes]
        for stream, combine in streams:
            stream.fill(out)
            combine(target, source, out=target)
    wipe(window)
