"""The library's functions: the operations of the command line, with DataFrames for files and progress in a notebook."""

from __future__ import annotations

import hashlib
import html
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from undersong.frames import is_frame, selected, to_jsonl, to_table
from undersong.options import ComparisonOptions, Engine, check_engine
from undersong.results import Comparison, Evaluation, Plan, Simulation, Verification
from undersong.task_files import Task
from undersong_common.errors import ConfigurationError
from undersong_server.cluster import connected
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import evaluation, releases, tasks
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
    with shown(progress) as display, connected(ray) as cluster:
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
    corpus: Simulation | Path | str, *, text: str | None = None, label: str | None = None, **options: Any
) -> Evaluation:
    """Trains the panel's task models on the corpus, tests them, and compares with data that the caller holds.

    Args:
        corpus: a simulation, or the output folder of any finished run.
        text, label: columns of the DataFrames and files; None takes the simulated task's, else "text" and "label".
        options: the other fields of :class:`EvaluationOptions`; DataFrames or files.

    Raises ConfigurationError that names the frame or file, the row and the remedy.
    """
    simulated = corpus if isinstance(corpus, Simulation) else None
    text = text or (simulated.text if simulated else "text")
    label = label or (simulated.label if simulated else "label")
    for name, columns in {"test": label, "train_private": label, "overlap": None, "adapt_to": None}.items():
        options[name] = to_table(options.get(name), text, columns, name)
    if pair := options.get("membership"):
        names = ("members", "non-members")
        options["membership"] = tuple(to_table(each, text, label, what) for each, what in zip(pair, names, strict=True))
    chosen = EvaluationOptions(text_field=text, label_field=label, **options)
    return Evaluation(evaluation.evaluate(simulated.folder if simulated else Path(str(corpus)), chosen))


def compare(task: Task, methods: Sequence[str], *, progress: Progress | None = None, **options: Any) -> Comparison:
    """Compares methods by what the panel's task models learn from their corpora; the same call continues.

    Args:
        methods: NAME, "NAME:key=value+key=value", "METHOD@GENERATOR" (one generator alone) or "private-only".
        options: the other fields of :class:`ComparisonOptions`.

    Raises ConfigurationError for a grid or a task that cannot run.
    """
    command = f"undersong.compare(task, {list(methods)!r})"
    with shown(progress) as display:
        return compare_by(task, ComparisonOptions(methods=methods, **options), command, display)


def compare_by(task: Task, options: ComparisonOptions, command: str, progress: Progress) -> Comparison:
    """Compares methods. The task's settings stand for options that are empty.

    Args:
        command: stated beside the tables.
    """
    from undersong.comparison import compared

    settings = task.settings()
    folder = Path(f"{settings.output.dir}-{COMPARISON}" if options.out is None else options.out)
    test = options.test
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
    whole = replace(options, test=test, out=folder, epsilons=options.epsilons or (settings.privacy.epsilon,))
    rows = compared(task.file, whole, assignments=task.assignments, command=command, name=COMPARISON, progress=progress)
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


EVERY_S = 0.2  # between two drawings: a kernel's messages are not free


def shown(progress: Progress | None) -> AbstractContextManager[Progress]:
    """The caller's own, or one that suits where the program runs."""
    if progress is not None:
        return nullcontext(progress)
    if in_notebook():
        from IPython.display import HTML, display

        handle = display(HTML(""), display_id=True)
        return NotebookProgress(lambda markup: handle.update(HTML(markup)))
    from undersong_server.cli.display import display as terminal

    return terminal(False)


def in_notebook() -> bool:
    """Returns True if a notebook's kernel runs this process, and False in a terminal's IPython."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """A :class:`undersong_server.progress.Progress` as HTML that replaces itself; sentences stay above the bar.

    Args:
        show: draws HTML in place of what it drew before.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._said: list[str] = []
        self._bar = ""
        self._phase = ""
        self._drawn = float("-inf")
        self._lock = threading.Lock()  # generators write from threads of their own

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._bar = ""
            self._draw()

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            due = phase != self._phase or done >= total or self._clock() - self._drawn >= EVERY_S
            self._phase = phase
            words = f"{html.escape(phase)} {done}/{total}"
            self._bar = f'<div>{words} <progress value="{done}" max="{max(total, 1)}"></progress></div>'
            if due:
                self._draw()

    def await_people(self, parties: Sequence[str], done: int, total: int) -> None:
        self.update(f"approval of {', '.join(parties)}", done, total)

    def say(self, message: str) -> None:
        with self._lock:
            self._said.append(f"<div>{html.escape(message)}</div>")
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._show("".join([*self._said, self._bar]))
