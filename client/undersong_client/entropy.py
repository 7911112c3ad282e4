"""A party's source of random bytes."""

from __future__ import annotations

import os
from collections.abc import Callable

from undersong_common.canonical import tagged_hash
from undersong_common.privacy.stream import KeyStream
from undersong_protocol.secagg.parameters import Entropy


def from_system(_purpose: str) -> Entropy:
    """The operating system's generator: the only source of a run that means anything."""
    return os.urandom


def insecure(seed: int, party: str) -> Callable[[str], Entropy]:
    """Reproducible bytes for tests: whoever knows ``seed`` removes every mask and all noise.

    Each purpose has its own stream, so that a continued run draws the same bytes in whatever order it asks.
    """

    def for_purpose(purpose: str) -> Entropy:
        return KeyStream(tagged_hash("insecure noise seed", str(seed).encode(), party.encode(), purpose.encode())).read

    return for_purpose
