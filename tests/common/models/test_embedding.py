"""Embeddings: the grid that makes votes exact, the packaged model, caches that share, and privacy on the disk."""

import gc
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from tests.doubles import long_notes
from tests.doubles.coded import raises
from tests.doubles.machines import without_descriptors
from tests.doubles.pace import examples, slow_but
from tests.doubles.tiny_bert import fails_at_last_word, write_embedder
from undersong_common.arrays import Float32
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_common.models import embedding, encoders, workers
from undersong_common.models.embedding import (
    GRID,
    PUBLIC_GRID,
    CachedEmbedder,
    Embedder,
    EmbeddingCache,
    EncryptedFileCache,
    MemoryCache,
    PublicFileCache,
    TextLengths,
    publishable,
    quantise,
)
from undersong_common.models.encoders import TorchModel
from undersong_common.models.fixed_shapes import FixedShapes
from undersong_common.models.model_files import PACKAGED, model_folder

pytestmark = pytest.mark.heavy  # embedders are loaded

TEXTS = [
    "I lost my card yesterday.",
    "Where is my top-up?",
    "",
    "pain in the chest since this morning " * 30,
    "Ünïcode",
]
KEY = bytes(range(32))


class CountingEmbedder:
    """Unit vectors from a hash of the text; counts what it is asked."""

    fingerprint = "ab" * 32
    dimension = 24

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str], progress: Any = None) -> Float32:
        self.asked.extend(texts)
        rows = np.stack(
            [
                np.random.default_rng(list(text.encode("utf-8", "surrogatepass")) or [0]).standard_normal(24)
                for text in texts
            ]
        )
        if progress is not None:
            progress(len(texts), len(texts))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def cached(cache: EmbeddingCache) -> tuple[CountingEmbedder, CachedEmbedder]:
    counting = CountingEmbedder()
    return counting, CachedEmbedder(counting, cache)  # type: ignore[arg-type]


@settings(max_examples=examples(20, 60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([0.01, 0.5, 1.0, 7.0]))
def test_quantised_rows_lie_on_the_grid_within_the_unit_ball(seed: int, d: int, norm: float) -> None:
    x = np.random.default_rng(seed).standard_normal((8, d))
    x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
    rows = quantise(x.astype(np.float32))
    grid = rows.astype(np.float64) * GRID
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(grid, np.rint(grid))
    assert np.square(grid).sum(axis=1).max() <= GRID**2
    np.testing.assert_array_equal(rows.astype(np.float16).astype(np.float32), rows)
    np.testing.assert_array_equal(quantise(rows), rows)
    assert np.abs(rows - x / max(norm, 1.0)).max() < 1.5 / GRID


def test_products_of_quantised_rows_are_exact_in_float32_in_any_order() -> None:
    rng = np.random.default_rng(1)
    x, c = (quantise(rng.standard_normal((50, 384)) * 9) for _ in range(2))
    x[0], c[0] = c[1], c[1]
    exact = (x * GRID).astype(np.int64) @ (c * GRID).astype(np.int64).T
    order = rng.permutation(384)
    for left, right in ((x, c), (x[:, order], c[:, order])):
        np.testing.assert_array_equal((left @ right.T).astype(np.float64) * GRID**2, exact)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantised_row_that_is_not_finite_is_zero_and_others_stay(bad: float) -> None:
    rows = quantise(np.array([[bad, 0.5], [0.25, 0.5], [1e308, -1e308], [5e-324, 1.0]]))
    assert rows.tolist() == [[0, 0.5], [0.25, 0.5], [0, 0], [0, 1]]
    assert quantise(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_a_row_is_quantised_the_same_beside_any_other_rows(seed: int, d: int, count: int) -> None:
    x = np.random.default_rng(seed).standard_normal((count, d)) / np.sqrt(d)
    assert bits(quantise(x)) == [quantise(row[None])[0].tobytes() for row in x]


@pytest.fixture(scope="module")
def packaged() -> Embedder:
    embedder = Embedder.load()
    embedder._load_encoder()
    return embedder


@pytest.mark.slow
def test_packaged_model_embeds_in_order_whatever_the_batch(packaged: Embedder) -> None:
    seen: list[tuple[int, int]] = []
    rows = packaged.encode(TEXTS * 2, lambda done, total: seen.append((done, total)))
    assert rows.shape == (10, packaged.dimension) == (10, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(packaged.encode([text])[0], rows[i], atol=2e-6)
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    # "card" is nearer to "card" than to "chest pain"
    near, far = packaged.encode(["My card was stolen"]) @ rows[[0, 3]].T @ np.eye(2)[:, :, None]
    assert near.item() > far.item()


@pytest.fixture(scope="module")
def by_torch() -> Embedder:
    """The packaged model's folder as a local one, which torch computes."""
    return Embedder.load(model_folder(PACKAGED))


@pytest.mark.slow
def test_numpy_and_torch_encoders_agree_with_sentence_transformers(packaged: Embedder, by_torch: Embedder) -> None:
    texts = [*TEXTS, *some_texts(8, 6), "pain " * 254]  # the last fills one window
    model: Any = by_torch._load_encoder()
    reference = model._padded.model.encode(texts, convert_to_numpy=True, normalize_embeddings=True)
    np.testing.assert_allclose(by_torch.encode(texts), reference, atol=2e-6)
    assert (packaged.encode(texts) * reference).sum(axis=1).min() >= 1 - 1e-5
    assert packaged.fingerprint != by_torch.fingerprint, "other bits, another embedder"
    assert packaged.dimension == by_torch.dimension


def words(count: int, *, seed: int = 0) -> str:
    """A text of so many tokens."""
    return " ".join(np.random.default_rng(seed).choice(["chest", "pain", "since", "yesterday", "card", "lost"], count))


@pytest.mark.parametrize("count", [254, 255, 300, 477, 478, 900, 1815, 1816, 4000])
def test_windows_cover_a_text_up_to_the_bound_and_overlap(packaged: Embedder, count: int) -> None:
    encoder = packaged._load_encoder()
    tokens = np.arange(count + 2, dtype=np.int32)
    windows = embedding._token_windows(tokens, encoder, 8)
    assert len({len(each) for each in windows}) == 1
    assert max(map(len, windows)) <= encoder.window
    assert all((each[0], each[-1]) == (0, count + 1) for each in windows)
    seen = [set(each[1:-1].tolist()) for each in windows]
    assert set().union(*seen) == set(range(1, min(count, 254 + 7 * 223) + 1))
    assert all(len(left & right) >= 31 for left, right in pairwise(seen))
    assert len(windows) == (1 if count <= 254 else min(8, -(-(count - 31) // 223)))


@pytest.mark.slow
def test_end_of_a_long_text_changes_its_embedding(packaged: Embedder) -> None:
    common = "the patient was seen with pain in the chest and was given oxygen . " * 20
    home, died = packaged.encode([common + "discharged home", common + "died of septic shock"])
    assert home @ died < 0.999
    cut = Embedder.load(PACKAGED, 1).encode([common + "discharged home", common + "died of septic shock"])
    assert bits(cut)[0] == bits(cut)[1]


@pytest.mark.slow
def test_a_text_s_windows_are_pooled_in_their_order(packaged: Embedder) -> None:
    text = words(700)
    tokens = np.array(packaged._load_encoder().ids([text])[0], dtype=np.int32)
    total = np.zeros(384)
    for each in embedding._token_windows(tokens, packaged._load_encoder(), 8):
        (row,) = packaged.encode([packaged._load_encoder()._tokenizer.decode(each[1:-1])])  # type: ignore[attr-defined]
        total += row
    np.testing.assert_allclose(packaged.encode([text])[0], total / np.linalg.norm(total), atol=1e-6)


def test_windows_that_cancel_out_give_the_zero_row() -> None:
    units = np.zeros((5, 3), dtype=np.float32)
    units[:, 0] = [1, -1, 1, -1 + 1e-7, 0]
    units[4, 1] = 1
    rows = embedding._pool_windows(units, [0, 0, 1, 1, 3], 4)
    assert rows.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0]]


@pytest.mark.slow
def test_embedder_counts_long_texts_and_those_it_reads_only_in_part(packaged: Embedder) -> None:
    one_of_each = ["short", words(254), words(255, seed=1), words(1815, seed=2), words(1816, seed=3)]
    assert packaged.lengths(one_of_each) == TextLengths(texts=5, long=3, cut=1)
    of_two = Embedder.load(PACKAGED, 2)
    of_two._load_encoder()
    assert of_two.lengths(one_of_each) == TextLengths(texts=5, long=3, cut=2)
    assert "the end of 1 is not read" in TextLengths(5, 3, 1).words
    assert not TextLengths(5, 0, 0).words


def test_encoder_window_and_bound_are_in_the_fingerprint(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "model", WORDS)
    found = {Embedder.load(folder).fingerprint, Embedder.load(folder, 3).fingerprint}
    settings_file = folder / "sentence_bert_config.json"
    settings_file.write_text(settings_file.read_text().replace("64", "32"))
    assert len(found | {Embedder.load(folder).fingerprint}) == 3


@pytest.mark.slow
def test_embedder_of_a_local_folder_reads_texts_beyond_its_window(tmp_path: Path) -> None:
    embedder = Embedder.load(write_embedder(tmp_path / "model", ["chest", "pain", "home", "died"]))
    texts = ["chest pain " * 40 + end for end in ("home", "died")]
    assert embedder.lengths(texts).long == 2
    home, died = embedder.encode(texts)
    assert home.tobytes() != died.tobytes()


def bits(rows: Float32) -> list[bytes]:
    return [row.tobytes() for row in rows]


WORDS = ("chest", "pain", "since", "yesterday", "card", "lost", "the", "of", "was", "1987", "mg", "no", "Ünïcode")


def some_texts(seed: int, count: int, longest: int = 60) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, longest))) for _ in range(count)]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Numpy's products with so many threads, and a pool of as many."""
    with threadpool_limits(count, user_api="blas"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(workers, "_POOLS", {})
        patched.setattr(workers, "_core_count", lambda: count)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("count", slow_but(range(1, 5), [2]))
def test_a_text_has_the_same_bits_beside_any_other_texts(packaged: Embedder, count: int) -> None:
    """Position, batch mates, the last batch that is filled up, one text alone, and the number of threads."""
    texts = [*TEXTS, *some_texts(0, 8), words(400)]
    expected = dict(zip(texts, bits(packaged.encode(texts)), strict=True))
    rng = np.random.default_rng(count)
    with threads(count):
        for kept in (len(texts), 1):
            chosen = [texts[row] for row in rng.permutation(len(texts))[:kept]]
            others = some_texts(int(rng.integers(1, 99)), int(rng.integers(0, 12)))
            together = [*chosen, *others]
            order = rng.permutation(len(together))
            found = bits(packaged.encode([together[row] for row in order]))
            assert {together[row]: one for row, one in zip(order, found, strict=True) if row < kept} == {
                text: expected[text] for text in chosen
            }


LENGTHS = [2, 6, 7, 8, 15, 16, 31, 40, 70, 127, 128, 200, 254, 255, 256]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", LENGTHS)
def test_a_text_has_the_same_bits_at_every_place_of_a_batch(packaged: Embedder, tokens: int) -> None:
    encoder: Any = packaged._load_encoder()
    rng = np.random.default_rng(tokens)
    text = np.full(tokens, 3255, dtype=np.int32)
    expected = encoder.vectors([text])[0].tobytes()
    for _ in range(2):
        mates = [rng.integers(1000, 9000, length).astype(np.int32) for length in rng.integers(2, 60, 24)]
        windows = [window for mate in mates for window in (mate, text)][:: 1 if tokens < 100 else 8]
        vectors = encoder.vectors(windows)
        same = [row.tobytes() == expected for row, window in zip(vectors, windows, strict=True) if window is text]
        assert all(same) or not same
    assert encoder.vectors([mates[0], text])[1].tobytes() == expected


class ShownPlaces:
    """A padded model in place of torch's: its rows depend on their place or on their mates, as a kernel's might.

    Args:
        how: "place", "last" (only the last place differs), "mates", or "" for a model without such a fault.
    """

    window, special, pad = 64, (1, 1), 0

    def __init__(self, how: str) -> None:
        self._how = how
        self.shapes: set[tuple[int, ...]] = set()

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [[1, *(sum(word.encode()) % 997 + 3 for word in text.split()), 2] for text in texts]

    def vectors(self, ids: Any, mask: Any) -> Float32:
        self.shapes.add(ids.shape)
        angles = (ids * mask)[:, :, None] * np.arange(1.0, 9.0)
        vectors = np.array([np.cos(row[shown]).sum(axis=0) for row, shown in zip(angles, mask, strict=True)])
        places = np.arange(len(ids))
        shift = {
            "place": places,
            "last": places == len(ids) - 1,
            "mates": np.full(len(ids), float(ids.sum() % 7)),
            "": np.zeros(len(ids)),
        }[self._how]
        return (vectors * (1 + shift[:, None] * 2.0**-20 * (len(ids) > 1))).astype(np.float32)


def fixed_shapes(how: str, *, alone: bool = False) -> tuple[Embedder, ShownPlaces]:
    padded = ShownPlaces(how)
    embedder = Embedder("a padded model", "00" * 32)
    embedder._encoder = FixedShapes(padded, 8, alone=alone)
    embedder.dimension = 8
    return embedder, padded


@pytest.mark.parametrize("how", ["place", "last", "mates", "alone"])
def test_each_text_is_its_own_batch_if_matrix_products_mix_rows(how: str) -> None:
    embedder, padded = fixed_shapes("" if how == "alone" else how, alone=how == "alone")
    texts = some_texts(3, 8, 12)
    rows = bits(embedder.encode(texts))
    padded.shapes.clear()
    assert bits(embedder.encode(texts[::-1]))[::-1] == rows
    assert {shape[0] for shape in padded.shapes} == {1}


def test_batches_are_padded_to_fixed_shapes() -> None:
    embedder, padded = fixed_shapes("")
    texts = some_texts(3, 30, 12)
    rows = bits(embedder.encode(texts))
    assert {rows * width for rows, width in padded.shapes} == {192}
    assert [bits(embedder.encode([text]))[0] for text in texts] == rows


@pytest.mark.slow
def test_cached_embeddings_have_the_bits_of_newly_computed_ones(packaged: Embedder) -> None:
    texts = [*TEXTS[:3], TEXTS[4], *some_texts(5, 6, 12)]
    cold = bits(CachedEmbedder(packaged, MemoryCache()).encode(texts))
    for seen in (texts[::3], texts[7:8], texts[:-1], some_texts(6, 9, 20)):
        warm = CachedEmbedder(packaged, MemoryCache())
        warm.encode(seen)
        assert bits(warm.encode(texts)) == cold
    assert bits(quantise(packaged.encode(texts))) == cold


def test_texts_that_no_tokenizer_takes_are_embedded_too(packaged: Embedder) -> None:
    odd = ["\ud800", "pain \udfff\ud800 chest", "\0", "\n", "\u202e", "a" * 100_000]
    rows = CachedEmbedder(packaged, MemoryCache()).encode(odd)
    assert np.isfinite(rows).all()
    assert (np.linalg.norm(rows, axis=1) > 0.99).all()


@pytest.mark.parametrize("who", ["model", "tokenizer"])
def test_embedding_that_fails_at_one_text_leaves_the_others_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    # all texts would count as zero otherwise, and so show that one of them holds that word
    folder = write_embedder(tmp_path / "model", ("pain", "chest", "rare"))
    if who == "model":
        fails_at_last_word(folder)
    embedder = Embedder.load(folder)
    if who == "tokenizer":
        own = TorchModel.ids

        def ids(encoder: TorchModel, texts: Sequence[str]) -> Any:
            if any("rare" in text for text in texts):
                raise Exception("Missing [UNK] token from the vocabulary")  # as tokenizers' own
            return own(encoder, texts)

        monkeypatch.setattr(TorchModel, "ids", ids)
    without = embedder.encode(["chest pain", "pain"])
    beside = embedder.encode(["chest pain", "rare chest", "pain", "rare"])
    assert bits(beside[[0, 2]]) == bits(without)
    assert without.any(axis=1).all()
    assert not beside[[1, 3]].any()


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.nan, 0.0])
def test_a_folder_s_broken_model_is_refused_when_it_is_loaded(tmp_path: Path, number: float) -> None:
    from safetensors.torch import load_file, save_file

    weights = write_embedder(tmp_path / "model", ["card", "chest"]) / "model.safetensors"
    broken = load_file(weights)
    for values in broken.values():
        values.fill_(number)
    save_file(broken, weights, metadata={"format": "pt"})
    embedder = Embedder.load(tmp_path / "model")
    for _ in range(2):  # nobody may use it later either
        with pytest.raises(ConfigurationError):
            embedder.encode(["a record"])


def test_model_folder_changed_after_its_fingerprint_is_refused(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "model", WORDS)
    embedder = Embedder.load(folder)
    (folder / "README.md").write_text("another")
    with pytest.raises(ConfigurationError, match="changed"):
        embedder.encode(["a"])


@pytest.fixture(params=["memory", "public", "encrypted"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> EmbeddingCache:
    if request.param == "memory":
        return MemoryCache()
    if request.param == "public":
        return PublicFileCache(tmp_path / "deep" / "cache.sqlite")
    return EncryptedFileCache(tmp_path / "cache.sqlite", KEY)


def test_cached_text_is_embedded_once(cache: EmbeddingCache) -> None:
    counting, embedder = cached(cache)
    first = embedder.encode([*TEXTS, TEXTS[0], "Ünïcode"])  # the last in another normal form
    assert len(counting.asked) == len(TEXTS)
    np.testing.assert_array_equal(first[0], first[5])
    np.testing.assert_array_equal(first[4], first[6])
    seen: list[tuple[int, int]] = []
    again = embedder.encode([TEXTS[2], "new", TEXTS[0]], lambda done, total: seen.append((done, total)))
    assert counting.asked[len(TEXTS) :] == ["new"]
    np.testing.assert_array_equal(again[[0, 2]], first[[2, 0]])
    assert seen == [(2, 3), (3, 3)]
    np.testing.assert_array_equal(quantise(counting.encode(["new"])), again[1:2])
    assert embedder.encode([]).shape == (0, 24)


def test_different_embedders_share_no_cached_embedding(cache: EmbeddingCache) -> None:
    _, embedder = cached(cache)
    embedder.encode(["a"])
    counting, other = cached(cache)
    counting.fingerprint = "cd" * 32
    other.encode(["a"])
    assert counting.asked == ["a"]


def test_private_cache_shows_neither_text_nor_embedding_nor_membership(tmp_path: Path) -> None:
    path = tmp_path / "private.sqlite"
    _, embedder = cached(EncryptedFileCache(path, KEY))
    rows = embedder.encode(["the secret note"])
    _, public = cached(PublicFileCache(tmp_path / "public.sqlite"))
    public.encode(["the secret note"])
    grid = (rows * GRID).astype("<i2").tobytes()
    content = b"".join(each.read_bytes() for each in tmp_path.glob("private.sqlite*"))
    clear = b"".join(each.read_bytes() for each in tmp_path.glob("public.sqlite*"))
    key = tagged_hash("undersong embedding", bytes.fromhex(embedder.fingerprint), b"the secret note")
    assert grid in clear
    assert key in clear, "the test would find what it looks for"
    assert grid[:16] not in content
    assert key not in content
    assert b"secret" not in content
    assert path.stat().st_mode & 0o077 == 0


def test_private_cache_opened_with_another_key_or_damaged_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "private.sqlite"
    _, embedder = cached(EncryptedFileCache(path, KEY))
    rows = embedder.encode(["a", "b"])
    other, stranger = cached(EncryptedFileCache(path, bytes(32)))
    np.testing.assert_array_equal(stranger.encode(["a"]), rows[:1])
    assert other.asked == ["a"]
    with sqlite3.connect(path) as database:
        database.execute(
            "UPDATE embeddings SET row = CAST(substr(row, 1, length(row) - 1)"
            " || iif(substr(row, -1) = x'00', x'01', x'00') AS BLOB)"
        )
    database.close()
    fresh, again = cached(EncryptedFileCache(path, KEY))
    np.testing.assert_array_equal(again.encode(["a", "b"]), rows)
    assert fresh.asked == ["a", "b"]
    np.testing.assert_array_equal(again.encode(["a", "b"]), rows)
    assert fresh.asked == ["a", "b"], "repaired"
    with pytest.raises(ConfigurationError, match="bytes, not 32"):
        EncryptedFileCache(path, b"short")


def test_file_that_is_no_embedding_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(ConfigurationError, match=r"c\.sqlite"):
        PublicFileCache(tmp_path / "c.sqlite")


@pytest.mark.parametrize("at", ["the start", "a later text"])
def test_cache_without_free_descriptors_is_a_machine_fault_not_damage(tmp_path: Path, at: str) -> None:
    file_cache = PublicFileCache(tmp_path / "c.sqlite")
    with without_descriptors(), raises(MachineFault, "emfile"):
        if at == "the start":
            PublicFileCache(tmp_path / "c.sqlite")
        else:
            file_cache.get([bytes(32)])


def _fill(path: str, start: int) -> None:
    _, embedder = cached(EncryptedFileCache(Path(path), KEY))
    for low in range(start, start + 60, 6):
        embedder.encode([f"t{number}" for number in range(low, low + 12)])


@pytest.mark.slow
def test_processes_share_one_file_of_cached_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    context = multiprocessing.get_context("fork")
    workers: list[Any] = [context.Process(target=_fill, args=(str(path), start)) for start in (0, 30, 30)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    counting, embedder = cached(EncryptedFileCache(path, KEY))
    embedder.encode([f"t{number}" for number in range(96)])
    assert not counting.asked


@given(hnp.arrays(np.float64, (3, 8), elements=st.floats(-2.0, 2.0)))
def test_published_embeddings_lie_on_the_coarse_and_the_fine_grid(rows: Any) -> None:
    found = publishable(rows)
    grid = found.astype(np.float64) * PUBLIC_GRID
    np.testing.assert_array_equal(grid, np.rint(grid))
    assert GRID % PUBLIC_GRID == 0
    assert np.square(grid).sum(axis=1).max() <= PUBLIC_GRID**2
    np.testing.assert_array_equal(quantise(found), found)
    np.testing.assert_array_equal(publishable(found), found)
    scaled = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    assert np.abs(found - scaled).max() < 2.0 / PUBLIC_GRID


def test_garbage_collection_resumes_after_a_model_loads_or_fails() -> None:
    def cannot_be_loaded() -> None:
        with encoders.without_collections():
            with encoders.without_collections():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise MemoryError

    with pytest.raises(MemoryError):
        cannot_be_loaded()
    assert gc.isenabled()


@pytest.mark.slow
def test_party_embeds_and_votes_without_torch_bit_equal_on_any_threads() -> None:
    script = """
import hashlib, sys
for name in ("torch", "sentence_transformers", "transformers", "pyarrow", "sklearn"):
    sys.modules[name] = None
import numpy as np
from undersong_common.models.embedding import Embedder, quantise
from undersong_protocol.statistics.nearest import NearestFurthest
texts = ["chest pain", "a lost card", "pain since monday " * 90]
rows = quantise(Embedder.load().encode(texts))
compared = NearestFurthest(rows, None, 2)
compared.extend(rows[::-1].copy(), None)
near = compared.near
assert near[:, 0].tolist() == [2, 1, 0]
print(hashlib.sha256(rows.tobytes() + near.tobytes()).hexdigest())
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            timeout=200,
            env={**os.environ, "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count},
        ).stdout
        for count in ("1", "4", "2")[: examples(2, 3)]
    }
    assert len(found) == 1


@pytest.mark.slow
def test_classifier_of_whole_note_embeddings_nears_one_of_word_counts(packaged: Embedder) -> None:
    """Invented notes of 600 to 1 500 words with six labels, which their last third decides."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    texts, labels = zip(*long_notes.notes(120), strict=True)

    def percent(rows: Any) -> float:
        return float(
            100 * LogisticRegression(C=30.0, max_iter=2000).fit(rows[:80], labels[:80]).score(rows[80:], labels[80:])
        )

    words = percent(TfidfVectorizer().fit(texts[:80]).transform(texts))
    whole = percent(packaged.encode(texts))
    assert whole >= words - 5
    assert whole >= percent(Embedder.load(PACKAGED, 1).encode(texts)) + 10


def test_a_cache_that_another_process_makes_this_moment_is_waited_for(tmp_path):
    path = tmp_path / "public.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        ended = threading.Timer(0.1, other.execute, ["ROLLBACK"])
        ended.start()
        cache = PublicFileCache(path)
        ended.join()
    cache.put([(b"key", np.zeros(4, dtype=np.int16))])
    assert list(cache.get([b"key"])) == [b"key"]
