"""Many parties on one machine: real keys, real masks, real ledgers; only the network is missing."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong import entropy
from undersong.inprocess import InProcess
from undersong.partition import deal, subsample
from undersong.workspace import Workspace, read_keys
from undersong_client.guard import Policy
from undersong_client.party import DataSet, Party
from undersong_client.records import unit_count
from undersong_client.store import Store
from undersong_common.arrays import Float32, Int16
from undersong_common.embedding import CachedEmbedder, Embed, Embedder, EmbeddingCache, EncryptedFileCache, MemoryCache
from undersong_common.errors import ConfigurationError
from undersong_common.privacy.ledger import Ledger
from undersong_common.table import Table, read_table
from undersong_protocol.plan import Privacy
from undersong_protocol.public import BlockStore, MemoryBlocks
from undersong_protocol.secagg.parameters import Entropy
from undersong_server.federation.driver import STAGE_TIMEOUT_S
from undersong_server.federation.transport import Transport
from undersong_server.progress import Progress
from undersong_server.runs.building import build_author
from undersong_server.runs.execution import Outcome, conduct
from undersong_server.runs.planning import RunPlan
from undersong_server.runs.task import Task

Engine = Literal["inprocess", "flower"]
FLOWER_TIMEOUT_S = 3600.0
PARTY_KEYS = ("identity", "data")  # what a hospital draws at `init`: its signing key, and the secret of its data set


@dataclass(frozen=True, repr=False)
class Simulated:
    """A finished simulation.

    Attributes:
        tables: the parties' private records, by name: they are the researcher's own here.
        embed: for public texts only: what it computes is kept on disk.
        embed_any: for any text: it keeps what it computes in memory.
    """

    outcome: Outcome
    tables: Mapping[str, Table]
    embed: Embed
    embed_any: Embed


class _ReadThrough:
    """A cache in memory that also knows what others hold, and adds nothing to them."""

    def __init__(self, others: Sequence[EmbeddingCache]) -> None:
        self._others = others
        self._own = MemoryCache()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        found = self._own.get(keys)
        for cache in self._others:
            found |= cache.get([key for key in keys if key not in found])
        return found

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        self._own.put(rows)


def private_tables(task: Task, seed: int) -> dict[str, Table]:
    """Each party's records by its name, read now. Raises ConfigurationError that names file and row."""
    return dealt(task, read_private_files(task), seed)


def read_private_files(task: Task) -> list[Table]:
    """The task's private files, in order. Raises ConfigurationError that names file and row."""
    if task.data.path is None:
        raise ConfigurationError("data.path is missing", "name the private records, or pass --set data.path=FILE")
    if task.task.labels and task.data.label is None:
        raise ConfigurationError("data.label is missing but task.labels is given", "name the label column")
    files = task.files
    missing = [path for path in files if not path.exists()]
    if missing or not files:
        raise ConfigurationError(f"data.path: {missing[0] if missing else 'no file'}: no such file", "check the path")
    return [
        read_table(path, task.data.text, task.data.label, task.data.user, labels=task.task.labels) for path in files
    ]


def dealt(task: Task, tables: Sequence[Table], seed: int) -> dict[str, Table]:
    """The records of each party by its name, from what :func:`read_private_files` read: a file each, or one dealt."""
    if task.one_file_a_party:
        names = [path.stem for path in task.files]
        if len(set(names)) != len(names):
            raise ConfigurationError("two files of data.path have the same name", "a party is named after its file")
        return dict(zip(names, tables, strict=True))
    table = tables[0]
    if task.data.records is not None and task.data.file_records is not None:
        table = subsample(table, task.data.records / task.data.file_records, seed)
    rows_of = deal(table, task.parties, task.federation.alpha, seed, unit=task.privacy.unit)
    digits = len(str(task.parties))
    return {f"party-{number + 1:0{digits}}": table.take(rows) for number, rows in enumerate(rows_of)}


def _check_units(privacy: Privacy, tables: Mapping[str, Table]) -> None:
    """What only a hospital's people are told (undersong_client.cautions) is an error here, where one owner has all."""
    for name, table in tables.items():
        units = unit_count(table, privacy.unit)
        if privacy.unit == "user" and table.users is None:
            raise ConfigurationError('privacy.unit is "user" but no user column is named', "name it in data.user")
        if privacy.unit != "party" and math.isfinite(privacy.epsilon) and privacy.delta * units >= 1:
            raise ConfigurationError(
                f"privacy.delta {privacy.delta:g} is not below 1 / {units}, one over the privacy units of {name}",
                "choose a smaller privacy.delta",
            )


def simulate(
    run_plan: RunPlan,
    workspace: Workspace,
    tables: Mapping[str, Table],
    *,
    seed: int,
    insecure_noise_seed: int | None,
    public_cache: EmbeddingCache,
    environment: Mapping[str, str],
    progress: Progress,
    reachable: Callable[[str, int], bool] = lambda _name, _message: True,
    embedder: Embedder | None = None,
    private_cache: EmbeddingCache | None = None,
    engine: Engine = "inprocess",
) -> Simulated:
    """Runs the plan with every party in this process; continues what ``workspace`` holds already.

    Args:
        tables: each party's records by its name (:func:`private_tables`).
        seed: of everything but noise, keys and masks.
        insecure_noise_seed: tests only; makes those reproducible too, and the result worthless as a private release.
        public_cache: embeddings of public texts.
        environment: where generators find their keys.
        reachable: which message arrives (simulated dropouts).
        embedder: loaded already (a comparison of many runs), else the task's is loaded.
        private_cache: shared by all parties and by several runs over the same records, in memory or encrypted.
        engine: what carries the messages: parties in this process, or Flower's simulation engine (on Ray).
    """
    task = run_plan.task
    _check_units(run_plan.plan.privacy, tables)
    embedder = embedder or Embedder.load(task.embedder.model)
    clock, monotonic = clocks(insecure_noise_seed)
    cast = Cast(task, workspace.state, workspace.parties_path, seed, insecure_noise_seed)
    cast.draw_keys(workspace, tables)
    if engine == "flower":
        # its actors are processes: what they compute is kept, encrypted, where each of them and this process finds it
        private_cache = cast.shared_cache()
    # one a party, as between hospitals, unless the caller keeps one for many runs
    private = {name: private_cache or MemoryCache() for name in tables}
    public = CachedEmbedder(embedder, public_cache)
    embed_public = _shown(public, "public texts", progress)
    author = build_author(task, embed_public, environment, workspace.journal, progress, seed=seed)

    def over(transport: Transport) -> Outcome:
        return conduct(
            run_plan,
            name=_run_name(task, workspace, insecure_noise_seed),
            transport=transport,
            parties=list(tables),
            author=author,
            journal=workspace.journal,
            progress=progress,
            embed=embed_public,
            embedder=embedder.fingerprint,
            seed=seed,
            clock=monotonic,
            # a message to a thousand parties takes minutes on few cores; one that is lost is not waited for
            timeout_s=STAGE_TIMEOUT_S if engine == "inprocess" else FLOWER_TIMEOUT_S,
        )

    if engine == "flower":
        from undersong.flower import over_flower

        outcome = over_flower(cast, list(tables), over, progress=progress, reachable=reachable)
    else:
        blocks = MemoryBlocks()  # public and named by content, so the parties may share what each would hold
        parties = {
            name: cast.party(
                name,
                table,
                blocks=blocks,
                embed=_shown(CachedEmbedder(embedder, private[name]), name, progress),
                embedder=embedder.fingerprint,
                clock=clock,
            )
            for name, table in tables.items()
        }
        outcome = over(InProcess(parties, reachable=reachable))
    known = _ReadThrough([public_cache, *private.values()])
    embed_any = _shown(CachedEmbedder(embedder, known), "for the comparison", progress)
    return Simulated(outcome, tables, embed_public, embed_any)


def _ledger_path(state: Path, party: str) -> Path:
    return state / "ledgers" / f"{party}.jsonl"


@dataclass(frozen=True)
class Cast:
    """Whoever plays the parties of a simulation: this process, or the actors of Flower's engine.

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
        """Once a simulation."""
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
        clock: Callable[[], float],
    ) -> Party:
        """One party, as it stands in the workspace."""
        data = DataSet(table, self.keys[f"data/{name}"])
        return Party(
            name,
            identity=Ed25519PrivateKey.from_private_bytes(self.keys[f"identity/{name}"]),
            data=data,
            policy=Policy(largest_epsilon=math.inf, largest_delta=1.0),
            ledger=Ledger.open(_ledger_path(self.state, name), data.fingerprint, at=clock()),
            store=Store(self.store, name, self.keys["store"]),
            blocks=blocks,
            embed=embed,
            embedder=embedder,
            entropy=self._entropy(name),
            clock=clock,
            teacher_model=lambda: self.task.teacher_model,
        )

    def _entropy(self, name: str) -> Callable[[str], Entropy]:
        seed = self.insecure_noise_seed
        return entropy.from_system if seed is None else entropy.insecure(seed, name)


def _shown(embedder: CachedEmbedder, name: str, progress: Progress) -> Embed:
    def embed(texts: Sequence[str]) -> Float32:
        return embedder.encode(texts, lambda done, total: progress.update(f"embedding {name}", done, total))

    return embed


def _run_name(task: Task, workspace: Workspace, insecure_noise_seed: int | None) -> str:
    known = workspace.journal.get_json("run/name")
    if known is None:
        suffix = os.urandom(4).hex() if insecure_noise_seed is None else f"insecure-{insecure_noise_seed}"
        known = f"{task.task.name} {suffix}"
        workspace.journal.put_json("run/name", known)
    name: str = known
    return name


def clocks(insecure_noise_seed: int | None) -> tuple[Callable[[], float], Callable[[], float]]:
    """(seconds since the epoch, monotonic seconds)."""
    # Under an insecure seed the outputs are compared byte by byte: no time may stand in them.
    if insecure_noise_seed is not None:
        return (lambda: 0.0), (lambda: 0.0)
    return time.time, time.monotonic
