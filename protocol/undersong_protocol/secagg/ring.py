"""Sums modulo 2^b for the smallest b that holds the largest sum, and the packing of b-bit words for the wire.

Arithmetic runs in words of 32 or 64 bits that wrap around. A vector is reduced to its low ``b`` bits when it is packed,
and the sum is exact modulo 2^b. The wire form is the little-endian bit string: word ``i``
occupies bits ``i*b .. i*b + b - 1``, the last byte is padded with zero bits.
"""

import math
from fractions import Fraction

import numpy as np

from undersong_common.arrays import Int64
from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_protocol.statistics.vectors import Ring

MAXIMUM_BITS = 64
NOISE_DEVIATIONS = 12  # standard deviations of the noise that a sum must hold
# Words that are unpacked at once, in a byte per bit. It is a multiple of 8, so that chunks meet at whole bytes.
_CHUNK_WORDS = 1 << 14
_LITTLE: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def modulus_bits(parties: int, max_records: int, linf: float, scale: float, sigma_total: float) -> int:
    """Returns the number b of bits that the largest possible sum needs (docs/secagg.md, "Ring").

    It is the least b with 2^b >= 2 (parties * max_records * linf * scale + 12 sigma_total) + 1.

    Args:
        linf: largest coordinate of one unit's contribution, in natural units.
        scale: integer units per natural unit.
        sigma_total: standard deviation, in integer units, of all noise in the sum before removal.

    Raises ConfigurationError for values that are not positive (sigma_total: negative) or not finite, or a sum that 64
    bits cannot hold.

    >>> modulus_bits(10, 2000, 128, 1, 452)
    23
    """
    if min(parties, max_records) < 1:
        raise ConfigurationError(
            f"no modulus can be planned for {parties} parties with max_records {max_records}", "plan at least 1 of each"
        )
    if not all(map(math.isfinite, (linf, scale, sigma_total))) or linf <= 0 or scale <= 0 or sigma_total < 0:
        raise ConfigurationError(
            f"no modulus can be planned for the bound {linf}, the scale {scale} and noise of deviation {sigma_total}",
            "plan a finite bound and scale above 0, and finite noise from 0",
        )
    largest_sum = math.ceil(
        parties * max_records * Fraction(linf) * Fraction(scale) + NOISE_DEVIATIONS * Fraction(sigma_total)
    )
    sum_bits = (2 * largest_sum).bit_length()
    if sum_bits > MAXIMUM_BITS:
        raise ConfigurationError(
            f"the largest possible sum needs {sum_bits} bits, the ring has {MAXIMUM_BITS}",
            "lower max_records or the statistic's integer scale",
            code="ring-too-small",
        )
    return sum_bits


def ring_dtype(bits: int) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
    """Returns the dtype in which sums of ``bits`` bits are computed: uint32 up to 32 bits, uint64 up to 64."""
    _check_bits(bits)
    if bits <= 32:
        return np.dtype(np.uint32)
    return np.dtype(np.uint64)


def to_signed(values: Ring, bits: int) -> Int64:
    """Converts ring words to signed integers, int64 [d]: the residue modulo 2^bits in [-2^(bits-1), 2^(bits-1)).

    >>> to_signed(np.array([1, 7, 4, 3 + 8], dtype=np.uint32), 3).tolist()
    [1, -1, -4, 3]
    """
    _check_bits(bits)
    unused_bits = MAXIMUM_BITS - bits
    wide_values = values.astype(np.uint64)
    wide_values <<= np.uint64(unused_bits)
    signed_values: Int64 = wide_values.view(np.int64)
    signed_values >>= unused_bits
    return signed_values


def packed_bytes(bits: int, count: int) -> int:
    """Returns the length in bytes of ``count`` packed words of ``bits`` bits."""
    _check_bits(bits)
    return (bits * count + 7) // 8


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= MAXIMUM_BITS:
        raise InternalError(f"a ring word has 1 to {MAXIMUM_BITS} bits, got {bits}", code="word-width")


def _native_dtype(bits: int) -> np.dtype[np.unsignedinteger] | None:
    if bits in (8, 16, 32, 64):
        return np.dtype(f"<u{bits // 8}")
    return None


def pack(values: Ring, bits: int) -> bytes:
    """Packs the low ``bits`` bits of every word, uint32 or uint64 [d], into ``packed_bytes(bits, d)`` bytes.

    It needs a further byte of memory per bit, so pack a long vector in parts.

    Raises InternalError for a dtype other than uint32/uint64 or words narrower than ``bits``.
    """
    _check_bits(bits)
    if values.dtype not in (np.uint32, np.uint64) or values.ndim != 1 or bits > 8 * values.dtype.itemsize:
        raise InternalError(f"cannot pack {values.dtype} {values.shape} into words of {bits} bits")
    if (native_type := _native_dtype(bits)) is not None:  # fifty times as fast as bit by bit
        return values.astype(native_type, copy=False).tobytes()
    word_bytes = values.dtype.itemsize
    word_octets = values.astype(_LITTLE[word_bytes], copy=False).view(np.uint8).reshape(len(values), word_bytes)
    low_bits = np.unpackbits(word_octets, axis=1, count=bits, bitorder="little")
    return np.packbits(low_bits, bitorder="little").tobytes()


def unpack(data: bytes | memoryview, bits: int, count: int, sender: str = "sender") -> Ring:
    """Reads ``count`` words of ``bits`` bits that :func:`pack` wrote, as a new array [count] of :func:`ring_dtype`.

    Raises PeerFault that names ``sender`` for another length than ``packed_bytes(bits, count)``, and for padding that
    is not zero, so that every vector has one encoding.
    """
    packed_size = packed_bytes(bits, count)
    data_view = memoryview(data).cast("B")
    if len(data_view) != packed_size:
        raise PeerFault(
            sender,
            f"a packed vector of {count} words of {bits} bits is {packed_size} bytes, got {len(data_view)}",
            code="packed-length",
        )
    if bits * count % 8 and data_view[-1] >> (bits * count % 8):
        raise PeerFault(sender, "a packed vector's padding bits are not zero", code="padding-bits")
    ring_words: Ring = np.empty(count, dtype=ring_dtype(bits))
    if (native_type := _native_dtype(bits)) is not None:
        ring_words[:] = np.frombuffer(data_view, dtype=native_type)
        return ring_words
    little_endian_type = _LITTLE[ring_words.itemsize]
    packed_octets = np.frombuffer(data_view, dtype=np.uint8)
    word_bits = np.zeros((min(_CHUNK_WORDS, count), 8 * ring_words.itemsize), dtype=np.uint8)
    for start_word in range(0, count, _CHUNK_WORDS):
        chunk_words = ring_words[start_word : start_word + _CHUNK_WORDS]
        chunk_octets = packed_octets[start_word * bits // 8 :]
        low_bits = np.unpackbits(
            chunk_octets[: packed_bytes(bits, len(chunk_words))], count=bits * len(chunk_words), bitorder="little"
        )
        word_bits[: len(chunk_words), :bits] = low_bits.reshape(len(chunk_words), bits)
        chunk_words[:] = np.packbits(word_bits[: len(chunk_words)], bitorder="little").view(little_endian_type)
    return ring_words
