"""Computes unit embeddings of texts, once per text; embeddings of private texts never lie in clear on a disk.

A text's embedding depends on the text and the model alone, to the last bit: not on the texts that are embedded with it,
their number or their order, nor on the number of threads or on what is cached. The packaged model has each token at a
place that the kernel in use treats as any other (undersong_common.models.numpy_bert). Other models have batches of
fixed shapes, which are tried out (undersong_common.models.fixed_shapes). One thread computes a batch. This holds on one
machine with one version of its libraries. Another processor may give other last bits, which changes nothing that is
promised: sensitivities hold for whatever embeddings a party has, the candidates that parties compare with are published
as numbers, and votes need the same model, not the same bits.

Embeddings are quantised to multiples of 1/GRID with norm at most 1 before anyone compares them: half precision holds
them exactly, and every inner product of two of them is exact in float32 in any order of summation. What is published
lies on a coarser grid, 1/PUBLIC_GRID, a part of the finer one, so all of this holds for it too: its coordinates cost
less than 5 bits on the wire, and everyone, the coordinator included, computes with exactly what was published.
"""

import hmac
import logging
import os
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from undersong_common.arrays import Float32, Float64, Floats, Int16
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.files import open_database
from undersong_common.models import model_files
from undersong_common.models.encoders import Encoder, Tokens, TorchModel
from undersong_common.models.fixed_shapes import FixedShapes
from undersong_common.models.hidden_states import HiddenStates
from undersong_common.models.numpy_bert import NumpyBert
from undersong_common.models.workers import in_order, row_norms
from undersong_common.program.machine import named_faults

Embed = Callable[[Sequence[str]], Float32]  # texts -> quantised unit embeddings, float32 [n, d]
Progress = Callable[[int, int], None]

log = logging.getLogger(__name__)

GRID = 2048  # 1/GRID is the resolution: coordinates of at most 1 are exact in half precision
PUBLIC_GRID = 128  # divides GRID; rounding moves a unit vector of 384 coordinates by about 0.04

_ADDED_TOKENS = 8  # A tokenizer adds 2 or 3 for the beginning and the end of a text.
_OVERLAP = 8  # a window shares an eighth of its tokens with the next one
_LEAST_NORM = 1e-6  # a text whose windows' unit vectors have a sum of a smaller norm has the zero embedding
_TEXTS_A_TOKENIZER = 256  # texts tokenized at once: a tokenizer keeps more of a text than its ids
# Public texts that try out a model. No two have the same number of words or the same letters.
TRIAL_TEXTS = (
    "Where is my card?",
    "The patient was seen with pain in the chest since Monday.",
    "A film from 1987 that is too long, with a good ending and much music in every scene.",
)
_TEXTS_A_SLAB = 4096  # texts embedded between two writes to a cache
_QUERY_KEYS = 500  # below SQLite's limit of host parameters


def quantise(embeddings: Floats) -> Float32:
    """Rounds rows to multiples of 1/GRID with norm at most 1: [n, d] in, float32 [n, d] out.

    Rows longer than 1 are scaled to the unit sphere first; rounding goes to the nearest multiple, and a row that it
    made longer than 1 is shrunk a little and rounded again.

    A coordinate that is not finite becomes zero. A row's result does not depend on the other rows.
    """
    return _from_grid(_to_grid(embeddings))


def publishable(embeddings: Floats) -> Float32:
    """Rounds rows as :func:`quantise` does, to multiples of 1/PUBLIC_GRID, for embeddings that are published."""
    return _to_grid(embeddings, PUBLIC_GRID, shrink=2.0**-10).astype(np.float32) / np.float32(PUBLIC_GRID)


def _to_grid(embeddings: Floats, resolution: int = GRID, *, shrink: float = 2.0**-13) -> Int16:
    """Returns rows in multiples of 1/``resolution``; one that rounding made too long is shortened by ``shrink``."""
    finite_rows = _finite_values(embeddings)
    with np.errstate(over="ignore"):  # a norm that is infinite makes its row zero
        scaled_rows = finite_rows * (resolution / np.maximum(row_norms(finite_rows), 1.0))[:, None]
    grid = np.rint(scaled_rows)
    while (is_too_long := np.einsum("nd,nd->n", grid, grid) > resolution**2).any():  # integers: exact in any order
        scaled_rows[is_too_long] *= 1.0 - shrink
        grid[is_too_long] = np.rint(scaled_rows[is_too_long])
    return grid.astype(np.int16)


def _finite_values(values: Floats) -> Float64:
    """Returns float64 values, zero in place of those that are not finite."""
    exact_values = np.asarray(values, dtype=np.float64)
    if np.isfinite(exact_values).all():
        return exact_values
    return np.nan_to_num(exact_values, nan=0.0, posinf=0.0, neginf=0.0)


def _from_grid(grid: Int16) -> Float32:
    return grid.astype(np.float32) / np.float32(GRID)


@dataclass(frozen=True)
class TextLengths:
    """Counts of the texts that are too long for one window of an embedder, shown to the texts' owner.

    Attributes:
        texts: texts examined.
        long: texts with more tokens than one window holds.
        cut: long texts whose end lies beyond the last window that is read.
    """

    texts: int
    long: int
    cut: int

    @property
    def words(self) -> str:
        """Returns a sentence about the long and cut texts; "" if no text is long."""
        if not self.long:
            return ""
        cut_words = f"the end of {self.cut} is not read" if self.cut else "none is cut"
        long_words = f"{self.long} of {self.texts} texts are longer than the embedder reads at once"
        return f"{long_words}; it reads parts, and {cut_words}"


class Embedder:
    """Embeds texts with the packaged model (numpy) or a local folder's: sentence-transformers or hidden states (torch).

    A text that is longer than the model's window is read in overlapping windows of equal length, at most
    ``max_windows``. Its embedding is the mean of their unit vectors, normalised; what lies beyond the last window is
    cut. The model is loaded, and tried out on public texts, at the first use. Nothing is fetched.

    Attributes:
        fingerprint: SHA-256 (hex) over all files of the folder, the way to compute, and ``max_windows``; parties
            compare theirs before a run.
        max_windows: number of windows of a text that are read, from its beginning.
    """

    def __init__(self, model: str | Path, fingerprint: str, max_windows: int = model_files.MAX_WINDOWS) -> None:
        self._source = model
        self.fingerprint = fingerprint
        self.max_windows = max_windows
        self._encoder: Encoder | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Embedder({self.fingerprint[:12]})"

    @classmethod
    def load(cls, model: str | Path = model_files.PACKAGED, max_windows: int = model_files.MAX_WINDOWS) -> "Embedder":
        """Returns the packaged all-MiniLM-L6-v2, pinned file by file, or the model in a local folder.

        Raises:
            ConfigurationError: no such folder or package, a folder that could run code when it is loaded
                (undersong_common.models.model_files), files that are not the packaged model's, or ``max_windows`` out
                of range.
        """
        if not 1 <= max_windows <= model_files.MOST_WINDOWS:
            raise ConfigurationError(
                f"max_windows is {max_windows}, not between 1 and {model_files.MOST_WINDOWS}", "correct it: 8 is usual"
            )
        # A folder without a model is refused here, before all its files are hashed.
        model_files.embedding_size(model_files.model_folder(model))
        return cls(model, _model_fingerprint(model, max_windows), max_windows)

    @cached_property
    def dimension(self) -> int:
        """Number of coordinates of an embedding. Raises ConfigurationError if the folder's settings do not tell it."""
        return model_files.embedding_size(model_files.model_folder(self._source))

    def try_out(self) -> None:
        """Embeds public texts twice, to check that the model tells texts apart and gives the same bits both times.

        Raises ConfigurationError if a text has no vector, if the bits differ, or if different texts share a vector:
        every sum of a run would then cost budget and say nothing.
        """
        trial_rows = self.encode(TRIAL_TEXTS)
        repeated_rows = self.encode(TRIAL_TEXTS[::-1])[::-1]
        if not trial_rows.any(axis=1).all():
            trial_problem = "gives no vector for a public text"
        elif trial_rows.tobytes() != repeated_rows.tobytes():
            trial_problem = "gives other bits when it embeds the same text again"
        elif len(np.unique(_to_grid(trial_rows), axis=0)) < len(trial_rows):
            trial_problem = "gives the same vector for different texts"
        else:
            return
        raise ConfigurationError(f"the embedder {self._source} {trial_problem}", "correct it, or name another embedder")

    def lengths(self, texts: Sequence[str]) -> TextLengths:
        """Counts the texts that are longer than a window or than all windows, without embedding them."""
        encoder = self._load_encoder()
        # A short ASCII text has fewer tokens than one window, whatever the tokenizer: at most one a character, beside
        # those that it adds. Reading half a million notes for this count alone would take minutes.
        longer_texts = [text for text in texts if not text.isascii() or len(text) + _ADDED_TOKENS > encoder.window]
        token_counts = [len(tokens) for _, tokens in self._tokens_of_each(encoder, longer_texts)]
        long_count = sum(token_count > encoder.window for token_count in token_counts)
        return TextLengths(
            len(texts),
            long_count,
            sum(token_count > _longest_reach(encoder, self.max_windows) for token_count in token_counts),
        )

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Returns unit embeddings, float32 [n, d], in the order of the n ``texts``.

        A row is zero if the model fails at its text or gives a value that is not finite.

        A model that fails at one text must not fail at the others: a party that answered with zeros instead would show
        that it holds such a text.

        Args:
            progress: called with (done, total) after each batch.
        """
        encoder = self._load_encoder()
        with self._lock:
            numbered_windows: list[tuple[int, Tokens]] = []
            readable_count = 0
            for text_number, tokens in self._tokens_of_each(encoder, texts):
                readable_count += 1
                numbered_windows += [
                    (text_number, window) for window in _token_windows(tokens, encoder, self.max_windows)
                ]
            if readable_count < len(texts):
                log.warning(
                    "%d texts cannot be embedded by this model: they count as zero", len(texts) - readable_count
                )
            batches = encoder.batches([len(window) for _, window in numbered_windows])
            batch_vectors = in_order(
                lambda batch: encoder.vectors([numbered_windows[window_number][1] for window_number in batch]), batches
            )
            window_vectors = np.zeros((len(numbered_windows), self.dimension), dtype=np.float32)
            finished_count = 0
            for batch_members, rows in zip(batches, batch_vectors, strict=True):
                exact_rows = _finite_values(rows)
                window_vectors[batch_members] = exact_rows / np.maximum(row_norms(exact_rows), 1e-12)[:, None]
                finished_count += len(batch_members)
                if progress is not None:
                    progress(finished_count * len(texts) // len(numbered_windows), len(texts))
        return _pool_windows(window_vectors, [text_number for text_number, _ in numbered_windows], len(texts))

    def _tokens_of_each(self, encoder: Encoder, texts: Sequence[str]) -> Iterator[tuple[int, Tokens]]:
        """Yields position and tokens of every text but those that the tokenizer refuses."""
        for first_text in range(0, len(texts), _TEXTS_A_TOKENIZER):
            yield from self._tokens_from(encoder, texts[first_text : first_text + _TEXTS_A_TOKENIZER], first_text)

    def _tokens_from(self, encoder: Encoder, texts: Sequence[str], first_number: int) -> Iterator[tuple[int, Tokens]]:
        """Yields number and tokens of each text, from ``first_number`` on; halves the texts if one fails.

        A text by itself that fails is left out.
        """
        try:
            ids_of_texts = encoder.ids(texts)
        except Exception:  # noqa: BLE001 - whatever a tokenizer raises, in any language
            if len(texts) > 1:
                half_count = len(texts) // 2
                yield from self._tokens_from(encoder, texts[:half_count], first_number)
                yield from self._tokens_from(encoder, texts[half_count:], first_number + half_count)
            return
        yield from ((first_number + place, np.array(ids, dtype=np.int32)) for place, ids in enumerate(ids_of_texts))

    def _load_encoder(self) -> Encoder:
        with self._lock:
            if self._encoder is None:
                if _model_fingerprint(self._source, self.max_windows) != self.fingerprint:
                    raise ConfigurationError(
                        f"the embedder {self._source}: its files have changed since its fingerprint was taken",
                        "start this program again",
                    )
                self._encoder = _make_encoder(self._source)
                try:
                    self.try_out()
                except ConfigurationError:
                    self._encoder = None
                    raise
            return self._encoder


def _make_encoder(model: str | Path) -> Encoder:
    folder = model_files.model_folder(model)
    if str(model) == model_files.PACKAGED:
        return NumpyBert(folder)
    padded_model = HiddenStates(folder) if model_files.reads_hidden_states(folder) else TorchModel(folder)
    return FixedShapes(padded_model, model_files.embedding_size(folder), alone=model_files.mixes_experts(folder))


def _model_fingerprint(model: str | Path, max_windows: int) -> str:
    computed_by = "numpy" if str(model) == model_files.PACKAGED else "torch"
    tag = f"undersong embedder: {computed_by}, batches of fixed shape, {max_windows} windows"
    return model_files.fingerprint(tag, model_files.checked_hashes(model))


def _longest_reach(encoder: Encoder, max_windows: int) -> int:
    """Returns the number of tokens of the longest text that is read to its end, special ones included."""
    text_tokens = encoder.window - sum(encoder.special)
    return sum(encoder.special) + text_tokens + (max_windows - 1) * (text_tokens - text_tokens // _OVERLAP)


def _token_windows(tokens: Tokens, encoder: Encoder, max_windows: int) -> list[Tokens]:
    """Returns the windows of a text, each with special tokens: one, or overlapping ones of equal length."""
    if len(tokens) <= encoder.window:
        return [tokens]
    leading_count, trailing_count = encoder.special
    room_count = encoder.window - leading_count - trailing_count
    read_count = min(len(tokens), _longest_reach(encoder, max_windows)) - leading_count - trailing_count
    overlap_count = room_count // _OVERLAP
    window_count = -(-(read_count - overlap_count) // (room_count - overlap_count))
    window_length = -(-(read_count + (window_count - 1) * overlap_count) // window_count)
    window_starts = [
        leading_count + window_number * (read_count - window_length) // max(1, window_count - 1)
        for window_number in range(window_count)
    ]
    leading_tokens = tokens[:leading_count]
    trailing_tokens = tokens[len(tokens) - trailing_count :]
    return [
        np.concatenate([leading_tokens, tokens[window_start : window_start + window_length], trailing_tokens])
        for window_start in window_starts
    ]


def _pool_windows(window_vectors: Float32, text_numbers: Sequence[int], text_count: int) -> Float32:
    """Returns the normalised sum of the unit vectors of each text's windows, float32 [text_count, d], added in float64.

    It is zero if the norm of the sum is below ``_LEAST_NORM``, because its direction would be an accident.
    """
    text_sums = np.zeros((text_count, window_vectors.shape[1]))
    np.add.at(text_sums, list(text_numbers), window_vectors)
    norms = row_norms(text_sums)
    text_sums[norms < _LEAST_NORM] = 0.0
    return (text_sums / np.maximum(norms, _LEAST_NORM)[:, None]).astype(np.float32)


class EmbeddingCache(Protocol):
    """Interface of a store of quantised embeddings: rows int16 [d], in multiples of 1/GRID, by key.

    A key is the hash (32 bytes) of the embedder's fingerprint and a text.
    """

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        """Returns the stored rows by key; ``keys`` that are not stored are missing."""

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        """Stores rows by key; a key that is stored already keeps its row."""


class MemoryCache:
    """Keeps embeddings in memory, as long as the process lives."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Int16] = {}

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        return {text_key: self._rows[text_key] for text_key in keys if text_key in self._rows}

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        for text_key, row in rows:
            self._rows.setdefault(text_key, row)


_BUSY_S = 60.0  # the longest wait for another process that writes the file


class PublicFileCache:
    """Keeps embeddings of PUBLIC texts in clear in a SQLite file; several processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._named_faults(), closing(open_database(path, timeout_s=_BUSY_S)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID"
            )

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        rows_by_key: dict[bytes, Int16] = {}
        key_by_name = {self._name(text_key): text_key for text_key in keys}
        row_names = list(key_by_name)
        with self._open_database() as database:
            for part_start in range(0, len(row_names), _QUERY_KEYS):
                part_names = row_names[part_start : part_start + _QUERY_KEYS]
                select_query = f"SELECT key, row FROM embeddings WHERE key IN ({','.join('?' * len(part_names))})"  # noqa: S608 - marks only
                for row_name, stored_row in database.execute(select_query, part_names):
                    if (row := self._open_row(row_name, stored_row)) is not None:
                        rows_by_key[key_by_name[row_name]] = np.frombuffer(row, dtype="<i2")
        return rows_by_key

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        named_rows = [(self._name(text_key), row.astype("<i2").tobytes()) for text_key, row in rows]
        with self._open_database() as database:
            database.executemany(
                "INSERT OR REPLACE INTO embeddings VALUES (?, ?)",
                [(row_name, self._seal_row(row_name, row)) for row_name, row in named_rows],
            )

    @contextmanager
    def _open_database(self) -> Iterator[sqlite3.Connection]:
        # Each operation opens a connection, which is safe across forks and threads, and cheap beside an embedding.
        with (
            self._lock,
            self._named_faults(),
            closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as database,
            database,
        ):
            yield database

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        """Raises MachineFault for what the machine lacks, and ConfigurationError for a file that is no cache."""
        try:
            with named_faults(self._path):
                yield
        except ConfigurationError as fault:
            if fault.code != "damaged":
                raise
            raise ConfigurationError(
                f"{self._path}: is damaged, or not an embedding cache", "delete it; it is rebuilt", code="damaged"
            ) from None

    def _name(self, key: bytes) -> bytes:
        return key

    def _seal_row(self, _name: bytes, row: bytes) -> bytes:
        return row

    def _open_row(self, _name: bytes, stored: bytes) -> bytes | None:
        return stored


class EncryptedFileCache(PublicFileCache):
    """Keeps embeddings of private texts in a SQLite file, encrypted with AES-256-GCM and found by keyed hashes.

    Whoever reads the file without ``key`` learns the number of texts and the size of an embedding. They learn neither
    an embedding nor whether a given text is there. A row under another key, or a damaged one, counts as absent.

    Args:
        key: 32 secret bytes that the party keeps elsewhere.
        entropy: source of nonces.
    """

    def __init__(self, path: Path, key: bytes, entropy: Callable[[int], bytes] = os.urandom) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != 32:
            raise ConfigurationError(f"the embedding cache's key has {len(key)} bytes, not 32", "create a new key")
        self._index_key = hmac.digest(key, b"undersong embedding cache: index", "sha256")
        self._cipher = AESGCM(hmac.digest(key, b"undersong embedding cache: rows", "sha256"))
        self._entropy = entropy
        super().__init__(path)

    def _name(self, key: bytes) -> bytes:
        return hmac.digest(self._index_key, key, "sha256")

    def _seal_row(self, name: bytes, row: bytes) -> bytes:
        nonce = self._entropy(12)
        return nonce + self._cipher.encrypt(nonce, row, name)

    def _open_row(self, name: bytes, sealed_row: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed_row[:12], sealed_row[12:], name)
        except (InvalidTag, ValueError):
            return None


class CachedEmbedder:
    """Embeds and quantises texts, each text once per cache.

    Args:
        slab: takes the number of texts that the cache lacks, and returns how many are embedded before each write to
            the cache; a program that was stopped goes on after the last write.
    """

    def __init__(
        self, embedder: Embedder, cache: EmbeddingCache, *, slab: Callable[[int], int] = lambda _missing: _TEXTS_A_SLAB
    ) -> None:
        self._embedder = embedder
        self._cache = cache
        self._texts_a_slab = slab

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Returns embeddings as :func:`quantise` rounds them, float32 [n, d]; texts equal after NFC have equal rows.

        Args:
            progress: called with (done, total) numbers of texts; texts found in the cache count as done.
        """
        normal_texts = [unicodedata.normalize("NFC", text) for text in texts]
        model_fingerprint = bytes.fromhex(self.fingerprint)
        text_keys = [
            tagged_hash("undersong embedding", model_fingerprint, text.encode("utf-8", "surrogatepass"))
            for text in normal_texts
        ]
        text_by_missing_key = dict(zip(text_keys, normal_texts, strict=True))
        rows_by_key = self._cache.get(list(text_by_missing_key))
        text_by_missing_key = {
            text_key: text for text_key, text in text_by_missing_key.items() if text_key not in rows_by_key
        }
        cached_count = len(rows_by_key)
        total_count = len(rows_by_key) + len(text_by_missing_key)
        if progress is not None and cached_count:
            progress(cached_count, total_count)
        pending_items = list(text_by_missing_key.items())
        slab_size = self._texts_a_slab(len(pending_items))
        for slab_start in range(0, len(pending_items), slab_size):
            slab_items = pending_items[slab_start : slab_start + slab_size]
            finished_count = cached_count + slab_start
            slab_progress = (
                None if progress is None else lambda done, _all, b=finished_count: progress(b + done, total_count)
            )
            grid = _to_grid(self._embedder.encode([text for _, text in slab_items], slab_progress))
            rows = [(text_key, row) for (text_key, _), row in zip(slab_items, grid, strict=True)]
            self._cache.put(rows)
            rows_by_key.update(rows)
        if not text_keys:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return _from_grid(np.stack([rows_by_key[text_key] for text_key in text_keys]))
