"""Mask keys of one party, and the one pass from noisy integers to masked wire bytes.

Where the masks are post-quantum, everything of a party's masks follows from one 32-byte seed: its X25519 key, its
ML-KEM-768 key, and the secret r_ij that it deals to each neighbour j of a higher index. So a party that dropped out is
rebuilt from the seed alone, and the seed gives nothing of anybody else's beyond what its owner could read itself.

A chunk of the vector stays in the cache while every key's stream passes over it and is packed and hashed at once, so a
vector of ten million coordinates costs its wire bytes and one chunk of memory, and the cipher is nearly all of the
time.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from undersong_protocol.secagg import kem, keys, ring
from undersong_protocol.secagg.prg import MaskStreams, Sign, aligned_bytes
from undersong_protocol.statistics.vectors import MaskedVector, NoisyVector, Ring

PAIR_SECRET_BYTES = 32
PAIR_HASH_BYTES = 32
SEALED_PAIR_BYTES = kem.CIPHERTEXT_BYTES + PAIR_SECRET_BYTES + 16


class MaskKeys:
    """The keys of a mask secret: the X25519 secret itself, or, post-quantum, the seed of both keys."""

    def __init__(self, secret: bytes, post_quantum: bool) -> None:
        self._seed = secret
        self._agreed: dict[bytes, bytes] = {}
        self._secret = keys.hkdf(b"", secret, b"x25519") if post_quantum else secret

    def __repr__(self) -> str:
        return "MaskKeys(hidden)"

    @property
    def public(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return self._agreement.public

    @cached_property
    def _agreement(self) -> keys.Agreement:
        return keys.Agreement(self._secret)

    def agreed(self, party: str, public: bytes) -> bytes:
        """X25519 with ``party``'s mask key, computed once. Raises PeerFault for a key of low order."""
        known = self._agreed.get(public)
        if known is None:
            known = self._agreed[public] = self._agreement.shared(party, public)
        return known

    @cached_property
    def kem(self) -> kem.SecretKey:
        """The ML-KEM-768 key to which neighbours of a lower index encapsulate."""
        return kem.SecretKey(self._seed)

    def pair_secret(self, transcript: bytes, other: int) -> bytes:
        """r_ij, which this party deals to the neighbour ``other`` of a higher index: HKDF(s_i, "pair" | sid' | j)."""
        return keys.hkdf(transcript, self._seed, b"pair" + other.to_bytes(4, "little"))

    def open_pair(
        self, transcript: bytes, agreed: bytes, dealer: int, me: int, sealed: bytes, hashed: bytes
    ) -> bytes | None:
        """r_ji that ``dealer`` sealed for this party, or None where it does not open. ``agreed``: with the dealer."""
        ciphertext, rest = sealed[: kem.CIPHERTEXT_BYTES], sealed[kem.CIPHERTEXT_BYTES :]
        key = keys.pair_seal_key(transcript, agreed + self.kem.decapsulate(ciphertext), dealer, me)
        return keys.unseal(key, transcript, dealer, me, rest, ciphertext + hashed)


def seal_pair(
    agreed: bytes,
    encapsulated: tuple[bytes, bytes],
    transcript: bytes,
    dealer: int,
    holder: int,
    secret: bytes,
    hashed: bytes,
) -> bytes:
    """The block in which r_ij travels: ML-KEM ciphertext, then AES-256-GCM.

    ``agreed``: X25519 of the pair's mask keys; ``encapsulated``: of ``kem.Encapsulate``, to the holder's.
    """
    shared, ciphertext = encapsulated
    key = keys.pair_seal_key(transcript, agreed + shared, dealer, holder)
    return ciphertext + keys.seal(key, transcript, dealer, holder, secret, ciphertext + hashed)


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
