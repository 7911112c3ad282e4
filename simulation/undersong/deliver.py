"""A simulation from task file to finished folder: plan, run, publish, and the researcher's own comparison."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from undersong.options import Engine
from undersong.records import private_tables, table_of
from undersong.simulation import Simulated, simulate
from undersong.workspace import Workspace, read_keys
from undersong_common import extras
from undersong_common.embedding import PublicFileCache
from undersong_common.errors import ConfigurationError
from undersong_common.model_files import PACKAGED
from undersong_common.table import Table, concatenate
from undersong_server.cluster import Cluster
from undersong_server.evaluation.evaluate import NO_PRIVACY, evaluate_tables
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.evaluation.panel import FIGURES, Trained
from undersong_server.methods import mixture
from undersong_server.operations.tasks import read_test_file
from undersong_server.pool import Sample
from undersong_server.progress import Progress
from undersong_server.release.files import JSONL_NAME, SimulationSigner, publish, report_data
from undersong_server.report.data import Accuracy, Measure, ReportData, measures_of
from undersong_server.runs import planning
from undersong_server.runs.task import Task

FREE_KINDS = ("ngram", "replay")  # a comparison may ask these again at no cost
OURS = "synthetic"
MIXTURE = "zero-shot mixture, no private data"


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
            "epsilon_after": list(self.report.privacy.epsilon_after),
            "private": self.report.privacy.is_private,
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
    test = read_test_file(task)
    extras.require("sklearn", "pyarrow", *(["torch"] if test is not None and test.labels is not None else []))
    arguments: dict[str, Any] = {"seed": seed, "insecure_noise_seed": insecure_noise_seed}
    if engine != "inprocess":
        arguments["engine"] = engine  # what it prepares ahead, the other one could not end
    with Workspace(folder, task, arguments, fresh=fresh) as workspace:
        if workspace.continued:
            finished = (workspace.folder / JSONL_NAME).exists()
            progress.say(
                f"the run in {folder} is already finished: nothing is asked or charged again"
                if finished
                else f"continuing the run in {folder}"
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
        accuracy, measures = (
            ((), ()) if test is None else _evaluated(run_plan, workspace, simulated, test, environment, seed, progress)
        )
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
        publish(workspace.folder, simulated.outcome, report, signer=SimulationSigner(identities))
    return Delivered(folder, report)


def _evaluated(
    run_plan: planning.RunPlan,
    workspace: Workspace,
    simulated: Simulated,
    test: Table,
    environment: Mapping[str, str],
    seed: int,
    progress: Progress,
) -> tuple[tuple[Accuracy, ...], tuple[Measure, ...]]:
    """This corpus beside its two ends, private records without privacy and no private records at all; and its figures.

    The figures are of the corpus and the public test file alone; a task without labels has these, and no task model.
    """
    settings = run_plan.task.evaluation
    corpora = {OURS: table_of(simulated.outcome.samples)}
    if test.labels is None:
        report = evaluate_tables(
            OURS, corpora[OURS], EvaluationOptions(test=test, seed=seed), embed=simulated.embed_any
        )
        return (), measures_of(report)
    if all(generator.kind in FREE_KINDS for generator in run_plan.task.generators):
        corpora[MIXTURE] = table_of(_mixture(run_plan, workspace, simulated, environment, seed, progress))
    corpora[NO_PRIVACY] = concatenate(list(simulated.tables.values()))
    options = EvaluationOptions(
        test=test,
        head=settings.head,
        bert=None if settings.encoder is None else _encoder(run_plan.task, settings.encoder),
        epochs=settings.epochs,
        batch=settings.batch,
        learning_rate=settings.learning_rate,
        max_tokens=settings.max_tokens,
        repeats=settings.repeats,
        seed=seed,
    )
    rows: list[Accuracy] = []
    measures: tuple[Measure, ...] = ()
    for number, (data, corpus) in enumerate(corpora.items()):
        progress.update("training the task models", number, len(corpora))
        if len(set(corpus.labels or ())) < 2:
            continue
        report = evaluate_tables(data, corpus, options, embed=simulated.embed_any, only_task_models=data != OURS)
        if data == OURS:
            measures = measures_of(report)
        rows += [_accuracy(data, each, panel=each is report.trained[0]) for each in report.trained]
    return tuple(rows), measures


def _accuracy(data: str, trained: Trained, *, panel: bool) -> Accuracy:
    figures = {name: trained.interval(name) for name in FIGURES}
    return Accuracy(
        data,
        **{name: figure.value for name, figure in figures.items()},
        ours=data == OURS and panel,
        reads_private=data == NO_PRIVACY,
        model=trained.description,
        interval=figures["accuracy"] if len(trained.runs) > 1 else None,
    )


def _encoder(task: Task, encoder: str) -> Path:
    return Path(encoder) if encoder == PACKAGED else task.locate(encoder)


def _mixture(
    run_plan: planning.RunPlan,
    workspace: Workspace,
    simulated: Simulated,
    environment: Mapping[str, str],
    seed: int,
    progress: Progress,
) -> list[Sample]:
    """Writes the baseline: zero-shot texts of the same generators in equal parts, one order per sample of the run.

    A fresh author writes them. Its answers are journaled too.
    """
    author = planning.build_author(run_plan.task, simulated.embed, environment, workspace.journal, progress, seed=seed)
    options = mixture.Options(samples=len(simulated.outcome.samples))
    written = author.write("comparison", 0, mixture.orders(options, run_plan.setting))
    return [sample for sample in written if sample is not None]
