"""The interface between private sums and whatever carries their messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

Key = TypeVar("Key")
Value = TypeVar("Value")


class Transport(Protocol):
    """Delivers one request to each named party and brings back the replies that came in time.

    A transport only delivers: it neither reads nor changes the bytes (protocol.codec). A party that does not answer
    is left out of the result. Sending the same bytes again is always safe.
    """

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...


@runtime_checkable
class BatchTransport(Protocol):
    """A transport of expensive messages: one message carries several requests, which are answered in order."""

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """As many replies from each party as it got requests; a party that did not answer is left out."""
        ...


class Lazily(Mapping[Key, Value]):
    """A mapping whose values are made each time they are read: a thousand requests need not lie in memory at once."""

    def __init__(self, keys: Collection[Key], make: Callable[[Key], Value]) -> None:
        self._keys = keys
        self._make = make

    def __getitem__(self, key: Key) -> Value:
        if key not in self._keys:
            raise KeyError(key)
        return self._make(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
