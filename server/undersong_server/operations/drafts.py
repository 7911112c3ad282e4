"""Task files as forms: an uploaded one, one of an offered folder, or the task of an earlier run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from undersong_common import configuration
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations.coordinator import console_folder
from undersong_server.runs.folder import read_json, replace_json
from undersong_server.runs.task import Task

KEPT = 200  # drafts; the oldest are removed
WORDS = ("task", "publication", "evaluation", "output")  # sections without files that a coordinator's run reads
DESTINATION = ("kind", "base_url", "api_key_env", "proxy", "endpoints")
HIDDEN = ("data.path", "output.dir", "evaluation")  # keys that a coordinator's run ignores
UNITS = {
    "timeout_s": "seconds",
    "price_usd": "US$",
    "epsilon": "whole run",
    "delta": "below 1 / (number of patients)",
    "samples": "texts",
}


@dataclass(frozen=True)
class TaskField:
    """One key of a task file as a form shows it.

    Attributes:
        path: "section.key", with numbers for entries of a list of sections.
        text: the value: a string verbatim, anything else in TOML syntax.
        is_text: True for a string.
        hint: unit of the value, or "".
    """

    path: str
    text: str
    is_text: bool
    hint: str = ""

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Draft:
    """A task that may become a run; relative paths start at ``folder``, and ``source`` names its origin.

    ``operators`` is the task as it stands in the operator's own file or an earlier run; empty for an uploaded one.
    """

    identity: str
    source: str
    folder: str
    data: Mapping[str, Any]
    operators: Mapping[str, Any]

    @property
    def fields(self) -> tuple[TaskField, ...]:
        return tuple(_fields("", self.data))


def _folder(home: Path) -> Path:
    return console_folder(home) / "drafts"


def offered(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Task files in the folders that the operator has named: TOML files with a [task] section."""
    return tuple(path for folder in folders for path in sorted(folder.glob("*.toml")) if _is_offered(path))


def _is_offered(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    try:
        return _is_task(configuration.parse_toml(path.name, data))
    except ConfigurationError:
        return b"[task]" in data  # opening it names the wrong line


def _is_task(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("task"), Mapping)


def from_file(home: Path, path: Path) -> Draft:
    """Makes a draft of a task file on this machine. Raises ConfigurationError if it cannot be read."""
    data = configuration.read_toml(path)
    return _keep(home, path.name, path.absolute().parent, data, data)


def from_bytes(home: Path, name: str, data: bytes, folders: Sequence[Path]) -> Draft:
    """Makes a draft of an uploaded task file; its relative paths start at the first of the operator's folders."""
    return _keep(home, name, _folders(home, folders)[0], configuration.parse_toml(name, data), {})


def from_run(home: Path, run: str) -> Draft:
    """Makes a draft of an earlier run's task."""
    planned = CoordinatorHome(home).run(run).planned()
    return _keep(home, f"run {run}", Path(planned.folder), planned.task, planned.task)


def _keep(home: Path, source: str, folder: Path, data: Mapping[str, Any], operators: Mapping[str, Any]) -> Draft:
    if not _is_task(data):
        raise ConfigurationError(
            f"{source}: is no task file, since it has no [task] section", "choose another file", code="no-task"
        )
    draft = Draft(os.urandom(8).hex(), source, str(folder), dict(data), operators)
    place = _folder(home)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime)[: -KEPT + 1]:
        old.unlink(missing_ok=True)
    replace_json(
        place / f"{draft.identity}.json",
        {"source": source, "folder": str(folder), "data": _plain(draft.data), "operators": _plain(operators)},
        durable=False,
    )
    return draft


def find(home: Path, identity: str) -> Draft:
    """Returns a draft. Raises ConfigurationError if it does not exist."""
    value = None if not (identity.isalnum() and len(identity) < 64) else read_json(_folder(home) / f"{identity}.json")
    if value is None:
        raise ConfigurationError("this draft has expired", "choose its task file again")
    return Draft(identity, value["source"], value["folder"], value["data"], value["operators"])


def change(home: Path, draft: Draft, texts: Mapping[str, str]) -> Draft:
    """Returns a new draft with these values, or ``draft`` itself if no value differs.

    Args:
        texts: by path, as in :attr:`Draft.fields`; unknown paths are ignored. Browsers end lines by CR LF.
    """
    texts = {path: text.replace("\r\n", "\n") for path, text in texts.items()}
    assignments = [
        f"{each.path}={json.dumps(texts[each.path]) if each.is_text else texts[each.path]}"
        for each in draft.fields
        if each.path in texts and texts[each.path] != each.text
    ]
    if not assignments:
        return draft
    changed = configuration.override(draft.data, assignments)
    return _keep(home, draft.source, Path(draft.folder), changed, draft.operators)


@dataclass(frozen=True)
class Limits:
    """Files and keys that a task from the console may use, beside those of the operator's own task file.

    Attributes:
        draft: the task, and the file that it was made of.
        folders: whose files it may name; the operator's folders of task files.
        keys: (host, environment variable) of every key that it may send.
    """

    home: Path
    draft: Draft
    folders: Sequence[Path]
    keys: Sequence[tuple[str, str]]

    def __call__(self, task: Task) -> None:
        """Raises ConfigurationError that names every key at fault. Nothing is read before."""
        theirs = {text for _, text in _paths(self.draft.operators)}
        faults = [
            (
                f"{where}: {printable(text, 100)!r} is outside the operator's folders of task files",
                "name a file in one of them, or have the run planned on the coordinator's machine",
            )
            for where, text in _paths(self.draft.data)
            if text not in theirs
            and not self._allows(Path(self.draft.folder) if where == "data.root" else task.locate(""), text)
        ]
        known = [destination for _, destination in _destinations(self.draft.operators)]
        theirs = {name for name, destination in _destinations(self.draft.data) if destination in known}
        faults += [
            (
                f"generators.{generator.name}: the key {variable} may not be sent to {host}",
                "choose an endpoint of the operator's, who allows others by --key HOST=VARIABLE",
            )
            for generator in task.generators
            for host, variable in generator.keys
            if generator.name not in theirs and (host, variable) not in self.keys
        ]
        ConfigurationError.raise_together(faults, code="not-from-the-console")

    def _allows(self, start: Path, text: str) -> bool:
        """Returns True for what is in the folders, or names no file at all."""
        if "\0" in f"{start}{text}":
            return False
        place = Path(os.path.realpath(start / text))
        if any(place.is_relative_to(os.path.realpath(folder)) for folder in _folders(self.home, self.folders)):
            return True
        leaves = text.startswith("/") or ".." in PurePath(text).parts
        return not leaves and not os.path.lexists(start / text)


def _folders(home: Path, folders: Sequence[Path]) -> list[Path]:
    return [folder.absolute() for folder in folders] or [console_folder(home).absolute() / "uploads"]


def _paths(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (key, text) of every text that may be a path; keys that hold words alone, or are ignored, are left out."""
    for section, value in data.items():
        if section == "data":
            value = {"root": value.get("root", "")} if isinstance(value, Mapping) else value
        if section not in WORDS:
            yield from _texts(section, value)


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from _texts(f"{where}.{key}", item)


def _destinations(data: Mapping[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each generator's name with the parts of its table that say which key goes where."""
    tables = data.get("generators", ())
    for table in tables if isinstance(tables, list) else ():
        if isinstance(table, Mapping):
            yield table.get("name"), [table.get(key) for key in DESTINATION]


def _fields(prefix: str, value: Any) -> Iterator[TaskField]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _fields(f"{prefix}{key}.", item)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _fields(f"{prefix}{number}.", item)
    else:
        path = prefix.removesuffix(".")
        if not any(path == hidden or path.startswith(f"{hidden}.") for hidden in HIDDEN):
            text = value if isinstance(value, str) else _toml(value)
            yield TaskField(path, text, isinstance(value, str), UNITS.get(path.rpartition(".")[2], ""))


def _toml(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else "nan"
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Turns dates, which neither JSON nor a task needs, into text."""
    return json.loads(json.dumps(value, default=str))
