"""ML-KEM-768 (FIPS 203) beside X25519: keys from a seed, hashes of keys, the port of encapsulation.

Recorded traffic must not be opened by a quantum computer later, so what X25519 agrees on is joined with what ML-KEM
encapsulates, and both must be broken. Encapsulation draws its own randomness, so it is a port beside entropy:
production uses the library, tests a recording.
"""

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from undersong_common.errors import PeerFault
from undersong_protocol.secagg.sid import digest

KEY_BYTES = 1184
CIPHERTEXT_BYTES = 1088

Encapsulate = Callable[[bytes], tuple[bytes, bytes]]
"""Public key of 1184 bytes -> (secret of 32 bytes, ciphertext of 1088 bytes); ValueError for a malformed key."""


def encapsulate(public: bytes) -> tuple[bytes, bytes]:
    """The library's, with the operating system's randomness: see ``Encapsulate``."""
    return MLKEM768PublicKey.from_public_bytes(public).encapsulate()


class SecretKey:
    """The ML-KEM-768 key of a 32-byte seed: d || z = HKDF-SHA256(seed, "ml-kem-768"), 64 bytes; shows nothing."""

    __slots__ = ("_secret",)

    def __init__(self, seed: bytes) -> None:
        expanded = HKDF(SHA256(), length=64, salt=None, info=b"ml-kem-768").derive(seed)
        self._secret = MLKEM768PrivateKey.from_seed_bytes(expanded)

    def __repr__(self) -> str:
        return "SecretKey(ML-KEM-768)"

    @property
    def public(self) -> bytes:
        """1184 bytes."""
        return self._secret.public_key().public_bytes_raw()

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """32 bytes. A false ciphertext of 1088 bytes gives other bytes and no error (implicit rejection)."""
        return self._secret.decapsulate(ciphertext)


def key_hash(public: bytes) -> bytes:
    """The hash of a key that an advert carries. Equal keys of two parties have equal hashes, so copies are found."""
    return digest("ml-kem-768 key", public)


def check_key(party: str, public: bytes, expected: bytes) -> None:
    """Raise PeerFault naming ``party`` unless ``public`` is a canonical key of the hash that it signed."""
    if key_hash(public) != expected:
        raise PeerFault(party, "sent another ML-KEM-768 key than the one whose hash it signed")
    try:
        MLKEM768PublicKey.from_public_bytes(public)
    except ValueError:
        raise malformed(party) from None


def malformed(party: str) -> PeerFault:
    """The fault of a key that is not canonical (FIPS 203, section 7.2)."""
    remedy = "it must make fresh keys with a correct program"
    return PeerFault(party, "advertised a malformed ML-KEM-768 key", remedy, code="malformed-key")
