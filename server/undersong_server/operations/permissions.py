"""Files and keys that a task from the console may use, and those that its form offers."""

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted, printable
from undersong_common.program import configuration
from undersong_common.text.row_files import SUFFIXES
from undersong_server.operations.drafts import Draft, is_task_file, task_folders
from undersong_server.operations.form import value_at
from undersong_server.runs.file_labels import TEST, LabelledFile, OtherLabels, other_labels
from undersong_server.runs.task import Task

WORD_SECTIONS = ("task", "publication", "output")  # sections that a coordinator's run reads and that name no file
# Keys of a generator that decide which secret is sent where.
DESTINATION_KEYS = ("kind", "base_url", "api_key_env", "proxy", "endpoints")
FILE_KEYS = ("corpus", "path")  # keys by which a generator names its files
COUNTED_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv")  # suffixes of files in which a row is a line
LARGEST_COUNTED_BYTES = 16 * 2**20  # The rows of a larger file are not counted.
MOST_FILES = 200  # most files that a form offers for a key


def offered(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Task files in the folders that the operator has named: TOML files with a [task] section.

    A file that cannot be read may be a task file, and is listed too: whoever opens it reads why it cannot be read.
    """
    return tuple(path for folder in folders for path in sorted(folder.glob("*.toml")) if _is_offered(path))


def _is_offered(path: Path) -> bool:
    try:
        file_bytes = path.read_bytes()
        return is_task_file(configuration.parse_toml(path.name, file_bytes))
    except OSError:
        return not path.is_dir()
    except ConfigurationError:
        return b"task" in file_bytes  # The error names the wrong line once somebody opens the file.


def files(draft: Draft, folders: Sequence[Path]) -> list[str]:
    """Files of public texts in the operator's folders, as the draft would name them; records of a task are left out."""
    start_folder = Path(draft.folder)
    public_paths = public_files(folders, _private_paths(start_folder, draft.data))
    return [str(path.relative_to(start_folder) if path.is_relative_to(start_folder) else path) for path in public_paths]


def public_files(folders: Sequence[Path], private: Set[str] = frozenset()) -> list[Path]:
    """Files of public texts in the operator's folders, without ``private`` paths and the records of a task there.

    No file is offered that lies beside or below a task file that cannot be read: the task may name it as records.
    """
    private = set(private)
    folders_below = [place for folder in folders for place in (folder, *_folders_below(folder))]
    for path in offered(folders_below):
        try:
            private |= _private_paths(path.parent, configuration.read_toml(path))
        except (OSError, ConfigurationError):
            # This pattern stands for every file beside the task file and below.
            private.add(os.path.join(glob.escape(os.path.realpath(path.parent)), "*"))
    all_paths = (path for folder in folders for path in folder.absolute().rglob("*"))
    text_paths = (path for path in all_paths if path.suffix.lower() in SUFFIXES and not _is_private(private, path))
    return sorted(islice(text_paths, MOST_FILES))


def file_words(path: Path, test_files: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the size of a file that a form offers, its rows where lines tell them, and the task that tests with it.

    Args:
        test_files: as :func:`files_of_tests` returns them.
    """
    if not path.is_file():
        return ""
    file_status = path.stat()
    words = [_size_words(file_status.st_size)]
    is_counted = path.suffix.lower() in COUNTED_SUFFIXES and file_status.st_size <= LARGEST_COUNTED_BYTES
    if is_counted and os.access(path, os.R_OK):
        words.insert(0, counted(_row_count(path, file_status.st_mtime_ns, file_status.st_size), "row"))
    if task_name := test_files.get(os.path.realpath(path)):
        words.append(f"test file of {task_name}")
    return ", ".join(words)


def files_of_tests(folders: Sequence[Path]) -> dict[str, str]:
    """Returns the test files that task files in the folders and below name: the task file's name by real path."""
    folders_below = [place for folder in folders for place in (folder, *_folders_below(folder))]
    test_files: dict[str, str] = {}
    for path in offered(folders_below):
        try:
            task_data = configuration.read_toml(path)
        except ConfigurationError:
            continue  # Its error is shown once somebody opens it.
        test_name = value_at(task_data, "evaluation.test")
        if isinstance(test_name, str) and test_name and "\0" not in test_name:
            root = value_at(task_data, "data.root")
            start_folder = path.parent / root if isinstance(root, str) else path.parent
            test_files[os.path.realpath(start_folder / test_name)] = path.name
    return test_files


def test_file_warnings(draft: Draft, folders: Sequence[Path]) -> list[str]:
    """Returns a warning for each generator of a draft that reads what another task keeps for its evaluation."""
    test_files = files_of_tests(folders)
    own_test = value_at(draft.data, "evaluation.test")
    generator_tables = [table for table in draft.data.get("generators", ()) if isinstance(table, Mapping)]
    warnings = []
    for table in generator_tables:
        for _, file_name in _texts("", {key: table.get(key) for key in FILE_KEYS}):
            if file_name == own_test or "\0" in file_name:
                continue  # The plan refuses it.
            if task_name := test_files.get(os.path.realpath(Path(draft.folder) / file_name)):
                warnings.append(
                    f"{table.get('name')} would read {file_name}, the test file of {task_name}. Evaluated on it, the"
                    " texts would seem better than they are: choose another file, or evaluate on other texts"
                )
    return warnings


@lru_cache(maxsize=2 * MOST_FILES)
def _row_count(path: Path, _changed_ns: int, _size: int) -> int:
    """Number of lines with a character, without the header of a CSV or TSV file."""
    with path.open("rb") as lines:
        filled_line_count = sum(1 for line in lines if line.strip())
    return filled_line_count - (path.suffix.lower() in (".csv", ".tsv") and filled_line_count > 0)


def _size_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _folders_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_dir())


def _private_paths(folder: Path, data: Mapping[str, Any]) -> set[str]:
    """Real paths of the private records that a task's [data] names: files, folders or patterns."""
    root = value_at(data, "data.root")
    paths = value_at(data, "data.path")
    start_folder = folder / root if isinstance(root, str) else folder
    path_list = paths if isinstance(paths, list) else [paths]
    private_paths = [str(start_folder / path) for path in path_list if isinstance(path, str)]
    return {os.path.realpath(place) for place in private_paths if "\0" not in place}


def _is_private(private_paths: Set[str], path: Path) -> bool:
    real_path = os.path.realpath(path)
    return not private_paths.isdisjoint((real_path, os.path.dirname(real_path))) or any(
        fnmatch(real_path, private_path) for private_path in private_paths
    )


@dataclass(frozen=True)
class FilePermissions:
    """Files and keys that a task from the console may use, beside those of the operator's own task file.

    Attributes:
        draft: the task, and the file that it was made of.
        folders: the operator's folders of task files; the task may name files in them.
        keys: (host, environment variable) of every key that it may send.
    """

    home: Path
    draft: Draft
    folders: Sequence[Path]
    keys: Sequence[tuple[str, str]]

    def __call__(self, task: Task) -> None:
        """Raises ConfigurationError if the task names a file or key that it may not use; no file is read before."""
        operator_texts = {text for _, text in _paths(self.draft.operators)}
        allowed_folders = task_folders(self.home, self.folders)
        faults: list[tuple[str, ...]] = [
            (
                f"{key_path}: {printable(text, 100)!r} is outside the operator's folders"
                f" ({', '.join(map(str, allowed_folders))})",
                f"upload the file at its field, or copy it to {allowed_folders[-1]} and choose it here",
                key_path,
            )
            for key_path, text in _paths(self.draft.data)
            if text not in operator_texts
            and not self._allows(Path(self.draft.folder) if key_path == "data.root" else task.locate(""), text)
        ]
        operator_destinations = [known_destination for _, known_destination in _destinations(self.draft.operators)]
        operator_generators = {
            name for name, destination in _destinations(self.draft.data) if destination in operator_destinations
        }
        faults += [
            (
                f"generators.{generator.name}: the key {variable} may not be sent to {host}",
                "choose an endpoint of the operator's, who allows others at the console's start (--key HOST=VARIABLE)",
                f"generators.{generator_number}.base_url",
            )
            for generator_number, generator in enumerate(task.generators)
            for host, variable in generator.keys
            if generator.name not in operator_generators and (host, variable) not in self.keys
        ]
        ConfigurationError.raise_together(faults, code="not-from-the-console")

    def other_labels(self) -> tuple[OtherLabels, ...]:
        """Returns the files of the draft that carry other labels than it states; none where it asks for no labels.

        Only files that the task may name are read. A draft without labels yet differs from every file with some.
        """
        task = self.draft.data["task"]
        stated_labels = task.get("labels")
        if not isinstance(stated_labels, list):
            return ()
        named_files = [file for file in self._named_files() if self._may_name(file.name)]
        return tuple(other_labels(named_files, [str(label) for label in stated_labels]))

    def _named_files(self) -> Iterator[LabelledFile]:
        data = self.draft.data
        root = value_at(data, "data.root")
        start_folder = Path(self.draft.folder) / (root if isinstance(root, str) else "")
        for number, table in enumerate(data.get("generators", ())):
            for key in FILE_KEYS:
                for _, name in _texts("", table.get(key)):
                    yield LabelledFile(f"generators.{number}.{key}", name, start_folder / name)
        test_name = value_at(data, TEST)
        label_field = value_at(data, "data.label")
        if isinstance(test_name, str) and isinstance(label_field, str):
            yield LabelledFile(
                TEST, test_name, start_folder / test_name, str(value_at(data, "data.text") or "text"), label_field
            )

    def _may_name(self, name: str) -> bool:
        operator_texts = {text for _, text in _paths(self.draft.operators)}
        return name in operator_texts or self._allows(Path(self.draft.folder), name)

    def _allows(self, start_folder: Path, text: str) -> bool:
        """Returns True for the path of a file in the allowed folders, and for a text that is no path of a file."""
        if "\0" in f"{start_folder}{text}":
            return False
        real_path = Path(os.path.realpath(start_folder / text))
        if any(real_path.is_relative_to(os.path.realpath(folder)) for folder in task_folders(self.home, self.folders)):
            return True
        leaves_folder = text.startswith("/") or ".." in PurePath(text).parts
        return not leaves_folder and not os.path.lexists(start_folder / text)


def _paths(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (key, text) of every text that may be a path; keys that hold words alone, or are ignored, are left out."""
    for section, value in data.items():
        if section == "data" and isinstance(value, Mapping):
            value = {"root": value.get("root", "")}
        if section not in WORD_SECTIONS:
            yield from _texts(section, value)


def _texts(key_path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key_path, value
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield from _texts(f"{key_path}.{key}", member)


def _destinations(data: Mapping[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each generator's name with the parts of its table that decide to which host a key is sent."""
    generator_tables = data.get("generators", ())
    for table in generator_tables if isinstance(generator_tables, list) else ():
        if isinstance(table, Mapping):
            yield table.get("name"), [table.get(key) for key in DESTINATION_KEYS]
