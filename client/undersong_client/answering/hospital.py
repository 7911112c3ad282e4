"""A hospital's computation: its records as ``data add`` sealed them, its embedder, and a vector whatever happens."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from undersong_client import keys
from undersong_client.answering.computation import Computed, RecordComputation, VectorRequest, zeros
from undersong_client.answering.grid_vectors import Contribution, grid_vector, rows_one_by_one
from undersong_client.consent import plugins, policy
from undersong_client.home import PartyHome, make_folder
from undersong_client.records.private import DataSet
from undersong_client.storage import datasets
from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.embedding import CachedEmbedder, Embedder, EncryptedFileCache, MemoryCache, Progress
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.logs import place_of
from undersong_common.printable import printable
from undersong_common.table import Table

log = logging.getLogger(__name__)


class Embeddings:
    """The party's embeddings, computed once and kept encrypted; one computation at a time, with progress.

    A cache that cannot be used (its folder is gone, the disk is full) costs time and nothing else.

    Args:
        show: called with (done, total) texts.
    """

    def __init__(self, home: PartyHome, embedder: Embedder, show: Progress) -> None:
        self._embedder = embedder
        self._show = show
        self._lock = threading.Lock()
        folder = Path(home.settings.cache) if home.settings.cache else home.path / "cache"
        try:
            make_folder(folder)  # what lies in a party's folder is its user's only
            self._cached = CachedEmbedder(
                embedder, EncryptedFileCache(folder / "embeddings.sqlite", keys.secret(home, "store"))
            )
        except (OSError, sqlite3.Error, ConfigurationError) as error:
            self._without_file(error)

    def __call__(self, texts: Sequence[str]) -> Float32:
        with self._lock:
            try:
                return self._cached.encode(texts, self._show)
            except (OSError, sqlite3.Error) as error:
                self._without_file(error)
                return self._cached.encode(texts, self._show)

    def _without_file(self, error: Exception) -> None:
        log.error("the cache of embeddings cannot be used (%s): they are computed anew", type(error).__name__)
        self._cached = CachedEmbedder(self._embedder, MemoryCache())


def sealed_data(home: PartyHome) -> DataSet:
    """The records, read when the first vector is computed; none where the sealed copy is damaged.

    That is this party's own trouble: its people find it in the log and in `undersong-party check`. A refusal instead
    would tell the coordinator.
    """
    try:
        return datasets.load(home)
    except UndersongError as error:
        log.error("the records cannot be read, this party answers with zeros: %s; %s", error.problem, error.remedy)
        return DataSet(Table((), (), ()), keys.secret(home, "data"))


class HospitalComputation(RecordComputation):
    """Computes in this process, and gives zeros where that fails, which is a bug of this program.

    A refusal would tell the coordinator that some record makes it fail. The party's people find it in the log; it was
    charged before. In a simulation, whose records are the researcher's own, the failure is raised instead.

    Args:
        home: the party's folder; records and embedder are opened when they are first needed.
        embedder: another one than the folder's settings name.
    """

    def __init__(
        self,
        home: PartyHome,
        embedder: Embedder | None = None,
        *,
        contribution: Contribution = grid_vector,
    ) -> None:
        data: Any = Lazy(lambda: sealed_data(home))
        self._home = home
        self._progress: tuple[int, int] | None = None
        load: Callable[[], Embedder] = lambda: embedder or embedders.load(home.settings.embedder)  # noqa: E731
        embed: Any = Lazy(lambda: Embeddings(home, load(), self.note_progress))
        super().__init__(
            home.settings.party,
            data,
            embed,
            teacher_model=lambda: home.settings.teacher_model,
            contribution=contribution,
        )

    def vector(self, request: VectorRequest, *, begun: float = 0.0) -> Computed:
        try:
            if not request.planned.source:
                return super().vector(request, begun=begun)
            plugins.load_trusted(policy.read(self._home))  # of a package that this process may not have loaded yet
            return self._others_vector(request, begun)
        except Exception as error:  # noqa: BLE001 - its words may hold private data
            log.error(
                "%s could not be computed (%s), this party answers with zeros: please report it",
                printable(request.planned.name),
                place_of(error),
            )
            return zeros(request)

    def _others_vector(self, request: VectorRequest, begun: float) -> Computed:
        """Computes the vector of another package's statistic. If it fails, computes the row of each record separately.

        Zeros for all records would let the one record at which it fails change the whole vector.
        """
        try:
            return super().vector(request, begun=begun)
        except Exception as error:
            statistic = request.planned.build()
            if statistic.whole:
                raise
            log.error("%s fails (%s): record by record", printable(request.planned.name), type(error).__name__)
            records, found = self.records(request.labels, request.privacy)
            return Computed(
                grid_vector(
                    request.planned,
                    records,
                    request.public,
                    request.privacy,
                    coins=request.coins,
                    memory={},
                    rows=rows_one_by_one,
                ),
                found,
            )

    def warm(self) -> None:
        try:
            super().warm()
            # Votes compute with it. It takes seconds to load, which would be the first vote's where every embedding is
            # cached already.
            import torch  # noqa: F401
        except UndersongError as error:
            log.error("the records could not be embedded: %s", error.problem)
        except Exception as error:  # noqa: BLE001 - its words may hold private data
            log.error("the records could not be embedded: %s", type(error).__name__)

    def progress(self) -> tuple[int, int] | None:
        progress, self._progress = self._progress, None
        return progress

    def note_progress(self, done: int, total: int) -> None:
        """Called while records are embedded."""
        self._progress = (done, total)


class Lazy:
    """Proxy of a value that is made at its first use."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._value: list[Any] = []

    def __repr__(self) -> str:
        return "Lazy(hidden)"

    @property
    def made(self) -> bool:
        return bool(self._value)

    def __call__(self, *arguments: Any) -> Any:
        return self._get()(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    def _get(self) -> Any:
        with self._lock:
            if not self._value:
                self._value.append(self._make())
            return self._value[0]
