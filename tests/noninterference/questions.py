"""Questions of a coordinator: public inputs of the statistics, well formed, malformed or randomly spoilt.

The statistics draw these examples themselves (tests.noninterference.public_examples).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.noninterference import public_examples
from tests.noninterference.hospital import DIMENSION
from tests.noninterference.public_examples import FINE_TUNED, Example
from undersong_common.models.embedding import PUBLIC_GRID
from undersong_protocol.statistics import PublicFacts
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import (
    Input,
    Segment,
    block_id,
    encode_embeddings,
    encode_numbers,
    encode_texts,
    named_blocks,
    question,
)

NAMES = [name for name in public_examples.names() if name != FINE_TUNED]
"""Examples without a fine-tuned model, which takes seconds a vector."""

LABELS = ("good", "bad", "größer")


def facts_of(labels: tuple[str, ...]) -> PublicFacts:
    return PublicFacts(DIMENSION, len(labels))


@dataclass
class Asked:
    """Public inputs on the wire."""

    inputs: list[Input]
    blocks: list[bytes]

    @classmethod
    def of(cls, example: Example) -> "Asked":
        return cls(list(example.inputs), list(example.blocks.values()))

    @property
    def question(self) -> bytes:
        return question(self.inputs)


@st.composite
def spoilt(draw: st.DrawFn, asked: Asked) -> Asked:
    """The inputs with one to three things changed; some of it may still be well formed."""
    inputs = list(asked.inputs)
    blocks = {block_id(data): data for data in asked.blocks}
    for _ in range(draw(st.integers(1, 3))):
        if not inputs:
            data = encode_numbers(np.ones((1, 1)))
            blocks[block_id(data)] = data
            inputs.append(Input("extra", (Segment(block_id(data)),)))
            continue
        at = draw(st.integers(0, len(inputs) - 1))
        inputs[at : at + 1] = draw(_changed(inputs[at], blocks))
    named = set(named_blocks(inputs))
    stray = draw(st.integers(0, 5)) == 0  # a block that no input names is refused before anything else is looked at
    return Asked(inputs, [data for identity, data in blocks.items() if stray or identity in named])


@st.composite
def _changed(draw: st.DrawFn, one: Input, blocks: dict[bytes, bytes]) -> list[Input]:
    segment = one.segments[0]

    def with_block(data: bytes) -> list[Input]:
        blocks[block_id(data)] = data
        return [Input(one.name, (Segment(block_id(data), segment.rows), *one.segments[1:]))]

    def with_rows() -> list[Input]:
        rows = tuple(draw(st.lists(st.integers(0, 12), max_size=12)))
        return [Input(one.name, (Segment(segment.block, rows),))]

    ways: dict[str, Callable[[], list[Input]]] = {
        "left out": lambda: [],
        "twice": lambda: [one, one],
        "renamed": lambda: [Input("another", one.segments)],
        "doubled": lambda: [Input(one.name, one.segments * 2)],
        "rows": with_rows,
        "a block that nobody has": lambda: [Input(one.name, (Segment(bytes(32)),))],
        "bytes": lambda: with_block(draw(st.binary(max_size=40))),
        "content": lambda: with_block(draw(_content(blocks.get(segment.block, b"")))),
    }
    weighted = [*ways, "content", "content", "content"]
    return ways[draw(st.sampled_from(weighted))]()


@st.composite
def _content(draw: st.DrawFn, data: bytes) -> bytes:
    """A block like this one with other content."""
    try:
        block = wire.Block.FromString(data)
    except Exception:  # noqa: BLE001 - bytes that are no block stay what they are
        return data
    shape = tuple(block.shape)
    if block.kind == wire.Block.NUMBERS and len(block.payload) == 8 * int(np.prod(shape, dtype=object)):
        values = np.frombuffer(block.payload, dtype="<f8").reshape(shape)
        return encode_numbers(draw(_magnified(values) | _reshaped(values)))
    if block.kind == wire.Block.EMBEDDINGS:
        return draw(_embeddings(len(block.labels)))
    words = st.sampled_from(["pain", "chest pain", "note", "PAIN", "größe", "", "--", "note " * 30])
    return encode_texts(draw(st.lists(words, max_size=9)))


_EXTREMES = (
    *(1e308, -1e308, 1e154, 5e-324, 1e-310, 0.0, -0.0, 2.0**60, 1e-300),
    *(1 / 3, 2.0**-21, 2.0**-20, float("nan"), float("inf")),
)


@st.composite
def _magnified(draw: st.DrawFn, value: Any) -> Any:
    """Some or all numbers of another size, off the grid, or not finite."""
    changed = np.array(value, dtype=np.float64).reshape(np.shape(value))
    if not changed.size:
        return changed
    flat = changed.reshape(-1)
    if draw(st.booleans()):
        with np.errstate(all="ignore"):
            flat *= draw(st.sampled_from([1e308, 1e200, 1e-200, 2.0**40, -1.0, 1.0 + 2.0**-52, 1 / 3]))
    for _ in range(draw(st.integers(0, 4))):
        flat[draw(st.integers(0, changed.size - 1))] = draw(st.sampled_from(_EXTREMES))
    return changed


@st.composite
def _reshaped(draw: st.DrawFn, value: Any) -> Any:
    ways = [value[:0], value[..., :-1], value.reshape(-1), value[None], np.concatenate([value, value]), value.T]
    return ways[draw(st.integers(0, len(ways) - 1))]


@st.composite
def _embeddings(draw: st.DrawFn, count: int) -> bytes:
    width = draw(st.sampled_from([DIMENSION, DIMENSION, DIMENSION - 1, 1]))
    values = np.zeros((count, width), dtype=np.float32)
    values[:, draw(st.integers(0, width - 1))] = draw(st.sampled_from([1.0, -1.0, 1 / PUBLIC_GRID, 0.0, 0.5, 15.0]))
    label = st.sampled_from([-1, 0, 1, 2, 3, 99, -2, 2**31 - 1, -(2**31)])
    return encode_embeddings(values, np.array([draw(label) for _ in range(count)], dtype=np.int64))
