"""The files that a task names: tables, read by one rule for plan and simulation, and checks of them all."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from undersong_common import embedders
from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.fine_tuning import check_folder
from undersong_common.model_files import PACKAGED
from undersong_common.printable import counted
from undersong_common.table import Table, read_table
from undersong_protocol.agreement.plan import Plan
from undersong_protocol.statistics.embedding_sum import EmbeddingSum
from undersong_server.generators.interface import TOKENS_A_WORD, GeneratorSettings, Surroundings
from undersong_server.runs.planning import build_prompts
from undersong_server.runs.task import Task


def read_private_files(task: Task) -> list[Table]:
    """Reads the private files of a task, in order. Raises ConfigurationError that names every bad file and its row."""
    data = task.data
    if data.path is None:
        raise ConfigurationError("data.path is missing", "name the private records, or pass --set data.path=FILE")
    faults, tables = [], []
    if task.task.labels and data.label is None:
        faults.append(("data.label is missing but task.labels is given", "name the label column"))
    if task.privacy.unit == "user" and data.user is None:
        faults.append(('privacy.unit is "user" but data.user names no column', "name it in data.user"))
    if not task.files:
        faults.append((f"data.path: {data.path}: no such file", "check the path"))
    for path in task.files:
        if not path.exists():
            faults.append((f"{path}: no such file (data.path)", "check the path"))
            continue
        try:
            tables.append(
                read_table(
                    path,
                    data.text,
                    data.label,
                    data.user,
                    columns=task.attribute_columns,
                    labels=task.task.labels,
                    encoding=data.encoding,
                )
            )
        except ConfigurationError as error:
            faults.append((error.problem, error.remedy))
    ConfigurationError.raise_together(faults)
    return tables


def read_test_file(task: Task) -> Table | None:
    """Reads the public test file, with labels if the task has labels; None if the task names no test file.

    Raises ConfigurationError, with file and row, if the file cannot be read or used.
    """
    if task.evaluation.test is None:
        return None
    path = task.locate(task.evaluation.test)
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file (evaluation.test)", "check the path")
    if not task.task.labels:  # no task model, but every figure of the texts beside the test file's
        return read_table(path, task.data.text)
    if task.data.label is None:
        raise ConfigurationError("evaluation.test needs data.label", "name the label column, or leave the test out")
    return read_table(path, task.data.text, task.data.label, labels=task.task.labels)


def task_faults(task: Task, plan: Plan | None = None) -> Iterator[tuple[str, str]]:
    """Yields (fault, remedy) for the files and models that a task names; it reads private files as a simulation does.

    Args:
        plan: plan of the task, if it has been made: the embedder is then checked against it too.
    """
    encoder = task.evaluation.encoder
    models = (encoder if encoder in (None, PACKAGED) else str(task.locate(encoder)), task.teacher_model)
    checks: list[Callable[[], object]] = [
        partial(_check_sizes, task),
        partial(_check_embedder, task, plan),
        partial(build_prompts, task),
        *([] if task.data.path is None else [partial(read_private_files, task)]),
        *(partial(_check_generator, task, generator) for generator in task.generators),
        partial(read_test_file, task),
        *(partial(check_folder, model) for model in models if model),
    ]
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            yield error.problem, error.remedy


def _check_sizes(task: Task) -> None:
    records = task.data.file_records
    if records is not None and task.parties > records:
        raise ConfigurationError(
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


def _check_generator(task: Task, generator: GeneratorSettings) -> None:
    missing = [path for path in map(task.locate, generator.files) if not path.exists()]
    ConfigurationError.raise_together(
        (f"{path}: no such file (generator {generator.name})", "check the path") for path in missing
    )
    longest, words = generator.longest_answer, task.task.words
    if longest is not None and words is not None and words[1] * TOKENS_A_WORD > longest:
        raise ConfigurationError(
            f"generator {generator.name}: answers end at {longest} tokens, task.words asks for up to {words[1]} words",
            f"let it write at least {round(words[1] * TOKENS_A_WORD)} tokens, or lower task.words",
        )
    generator.check(Surroundings(task.task.labels, task.locate(""), _embeds_nothing, {}))


def _embeds_nothing(_texts: Sequence[str]) -> Float32:
    raise InternalError("a plan embeds no text")
