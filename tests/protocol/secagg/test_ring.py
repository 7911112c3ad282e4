"""The minimal ring: bound, packing against a big integer, centred lift, sums modulo 2^b."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.errors import ConfigurationError, InternalError
from undersong_protocol.secagg import ring

BITS = st.integers(1, 64)


def _random_words(bits: int, count: int, seed: int = 1) -> np.ndarray:
    words = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return words.astype(ring.ring_dtype(bits))


@settings(deadline=None, max_examples=examples(40, 200))
@given(BITS, st.integers(0, 200), st.integers(0, 2**32))
def test_packed_words_are_one_little_endian_number(bits: int, count: int, seed: int) -> None:
    words = _random_words(bits, count, seed)
    low = [int(word) % 2**bits for word in words]
    number = sum(word << (index * bits) for index, word in enumerate(low))
    packed = ring.pack(words, bits)
    assert packed == number.to_bytes(ring.packed_bytes(bits, count), "little")
    unpacked = ring.unpack(packed, bits, count)
    assert unpacked.dtype == ring.ring_dtype(bits)
    assert unpacked.tolist() == low


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [3, 13, 20, 24, 33, 47, 63])
@pytest.mark.parametrize("extra", [-1, 0, 1, 77])
def test_packing_by_chunks_loses_no_word(bits: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_CHUNK_WORDS", 256)
    words = _random_words(bits, 512 + extra)
    mask = words.dtype.type((1 << bits) - 1)
    assert np.array_equal(ring.unpack(ring.pack(words, bits), bits, len(words)), words & mask)


@given(st.integers(1, 64), st.data())
def test_ring_sum_is_lifted_into_the_centred_range(bits: int, data: st.DataObject) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    values = data.draw(st.lists(st.integers(low, high), max_size=20))
    words: Any = np.array(values, dtype=np.int64).astype(ring.ring_dtype(bits))
    assert words.dtype == ring.ring_dtype(bits)
    assert ring.to_signed(words, bits).tolist() == values
    # Bits above b do not count.
    if bits < 8 * words.dtype.itemsize and values:
        assert ring.to_signed(words ^ words.dtype.type(1 << bits), bits).tolist() == values


@settings(deadline=None, max_examples=examples(20, 80))
@given(st.integers(1, 12), st.integers(1, 50), st.integers(1, 300), st.integers(1, 2000), st.data())
def test_ring_holds_the_largest_sum_and_one_bit_less_does_not(
    parties: int, records: int, linf: int, scale: int, data: st.DataObject
) -> None:
    sigma = data.draw(st.integers(0, 5000))
    bits = ring.modulus_bits(parties, records, linf, scale, sigma)
    largest = parties * records * linf * scale + 12 * sigma
    assert 2**bits >= 2 * largest + 1 > 2 ** (bits - 1)
    for extreme in (largest, -largest):
        word: Any = np.array([extreme]).astype(ring.ring_dtype(bits))
        packed = ring.pack(word, bits)
        assert ring.to_signed(ring.unpack(packed, bits, 1), bits).tolist() == [extreme]


@pytest.mark.parametrize(
    "case",
    [(0, 1, 1, 1, 0), (1, 0, 1, 1, 0), (1, 1, 0, 1, 0), (1, 1, 1, -1, 0), (1, 1, 1, 1, -1), (1, 1, math.inf, 1, 0)],
)
def test_impossible_bounds_of_a_ring_are_refused(case: tuple[int, int, float, float, float]) -> None:
    with pytest.raises(ConfigurationError):
        ring.modulus_bits(*case)


def test_plan_whose_sum_needs_more_than_64_bits_is_refused() -> None:
    assert ring.modulus_bits(1, 1, 2**62, 1, 0) == 64
    with raises(ConfigurationError, "ring-too-small"):
        ring.modulus_bits(1, 1, 2**63, 1, 0)


@pytest.mark.parametrize("bits", [0, 65, -3])
def test_word_width_outside_1_to_64_bits_is_an_internal_error(bits: int) -> None:
    words = np.zeros(3, dtype=np.uint64)
    for call in (
        lambda: ring.pack(words, bits),
        lambda: ring.unpack(b"", bits, 0),
        lambda: ring.to_signed(words, bits),
        lambda: ring.ring_dtype(bits),
    ):
        with raises(InternalError, "word-width"):
            call()


@pytest.mark.parametrize("words", [np.zeros(3, dtype=np.int64), np.zeros((2, 2), dtype=np.uint64)])
def test_only_ring_vectors_are_packed(words: np.ndarray) -> None:
    with pytest.raises(InternalError):
        ring.pack(words, 20)
    with pytest.raises(InternalError):
        ring.pack(np.zeros(3, dtype=np.uint32), 33)
