"""Texts to unit embeddings, computed once per text; private ones never in the clear on a disk.

A text's embedding depends on the text and the model alone, to the last bit: not on the texts that are embedded with it,
their number or their order, nor on the number of threads or on what is cached. Batches have a fixed shape for that: a
few widths, chosen by a text's own number of tokens, each with one number of rows, the last batch filled up; one thread
computes each. This holds on one machine with one version of its libraries. Another processor may give other last bits,
which changes nothing that is promised: sensitivities hold for whatever embeddings a party has, the candidates that
parties compare with are published as numbers, and votes need the same model, not the same bits.

Embeddings are quantised to multiples of 1/GRID with norm at most 1 before anyone compares them: half precision holds
them exactly, and every inner product of two of them is exact in float32 in any order of summation. What is published
lies on a coarser grid, 1/PUBLIC_GRID, a part of the finer one, so all of this holds for it too: its coordinates cost
less than 5 bits on the wire, and everyone, the coordinator included, computes with exactly what was published.
"""

from __future__ import annotations

import gc
import hmac
import logging
import os
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from undersong_common import model_files
from undersong_common.arrays import Float32, Float64, Floats, Int16
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.fixed_order import row_norms
from undersong_common.model_files import PACKAGED
from undersong_common.printable import encodable
from undersong_common.workers import in_order

Embed = Callable[[Sequence[str]], Float32]  # texts -> quantised unit embeddings, float32 [n, d]
Progress = Callable[[int, int], None]

log = logging.getLogger(__name__)

GRID = 2048  # 1/GRID is the resolution: coordinates of at most 1 are exact in half precision
PUBLIC_GRID = 128  # divides GRID; rounding moves a unit vector of 384 coordinates by about 0.04

_FINGERPRINT = "undersong embedder, batches of fixed shape"  # another way to compute embeddings has another tag
# Measured with all-MiniLM-L6-v2 on one core: 128 to 256 tokens are within a tenth of each other, for notes and for
# short questions; larger batches leave the cache, and filling up the last one costs more.
_TOKENS_A_BATCH = 192
_NARROWEST = 4  # tokens; widths are multiples of it, or of an eighth of the next power of two
_DEFAULT_LIMIT = 512  # tokens of a text, if the model names no limit
_TRIED = ("alpha", "of", "the", "chest", "was", "1987")  # words of the texts that try out a batch
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

    A coordinate that is not finite becomes zero. A row's result is the same beside any other rows.
    """
    return _from_grid(_to_grid(embeddings))


def publishable(embeddings: Floats) -> Float32:
    """Rounds rows as :func:`quantise` does, to multiples of 1/PUBLIC_GRID, for embeddings that are published."""
    grid = _to_grid(embeddings, PUBLIC_GRID, shrink=2.0**-10)
    return grid.astype(np.float32) / np.float32(PUBLIC_GRID)


def _to_grid(embeddings: Floats, resolution: int = GRID, *, shrink: float = 2.0**-13) -> Int16:
    """Rows as integers; ``shrink`` is by how much a row that rounding made too long gets shorter at a time."""
    values = _finite(embeddings)
    with np.errstate(over="ignore"):  # a norm that is infinite makes its row zero
        scaled = values * (resolution / np.maximum(row_norms(values), 1.0))[:, None]
    grid = np.rint(scaled)
    while (long := np.einsum("nd,nd->n", grid, grid) > resolution**2).any():  # integers: exact in any order
        scaled[long] *= 1.0 - shrink
        grid[long] = np.rint(scaled[long])
    result: Int16 = grid.astype(np.int16)
    return result


def _finite(values: Floats) -> Float64:
    """Returns float64 values, zero in place of those that are not finite."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _from_grid(grid: Int16) -> Float32:
    return grid.astype(np.float32) / np.float32(GRID)


class Embedder:
    """A sentence-transformers model in a local folder. Nothing is fetched.

    The model is loaded, and tried out on public texts, at the first use.

    Attributes:
        fingerprint: SHA-256 (hex) over all files of the folder; parties compare theirs before a run.
    """

    def __init__(self, model: str | Path, fingerprint: str) -> None:
        self._source = model
        self.fingerprint = fingerprint
        self._model: Any = None
        self._lock = threading.RLock()
        self._rows: dict[int, int] = {}  # of a batch, by its width

    def __repr__(self) -> str:
        return f"Embedder({self.fingerprint[:12]})"

    @classmethod
    def load(cls, model: str | Path = PACKAGED) -> Embedder:
        """The packaged all-MiniLM-L6-v2, pinned file by file, or the model in a local folder.

        Raises:
            ConfigurationError: no such folder or package, a folder that could run code when it is loaded
                (undersong_common.model_files), or files that are not the packaged model's.
        """
        model_files.embedding_size(model_files.model_folder(model))  # whatever holds no model is told so first
        return cls(model, model_files.fingerprint(_FINGERPRINT, model_files.checked_hashes(model)))

    @cached_property
    def dimension(self) -> int:
        """Length of an embedding. Raises ConfigurationError if the folder's settings do not tell."""
        return model_files.embedding_size(model_files.model_folder(self._source))

    def try_out(self) -> None:
        """Embeds public texts twice; returns if each has a vector of its own, with the same bits both times.

        Raises ConfigurationError: a text has no vector, its bits differ, or different texts share a vector. Every sum
        of a run would cost budget and say nothing.
        """
        rows = self.encode(TRIAL_TEXTS)
        again = self.encode(TRIAL_TEXTS[::-1])[::-1]
        if not rows.any(axis=1).all():
            fault = "gives no vector for a public text"
        elif rows.tobytes() != again.tobytes():
            fault = "gives other bits when it embeds the same text again"
        elif len(np.unique(_to_grid(rows), axis=0)) < len(rows):
            fault = "gives the same vector for different texts"
        else:
            return
        raise ConfigurationError(f"the embedder {self._source} {fault}", "correct it, or name another embedder")

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Unit embeddings, float32 [n, d], in the order of ``texts``; zero if the model gives no number, or fails.

        A model that fails at one text must not fail at the others: a party that answered with zeros instead would show
        that it holds such a text.

        Args:
            progress: called with (done, total) after each batch.
        """
        model = self._loaded()
        result = np.zeros((len(texts), self.dimension), dtype=np.float32)
        with self._lock:
            batches = list(self._batches(texts))
            done = len(texts) - sum(len(positions) for positions, _ in batches)
            if done:
                log.warning("%d texts cannot be embedded by this model: they count as zero", done)
            computed = in_order(lambda batch: self._forward(model, batch[1]), batches)
            for (positions, _), rows in zip(batches, computed, strict=True):
                exact = _finite(rows[: len(positions)])
                result[positions] = exact / np.maximum(row_norms(exact), 1e-12)[:, None]
                done += len(positions)
                if progress is not None:
                    progress(done, len(texts))
        return result

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Positions of the texts of each batch, with what the model reads: batches of the widest texts first.

        Texts that the tokenizer refuses are in none.
        """
        (filler,) = self._tokens([""])
        tokens = self._tokens_of_each(texts)
        widths: dict[int, list[int]] = {}
        for position, one in tokens.items():
            widths.setdefault(_width(len(one["input_ids"]), self._limit), []).append(position)
        for width in sorted(widths, reverse=True):
            size = self._batch_rows(width)
            for start in range(0, len(widths[width]), size):
                positions = widths[width][start : start + size]
                missing = [filler] * (size - len(positions))
                yield positions, self._padded([*(tokens[position] for position in positions), *missing], width)

    @property
    def _limit(self) -> int:
        return int(self._model.max_seq_length or _DEFAULT_LIMIT)

    def _tokens_of_each(self, texts: Sequence[str]) -> dict[int, dict[str, list[int]]]:
        """Returns the :meth:`_tokens` by position, without the texts that the tokenizer refuses."""
        try:
            return dict(enumerate(self._tokens(texts)))
        except Exception:  # noqa: BLE001 - whatever a tokenizer raises, in any language
            if len(texts) == 1:
                return {}
        half = len(texts) // 2
        later = self._tokens_of_each(texts[half:])
        return self._tokens_of_each(texts[:half]) | {half + position: one for position, one in later.items()}

    def _tokens(self, texts: Sequence[str]) -> list[dict[str, list[int]]]:
        """Returns the tokenizer's output for each text, unpadded."""
        lower = bool(getattr(self._model[0], "do_lower_case", False))
        found = self._model.tokenizer(
            [encodable(text.strip().lower() if lower else text.strip()) for text in texts],
            truncation=True,
            max_length=self._limit,
            padding=False,
            verbose=False,
        )
        return [{name: found[name][row] for name in found} for row in range(len(texts))]

    def _padded(self, rows: Sequence[dict[str, list[int]]], width: int) -> dict[str, Any]:
        tokenizer = self._model.tokenizer
        tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # padding apart is the point here
        together = {name: [row[name] for row in rows] for name in rows[0]}
        return dict(tokenizer.pad(together, padding="max_length", max_length=width, return_tensors="pt"))

    def _batch_rows(self, width: int) -> int:
        """Rows of a batch of that width: one if this machine's products mix rows, which is tried out once."""
        if width not in self._rows:
            size = 1 if width >= self._limit else max(1, _TOKENS_A_BATCH // width)
            self._rows[width] = size if size == 1 or self._are_independent(size, width) else 1
        return self._rows[width]

    def _are_independent(self, size: int, width: int) -> bool:
        """Returns True if a text has the same bits in every row of a batch and beside any other texts.

        False also if the model fails at that width: then each text is embedded by itself.
        """
        try:
            return self._tried(size, width)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever a model raises
            return False

    def _tried(self, size: int, width: int) -> bool:
        text, *others = self._tokens([" ".join(_TRIED[number:] * width) for number in range(len(_TRIED))])
        mates = [_shortened(one, width - 1 - number % (width - 2)) for number, one in enumerate(others)]
        own = _shortened(text, width // 2 + 1)
        mixed = [own if row in (0, size // 2, size - 1) else mates[row % len(mates)] for row in range(size)]
        batches = [self._padded(rows, width) for rows in ([own] * size, mixed)]
        alone, among = in_order(lambda batch: _forward(self._model, batch), batches)
        same = [*alone, *(among[row] for row in (0, size // 2, size - 1))]
        return all(row.tobytes() == alone[0].tobytes() for row in same)

    def _forward(self, model: Any, features: dict[str, Any]) -> Float32:
        """The rows of a batch; if it fails, each by itself in a batch of the same shape, and zero if that fails.

        A row has the same bits in both, for which such batches were tried out.
        """
        try:
            return _forward(model, features)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            log.warning("the embedding model fails at a text: %s", type(error).__name__)
        size = len(features["input_ids"])
        result = np.zeros((size, self.dimension), dtype=np.float32)
        for row in range(size):
            alone = {name: value[row : row + 1].repeat(size, 1) for name, value in features.items()}
            with suppress(Exception):
                result[row] = _forward(model, alone)[0]
        return result

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                hashes = model_files.checked_hashes(self._source)
                if model_files.fingerprint(_FINGERPRINT, hashes) != self.fingerprint:
                    raise ConfigurationError(
                        "the embedder's files have changed since its fingerprint was taken", "start again"
                    )
                with _without_collections():
                    from sentence_transformers import SentenceTransformer

                    self._model = SentenceTransformer(
                        str(model_files.model_folder(self._source)),
                        device="cpu",
                        local_files_only=True,
                        trust_remote_code=False,
                        model_kwargs={"use_safetensors": True},
                    ).eval()
                try:
                    self.try_out()
                except ConfigurationError:
                    self._model = None
                    raise
            return self._model


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python collects no garbage meanwhile: among four thousand modules that are imported it finds none.

    That takes a sixth of the time in which the model's libraries are loaded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _width(tokens: int, limit: int) -> int:
    """Width of the batches for a text of so many tokens, below the limit at least one more than it has.

    A batch whose rows are all full is computed in another way (without a mask): no row may make the others so. At the
    limit, where a row may be full, batches have one row.

    >>> [_width(tokens, 256) for tokens in (2, 7, 8, 40, 70, 255, 256)]
    [4, 8, 12, 48, 80, 256, 256]
    """
    wanted = tokens + 1
    step = max(_NARROWEST, (1 << (wanted - 1).bit_length()) // 8)
    return min(-(-wanted // step) * step, limit)


def _shortened(tokens: dict[str, list[int]], length: int) -> dict[str, list[int]]:
    return {name: ids[:length] for name, ids in tokens.items()}


def _forward(model: Any, features: dict[str, Any]) -> Float32:
    import torch

    with torch.inference_mode():
        found: Float32 = model(dict(features))["sentence_embedding"].float().cpu().numpy()
    return found


class EmbeddingCache(Protocol):
    """Quantised embeddings by the hash of embedder and text. Rows are int16 multiples of 1/GRID."""

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        """Those of ``keys`` (32 bytes each) that are known."""
        ...

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        """Keeps rows; one that is known stays as it is."""
        ...


class MemoryCache:
    """A cache that lives as long as the process."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Int16] = {}

    def __repr__(self) -> str:
        return "MemoryCache()"

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        return {key: self._rows[key] for key in keys if key in self._rows}

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        for key, row in rows:
            self._rows.setdefault(key, row)


class PublicFileCache:
    """A SQLite file for embeddings of PUBLIC texts, in the clear; several processes may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            with self._database() as database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID"
                )
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(f"{path}: not an embedding cache ({error})", "delete it; it is rebuilt") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._path)!r})"

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        found: dict[bytes, Int16] = {}
        names = {self._name(key): key for key in keys}
        wanted = list(names)
        with self._database() as database:
            for start in range(0, len(wanted), _QUERY_KEYS):
                part = wanted[start : start + _QUERY_KEYS]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, row FROM embeddings WHERE key IN ({marks})"  # noqa: S608 - question marks only
                for name, stored in database.execute(query, part):
                    row = self._opened(name, stored)
                    if row is not None:
                        found[names[name]] = np.frombuffer(row, dtype="<i2")
        return found

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        named = [(self._name(key), row.astype("<i2").tobytes()) for key, row in rows]
        with self._database() as database:
            database.executemany(
                "INSERT OR REPLACE INTO embeddings VALUES (?, ?)",
                [(name, self._sealed(name, row)) for name, row in named],
            )

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        # A connection an operation: it is safe across forks and threads, and cheap beside an embedding.
        with self._lock:
            database = sqlite3.connect(self._path, timeout=60.0)
            try:
                with database:
                    yield database
            finally:
                database.close()

    def _name(self, key: bytes) -> bytes:
        return key

    def _sealed(self, _name: bytes, row: bytes) -> bytes:
        return row

    def _opened(self, _name: bytes, stored: bytes) -> bytes | None:
        return stored


class EncryptedFileCache(PublicFileCache):
    """A SQLite file for embeddings of private texts: rows under AES-256-GCM, found by keyed hashes.

    Whoever reads the file without ``key`` learns how many texts were embedded and how long an embedding is; neither an
    embedding nor whether a given text is among them. A row under another key, or a damaged one, counts as absent.

    Args:
        key: 32 secret bytes that the party keeps elsewhere.
        entropy: source of nonces.
    """

    def __init__(self, path: Path, key: bytes, entropy: Callable[[int], bytes] = os.urandom) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(key) != 32:
            raise ConfigurationError("the embedding cache's key is not 32 bytes long", "create a new key")
        self._index_key = hmac.digest(key, b"undersong embedding cache: index", "sha256")
        self._cipher = AESGCM(hmac.digest(key, b"undersong embedding cache: rows", "sha256"))
        self._entropy = entropy
        super().__init__(path)

    def _name(self, key: bytes) -> bytes:
        return hmac.digest(self._index_key, key, "sha256")

    def _sealed(self, name: bytes, row: bytes) -> bytes:
        nonce = self._entropy(12)
        return nonce + self._cipher.encrypt(nonce, row, name)

    def _opened(self, name: bytes, stored: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(stored[:12], stored[12:], name)
        except (InvalidTag, ValueError):
            return None


class CachedEmbedder:
    """Quantised embeddings of texts, each computed once per cache.

    Args:
        slab: how many of so many missing texts are embedded between two writes to the cache, from which a stopped
            program goes on.
    """

    def __init__(
        self, embedder: Embedder, cache: EmbeddingCache, *, slab: Callable[[int], int] = lambda _missing: _TEXTS_A_SLAB
    ) -> None:
        self._embedder = embedder
        self._cache = cache
        self._texts_a_slab = slab

    def __repr__(self) -> str:
        return f"CachedEmbedder({self._embedder!r}, {self._cache!r})"

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Quantised embeddings (:func:`quantise`), float32 [n, d]; equal texts (NFC) have equal rows.

        Args:
            progress: called with (done, total) texts, those found in the cache included.
        """
        normal = [unicodedata.normalize("NFC", text) for text in texts]
        keys = [self._key(text) for text in normal]
        missing = dict(zip(keys, normal, strict=True))
        known = self._cache.get(list(missing))
        missing = {key: text for key, text in missing.items() if key not in known}
        found, total = len(known), len(known) + len(missing)
        if progress is not None and found:
            progress(found, total)
        pending = list(missing.items())
        size = self._texts_a_slab(len(pending))
        for start in range(0, len(pending), size):
            slab = pending[start : start + size]
            before = found + start
            told = None if progress is None else (lambda done, _all, b=before: progress(b + done, total))
            grid = _to_grid(self._embedder.encode([text for _, text in slab], told))
            rows = [(key, row) for (key, _), row in zip(slab, grid, strict=True)]
            self._cache.put(rows)
            known.update(rows)
        if not keys:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return _from_grid(np.stack([known[key] for key in keys]))

    def _key(self, text: str) -> bytes:
        encoded = text.encode("utf-8", "surrogatepass")
        return tagged_hash("undersong embedding", bytes.fromhex(self.fingerprint), encoded)
