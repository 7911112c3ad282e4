"""The tables that a task names, read by one rule for plan and simulation: private records and the public test file."""

from __future__ import annotations

from undersong_common.errors import ConfigurationError
from undersong_common.table import Table, read_table
from undersong_server.runs.task import Task


def read_private_files(task: Task) -> list[Table]:
    """The task's private files, in order. Raises ConfigurationError that names every file at fault, and its row."""
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
                read_table(path, data.text, data.label, data.user, labels=task.task.labels, encoding=data.encoding)
            )
        except ConfigurationError as error:
            faults.append((error.problem, error.remedy))
    ConfigurationError.raise_together(faults)
    return tables


def read_test_file(task: Task) -> Table | None:
    """The public test file, labelled where the task has labels; None where the task names none.

    Raises ConfigurationError that names file and row.
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
