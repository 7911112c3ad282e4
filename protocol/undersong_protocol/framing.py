"""Messages in frames: cut, sent once, put together again after any interruption (sans-IO; both ends use it).

A message travels as one ``Transfer`` and, above CHUNK_BYTES, as chunks that are named by the SHA-256 of the whole. What
a receiver holds of an interrupted message survives the stream: it says so in its first frame (``held``), and the sender
leaves those chunks out.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from undersong_common.errors import ConfigurationError, PeerFault
from undersong_protocol.messages import transport_pb2 as wire

VERSION = 1
SERVICE = "undersong.transport.Federation"
CLOCK_METADATA = "undersong-clock"  # seconds since the epoch, beside the answer to a health check
METHOD = f"/{SERVICE}/Connect"
CHUNK_BYTES = 256 * 2**10
MAX_FRAME_BYTES = CHUNK_BYTES + 4096  # gRPC's largest message at both ends
MAX_HELD_PARTS = 64
ID_BYTES = 16
CONTENT_BYTES = 32

_SAMPLE_BYTES = 4096
_WORTH_DEFLATING = 0.9


@dataclass(frozen=True)
class Limits:
    """What a receiver allows one peer.

    Attributes:
        message_bytes: of one message, on the wire and inflated.
        held_bytes: of all messages that arrived in part; the least recently touched ones are dropped beyond it.
    """

    message_bytes: int = 256 * 2**20
    held_bytes: int = 512 * 2**20


@dataclass(frozen=True)
class Envelope:
    """One whole message: what a receiver hands on and what a sender cuts. ``repr`` shows no content."""

    id: bytes
    data: bytes = field(repr=False)


Frame = wire.Transfer | wire.Chunk


class Outgoing:
    """One message on its way out; the same object sends it again after a reconnect.

    Args:
        id: 16 bytes.
        data: the message.

    Raises:
        ConfigurationError: an id of another length.
    """

    def __init__(self, id: bytes, data: bytes) -> None:
        if len(id) != ID_BYTES:
            raise ConfigurationError(f"a transfer's id has {ID_BYTES} bytes, not {len(id)}")
        self.id = id
        self._plain_size = len(data)
        self._body, self._deflated = _packed(data)
        self.content = hashlib.sha256(self._body).digest()

    def __repr__(self) -> str:
        return f"Outgoing({self.id.hex()}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """Bytes as they travel."""
        return len(self._body)

    def frames(self, held: Mapping[bytes, bytes] | None = None) -> Iterator[Frame]:
        """The transfer and the chunks that the receiver does not hold.

        Args:
            held: bitmaps of held chunks by content, as the peer's first frame stated them (``held_by``).
        """
        whole = self.size <= CHUNK_BYTES
        yield wire.Transfer(
            id=self.id,
            content=self.content,
            size=self.size,
            plain_size=self._plain_size,
            deflated=self._deflated,
            whole=self._body if whole else b"",
        )
        if whole:
            return
        bitmap = (held or {}).get(self.content, b"")
        view = memoryview(self._body)
        for index in range(_chunk_count(self.size)):
            if not _bit(bitmap, index):
                start = index * CHUNK_BYTES
                yield wire.Chunk(content=self.content, index=index, data=bytes(view[start : start + CHUNK_BYTES]))


def held_by(statements: Sequence[wire.Held]) -> dict[bytes, bytes]:
    """The peer's ``held`` as ``Outgoing.frames`` reads it; excess entries are ignored (they only cost bytes)."""
    return {part.content: part.chunks for part in list(statements)[:MAX_HELD_PARTS] if len(part.content) == 32}


class Reassembler:
    """Puts one peer's messages together; lives longer than a stream, so that nothing is sent twice.

    Args:
        peer: at whose door a malformed frame is laid.
        limits: what the peer may send.
    """

    def __init__(self, peer: str, limits: Limits | None = None) -> None:
        self._peer = peer
        self._limits = limits or Limits()
        self._parts: dict[bytes, _Part] = {}  # by content, least recently touched first

    def __repr__(self) -> str:
        return f"Reassembler({self._peer!r}, {len(self._parts)} in part)"

    @property
    def held_bytes(self) -> int:
        """Bytes of payload held of messages that are not whole."""
        return sum(part.held_bytes for part in self._parts.values())

    def held(self) -> list[wire.Held]:
        """What the first frame of a new stream states."""
        parts = list(self._parts.items())[-MAX_HELD_PARTS:]
        return [wire.Held(content=content, chunks=bytes(part.bitmap)) for content, part in parts if part.count_held]

    def transfer(self, frame: wire.Transfer) -> list[Envelope]:
        """A message begins; whole ones (one, or none yet) are returned.

        Raises:
            PeerFault: sizes, hash or encoding do not hold.
        """
        self._check(frame)
        if frame.size <= CHUNK_BYTES:
            if len(frame.whole) != frame.size or hashlib.sha256(frame.whole).digest() != frame.content:
                raise self._fault("sent a message whose bytes are not those it announced")
            return [Envelope(frame.id, self._unpacked(frame.whole, frame.deflated, frame.plain_size))]
        if frame.whole:
            raise self._fault("sent a long message in one frame")
        part = self._parts.pop(frame.content, None)
        if part is None or part.size != frame.size:
            part = _Part(frame.size)
        part.announced[frame.id] = (frame.deflated, frame.plain_size)
        if len(part.announced) > MAX_HELD_PARTS:
            raise self._fault("announced one message under too many ids")
        self._parts[frame.content] = part
        self._make_room(frame.content)
        return self._finished(frame.content, part)

    def chunk(self, frame: wire.Chunk) -> list[Envelope]:
        """One chunk; returns the messages that it completes.

        Raises:
            PeerFault: it belongs to no announced message, has a wrong length, or completes another content.
        """
        part = self._parts.pop(frame.content, None)
        if part is None or not part.announced:
            raise self._fault("sent a chunk of a message that it did not announce")
        self._parts[frame.content] = part
        if frame.index >= part.count or len(frame.data) != part.length(frame.index):
            raise self._fault("sent a chunk of a wrong length or place")
        part.put(frame.index, frame.data)
        return self._finished(frame.content, part)

    def new_stream(self) -> None:
        """A new stream begins: announcements of the old one no longer count, chunks that are held do."""
        for part in self._parts.values():
            part.announced.clear()

    def _check(self, frame: wire.Transfer) -> None:
        if len(frame.id) != ID_BYTES or len(frame.content) != CONTENT_BYTES:
            raise self._fault("sent a transfer without an id or a content hash")
        if max(frame.size, frame.plain_size) > self._limits.message_bytes:
            raise self._fault(
                f"announced a message of {max(frame.size, frame.plain_size)} bytes; {self._limits.message_bytes} are"
                " allowed"
            )
        if not frame.deflated and frame.size != frame.plain_size:
            raise self._fault("sent a message of two sizes")

    def _finished(self, content: bytes, part: _Part) -> list[Envelope]:
        if part.count_held < part.count:
            return []
        del self._parts[content]
        body = part.joined()
        if hashlib.sha256(body).digest() != content:
            # every chunk of it is suspect, so that all of them are asked for again
            raise self._fault("sent chunks that are not those of the message it announced")
        return [
            Envelope(id_, self._unpacked(body, deflated, plain_size))
            for id_, (deflated, plain_size) in part.announced.items()
        ]

    def _unpacked(self, body: bytes, deflated: bool, plain_size: int) -> bytes:
        if not deflated:
            return body
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(body, plain_size) if plain_size else b""
            rest = inflater.decompress(inflater.unconsumed_tail, 1) if not inflater.eof else b""
        except zlib.error:
            raise self._fault("sent a deflated message that does not inflate") from None
        if len(data) != plain_size or rest or not inflater.eof or inflater.unused_data:
            raise self._fault("sent a deflated message of another size than it announced")
        return data

    def _make_room(self, keep: bytes) -> None:
        # The room is claimed with the announcement: a peer cannot make us allocate by promising.
        while sum(part.size for part in self._parts.values()) > self._limits.held_bytes and len(self._parts) > 1:
            oldest = next(content for content in self._parts if content != keep)
            del self._parts[oldest]
        while len(self._parts) > MAX_HELD_PARTS:
            del self._parts[next(iter(self._parts))]

    def _fault(self, problem: str) -> PeerFault:
        return PeerFault(self._peer, problem, "run the same version of Undersong at both ends")


class _Part:
    """A message that is not whole yet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = _chunk_count(size)
        self.count_held = 0
        self.held_bytes = 0
        self.bitmap = bytearray((self.count + 7) // 8)
        self.announced: dict[bytes, tuple[bool, int]] = {}
        self._chunks: dict[int, bytes] = {}

    def length(self, index: int) -> int:
        return min(CHUNK_BYTES, self.size - index * CHUNK_BYTES)

    def put(self, index: int, data: bytes) -> None:
        if index not in self._chunks:
            self._chunks[index] = data
            self.bitmap[index // 8] |= 1 << (index % 8)
            self.count_held += 1
            self.held_bytes += len(data)

    def joined(self) -> bytes:
        return b"".join(self._chunks[index] for index in range(self.count))


def _packed(data: bytes) -> tuple[bytes, bool]:
    # Masked vectors and packed blocks do not shrink; a sample decides, so that no time is lost on them.
    if len(data) < 512:
        return data, False
    middle = max(0, len(data) // 2 - _SAMPLE_BYTES // 2)
    sample = data[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, 1)) > _WORTH_DEFLATING * len(sample):
        return data, False
    packed = zlib.compress(data, 6)
    return (packed, True) if len(packed) < len(data) else (data, False)


def _chunk_count(size: int) -> int:
    return -(-size // CHUNK_BYTES)


def _bit(bitmap: bytes, index: int) -> bool:
    return index // 8 < len(bitmap) and bool(bitmap[index // 8] >> (index % 8) & 1)
