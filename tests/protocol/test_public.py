"""Public blocks and what refers to them: exact, and measured before they are taken apart."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from tests.protocol.test_sizes import peak_bytes
from undersong_common.errors import ConfigurationError, InternalError, PeerFault
from undersong_common.models.embedding import PUBLIC_GRID, publishable, quantise
from undersong_protocol.wire import public
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.public import (
    Input,
    MemoryBlocks,
    Segment,
    add_blocks,
    block_id,
    check_inputs,
    decode_block,
    encode_embeddings,
    encode_numbers,
    encode_texts,
    read_inputs,
    resolve,
)

TEXTS = encode_texts(["one", "two words", ""])


def block_of_texts(joined: bytes, count: int) -> bytes:
    return wire.Block(kind=wire.Block.TEXTS, shape=[count], payload=zlib.compress(joined, 9)).SerializeToString()


@settings(max_examples=examples(20, 60), deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), max_size=20))
def test_public_texts_come_back_unchanged(given_texts):
    assert decode_block(encode_texts(given_texts)).texts == tuple(given_texts)


def test_public_texts_that_compress_too_well_come_back_unchanged():
    many = ["the same text"] * 120_000
    assert decode_block(encode_texts(many)).texts == tuple(many)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            lambda: block_of_texts(b"\0" * (33 * 2**20), 33 * 2**20),
            "1048576 rows are allowed",
        ),  # 33 kB that cost 0.64 GB
        (lambda: block_of_texts(b"\0" * (33 * 2**20), 100), "inflates to more than"),
        (lambda: block_of_texts(b"\0" * 600_000, 600_000), "600000 texts of 600000 bytes; 524288"),
        (lambda: block_of_texts(b"a\0" * 1000, 999), "not 999 texts that each end"),
        (lambda: block_of_texts(b"a\0b", 1), "not 1 texts that each end"),
        (lambda: block_of_texts(b"a" * 131_073 + b"\0", 1), "a text of 131073 bytes; 131072 are allowed"),
        (lambda: wire.Block(kind=wire.Block.NUMBERS, shape=[2**16, 2**16]).SerializeToString(), "4294967296 numbers"),
        (lambda: wire.Block(kind=wire.Block.NUMBERS, shape=[1] * 5).SerializeToString(), "cannot be read"),
        (lambda: wire.Block(kind=wire.Block.NUMBERS, payload=bytes(8)).SerializeToString(), "cannot be read"),
        (lambda: wire.Block(kind=wire.Block.EMBEDDINGS, shape=[0, 2**20]).SerializeToString(), "cannot be read"),
        (
            lambda: wire.Block(
                kind=wire.Block.EMBEDDINGS, shape=[2**20, 32], payload=b"", labels=[0]
            ).SerializeToString(),
            "cannot be read",
        ),
        (
            lambda: wire.Block(kind=wire.Block.EMBEDDINGS, labels=[1] * (6 * 2**20)).SerializeToString(),
            "labels of 629145",
        ),
        (lambda: bytes(64 * 2**20 + 1), "67108865 bytes; 67108864 are allowed"),
    ],
)
def test_public_block_that_inflates_too_far_is_refused_in_little_memory(data, words):
    block = data()

    def read():
        with pytest.raises(PeerFault, match=words):
            decode_block(block)

    assert peak_bytes(read) < 8 * 2**20


@pytest.mark.parametrize("count", [524_289, 3])
def test_texts_beyond_a_party_s_limits_are_not_sent(count):
    long = ["x"] * count if count > 3 else ["x" * 131_073]
    with pytest.raises(ConfigurationError, match="are allowed"):
        encode_texts(long)


def test_a_block_that_no_input_refers_to_is_refused_unread(monkeypatch):
    store = MemoryBlocks()
    named = (Input("words", (Segment(block_id(TEXTS)),)),)
    add_blocks([TEXTS], named, store)
    monkeypatch.setattr(public, "decode_block", pytest.fail)
    with raises(PeerFault, "unwanted-block"):
        add_blocks([encode_texts(["other"])], named, store)


@pytest.mark.parametrize(
    "inputs",
    [
        [wire.Input(name=str(number)) for number in range(65)],
        [wire.Input(segments=[wire.Segment(all_rows=True)] * 10_001)],
        [wire.Input(segments=[wire.Segment(rows=[0] * 2**20)] * 3)],
    ],
)
def test_more_inputs_segments_or_rows_than_any_sum_has_are_refused(inputs, monkeypatch):
    monkeypatch.setattr(Input, "from_wire", pytest.fail)
    with raises(PeerFault, "inputs-too-large"):
        read_inputs(inputs)


def test_long_name_of_a_public_input_is_refused():
    with raises(PeerFault, "name-too-long"):
        read_inputs([wire.Input(name="x" * 121)])


@pytest.mark.heavy
def test_size_of_repeated_references_is_limited_before_they_are_joined():
    store = MemoryBlocks()
    wide = np.zeros((4096, 384), dtype=np.float32)
    blocks = [encode_embeddings(wide, np.zeros(4096, dtype=np.int64)), encode_numbers(np.ones((1000, 1000)))]
    blocks.append(encode_texts(["word " * 20_000]))
    for data in blocks:
        store.add(data)
    for data, times in zip(blocks, (43, 68, 672), strict=True):
        many = (Input("x", (Segment(block_id(data)),) * times),)

        def read(many=many):
            with raises(PeerFault, "inputs-too-large"):
                resolve(many, store)

        assert peak_bytes(read) < 2**20
        check_inputs((Input("x", (Segment(block_id(data)),) * (times - 2)),), store)
    repeated = (Input("x", (Segment(block_id(blocks[0]), (7,) * 2**20),)),)
    with pytest.raises(PeerFault, match="1048576 rows, 402653184 numbers"):
        resolve(repeated, store)


def test_reference_to_a_row_that_a_public_block_lacks_is_refused():
    store = MemoryBlocks()
    store.add(TEXTS)
    assert resolve((Input("x", (Segment(block_id(TEXTS), (2, 0)),)),), store).texts["x"] == ("", "one")
    with raises(PeerFault, "no-such-row"):
        check_inputs((Input("x", (Segment(block_id(TEXTS), (3,)),)),), store)


def _unit_rows(count: int, width: int) -> np.ndarray:
    rows = np.random.default_rng(5).normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("shape", [(0, 384), (1, 1), (3, 48), (200, 384)])
def test_public_embeddings_come_back_as_they_were_published(shape):
    values = publishable(_unit_rows(*shape) if all(shape) else np.zeros(shape))
    if all(shape):
        values[0] = 0.0
        values[0, 0] = -1.0
        values[-1] = 0.0
        values[-1, -1] = 1.0
    labels = np.arange(shape[0], dtype=np.int64) - 1
    block = decode_block(encode_embeddings(values, labels))
    np.testing.assert_array_equal(block.values, values)
    np.testing.assert_array_equal(block.labels, labels)


def test_public_embeddings_of_384_coordinates_take_a_sixth_of_float32():
    data = encode_embeddings(publishable(_unit_rows(1200, 384)), np.zeros(1200, dtype=np.int64))
    assert len(data) < 1200 * 384 * 4 / 6.5


def test_embeddings_off_the_public_grid_are_not_published():
    with raises(InternalError, "off-grid"):
        encode_embeddings(quantise(_unit_rows(3, 48)), np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("row", [(1.0, 1 / PUBLIC_GRID), (-1.0, -1 / PUBLIC_GRID), (1.0, 1.0)])
def test_public_embeddings_longer_than_1_are_refused(row):
    """A vote's distance is exact in float32 only up to that norm."""
    data = encode_embeddings(np.array([(1.0, 0.0), row], dtype=np.float32), np.zeros(2, dtype=np.int64))
    with pytest.raises(PeerFault, match="cannot be read"):
        decode_block(data)


def test_embeddings_that_inflate_from_few_bytes_are_refused():
    shape = (2**13, 2**10)
    planes = [zlib.compress(bytes(shape[0] * shape[1]), 9)] * 2
    data = wire.Block(
        kind=wire.Block.EMBEDDINGS,
        shape=shape,
        payload=len(planes[0]).to_bytes(4, "little") + b"".join(planes),
        labels=[0] * shape[0],
    )
    with pytest.raises(PeerFault, match="8388608 coordinates in"):
        decode_block(data.SerializeToString())
