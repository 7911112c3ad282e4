"""The one place where private records are read for a reply: a sum's question in, this party's exact vector out.

A daemon computes in a process of its own (``answering.computing_process``), so that its connection is as quick beside
many records as beside none. A simulation computes in the process of its parties: they have one owner, and nobody times
them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undersong_client.answering.grid_vectors import Contribution, grid_vector
from undersong_client.records import cautions
from undersong_client.records.private import DataSet, PrivateRecords
from undersong_common.embedding import Embed
from undersong_protocol.agreement.plan import PlannedSum, Privacy
from undersong_protocol.statistics import PublicInputs
from undersong_protocol.statistics.vectors import GridVector
from undersong_protocol.wire.public import Block, Input

log = logging.getLogger(__name__)

# What statistics keep between sums grows with the records, so its number is a constant and follows no plan.
KEPT_STATES = 2


@dataclass(frozen=True)
class VectorRequest:
    """The public inputs and secret coins from which a vector is computed, beside the records.

    Attributes:
        run: its name.
        labels: of the task.
        public: the sum's public inputs, checked (undersong_client.answering.grid_vectors.check_public_inputs).
        coins: secret 32-byte seed of the Poisson subsample of units.
        inputs, blocks: how ``public`` was named, and the blocks that it is put together from, by their id.
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
    """A party's exact vector, and what its records speak against in that run (words for its own people)."""

    vector: GridVector
    cautions: tuple[str, ...] = field(default=(), repr=False)


def zeros(request: VectorRequest) -> Computed:
    """The vector of a party without records."""
    return Computed(GridVector(np.zeros(request.planned.dimension, dtype=np.int64)))


class Computation(ABC):
    """Computes a party's vectors."""

    @abstractmethod
    def vector(self, request: VectorRequest, *, begun: float) -> Computed:
        """The exact vector of one sum.

        Args:
            begun: when the answer was begun that waits for it, in monotonic seconds; the ladder counts from there.
        """

    def expect(self) -> None:
        """Says that vectors will be asked for; returns at once."""
        return None

    def warm(self) -> None:
        """Sees to it that the records' embeddings are computed before they are asked for."""
        return None

    def progress(self) -> tuple[int, int] | None:
        """Returns (embedded, total) records while embedding goes on and once more at its end; else None."""
        return None

    def stop(self) -> None:
        """Ends whatever computes."""
        return None


class RecordComputation(Computation):
    """Computes in this process.

    Args:
        name: the party's, for its log.
        data: its records.
        embed: texts to quantised embeddings.
        teacher_model: the local model it fine-tunes teachers from, as its settings name it at the time ("": none).
        contribution: rows of records to a vector: :func:`grid_vector`, or what an audit puts around it.
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
        self._name = name
        self.data = data
        self.embed = embed
        self._teacher_model = teacher_model
        self._contribution = contribution
        self._records: tuple[tuple[tuple[str, ...], Privacy], PrivateRecords, tuple[str, ...]] | None = None
        self._cautioned: dict[str, tuple[str, ...]] = {}  # what was logged, by run
        self._memory: dict[str, Any] = {}  # what statistics keep between sums, the newest last

    def vector(self, request: VectorRequest, *, begun: float = 0.0) -> Computed:
        records, found = self.records(request.labels, request.privacy)
        if self._cautioned.get(request.run) != found:
            for caution in found:  # nobody waits for a person any more: what is asked for is answered
                log.warning("%s, run %r: %s", self._name, request.run, caution)
            self._cautioned[request.run] = found
        vector = self._contribution(
            request.planned, records, request.public, request.privacy, coins=request.coins, memory=self._memory
        )
        while len(self._memory) > KEPT_STATES:
            del self._memory[next(iter(self._memory))]  # the one that was put there first
        return Computed(vector, found)

    def warm(self) -> None:
        self.embed(self.data.table.texts)

    def records(self, labels: Sequence[str], privacy: Privacy) -> tuple[PrivateRecords, tuple[str, ...]]:
        """The records that take part in such a run, and what they speak against in it; kept until another one comes."""
        key = (tuple(labels), privacy)
        if self._records is None or self._records[0] != key:
            records = PrivateRecords(
                self.data.table,
                labels,
                privacy,
                key=self.data.key,
                embed=self.embed,
                local_model=self._teacher_model,
            )
            found = cautions.of_run(privacy, records, has_users=self.data.table.users is not None)
            self._records = (key, records, tuple(found))
            self._memory.clear()
        return self._records[1:]
