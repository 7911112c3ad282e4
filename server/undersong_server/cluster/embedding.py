"""Embedding many texts over a Ray cluster: the same rows, to the last bit, as this machine computes.

Where few texts are missing they are embedded here: a cluster's workers load the model first. A worker whose processor
or libraries give other bits than this machine is refused by name, so that a cache never holds rows of two kinds.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.embedding import CachedEmbedder, Embedder, EmbeddingCache, Progress
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_server.cluster.connection import Cluster

TEXTS_A_CALL = 512  # some seconds of one core
FEWEST = 2048  # texts; below, loading the model in other processes takes longer than embedding them
_CALLS_A_CORE = 8  # between two writes to a cache: about a minute's work is lost by a stop
_WORDS = ("the", "patient", "was", "seen", "on", "Monday", "with", "chest", "pain;", "BP", "137/82", "naïve")
_TRIED = tuple(" ".join(_WORDS[place % len(_WORDS)] for place in range(length)) for length in (1, 5, 12, 30, 70, 400))


class SpreadEmbedder(Embedder):
    """An embedder whose larger work goes over a cluster.

    Args:
        here: embeds what is less.
        model: its name, by which :func:`undersong_common.embedders.load` finds it at every machine of the cluster.
        cluster: stays open as long as it is used.
        fewest: texts from which on the cluster embeds.
    """

    def __init__(self, here: Embedder, model: str | Path, cluster: Cluster, *, fewest: int = FEWEST) -> None:
        super().__init__(Path(model).absolute() if Path(model).is_dir() else model, here.fingerprint)
        self._here = here
        self._cluster = cluster
        self._fewest = fewest

    @cached_property
    def dimension(self) -> int:
        return self._here.dimension

    def slab(self, missing: int) -> int:
        """Of so many missing texts, as many as the cluster embeds in about a minute. Raises as :meth:`encode`."""
        return TEXTS_A_CALL * _CALLS_A_CORE * (1 if missing < self._fewest else self._cluster.cores)

    @cached_property
    def _expected(self) -> str:
        return _bits(self._here)

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """As :meth:`Embedder.encode`.

        Raises:
            ConfigurationError: no cluster, or one of its machines has another embedder or computes other bits.
            UndersongError: a part's worker was lost twice.
        """
        if len(texts) < self._fewest:
            return self._here.encode(texts, progress)
        # Texts of like lengths fill batches of one width; the longest take longest, and come first.
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        parts = [order[start : start + TEXTS_A_CALL] for start in range(0, len(order), TEXTS_A_CALL)]
        shared = (self._source, self.fingerprint, self._expected)
        result = np.zeros((len(texts), self.dimension), dtype=np.float32)
        done = 0
        for number, rows in self._cluster.each(embed_part, [(*shared, [texts[row] for row in part]) for part in parts]):
            if isinstance(rows, UndersongError):
                raise rows
            result[parts[number]] = rows
            done += len(parts[number])
            if progress is not None:
                progress(done, len(texts))
        return result


def spread(
    here: Embedder, model: str | Path, cache: EmbeddingCache, cluster: Cluster | None, *, fewest: int = FEWEST
) -> CachedEmbedder:
    """As ``CachedEmbedder(here, cache)``, over ``cluster`` where there is one: arguments of :class:`SpreadEmbedder`."""
    if cluster is None:
        return CachedEmbedder(here, cache)
    embedder = SpreadEmbedder(here, model, cluster, fewest=fewest)
    return CachedEmbedder(embedder, cache, slab=embedder.slab)


_loaded: dict[str, Embedder] = {}  # of this worker, by fingerprint, once it was found to give the expected bits


def embed_part(model: str | Path, fingerprint: str, expected: str, texts: Sequence[str]) -> Float32 | UndersongError:
    """In a worker: the rows, or why this machine does not compute them."""
    try:
        if fingerprint not in _loaded:
            embedder = embedders.load(model)
            _check(embedder, fingerprint, expected)
            _loaded[fingerprint] = embedder
        return _loaded[fingerprint].encode(texts)
    except UndersongError as error:
        return ConfigurationError(f"{socket.gethostname()}: {error.problem}", error.remedy)


def _check(embedder: Embedder, fingerprint: str, expected: str) -> None:
    if embedder.fingerprint != fingerprint:
        raise ConfigurationError("has another embedding model under this name", "put the same files there")
    if _bits(embedder) != expected:
        raise ConfigurationError(
            "computes embeddings with other last bits than the machine that asks",
            "use machines with the same processor and the same releases of torch, or begin the command on one of them",
        )


def _bits(embedder: Embedder) -> str:
    return hashlib.sha256(embedder.encode(_TRIED).tobytes()).hexdigest()
