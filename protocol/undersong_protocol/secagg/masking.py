"""From noisy integers to masked wire bytes in one pass: add every mask, reduce, pack and hash, a chunk at a time.

A chunk of the vector stays in the cache while every key's stream passes over it and is packed at once, so a vector of
ten million coordinates costs its wire bytes and one chunk of memory, and the cipher is nearly all of the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from undersong_protocol.secagg import ring
from undersong_protocol.secagg.prg import MaskStreams, Sign, aligned_bytes
from undersong_protocol.statistics.vectors import MaskedVector, NoisyVector, Ring


def masked_body(noisy: NoisyVector, masks: Sequence[tuple[bytes, Sign]], bits: int) -> tuple[list[bytes], bytes]:
    """(packed low ``bits`` bits of ``noisy`` plus masks, their SHA-256); ``noisy`` int64 [d], masks as in ``prg``.

    The bytes, in parts, are those of ``ring.pack`` over ``prg.add_masks``; whoever sends them joins them once.
    """
    values = noisy.values
    dtype = ring.ring_dtype(bits)
    streams = MaskStreams(masks, dtype, len(values))
    # A multiple of 64 words where there are several chunks, so that packed ones meet at whole bytes.
    size = streams.words
    room = aligned_bytes(size * dtype.itemsize)
    accumulator: Ring = np.frombuffer(room, np.uint32) if dtype == np.uint32 else np.frombuffer(room, np.uint64)
    parts: list[bytes] = []
    hasher = hashlib.sha256()
    for start in range(0, len(values), size):
        part = values[start : start + size]
        chunk = accumulator[: len(part)]
        chunk[:] = part
        streams.add_to(chunk)
        parts.append(ring.pack(MaskedVector(chunk).values, bits))
        hasher.update(parts[-1])
    streams.close()
    return parts, hasher.digest()
