"""Masks: the definition, cancelling, bounded chunks, refusals; derived keys are those of the library."""

from typing import Literal

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from undersong_common.errors import InternalError
from undersong_common.privacy.stream import CHUNK_BYTES, KeyStream
from undersong_protocol.secagg import keys, masking
from undersong_protocol.secagg.masking import add_masks

KEYS = st.binary(min_size=32, max_size=32)
WORDS = st.sampled_from(["uint32", "uint64"])


@settings(deadline=None)
@given(KEYS, WORDS, st.integers(0, 300), st.sampled_from([1, -1]))
def test_mask_is_its_key_stream_in_little_endian_words(key: bytes, word: str, count: int, sign: Literal[1, -1]) -> None:
    start = np.arange(count).astype(word)
    masked = start.copy()
    add_masks(masked, [(key, sign)])
    size = start.dtype.itemsize
    stream = KeyStream(key).read(count * size)
    expected = [
        (index + sign * int.from_bytes(stream[index * size : (index + 1) * size], "little")) % 2 ** (8 * size)
        for index in range(count)
    ]
    assert masked.tolist() == expected


@pytest.mark.parametrize("word", ["uint32", "uint64"])
@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
def test_mask_expanded_by_chunks_has_no_gap(word: str, extra: int) -> None:
    count = 2 * CHUNK_BYTES // np.dtype(word).itemsize + extra
    masked = np.zeros(count, dtype=word)
    add_masks(masked, [(b"\x01" * 32, 1), (b"\x02" * 32, -1)])
    streams = [
        np.frombuffer(KeyStream(bytes([k]) * 32).read(masked.nbytes), dtype=np.dtype(word).newbyteorder("<"))
        for k in (1, 2)
    ]
    assert np.array_equal(masked, streams[0] - streams[1])


@pytest.mark.parametrize("gcm", [True, False])
@pytest.mark.parametrize("word", ["uint32", "uint64"])
def test_many_short_masks_added_at_once_equal_masks_of_single_streams(
    gcm: bool, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "gcm_is_faster", lambda: gcm)
    count, keys = 8_193, [bytes([k]) * 32 for k in range(9)]
    masked = np.arange(count).astype(word)
    add_masks(masked, [(key, -1 if key[0] % 2 else 1) for key in keys])
    expected = np.arange(count).astype(word)
    for key in keys:
        stream = np.frombuffer(KeyStream(key).read(masked.nbytes), dtype=np.dtype(word).newbyteorder("<"))
        expected += -stream.astype(word) if key[0] % 2 else stream
    assert np.array_equal(masked, expected)


@settings(deadline=None, max_examples=30)
@given(st.lists(KEYS, min_size=2, max_size=6, unique=True), WORDS, st.integers(1, 20_000))
def test_pairwise_masks_cancel_in_the_sum(keys: list[bytes], word: str, count: int) -> None:
    """Party i adds the masks it shares with later parties and subtracts those with earlier ones."""
    parties = len(keys)
    total = np.zeros(count, dtype=word)
    for i in range(parties):
        vector = np.zeros(count, dtype=word)
        add_masks(vector, [(keys[i] if i < j else keys[j], 1 if i < j else -1) for j in range(parties) if j != i])
        assert vector.any()
        total += vector
    assert not total.any()


@pytest.mark.parametrize(
    ("accumulator", "key", "sign"),
    [
        (np.zeros(4, dtype=np.int64), bytes(32), 1),
        (np.zeros(4, dtype=np.uint16), bytes(32), 1),
        (np.zeros(8, dtype=np.uint32)[::2], bytes(32), 1),
        (np.zeros((2, 2), dtype=np.uint32), bytes(32), 1),
        (np.zeros(4, dtype=np.uint32), bytes(31), 1),
        (np.zeros(4, dtype=np.uint32), bytes(32), 0),
        (np.zeros(4, dtype=np.uint32), bytes(32), 2),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_added(accumulator: np.ndarray, key: bytes, sign: int) -> None:
    with pytest.raises(InternalError):
        add_masks(accumulator, [(b"\x01" * 32, 1), (key, sign)])  # type: ignore[list-item]
    assert not accumulator.any()


@pytest.mark.parametrize("salt", [b"", bytes(range(32)), bytes(range(200))])
def test_keys_are_derived_as_the_library_derives_them(salt: bytes) -> None:
    secret, infos = bytes(range(96)), (b"", b"mask" + bytes(40))
    expected = [HKDF(SHA256(), length=32, salt=salt or None, info=info).derive(secret) for info in infos]
    assert [keys.hkdf(salt, secret, info) for info in infos] == expected


@pytest.mark.parametrize("count", [100, CHUNK_BYTES])
def test_masks_leave_no_bytes_in_their_buffer(count: int) -> None:
    streams = masking.MaskStreams([(b"\x01" * 32, 1)], np.dtype(np.uint32), count)
    streams.add_to(np.zeros(streams.words, dtype=np.uint32))
    assert any(streams._room)
    streams.close()
    assert not any(streams._room)
