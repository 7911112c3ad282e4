"""From noisy integers to masked wire bytes in one pass: add every mask, reduce, pack and hash, a chunk at a time.

A chunk of the vector stays in the cache while every key's stream passes over it and is packed at once, so a vector of
ten million coordinates costs its wire bytes and one chunk of memory, and the cipher is nearly all of the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from common.privacy.stream import CHUNK_BYTES, KeyStream, wipe
from protocol.secagg import ring
from protocol.secagg.prg import Sign
from protocol.vectors import MaskedVector, NoisyVector


def masked_body(noisy: NoisyVector, masks: Sequence[tuple[bytes, Sign]], bits: int) -> tuple[bytearray, bytes]:
    """(packed low ``bits`` bits of ``noisy`` plus masks, their SHA-256); ``noisy`` int64 [d], masks as in ``prg``.

    The bytes are those of ``ring.pack`` over ``prg.add_masks``.
    """
    values = noisy.values
    dtype = ring.ring_dtype(bits)
    # A multiple of 64 words, so that packed chunks meet at whole bytes.
    size = min(CHUNK_BYTES // dtype.itemsize, len(values))
    scratch = bytearray(size * dtype.itemsize)
    window = memoryview(scratch)
    words = np.frombuffer(scratch, dtype=dtype.newbyteorder("<"))
    accumulator = np.empty(size, dtype=dtype)
    streams = [(KeyStream(key).fill, np.add if sign == 1 else np.subtract) for key, sign in masks]
    packed = bytearray(ring.packed_bytes(bits, len(values)))
    hasher = hashlib.sha256()
    end = 0
    for start in range(0, len(values), size):
        part = values[start : start + size]
        chunk = accumulator[: len(part)]
        chunk[:] = part
        source = words[: len(part)]
        out = window[: chunk.nbytes]
        for fill, combine in streams:
            fill(out)
            combine(chunk, source, chunk)
        data = ring.pack(MaskedVector(chunk).values, bits)
        hasher.update(data)
        packed[end : end + len(data)] = data
        end += len(data)
    wipe(window)
    return packed, hasher.digest()
