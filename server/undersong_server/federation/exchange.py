"""Exchanges requests and replies with the parties of one run, over any transport."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import block_id
from undersong_server.database.journal import Journal

STAGE_TIMEOUT_S = 120.0  # longest wait for the replies to one request

Key = TypeVar("Key")
Value = TypeVar("Value")


class Transport(Protocol):
    """Delivers one request to each named party and brings back the replies that came in time.

    A transport only delivers: it neither reads nor changes the bytes (protocol.codec). A party that does not answer
    is left out of the result. Sending the same bytes again is always safe.
    """

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]: ...


@runtime_checkable
class BatchTransport(Transport, Protocol):
    """A transport of expensive messages: one message carries several requests, which are answered in order."""

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        """Returns a reply to each request of each party; a party that did not answer is left out."""


class Lazily(Mapping[Key, Value]):
    """A mapping whose values are made at each read, so that a thousand requests need not be in memory at once."""

    def __init__(self, keys: Collection[Key], make: Callable[[Key], Value]) -> None:
        self._makers = {maker_key: partial(make, maker_key) for maker_key in keys}

    def __getitem__(self, key: Key) -> Value:
        return self._makers[key]()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class PublicBlocks:
    """Serialised public blocks by their id, the SHA-256 of their bytes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, data: bytes) -> bytes:
        """Keeps a serialised block; returns its id, 32 bytes."""
        block_identity = block_id(data)
        self._journal.put(_block_key(block_identity), data)
        return block_identity

    def get(self, identity: bytes) -> bytes:
        """Returns the block's bytes. Raises InternalError if the block was never added."""
        block_bytes = self._journal.get(_block_key(identity))
        if block_bytes is None:
            raise InternalError(f"the public block {identity.hex()[:12]} is not in the journal", code="block-missing")
        return block_bytes

    def published(self, name: str, encode: Callable[[], bytes]) -> bytes:
        """Id of the block that was published under ``name``; the first call makes the block by ``encode``.

        A resumed run publishes the journaled bytes: an embedding computed anew, on another machine, could differ in its
        last bit.
        """
        block_identity = self._journal.get(name)
        if block_identity is None:
            block_identity = self.add(encode())
            self._journal.put(name, block_identity)
        return block_identity


def _block_key(identity: bytes) -> str:
    return f"block/{identity.hex()}"


class PartyExchange:
    """Sends requests to parties and reads their replies; a party that does not answer in time is left out."""

    def __init__(self, transport: Transport, timeout_s: float = STAGE_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._transport = transport
        self._batches = transport if isinstance(transport, BatchTransport) else None

    @property
    def is_batched(self) -> bool:
        """True if one message carries several requests."""
        return self._batches is not None

    def ask_all(self, parties: Iterable[str], **body: Any) -> dict[str, wire.Reply]:
        """Sends every party the same request; returns the replies that came."""
        request_bytes = wire.Request(version=codec.VERSION, **body).SerializeToString()
        replies = self._transport.exchange(dict.fromkeys(parties, request_bytes), timeout_s=self.timeout_s)
        return {party_name: decode(party_name, reply_bytes) for party_name, reply_bytes in replies.items()}

    def ask_each(
        self, parties: Sequence[str], write_requests: Callable[[str], Sequence[bytes]], timeout_s: float | None = None
    ) -> dict[str, list[wire.Reply]]:
        """Returns each party's replies to the requests written for it; a party that left one unanswered is left out."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        request_counts: dict[str, int] = {}

        def write_and_count(party: str) -> Sequence[bytes]:
            requests = write_requests(party)
            request_counts[party] = len(requests)
            return requests

        if self._batches is not None:
            reply_batches = self._batches.exchange_batches(Lazily(parties, write_and_count), timeout_s=timeout_s)
        else:
            reply_batches = _one_by_one(
                self._transport, {party: write_and_count(party) for party in parties}, timeout_s
            )
        decoded_replies = {
            party_name: [decode(party_name, reply) for reply in replies]
            for party_name, replies in reply_batches.items()
        }
        return {
            party_name: replies
            for party_name, replies in decoded_replies.items()
            if len(replies) == request_counts[party_name]
        }


def _one_by_one(
    transport: Transport, requests: Mapping[str, Sequence[bytes]], timeout_s: float
) -> dict[str, list[bytes]]:
    """One request per message: a party that leaves one unanswered is sent no more."""
    replies: dict[str, list[bytes]] = {party_name: [] for party_name in requests}
    for request_number in range(max(map(len, requests.values()), default=0)):
        next_requests = {
            party_name: party_requests[request_number]
            for party_name, party_requests in requests.items()
            if len(replies[party_name]) == request_number < len(party_requests)
        }
        for name, reply_bytes in transport.exchange(next_requests, timeout_s=timeout_s).items():
            replies[name].append(reply_bytes)
    return replies


def decode(party: str, data: bytes) -> wire.Reply:
    """Parses a party's reply; invalid bytes become a reply that holds a refusal and names the party."""
    try:
        return codec.decode_reply(data, party)
    except PeerFault as error:
        return codec.refusal(ConfigurationError(error.problem, error.remedy, code=error.code))


def expect(party: str, reply: wire.Reply, body: str) -> wire.Reply:
    """Returns a reply with this body. Raises the error that a refusal states, and PeerFault for any other body."""
    body_kind = reply.WhichOneof("body")
    if body_kind == "refusal":
        codec.raise_refusal(party, reply.refusal)
    if body_kind != body:
        raise PeerFault(party, f"answered with {body_kind} where {body} was due")
    return reply
