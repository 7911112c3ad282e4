"""Public data for the parties, in blocks that are named by their hash, sent once, and later referred to by the hash."""

import hashlib
import math
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
from google.protobuf.message import DecodeError

from undersong_common.arrays import Float32, Float64, Int64
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_common.models.embedding import PUBLIC_GRID
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.wire.codec import field_sizes
from undersong_protocol.wire.messages import federation_pb2 as wire

# Largest sizes of one block and of all inputs of one sum. A peer cannot make a party allocate more.
LARGEST_BLOCK_BYTES = 64 * 2**20  # of one block, serialised
LARGEST_BLOCK_ROWS = 2**20
LARGEST_LABELS_BYTES = 5 * LARGEST_BLOCK_ROWS  # of a block, up to five bytes a label
LARGEST_WIDTH = 2**13  # coordinates of an embedding
LARGEST_NUMBERS = 2**25  # numbers in a block
LARGEST_TEXTS = 2**19  # texts in a block; the vocabulary of DP-KPS has 400 000
LONGEST_TEXT_BYTES = 2**17
LARGEST_TEXTS_BYTES = 2**25  # inflated bytes of a block of texts
LARGEST_EMBEDDINGS_INFLATION = 8  # coordinates per byte of the block: Huffman's code takes one bit at least for each
SMALL_EMBEDDINGS_NUMBERS = 2**20  # A block may have so many more coordinates than that.
LARGEST_TEXTS_INFLATION = 64  # inflated bytes per byte of the block; a block may always inflate to SMALL_TEXTS_BYTES
SMALL_TEXTS_BYTES = 2**20
LARGEST_INPUTS = 64
LONGEST_INPUT_NAME = 120
LARGEST_SEGMENTS = 10_000
LARGEST_INPUT_ROWS = 2**21
LARGEST_INPUT_NUMBERS = 2**26
LARGEST_INPUT_TEXTS_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Block:
    """One immutable piece of public data.

    Attributes:
        id: SHA-256 of the serialised block, 32 bytes.
        values: float32 [n, d] for quantised embeddings, float64 of any shape for numbers, None for texts.
        labels: int64 [n] for embeddings, indices into the task's labels or -1 for no label; else None.
        texts: the strings of a text block; else ().
    """

    id: bytes
    values: Float32 | Float64 | None
    labels: Int64 | None = None
    texts: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        if self.values is None:
            return len(self.texts)
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of values per row."""
        if self.values is None or not len(self.values):
            return 0
        return self.values.size // len(self.values)

    @cached_property
    def text_bytes(self) -> Int64:
        """Number of UTF-8 bytes of each text, int64 [n]; empty for a block of numbers."""
        return np.array([len(text.encode("utf-8")) for text in self.texts], dtype=np.int64)

    def __repr__(self) -> str:
        block_shape = len(self.texts) if self.values is None else self.values.shape
        return f"Block({self.id.hex()[:12]}, {block_shape})"


def encode_embeddings(embeddings: Float32, labels: Int64) -> bytes:
    """Serialises a block of public embeddings (``embedding.publishable``), float32 [n, d], and labels, int64 [n].

    A coordinate of a unit vector of 384 takes less than 5 bits. Raises InternalError for numbers that are not on the
    public grid, because the parties would receive other numbers.
    """
    grid = (embeddings * np.float32(PUBLIC_GRID)).astype(np.int16)
    if not np.array_equal(grid, embeddings * np.float32(PUBLIC_GRID)):
        raise InternalError("embeddings were to be published that are not on the public grid", code="off-grid")
    folded_grid = ((grid << 1) ^ (grid >> 15)).astype("<u2")  # 0, -1, 1, -2 ... become 0, 1, 2, 3 ...
    byte_planes = folded_grid.reshape(-1).view(np.uint8).reshape(-1, 2)
    # Coordinates do not repeat: Huffman's code alone comes within 2 % of their entropy. High bytes are mostly zero.
    huffman_packer = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    low_plane = huffman_packer.compress(byte_planes[:, 0].tobytes()) + huffman_packer.flush()
    high_plane = zlib.compress(byte_planes[:, 1].tobytes(), 9)
    return _serialise_block(
        wire.Block(
            kind=wire.Block.EMBEDDINGS,
            shape=list(embeddings.shape),
            payload=len(low_plane).to_bytes(4, "little") + low_plane + high_plane,
            labels=labels.tolist(),
        )
    )


def encode_texts(texts: Sequence[str]) -> bytes:
    """Serialises a block of strings without zero bytes, such as vocabulary terms.

    Raises ConfigurationError for more or longer strings than a party accepts.
    """
    joined_bytes = "".join(f"{text}\0" for text in texts).encode("utf-8")
    if problem := _texts_problem(joined_bytes, len(texts)):
        raise ConfigurationError(f"public texts: {problem}", "publish fewer or shorter texts in one block")
    packed_bytes = zlib.compress(joined_bytes, 6)
    if len(joined_bytes) > _largest_inflated_bytes(packed_bytes):
        packed_bytes = zlib.compress(joined_bytes, 0)
    return _serialise_block(wire.Block(kind=wire.Block.TEXTS, shape=[len(texts)], payload=packed_bytes))


def encode_numbers(values: Float64) -> bytes:
    """Serialises a block of float64 numbers of any shape."""
    number_bytes = np.ascontiguousarray(values, dtype="<f8")
    return _serialise_block(
        wire.Block(kind=wire.Block.NUMBERS, shape=list(number_bytes.shape), payload=number_bytes.tobytes())
    )


def block_id(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def decode_block(data: bytes) -> Block:
    """Parses a block. Raises PeerFault of the coordinator, its only sender, if it is malformed or too large.

    Sizes are checked first, so that the memory used is a small multiple of the block's bytes.
    """
    if len(data) > LARGEST_BLOCK_BYTES:
        raise PeerFault("coordinator", f"sent a public block of {len(data)} bytes; {LARGEST_BLOCK_BYTES} are allowed")
    block_fields = field_sizes(data, "coordinator", largest_count=16)
    other_bytes = sum(
        len(field_content)
        for field_number, field_content in block_fields
        if field_number != wire.Block.PAYLOAD_FIELD_NUMBER
    )
    if other_bytes > LARGEST_LABELS_BYTES:
        raise PeerFault(
            "coordinator",
            f"sent a public block with labels of {other_bytes} bytes; {LARGEST_LABELS_BYTES} are allowed",
        )
    message = wire.Block()
    try:
        message.ParseFromString(data)
        return _read_block(message, block_id(data))
    except (DecodeError, ValueError, zlib.error) as error:
        reason = f": {error}" if isinstance(error, _TooLarge) else ""
        raise PeerFault(
            "coordinator", f"sent a public block that cannot be read{reason}", "run the same version everywhere"
        ) from None


class _TooLarge(ValueError):
    """Raised for a block with a size above its limit; the message names that size."""


def _read_block(message: wire.Block, content_hash: bytes) -> Block:
    values_shape = tuple(message.shape)
    if len(values_shape) > 4 or (values_shape and values_shape[0] > LARGEST_BLOCK_ROWS):
        raise _TooLarge(f"an array of shape {values_shape}; 4 dimensions and {LARGEST_BLOCK_ROWS} rows are allowed")
    value_count = math.prod(values_shape) if values_shape else 0
    if value_count > LARGEST_NUMBERS:
        raise _TooLarge(f"{value_count} numbers; {LARGEST_NUMBERS} are allowed")
    if message.kind == wire.Block.EMBEDDINGS:
        row_count, dimension = values_shape
        if dimension > LARGEST_WIDTH or len(message.labels) != row_count:
            raise ValueError("shape")
        payload = message.payload
        if value_count > LARGEST_EMBEDDINGS_INFLATION * len(payload) + SMALL_EMBEDDINGS_NUMBERS:
            raise _TooLarge(f"{value_count} coordinates in {len(payload)} bytes")
        high_start = 4 + int.from_bytes(payload[:4], "little")
        byte_planes = [
            np.frombuffer(_inflate_bounded(packed_plane, value_count), np.uint8)
            for packed_plane in (payload[4:high_start], payload[high_start:])
        ]
        folded_grid = np.stack(byte_planes, axis=-1).reshape(-1).view("<u2").reshape(row_count, dimension)
        grid = (folded_grid >> 1).astype(np.int16) ^ -(folded_grid & 1).astype(np.int16)
        block_labels = np.asarray(message.labels, dtype=np.int64)
        if block_labels.min(initial=0) < -1:
            raise ValueError("labels")
        embedding_rows = grid.astype(np.float32) / np.float32(PUBLIC_GRID)
        squared_norms = np.einsum("nd,nd->n", embedding_rows, embedding_rows, dtype=np.float64)
        if float(squared_norms.max(initial=0.0)) > 1.0 + 1e-12:
            raise ValueError("norm")  # Votes are exact only for embeddings of norm at most 1.
        return Block(content_hash, embedding_rows, block_labels)
    if message.kind == wire.Block.TEXTS:
        (row_count,) = values_shape
        joined_bytes = _inflate_bounded(
            message.payload, min(LARGEST_TEXTS_BYTES, _largest_inflated_bytes(message.payload))
        )
        if problem := _texts_problem(joined_bytes, row_count):
            raise _TooLarge(problem)
        return Block(content_hash, None, None, tuple(joined_bytes.decode("utf-8").split("\0")[:-1]))
    if message.kind == wire.Block.NUMBERS and values_shape:
        number_values = np.frombuffer(message.payload, dtype="<f8").reshape(values_shape).astype(np.float64)
        if not np.isfinite(number_values).all():
            raise ValueError("not finite")
        return Block(content_hash, number_values)
    raise ValueError("unknown kind of block")


def _texts_problem(joined: bytes, count: int) -> str:
    """Returns the fault of ``joined``, ``count`` texts that should each end with a zero byte; "" if there is none."""
    if count > LARGEST_TEXTS or len(joined) > LARGEST_TEXTS_BYTES:
        return f"{count} texts of {len(joined)} bytes; {LARGEST_TEXTS} of {LARGEST_TEXTS_BYTES} are allowed"
    if joined.count(b"\0") != count or (joined and not joined.endswith(b"\0")):
        return f"not {count} texts that each end with a zero byte"
    text_ends = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == 0)
    longest_text = int(np.diff(text_ends, prepend=-1).max(initial=1)) - 1
    if longest_text > LONGEST_TEXT_BYTES:
        return f"a text of {longest_text} bytes; {LONGEST_TEXT_BYTES} are allowed"
    return ""


def _largest_inflated_bytes(packed: bytes) -> int:
    """Returns the largest number of bytes to which packed texts may inflate."""
    return max(SMALL_TEXTS_BYTES, LARGEST_TEXTS_INFLATION * len(packed))


def _serialise_block(message: wire.Block) -> bytes:
    return message.SerializeToString(deterministic=True)


def _inflate_bounded(data: bytes, largest: int) -> bytes:
    inflater = zlib.decompressobj()
    # The limit is at least 1, because zlib reads 0 as no limit.
    inflated_bytes = inflater.decompress(data, max(1, largest))
    if inflater.unconsumed_tail or len(inflated_bytes) > largest:
        raise _TooLarge(f"it inflates to more than {largest} bytes")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("the compressed data ends early, or further bytes follow it")
    return inflated_bytes


@dataclass(frozen=True)
class Segment:
    """Chosen rows of the block with the id ``block``, in order; ``rows`` None means all rows."""

    block: bytes
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Input:
    """One named public input of a statistic, the concatenation of segments of blocks."""

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
    def from_wire(cls, message: wire.Input) -> "Input":
        return cls(
            message.name,
            tuple(Segment(part.block, None if part.all_rows else tuple(part.rows)) for part in message.segments),
        )


def question(inputs: Iterable[Input]) -> bytes:
    """Returns q, the digest (32 bytes) of a private sum's public inputs, in the given order.

    Blocks are named by the hash of their content, so q commits to every number and word of the inputs. It enters the
    keys of the pairwise masks and the parties' signatures on the survivors (docs/secagg.md).

    >>> question([Input("a", (Segment(bytes(32)),))]).hex()[:16]
    'c794b8ea541bd063'
    """
    hashed_parts: list[bytes] = []
    for public_input in inputs:
        hashed_parts += [public_input.name.encode("utf-8"), len(public_input.segments).to_bytes(8, "little")]
        for segment in public_input.segments:
            if segment.rows is None:
                row_selection = b"all"
            else:
                row_selection = b"rows" + np.asarray(segment.rows, dtype="<u8").tobytes()
            hashed_parts += [segment.block, row_selection]
    return tagged_hash("undersong question", *hashed_parts)


class HeldBlocks(Protocol):
    """Interface for reading blocks by id; a dictionary has it."""

    def get(self, content_hash: bytes, /) -> Block | None: ...


class BlockStore(HeldBlocks, Protocol):
    """Interface of a party's store of blocks."""

    def add(self, data: bytes) -> Block: ...


@dataclass
class MemoryBlocks:
    """Keeps blocks in memory; simulated parties share one store, because blocks are public."""

    _blocks: dict[bytes, Block] = field(default_factory=dict)

    def get(self, content_hash: bytes) -> Block | None:
        return self._blocks.get(content_hash)

    def add(self, data: bytes) -> Block:
        content_hash = block_id(data)
        held_block = self._blocks.get(content_hash)
        if held_block is None:
            held_block = self._blocks[content_hash] = decode_block(data)
        return held_block


def read_inputs(inputs: Sequence[wire.Input]) -> tuple[Input, ...]:
    """Reads the inputs that a request names. Raises PeerFault for more inputs than any sum has."""
    segment_count = sum(len(public_input.segments) for public_input in inputs)
    if segment_count <= LARGEST_SEGMENTS:
        row_count = sum(len(input_segment.rows) for public_input in inputs for input_segment in public_input.segments)
    else:
        row_count = 0
    if len(inputs) > LARGEST_INPUTS or segment_count > LARGEST_SEGMENTS or row_count > LARGEST_INPUT_ROWS:
        raise PeerFault(
            "coordinator",
            f"names {len(inputs)} inputs of {segment_count} segments and {row_count} rows; {LARGEST_INPUTS},"
            f" {LARGEST_SEGMENTS} and {LARGEST_INPUT_ROWS} are allowed",
            code="inputs-too-large",
        )
    if any(len(public_input.name) > LONGEST_INPUT_NAME for public_input in inputs):
        raise PeerFault(
            "coordinator", f"names an input in more than {LONGEST_INPUT_NAME} characters", code="name-too-long"
        )
    return tuple(map(Input.from_wire, inputs))


def add_blocks(blocks: Iterable[bytes], inputs: Iterable[Input], store: BlockStore) -> None:
    """Stores the blocks that came with a request. Raises PeerFault for a block to which none of ``inputs`` refers."""
    requested_blocks = set(named_blocks(inputs))
    for block_bytes in blocks:
        if block_id(block_bytes) not in requested_blocks:
            raise PeerFault(
                "coordinator", "sent a public block that no input of its request refers to", code="unwanted-block"
            )
        store.add(block_bytes)


def check_inputs(inputs: Iterable[Input], store: HeldBlocks) -> None:
    """Checks that every row to which ``inputs`` refer exists, and that the inputs together are not too large.

    A row counts as often as it is referred to. Raises PeerFault otherwise, and if ``store`` lacks a block.
    """
    input_rows = number_count = text_bytes = 0
    for public_input in inputs:
        for segment in public_input.segments:
            held_block = _find_block(public_input, segment, store)
            rows_used: slice | Int64 = slice(None)
            row_count = held_block.rows
            if segment.rows is not None:
                rows_used = np.asarray(segment.rows, dtype=np.int64)
                row_count = len(segment.rows)
            if segment.rows and max(segment.rows) >= held_block.rows:
                raise PeerFault(
                    "coordinator",
                    f"refers to a row of {public_input.name!r} that its block does not have",
                    code="no-such-row",
                )
            input_rows += row_count
            number_count += row_count * held_block.width
            if held_block.texts:
                text_bytes += int(held_block.text_bytes[rows_used].sum())
    if (
        input_rows > LARGEST_INPUT_ROWS
        or number_count > LARGEST_INPUT_NUMBERS
        or text_bytes > LARGEST_INPUT_TEXTS_BYTES
    ):
        raise PeerFault(
            "coordinator",
            f"names inputs of {input_rows} rows, {number_count} numbers and {text_bytes} bytes of text;"
            f" {LARGEST_INPUT_ROWS}, {LARGEST_INPUT_NUMBERS} and {LARGEST_INPUT_TEXTS_BYTES} are allowed",
            code="inputs-too-large",
        )


def named_blocks(inputs: Iterable[Input]) -> list[bytes]:
    """Returns the ids of the blocks to which ``inputs`` refer, each once and in order."""
    return list(dict.fromkeys(segment.block for public_input in inputs for segment in public_input.segments))


def missing_blocks(inputs: Iterable[Input], store: HeldBlocks) -> list[bytes]:
    """Returns the ids of the blocks to which ``inputs`` refer and that ``store`` lacks, each once and in order."""
    return [content_hash for content_hash in named_blocks(inputs) if store.get(content_hash) is None]


def resolve(inputs: Iterable[Input], store: HeldBlocks) -> PublicInputs:
    """Assembles the inputs for a statistic from the blocks in ``store``.

    The result is cached as long as somebody holds it, because simulated parties ask for the same rows.

    Raises PeerFault of the coordinator for rows that do not exist or are too many, for two inputs of one name and kind,
    and for segments whose shapes or kinds differ.
    """
    inputs = tuple(inputs)
    check_inputs(inputs, store)
    inputs_key = question(inputs), *map(store.get, named_blocks(inputs))
    resolved_inputs = _RESOLVED.get(inputs_key)
    if resolved_inputs is None:
        resolved_inputs = _RESOLVED[inputs_key] = _assemble_inputs(inputs, store)
    return resolved_inputs


_RESOLVED: "WeakValueDictionary[tuple[object, ...], PublicInputs]" = WeakValueDictionary()


def _assemble_inputs(inputs: tuple[Input, ...], store: HeldBlocks) -> PublicInputs:
    embeddings: dict[str, LabelledEmbeddings] = {}
    numbers_by_name: dict[str, Float64] = {}
    texts_by_name: dict[str, Sequence[str]] = {}
    for public_input in inputs:
        input_parts = list(_select_rows(public_input, store))
        part_values = [input_part.values for input_part in input_parts if input_part.values is not None]
        part_labels = [part.labels for part in input_parts if part.labels is not None]
        part_kinds = {(part.values is None, part.labels is None) for part in input_parts}
        # Only rows of one shape can be concatenated, and a number of shape () has no rows.
        row_shapes = {part_array.shape[1:] for part_array in part_values}
        has_scalar = any(not array.ndim for array in part_values)
        if len(part_kinds) != 1 or len(row_shapes) > 1 or has_scalar:
            raise PeerFault("coordinator", f"publishes {public_input.name!r} in segments that do not make one array")
        names_in_use: Container[str] = texts_by_name
        if part_values:
            names_in_use = embeddings if part_labels else numbers_by_name
        if public_input.name in names_in_use:
            raise PeerFault("coordinator", f"publishes {public_input.name!r} twice in one request")
        if not part_values:
            texts_by_name[public_input.name] = tuple(text for input_part in input_parts for text in input_part.texts)
        elif part_labels:
            embeddings[public_input.name] = LabelledEmbeddings(
                np.concatenate(part_values).astype(np.float32, copy=False), np.concatenate(part_labels)
            )
        else:
            numbers_by_name[public_input.name] = np.concatenate(part_values).astype(np.float64, copy=False)
    return PublicInputs(embeddings, numbers_by_name, texts_by_name)


def _select_rows(public_input: Input, store: HeldBlocks) -> Iterator[Block]:
    for segment in public_input.segments:
        held_block = _find_block(public_input, segment, store)
        if segment.rows is None:
            yield held_block
            continue
        segment_rows = np.asarray(segment.rows, dtype=np.int64)
        yield Block(
            held_block.id,
            None if held_block.values is None else held_block.values[segment_rows],
            None if held_block.labels is None else held_block.labels[segment_rows],
            tuple(held_block.texts[text_row] for text_row in segment_rows) if held_block.texts else (),
        )


def _find_block(public_input: Input, segment: Segment, store: HeldBlocks) -> Block:
    held_block = store.get(segment.block)
    if held_block is None:
        raise PeerFault("coordinator", f"refers to a public block of {public_input.name!r} that it never sent")
    return held_block
