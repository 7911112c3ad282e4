"""The stream is AES-256-CTR from block zero, however it is cut."""

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.coded import raises
from undersong_common.errors import InternalError
from undersong_common.privacy import stream
from undersong_common.privacy.stream import (
    CHUNK_BYTES,
    HEAD_BYTES,
    TAG_BYTES,
    ZEROS,
    KeyStream,
    LongStream,
    ShortStreams,
    long_stream,
    wipe,
)


def _reference(seed: bytes, size: int) -> bytes:
    """Counter blocks built by hand and encrypted in ECB: no CTR implementation involved."""
    blocks = b"".join(counter.to_bytes(16, "big") for counter in range(size // 16 + 1))
    encryptor = Cipher(algorithms.AES256(seed), modes.ECB()).encryptor()
    return encryptor.update(blocks)[:size]


def test_cipher_tags_of_short_key_streams_are_overwritten_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag gives the beginning of a mask's stream to whoever finds it in memory."""
    tags: list[memoryview] = []

    class WatchedCipher:
        def __init__(self, seed: bytes) -> None:
            self._cipher = AESGCM(seed)

        def encrypt_into(self, nonce: bytes, message: bytes, associated: bytes | None, out: memoryview) -> int:
            tags.append(out)
            return self._cipher.encrypt_into(nonce, message, associated, out)

    monkeypatch.setattr(stream, "AESGCM", WatchedCipher)
    ShortStreams([bytes(range(32)), bytes(32)])
    assert len(tags) == 4
    assert not any(map(any, tags))


@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, 100), max_size=8))
def test_key_stream_read_in_any_pieces_gives_the_same_bytes(seed: bytes, cuts: list[int]) -> None:
    whole = KeyStream(seed)
    assert b"".join(whole.read(size) for size in cuts) == _reference(seed, sum(cuts))


def test_key_stream_longer_than_its_zero_buffer_continues_the_counter() -> None:
    size = 2 * CHUNK_BYTES + 77
    assert KeyStream(b"\x07" * 32).read(size) == _reference(b"\x07" * 32, size)


@pytest.mark.parametrize("gcm", [True, False])
@pytest.mark.parametrize("cuts", [[16], [CHUNK_BYTES - HEAD_BYTES, CHUNK_BYTES, 77]])
def test_long_key_stream_equals_the_reference_cipher(
    gcm: bool, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "gcm_is_faster", lambda: gcm)
    seed = bytes(range(32))
    head, rest = long_stream(seed)
    assert (head == rest) is not gcm
    parts = [bytearray(size) for size in (HEAD_BYTES, *cuts)]
    for xor_into, part in zip([head, *(rest for _ in cuts)], parts, strict=True):
        xor_into(ZEROS[: len(part)], memoryview(part))
    assert b"".join(parts) == _reference(seed, HEAD_BYTES + sum(cuts))
    filled, whole = [bytearray(size) for size in (HEAD_BYTES + CHUNK_BYTES + 7, *cuts)], LongStream(seed)
    for part in filled:
        whole.fill(memoryview(part))
    assert b"".join(filled) == _reference(seed, sum(map(len, filled)))
    assert "AES" in repr(whole)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(HEAD_BYTES, 200))
def test_short_key_streams_equal_the_reference_cipher(seeds: list[bytes], size: int) -> None:
    streams, room = ShortStreams(seeds), memoryview(bytearray(size + TAG_BYTES))
    written = [bytes(room[:size]) for _ in streams.each_into(room)]
    assert written == [_reference(seed, size) for seed in seeds]
    assert str(len(seeds)) in repr(streams)
    streams.close()
    assert not list(streams.each_into(room))
    assert not any(streams._heads)


def test_a_short_stream_may_be_as_long_as_a_chunk() -> None:
    room = memoryview(bytearray(CHUNK_BYTES + TAG_BYTES))
    list(ShortStreams([b"\x07" * 32]).each_into(room))
    assert bytes(room[:CHUNK_BYTES]) == _reference(b"\x07" * 32, CHUNK_BYTES)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_key_stream_seed_of_a_wrong_length_is_refused(size: int) -> None:
    with raises(InternalError, "seed-length"):
        KeyStream(bytes(size))
    with raises(InternalError, "seed-length"):
        long_stream(bytes(size))
    with raises(InternalError, "seed-length"):
        ShortStreams([bytes(32), bytes(size)])


def test_wiping_a_key_stream_leaves_zeros_and_its_repr_shows_no_seed() -> None:
    buffer = bytearray(b"secret")
    wipe(memoryview(buffer))
    assert buffer == bytes(6)
    assert repr(KeyStream(b"\xaa" * 32)) == "KeyStream(AES-256-CTR)"
