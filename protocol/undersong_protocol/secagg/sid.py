"""Hashes that bind every message to one attempt at one private sum: session id (sid), terms, sid' and transcript.

Every hash is SHA-256 over a label and length-prefixed fields, so no two different inputs have the same encoding.
"""

import hashlib
import struct
from collections.abc import Iterable
from functools import cache

VERSION = 3
DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q").pack
_INTEGER = _LENGTH(8)  # the length that precedes an integer field

Field = bytes | str | int


def encode(label: str, fields: Iterable[Field]) -> bytes:
    """Returns the bytes under all hashes and signatures: label and fields, each preceded by its 8-byte length.

    Integers are 8 bytes little-endian, strings UTF-8.

    >>> encode("a", [b"b", 1]) == b"".join(
    ...     len(part).to_bytes(8, "little") + part for part in (b"undersong/secagg/a", b"b", (1).to_bytes(8, "little"))
    ... )
    True
    """
    encoded_parts = [_encode_label(label)]
    for field in fields:
        if isinstance(field, int):
            encoded_parts += (_INTEGER, _LENGTH(field))
            continue
        if isinstance(field, str):
            field = field.encode()
        encoded_parts += (_LENGTH(len(field)), field)
    return b"".join(encoded_parts)


@cache
def _encode_label(label: str) -> bytes:
    full_label = f"undersong/secagg/{label}".encode()
    return _LENGTH(len(full_label)) + full_label


def digest(label: str, *fields: Field) -> bytes:
    """Returns the SHA-256 of :func:`encode`, 32 bytes."""
    return hashlib.sha256(encode(label, fields)).digest()


def sid(run: str, query: str, attempt: int, manifest_hash: bytes) -> bytes:
    """Returns the session id of an attempt, H(version, run, query, attempt, H(manifest)) (docs/secagg.md, "Names")."""
    return digest("sid", VERSION, run, query, attempt, manifest_hash)


def adverts_hash(sid: bytes, terms: bytes, adverts: Iterable[tuple[int, bytes]]) -> bytes:
    """Returns sid', 32 bytes, the hash of sid, terms and all signed adverts (docs/secagg.md, "Names").

    Args:
        adverts: (roster index, body), ascending.
    """
    advert_fields: list[Field] = [sid, terms]
    for party, body in sorted(adverts):
        advert_fields += [party, body]
    return digest("adverts", *advert_fields)


def rooted_hash(sid: bytes, terms: bytes, root: bytes, present: bytes) -> bytes:
    """Returns sid' of a Merkle graph, 32 bytes: H(sid, terms, root of all adverts, bitmap of who advertised)."""
    return digest("rooted adverts", sid, terms, root, present)


def roll_hash(adverts: bytes, roll_number: int, present: bytes) -> bytes:
    """Returns the hash (32 bytes) to which the nonces of one roll, a try at the joint permutation, are bound.

    Args:
        adverts: sid'.
        present: bitmap of the parties that were asked.
    """
    return digest("roll", adverts, roll_number, present)


def advance(nonce: bytes, step_count: int) -> bytes:
    """Hashes ``nonce`` ``step_count`` times, along a nonce chain in which each nonce's hash is the commitment to it."""
    for _ in range(step_count):
        nonce = digest("nonce", nonce)
    return nonce


def opened_set(transcript: bytes, question: bytes, sharers: bytes, survivors: bytes) -> bytes:
    """Returns the digest that parties sign in step 3, H(sid', q, U2, U3), so that all agree on inputs and survivors."""
    return digest("opened", transcript, question, sharers, survivors)


def masked_among(question: bytes, sharers: bytes) -> bytes:
    """Returns what a pairwise mask of the Merkle graph is bound to in place of q, 32 bytes: H(q, U2).

    So masks between two parties that were shown different U2 do not cancel.
    """
    return digest("masked among", question, sharers)


def body_hash(data: bytes | bytearray) -> bytes:
    """Returns the SHA-256 of a reply's body, which is signed in place of the body."""
    return hashlib.sha256(data).digest()
