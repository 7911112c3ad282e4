"""Many parties on one machine: real keys, real masks, real ledgers; only the network is missing."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from undersong.options import Engine
from undersong.records import check_units
from undersong.workspace import SimulatedComputation, SimulatedParties, Workspace, clocks
from undersong_client.answering.grid_vectors import Contribution, grid_vector
from undersong_client.answering.party import Party
from undersong_common import embedders
from undersong_common.arrays import Float32, Int16
from undersong_common.embedding import CachedEmbedder, Embed, Embedder, EmbeddingCache, MemoryCache, TextLengths
from undersong_common.table import Table
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server.cluster import Cluster, spread
from undersong_server.federation.driver import STAGE_TIMEOUT_S, Transport
from undersong_server.progress import Progress
from undersong_server.runs.execution import Outcome, execute
from undersong_server.runs.planning import RunPlan, build_author
from undersong_server.runs.task import Task

FLOWER_TIMEOUT_S = 3600.0


@dataclass(frozen=True, repr=False)
class Simulated:
    """A finished simulation.

    Attributes:
        tables: the parties' private records, by name: they are the researcher's own here.
        embed: for public texts only: what it computes is kept on disk.
        embed_any: for any text: it keeps what it computes in memory.
        lengths: counts the texts that the embedder does not read at once.
    """

    outcome: Outcome
    tables: Mapping[str, Table]
    embed: Embed
    embed_any: Embed
    lengths: Callable[[Sequence[str]], TextLengths]


class LayeredCache:
    """A cache of embeddings in memory, before slower caches whose rows it keeps once they are read.

    Args:
        slower: the other caches, read in their order.
        writes: True writes new rows to the slower caches too.
    """

    def __init__(self, slower: Sequence[EmbeddingCache], *, writes: bool) -> None:
        self._memory = MemoryCache()
        self._slower = slower
        self._written = slower if writes else ()

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Int16]:
        found = self._memory.get(keys)
        for cache in self._slower:
            if missing := [key for key in keys if key not in found]:
                more = cache.get(missing)
                self._memory.put(more.items())
                found |= more
        return found

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        kept = list(rows)
        for cache in (self._memory, *self._written):
            cache.put(kept)


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
    embedder: Embedder | None = None,
    private_cache: EmbeddingCache | None = None,
    engine: Engine = "inprocess",
    contribution: Contribution = grid_vector,
    cluster: Cluster | None = None,
) -> Simulated:
    """Runs the plan with every party in this process; continues what ``workspace`` holds already.

    Args:
        tables: each party's records by its name (:func:`private_tables`).
        seed: of everything but noise, keys and masks.
        insecure_noise_seed: tests only; makes those reproducible too, and the result worthless as a private release.
        public_cache: embeddings of public texts.
        environment: where generators find their keys.
        embedder: a loaded embedder, as in a comparison of many runs; None loads the task's.
        private_cache: shared by all parties and by several runs over the same records, in memory or encrypted.
        engine: what carries the messages: parties in this process, or Flower's simulation engine (on Ray).
        contribution: how parties compute their vectors (an audit looks on); in this process only.
        cluster: embeds public texts where they are many, and writes what models in local folders write; not beside
            Flower's engine, which has Ray for itself.
    """
    task = run_plan.task
    check_units(run_plan.plan.privacy, tables)
    embedder = embedder or embedders.check(task.embedder.model, task.embedder.max_windows)
    clock, monotonic = clocks(insecure_noise_seed)
    made = SimulatedParties(task, workspace.state, seed, insecure_noise_seed)
    made.draw_keys(tables)
    if engine == "flower":
        # its actors are processes: what they compute is kept, encrypted, where each of them and this process finds it
        private_cache = made.shared_cache()
    private_cache = private_cache or MemoryCache()
    own = CachedEmbedder(embedder, private_cache)
    public = spread(embedder, task.embedder.model, public_cache, cluster)
    embed_public = _shown(public, "public texts", progress)
    author = build_author(task, embed_public, environment, workspace.journal, progress, seed=seed, cluster=cluster)

    def over(transport: Transport) -> Outcome:
        return execute(
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

        outcome = over_flower(made, list(tables), over, progress=progress)
    else:
        embed_all = functools.cache(functools.partial(_embed_all, _shown(own, "records", progress), tables))

        def embed(texts: Sequence[str]) -> Float32:
            embed_all()
            return own.encode(texts)

        blocks = MemoryBlocks()  # public and named by content, so the parties may share what each would hold
        parties = {
            name: made.party(
                name,
                table,
                blocks=blocks,
                embed=embed,
                embedder=embedder,
                clock=clock,
                contribution=contribution,
            )
            for name, table in tables.items()
        }
        outcome = over(InProcess(parties, made.together))
    known = LayeredCache([public_cache, private_cache], writes=False)
    embed_any = _shown(CachedEmbedder(embedder, known), "for the comparison", progress)
    return Simulated(outcome, tables, embed_public, embed_any, embedder.lengths)


def _embed_all(embed: Embed, tables: Mapping[str, Table]) -> None:
    """Embeds all parties' records at once: many small calls leave most batches half full."""
    embed([text for table in tables.values() for text in table.texts])


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


class InProcess:
    """A transport within this process: hands each request to the party of that name, one after the other.

    A statistic that fails at a party's records stops the simulation: without that party the result would be another.

    Args:
        together: joins the writes of all parties to one request: they are on the disk before any reply is used.
    """

    def __init__(
        self, parties: Mapping[str, Party], together: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._parties = parties
        self._together = together

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        replies = {}
        with self._together():
            for name, request in requests.items():
                party = self._parties[name]
                replies[name] = party.handle(request)
                if isinstance(party.computation, SimulatedComputation) and party.computation.failure is not None:
                    raise party.computation.failure
        return replies
