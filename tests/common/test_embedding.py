"""Embeddings: the grid that makes votes exact, the packaged model, caches that share, and privacy on the disk."""

from __future__ import annotations

import gc
import multiprocessing
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.doubles.tiny_bert import fails_at_last_word, write_embedder
from undersong_common import embedding, workers
from undersong_common.arrays import Float32
from undersong_common.embedding import (
    GRID,
    PUBLIC_GRID,
    CachedEmbedder,
    Embedder,
    EmbeddingCache,
    EncryptedFileCache,
    MemoryCache,
    PublicFileCache,
    publishable,
    quantise,
)
from undersong_common.errors import ConfigurationError
from undersong_common.model_files import PACKAGED

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


@settings(max_examples=60, deadline=None)
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
def test_what_is_not_finite_counts_as_zero_and_other_rows_stay(bad: float) -> None:
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
    embedder._loaded()
    return embedder


@pytest.mark.heavy
def test_packaged_model_embeds_in_order_whatever_the_batch(packaged: Embedder) -> None:
    seen: list[tuple[int, int]] = []
    rows = packaged.encode(TEXTS * 8, lambda done, total: seen.append((done, total)))
    assert rows.shape == (40, packaged.dimension) == (40, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    for i, text in enumerate(TEXTS):
        np.testing.assert_allclose(packaged.encode([text])[0], rows[i], atol=2e-6)
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    # "card" is nearer to "card" than to "chest pain"
    near, far = packaged.encode(["My card was stolen"]) @ rows[[0, 3]].T @ np.eye(2)[:, :, None]
    assert near.item() > far.item()


@pytest.mark.heavy
def test_equal_to_sentence_transformers_own_encode(packaged: Embedder) -> None:
    reference = packaged._loaded().encode(TEXTS, convert_to_numpy=True, normalize_embeddings=True)
    np.testing.assert_allclose(packaged.encode(TEXTS), reference, atol=2e-6)


def bits(rows: Float32) -> list[bytes]:
    return [row.tobytes() for row in rows]


WORDS = ("chest", "pain", "since", "yesterday", "card", "lost", "the", "of", "was", "1987", "mg", "no", "Ünïcode")


def some_texts(seed: int, count: int, longest: int = 60) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, longest))) for _ in range(count)]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch with so many threads, and a pool of as many."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(workers, "_POOLS", {})
            yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3, 4))])
def test_a_text_has_the_same_bits_beside_any_other_texts(packaged: Embedder, count: int) -> None:
    """Position, batch mates, the last batch that is filled up, one text alone, and the number of threads."""
    texts = [*TEXTS, *some_texts(0, 20)]
    expected = dict(zip(texts, bits(packaged.encode(texts)), strict=True))
    rng = np.random.default_rng(count)
    with threads(count):
        for kept in (len(texts), 9, 1):
            chosen = [texts[row] for row in rng.permutation(len(texts))[:kept]]
            others = some_texts(int(rng.integers(1, 99)), int(rng.integers(0, 12)))
            together = [*chosen, *others]
            order = rng.permutation(len(together))
            found = bits(packaged.encode([together[row] for row in order]))
            assert {together[row]: one for row, one in zip(order, found, strict=True) if row < kept} == {
                text: expected[text] for text in chosen
            }


@pytest.mark.parametrize("tokens", [2, 6, 7, 8, 15, 16, 31, 40, 70, 127, 128, 200, 254, 255, 256])
def test_every_place_in_a_batch_of_every_width_gives_the_same_bits(packaged: Embedder, tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    text = " ".join(["pain"] * (tokens - 2))
    width = embedding._width(tokens, 256)
    rows = packaged._batch_rows(width)
    assert rows == (1 if width == 256 else max(1, 192 // width)), "this machine's products mix rows"
    alone = packaged.encode([text])[0].tobytes()
    narrower = embedding._width(tokens - 1, 256) if tokens > 2 else 0
    for place in sorted({0, 1, 2, rows // 2, rows - 2, rows - 1} & set(range(rows))):
        mates = [" ".join(rng.choice(WORDS[:4], max(0, tokens - 2 - (narrower == width)))) for _ in range(rows)]
        mates[place] = text
        assert packaged.encode(mates)[place].tobytes() == alone


class MixingModel:
    """A model whose rows depend on their place in the batch or on the others in it, as a kernel's might."""

    max_seq_length = 64

    def __init__(self, real: Any, how: str) -> None:
        self._real, self._how = real, how
        self.tokenizer = real.tokenizer
        self.shapes: set[tuple[int, ...]] = set()

    def __getitem__(self, number: int) -> Any:
        return self._real[number]

    def __call__(self, features: Any) -> Any:
        import torch

        self.shapes.add(tuple(features["input_ids"].shape))
        found = self._real(features)["sentence_embedding"]
        moved = torch.arange(len(found))[:, None] if self._how == "place" else found.sum()
        return {"sentence_embedding": found * (1 + moved * 2.0**-20 * (len(found) > 1))}


@pytest.mark.parametrize("how", ["place", "mates"])
def test_where_a_machine_s_products_mix_rows_each_text_is_a_batch(packaged: Embedder, how: str) -> None:
    embedder = Embedder(PACKAGED, packaged.fingerprint)
    embedder._model = model = MixingModel(packaged._loaded(), how)
    texts = some_texts(3, 20, 12)
    found = bits(embedder.encode(texts))
    assert set(embedder._rows.values()) == {1}
    model.shapes.clear()
    assert bits(embedder.encode(texts[::-1]))[::-1] == found
    assert {shape[0] for shape in model.shapes} == {1}


def test_a_warm_cache_gives_the_bits_of_a_cold_one(packaged: Embedder) -> None:
    texts = [*TEXTS, *some_texts(5, 12, 20)]
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
def test_what_fails_at_one_text_fails_at_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    # all texts would count as zero otherwise, and so show that one of them holds that word
    folder = write_embedder(tmp_path / "model", ("pain", "chest", "rare"))
    if who == "model":
        fails_at_last_word(folder)
    embedder = Embedder.load(folder)
    if who == "tokenizer":
        own = embedder._tokens

        def tokens(texts: Sequence[str]) -> Any:
            if any("rare" in text for text in texts):
                raise Exception("Missing [UNK] token from the vocabulary")  # as tokenizers' own
            return own(texts)

        monkeypatch.setattr(embedder, "_tokens", tokens)
    without = embedder.encode(["chest pain", "pain"])
    beside = embedder.encode(["chest pain", "rare chest", "pain", "rare"])
    assert bits(beside[[0, 2]]) == bits(without)
    assert without.any(axis=1).all()
    assert not beside[[1, 3]].any()


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


def test_the_model_that_is_loaded_is_the_one_with_the_fingerprint(tmp_path: Path) -> None:
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


def test_each_text_is_computed_once(cache: EmbeddingCache) -> None:
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


def test_another_embedder_shares_nothing(cache: EmbeddingCache) -> None:
    _, embedder = cached(cache)
    embedder.encode(["a"])
    counting, other = cached(cache)
    counting.fingerprint = "cd" * 32
    other.encode(["a"])
    assert counting.asked == ["a"]


def test_many_texts_in_a_file(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1300)]
    _, embedder = cached(PublicFileCache(tmp_path / "c.sqlite"))
    rows = embedder.encode(texts)
    fresh, again = cached(PublicFileCache(tmp_path / "c.sqlite"))
    np.testing.assert_array_equal(again.encode(texts[::-1]), rows[::-1])
    assert not fresh.asked


def test_private_cache_shows_neither_text_nor_embedding_nor_membership(tmp_path: Path) -> None:
    path = tmp_path / "private.sqlite"
    _, embedder = cached(EncryptedFileCache(path, KEY))
    rows = embedder.encode(["the secret note"])
    _, public = cached(PublicFileCache(tmp_path / "public.sqlite"))
    public.encode(["the secret note"])
    grid = (rows * GRID).astype("<i2").tobytes()
    content = b"".join(each.read_bytes() for each in tmp_path.glob("private.sqlite*"))
    clear = b"".join(each.read_bytes() for each in tmp_path.glob("public.sqlite*"))
    key = embedder._key("the secret note")
    assert grid in clear
    assert key in clear, "the test would find what it looks for"
    assert grid[:16] not in content
    assert key not in content
    assert b"secret" not in content
    assert path.stat().st_mode & 0o077 == 0


def test_private_cache_under_another_key_or_damaged_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "private.sqlite"
    _, embedder = cached(EncryptedFileCache(path, KEY))
    rows = embedder.encode(["a", "b"])
    other, stranger = cached(EncryptedFileCache(path, bytes(32)))
    np.testing.assert_array_equal(stranger.encode(["a"]), rows[:1])
    assert other.asked == ["a"]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE embeddings SET row = CAST(substr(row, 1, length(row) - 1) || x'00' AS BLOB)")
    database.close()
    fresh, again = cached(EncryptedFileCache(path, KEY))
    np.testing.assert_array_equal(again.encode(["a", "b"]), rows)
    assert fresh.asked == ["a", "b"]
    np.testing.assert_array_equal(again.encode(["a", "b"]), rows)
    assert fresh.asked == ["a", "b"], "repaired"
    with pytest.raises(ConfigurationError, match="32 bytes"):
        EncryptedFileCache(path, b"short")


def test_a_file_that_is_no_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(ConfigurationError, match=r"c\.sqlite"):
        PublicFileCache(tmp_path / "c.sqlite")


def _fill(path: str, start: int) -> None:
    _, embedder = cached(EncryptedFileCache(Path(path), KEY))
    for low in range(start, start + 60, 6):
        embedder.encode([f"t{number}" for number in range(low, low + 12)])


def test_two_processes_share_a_file(tmp_path: Path) -> None:
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
def test_what_is_published_lies_on_the_coarse_grid_and_so_on_the_fine_one(rows: Any) -> None:
    found = publishable(rows)
    grid = found.astype(np.float64) * PUBLIC_GRID
    np.testing.assert_array_equal(grid, np.rint(grid))
    assert GRID % PUBLIC_GRID == 0
    assert np.square(grid).sum(axis=1).max() <= PUBLIC_GRID**2
    np.testing.assert_array_equal(quantise(found), found)
    np.testing.assert_array_equal(publishable(found), found)
    scaled = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    assert np.abs(found - scaled).max() < 2.0 / PUBLIC_GRID


def test_garbage_is_collected_again_after_a_model_was_loaded_or_could_not_be() -> None:
    def cannot_be_loaded() -> None:
        with embedding._without_collections():
            with embedding._without_collections():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise MemoryError

    with pytest.raises(MemoryError):
        cannot_be_loaded()
    assert gc.isenabled()
