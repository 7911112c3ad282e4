"""Keys of one attempt: X25519 and ML-KEM-768, HKDF-SHA256, encryption of shares, identity signatures.

Two fresh X25519 keys per party: the *channel* key carries shares, the *mask* key makes pairwise masks. One key for both
would let a reconstructed mask secret open the shares that its owner dealt.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_der_public_key

from undersong_common.errors import PeerFault
from undersong_protocol.secagg.shamir import SHARE_BYTES
from undersong_protocol.secagg.sid import VERSION, body_hash, digest, encode

if TYPE_CHECKING:
    from hashlib import _Hash

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEALED_BYTES = 2 * SHARE_BYTES + 16
SHARE_HASH_BYTES = 32
_FIELD = 2**255 - 19
# The canonical u-coordinates of order 1, 2, 4 and 8 (RFC 7748, section 6.1; the order-8 values as in the
# curve25519 literature). A key of these makes every shared secret known.
_LOW_ORDER = frozenset(
    value.to_bytes(KEY_BYTES, "little")
    for value in (
        0,
        1,
        _FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
)
# The y-coordinates of the Ed25519 points of order 1, 2, 4 and 8; the sign of x may be either (RFC 8032, section 5.1).
_ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
_LOW_ORDER_IDENTITIES = frozenset((0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8))
# Every sealing key encrypts one message, so the nonce may be constant.
_NONCE = bytes(12)


def hkdf(salt: bytes, secret: bytes, info: bytes) -> bytes:
    """Returns 32 bytes of HKDF-SHA256 (RFC 5869). The salt is public."""
    salted_inner, salted_outer = _hash_salt(salt)
    inner_hash = salted_inner.copy()
    outer_hash = salted_outer.copy()
    inner_hash.update(secret)
    outer_hash.update(inner_hash.digest())
    prk = outer_hash.digest()
    expansion = sha256(prk.translate(_INNER) + _INNER_REST + info + b"\x01")
    return sha256(prk.translate(_OUTER) + _OUTER_REST + expansion.digest()).digest()


# HMAC (RFC 2104) is computed here from its two hashes. A key takes six times as long through the library's HMAC object,
# and a party derives three keys for each neighbour.
_BLOCK_BYTES = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_INNER_REST, _OUTER_REST = (bytes([pad]) * (_BLOCK_BYTES - sha256().digest_size) for pad in (0x36, 0x5C))


@lru_cache(maxsize=64)
def _hash_salt(salt: bytes) -> "tuple[_Hash, _Hash]":
    """Returns HMAC's two hashes after the salt, cached: an attempt's transcript is the salt of all its keys."""
    salt_block = (sha256(salt).digest() if len(salt) > _BLOCK_BYTES else salt).ljust(_BLOCK_BYTES, b"\0")
    return sha256(salt_block.translate(_INNER)), sha256(salt_block.translate(_OUTER))


def public_key(secret: bytes) -> bytes:
    """Returns the X25519 public key of a 32-byte secret."""
    return Agreement(secret).public


def check_public_key(party: str, key: bytes) -> None:
    """Raises PeerFault that names ``party`` unless ``key`` is a canonical X25519 public key of large order."""
    if len(key) != KEY_BYTES or int.from_bytes(key, "little") >= _FIELD:
        raise PeerFault(party, "advertised a malformed X25519 key", "it must make fresh keys with a correct program")
    if key in _LOW_ORDER:
        raise PeerFault(party, "advertised a low-order X25519 key", "it must make fresh keys with a correct program")


# An X25519 public key in DER is this prefix and the key's bytes (RFC 8410, section 4). DER is read in a third less time
# than raw bytes, for which the library imports its backend at each call.
_DER_HEAD = bytes.fromhex("302a300506032b656e032100")


class Agreement:
    """One X25519 secret key that computes shared secrets with many public keys; its ``repr`` hides it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = X25519PrivateKey.from_private_bytes(secret)

    def __repr__(self) -> str:
        return "Agreement(X25519)"

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._secret.public_key().public_bytes_raw()

    def shared(self, party: str, peer_key: bytes) -> bytes:
        """Returns the raw shared secret, 32 bytes, with ``party``'s key. Raises PeerFault for a key of low order."""
        try:
            return self._secret.exchange(load_der_public_key(_DER_HEAD + peer_key))  # type: ignore[arg-type]
        except ValueError:
            raise PeerFault(party, "advertised a low-order X25519 key") from None


_TWO_PARTIES = struct.Struct("<2I").pack


def mask_key(transcript: bytes, question: bytes, shared: bytes, party: int, peer: int) -> bytes:
    """Returns the key (32 bytes) of the pairwise mask of ``party`` and ``peer`` (roster indices), equal at both.

    HKDF(shared, "mask" | sid' | q | lo | hi): the masks of two parties that were asked different questions do not
    cancel. ``shared`` is the X25519 secret of the mask keys, followed by the pair's secret if masks are post-quantum.
    """
    if party < peer:
        party_pair = _TWO_PARTIES(party, peer)
    else:
        party_pair = _TWO_PARTIES(peer, party)
    return hkdf(transcript, shared, b"mask" + question + party_pair)


def share_key(transcript: bytes, shared: bytes, dealer: int, holder: int) -> bytes:
    """Returns the key that encrypts one dealer's shares for one holder: HKDF(shared, "share" | sid' | i -> j).

    ``shared`` is the X25519 secret of the channel keys, followed by the secret that the dealer encapsulated to the
    holder if channels are post-quantum.
    """
    return hkdf(transcript, shared, b"share" + _TWO_PARTIES(dealer, holder))


def pair_seal_key(transcript: bytes, shared: bytes, dealer: int, holder: int) -> bytes:
    """Returns the key that encrypts the secret of a pair for its holder: HKDF(shared, "pair seal" | sid' | i -> j).

    ``shared`` is the X25519 secret of the mask keys, followed by the secret that the dealer encapsulated to the holder.
    It needs X25519 because anybody can encapsulate to a public key: otherwise a coordinator could deal the holder a
    secret of its own, and then X25519 alone would hide the pair's mask.
    """
    return hkdf(transcript, shared, b"pair seal" + _TWO_PARTIES(dealer, holder))


class ShareHasher:
    """Computes public hashes of shares under one transcript: H("share", transcript, kind, dealer, holder, share).

    A hash reveals nothing of a uniform share. If a share is wrong, its hash shows whether the dealer or the holder is
    at fault. The common beginning is hashed once.
    """

    __slots__ = ("_begun",)

    def __init__(self, transcript: bytes) -> None:
        self._begun = {
            share_kind: sha256(encode("share", (transcript, share_kind))) for share_kind in ("self", "mask", "pair")
        }

    def one(self, kind: str, dealer: int, holder: int, share: bytes) -> bytes:
        """Returns the 32-byte hash of one share; ``kind`` is "self" or "mask", or "pair" for the secret of a pair."""
        hasher = self._begun[kind].copy()
        hasher.update(_SHARE_FIELDS(8, dealer, 8, holder, len(share)) + share)
        return hasher.digest()

    def both(self, dealer: int, holder: int, self_share: bytes, mask_share: bytes) -> bytes:
        """Returns the hashes of a holder's two shares (33 bytes each) side by side, 64 bytes."""
        share_fields = _SHARE_FIELDS(8, dealer, 8, holder, SHARE_BYTES)
        self_hash = self._begun["self"].copy()
        mask_hash = self._begun["mask"].copy()
        self_hash.update(share_fields + self_share)
        mask_hash.update(share_fields + mask_share)
        return self_hash.digest() + mask_hash.digest()


# Packs the fields as ``sid.encode`` does: each after its length.
_SHARE_FIELDS = struct.Struct("<5Q").pack


def seal(key: bytes, transcript: bytes, dealer: int, holder: int, plain: bytes, public: bytes) -> bytes:
    """Encrypts one dealer's shares for one holder with AES-256-GCM.

    The associated data are sid', dealer, holder and ``public``.

    Args:
        plain: the shares.
        public: the ML-KEM ciphertext, if channels are post-quantum, and the hashes of ``plain``, which travel in
            clear; of fixed length in an attempt.
    """
    return AESGCM(key).encrypt(_NONCE, plain, transcript + _TWO_PARTIES(dealer, holder) + public)


def unseal(key: bytes, transcript: bytes, dealer: int, holder: int, sealed: bytes, public: bytes) -> bytes | None:
    """Decrypts what :func:`seal` returned; None if the ciphertext or its associated data were changed."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, transcript + _TWO_PARTIES(dealer, holder) + public)
    except InvalidTag:
        return None


def self_mask_commitment(sid: bytes, party: int, seed: bytes) -> bytes:
    """Returns the commitment (32 bytes) to a party's self-mask seed b_i, a hash bound to the attempt and the party."""
    return digest("self mask", sid, party, seed)


def _encode_statement(sid: bytes, stage: int, party: int, body_digest: bytes) -> bytes:
    """Returns what a signature covers, ``encode("reply", (VERSION, sid, party, stage, body_digest))``."""
    return _REPLY + _REPLY_FIELDS(8, VERSION, 32, sid, 8, party, 8, stage, 32, body_digest)


# Packs the fields as ``sid.encode`` does, but faster, because a party checks the statements of all survivors.
_REPLY = encode("reply", ())
_REPLY_FIELDS = struct.Struct("<QQQ32sQQQQQ32s").pack


@lru_cache(maxsize=1 << 14)
def verified(key: bytes, statement: bytes, signature: bytes) -> None:
    """Raises InvalidSignature unless the Ed25519 signature of ``statement`` is valid; ValueError for a low-order key.

    Only successes are cached, because many simulated parties in one process read the same adverts.
    """
    _read_identity(key).verify(signature, statement)


def check_identity(key: bytes) -> None:
    """Raises ValueError unless ``key`` is a canonical Ed25519 public key that is not of low order.

    Anybody can make signatures that verify under a key of low order.
    """
    y_coordinate = int.from_bytes(key, "little") & (2**255 - 1)
    if len(key) != KEY_BYTES or y_coordinate >= _FIELD or y_coordinate in _LOW_ORDER_IDENTITIES:
        raise ValueError("no Ed25519 public key of large order")


@lru_cache(maxsize=1 << 11)
def _read_identity(key: bytes) -> Ed25519PublicKey:
    """Returns a checked Ed25519 key, cached for all signatures of a run."""
    check_identity(key)
    return Ed25519PublicKey.from_public_bytes(key)


def sign(identity: Ed25519PrivateKey, sid: bytes, stage: int, party: int, body_digest: bytes) -> bytes:
    """Signs a reply: the SHA-256 of its body together with sid, stage and party. 64 bytes, deterministic (RFC 8032)."""
    return identity.sign(_encode_statement(sid, stage, party, body_digest))


def check_signature(
    key: bytes, name: str, sid: bytes, stage: int, party: int, body: bytes, signature: bytes, subject: str
) -> None:
    """Raises PeerFault that names ``name`` unless ``signature`` is by ``key`` on exactly this reply (:func:`sign`).

    Args:
        subject: name of the statement in the error.
    """
    try:
        verified(key, _encode_statement(sid, stage, party, body_hash(body)), signature)
    except (InvalidSignature, ValueError):
        raise PeerFault(
            name,
            f"{subject} does not carry its enrolled identity's signature",
            "check its enrolment and its keys",
            code="forged-statement",
        ) from None


# ML-KEM-768 (FIPS 203) beside X25519: keys from a seed, hashes of keys, and encapsulation.
# Recorded traffic must not be opened by a quantum computer later, so what X25519 agrees on is joined with what ML-KEM
# encapsulates, and both must be broken. Encapsulation draws its own randomness. So a party takes it as an argument, as
# it takes its entropy: production passes the library's, tests pass a recording.

KEM_KEY_BYTES = 1184
CIPHERTEXT_BYTES = 1088

Encapsulate = Callable[[bytes], tuple[bytes, bytes]]
"""Public key of 1184 bytes -> (secret of 32 bytes, ciphertext of 1088 bytes); ValueError for a malformed key."""


def encapsulate(kem_key: bytes) -> tuple[bytes, bytes]:
    """Encapsulates a fresh secret to an ML-KEM-768 public key (1184 bytes): (secret of 32 bytes, ciphertext of 1088).

    Raises ValueError for a malformed key.
    """
    return MLKEM768PublicKey.from_public_bytes(kem_key).encapsulate()


class KemSecretKey:
    """The ML-KEM-768 secret key of a 32-byte seed: d || z = HKDF-SHA256(seed, "ml-kem-768"), 64 bytes."""

    __slots__ = ("_secret",)

    def __init__(self, seed: bytes) -> None:
        expanded_seed = HKDF(SHA256(), length=64, salt=None, info=b"ml-kem-768").derive(seed)
        self._secret = MLKEM768PrivateKey.from_seed_bytes(expanded_seed)

    def __repr__(self) -> str:
        return "KemSecretKey(ML-KEM-768)"

    @property
    def public(self) -> bytes:
        """The public key, 1184 bytes."""
        return self._secret.public_key().public_bytes_raw()

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Returns the encapsulated secret, 32 bytes.

        A false ciphertext of 1088 bytes gives other bytes and no error (implicit rejection).
        """
        return self._secret.decapsulate(ciphertext)


def kem_key_hash(kem_key: bytes) -> bytes:
    """Returns the hash (32 bytes) of an ML-KEM-768 public key, which the party's advert carries.

    It does not depend on the party, so that copied keys are found.
    """
    return digest("ml-kem-768 key", kem_key)


def check_kem_key(party: str, kem_key: bytes, expected: bytes) -> None:
    """Raises PeerFault that names ``party`` unless ``kem_key`` is a canonical ML-KEM-768 key with hash ``expected``.

    The party has signed that hash in its advert.
    """
    if kem_key_hash(kem_key) != expected:
        raise PeerFault(party, "sent another ML-KEM-768 key than the one whose hash it signed")
    try:
        MLKEM768PublicKey.from_public_bytes(kem_key)
    except ValueError:
        raise malformed(party) from None


def malformed(party: str) -> PeerFault:
    """Returns the error for a party whose ML-KEM-768 key is not canonical (FIPS 203, section 7.2)."""
    remedy = "it must make fresh keys with a correct program"
    return PeerFault(party, "advertised a malformed ML-KEM-768 key", remedy, code="malformed-key")
