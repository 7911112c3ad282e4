"""Labels of the public files that a task names, beside the labels that the task states."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, joined, printable
from undersong_common.text.row_files import SUFFIXES, column_names
from undersong_common.text.table import read_table
from undersong_server.runs.held_out import LARGEST_READ_BYTES, file_key
from undersong_server.runs.task import Task

TEST = "evaluation.test"  # the key that names the test file
MOST_LABELS = 100  # most labels of a file whose labels a task can take: a column with more hardly holds labels
SHOWN_LABELS = 8  # labels that a sentence names


@dataclass(frozen=True)
class LabelledFile:
    """A public file ``name`` that a task names at its ``key``; ``text`` and ``label`` are the columns to read."""

    key: str
    name: str
    path: Path
    text: str = "text"
    label: str = "label"


@dataclass(frozen=True)
class OtherLabels:
    """A file that carries other labels than its task states.

    Attributes:
        file: the file, as the task names it.
        labels: of the file, sorted.
        absent: labels of the task that no text of the file has, in the task's order.
        further: labels of the file that the task does not state, sorted.
    """

    file: LabelledFile
    labels: tuple[str, ...]
    absent: tuple[str, ...]
    further: tuple[str, ...]

    @property
    def words(self) -> str:
        """The sentence on what differs and what follows from it, without its full stop."""
        name = self.file_name
        if len(self.labels) > MOST_LABELS:
            return f"{name} has {len(self.labels)} different labels: its column {self.file.label} hardly holds labels"
        if not self.absent and self.file.key != TEST:
            return f"{name} has the labels {_list_labels(self.labels)}"
        if self.file.key == TEST:
            consequence = "the run would end before any hospital is asked"
        else:
            lack_words = f"it has no text labelled {_list_labels(self.absent)}"
            consequence = f"{lack_words}, and its texts labelled {_list_labels(self.further)} serve no label"
        return f"{name} has other labels than the stated ones: {consequence}"

    @property
    def file_name(self) -> str:
        """Name of the file without its folders."""
        return printable(Path(self.file.name).name, 100)

    @property
    def can_be_used(self) -> bool:
        """True if the file's labels may take the place of the task's."""
        return len(self.labels) <= MOST_LABELS

    @property
    def remedy(self) -> str:
        """The remedy at a terminal."""
        if not self.can_be_used:
            return "name a file with a column of labels"
        labels = json.dumps(list(self.labels), ensure_ascii=False)
        return f"use the file's labels (--set 'task.labels={labels}'), or name a file with the task's labels"


def task_files(task: Task) -> Iterator[LabelledFile]:
    """Yields the files of texts that the generators of a task read, and its test file."""
    for number, generator in enumerate(task.generators):
        for name in generator.files:
            yield LabelledFile(f"generators.{number}.{file_key(generator)}", name, task.locate(name))
    if task.evaluation.test is not None and task.data.label is not None:
        test_path = task.locate(task.evaluation.test)
        yield LabelledFile(TEST, task.evaluation.test, test_path, task.data.text, task.data.label)


def other_labels(files: Iterable[LabelledFile], labels: Sequence[str]) -> Iterator[OtherLabels]:
    """Yields the files that carry other labels than ``labels``; without labels, every file that has some.

    A generator's file may lack labels that another one has, or have more than the task needs; not both. A test file
    may lack labels.
    """
    for file in files:
        labels_of_file = _labels_of(file)
        absent_labels = tuple(label for label in labels if label not in labels_of_file)
        further_labels = tuple(label for label in labels_of_file if label not in labels)
        differs = further_labels if file.key == TEST else further_labels and (absent_labels or not labels)
        if differs:
            yield OtherLabels(file, labels_of_file, absent_labels, further_labels)


def label_warnings(task: Task) -> Iterator[str]:
    """Yields a warning for each file that carries other labels than its task states; none for a task without labels."""
    for difference in other_labels(task_files(task), task.task.labels) if task.task.labels else ():
        yield f"{difference.words}; {difference.remedy}"


def _list_labels(labels: Sequence[str]) -> str:
    shown_labels = [printable(label, 60) for label in labels[:SHOWN_LABELS]]
    hidden_count = len(labels) - len(shown_labels)
    return joined([*shown_labels, *([counted(hidden_count, "more", "more")] if hidden_count else [])])


def _labels_of(file: LabelledFile) -> tuple[str, ...]:
    """The labels of a file, sorted; () for a file that cannot be read, whose error comes where the file is used."""
    path = file.path
    if path.suffix.lower() not in SUFFIXES or not path.is_file() or path.stat().st_size > LARGEST_READ_BYTES:
        return ()
    file_status = path.stat()
    return _read_labels(path, file.text, file.label, file_status.st_mtime_ns, file_status.st_size)


@lru_cache(maxsize=64)
def _read_labels(path: Path, text: str, label: str, _changed_ns: int, _size: int) -> tuple[str, ...]:
    try:
        if label not in column_names(path):
            return ()
        return tuple(sorted(set(read_table(path, text, label).labels or ())))
    except (ConfigurationError, OSError):
        return ()
