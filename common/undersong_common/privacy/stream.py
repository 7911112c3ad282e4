"""The one cryptographic stream under masks and noise: AES-256-CTR over zeros, words little-endian.

Definition, so that another implementation can be checked against ours: for a 32-byte seed ``k`` the stream is
``AES-256_k(0) || AES-256_k(1) || ...`` with the block counter as a 128-bit big-endian integer that starts at zero
(NIST SP 800-38A, CTR mode, zero initial counter block, zero plaintext). Words are read from it little-endian on every
machine. A seed is used for one purpose and one stream only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from undersong_common.errors import InternalError

SEED_BYTES = 32
# Fits the second-level cache together with the accumulator's chunk and the zero plaintext; smaller pays for calls.
CHUNK_BYTES = 1 << 17
ZEROS = memoryview(bytes(CHUNK_BYTES))
XorInto = Callable[[memoryview, memoryview], int]
"""(data, out): data XOR the stream's next bytes; with ``ZEROS`` the bytes themselves. As long as each other."""
HEAD_BYTES = 32
_MODE = CTR(bytes(16))
_BEHIND_HEAD = GCM(bytes(12))


class KeyStream:
    """Successive bytes of AES-256-CTR under a 32-byte seed, written into the caller's buffers.

    >>> KeyStream(bytes(32)).read(4).hex()
    'dc95c078'
    """

    __slots__ = ("xor_into",)

    def __init__(self, seed: bytes) -> None:
        """Start at block zero. Raises InternalError unless ``seed`` is 32 bytes."""
        if len(seed) != SEED_BYTES:
            raise InternalError(f"a stream seed is {SEED_BYTES} bytes, got {len(seed)}")
        # The cipher's own method: a sum of many masks calls it for each of them and each part.
        self.xor_into: XorInto = Cipher(AES256(seed), _MODE).encryptor().update_into

    def __repr__(self) -> str:
        return "KeyStream(AES-256-CTR)"

    def fill(self, out: memoryview) -> None:
        """Write the next ``out.nbytes`` bytes of the stream to ``out``, a writable contiguous buffer of bytes."""
        for start in range(0, out.nbytes, CHUNK_BYTES):
            part = out[start : start + CHUNK_BYTES]
            self.xor_into(ZEROS[: part.nbytes], part)

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes as a new object: for permutations and tests, not for bulk."""
        out = bytearray(size)
        if size:
            self.fill(memoryview(out))
        return bytes(out)


def long_stream(seed: bytes) -> tuple[XorInto, XorInto]:
    """What writes a stream's first ``HEAD_BYTES``, and what writes all behind them: to be used in this order.

    For vectors of megabytes. AES-GCM encrypts by the blocks of CTR mode (NIST SP 800-38D, section 7.1): under a nonce
    of 96 zero bits its first block is this stream's third, and so on for 2^36 - 32 bytes. The library computes them
    with wider instructions where the processor has them, so that they come up to twice as fast. No tag is made.

    Raises InternalError unless ``seed`` is 32 bytes.
    """
    head = KeyStream(seed).xor_into
    return head, Cipher(AES256(seed), _BEHIND_HEAD).encryptor().update_into if gcm_is_faster() else head


@cache
def gcm_is_faster() -> bool:
    """Whether this machine computes blocks faster in GCM than in CTR mode: it takes 0.1 ms to see, and once."""
    out = memoryview(bytearray(CHUNK_BYTES))
    best = []
    for mode in (_BEHIND_HEAD, _MODE):
        write = Cipher(AES256(bytes(SEED_BYTES)), mode).encryptor().update_into
        times = []
        for _ in range(4):
            start = time.perf_counter_ns()
            write(ZEROS, out)
            times.append(time.perf_counter_ns() - start)
        best.append(min(times))
    return best[0] < best[1]


def wipe(buffer: bytearray | memoryview) -> None:
    """Overwrite a buffer of bytes with zeros; Python may still hold copies, this removes the one we know of."""
    buffer[:] = bytes(len(buffer))
