"""The library's functions: the operations of the command line, with DataFrames for files and progress in a notebook."""

from __future__ import annotations

import functools
import hashlib
import html
import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field

from undersong.library.arguments import CODE, check_options, checked
from undersong.library.results import Audit, Comparison, Evaluation, Plan, Published, Simulation, Verification
from undersong.library.task_files import Task
from undersong.run.frames import Frame, is_frame, pandas_package, selected, to_jsonl, to_table
from undersong.run.options import ComparisonOptions, SimulationOptions
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.program.library_threads import one_thread_for_products
from undersong_server.cluster import connected
from undersong_server.defaults import public_cache_path
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import releases, tasks
from undersong_server.operations.tasks import try_generator
from undersong_server.progress import Progress

COMPARISON = "comparison"
TABLES = ("test", "train_private", "overlap", "adapt_to", "membership")  # arguments of evaluate that may be DataFrames
LABELLED = ("test", "train_private")

Seed = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


_Function = TypeVar("_Function", bound=Callable[..., Any])
_OPTION = re.compile(r"--([a-z][a-z-]*)")
# Options whose argument in Python is written otherwise than NAME=.
_ARGUMENTS = {"epsilon": "epsilons=", "adapt": "adapt_to=", "fresh": "fresh=True"}


_OPTION_CLASSES: Mapping[str, type[Any]] = {
    "simulate": SimulationOptions,
    "compare": ComparisonOptions,
    "evaluate": EvaluationOptions,
}


class Stopped(KeyboardInterrupt):
    """An interrupted call in a notebook, which shows three lines in place of a traceback."""

    def _render_traceback_(self) -> list[str]:
        return str(self.args[0]).split("\n")


def public(function: _Function) -> _Function:
    """Wraps a function of the library: errors name arguments and extras; an interrupted notebook says how to continue.

    The signature and the docstring of the wrapped function list what ``**options`` takes.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **keywords: Any) -> Any:
        try:
            with one_thread_for_products():
                return checked(function)(*arguments, **keywords)
        except UndersongError as error:
            error.problem = _OPTION.sub(_name_argument, error.problem)
            error.remedy = _OPTION.sub(_name_argument, error.remedy)
            error.args = tuple(
                _OPTION.sub(_name_argument, part) if isinstance(part, str) else part for part in error.args
            )
            raise
        except KeyboardInterrupt:
            if not in_notebook():
                raise
            raise Stopped(
                f"us.{function.__name__} was stopped. What was written, paid and charged is kept.\n"
                "The same call continues: no finished answer is asked for again, no privacy is charged twice.\n"
                "To start over instead, add fresh=True (simulate, compare) or name another folder."
            ) from None

    options = _OPTION_CLASSES.get(function.__name__)
    if options is not None:
        signature = inspect.signature(function)
        explicit = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        further = [
            inspect.Parameter(option_field.name, inspect.Parameter.KEYWORD_ONLY, default=option_field.default)
            for option_field in fields(options)
            if option_field.name not in signature.parameters
        ]
        called.__dict__["__signature__"] = signature.replace(parameters=[*explicit, *further])
        called.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(options)}"
    return cast("_Function", called)


def _name_argument(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return _ARGUMENTS.get(name, f"{name}=")


def plan(task: Task) -> Plan:
    """Plans every private sum of a run of the task, its noise, and the generators' calls. Spends nothing.

    Raises ConfigurationError for an invalid task; it names file, key, value and remedy.

    >>> print(us.plan(task).promise)
    epsilon 4, delta 1e-05 for one sample; 13.992 if every other party colludes
    """
    return Plan(tasks.plan(task.file, task.assignments, environment=os.environ))


def simulate(
    task: Task,
    out: Path | str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Simulation:
    """Runs the task with every party on this machine; the same call continues a run that was stopped.

    Args:
        out: the run's folder; None takes the task's ``output.dir``.
        environment: where generators find their keys; None is this process's.
        progress: None shows it in the notebook, or on standard error.
        options: ``seed``, ``fresh``, ``engine`` and the others that ``help(us.simulate)`` lists.

    Raises ConfigurationError before anything is written where the input is at fault, and what the run raises.

    >>> run = us.simulate(task, seed=0)
    >>> sorted(run.corpus["label"].unique())
    ['cat', 'dog']
    """
    from undersong.run.simulation import Host, deliver

    simulation_options = SimulationOptions(**check_options(options, SimulationOptions, unknown_code=CODE))
    if simulation_options.ray is not None and simulation_options.engine == "flower":
        raise ConfigurationError(
            "Flower's engine begins its own Ray and cannot use another cluster",
            "leave out engine or ray",
            code="two-clusters",
        )
    settings = task.settings()
    folder = Path(settings.output.dir if out is None else out)
    environment = dict(os.environ if environment is None else environment)
    with shown(progress) as display, connected(simulation_options.ray) as cluster:
        host = Host(environment, display, cluster)
        delivered_run = deliver(
            settings, folder, simulation_options, public_cache=public_cache_path(environment), host=host
        )
    return Simulation(delivered_run, settings.data.text, settings.data.label)


def load(folder: Path | str) -> Published:
    """Opens the data set that a finished run left in ``folder``, a simulation's or a federation's.

    Raises ConfigurationError if there is none.

    >>> us.load(run.folder).corpus.equals(run.corpus)
    True
    """
    return Published(Path(folder))


def try_(
    task: Task, generator: str, *, texts: Annotated[int, Field(ge=1, le=1000)] = 5, kind: str = "zero_shot"
) -> Frame:
    """Orders a few texts from one generator: a row each, with prompt, answer, text, fault and cost.

    Args:
        generator: its name in the task.
        texts: how many, 1 to 1000.
        kind: of the prompts: "zero_shot", "random" or "metadata".

    Raises ConfigurationError for an unknown generator, or one that cannot be built. Reads nothing private.

    >>> us.try_(task, "write", texts=2)["label"].tolist()
    ['cat', 'dog']
    """

    attempts = try_generator(generator, task.file, task.assignments, environment=os.environ, kind=kind, texts=texts)
    return pandas_package().DataFrame([asdict(attempt) for attempt in attempts])


def audit(
    task: Task,
    *,
    runs: Annotated[int, Field(ge=2)] = 64,
    canaries: Count = 16,
    jobs: Count = 1,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attacks real runs of the task with planted records; states the epsilon that the attacks prove.

    Args:
        runs: whole simulations to attack.
        canaries: records that each run plants or not, by fair coins.
        jobs: processes; functions as generators need 1.
        seed: of the canaries and their coins; never of noise or keys.

    Raises ConfigurationError for a task without a finite epsilon, or that cannot run.

    >>> us.audit(task, runs=2, canaries=1).faults
    []
    """
    from undersong.auditing import run as auditing
    from undersong.auditing.verdict import AuditSettings

    with shown(progress) as display:
        settings = AuditSettings(task.file, task.assignments, runs, canaries, seed, jobs)
        return Audit(auditing.audit(settings, display))


def evaluate(
    corpus: Published | Path | str, *, text: str | None = None, label: str | None = None, **options: Any
) -> Evaluation:
    """Trains the panel's task models on the corpus, tests them, and compares with data that the caller holds.

    Args:
        corpus: a simulation, a loaded data set, or the output folder of any finished run.
        text, label: columns of the DataFrames and files; None takes the simulated task's, else "text" and "label".
        options: ``test`` and the other keywords that ``help(us.evaluate)`` lists; DataFrames or files.

    Raises ConfigurationError for data that cannot be used; it names the frame or file, the row and the remedy.

    >>> us.evaluate(run, test=test).scores["model"].tolist()
    ['panel']
    """
    options |= check_options(
        {name: argument for name, argument in options.items() if name not in TABLES}, EvaluationOptions
    )
    simulation = corpus if isinstance(corpus, Simulation) else None
    if isinstance(corpus, Published):
        folder = corpus.folder
    else:
        folder = Path(str(corpus))
    text = options.pop("text_field", text) or (simulation.text if simulation else "text")
    label = options.pop("label_field", label) or (simulation.label if simulation else "label")
    for name in TABLES[:-1]:
        options[name] = to_table(options.get(name), text, label if name in LABELLED else None, name)
    if pair := options.get("membership"):
        pair_names = ("members", "non-members")
        if not isinstance(pair, Sequence) or len(pair) != len(pair_names):
            raise ConfigurationError("membership= is not a pair", "membership=: give (members, non-members)", code=CODE)
        options["membership"] = tuple(
            to_table(table, text, label, table_name) for table, table_name in zip(pair, pair_names, strict=True)
        )
    return Evaluation(releases.evaluate(folder, EvaluationOptions(text_field=text, label_field=label, **options)))


def compare(
    task: Task, methods: Sequence[str] | str, *, progress: Progress | None = None, **options: Any
) -> Comparison:
    """Compares methods by what the panel's task models learn from their corpora; the same call continues.

    Args:
        methods: one or several of NAME, "NAME:key=value+key=value", "METHOD@GENERATOR" (one generator alone) and
            "private-only".
        options: ``test``, ``seeds``, ``epsilons``, ``out``, ``jobs`` and the others that ``help(us.compare)`` lists.

    Raises ConfigurationError for a grid or a task that cannot run.

    >>> us.compare(task, ["wasp", "mixture"], test=test, seeds=1).table["method"].tolist()
    ['wasp', 'mixture']
    """
    methods = [methods] if isinstance(methods, str) else methods
    options = check_options({"methods": methods, **options}, ComparisonOptions)
    command = f"undersong.compare(task, {list(options['methods'])!r})"
    with shown(progress) as display:
        return compare_by(task, ComparisonOptions(**options), command, display)


def compare_by(task: Task, options: ComparisonOptions, command: str, progress: Progress) -> Comparison:
    """Compares methods for :func:`compare` and the command; empty options take the task's values.

    Args:
        command: the command or call that is stated beside the tables.
    """
    from undersong.comparison.grid import compared

    settings = task.settings()
    folder = Path(f"{settings.output.dir}-{COMPARISON}" if options.out is None else options.out)
    if (test := options.test) is None:
        if settings.evaluation.test is None:
            raise ConfigurationError(
                "a comparison needs a test set",
                "give one (--test FILE; test= in Python), or name it in evaluation.test",
                code="no-test-set",
            )
        test = settings.locate(settings.evaluation.test)
    if is_frame(test):
        columns = [settings.data.text, *([settings.data.label or "label"] if settings.task.labels else [])]
        folder.mkdir(parents=True, exist_ok=True)
        test_bytes = to_jsonl(selected(test, columns, "test")).encode("utf-8")
        # The name has the content's hash, so that no other command overwrites the file with another test set.
        test_file = folder / f"test-{hashlib.sha256(test_bytes).hexdigest()[:16]}.jsonl"
        test_file.write_bytes(test_bytes)
        test = test_file
    full_options = replace(options, test=test, out=folder, epsilons=options.epsilons or (settings.privacy.epsilon,))
    table_json = compared(
        task.file, full_options, assignments=task.assignments, command=command, name=COMPARISON, progress=progress
    )
    return Comparison(folder, COMPARISON, table_json)


def verify(
    corpus: Published | Path | str, *, fingerprint: str | None = None, parties: Mapping[str, str] | None = None
) -> Verification:
    """Recomputes the whole (epsilon, delta) of a published data set from its files, and says who took part.

    Args:
        corpus: a simulation, a loaded data set, or the folder of any published one.
        fingerprint: of the coordinator that must have signed it; a simulation has none, and is confirmed as such.
        parties: fingerprints by name of parties that must have taken part, as they have told them.

    >>> us.verify(run).holds
    True
    """
    if isinstance(corpus, Published):
        folder = corpus.folder
    else:
        folder = Path(corpus)
    return Verification(releases.verify(folder, fingerprint=fingerprint, parties=dict(parties or {})))


EVERY_S = 0.2  # least time between two drawings, because a kernel's messages are not free


def shown(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Returns a context with ``progress``; if that is None, with a display in the notebook or on the terminal."""
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


class NotebookProgress(Progress):
    """Progress as HTML that replaces itself; sentences stay above the bar.

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
            self._redraw_screen()

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            is_due = phase != self._phase or done >= total or self._clock() - self._drawn >= EVERY_S
            self._phase = phase
            progress_words = f"{html.escape(phase)} {done}/{total}"
            self._bar = f'<div>{progress_words} <progress value="{done}" max="{max(total, 1)}"></progress></div>'
            if is_due:
                self._redraw_screen()

    def say(self, message: str) -> None:
        with self._lock:
            self._said.append(f"<div>{html.escape(message)}</div>")
            self._redraw_screen()

    def _redraw_screen(self) -> None:
        self._drawn = self._clock()
        self._show("".join([*self._said, self._bar]))
