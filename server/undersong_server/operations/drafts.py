"""Drafts of tasks: from a template, an uploaded file, one of an offered folder, or the task of an earlier run."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.printable import printable
from undersong_common.program import configuration
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import PATIENCE_S
from undersong_server.generators import kinds
from undersong_server.operations import runs, tasks
from undersong_server.operations.coordinator import console_folder
from undersong_server.operations.form import (
    REQUIRED,
    TABLES,
    FormSection,
    first_level,
    first_values,
    form_sections,
    plain,
    started_table,
    task_file_text,
    templates,
    value_at,
)
from undersong_server.runs.folder import read_json, replace_json
from undersong_server.runs.planning import coordinator_task
from undersong_server.runs.task import DEFAULT_PARTIES, Task

MOST_DRAFTS = 200  # the oldest beyond these are removed


@dataclass(frozen=True)
class Draft:
    """A task that may become a run; relative paths start at ``folder``, and ``source`` names its origin.

    Attributes:
        data: the task file as typed so far, complete or not.
        operators: the task as it stands in the operator's own file or an earlier run; empty for an uploaded one.
        name, parties, seed, patience: settings of the run beside its task, as they were typed; ``parties`` None takes
            everyone enrolled.
        trial: last trial of one of its generators: its ``generator``, and ``texts`` and ``cost``, or a ``problem``.
    """

    identity: str
    source: str
    folder: str
    data: Mapping[str, Any]
    operators: Mapping[str, Any]
    name: str = ""
    parties: Sequence[str] | None = None
    seed: str = "0"
    patience: str = f"{PATIENCE_S:.0f}"
    trial: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sections(self) -> tuple[FormSection, ...]:
        order = list(dict.fromkeys(path.partition(".")[0] for path in first_level()))
        return tuple(sorted(form_sections(self.data), key=lambda section: [*order, section.title].index(section.title)))

    @property
    def toml(self) -> str:
        """The draft as the text of a task file."""
        return task_file_text(self.data)

    @property
    def label_rows(self) -> list[tuple[str, str]]:
        """(label, meaning) of each label, and two empty rows."""
        task = self.data["task"]
        meanings = task.get("label_descriptions", {})
        labels = list(dict.fromkeys([*task.get("labels", ()), *meanings]))
        return [*((label, meanings.get(label, "")) for label in labels), ("", ""), ("", "")]

    @property
    def missing(self) -> dict[str, str]:
        """The keys that a run from the console needs and the draft does not state, each with the remedy."""
        required_values = {path: value_at(self.data, path) for path in REQUIRED} | {
            "task.labels": self.data["task"].get("labels", True)
        }
        return {
            path: "is required and missing; write a few words" for path, value in required_values.items() if not value
        }


def _folder(home: Path) -> Path:
    return console_folder(home) / "new-runs"


def task_folders(home: Path, folders: Sequence[Path]) -> list[Path]:
    """Returns the operator's folders of task files; the console's own folder without any."""
    return [folder.absolute() for folder in folders] or [console_folder(home).absolute() / "uploads"]


def is_task_file(data: Mapping[str, Any]) -> bool:
    """Returns True for the values of a TOML file with a [task] section."""
    return isinstance(data.get("task"), Mapping)


def from_template(home: Path, name: str, folders: Sequence[Path]) -> Draft:
    """Makes a draft with the first values of a template. Raises ConfigurationError for an unknown one."""
    if name not in templates():
        raise ConfigurationError(f"there is no template {name!r}", configuration.nearest(name, templates()))
    data = {section: started_table(table) for section, table in first_values()[name].items()}
    return _keep(home, f"the template {name}", task_folders(home, folders)[0], data, {})


def from_file(home: Path, path: Path) -> Draft:
    """Makes a draft of a task file on this machine. Raises ConfigurationError if it cannot be read."""
    data = configuration.read_toml(path)
    return _keep(home, path.name, path.absolute().parent, data, data)


def from_bytes(home: Path, name: str, data: bytes, folders: Sequence[Path]) -> Draft:
    """Makes a draft of an uploaded task file; its relative paths start at the first of the operator's folders."""
    return _keep(home, name, task_folders(home, folders)[0], configuration.parse_toml(name, data), {})


def from_run(home: Path, run: str, *, revises: bool = False) -> Draft:
    """Makes a draft of an earlier run's task, with its parties and settings.

    Args:
        revises: True if the new run replaces the earlier one.
    """
    planned = CoordinatorHome(home).run(run).planned()
    task_section = {key: value for key, value in planned.task["task"].items() if key != "revises"}
    task = {**task_section, "revises": run} if revises else task_section
    data = {**planned.task, "task": task}
    return _keep(
        home,
        f"run {run}",
        Path(planned.folder),
        data,
        planned.task,
        name=runs.next_name(home, run) if revises else "",
        parties=planned.roster,
        seed=str(planned.seed),
        patience=f"{planned.patience_s:.0f}",
    )


def _keep(
    home: Path,
    source: str,
    folder: Path,
    data: Mapping[str, Any],
    operators: Mapping[str, Any],
    **settings: Any,
) -> Draft:
    if not is_task_file(data):
        raise ConfigurationError(
            f"{source}: is no task file, since it has no [task] section", "choose another file", code="no-task"
        )
    for name in Task.model_fields.keys() & data.keys():
        if name in TABLES:
            entries = data[name]
        else:
            entries = [data[name]]
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise ConfigurationError(f"{source}: {name} is not a section", f"write it as [{name}]", code="no-task")
    revised = data["task"].get("revises", "")
    if revised != "" and not (isinstance(revised, str) and CoordinatorHome(home).run(revised).exists):
        raise ConfigurationError(
            f"{source}: task.revises: there is no run {printable(str(revised), 100)!r}",
            "remove that line, or revise a run from its own screen",
            code="unknown-run",
        )
    federation = {key: value for key, value in data.get("federation", {}).items() if key != "parties"}
    draft = Draft(os.urandom(8).hex(), source, str(folder), {**data, "federation": federation}, operators, **settings)
    place = _folder(home)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime)[: -MOST_DRAFTS + 1]:
        old.unlink(missing_ok=True)
    return save(home, draft)


def save(home: Path, draft: Draft) -> Draft:
    """Writes the draft into the coordinator's folder, where it stays until it is planned or discarded."""
    replace_json(_folder(home) / f"{draft.identity}.json", plain(asdict(draft)), durable=False)
    return draft


def find(home: Path, identity: str) -> Draft:
    """Returns a draft. Raises ConfigurationError if it does not exist."""
    value = None
    if identity.isalnum() and len(identity) < 64:
        value = read_json(_folder(home) / f"{identity}.json")
    if value is None:
        raise ConfigurationError("this draft was planned, or has expired", "begin a new run")
    settings = value.pop("options", {})  # Earlier versions kept the run's settings there.
    return Draft(**value, **settings)


def unfinished(home: Path) -> tuple[tuple[Draft, float], ...]:
    """Drafts that were not planned, newest first, with the time of their last change; at most ten."""
    paths = sorted(_folder(home).glob("*.json"), key=lambda path: -path.stat().st_mtime)[:10]
    return tuple((find(home, path.stem), path.stat().st_mtime) for path in paths)


def discard(home: Path, draft: Draft) -> None:
    """Removes a draft from the coordinator's folder."""
    (_folder(home) / f"{draft.identity}.json").unlink(missing_ok=True)


def fill(draft: Draft, sent: Mapping[str, Sequence[str]]) -> Draft:
    """Returns the draft with the values of a form.

    Args:
        sent: texts by "key PATH", "label" and "meaning" of each row, and the run's settings, "parties" as
            "party". Keys that are not sent stay as they are. Browsers end lines by CR LF.
    """
    data = copy.deepcopy(dict(draft.data))
    for form_field in (form_field for section in draft.sections for form_field in section.fields):
        texts = [text.replace("\r\n", "\n") for text in sent.get(f"key {form_field.path}", ())]
        if not texts:
            continue
        if form_field.control == "pair":
            is_changed = tuple(texts) != form_field.pair
        else:
            is_changed = texts[-1] != form_field.text
        if is_changed:
            _put(data, form_field.path, form_field.value(texts))
    labels = sent.get("label", ())
    meanings = sent.get("meaning", ())
    if len(labels) != len(meanings):
        raise ConfigurationError(
            f"the form has {len(labels)} fields label and {len(meanings)} fields meaning",
            "send both for each label; a meaning may be empty",
            code="label-without-meaning",
        )
    if labels:
        rows = [
            (label.strip(), meaning.strip())
            for label, meaning in zip(labels, meanings, strict=True)
            if label.strip() or meaning.strip()
        ]
        if rows or "labels" in data["task"]:
            _put(data, "task.labels", [label for label, _ in rows])
        _put(data, "task.label_descriptions", {label: meaning for label, meaning in rows if meaning} or None)
    typed: dict[str, Any] = {name: sent[name][-1].strip() for name in ("name", "seed", "patience") if name in sent}
    if typed:
        typed["parties"] = list(sent.get("party", ()))
    return replace(draft, data=data, **typed)


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a path, or removes it where it is None."""
    *sections, key = path.split(".")
    node: Any = data
    for part in sections:
        if isinstance(node, list):
            node = node[int(part)]
        else:
            node = node.setdefault(part, {})
    if value is None:
        node.pop(key, None)
    else:
        node[key] = value


def add_table(draft: Draft, section: str, kind: str) -> Draft:
    """Returns the draft with one more generator of that kind, or one more attribute."""
    table: dict[str, Any] = {}
    if section == "generators":
        kinds.load(kind)
        generator_names = {generator.get("name") for generator in draft.data.get("generators", ())}
        name = next(
            name for name in (kind, *(f"{kind}-{number}" for number in range(2, 99))) if name not in generator_names
        )
        table = {"name": name, "kind": kind, **started_table(first_values()["generators"].get(kind, {}))}
    return replace(draft, data={**draft.data, section: [*draft.data.get(section, ()), table]})


def remove_table(draft: Draft, section: str, number: int) -> Draft:
    """Returns the draft without one generator or attribute."""
    remaining_tables = [table for place, table in enumerate(draft.data.get(section, ())) if place != number]
    return replace(draft, data={**draft.data, section: remaining_tables})


def try_generator(draft: Draft, number: int, check: runs.Check, **surroundings: Any) -> Draft:
    """Orders five texts from a generator, which may cost money; returns the draft with them, or with the problem.

    Args:
        number: position of the generator in the task.
        check: as in :func:`undersong_server.operations.runs.plan_task`.
        surroundings: ``environment`` and ``public_cache``, as in :func:`undersong_server.operations.tasks.try_task`.
    """
    name = str(draft.data["generators"][number].get("name"))
    try:
        task = coordinator_task(draft.data, Path(draft.folder), draft.parties or ("",) * DEFAULT_PARTIES)
        check(task)
        trial_texts = tasks.try_task(name, task, "the task", **surroundings)
    except UndersongError as error:
        return replace(draft, trial={"generator": name, "problem": f"{error.problem}; {error.remedy}"})
    texts = [
        {"label": trial_text.label, "text": trial_text.text or trial_text.answer, "fault": trial_text.fault}
        for trial_text in trial_texts
    ]
    return replace(draft, trial={"generator": name, "texts": texts, "cost": tasks.cost_of(trial_texts)})
