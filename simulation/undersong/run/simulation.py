"""Many parties on one machine: real keys, real masks, real ledgers; only the network is missing.

:func:`deliver` goes from a task file to a finished folder: plan, run, publish, and the researcher's own comparison.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong.run.options import SimulationOptions
from undersong.run.records import check_units, private_tables
from undersong.run.workspace import (
    PRODUCT_PROGRAM,
    PartyProgram,
    SimulatedComputation,
    SimulatedParties,
    Workspace,
    clocks,
    read_keys,
)
from undersong_client.answering.party import Party
from undersong_common.arrays import Float32, Int16
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_common.models.embedding import (
    CachedEmbedder,
    Embed,
    Embedder,
    EmbeddingCache,
    MemoryCache,
    PublicFileCache,
    TextLengths,
)
from undersong_common.text.table import Table, concatenate
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server.cluster import Cluster, spread
from undersong_server.evaluation.evaluate import NO_PRIVACY
from undersong_server.federation.exchange import STAGE_TIMEOUT_S, Transport
from undersong_server.progress import Progress
from undersong_server.release.files import JSONL_NAME, SimulationSigner, publish, report_data
from undersong_server.release.rounds import figures_by_round
from undersong_server.report import usefulness
from undersong_server.report.data import EQUAL_WEIGHTS, Figures, ReportData
from undersong_server.runs import held_out, planning
from undersong_server.runs.execution import Outcome, PublicEmbedder, RunMonitor, RunParties, StartedRun, execute
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
        cached_rows = self._memory.get(keys)
        for cache in self._slower:
            if missing_keys := [key for key in keys if key not in cached_rows]:
                slower_rows = cache.get(missing_keys)
                self._memory.put(slower_rows.items())
                cached_rows |= slower_rows
        return cached_rows

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        row_list = list(rows)
        for cache in (self._memory, *self._written):
            cache.put(row_list)


@dataclass(frozen=True)
class Host:
    """The process that a simulation runs in.

    Attributes:
        environment: where generators find their keys.
        cluster: embeds public texts where they are many, and writes what models in local folders write; not beside
            Flower's engine, which has Ray for itself.
    """

    environment: Mapping[str, str]
    progress: Progress
    cluster: Cluster | None = None


@dataclass(frozen=True)
class Embeddings:
    """The embedder of a simulation, and what it has embedded before.

    Attributes:
        public_cache: embeddings of public texts.
        private_cache: shared by all parties and by several runs over the same records, in memory or encrypted.
        embedder: a loaded embedder, as in a comparison of many runs; None loads the task's.
    """

    public_cache: EmbeddingCache
    private_cache: EmbeddingCache | None = None
    embedder: Embedder | None = None


def simulate(
    run_plan: RunPlan,
    workspace: Workspace,
    tables: Mapping[str, Table],
    options: SimulationOptions,
    embeddings: Embeddings,
    host: Host,
    program: PartyProgram = PRODUCT_PROGRAM,
) -> Simulated:
    """Runs the plan with every party on this machine; continues what ``workspace`` holds already.

    Args:
        tables: each party's records by its name (:func:`private_tables`).
        options: its ``ray`` and ``fresh`` have no effect here.
        program: program of the parties, in this process only.
    """
    task = run_plan.task
    check_units(run_plan.plan.privacy, tables)
    embedder = embeddings.embedder or embedders.check(task.embedder.model, task.embedder.max_windows)
    simulated_parties = SimulatedParties(task, workspace.state, options.seed, options.insecure_noise_seed)
    simulated_parties.draw_keys(tables)
    private_cache = embeddings.private_cache or MemoryCache()
    if options.engine == "flower":
        # Flower's actors are processes. They share their embeddings in an encrypted file, which this process reads too.
        private_cache = simulated_parties.shared_cache()
    public_embedder = spread(embedder, task.embedder.model, embeddings.public_cache, host.cluster)
    embed_public = _report_embedding(public_embedder, "public texts", host.progress)

    def run_over(transport: Transport) -> Outcome:
        # A message to a thousand parties takes minutes on few cores, and Flower does not wait for a lost one.
        if options.engine == "inprocess":
            timeout_s = STAGE_TIMEOUT_S
        else:
            timeout_s = FLOWER_TIMEOUT_S
        return _execute(
            run_plan,
            workspace,
            options,
            RunParties(transport, list(tables), timeout_s=timeout_s),
            PublicEmbedder(embed_public, embedder.fingerprint),
            host,
        )

    if options.engine == "flower":
        from undersong.run.flower import over_flower

        run_outcome = over_flower(simulated_parties, list(tables), run_over, progress=host.progress)
    else:
        embed_private = _embed_all_first(CachedEmbedder(embedder, private_cache), tables, host.progress)
        run_outcome = run_over(_start_parties(simulated_parties, tables, embedder, embed_private, program))
    all_caches = LayeredCache([embeddings.public_cache, private_cache], writes=False)
    embed_any = _report_embedding(CachedEmbedder(embedder, all_caches), "for the comparison", host.progress)
    return Simulated(run_outcome, tables, embed_public, embed_any, embedder.lengths)


def _start_parties(
    simulated_parties: SimulatedParties,
    tables: Mapping[str, Table],
    embedder: Embedder,
    embed: Embed,
    program: PartyProgram,
) -> "InProcess":
    """Returns a transport to all parties, which live in this process and embed their records by ``embed``."""
    party_clock, _ = clocks(simulated_parties.insecure_noise_seed)
    memory_blocks = MemoryBlocks()  # Blocks are public and named by content, so all parties may share one store.
    parties = {
        name: simulated_parties.party(
            name, table, blocks=memory_blocks, embed=embed, embedder=embedder, clock=party_clock, program=program
        )
        for name, table in tables.items()
    }
    return InProcess(parties, simulated_parties.together)


def _execute(
    run_plan: RunPlan,
    workspace: Workspace,
    options: SimulationOptions,
    parties: RunParties,
    embedder: PublicEmbedder,
    host: Host,
) -> Outcome:
    """Executes the plan with a new author, which asks the generators and keeps answers in the workspace's journal."""
    author = build_author(
        run_plan.task,
        embedder.embed,
        host.environment,
        workspace.journal,
        host.progress,
        seed=options.seed,
        cluster=host.cluster,
    )
    started_run = StartedRun(
        _run_name(run_plan.task, workspace, options.insecure_noise_seed), workspace.journal, options.seed
    )
    _, monotonic = clocks(options.insecure_noise_seed)
    return execute(run_plan, started_run, parties, author, embedder, RunMonitor(host.progress, clock=monotonic))


def _embed_all_first(embedder: CachedEmbedder, tables: Mapping[str, Table], progress: Progress) -> Embed:
    """Returns a function that embeds, before its first texts, the records of all parties at once."""
    embed_all = functools.cache(functools.partial(_embed_all, _report_embedding(embedder, "records", progress), tables))

    def embed(texts: Sequence[str]) -> Float32:
        embed_all()
        return embedder.encode(texts)

    return embed


def _embed_all(embed: Embed, tables: Mapping[str, Table]) -> None:
    """Embeds all parties' records at once: many small calls leave most batches half full."""
    embed([text for table in tables.values() for text in table.texts])


def _report_embedding(embedder: CachedEmbedder, name: str, progress: Progress) -> Embed:
    def embed(texts: Sequence[str]) -> Float32:
        return embedder.encode(texts, lambda finished, total: progress.update(f"embedding {name}", finished, total))

    return embed


def _run_name(task: Task, workspace: Workspace, insecure_noise_seed: int | None) -> str:
    stored_name = workspace.journal.get_json("run/name")
    if stored_name is None:
        if insecure_noise_seed is None:
            random_suffix = os.urandom(4).hex()
        else:
            random_suffix = f"insecure-{insecure_noise_seed}"
        stored_name = f"{task.task.name} {random_suffix}"
        workspace.journal.put_json("run/name", stored_name)
    run_name: str = stored_name
    return run_name


class InProcess:
    """A transport within this process: hands each request to the party of that name, one after the other.

    A statistic that fails at a party's records stops the simulation, because without that party the sums would differ.

    Args:
        joint_write: joins the writes of all parties to one request: they are on the disk before any reply is used.
    """

    def __init__(
        self, parties: Mapping[str, Party], joint_write: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._parties = parties
        self._joint_write = joint_write

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        replies = {}
        with self._joint_write():
            for party_name, request_bytes in requests.items():
                party = self._parties[party_name]
                replies[party_name] = party.handle(request_bytes)
                if isinstance(party.computation, SimulatedComputation) and party.computation.failure is not None:
                    raise party.computation.failure
        return replies


@dataclass(frozen=True)
class Delivered:
    """A finished simulation: its output folder, and the values that its report shows."""

    folder: Path
    report: ReportData

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values that ``undersong simulate --json`` prints."""
        return {
            "folder": str(self.folder),
            "run": self.report.run,
            "samples": len(self.report.samples),
            "weights": [list(row) for row in self.report.weights],
            "weight_errors": list(self.report.weight_errors),
            "weights_remark": EQUAL_WEIGHTS if self.report.has_equal_weights else None,
            "epsilon_after": list(self.report.privacy.epsilon_after),
            "private": self.report.privacy.is_private,
            "score": None if self.report.score is None else self.report.score.to_json(),
            "set_aside": self.report.set_aside,
            # Of several rows about the same data the first one, the panel's, stays.
            "accuracy": {row.data: row.accuracy for row in reversed(self.report.accuracy)},
        }


def deliver(task: Task, folder: Path, options: SimulationOptions, *, public_cache: Path, host: Host) -> Delivered:
    """Runs or continues ``task`` in ``folder`` and writes its outputs.

    Args:
        options: its ``ray`` has no effect here; ``host`` holds the cluster.

    Raises ConfigurationError if the input is at fault, before anything is written, and what the run raises.
    """
    run_plan = planning.plan_run(task)
    ConfigurationError.raise_together([*planning.cap_faults(run_plan), *held_out.same_file_faults(task)])
    warnings = (*planning.cap_warnings(run_plan), *held_out.shared_text_warnings(task))
    for remark in (*task.remarks, *warnings):
        host.progress.say(remark)
    party_tables = private_tables(task, options.seed)
    noise_warnings = planning.noise_warnings(run_plan, sum(map(len, party_tables.values())))
    for remark in (*planning.full_name_warnings(task, party_tables), *noise_warnings):
        host.progress.say(remark)
    test_set = usefulness.read_test_file(task)
    planning.require_packages(run_plan)
    stated_arguments: dict[str, Any] = {"seed": options.seed, "insecure_noise_seed": options.insecure_noise_seed}
    if options.engine != "inprocess":
        # A sum that one engine has prepared cannot be ended by the other.
        stated_arguments["engine"] = options.engine
    with Workspace(folder, task, stated_arguments, fresh=options.fresh) as workspace:
        for state_line in _describe_state(workspace, folder, task.method.name):
            host.progress.say(state_line)
        embeddings = Embeddings(PublicFileCache(public_cache))
        simulated_run = simulate(run_plan, workspace, party_tables, options, embeddings, host)
        usefulness_figures: Figures = ((), ())
        if test_set is not None:
            usefulness_figures = _evaluate_corpus(run_plan, workspace, simulated_run, test_set, options.seed, host)
        # The outputs of a run with a seed for its noise are compared byte for byte, so they state no time.
        is_insecure = options.insecure_noise_seed is not None
        report = report_data(
            run_plan,
            simulated_run.outcome,
            simulated_run.lengths,
            created="" if is_insecure else time.strftime("%Y-%m-%d %H:%M"),
            insecure_noise=is_insecure,
            figures=usefulness_figures,
            test_set=task.evaluation.test or "",
        )
        party_keys = read_keys(workspace.state)
        identities = {
            name: Ed25519PrivateKey.from_private_bytes(party_keys[f"identity/{name}"]) for name in party_tables
        }
        round_figures = figures_by_round(
            run_plan,
            simulated_run.outcome,
            simulated_run.embed_any,
            test_set.texts if test_set else (),
            seed=options.seed,
        )
        signer = SimulationSigner(identities)
        publish(workspace.folder, simulated_run.outcome, report, signer=signer, rounds=round_figures)
    return Delivered(folder, report)


def _describe_state(workspace: Workspace, folder: Path, method_name: str) -> Iterator[str]:
    """Yields sentences on a run that the folder holds already."""
    if workspace.continued and (workspace.folder / JSONL_NAME).exists():
        yield f"the run in {folder} is already finished: nothing is asked or charged again"
    elif workspace.continued:
        yield f"continuing the run in {folder}"
    if workspace.method_changed:
        yield (
            f"WARNING: the code of the method {method_name!r} is not that with which this run began: it runs"
            " now over the texts and sums of the old code. To have a corpus of the new code alone, start over"
            f" (--fresh, in Python fresh=True) or name another folder (--out, out=)"
        )


def _evaluate_corpus(
    run_plan: RunPlan,
    workspace: Workspace,
    simulated: Simulated,
    test: Table,
    seed: int,
    host: Host,
) -> Figures:
    """Compares this corpus with the private records themselves and with texts without private data; returns figures.

    The figures are of the corpus and the public test file alone; a task without labels has these, and no task model.
    """
    corpus_by_name = {usefulness.OURS: usefulness.table_of(simulated.outcome.samples)}
    if usefulness.writes_baseline(run_plan, test):
        make_author = functools.partial(
            build_author, run_plan.task, simulated.embed, host.environment, workspace.journal, host.progress, seed=seed
        )
        corpus_by_name |= usefulness.write_baselines(run_plan, simulated.outcome.samples, make_author)
    if test.labels is not None:
        corpus_by_name[NO_PRIVACY] = concatenate(list(simulated.tables.values()))
    return usefulness.figures(
        run_plan.task,
        corpus_by_name,
        test,
        embed=simulated.embed_any,
        seed=seed,
        on_progress=lambda finished, total: host.progress.update("training the task models", finished, total),
    )
