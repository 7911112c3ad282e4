"""Computes this party's exact vector for a private sum; no other module reads private records for a reply.

A daemon computes in a child process (``answering.computing_process``), so that the timing of its connection does not
depend on the number of records. A simulation computes in the process of its parties, whose timing nobody observes.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from undersong_client import keys
from undersong_client.answering.grid_vectors import Contribution, grid_vector
from undersong_client.home import PartyHome, make_folder
from undersong_client.records import cautions, snapshot
from undersong_client.records.private import DataSet, PrivateRecords
from undersong_client.storage import datasets
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, MachineFault, UndersongError
from undersong_common.models.embedding import CachedEmbedder, Embed, Embedder, EncryptedFileCache, MemoryCache, Progress
from undersong_common.printable import printable
from undersong_common.program.logs import place_of
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.public import Block, Input

log = logging.getLogger(__name__)

# Statistics keep states between sums, which grow with the records. So their number is a constant and follows no plan.
KEPT_STATES = 2


@dataclass(frozen=True)
class VectorRequest:
    """All that a vector is computed from, except the records.

    Attributes:
        run: name of the run.
        labels: labels of the task.
        planned: the private sum, from the plan.
        privacy: the run's privacy guarantee, with unit and caps.
        public: the sum's public inputs, checked by ``Statistic.check_inputs``.
        coins: secret 32-byte seed of the Poisson subsample of units.
        inputs: references to the blocks of which ``public`` consists.
        blocks: these blocks, by id.
    """

    run: str
    labels: tuple[str, ...]
    planned: PlannedSum
    privacy: Privacy
    public: PublicInputs = field(repr=False)
    coins: bytes = field(repr=False)
    inputs: tuple[Input, ...] = field(default=(), repr=False)
    blocks: Mapping[bytes, Block] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Computed:
    """A party's exact vector, and warnings about the run that depend on its records, for its own people only."""

    vector: GridVector
    cautions: tuple[str, ...] = field(default=(), repr=False)


def zeros(request: VectorRequest) -> Computed:
    """Returns the vector of a party without records."""
    return Computed(GridVector(np.zeros(request.planned.dimension, dtype=np.int64)))


class Computation(ABC):
    """Interface of what computes a party's vectors."""

    @abstractmethod
    def vector(self, request: VectorRequest, *, start_s: float) -> Computed:
        """Returns the party's exact vector for one sum.

        Args:
            start_s: time at which the request was taken up, in monotonic seconds; rungs count from it.
        """

    def expect(self) -> None:  # noqa: B027 - nothing to do by default
        """Announces that vectors will be needed soon, so that the computation can get ready; returns at once."""

    def warm(self) -> None:  # noqa: B027
        """Begins to compute the records' embeddings before a vector needs them."""

    def keep_running(self) -> None:  # noqa: B027
        """Restarts the computation's process if it has ended; call it regularly."""

    def stop(self) -> None:  # noqa: B027
        """Ends the computation and its process, if it has one."""


class RecordComputation(Computation):
    """Computes a party's vectors in this process.

    Args:
        name: name of the party, for the log.
        data: the party's records.
        embed: returns quantised embeddings of texts.
        teacher_model: returns the local model for fine-tuning that the party's settings name now; "" for no model.
        contribution: makes the vector from records: :func:`grid_vector`, or an audit's wrapper around it.
    """

    def __init__(
        self,
        name: str,
        data: DataSet,
        embed: Embed,
        *,
        teacher_model: Callable[[], str] = lambda: "",
        contribution: Contribution = grid_vector,
    ) -> None:
        self.name = name
        self.data = data
        self.embed = embed
        self._teacher_model = teacher_model
        self._contribution = contribution
        self._records_of_run: tuple[tuple[tuple[str, ...], Privacy], PrivateRecords, tuple[str, ...]] | None = None
        self._logged_cautions: dict[str, tuple[str, ...]] = {}  # those that the log has, by run
        self._statistic_states: dict[
            str, Any
        ] = {}  # states that statistics keep between sums, in the order in which they were added

    def vector(self, request: VectorRequest, *, start_s: float = 0.0) -> Computed:
        private_records, run_cautions = self.records(request.labels, request.privacy)
        if self._logged_cautions.get(request.run) != run_cautions:
            for caution in run_cautions:  # The run is under way, so that no person reads them first.
                log.warning("%s, run %r: %s", self.name, request.run, caution)
            self._logged_cautions[request.run] = run_cautions
        vector = self._contribution(
            request.planned,
            private_records,
            request.public,
            request.privacy,
            coins=request.coins,
            memory=self._statistic_states,
        )
        while len(self._statistic_states) > KEPT_STATES:
            del self._statistic_states[next(iter(self._statistic_states))]  # the state that was added first
        return Computed(vector, run_cautions)

    def warm(self) -> None:
        self.embed(self.data.table.texts)

    def records(self, labels: Sequence[str], privacy: Privacy) -> tuple[PrivateRecords, tuple[str, ...]]:
        """Returns the records that take part in a run with these labels and unit, and warnings about them.

        The last result is cached.
        """
        records_key = (tuple(labels), privacy)
        if self._records_of_run is None or self._records_of_run[0] != records_key:
            private_records = PrivateRecords(
                self.data.table,
                labels,
                privacy,
                key=self.data.key,
                embed=self.embed,
                local_model=self._teacher_model,
            )
            run_cautions = cautions.of_run(privacy, private_records, has_users=self.data.table.users is not None)
            self._records_of_run = (records_key, private_records, tuple(run_cautions))
            self._statistic_states.clear()
        return self._records_of_run[1:]


class PartyEmbeddings:
    """Embeds the party's texts through an encrypted cache; one call computes at a time.

    A cache that cannot be used (its folder is gone, the disk is full) only costs time.

    Args:
        show_progress: called with (done, total) numbers of texts.
    """

    def __init__(
        self, home: PartyHome, embedder: Embedder, show_progress: Progress = lambda _done, _total: None
    ) -> None:
        self._embedder = embedder
        self._show_progress = show_progress
        self._lock = threading.Lock()
        if home.settings.cache:
            folder = Path(home.settings.cache)
        else:
            folder = home.path / "cache"
        try:
            make_folder(folder)  # Only the party's user may read its folder.
            self._cached = CachedEmbedder(
                embedder, EncryptedFileCache(folder / snapshot.EMBEDDINGS, keys.secret(home, "store"))
            )
        except (OSError, ConfigurationError, MachineFault) as error:
            self._use_memory_cache(error)

    def __call__(self, texts: Sequence[str]) -> Float32:
        with self._lock:
            try:
                return self._cached.encode(texts, self._show_progress)
            except (OSError, ConfigurationError, MachineFault) as error:
                self._use_memory_cache(error)
                return self._cached.encode(texts, self._show_progress)

    def _use_memory_cache(self, error: Exception) -> None:
        log.error(
            "the cache of embeddings cannot be used (%s): they are computed anew until the daemon starts again",
            error.problem if isinstance(error, UndersongError) else getattr(error, "strerror", None) or str(error),
        )
        self._cached = CachedEmbedder(self._embedder, MemoryCache())


def sealed_data(home: PartyHome) -> DataSet:
    """Reads the sealed records; returns an empty data set if the sealed copy is damaged.

    The party's people find the damage in the log and in `undersong-party check`. A refusal would reveal it to the
    coordinator.
    """
    try:
        return datasets.load(home)
    except MachineFault:  # The caller answers zeros for this vector only, and reads again for the next one.
        raise
    except UndersongError as error:
        log.error("the records cannot be read, this party answers with zeros: %s; %s", error.problem, error.remedy)
        return DataSet(Table((), (), ()), keys.secret(home, "data"))


class HospitalComputation(RecordComputation):
    """Computes a hospital's vectors in this process, and returns zeros if that fails, which is a bug of this program.

    A refusal would tell the coordinator that some record makes the program fail. The party's people find the failure in
    the log. The base class, for simulations of a researcher's own records, raises the failure instead.

    Args:
        home: the party's folder; records and embedder are opened when they are first needed.
        embedder: replaces the embedder that the folder's settings name.
    """

    def __init__(
        self,
        home: PartyHome,
        embedder: Embedder | None = None,
        *,
        contribution: Contribution = grid_vector,
    ) -> None:
        lazy_data: Any = Lazy(lambda: sealed_data(home))
        self._home = home
        load_embedder: Callable[[], Embedder] = lambda: embedder or home.settings.load_embedder()  # noqa: E731
        lazy_embeddings: Any = Lazy(lambda: PartyEmbeddings(home, load_embedder()))
        super().__init__(
            home.settings.party,
            lazy_data,
            lazy_embeddings,
            teacher_model=lambda: home.settings.teacher_model,
            contribution=contribution,
        )

    def vector(self, request: VectorRequest, *, start_s: float = 0.0) -> Computed:
        try:
            return super().vector(request, start_s=start_s)
        except Exception as error:  # noqa: BLE001 - the error's message may hold private data
            log.error(
                "%s could not be computed (%s), this party answers with zeros: please report it",
                printable(request.planned.name),
                place_of(error),
            )
            return zeros(request)

    def warm(self) -> None:
        try:
            super().warm()
            log.info("the records are embedded")
        except UndersongError as error:
            log.error("the records could not be embedded: %s", error.problem)
        except Exception as error:  # noqa: BLE001 - the error's message may hold private data
            log.error("the records could not be embedded: %s", type(error).__name__)


class Lazy:
    """A proxy for an object that is made when an attribute of it is first used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._made_objects: list[Any] = []

    def __repr__(self) -> str:
        return "Lazy(hidden)"

    @property
    def is_made(self) -> bool:
        return bool(self._made_objects)

    def __call__(self, *arguments: Any) -> Any:
        return self._get_object()(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_object(), name)

    def _get_object(self) -> Any:
        with self._lock:
            if not self._made_objects:
                self._made_objects.append(self._make())
            return self._made_objects[0]
