"""The seam between the federation's driver and whatever carries its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


class Transport(Protocol):
    """Delivers one request to each named party and brings back the replies that came in time.

    A transport only delivers: it neither reads nor changes the bytes (protocol/codec.py). A party that does not answer
    is left out of the result. Sending the same bytes again is always safe.
    """

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...


@runtime_checkable
class BatchTransport(Protocol):
    """A transport whose every message is dear: one message carries several requests, which are answered in order."""

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """As many replies from each party as it got requests; a party that did not answer is left out."""
        ...
