"""Canonical JSON: one byte string per value, so that everyone hashes and signs the same bytes."""

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """Returns UTF-8 JSON with sorted keys, no spaces, and floats in their shortest round-trip form.

    Raises ValueError for NaN and infinity.

    >>> canonical_json({"b": 1, "a": [0.5, "é"]})
    b'{"a":[0.5,"\\xc3\\xa9"],"b":1}'
    """
    return _ENCODER.encode(value).encode("utf-8")


def tagged_hash(tag: str, *parts: bytes) -> bytes:
    """Returns the SHA-256 (32 bytes) over a domain tag and length-prefixed parts: no two inputs share an encoding."""
    digest = hashlib.sha256()
    for hashed_part in (tag.encode("ascii"), *parts):
        digest.update(len(hashed_part).to_bytes(8, "little"))
        digest.update(hashed_part)
    return digest.digest()
