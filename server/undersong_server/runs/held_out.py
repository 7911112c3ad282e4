"""Compares a test file with the texts that generators read: a score on texts that a generator saw means nothing."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted
from undersong_common.text.table import count_shared, fold_texts, read_table
from undersong_server.generators.interface import GeneratorSettings
from undersong_server.runs.task import Task

LARGEST_READ_BYTES = 64 * 2**20  # larger files are compared by name and place alone, since a form waits for the answer
REMEDY = "choose other public texts for the generator, or another test file"


def same_file_faults(task: Task) -> Iterator[tuple[str, str, str]]:
    """Yields (problem, remedy, key) for each generator that reads the test file, or a copy of it, as its own texts."""
    if task.evaluation.test is None:
        return
    test_path = task.locate(task.evaluation.test)
    for number, generator in enumerate(task.generators):
        for file_name in generator.files:
            if is_same_file(task.locate(file_name), test_path):
                yield (
                    f"generator {generator.name} reads the file of evaluation.test, {file_name}: the score would be of"
                    " texts that it has seen",
                    REMEDY,
                    f"generators.{number}.{file_key(generator)}",
                )


def file_key(generator: GeneratorSettings) -> str:
    """Returns the key by which a generator names its files."""
    return "path" if "path" in type(generator).model_fields else "corpus"


def shared_text_warnings(task: Task) -> Iterator[str]:
    """Yields a warning for each file of a generator that holds more than a few texts of the test file."""
    if task.evaluation.test is None:
        return
    test_path = task.locate(task.evaluation.test)
    for generator in task.generators:
        for file_name in generator.files:
            if is_same_file(task.locate(file_name), test_path):
                continue  # The plan refuses such a task.
            test_texts = folded_texts(test_path, task.data.text)
            if shared_count := count_shared(test_texts, folded_texts(task.locate(file_name), "text")):
                yield (
                    f"generator {generator.name}: {file_name} holds {shared_count} of the"
                    f" {counted(len(test_texts), 'text')} of evaluation.test, so that the score flatters; {REMEDY}"
                )


def is_same_file(first_path: Path, second_path: Path) -> bool:
    """Returns True for one file under two names, and for a file and its copy."""
    if not (first_path.is_file() and second_path.is_file()):
        return False
    if first_path.samefile(second_path):
        return True
    file_sizes = {first_path.stat().st_size, second_path.stat().st_size}
    if len(file_sizes) > 1 or max(file_sizes) > LARGEST_READ_BYTES:
        return False
    return _file_hash(first_path) == _file_hash(second_path)


def _file_hash(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def folded_texts(path: Path, column: str) -> frozenset[str]:
    """Returns the texts of a file without regard to case and spaces; none if it is too large or cannot be read."""
    if not path.is_file() or path.stat().st_size > LARGEST_READ_BYTES:
        return frozenset()
    file_status = path.stat()
    return _read_texts(path, column, file_status.st_mtime_ns, file_status.st_size)


@lru_cache(maxsize=8)
def _read_texts(path: Path, column: str, _changed_ns: int, _size: int) -> frozenset[str]:
    try:
        return fold_texts(read_table(path, column).texts)
    except ConfigurationError:
        return frozenset()
