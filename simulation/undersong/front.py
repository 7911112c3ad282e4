"""The library's functions: the operations of the command line, with DataFrames for files and progress in a notebook."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from undersong import notebook_progress
from undersong.engines import Engine, check_engine
from undersong.frames import FrameOrPath, is_frame, selected, to_jsonl, to_table
from undersong.results import Comparison, Evaluation, Plan, Simulation, Verification
from undersong.task_files import Task
from undersong_common.errors import ConfigurationError
from undersong_server.cluster import connected
from undersong_server.evaluation.heads import Head
from undersong_server.operations import evaluation, releases, tasks
from undersong_server.operations.caches import public_cache_path
from undersong_server.progress import Progress

COMPARISON = "comparison"


def plan(task: Task) -> Plan:
    """Every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Raises ConfigurationError that names file, key, value and remedy.
    """
    return Plan(tasks.plan(task.file, task.assignments))


def simulate(
    task: Task,
    out: Path | str | None = None,
    *,
    seed: int = 0,
    fresh: bool = False,
    engine: Engine = "inprocess",
    ray: str | None = None,
    insecure_noise_seed: int | None = None,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Runs the task with every party on this machine; the same call continues a run that was stopped.

    Args:
        out: the run's folder; None takes the task's ``output.dir``.
        seed: fixes everything but noise, keys and masks.
        fresh: starts over: removes what the folder's last run wrote.
        engine: "flower" is Flower's simulation engine, for hundreds of parties.
        ray: embeds public texts over the Ray cluster at this address where they are many; "" begins Ray on this
            machine. Not with the engine "flower", which has Ray for itself.
        insecure_noise_seed: for tests only: reproducible noise; the output is marked as not private.
        environment: where generators find their keys; None is this process's.
        progress: None shows it in the notebook, or on standard error.

    Raises ConfigurationError before anything is written where the input is at fault, and what the run raises.
    """
    from undersong.deliver import deliver

    check_engine(engine)
    if ray is not None and engine == "flower":
        raise ConfigurationError("Flower's engine has Ray for itself: no second cluster beside it", "leave one away")
    settings = task.settings()
    environment = dict(os.environ if environment is None else environment)
    with notebook_progress.shown(progress) as display, connected(ray) as cluster:
        delivered = deliver(
            settings,
            Path(settings.output.dir if out is None else out),
            seed=seed,
            fresh=fresh,
            insecure_noise_seed=insecure_noise_seed,
            public_cache=public_cache_path(environment),
            environment=environment,
            progress=display,
            engine=engine,
            cluster=cluster,
        )
    return Simulation(delivered, settings.data.text, settings.data.label)


def evaluate(
    corpus: Simulation | Path | str,
    *,
    test: FrameOrPath | None = None,
    train_private: FrameOrPath | None = None,
    overlap: FrameOrPath | None = None,
    adapt_to: FrameOrPath | None = None,
    membership: tuple[FrameOrPath, FrameOrPath] | None = None,
    sequences: bool = False,
    personal_data: bool = False,
    text: str | None = None,
    label: str | None = None,
    head: Head | None = None,
    bert: Path | None = None,
    repeats: int = 1,
    embedder: str = "packaged",
    ray: str | None = None,
    public_data: bool = False,
    seed: int = 0,
) -> Evaluation:
    """Trains the panel's task models on the corpus, tests them, and compares with data that the caller holds.

    Args:
        corpus: a simulation, or the output folder of any finished run.
        test: labelled real texts; ``train_private``: the records themselves, for the reference without privacy;
            ``overlap``: private texts to search the corpus for; ``adapt_to``: unlabelled texts of where it will work;
            ``membership``: members and non-members to attack the task model with. DataFrames or files.
        text, label: their columns; None takes the simulated task's, else "text" and "label".
        ray: spreads the work over the Ray cluster at this address, with the same files under the same paths, whose
            machines then hold the texts; "" begins Ray on this machine.
        head, bert, repeats, sequences, personal_data, embedder, public_data, seed: as of ``undersong evaluate``.

    Raises ConfigurationError that names the frame or file, the row and the remedy.
    """
    simulated = corpus if isinstance(corpus, Simulation) else None
    text = text or (simulated.text if simulated else "text")
    label = label or (simulated.label if simulated else "label")

    def unlabelled(source: FrameOrPath | None, what: str) -> evaluation.Source | None:
        return to_table(source, text, None, what)

    def labelled(source: FrameOrPath, what: str) -> evaluation.Source:
        table = to_table(source, text, label, what)
        assert table is not None
        return table

    cache = public_cache_path(os.environ) if public_data else None
    with evaluation.workplace(embedder, ray, cache) as (embed, compute):
        report = evaluation.evaluate(
            simulated.folder if simulated else Path(str(corpus)),
            test=None if test is None else labelled(test, "test"),
            embed=embed,
            train_private=None if train_private is None else labelled(train_private, "train_private"),
            overlap=unlabelled(overlap, "overlap"),
            adapt_to=unlabelled(adapt_to, "adapt_to"),
            sequences=sequences,
            membership=None
            if membership is None
            else (labelled(membership[0], "members"), labelled(membership[1], "non-members")),
            head=head,
            bert=bert,
            text_field=text,
            label_field=label,
            repeats=repeats,
            personal_data=personal_data,
            seed=seed,
            compute=compute,
        )
    return Evaluation(report)


def compare(
    task: Task,
    methods: Sequence[str],
    *,
    test: FrameOrPath | None = None,
    epsilons: Sequence[float] = (),
    parties: Sequence[int] = (),
    records: Sequence[int] = (),
    seeds: int | Iterable[int] = 3,
    baseline: str | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    ray: str | None = None,
    fresh: bool = False,
    public_data: bool = False,
    insecure_noise_seed: int | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Comparison:
    """Compares methods by what the panel's task models learn from their corpora; the same call continues.

    Args:
        methods: NAME, "NAME:key=value+key=value", "single:GENERATOR" or "private-only".
        test: test set, labelled where the task has labels, a DataFrame or a file; None takes the task's
            ``evaluation.test``.
        epsilons: budgets; none takes the task's.
        parties, records: numbers of parties and of private records; none takes the task's.
        seeds: how many, counted from 0, or which.
        baseline: reference of the paired differences; None takes the first method.
        out: folder of cells and tables; None takes "comparison" within the task's ``output.dir``. Further calls with
            the same task add to its table.
        jobs: worker processes, each of which loads the models; 0 is one per core.
        ray: spreads the work over the Ray cluster at this address, with the same files under the same paths; "" begins
            Ray on this machine.
        public_data: the records are public: their embeddings are kept on this disk, for every process.
        command: what made it, for the tables.

    Raises ConfigurationError for a grid or a task that cannot run.
    """
    from undersong.comparison import compared

    settings = task.settings()
    folder = Path(out) if out is not None else Path(f"{settings.output.dir}-{COMPARISON}")
    if test is None:
        if settings.evaluation.test is None:
            raise ConfigurationError(
                "a comparison needs a test set",
                "give one (--test FILE; test= in Python), or name it in evaluation.test",
            )
        test = settings.locate(settings.evaluation.test)
    if is_frame(test):
        columns = [settings.data.text, *([settings.data.label or "label"] if settings.task.labels else [])]
        folder.mkdir(parents=True, exist_ok=True)
        content = to_jsonl(selected(test, columns, "test")).encode("utf-8")
        written = folder / f"test-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"  # no other command's file
        written.write_bytes(content)
        test = written
    with notebook_progress.shown(progress) as display:
        rows = compared(
            task.file,
            test=Path(str(test)),
            methods=methods,
            epsilons=epsilons or (settings.privacy.epsilon,),
            parties=parties,
            records=records,
            seeds=range(seeds) if isinstance(seeds, int) else tuple(seeds),
            baseline=baseline,
            out=folder,
            jobs=jobs,
            ray=ray,
            assignments=task.assignments,
            fresh=fresh,
            public_data=public_data,
            insecure_noise_seed=insecure_noise_seed,
            command=command or f"undersong.compare(task, {list(methods)!r})",
            name=COMPARISON,
            progress=display,
        )
    return Comparison(folder, COMPARISON, rows)


def verify(
    corpus: Simulation | Path | str, *, fingerprint: str | None = None, parties: Mapping[str, str] | None = None
) -> Verification:
    """Recomputes the whole (epsilon, delta) of a published data set from its files, and says who took part.

    Args:
        corpus: a simulation, or the folder of any published data set.
        fingerprint: of the coordinator that must have signed it; a simulation has none, and is confirmed as such.
        parties: fingerprints by name of parties that must have taken part, as they have told them.
    """
    folder = corpus.folder if isinstance(corpus, Simulation) else Path(corpus)
    return Verification(releases.verify(folder, fingerprint=fingerprint, parties=dict(parties or {})))
