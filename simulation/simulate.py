"""Many parties on one machine: real keys, real masks, real ledgers; only the network is missing."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.guard import Policy
from client.party import DataSet, Party
from client.records import Embed
from client.store import Store
from common.canonical import tagged_hash
from common.embedding import CachedEmbedder, Embedder, EmbeddingCache, MemoryCache
from common.errors import ConfigurationError
from common.privacy.ledger import Ledger
from common.table import Table, read_table
from protocol.public import MemoryBlocks
from server import generators
from server.conduct import Outcome, conduct
from server.planning import RunPlan
from server.progress import Progress
from server.prompting import Prompts
from server.task import Task
from simulation import entropy
from simulation.inprocess import InProcess
from simulation.partition import dirichlet
from simulation.workspace import Workspace


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

    def get(self, keys: Sequence[bytes]) -> dict[bytes, npt.NDArray[np.int16]]:
        found = self._own.get(keys)
        for cache in self._others:
            found |= cache.get([key for key in keys if key not in found])
        return found

    def put(self, rows: Iterable[tuple[bytes, npt.NDArray[np.int16]]]) -> None:
        self._own.put(rows)


def private_tables(task: Task, seed: int) -> dict[str, Table]:
    """Each party's records by its name. Raises ConfigurationError that names file and row."""
    if task.data.path is None:
        raise ConfigurationError("data.path is missing", "name the private records, or pass --set data.path=FILE")
    if task.task.labels and task.data.label is None:
        raise ConfigurationError("data.label is missing but task.labels is given", "name the label column")
    files = task.files
    missing = [path for path in files if not path.exists()]
    if missing or not files:
        raise ConfigurationError(f"data.path: {missing[0] if missing else 'no file'}: no such file", "check the path")
    tables = [
        read_table(path, task.data.text, task.data.label, task.data.user, labels=task.task.labels) for path in files
    ]
    if task.one_file_a_party:
        names = [path.stem for path in files]
        if len(set(names)) != len(names):
            raise ConfigurationError("two files of data.path have the same name", "a party is named after its file")
        return dict(zip(names, tables, strict=True))
    table = _sampled(tables[0], task.data.records, seed)
    shares = dirichlet(table.labels, len(table), task.parties, task.federation.alpha, seed)
    digits = len(str(task.parties))
    return {f"party-{number + 1:0{digits}}": table.take(rows) for number, rows in enumerate(shares)}


def _sampled(table: Table, records: int | None, seed: int) -> Table:
    if records is None:
        return table
    if records > len(table):
        raise ConfigurationError(f"data.records is {records}, the file has {len(table)}", "lower it or leave it out")
    return table.take(sorted(np.random.default_rng([seed, 0xDA7A]).permutation(len(table))[:records].tolist()))


def simulate(
    run_plan: RunPlan,
    workspace: Workspace,
    *,
    seed: int,
    insecure_noise_seed: int | None,
    public_cache: EmbeddingCache,
    environment: Mapping[str, str],
    progress: Progress,
    reachable: Callable[[str, int], bool] = lambda _name, _message: True,
    embedder: Embedder | None = None,
    private_cache: EmbeddingCache | None = None,
) -> Simulated:
    """Runs the plan with every party in this process; continues what ``workspace`` holds already.

    Args:
        seed: of everything but noise, keys and masks.
        insecure_noise_seed: tests only; makes those reproducible too, and the result worthless as a private release.
        public_cache: embeddings of public texts.
        environment: where generators find their keys.
        reachable: which message arrives (simulated dropouts).
        embedder: loaded already (a comparison of many runs), else the task's is loaded.
        private_cache: shared by all parties and by several runs over the same records, in memory or encrypted.
    """
    task = run_plan.task
    tables = private_tables(task, seed)
    embedder = embedder or Embedder.load(task.embedder.model)
    clock, monotonic = _clocks(insecure_noise_seed)
    # one a party, as between hospitals, unless the caller keeps one for many runs
    private = {name: private_cache or MemoryCache() for name in tables}
    parties = _parties(task, workspace, tables, embedder, seed, insecure_noise_seed, clock, progress, private)
    public = CachedEmbedder(embedder, public_cache)
    embed_public = _shown(public, "public texts", progress)
    built = generators.build(
        task.generators,
        labels=task.task.labels,
        folder=task.locate(""),
        embed=embed_public,
        environment=environment,
    )
    folder = task.locate(task.prompts.folder) if task.prompts.folder else None
    outcome = conduct(
        run_plan,
        name=_run_name(task, workspace, insecure_noise_seed),
        transport=InProcess(parties, reachable=reachable),
        parties=list(parties),
        generators=built,
        prompts=Prompts.load(description=task.task.description, labels=task.task.labels, folder=folder),
        journal=workspace.journal,
        progress=progress,
        embed=embed_public,
        embedder=embedder.fingerprint,
        seed=seed,
        clock=monotonic,
    )
    known = _ReadThrough([public_cache, *private.values()])
    embed_any = _shown(CachedEmbedder(embedder, known), "for the comparison", progress)
    return Simulated(outcome, tables, embed_public, embed_any)


def ledger_path(workspace: Workspace, party: str) -> Path:
    return workspace.state / "ledgers" / f"{party}.jsonl"


def _parties(
    task: Task,
    workspace: Workspace,
    tables: Mapping[str, Table],
    embedder: Embedder,
    seed: int,
    insecure_noise_seed: int | None,
    clock: Callable[[], float],
    progress: Progress,
    private: Mapping[str, EmbeddingCache],
) -> dict[str, Party]:
    sources = {
        name: entropy.from_system if insecure_noise_seed is None else entropy.insecure(insecure_noise_seed, name)
        for name in tables
    }
    secrets = workspace.secrets(
        lambda: (
            {"store": os.urandom(32).hex()}
            | {f"identity/{name}": source("identity")(32).hex() for name, source in sources.items()}
        )
    )
    blocks = MemoryBlocks()  # public and named by content, so the parties may share what each would hold
    policy = Policy(largest_epsilon=math.inf, largest_delta=1.0)
    parties = {}
    for name, table in tables.items():
        # which records a cap keeps is part of what --seed fixes
        data = DataSet(table, tagged_hash("simulated data set", str(seed).encode(), name.encode()))
        parties[name] = Party(
            name,
            identity=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secrets[f"identity/{name}"])),
            data=data,
            policy=policy,
            ledger=Ledger.open(ledger_path(workspace, name), data.fingerprint, at=clock()),
            store=Store(workspace.parties_path, name, bytes.fromhex(secrets["store"])),
            blocks=blocks,
            embed=_shown(CachedEmbedder(embedder, private[name]), name, progress),
            embedder=embedder.fingerprint,
            entropy=sources[name],
            clock=clock,
        )
    return parties


def _shown(embedder: CachedEmbedder, name: str, progress: Progress) -> Embed:
    def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
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


def _clocks(insecure_noise_seed: int | None) -> tuple[Callable[[], float], Callable[[], float]]:
    # Under an insecure seed the outputs are compared byte by byte: no time may stand in them.
    if insecure_noise_seed is not None:
        return (lambda: 0.0), (lambda: 0.0)
    return time.time, time.monotonic
