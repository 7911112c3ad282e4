"""What a simulation of a task would stumble over: files, columns, labels, the embedder, sizes that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.fine_tuning import check_folder
from undersong_common.model_files import PACKAGED
from undersong_common.plurals import counted
from undersong_protocol.plan import Plan
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_server.generators.interface import GeneratorSettings, Surroundings
from undersong_server.runs.planning import build_prompts
from undersong_server.runs.tables import read_private_files, read_test_file
from undersong_server.runs.task import Task

_CHECK = "check the path"


def task_faults(task: Task, plan: Plan | None = None) -> Iterator[tuple[str, str]]:
    """Each fault with its remedy. Private files are read by the simulation's own rule, and only where named.

    Args:
        plan: of the task's method, where it has been made: the embedder is then checked against it too.
    """
    yield from _sizes(task)
    yield from _raised(lambda: _check_embedder(task, plan))
    yield from _raised(lambda: build_prompts(task))
    if task.data.path is not None:
        yield from _raised(lambda: read_private_files(task))
    for generator in task.generators:
        yield from _generator(task, generator)
    yield from _raised(lambda: read_test_file(task))
    encoder = task.evaluation.encoder
    for model in (encoder if encoder in (None, PACKAGED) else str(task.locate(encoder)), task.teacher_model):
        if model:
            yield from _raised(partial(check_folder, model))


def _sizes(task: Task) -> Iterator[tuple[str, str]]:
    records = task.data.file_records
    if records is not None and task.parties > records:
        yield (
            f"federation.parties is {task.parties}, but the file has {counted(records, 'record')}",
            "lower federation.parties",
        )


def _check_embedder(task: Task, plan: Plan | None) -> None:
    found = embedders.dimension(task.embedder.model)
    for planned in plan.sums if plan is not None else ():
        size = planned.parameters.get("size", found)
        if planned.statistic == EmbeddingSum.name and size != found:
            raise ConfigurationError(
                f"the embedding model gives {found} coordinates, method.embedding_size is {size}",
                f"set method.embedding_size = {found}",
            )


def _generator(task: Task, generator: GeneratorSettings) -> Iterator[tuple[str, str]]:
    paths = [task.locate(name) for name in generator.files]
    missing = [path for path in paths if not path.exists()]
    for path in missing:
        yield f"{path}: no such file (generator {generator.name})", _CHECK
    if not missing:
        around = Surroundings(task.task.labels, task.locate(""), _none, {})
        yield from _raised(lambda: generator.check(around))


def _none(_texts: Sequence[str]) -> Float32:
    raise InternalError("a plan embeds no text")


def _raised(check: Callable[[], object]) -> Iterator[tuple[str, str]]:
    try:
        check()
    except ConfigurationError as error:
        yield error.problem, error.remedy
