"""Mask keys of one party, and the secrets that the parties of a pair share beside their X25519 agreement.

Where the masks are post-quantum, everything of a party's masks follows from one 32-byte seed: its X25519 key, its
ML-KEM-768 key, and the secret r_ij that it deals to each neighbour j of a higher index. So a party that dropped out is
rebuilt from the seed alone, and the seed gives nothing of anybody else's beyond what its owner could read itself.
"""

from __future__ import annotations

from functools import cached_property

from undersong_protocol.secagg import kem, keys

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
