"""The cryptographic stream from which masks and noise are drawn: AES-256-CTR over zeros, words little-endian.

For a 32-byte seed ``k`` the stream is defined as
``AES-256_k(0) || AES-256_k(1) || ...`` with the block counter as a 128-bit big-endian integer that starts at zero
(NIST SP 800-38A, CTR mode, zero initial counter block, zero plaintext). Words are read from it little-endian on every
machine. A seed is used for one purpose and one stream only.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from undersong_common.errors import InternalError

SEED_BYTES = 32
# A chunk, the accumulator's chunk and the zero plaintext fit into the second-level cache. Smaller ones need more calls.
CHUNK_BYTES = 1 << 17
ZEROS = memoryview(bytes(CHUNK_BYTES))
# Writes data XOR the stream's next bytes to a buffer of the same length: (data, out); ``ZEROS`` gives the bytes.
XorInto = Callable[[memoryview, memoryview], int]
HEAD_BYTES = 32  # the first two blocks, which AES-GCM does not encrypt with (:func:`long_stream`)
LONG_BYTES = 1 << 16  # length from which a LongStream is faster than a KeyStream
TAG_BYTES = 16
_MODE = CTR(bytes(16))
_NONCE = bytes(12)
_BEHIND_HEAD = GCM(_NONCE)


class KeyStream:
    """Successive bytes of AES-256-CTR under a 32-byte seed, written into the caller's buffers.

    >>> KeyStream(bytes(32)).read(4).hex()
    'dc95c078'
    """

    __slots__ = ("xor_into",)

    def __init__(self, seed: bytes) -> None:
        """Starts at block zero. Raises InternalError unless ``seed`` is 32 bytes."""
        _check_seed(seed)
        # The attribute is the cipher's own method without a wrapper, because a sum calls it for each part of each mask.
        self.xor_into: XorInto = Cipher(AES256(seed), _MODE).encryptor().update_into

    def __repr__(self) -> str:
        return "KeyStream(AES-256-CTR)"

    def fill(self, out: memoryview) -> None:
        """Writes the next ``out.nbytes`` bytes of the stream to ``out``, a writable contiguous buffer of bytes."""
        for chunk_start in range(0, out.nbytes, CHUNK_BYTES):
            out_chunk = out[chunk_start : chunk_start + CHUNK_BYTES]
            self.xor_into(ZEROS[: out_chunk.nbytes], out_chunk)

    def read(self, size: int) -> bytes:
        """Returns the next ``size`` bytes as a new object; for large amounts use :meth:`fill`."""
        key_bytes = bytearray(size)
        if size:
            self.fill(memoryview(key_bytes))
        return bytes(key_bytes)


def long_stream(seed: bytes) -> tuple[XorInto, XorInto]:
    """Returns two :data:`XorInto` functions: for a stream's first ``HEAD_BYTES``, and for all bytes behind them.

    Call the first one first.

    Use it for vectors of megabytes. AES-GCM encrypts by the blocks of CTR mode (NIST SP 800-38D, section 7.1): under a
    nonce of 96 zero bits its first block is this stream's third, and so on for 2^36 - 32 bytes. The library computes
    them with wider instructions if the processor has them, so that they come up to twice as fast. No tag is made.

    Raises InternalError unless ``seed`` is 32 bytes.
    """
    xor_into_head = KeyStream(seed).xor_into
    if not gcm_is_faster():
        return xor_into_head, xor_into_head
    return xor_into_head, Cipher(AES256(seed), _BEHIND_HEAD).encryptor().update_into


class LongStream:
    """The same bytes as a :class:`KeyStream`'s, faster from ``LONG_BYTES`` on (:func:`long_stream`)."""

    __slots__ = ("_xor_into_head", "_xor_into_rest")

    def __init__(self, seed: bytes) -> None:
        xor_into_head, self._xor_into_rest = long_stream(seed)
        self._xor_into_head: XorInto | None = xor_into_head

    def __repr__(self) -> str:
        return "LongStream(AES-256-CTR)"

    def fill(self, out: memoryview) -> None:
        """Writes the next bytes as :meth:`KeyStream.fill` does; the first ``out`` has at least ``HEAD_BYTES``."""
        if self._xor_into_head is not None:
            self._xor_into_head(ZEROS[:HEAD_BYTES], out[:HEAD_BYTES])
            self._xor_into_head, out = None, out[HEAD_BYTES:]
        for chunk_start in range(0, out.nbytes, CHUNK_BYTES):
            out_chunk = out[chunk_start : chunk_start + CHUNK_BYTES]
            self._xor_into_rest(ZEROS[: out_chunk.nbytes], out_chunk)


class ShortStreams:
    """Writes the beginnings of the streams of many seeds, one after the other.

    Use it for vectors of kilobytes. Setting up AES-GCM in a single call takes a third of the time of a cipher that can
    be called again. It encrypts by the blocks of a stream behind its head (see ``long_stream``). The head is what
    GCM authenticates with (NIST SP 800-38D, section 7.1), so it follows from two tags under the same nonce: of an empty
    message the tag is the second block, AES(1), and with 16 zero bytes of associated data it is AES(1) + x^56 AES(0) in
    GF(2^128), because their length, 128 bits, stands for x^56. The heads of all seeds are computed at once. No tag
    leaves.
    """

    __slots__ = ("_ciphers", "_heads")

    def __init__(self, seeds: Sequence[bytes]) -> None:
        """Raises InternalError unless each of ``seeds`` is 32 bytes."""
        for seed in seeds:
            _check_seed(seed)
        self._ciphers = [AESGCM(seed) for seed in seeds]
        self._heads = bytearray(HEAD_BYTES * len(seeds))
        tags = bytearray(2 * TAG_BYTES)
        zero_tag = bytes(TAG_BYTES)
        first_tag = memoryview(tags)[:TAG_BYTES]
        second_tag = memoryview(tags)[TAG_BYTES:]
        stream_start = 0
        for cipher in self._ciphers:
            cipher.encrypt_into(_NONCE, b"", None, first_tag)
            cipher.encrypt_into(_NONCE, b"", zero_tag, second_tag)
            self._heads[stream_start : stream_start + HEAD_BYTES] = tags
            stream_start += HEAD_BYTES
        wipe(tags)
        _tags_to_heads(self._heads)

    def __repr__(self) -> str:
        return f"ShortStreams({len(self._ciphers)} of AES-256-CTR)"

    def each_into(self, buffer: memoryview) -> Iterator[None]:
        """Overwrites ``buffer`` with one stream after the other and yields after each.

        Args:
            buffer: writable and contiguous, of at least 48 and at most ``CHUNK_BYTES`` + 48 bytes. Its last 16 bytes
                are scratch space.
        """
        head_bytes = buffer[:HEAD_BYTES]
        bytes_behind = buffer[HEAD_BYTES:]
        zero_bytes = ZEROS[: len(bytes_behind) - TAG_BYTES]
        head_view = memoryview(self._heads)
        head_start = 0
        for cipher in self._ciphers:
            cipher.encrypt_into(_NONCE, zero_bytes, None, bytes_behind)
            head_bytes[:] = head_view[head_start : head_start + HEAD_BYTES]
            head_start += HEAD_BYTES
            yield

    def close(self) -> None:
        """Forgets the seeds' ciphers and overwrites the streams' heads."""
        self._ciphers = []
        wipe(self._heads)


# Exponents of the terms of P^1, P^2, P^4, ..., P^32 that lie between 0 and 64, for _tags_to_heads.
_INVERSE = [[np.uint64(by * power) for by in (1, 2, 7) if by * power < 64] for power in (1, 2, 4, 8, 16, 32)]


def _tags_to_heads(tags: bytearray) -> None:
    """Replaces the two tags of each stream by its first two blocks, in place.

    A block is a polynomial over GF(2), its first bit the coefficient of x^0, modulo P = 1 + x + x^2 + x^7 + x^128. To
    divide by x^56, that multiple mP is added which leaves nothing below x^56: m = v / P mod x^56, where 1 / P is P^63
    because P^64 = 1 mod x^64, and P^63 is the product of P^1, P^2, P^4, ..., P^32.
    """
    tag_words = np.frombuffer(tags, dtype=">u8").reshape(-1, 2, 2)
    low_words, high_words = (tag_words[:, 0] ^ tag_words[:, 1]).astype(np.uint64).T
    field_multiple = low_words.copy()
    for inverse_powers in _INVERSE:
        field_multiple ^= reduce(np.bitwise_xor, [field_multiple >> shift for shift in inverse_powers])
    field_multiple &= ~np.uint64(0xFF)
    low_words ^= field_multiple ^ (field_multiple >> 1) ^ (field_multiple >> 2) ^ (field_multiple >> 7)
    tag_words[:, 1] = tag_words[:, 0]
    tag_words[:, 0, 0] = (low_words << 56) | (high_words >> 8)
    tag_words[:, 0, 1] = (high_words << 56) | (field_multiple >> 8)


@cache
def gcm_is_faster() -> bool:
    """Returns True if this machine computes blocks faster in GCM than in CTR mode; measured once, in 0.1 ms."""
    key_bytes = memoryview(bytearray(CHUNK_BYTES))
    best_times_ns = []
    for mode in (_BEHIND_HEAD, _MODE):
        encrypt_into = Cipher(AES256(bytes(SEED_BYTES)), mode).encryptor().update_into
        times_ns = []
        for _ in range(4):
            start_ns = time.perf_counter_ns()
            encrypt_into(ZEROS, key_bytes)
            times_ns.append(time.perf_counter_ns() - start_ns)
        best_times_ns.append(min(times_ns))
    return best_times_ns[0] < best_times_ns[1]


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise InternalError(f"a stream seed is {SEED_BYTES} bytes, got {len(seed)}", code="seed-length")


def wipe(buffer: bytearray | memoryview) -> None:
    """Overwrites a buffer with zeros. Python may still hold copies elsewhere."""
    if len(buffer):
        np.frombuffer(buffer, dtype=np.uint8)[:] = 0
