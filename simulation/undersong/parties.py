"""The parties of a simulation, made from what its workspace holds, in whichever process needs them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong.workspace import Workspace, read_keys
from undersong_client import keys
from undersong_client.answering.computation import RecordComputation
from undersong_client.answering.grid_vectors import Contribution, grid_vector
from undersong_client.answering.party import Party
from undersong_client.records.private import DataSet
from undersong_client.storage.store import Store
from undersong_common.embedding import Embed, EmbeddingCache, EncryptedFileCache
from undersong_common.privacy.ledger import Ledger
from undersong_common.table import Table
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.secagg.parameters import Entropy
from undersong_protocol.wire.public import BlockStore
from undersong_server.runs.task import Task

PARTY_KEYS = ("identity", "data")  # what a hospital draws at `init`: its signing key, and the secret of its data set


def ledger_path(state: Path, party: str) -> Path:
    return state / "ledgers" / f"{party}.jsonl"


@dataclass(frozen=True)
class SimulatedParties:
    """Makes the parties of a simulation, in this process or in the actors of Flower's engine.

    Attributes:
        task: of the simulation.
        state: the workspace's own folder; ``store`` is the parties' encrypted journal in it.
        seed: deals one file of records to them.
        insecure_noise_seed: tests only.
    """

    task: Task
    state: Path
    store: Path
    seed: int
    insecure_noise_seed: int | None

    def draw_keys(self, workspace: Workspace, names: Iterable[str]) -> None:
        """Draws the parties' keys, once per simulation."""
        workspace.secrets(
            lambda: (
                {"store": os.urandom(32).hex()}
                | {f"{use}/{name}": self._entropy(name)(use)(32).hex() for name in names for use in PARTY_KEYS}
            )
        )

    @cached_property
    def keys(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(key) for name, key in read_keys(self.state).items()}

    def shared_cache(self) -> EmbeddingCache:
        """Embeddings of private records, encrypted, for several processes."""
        return EncryptedFileCache(self.state / "embeddings.sqlite", self.keys["store"])

    def party(
        self,
        name: str,
        table: Table,
        *,
        blocks: BlockStore,
        embed: Embed,
        embedder: str | Callable[[], str],
        embedding_size: Callable[[], int],
        clock: Callable[[], float],
        contribution: Contribution = grid_vector,
    ) -> Party:
        """The named party as it stands in the workspace, with its records."""
        data = DataSet(table, self.keys[f"data/{name}"])
        computation = RecordComputation(
            name, data, embed, teacher_model=lambda: self.task.teacher_model, contribution=contribution
        )
        return Party(
            name,
            identity=Ed25519PrivateKey.from_private_bytes(self.keys[f"identity/{name}"]),
            computation=computation,
            policy=Policy(largest_epsilon=math.inf, largest_delta=1.0),
            ledger=Ledger.open(ledger_path(self.state, name), data.fingerprint, at=clock()),
            store=Store(self.store, name, self.keys["store"]),
            blocks=blocks,
            embedder=embedder,
            embedding_size=embedding_size,
            entropy=self._entropy(name),
            clock=clock,
            teacher_model=lambda: self.task.teacher_model,
        )

    def _entropy(self, name: str) -> Callable[[str], Entropy]:
        seed = self.insecure_noise_seed
        return keys.from_system if seed is None else keys.insecure(seed, name)


def clocks(insecure_noise_seed: int | None) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two clocks: seconds since the epoch, and monotonic seconds."""
    # Under an insecure seed the outputs are compared byte by byte: no time may stand in them.
    if insecure_noise_seed is not None:
        return (lambda: 0.0), (lambda: 0.0)
    return time.time, time.monotonic
