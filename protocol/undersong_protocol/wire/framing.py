"""Cuts messages into frames and reassembles them after any interruption, without I/O; both ends use it.

A message travels as one ``Transfer`` frame and, above CHUNK_BYTES, as chunks that are named by the SHA-256 of the
whole. A receiver keeps the chunks of an interrupted message after the stream ends. It lists them in its first frame on
the next stream (``held``), and the sender leaves them out.
"""

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from undersong_common.errors import ConfigurationError, PeerFault
from undersong_protocol.wire.messages import transport_pb2 as wire

VERSION = 1
SERVICE = "undersong.transport.Federation"
CLOCK_METADATA = "undersong-clock"  # seconds since the epoch, beside the answer to a health check
METHOD = f"/{SERVICE}/Connect"
CHUNK_BYTES = 256 * 2**10
MAX_FRAME_BYTES = CHUNK_BYTES + 4096  # gRPC's largest message at both ends
LONGEST_QUEUE = 10_000  # largest number of frames that a peer was sent and has not read
MAX_HELD_PARTS = 64
MAX_IDS = 8  # largest number of ids under which one content may be announced
LARGEST_INFLATION = 64  # bytes of a message per compressed byte; a message that shrinks more is sent uncompressed
SMALL_BYTES = 2**20  # A message up to this size may exceed LARGEST_INFLATION.
ID_BYTES = 16
CONTENT_BYTES = 32  # length of the SHA-256 that names a message

_SAMPLE_WINDOW_BITS = 12
_SAMPLE_BYTES = 1 << _SAMPLE_WINDOW_BITS
_WORTH_DEFLATING = 0.9  # largest size of a deflated sample, divided by its size before
# A sample is even if its equal pairs of bytes are at most so many times those of perfectly even bytes. ML-KEM keys,
# whose bytes come from numbers below 3 329, have 1.05.
_EVEN = 1.07


def flow_control(unread_bytes: int) -> list[tuple[str, int]]:
    """Returns gRPC options for a stream on which the peer may send ``unread_bytes`` before they are read.

    A fixed number avoids that gRPC measures the path with pings, each of which wakes both ends.
    """
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", unread_bytes)]


@dataclass(frozen=True)
class FrameLimits:
    """Limits on what a receiver accepts from one peer.

    Attributes:
        message_bytes: largest size of one message, both on the wire and inflated.
        held_bytes: largest total size of all unfinished messages; beyond it the least recently used one is dropped.
    """

    message_bytes: int = 128 * 2**20
    held_bytes: int = 256 * 2**20

    def reply_bytes(self, planned: int | None) -> int:
        """Returns the largest size of one reply in bytes.

        Args:
            planned: bound on a reply from the run's plan (``Plan.largest_reply_bytes``); None if no plan is known.
        """
        if planned is None:
            return self.message_bytes
        return min(planned, self.message_bytes)


@dataclass(frozen=True)
class Envelope:
    """One whole message with its id. ``repr`` hides the content."""

    id: bytes
    data: bytes = field(repr=False)


class Arrived:
    """A message that has arrived completely but is not yet joined, checked or inflated; :meth:`open` does that.

    Attributes:
        ids: all ids (16 bytes) under which the message was announced.
        plain_size: announced number of bytes after inflation.
    """

    def __init__(self, peer: str, ids: Sequence[bytes], announced: "_Announced", pieces: Sequence[bytes]) -> None:
        self.ids = tuple(ids)
        self.plain_size = announced.plain_size
        self._peer = peer
        self._announced = announced
        self._pieces = pieces

    def __repr__(self) -> str:
        return f"Arrived({self.plain_size} bytes)"

    def open(self) -> bytes:
        """Returns the content of the message, in time and memory proportional to ``plain_size``.

        Raises:
            PeerFault: the hash or the compression is wrong.
        """
        if len(self._pieces) == 1:
            body = self._pieces[0]
        else:
            body = b"".join(self._pieces)
        if hashlib.sha256(body).digest() != self._announced.content_hash:
            # Every chunk of the message is suspect: none is kept, so that all of them are sent again.
            raise _transfer_fault(self._peer, "sent a message whose bytes are not those it announced", "other-bytes")
        if self._announced.deflated:
            return _inflate_body(self._peer, body, self.plain_size)
        return body


Frame = wire.Transfer | wire.Chunk


class Outgoing:
    """A message to send, compressed if that helps; after a reconnect the same object sends the missing chunks.

    Args:
        id: 16 bytes.
        data: the message.

    Raises:
        ConfigurationError: ``id`` has another length.
    """

    def __init__(self, id: bytes, data: bytes) -> None:
        if len(id) != ID_BYTES:
            raise ConfigurationError(f"a transfer's id has {ID_BYTES} bytes, not {len(id)}")
        self.id = id
        self._plain_size = len(data)
        self._body, self._deflated = _pack_body(data)
        self.content = hashlib.sha256(self._body).digest()

    def __repr__(self) -> str:
        return f"Outgoing({self.id.hex()}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """Number of bytes on the wire, after compression."""
        return len(self._body)

    def under(self, id: bytes) -> "Outgoing":
        """Returns the same message under another id, for another peer, without hashing or compressing it again."""
        sent_transfer = Outgoing.__new__(Outgoing)
        vars(sent_transfer).update(vars(self), id=id)
        return sent_transfer

    def frames(self, held_chunks: Mapping[bytes, bytes] | None = None) -> Iterator[Frame]:
        """Yields the transfer frame and the chunks that the receiver does not hold.

        Args:
            held_chunks: bitmap of the chunks that the receiver holds, by the message's SHA-256 (:func:`held_by`).
        """
        is_one_frame = self.size <= CHUNK_BYTES
        yield wire.Transfer(
            id=self.id,
            content=self.content,
            size=self.size,
            plain_size=self._plain_size,
            deflated=self._deflated,
            whole=self._body if is_one_frame else b"",
        )
        if is_one_frame:
            return
        bitmap = (held_chunks or {}).get(self.content, b"")
        body_view = memoryview(self._body)
        for index in range(_chunk_count(self.size)):
            if not _has_chunk(bitmap, index):
                chunk_start = index * CHUNK_BYTES
                yield wire.Chunk(
                    content=self.content, index=index, data=bytes(body_view[chunk_start : chunk_start + CHUNK_BYTES])
                )


def held_by(statements: Sequence[wire.Held]) -> dict[bytes, bytes]:
    """Returns the chunks of each content that a peer holds already, by the content's hash; ignores excess entries.

    Args:
        statements: the ``held`` list of the peer's first frame.
    """
    return {
        held_part.content: held_part.chunks
        for held_part in list(statements)[:MAX_HELD_PARTS]
        if len(held_part.content) == 32
    }


class SharedRoom:
    """Limits the memory for unfinished messages of several peers together.

    Beyond ``largest_bytes`` the peer with the most bytes loses its oldest message, so that no peer displaces others.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._members: list[Reassembler] = []

    @property
    def held_bytes(self) -> int:
        return sum(member.held_bytes for member in self._members)

    def join(self, member: "Reassembler") -> None:
        self._members.append(member)

    def make(self) -> None:
        """Drops unfinished messages until the rest fits into the limit."""
        while self.held_bytes > self._largest_bytes:
            max(self._members, key=lambda member: member.held_bytes).drop_oldest()


class Reassembler:
    """Reassembles the messages of one peer from frames, over one stream after the other.

    Args:
        peer: name of the peer in errors.
        limits: largest sizes that the peer may send.
        room: memory limit that several peers' reassemblers share.
    """

    def __init__(self, peer: str, limits: FrameLimits | None = None, room: SharedRoom | None = None) -> None:
        self._peer = peer
        self._limits = limits or FrameLimits()
        self._parts: dict[bytes, _Part] = {}  # incomplete messages by content hash, least recently touched first
        self._declined: dict[bytes, None] = {}  # hashes of contents whose chunks still arrive and are dropped
        self._room = room
        self.held_bytes = 0  # payload of all messages that are not whole
        if room is not None:
            room.join(self)

    def __repr__(self) -> str:
        return f"Reassembler({self._peer!r}, {len(self._parts)} in part)"

    def held(self) -> list[wire.Held]:
        """Lists the chunks that this receiver holds of unfinished messages, for the first frame of a new stream."""
        newest_parts = list(self._parts.items())[-MAX_HELD_PARTS:]
        return [
            wire.Held(content=content_hash, chunks=bytes(partial_body.bitmap))
            for content_hash, partial_body in newest_parts
            if partial_body.count_held
        ]

    def transfer(self, frame: wire.Transfer, *, largest_bytes: int | None = None) -> Arrived | None:
        """Takes the first frame of a message; returns the message if it is complete already, else None.

        Args:
            largest_bytes: largest size of this message; None takes the limit of any message.

        Raises:
            PeerFault: a size is not allowed, or the same content was announced with other sizes.
        """
        announced_body = self._read_announcement(frame, largest_bytes)
        if frame.size <= CHUNK_BYTES:
            if len(frame.whole) != frame.size:
                raise self._transfer_fault("sent a message whose bytes are not those it announced", "other-bytes")
            return Arrived(self._peer, [frame.id], announced_body, [frame.whole])
        if frame.whole:
            raise self._transfer_fault(
                f"sent a message of {frame.size} bytes in one frame; {CHUNK_BYTES} are allowed", "long-frame"
            )
        partial_body = self._parts.pop(frame.content, None)
        if partial_body is not None and partial_body.announced != announced_body:
            self.held_bytes -= partial_body.held_bytes
            if partial_body.ids:
                raise self._transfer_fault("announced one message with two different sizes", "announced-twice")
            partial_body = None
        partial_body = partial_body or _Part(announced_body)
        self._parts[frame.content] = partial_body
        partial_body.ids[frame.id] = None
        if len(partial_body.ids) > MAX_IDS:
            raise self._transfer_fault("announced one message under too many ids", "too-many-ids")
        self._declined.pop(frame.content, None)
        self._make_room(frame.content)
        return self._take_if_finished(frame.content, partial_body)

    def decline(self, frame: wire.Transfer) -> None:
        """Takes the first frame of a message that is not wanted, and discards its chunks.

        Raises PeerFault as :meth:`transfer`.
        """
        self._read_announcement(frame, None)
        partial_body = self._parts.get(frame.content)
        if frame.size > CHUNK_BYTES and (partial_body is None or not partial_body.ids):
            if partial_body is not None:
                # An earlier stream brought some of its chunks, when somebody still waited for it.
                self._drop_message(frame.content)
            self._declined[frame.content] = None
            while len(self._declined) > MAX_HELD_PARTS:
                del self._declined[next(iter(self._declined))]

    def chunk(self, frame: wire.Chunk) -> Arrived | None:
        """Takes one chunk; returns the message if this chunk completes it, else None.

        Raises:
            PeerFault: the chunk belongs to no announced message, or has a wrong length or place.
        """
        if frame.content in self._declined:
            return None
        partial_body = self._parts.pop(frame.content, None)
        if partial_body is None or not partial_body.ids:
            raise self._transfer_fault("sent a chunk of a message that it did not announce", "unannounced")
        self._parts[frame.content] = partial_body
        if frame.index >= partial_body.count or len(frame.data) != partial_body.length(frame.index):
            raise self._transfer_fault(
                f"sent chunk {frame.index} of {partial_body.count} with {len(frame.data)} bytes: no such chunk has that"
                " length",
                "wrong-chunk",
            )
        self.held_bytes += partial_body.put(frame.index, frame.data)
        if self._room is not None:
            self._room.make()
        return self._take_if_finished(frame.content, partial_body)

    def new_stream(self) -> None:
        """Begins a new stream: forgets the announcements of the old one and keeps its chunks."""
        self._declined.clear()
        for partial_body in self._parts.values():
            partial_body.ids.clear()

    def drop_oldest(self) -> None:
        """Drops the unfinished message that was used least recently."""
        self._drop_message(next(iter(self._parts)))

    def _read_announcement(self, frame: wire.Transfer, largest_bytes: int | None) -> "_Announced":
        if len(frame.id) != ID_BYTES or len(frame.content) != CONTENT_BYTES:
            raise self._transfer_fault("sent a transfer without an id or a content hash", "no-id")
        body_bytes = frame.size
        plain_size = frame.plain_size
        if largest_bytes is None:
            allowed_bytes = self._limits.message_bytes
        else:
            allowed_bytes = largest_bytes
        if max(body_bytes, plain_size) > allowed_bytes:
            raise self._transfer_fault(
                f"announced a message of {max(body_bytes, plain_size)} bytes; {allowed_bytes} are allowed", "too-large"
            )
        if not frame.deflated and body_bytes != plain_size:
            raise self._transfer_fault("announced two sizes for a message that is not compressed", "two-sizes")
        if plain_size > max(SMALL_BYTES, LARGEST_INFLATION * body_bytes):
            raise self._transfer_fault(
                f"announced a message that inflates to more than {LARGEST_INFLATION} times its size",
                "inflates-too-much",
            )
        return _Announced(frame.content, body_bytes, plain_size, frame.deflated)

    def _take_if_finished(self, content_hash: bytes, part: "_Part") -> Arrived | None:
        if part.count_held < part.count or self._parts.get(content_hash) is not part:
            return None
        self._drop_message(content_hash)
        return Arrived(self._peer, list(part.ids), part.announced, part.pieces())

    def _drop_message(self, content_hash: bytes) -> None:
        self.held_bytes -= self._parts.pop(content_hash).held_bytes

    def _make_room(self, kept_hash: bytes) -> None:
        # A message counts with the size that was announced, so that a peer cannot announce more than may be held.
        claimed_bytes = sum(part.announced.size for part in self._parts.values())
        for content_hash in [content_hash for content_hash in self._parts if content_hash != kept_hash]:
            if claimed_bytes <= self._limits.held_bytes and len(self._parts) <= MAX_HELD_PARTS:
                return
            claimed_bytes -= self._parts[content_hash].announced.size
            self._drop_message(content_hash)

    def _transfer_fault(self, problem: str, code: str) -> PeerFault:
        return _transfer_fault(self._peer, problem, code)


@dataclass(frozen=True)
class _Announced:
    """The header of a message, as its transfer frames announce it; equal under each of the message's ids."""

    content_hash: bytes
    size: int
    plain_size: int
    deflated: bool


class _Part:
    """The chunks of a message that has not arrived completely."""

    def __init__(self, announced: _Announced) -> None:
        self.announced = announced
        self.ids: dict[bytes, None] = {}  # ids under which the message was announced in this stream
        self.count = _chunk_count(announced.size)
        self.count_held = 0
        self.held_bytes = 0
        self.bitmap = bytearray((self.count + 7) // 8)
        self._chunks: dict[int, bytes] = {}

    def length(self, index: int) -> int:
        return min(CHUNK_BYTES, self.announced.size - index * CHUNK_BYTES)

    def put(self, index: int, data: bytes) -> int:
        """Stores a chunk. Returns the number of bytes that were not held before: 0 for a repeated chunk."""
        if index in self._chunks:
            return 0
        self._chunks[index] = data
        self.bitmap[index // 8] |= 1 << (index % 8)
        self.count_held += 1
        self.held_bytes += len(data)
        return len(data)

    def pieces(self) -> list[bytes]:
        return [self._chunks[index] for index in range(self.count)]


def _transfer_fault(peer: str, problem: str, code: str) -> PeerFault:
    return PeerFault(peer, problem, "run the same version of Undersong at both ends", code=code)


def _inflate_body(peer: str, body: bytes, plain_size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain_bytes = inflater.decompress(body, plain_size) if plain_size else b""
        excess_bytes = b""
        if not inflater.eof:
            excess_bytes = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        raise _transfer_fault(peer, "sent a deflated message that does not inflate", "not-deflated") from None
    if len(plain_bytes) != plain_size or excess_bytes or not inflater.eof or inflater.unused_data:
        raise _transfer_fault(peer, "sent a deflated message of another size than it announced", "other-size")
    return plain_bytes


def worth_deflating(data: bytes) -> bool:
    """Returns True if compression shrinks a sample from the middle; masked vectors and packed blocks do not shrink."""
    if len(data) < 512:
        return False
    sample_start = max(0, len(data) // 2 - _SAMPLE_BYTES // 2)
    middle_bytes = data[sample_start : sample_start + _SAMPLE_BYTES]
    if _is_even(middle_bytes):
        return False
    # The window is as long as the sample and the tables are small: setting up the usual ones takes longer.
    deflater = zlib.compressobj(1, zlib.DEFLATED, _SAMPLE_WINDOW_BITS, 5)
    return len(deflater.compress(middle_bytes) + deflater.flush()) <= _WORTH_DEFLATING * len(middle_bytes)


def _is_even(sample: bytes) -> bool:
    """Returns True if the bytes are spread as evenly as those of masks, ciphertexts and ML-KEM keys.

    Then no code for the bytes is shorter. Repetitions show in their counts, except copies of a whole even string.
    Counting takes a fifth of the time of deflating.
    """
    byte_counts = np.bincount(np.frombuffer(sample, dtype=np.uint8), minlength=256)
    # If all byte values are equally frequent, so many ordered pairs of bytes are equal.
    expected_pairs = len(sample) * (len(sample) - 1) / 256
    return float(byte_counts @ byte_counts) - len(sample) < _EVEN * expected_pairs


def _pack_body(data: bytes) -> tuple[bytes, bool]:
    if not worth_deflating(data):
        return data, False
    packed_bytes = zlib.compress(data, 6)
    is_allowed = len(data) <= max(SMALL_BYTES, LARGEST_INFLATION * len(packed_bytes))
    if len(packed_bytes) < len(data) and is_allowed:
        return (packed_bytes, True)
    return (data, False)


def _chunk_count(size: int) -> int:
    return -(-size // CHUNK_BYTES)


def _has_chunk(bitmap: bytes, index: int) -> bool:
    return index // 8 < len(bitmap) and bool(bitmap[index // 8] >> (index % 8) & 1)
