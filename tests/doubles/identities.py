"""Ed25519 identities by number, the same in every test."""

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make_identity(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"identity {number}".encode()).digest())


def public_identity(number: int) -> bytes:
    return make_identity(number).public_key().public_bytes_raw()
