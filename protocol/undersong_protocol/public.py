"""Public data on its way to the parties: blocks named by their hash, sent once, referred to ever after."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from google.protobuf.message import DecodeError

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.canonical import tagged_hash
from undersong_common.embedding import GRID
from undersong_common.errors import PeerFault
from undersong_protocol.messages import federation_pb2 as wire
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs

LARGEST_BLOCK_BYTES = 256 * 2**20  # after decompression: a peer cannot make a party allocate more


@dataclass(frozen=True, eq=False)
class Block:
    """One immutable piece of public data.

    Attributes:
        id: SHA-256 of the serialised block, 32 bytes.
        values: float32 [n, d] quantised embeddings, or float64 of any shape, or None for texts.
        labels: int64 [n] for embeddings (index into the task's labels, -1 = none), else None.
        texts: the strings of a text block, else empty.
    """

    id: bytes
    values: Float32 | Float64 | None
    labels: Int64 | None = None
    texts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shape = len(self.texts) if self.values is None else self.values.shape
        return f"Block({self.id.hex()[:12]}, {shape})"


def encode_embeddings(embeddings: Float32, labels: Int64) -> bytes:
    """Serialised block of quantised embeddings (multiples of 1/GRID): about 10 bits a coordinate on the wire."""
    grid = np.rint(embeddings * GRID).astype("<i2")
    planes = grid.view(np.uint8).reshape(-1, 2)
    low, high = planes[:, 0].tobytes(), planes[:, 1].tobytes()
    # The low byte is noise that no compressor shortens; the high byte is nearly constant.
    packed = zlib.compress(high, 6)
    return _serialised(
        wire.Block(
            kind=wire.Block.EMBEDDINGS, shape=list(embeddings.shape), payload=low + packed, labels=labels.tolist()
        )
    )


def encode_texts(texts: Sequence[str]) -> bytes:
    """Serialised block of strings without zero bytes (vocabulary terms, keywords)."""
    joined = "".join(f"{text}\0" for text in texts).encode("utf-8")
    return _serialised(wire.Block(kind=wire.Block.TEXTS, shape=[len(texts)], payload=zlib.compress(joined, 6)))


def encode_numbers(values: Float64) -> bytes:
    """Serialised block of float64 numbers."""
    data = np.ascontiguousarray(values, dtype="<f8")
    return _serialised(wire.Block(kind=wire.Block.NUMBERS, shape=list(data.shape), payload=data.tobytes()))


def block_id(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def decode_block(data: bytes) -> Block:
    """Raises PeerFault (of the coordinator, the only one who sends blocks) for anything malformed."""
    message = wire.Block()
    try:
        message.ParseFromString(data)
        return _decoded(message, block_id(data))
    except (DecodeError, ValueError, zlib.error):
        raise PeerFault(
            "coordinator", "sent a public block that cannot be read", "run the same version everywhere"
        ) from None


def _decoded(message: wire.Block, identity: bytes) -> Block:
    shape = tuple(message.shape)
    size = int(np.prod(shape, dtype=object)) if shape else 0
    if size * 8 > LARGEST_BLOCK_BYTES:
        raise ValueError("too large")
    if message.kind == wire.Block.EMBEDDINGS:
        count, dimension = shape
        low = np.frombuffer(message.payload[:size], dtype=np.uint8)
        high = np.frombuffer(_inflate(message.payload[size:], size), dtype=np.uint8)
        grid = np.stack([low, high], axis=-1).reshape(-1).view("<i2").reshape(count, dimension)
        labels = np.asarray(message.labels, dtype=np.int64)
        if labels.shape != (count,) or labels.min(initial=0) < -1:
            raise ValueError("labels")
        values = grid.astype(np.float32) / np.float32(GRID)
        if count and float(np.einsum("nd,nd->n", values, values, dtype=np.float64).max()) > 1.0 + 1e-12:
            raise ValueError("norm")  # votes are exact only for embeddings of norm at most 1
        return Block(identity, values, labels)
    if message.kind == wire.Block.TEXTS:
        joined = _inflate(message.payload, LARGEST_BLOCK_BYTES).decode("utf-8")
        texts = tuple(joined.split("\0")[:-1])
        if shape != (len(texts),):
            raise ValueError("shape")
        return Block(identity, None, None, texts)
    if message.kind == wire.Block.NUMBERS:
        values64 = np.frombuffer(message.payload, dtype="<f8").reshape(shape).astype(np.float64)
        if not np.isfinite(values64).all():
            raise ValueError("not finite")
        return Block(identity, values64)
    raise ValueError("kind")


def _serialised(message: wire.Block) -> bytes:
    return message.SerializeToString(deterministic=True)


def _inflate(data: bytes, largest: int) -> bytes:
    inflater = zlib.decompressobj()
    result = inflater.decompress(data, largest)
    if inflater.unconsumed_tail:
        raise ValueError("too large")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("cut, or followed by something")
    return result


@dataclass(frozen=True)
class Segment:
    """Rows of one block, in order; ``rows`` None means all of them."""

    block: bytes
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Input:
    """One named public input of a statistic: the concatenation of its segments."""

    name: str
    segments: tuple[Segment, ...]

    def to_wire(self) -> wire.Input:
        return wire.Input(
            name=self.name,
            segments=[
                wire.Segment(block=segment.block, rows=segment.rows or (), all_rows=segment.rows is None)
                for segment in self.segments
            ],
        )

    @classmethod
    def from_wire(cls, message: wire.Input) -> Input:
        return cls(
            message.name,
            tuple(Segment(part.block, None if part.all_rows else tuple(part.rows)) for part in message.segments),
        )


def question(inputs: Iterable[Input]) -> bytes:
    """q, 32 bytes: the digest of a private sum's public inputs, in the order in which they are named.

    Blocks are named by the hash of their content, so q stands for every number and word of the inputs. It is in the
    seeds of the pairwise masks and in what parties sign on the survivors (docs/secagg.md).

    >>> question([Input("a", (Segment(bytes(32)),))]).hex()[:16]
    'c794b8ea541bd063'
    """
    parts: list[bytes] = []
    for given in inputs:
        parts += [given.name.encode("utf-8"), len(given.segments).to_bytes(8, "little")]
        for segment in given.segments:
            rows = b"all" if segment.rows is None else b"rows" + np.asarray(segment.rows, dtype="<u8").tobytes()
            parts += [segment.block, rows]
    return tagged_hash("undersong question", *parts)


class BlockStore(Protocol):
    """Where a party keeps the blocks it has seen."""

    def get(self, identity: bytes) -> Block | None: ...

    def add(self, data: bytes) -> Block: ...


@dataclass
class MemoryBlocks:
    """Blocks in memory; simulated parties share one, since blocks are public and named by their content."""

    _blocks: dict[bytes, Block] = field(default_factory=dict)

    def get(self, identity: bytes) -> Block | None:
        return self._blocks.get(identity)

    def add(self, data: bytes) -> Block:
        identity = block_id(data)
        known = self._blocks.get(identity)
        if known is None:
            known = self._blocks[identity] = decode_block(data)
        return known


def missing_blocks(inputs: Iterable[Input], store: BlockStore) -> list[bytes]:
    """Ids, each once and in order, that ``inputs`` refer to and ``store`` does not hold."""
    wanted = dict.fromkeys(segment.block for given in inputs for segment in given.segments)
    return [identity for identity in wanted if store.get(identity) is None]


def resolve(inputs: Iterable[Input], store: BlockStore) -> PublicInputs:
    """The inputs as a statistic reads them.

    Raises PeerFault (of the coordinator) for rows that do not exist, two inputs of one name and kind, and segments that
    do not make one array.
    """
    embeddings: dict[str, LabelledEmbeddings] = {}
    numbers: dict[str, Float64] = {}
    texts: dict[str, Sequence[str]] = {}
    for given in inputs:
        parts = list(_parts(given, store))
        values = [part.values for part in parts if part.values is not None]
        labels = [part.labels for part in parts if part.labels is not None]
        kinds = {(part.values is None, part.labels is None) for part in parts}
        # Rows of one shape, so that what is concatenated fits; a number of shape () has no rows.
        if len(kinds) != 1 or len({one.shape[1:] for one in values}) > 1 or any(not one.ndim for one in values):
            raise PeerFault("coordinator", f"publishes {given.name!r} in segments that do not make one array")
        target: Container[str] = texts if not values else embeddings if labels else numbers
        if given.name in target:
            raise PeerFault("coordinator", f"publishes {given.name!r} twice in one request")
        if not values:
            texts[given.name] = tuple(text for part in parts for text in part.texts)
        elif labels:
            embeddings[given.name] = LabelledEmbeddings(
                np.concatenate(values).astype(np.float32, copy=False), np.concatenate(labels)
            )
        else:
            numbers[given.name] = np.concatenate(values).astype(np.float64, copy=False)
    return PublicInputs(embeddings, numbers, texts)


def _parts(given: Input, store: BlockStore) -> Iterator[Block]:
    for segment in given.segments:
        block = store.get(segment.block)
        if block is None:
            raise PeerFault("coordinator", f"refers to a public block of {given.name!r} that it never sent")
        if segment.rows is None:
            yield block
            continue
        rows = np.asarray(segment.rows, dtype=np.int64)
        size = len(block.texts) if block.values is None else len(block.values)
        if rows.size and rows.max() >= size:
            raise PeerFault("coordinator", f"refers to a row of {given.name!r} that its block does not have")
        yield Block(
            block.id,
            None if block.values is None else block.values[rows],
            None if block.labels is None else block.labels[rows],
            tuple(block.texts[row] for row in rows) if block.texts else (),
        )
