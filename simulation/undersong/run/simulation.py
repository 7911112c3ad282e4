"""Many parties on one machine: real keys, real masks, real ledgers; only the network is missing.

:func:`deliver` goes from a task file to a finished folder: plan, run, publish, and the researcher's own comparison.
"""

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong.run.options import Engine
from undersong.run.records import check_units, private_tables, table_of
from undersong.run.workspace import SimulatedComputation, SimulatedParties, Workspace, clocks, read_keys
from undersong_client.answering.grid_vectors import Contribution, grid_vector
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
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server.cluster import Cluster, spread
from undersong_server.evaluation.evaluate import NO_PRIVACY
from undersong_server.federation.exchange import STAGE_TIMEOUT_S, Transport
from undersong_server.methods import mixture
from undersong_server.pool import Sample
from undersong_server.progress import Progress
from undersong_server.release.files import JSONL_NAME, SimulationSigner, publish, report_data
from undersong_server.release.rounds import figures_by_round
from undersong_server.report import usefulness
from undersong_server.report.data import EQUAL_WEIGHTS, ReportData
from undersong_server.runs import planning
from undersong_server.runs.execution import Outcome, execute
from undersong_server.runs.planning import RunPlan, build_author
from undersong_server.runs.task import Task

FLOWER_TIMEOUT_S = 3600.0
FREE_KINDS = ("ngram", "replay")  # a comparison may ask these again at no cost
MIXTURE = "zero-shot mixture, no private data"


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
        rows = self._memory.get(keys)
        for cache in self._slower:
            if missing := [key for key in keys if key not in rows]:
                slower_rows = cache.get(missing)
                self._memory.put(slower_rows.items())
                rows |= slower_rows
        return rows

    def put(self, rows: Iterable[tuple[bytes, Int16]]) -> None:
        row_list = list(rows)
        for cache in (self._memory, *self._written):
            cache.put(row_list)


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
    machine: type[PartyMachine] = PartyMachine,
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
        machine: how parties add noise and mask (an audit looks on); in this process only.
        cluster: embeds public texts where they are many, and writes what models in local folders write; not beside
            Flower's engine, which has Ray for itself.
    """
    task = run_plan.task
    check_units(run_plan.plan.privacy, tables)
    embedder = embedder or embedders.check(task.embedder.model, task.embedder.max_windows)
    clock, monotonic = clocks(insecure_noise_seed)
    simulated_parties = SimulatedParties(task, workspace.state, seed, insecure_noise_seed)
    simulated_parties.draw_keys(tables)
    if engine == "flower":
        # Flower's actors are processes. They share their embeddings in an encrypted file, which this process reads too.
        private_cache = simulated_parties.shared_cache()
    private_cache = private_cache or MemoryCache()
    private_embedder = CachedEmbedder(embedder, private_cache)
    public = spread(embedder, task.embedder.model, public_cache, cluster)
    embed_public = _report_embedding(public, "public texts", progress)
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
            # A message to a thousand parties takes minutes on few cores, and Flower does not wait for a lost one.
            timeout_s=STAGE_TIMEOUT_S if engine == "inprocess" else FLOWER_TIMEOUT_S,
        )

    if engine == "flower":
        from undersong.run.flower import over_flower

        outcome = over_flower(simulated_parties, list(tables), over, progress=progress)
    else:
        embed_all = functools.cache(
            functools.partial(_embed_all, _report_embedding(private_embedder, "records", progress), tables)
        )

        def embed(texts: Sequence[str]) -> Float32:
            embed_all()
            return private_embedder.encode(texts)

        blocks = MemoryBlocks()  # Blocks are public and named by content, so all parties may share one store.
        parties = {
            name: simulated_parties.party(
                name,
                table,
                blocks=blocks,
                embed=embed,
                embedder=embedder,
                clock=clock,
                contribution=contribution,
                machine=machine,
            )
            for name, table in tables.items()
        }
        outcome = over(InProcess(parties, simulated_parties.together))
    all_caches = LayeredCache([public_cache, private_cache], writes=False)
    embed_any = _report_embedding(CachedEmbedder(embedder, all_caches), "for the comparison", progress)
    return Simulated(outcome, tables, embed_public, embed_any, embedder.lengths)


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
        suffix = os.urandom(4).hex() if insecure_noise_seed is None else f"insecure-{insecure_noise_seed}"
        stored_name = f"{task.task.name} {suffix}"
        workspace.journal.put_json("run/name", stored_name)
    name: str = stored_name
    return name


class InProcess:
    """A transport within this process: hands each request to the party of that name, one after the other.

    A statistic that fails at a party's records stops the simulation: without that party the result would be another.

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
            for name, request in requests.items():
                party = self._parties[name]
                replies[name] = party.handle(request)
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
            "accuracy": {
                row.data: row.accuracy for row in reversed(self.report.accuracy)
            },  # the panel's, which is first
        }


def deliver(
    task: Task,
    folder: Path,
    *,
    seed: int,
    fresh: bool,
    insecure_noise_seed: int | None,
    public_cache: Path,
    environment: Mapping[str, str],
    progress: Progress,
    engine: Engine = "inprocess",
    cluster: Cluster | None = None,
) -> Delivered:
    """Runs or continues ``task`` in ``folder`` and writes its outputs.

    Args:
        cluster: embeds public texts where they are many, and writes what models in local folders write.

    Raises ConfigurationError if the input is at fault, before anything is written, and what the run raises.
    """
    run_plan = planning.plan_run(task)
    ConfigurationError.raise_together(planning.cap_faults(run_plan))
    for remark in (*task.remarks, *planning.cap_warnings(run_plan)):
        progress.say(remark)
    tables = private_tables(task, seed)
    for remark in planning.noise_warnings(run_plan, sum(map(len, tables.values()))):
        progress.say(remark)
    test = usefulness.read_test_file(task)
    planning.require_packages(run_plan)
    arguments: dict[str, Any] = {"seed": seed, "insecure_noise_seed": insecure_noise_seed}
    if engine != "inprocess":
        arguments["engine"] = engine  # A sum that one engine has prepared cannot be ended by the other.
    with Workspace(folder, task, arguments, fresh=fresh) as workspace:
        if workspace.continued:
            finished = (workspace.folder / JSONL_NAME).exists()
            progress.say(
                f"the run in {folder} is already finished: nothing is asked or charged again"
                if finished
                else f"continuing the run in {folder}"
            )
        if workspace.method_changed:
            progress.say(
                f"WARNING: the code of the method {task.method.name!r} is not that with which this run began: it runs"
                " now over the texts and sums of the old code. To have a corpus of the new code alone, start over"
                f" (--fresh, in Python fresh=True) or name another folder (--out, out=)"
            )
        simulated = simulate(
            run_plan,
            workspace,
            tables,
            seed=seed,
            insecure_noise_seed=insecure_noise_seed,
            public_cache=PublicFileCache(public_cache),
            environment=environment,
            progress=progress,
            engine=engine,
            cluster=cluster,
        )
        figures: usefulness.Figures = ((), ())
        if test is not None:
            figures = _evaluate_corpus(run_plan, workspace, simulated, test, environment, seed, progress)
        accuracy, measures = figures
        insecure = insecure_noise_seed is not None
        report = report_data(
            run_plan,
            simulated.outcome,
            simulated.lengths,
            created="" if insecure else time.strftime("%Y-%m-%d %H:%M"),
            insecure_noise=insecure,
            accuracy=accuracy,
            measures=measures,
            seeds=task.evaluation.repeats,
            test_set=task.evaluation.test or "",
            seconds=not insecure,  # such a run's outputs are compared byte for byte
        )
        keys = read_keys(workspace.state)
        identities = {name: Ed25519PrivateKey.from_private_bytes(keys[f"identity/{name}"]) for name in tables}
        rounds = figures_by_round(
            run_plan, simulated.outcome, simulated.embed_any, test.texts if test else (), seed=seed
        )
        signer = SimulationSigner(identities)
        publish(workspace.folder, simulated.outcome, report, signer=signer, rounds=rounds)
    return Delivered(folder, report)


def _evaluate_corpus(
    run_plan: RunPlan,
    workspace: Workspace,
    simulated: Simulated,
    test: Table,
    environment: Mapping[str, str],
    seed: int,
    progress: Progress,
) -> usefulness.Figures:
    """This corpus beside its two ends, private records without privacy and no private records at all; and its figures.

    The figures are of the corpus and the public test file alone; a task without labels has these, and no task model.
    """
    corpora = {usefulness.OURS: table_of(simulated.outcome.samples)}
    if test.labels is not None:
        if all(generator.kind in FREE_KINDS for generator in run_plan.task.generators):
            corpora[MIXTURE] = table_of(_write_mixture(run_plan, workspace, simulated, environment, seed, progress))
        corpora[NO_PRIVACY] = concatenate(list(simulated.tables.values()))
    return usefulness.figures(
        run_plan.task,
        corpora,
        test,
        embed=simulated.embed_any,
        seed=seed,
        on_progress=lambda finished, total: progress.update("training the task models", finished, total),
    )


def _write_mixture(
    run_plan: RunPlan,
    workspace: Workspace,
    simulated: Simulated,
    environment: Mapping[str, str],
    seed: int,
    progress: Progress,
) -> list[Sample]:
    """Writes the baseline: zero-shot texts of the same generators in equal parts, one order per sample of the run.

    A fresh author writes them. Its answers are journaled too.
    """
    author = build_author(run_plan.task, simulated.embed, environment, workspace.journal, progress, seed=seed)
    options = mixture.Options(samples=len(simulated.outcome.samples))
    samples = author.write("comparison", 0, mixture.orders(options, run_plan.setting))
    return [sample for sample in samples if sample is not None]
