"""The one cryptographic stream under masks and noise: AES-256-CTR over zeros, words little-endian.

Definition, so that another implementation can be checked against ours: for a 32-byte seed ``k`` the stream is
``AES-256_k(0) || AES-256_k(1) || ...`` with the block counter as a 128-bit big-endian integer that starts at zero
(NIST SP 800-38A, CTR mode, zero initial counter block, zero plaintext). Words are read from it little-endian on every
machine. A seed is used for one purpose and one stream only.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from undersong_common.errors import InternalError

SEED_BYTES = 32
# Fits the second-level cache together with the accumulator's chunk and the zero plaintext; smaller pays for calls.
CHUNK_BYTES = 1 << 17
ZEROS = memoryview(bytes(CHUNK_BYTES))
_MODE = CTR(bytes(16))


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
        # (data, out): data XOR the stream's next bytes; with ``ZEROS`` the bytes themselves. The cipher's own method:
        # a sum of many masks calls it for each of them and each part.
        self.xor_into: Callable[[memoryview, memoryview], int] = Cipher(AES256(seed), _MODE).encryptor().update_into

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


def wipe(buffer: bytearray | memoryview) -> None:
    """Overwrite a buffer of bytes with zeros; Python may still hold copies, this removes the one we know of."""
    buffer[:] = bytes(len(buffer))
