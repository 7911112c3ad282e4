"""A task of the library: a task file with its overrides, which may have been written from DataFrames."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from undersong.library.arguments import checked
from undersong.run.frames import Frame, is_frame, rows_of, selected, to_jsonl, with_patient_ids
from undersong_common.errors import ConfigurationError
from undersong_common.models import embedders
from undersong_common.printable import counted
from undersong_server.generators.kinds.function import FUNCTIONS
from undersong_server.runs import task as tasks

TASK_NAME = "task.toml"
PRIVATE = "private"  # folder of the parties' records beside the task file
RECORDS = "records"  # name of the file of records if one frame is divided among all parties
TEST_NAME = "test.jsonl"
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True, repr=False)
class Task:
    """A task file, with overrides of its keys. It states the texts to write, the records and the privacy.

    Attributes:
        file: the task file (TOML).
        assignments: ``section.key=value`` overrides, as of ``--set``.

    >>> us.Task.load(task.file, "privacy.epsilon=2").settings().privacy.epsilon
    2.0
    """

    file: Path
    assignments: tuple[str, ...] = ()
    # A temporary folder is removed together with the last task that uses it.
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, compare=False)

    @classmethod
    @checked
    def load(cls, file: Path | str, *assignments: str) -> Task:
        """Reads a task file, with overrides such as ``"privacy.epsilon=2"``.

        Raises ConfigurationError for an invalid key or value; it names file, key and remedy.
        """
        task = cls(Path(file), assignments)
        task.settings()
        return task

    @classmethod
    @checked
    def from_frame(
        cls,
        records: Frame | Mapping[str, Frame],
        *,
        description: str,
        generators: Sequence[Mapping[str, Any] | Callable[[str], str]],
        epsilon: float,
        delta: float = DEFAULT_DELTA,
        name: str = "notebook",
        text: str = "text",
        label: str | None = "label",
        user: str | None = None,
        labels: Sequence[str] | None = None,
        parties: int | None = None,
        method: str = "undersong",
        options: Mapping[str, Any] | None = None,
        test: Frame | None = None,
        attributes: Sequence[Mapping[str, Any]] = (),
        embedder: Callable[[str], Sequence[float]] | None = None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        folder: Path | str | None = None,
    ) -> Task:
        """Writes a task file, and the records beside it, and returns its task.

        Args:
            records: private ones, a row each: one frame that is dealt to ``parties``, or a frame per party by its name,
                as ``dict(iter(records.groupby("hospital")))`` makes them of a column.
            description: what one text is, such as "a nurse's triage note". Public: it goes to the model provider.
            generators: functions that take a prompt and return a text, or the keys of ``[[generators]]`` tables, whose
                ``corpus`` may be a DataFrame, which is public. Functions are asked in this process.
            epsilon, delta: of the whole run.
            text, label, user: columns; ``label`` and ``user`` may be None.
            labels: the task's; None takes those of the label column. They are public.
            parties: None is five, or as many as there are frames.
            method: its name; ``options`` are its ``[method]`` keys, such as ``{"samples": 200}``.
            test: labelled public texts on which ``simulate`` tests the panel's task models when it has ended.
            attributes: the keys of each ``[[attributes]]`` table: ``name``, ``values`` and, of a column, ``column``.
            embedder: takes a text and returns its vector; None is the packaged model. For simulations only.
            sections: further keys by section, such as ``{"federation": {"alpha": 0.5}}``; they go before all others.
            folder: where everything is written, readable by this user only. None takes a temporary folder, which is
                removed when the task is no longer used: nothing private stays on disk.

        Raises ConfigurationError for a missing column, a row that a plan would refuse, a wrong key, or a folder that
        holds another task.

        >>> made = us.Task.from_frame(records, description="a remark", generators=[write], epsilon=4.0)
        >>> made.settings().task.labels
        ('cat', 'dog')
        """
        temporary_folder = tempfile.TemporaryDirectory(prefix="undersong-task-") if folder is None else None
        task_folder = Path(temporary_folder.name if temporary_folder is not None else folder or "").absolute()
        attribute_columns = {
            str(attribute["name"]): str(attribute["column"]) for attribute in attributes if attribute.get("column")
        }
        columns = [text, *([label] if label else []), *([user] if user else []), *attribute_columns.values()]
        has_several_frames = isinstance(records, Mapping)
        frame_by_party = records if isinstance(records, Mapping) else {RECORDS: records}
        if has_several_frames and parties not in (None, len(frame_by_party)):
            raise ConfigurationError(
                f"parties= is {parties}, but records= holds {counted(len(frame_by_party), 'frame')}, one per party",
                "leave parties= away, or give one frame, which is dealt",
                code="argument",
            )
        frame_names = {party: f"records of {party}" if has_several_frames else RECORDS for party in frame_by_party}
        frames = {
            party: with_patient_ids(selected(frame, columns, frame_names[party]), user, frame_names[party])
            for party, frame in frame_by_party.items()
        }
        tables = [
            rows_of(frame, frame_names[party], text, label, user, columns=attribute_columns, labels=labels or ())
            for party, frame in frames.items()
        ]
        if labels is None and label is not None:
            labels = sorted({row_label for table in tables for row_label in table.labels or ()})
        files = {f"{PRIVATE}/{party}.jsonl": to_jsonl(frame) for party, frame in frames.items()}
        generator_tables: list[dict[str, Any]] = []
        for generator in generators:
            if callable(generator):
                generator_tables.append(
                    _describe_function(generator, {section["name"] for section in generator_tables})
                )
                continue
            corpus = generator.get("corpus")
            if is_frame(corpus):
                path = f"{generator.get('name', 'generator')}.jsonl"
                files[path] = to_jsonl(_public_corpus(corpus, text, label))
                generator = {**generator, "corpus": path}
            generator_tables.append(dict(generator))
        document: dict[str, Any] = {
            "task": {"name": name, "description": description, "labels": list(labels or ())},
            "data": {
                "path": [path for path in files if path.startswith(f"{PRIVATE}/")]
                if has_several_frames
                else f"{PRIVATE}/{RECORDS}.jsonl",
                "text": text,
                **({} if label is None else {"label": label}),
                **({} if user is None else {"user": user}),
            },
            "privacy": {"epsilon": float(epsilon), "delta": delta},
            "method": {"name": method, **(options or {})},
            "output": {"dir": str(task_folder / "run")},
            "federation": {} if parties is None else {"parties": parties},
            **({"attributes": [dict(attribute) for attribute in attributes]} if attributes else {}),
        }
        if test is not None:
            files[TEST_NAME] = to_jsonl(selected(test, [text, *([label] if label else [])], "test"))
            document["evaluation"] = {"test": TEST_NAME}
        if embedder is not None:
            function_name = _name_of(embedder)
            _register_function(embedders.FUNCTIONS, function_name, embedder)
            document["embedder"] = {"model": embedders.FUNCTION + function_name}
        for section, keys in (sections or {}).items():
            document[section] = {**document.get(section, {}), **keys}
        document["generators"] = generator_tables
        _write_files(task_folder, {**files, TASK_NAME: _dump_toml(document)})
        task = cls(task_folder / TASK_NAME, (), temporary_folder)
        task.settings()
        return task

    @checked
    def override(self, *assignments: str) -> Task:
        """Returns the same task with further overrides, such as ``"privacy.epsilon=1"``.

        Raises ConfigurationError for an invalid key or value; it names file, key and remedy.
        """
        task = Task(self.file, (*self.assignments, *assignments), self._folder)
        task.settings()
        return task

    def settings(self) -> tasks.Task:
        """Reads and validates the task file. Raises ConfigurationError for an invalid key, with its remedy."""
        try:
            return tasks.load(self.file, self.assignments)
        except ConfigurationError as error:
            if self._folder is not None:
                # The caller never saw the path of a temporary folder, so the error leaves it out.
                error.problem = error.problem.replace(f"{self.file}: ", "")
                error.args = tuple(str(argument).replace(f"{self.file}: ", "") for argument in error.args)
            raise

    def __repr__(self) -> str:
        overrides = "".join(f", {assignment!r}" for assignment in self.assignments)
        return f"Task({str(self.file)!r}{overrides})"

    def _repr_markdown_(self) -> str:
        task = self.settings()
        promise = task.privacy
        labels = ", ".join(task.task.labels) or "none"
        return (
            f"**{task.task.name}**: {task.task.description}  \nlabels: {labels}  \nmethod: {task.method.name}, "
            f"epsilon {promise.epsilon:g}, delta {promise.delta:g} per {promise.unit}, "
            + counted(task.parties, "party", "parties")
        )


def _name_of(function: Callable[..., object]) -> str:
    """Returns a function's name, the same in every module: a notebook that is run again or moved finds its task."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _register_function(functions: dict[str, Any], key: str, function: Callable[..., object]) -> None:
    """Registers a function by ``key``. Raises ConfigurationError if a function of another module is registered by it.

    A task that was made with that function would ask the new one.
    """
    owner = getattr(functions.get(key, function), "__module__", None)
    if owner != getattr(function, "__module__", None):
        raise ConfigurationError(
            f"the function {_name_of(function)} has the name of one that a task of this process has from the module"
            f" {owner}",
            "give one of the two another name, or begin a new process",
            code="other-function",
        )
    functions[key] = function


def _describe_function(function: Callable[[str], str], used_names: set[str]) -> dict[str, str]:
    """Returns the table of a generator that is a function, named after it, with a number if that name is taken."""
    plain_name = re.sub(r"[^A-Za-z0-9._-]+", "", getattr(function, "__name__", ""))[:48].strip("._-") or "function"
    name = next(
        candidate
        for candidate in (plain_name, *(f"{plain_name}-{n}" for n in range(2, len(used_names) + 3)))
        if candidate not in used_names
    )
    key = f"{_name_of(function)} as {name}"
    _register_function(FUNCTIONS, key, function)
    return {"name": name, "kind": "function", "function": key}


def _public_corpus(frame: Frame, text: str, label: str | None) -> Frame:
    """Returns a corpus as the generators read it: the columns ``text`` and, where there is one, ``label``."""
    renamed = selected(frame, [text], "corpus").rename(columns={text: "text"})
    if label is None or label not in frame.columns:
        return renamed
    return renamed.assign(label=frame[label])


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files that only this user can read. Raises ConfigurationError for a folder that holds another task.

    It may hold the very same task, so that a notebook can be run again.
    """
    for name, content in files.items():
        path = folder / name
        old_content = path.read_text(encoding="utf-8") if path.exists() else content
        if old_content != content:
            line_pairs = zip_longest(old_content.split("\n"), content.split("\n"), fillvalue="")
            old_line, new_line = next(pair for pair in line_pairs if pair[0] != pair[1])
            difference = ""  # Other files may be private.
            if name == TASK_NAME:
                difference = f": {old_line!r} there, {new_line!r} here"
            raise ConfigurationError(
                f"{folder}: holds another task ({name} differs{difference})", "name another folder", code="other-task"
            )
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(content, encoding="utf-8")


def _dump_toml(document: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(document)
