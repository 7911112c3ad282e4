"""The names that bind every message to one attempt of one private sum: sid, terms, sid', transcript.

Every hash is SHA-256 over a label and length-prefixed fields, so no two different inputs have the same encoding.
"""

import hashlib
import struct
from collections.abc import Iterable
from functools import cache

VERSION = 3
DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q").pack
_INTEGER = _LENGTH(8)

Field = bytes | str | int


def encode(label: str, fields: Iterable[Field]) -> bytes:
    """The one encoding under all hashes and signatures: label and fields, each behind its 8-byte length.

    Integers are 8 bytes little-endian, strings UTF-8.

    >>> encode("a", [b"b", 1]) == b"".join(
    ...     len(part).to_bytes(8, "little") + part for part in (b"undersong/secagg/a", b"b", (1).to_bytes(8, "little"))
    ... )
    True
    """
    parts = [_labelled(label)]
    for field in fields:
        if isinstance(field, int):
            parts += (_INTEGER, _LENGTH(field))
            continue
        if isinstance(field, str):
            field = field.encode()
        parts += (_LENGTH(len(field)), field)
    return b"".join(parts)


@cache
def _labelled(label: str) -> bytes:
    name = f"undersong/secagg/{label}".encode()
    return _LENGTH(len(name)) + name


def digest(label: str, *fields: Field) -> bytes:
    """SHA-256 of :func:`encode`, 32 bytes."""
    return hashlib.sha256(encode(label, fields)).digest()


def sid(run: str, query: str, attempt: int, manifest_hash: bytes) -> bytes:
    """sid = H(version, run, query, attempt, H(manifest)) (docs/secagg.md, "Names")."""
    return digest("sid", VERSION, run, query, attempt, manifest_hash)


def adverts_hash(sid: bytes, terms: bytes, adverts: Iterable[tuple[int, bytes]]) -> bytes:
    """sid' = H(sid, sorted adverts): the signed bodies, ascending by roster index (docs/secagg.md, "Names")."""
    fields: list[Field] = [sid, terms]
    for party, body in sorted(adverts):
        fields += [party, body]
    return digest("adverts", *fields)


def roll_hash(adverts: bytes, roll: int, present: bytes) -> bytes:
    """The hash that binds the nonces of one roll: to sid', the roll's number and who was asked (a bitmap)."""
    return digest("roll", adverts, roll, present)


def advance(value: bytes, steps: int) -> bytes:
    """``steps`` further along a nonce chain: each commitment is the hash of the nonce that opens it."""
    for _ in range(steps):
        value = digest("nonce", value)
    return value


def opened_set(transcript: bytes, question: bytes, sharers: bytes, survivors: bytes) -> bytes:
    """The digest that step 3 signs, H(sid', q, U2, U3): views of the public inputs and of both sets must agree."""
    return digest("opened", transcript, question, sharers, survivors)


def body_hash(data: bytes | bytearray) -> bytes:
    """SHA-256 of a reply's body, the part of a signature's message that may be megabytes long."""
    return hashlib.sha256(data).digest()
