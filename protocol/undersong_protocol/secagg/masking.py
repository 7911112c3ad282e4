"""A party's mask keys, and the masking of its noisy vector into bytes for the wire.

If masks are post-quantum, all masks of a party follow from one 32-byte seed: its X25519 key, its ML-KEM-768 key, and
the secret r_ij that it deals to each neighbour j of a higher index. So the masks of a party that dropped out are
rebuilt from its seed alone. The seed reveals nothing of other parties that its owner could not read.

A chunk of the vector stays in the processor's cache while the masks of all keys are added, and is then packed and
hashed at once. So a vector of ten million coordinates needs memory for its wire bytes and one chunk.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
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
from undersong_protocol.secagg import keys, ring
from undersong_protocol.statistics.vectors import MaskedVector, NoisyVector, Ring

# Masks: a 32-byte key expanded by AES-256-CTR and added to, or taken from, a ring vector in bounded memory.
# The mask of key ``k`` for a vector of ``d`` words is the first ``d`` words of the stream of ``privacy.stream``,
# uint32 little-endian in Z_2^32 and uint64 little-endian in Z_2^64; every operation wraps around. Bonawitz et al.
# 2017, section 4 (PRG), at the full 256-bit key.

Sign = Literal[1, -1]
_CACHE_LINE_BYTES = 64
# Bytes of all masks together, from which on ``ShortStreams`` are faster than a ``KeyStream`` for each mask.
_SHORT_FROM_BYTES = 1 << 18
_WORDS: dict[int, np.dtype[np.unsignedinteger]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def add_masks(accumulator: Ring, masks: Iterable[tuple[bytes, Sign]]) -> None:
    """Adds (sign 1) or subtracts (-1) the masks of many 32-byte keys to ``accumulator``, in place.

    The accumulator is contiguous, uint32 or uint64 [d]. Chunks are the outer loop, so that a chunk stays in the cache
    and the cost is close to that of the cipher alone. Further memory is one chunk of 128 KiB.

    Raises InternalError for another dtype, a non-contiguous accumulator, a key that is not 32 bytes or another sign.
    """
    if accumulator.dtype.kind != "u" or accumulator.ndim != 1 or not accumulator.flags.c_contiguous:
        raise InternalError(
            f"a mask accumulator is a contiguous uint32 or uint64 [d], got {accumulator.dtype} {accumulator.shape}"
        )
    streams = MaskStreams(masks, accumulator.dtype, len(accumulator))
    for start_word in range(0, len(accumulator), streams.words):
        streams.add_to(accumulator[start_word : start_word + streams.words])
    streams.close()


class MaskStreams:
    """Adds the masks of many keys to one vector, chunk after chunk."""

    def __init__(self, masks: Iterable[tuple[bytes, Sign]], dtype: np.dtype[np.generic], count: int) -> None:
        """Starts every key's stream for a vector of ``count`` words, which is added in chunks of :attr:`words` words.

        Raises InternalError as :func:`add_masks`.
        """
        word_type = None
        if dtype.kind == "u":
            word_type = _WORDS.get(dtype.itemsize)
        if word_type is None:
            raise InternalError(f"masks are words of uint32 or uint64, not {dtype}")
        chunk_words = CHUNK_BYTES // word_type.itemsize
        self.words = max(1, min(chunk_words, count))
        chunk_bytes = self.words * word_type.itemsize
        stream_keys: list[bytes] = []
        stream_combines: list[np.ufunc] = []
        for key, sign in masks:
            if sign not in (1, -1):
                raise InternalError(f"a mask's sign is 1 or -1, got {sign!r}")
            stream_keys.append(key)
            stream_combines.append(np.add if sign == 1 else np.subtract)
        self._heads: list[tuple[XorInto, np.ufunc]] = []
        self._streams: list[tuple[XorInto, np.ufunc]] = []
        self._short: tuple[ShortStreams, list[np.ufunc]] | None = None
        if count > chunk_words:
            for key, combine_words in zip(stream_keys, stream_combines, strict=True):
                xor_into_head, xor_into_tail = long_stream(key)
                self._heads.append((xor_into_head, combine_words))
                self._streams.append((xor_into_tail, combine_words))
        elif len(stream_keys) * chunk_bytes >= _SHORT_FROM_BYTES and chunk_bytes > HEAD_BYTES and gcm_is_faster():
            self._short = ShortStreams(stream_keys), stream_combines
        else:
            self._streams = [
                (KeyStream(key).xor_into, combine) for key, combine in zip(stream_keys, stream_combines, strict=True)
            ]
        self._room = aligned_bytes(chunk_bytes + TAG_BYTES)
        self._window = self._room[:chunk_bytes]
        self._mask_words: npt.NDArray[np.generic] = np.frombuffer(self._window, dtype=word_type)

    def add_to(self, target: Ring) -> None:
        """Adds the next ``len(target)`` words of every mask to ``target``, in place."""
        if self._short is not None:
            streams, combine_of_stream = self._short
            for combine_words, _ in zip(combine_of_stream, streams.each_into(self._room), strict=True):
                combine_words(target, self._mask_words, target)
            return
        if self._heads:
            head_words = HEAD_BYTES // target.itemsize
            self._add_streams(self._heads, target[:head_words])
            self._heads, target = [], target[head_words:]
        self._add_streams(self._streams, target)

    def _add_streams(self, streams: list[tuple[XorInto, np.ufunc]], target: Ring) -> None:
        mask_words = self._mask_words[: len(target)]
        buffer = self._window[: target.nbytes]
        zero_bytes = ZEROS[: target.nbytes]
        for xor_into, combine_words in streams:
            xor_into(zero_bytes, buffer)
            combine_words(target, mask_words, target)

    def close(self) -> None:
        """Forgets the masks and overwrites their buffers."""
        if self._short is not None:
            self._short[0].close()
        self._heads = []
        self._streams = []
        self._short = None
        wipe(self._room)


def aligned_bytes(size: int) -> memoryview:
    """Returns a zeroed buffer of ``size`` bytes that begins at a cache line, so that adding from it is faster."""
    buffer = np.zeros(size + _CACHE_LINE_BYTES, dtype=np.uint8)
    start_byte = -buffer.ctypes.data % _CACHE_LINE_BYTES
    return buffer[start_byte : start_byte + size].data


PAIR_SECRET_BYTES = 32
PAIR_HASH_BYTES = 32
SEALED_PAIR_BYTES = keys.CIPHERTEXT_BYTES + PAIR_SECRET_BYTES + 16


class MaskKeys:
    """The mask keys of one party, from its mask secret: an X25519 key, and if post-quantum also an ML-KEM-768 key."""

    def __init__(self, secret: bytes, post_quantum: bool) -> None:
        self._seed = secret
        self._agreed: dict[bytes, bytes] = {}
        if post_quantum:
            self._secret = keys.hkdf(b"", secret, b"x25519")
        else:
            self._secret = secret

    def __repr__(self) -> str:
        return "MaskKeys(hidden)"

    @property
    def public(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return self._key_agreement.public

    @cached_property
    def _key_agreement(self) -> keys.Agreement:
        return keys.Agreement(self._secret)

    def agreed(self, party: str, peer_key: bytes) -> bytes:
        """Returns the X25519 secret with ``party``'s mask key, computed once per key.

        Raises PeerFault for a key of low order.
        """
        secret = self._agreed.get(peer_key)
        if secret is None:
            secret = self._agreed[peer_key] = self._key_agreement.shared(party, peer_key)
        return secret

    @cached_property
    def kem(self) -> keys.KemSecretKey:
        """The ML-KEM-768 key to which neighbours of a lower index encapsulate."""
        return keys.KemSecretKey(self._seed)

    def pair_secret(self, transcript: bytes, neighbour: int) -> bytes:
        """Returns r_ij, 32 bytes, which this party deals to a ``neighbour`` of a higher index.

        It is HKDF(s_i, "pair" | sid' | j).
        """
        return keys.hkdf(transcript, self._seed, b"pair" + neighbour.to_bytes(4, "little"))

    def open_pair(
        self, transcript: bytes, shared_secret: bytes, dealer: int, holder: int, sealed: bytes, secret_hash: bytes
    ) -> bytes | None:
        """Decrypts the pair secret that ``dealer`` sealed for this party; None if it was changed.

        Args:
            shared_secret: X25519 secret with the dealer's mask key.
            secret_hash: hash of the pair secret, which the dealer published.
        """
        ciphertext = sealed[: keys.CIPHERTEXT_BYTES]
        sealed_secret = sealed[keys.CIPHERTEXT_BYTES :]
        seal_key = keys.pair_seal_key(transcript, shared_secret + self.kem.decapsulate(ciphertext), dealer, holder)
        return keys.unseal(seal_key, transcript, dealer, holder, sealed_secret, ciphertext + secret_hash)


def seal_pair(
    shared_secret: bytes,
    encapsulated: tuple[bytes, bytes],
    transcript: bytes,
    dealer: int,
    holder: int,
    pair_secret: bytes,
    secret_hash: bytes,
) -> bytes:
    """Encrypts a pair secret r_ij for its holder: ML-KEM ciphertext, followed by AES-256-GCM ciphertext.

    Args:
        shared_secret: X25519 secret of the pair's mask keys.
        encapsulated: result of ``keys.Encapsulate`` for the holder's ML-KEM key.
        secret_hash: hash of ``pair_secret``, which is published.
    """
    kem_secret, ciphertext = encapsulated
    seal_key = keys.pair_seal_key(transcript, shared_secret + kem_secret, dealer, holder)
    return ciphertext + keys.seal(seal_key, transcript, dealer, holder, pair_secret, ciphertext + secret_hash)


def masked_body(noisy_vector: NoisyVector, masks: Sequence[tuple[bytes, Sign]], bits: int) -> tuple[list[bytes], bytes]:
    """Returns the masked vector, packed to ``bits`` bits per coordinate, as a list of chunks, and the SHA-256 of all.

    The chunks joined are ``ring.pack`` of the vector after :func:`add_masks`.

    Args:
        masks: (32-byte key, 1 to add or -1 to subtract) of each mask.
    """
    noisy_words = noisy_vector.values
    word_type = ring.ring_dtype(bits)
    streams = MaskStreams(masks, word_type, len(noisy_words))
    # With several chunks this is a multiple of 64 words, so that each packed chunk ends at a whole byte.
    chunk_words = streams.words
    chunk_buffer = aligned_bytes(chunk_words * word_type.itemsize)
    if word_type == np.uint32:
        accumulator: Ring = np.frombuffer(chunk_buffer, np.uint32)
    else:
        accumulator = np.frombuffer(chunk_buffer, np.uint64)
    packed_chunks: list[bytes] = []
    hasher = hashlib.sha256()
    for start_word in range(0, len(noisy_words), chunk_words):
        chunk_values = noisy_words[start_word : start_word + chunk_words]
        chunk_sums = accumulator[: len(chunk_values)]
        chunk_sums[:] = chunk_values
        streams.add_to(chunk_sums)
        packed_chunks.append(ring.pack(MaskedVector(chunk_sums).values, bits))
        hasher.update(packed_chunks[-1])
    streams.close()
    return packed_chunks, hasher.digest()
