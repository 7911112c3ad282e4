"""Drafts of tasks: from a template, an uploaded file, one of an offered folder, or the task of an earlier run."""

import copy
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.printable import printable
from undersong_common.program import configuration
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import PATIENCE_S
from undersong_server.generators import kinds
from undersong_server.operations import enrolment, runs, tasks
from undersong_server.operations.contacts import CONTACT_REMEDY, contact_faults
from undersong_server.operations.coordinator import console_folder
from undersong_server.operations.form import (
    REQUIRED,
    TABLES,
    FormSection,
    TaskField,
    first_level,
    first_values,
    form_sections,
    plain,
    started_table,
    task_file_text,
    templates,
    value_at,
)
from undersong_server.operations.uploads import keep_upload, uploads_folder
from undersong_server.runs.folder import read_json, replace_json
from undersong_server.runs.planning import coordinator_task
from undersong_server.runs.task import DEFAULT_PARTIES, Task

LABEL_ROWS, FEWEST_EMPTY_ROWS = 10, 4  # rows of labels that a form has at first, and empty ones that it always has
# The words at a required key that is empty, where a few words are not enough.
MISSING = {
    "publication.contact": f"is required and missing; {CONTACT_REMEDY}",
    "task.labels": "are required and missing; write at least two, a row each",
}
EXAMPLE = "the example"  # ``source`` of a draft that is made of the packaged example
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
        begun_with: earlier run whose values it began with; "" for another source.
        more_rows: empty rows of labels that were asked for beside those of every form.
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
    begun_with: str = ""
    more_rows: int = 0

    @property
    def sections(self) -> tuple[FormSection, ...]:
        section_order = list(dict.fromkeys(path.partition(".")[0] for path in first_level()))
        return tuple(
            sorted(form_sections(self.data), key=lambda section: [*section_order, section.title].index(section.title))
        )

    @property
    def toml(self) -> str:
        """The draft as the text of a task file."""
        return task_file_text(self.data)

    @property
    def label_rows(self) -> list[tuple[str, str]]:
        """(label, meaning) of each label, and empty rows in which more labels can be written."""
        task = self.data["task"]
        label_meanings = task.get("label_descriptions", {})
        labels = list(dict.fromkeys([*task.get("labels", ()), *label_meanings]))
        empty_rows = max(FEWEST_EMPTY_ROWS, LABEL_ROWS - len(labels))
        return [
            *((label, label_meanings.get(label, "")) for label in labels),
            *[("", "")] * (empty_rows + self.more_rows),
        ]

    @property
    def missing(self) -> dict[str, str]:
        """The keys that a run from the console needs and the draft does not state, each with the remedy."""
        required_values = {path: value_at(self.data, path) for path in REQUIRED} | {
            "task.labels": self.data["task"].get("labels", True)
        }
        return {
            path: MISSING.get(path, "is required and missing; write a few words")
            for path, value in required_values.items()
            if not value or (isinstance(value, str) and not value.strip())
        }

    @property
    def contact_faults(self) -> dict[str, str]:
        """The contacts by which nobody is reached, each with the remedy, whatever else is wrong."""
        stated_contacts = {key: value_at(self.data, key) for key in ("publication.contact", "task.contact")}
        contacts = {key: words for key, words in stated_contacts.items() if isinstance(words, str) and words.strip()}
        return {key: f"{problem}; {remedy}" for problem, remedy, key in contact_faults(contacts)}


def _folder(home: Path) -> Path:
    return console_folder(home) / "new-runs"


def task_folders(home: Path, folders: Sequence[Path]) -> list[Path]:
    """Returns the folders whose files a task from the console may name: the operator's, and the console's own last."""
    return [*(folder.absolute() for folder in folders), uploads_folder(home)]


def is_task_file(data: Mapping[str, Any]) -> bool:
    """Returns True for the values of a TOML file with a [task] section."""
    return isinstance(data.get("task"), Mapping)


def from_template(home: Path, name: str, folders: Sequence[Path]) -> Draft:
    """Makes a draft with the first values of a template. Raises ConfigurationError for an unknown template."""
    if name not in templates():
        raise ConfigurationError(f"there is no template {name!r}", configuration.nearest(name, templates()))
    task_data = {section: started_table(section_table) for section, section_table in first_values()[name].items()}
    task_data["publication"] |= _who_asks(home)
    return _keep(home, f"the template {name}", task_folders(home, folders)[0], task_data, {})


def _who_asks(home: Path) -> dict[str, str]:
    settings = CoordinatorHome(home).settings
    who_asks = {"makers": settings.operator, "contact": settings.contact}
    return {key: words for key, words in who_asks.items() if words}


def from_example(home: Path) -> Draft:
    """Makes a draft of the example, which lacks nothing but a stated contact; its files are put among the uploads."""
    task_data = copy.deepcopy(dict(example_task()))
    task_data["publication"] |= _who_asks(home)
    folder = uploads_folder(home)
    task_data["generators"] = _example_generators(home, folder)
    task_data["evaluation"]["test"] = _example_file(home, folder, task_data["evaluation"]["test"])
    return _keep(home, EXAMPLE, folder, task_data, {})


def add_example_generators(home: Path, draft: Draft) -> Draft:
    """Returns the draft with the generators of the example after its own."""
    example_generators = _example_generators(home, Path(draft.folder))
    return replace(draft, data={**draft.data, "generators": [*draft.data.get("generators", ()), *example_generators]})


@cache
def example_task() -> Mapping[str, Any]:
    """Returns the task of the example as it stands in the package, where its files lie beside it."""
    task_bytes = resources.files("undersong_server.operations").joinpath("example", "task.toml").read_bytes()
    return configuration.parse_toml("task.toml", task_bytes)


def _example_generators(home: Path, folder: Path) -> list[dict[str, Any]]:
    return [{**table, "corpus": _example_file(home, folder, table["corpus"])} for table in example_task()["generators"]]


def _example_file(home: Path, folder: Path, name: str) -> str:
    """Puts a file of the example among the uploads, and returns its name as a task in ``folder`` states it."""
    file_bytes = resources.files("undersong_server.operations").joinpath("example", name).read_bytes()
    return _name_from(folder, keep_upload(home, f"example-{name}", file_bytes))


def _name_from(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def from_file(home: Path, path: Path) -> Draft:
    """Makes a draft of a task file on this machine. Raises ConfigurationError if it cannot be read."""
    task_data = configuration.read_toml(path)
    return _keep(home, path.name, path.absolute().parent, task_data, task_data)


def from_bytes(home: Path, name: str, data: bytes, folders: Sequence[Path]) -> Draft:
    """Makes a draft of an uploaded task file; its relative paths start at the first of the operator's folders."""
    return _keep(home, name, task_folders(home, folders)[0], configuration.parse_toml(name, data), {})


def from_run(home: Path, run: str, *, revises: bool = False) -> Draft:
    """Makes a draft of an earlier run's task, with its settings, and its parties but for those left out of new runs.

    Args:
        revises: True if the new run replaces the earlier one.
    """
    stored_plan = CoordinatorHome(home).run(run).planned()
    task_section = {key: value for key, value in stored_plan.task["task"].items() if key != "revises"}
    task = {**task_section, "revises": run} if revises else task_section
    task_data = {**stored_plan.task, "task": task}
    return _keep(
        home,
        f"run {run}",
        Path(stored_plan.folder),
        task_data,
        stored_plan.task,
        begun_with=run,
        parties=enrolment.remaining(home, stored_plan.roster),
        seed=str(stored_plan.seed),
        patience=f"{stored_plan.patience_s:.0f}",
    )


def _keep(
    home: Path,
    source: str,
    folder: Path,
    task_data: Mapping[str, Any],
    operators: Mapping[str, Any],
    **settings: Any,
) -> Draft:
    if not is_task_file(task_data):
        raise ConfigurationError(
            f"{source}: is no task file, since it has no [task] section", "choose another file", code="no-task"
        )
    for section_name in Task.model_fields.keys() & task_data.keys():
        if section_name in TABLES:
            section_entries = task_data[section_name]
        else:
            section_entries = [task_data[section_name]]
        if not isinstance(section_entries, list) or not all(isinstance(entry, Mapping) for entry in section_entries):
            raise ConfigurationError(
                f"{source}: {section_name} is not a section", f"write it as [{section_name}]", code="no-task"
            )
    revised_run = task_data["task"].get("revises", "")
    if revised_run != "" and not (isinstance(revised_run, str) and CoordinatorHome(home).run(revised_run).exists):
        raise ConfigurationError(
            f"{source}: task.revises: there is no run {printable(str(revised_run), 100)!r}",
            "remove that line, or revise a run from its own screen",
            code="unknown-run",
        )
    federation = {key: value for key, value in task_data.get("federation", {}).items() if key != "parties"}
    draft = Draft(
        os.urandom(8).hex(), source, str(folder), {**task_data, "federation": federation}, operators, **settings
    )
    drafts_folder = _folder(home)
    drafts_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for draft_path in sorted(drafts_folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[: -MOST_DRAFTS + 1]:
        draft_path.unlink(missing_ok=True)
    return save(home, draft)


def save(home: Path, draft: Draft) -> Draft:
    """Writes the draft into the coordinator's folder, where it stays until it is planned or discarded."""
    replace_json(_folder(home) / f"{draft.identity}.json", plain(asdict(draft)), durable=False)
    return draft


def find(home: Path, identity: str) -> Draft:
    """Returns the draft with this identity. Raises ConfigurationError if there is none."""
    draft_json = None
    if identity.isalnum() and len(identity) < 64:
        draft_json = read_json(_folder(home) / f"{identity}.json")
    if draft_json is None:
        raise ConfigurationError("this draft is gone: it was planned, discarded or too old", "begin a new run")
    settings = draft_json.pop("options", {})  # Earlier versions kept the run's settings under this key.
    return Draft(**draft_json, **settings)


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
    changed_data = copy.deepcopy(dict(draft.data))
    for form_field in _fields(draft):
        sent_texts = [sent_text.replace("\r\n", "\n") for sent_text in sent.get(f"key {form_field.path}", ())]
        if not sent_texts:
            continue
        if form_field.control == "pair":
            is_changed = tuple(sent_texts) != form_field.pair
        else:
            is_changed = sent_texts[-1] != form_field.text
        if is_changed:
            _put(changed_data, form_field.path, form_field.value(sent_texts))
    labels = sent.get("label", ())
    sent_meanings = sent.get("meaning", ())
    if len(labels) != len(sent_meanings):
        raise ConfigurationError(
            f"the form has {len(labels)} fields label and {len(sent_meanings)} fields meaning",
            "send both for each label; a meaning may be empty",
            code="label-without-meaning",
        )
    if labels:
        label_rows = [
            (label.strip(), label_meaning.strip())
            for label, label_meaning in zip(labels, sent_meanings, strict=True)
            if label.strip() or label_meaning.strip()
        ]
        if label_rows or "labels" in changed_data["task"]:
            _put(changed_data, "task.labels", [label for label, _ in label_rows])
        _put(
            changed_data,
            "task.label_descriptions",
            {label: meaning for label, meaning in label_rows if meaning} or None,
        )
    typed_values: dict[str, Any] = {
        sent_name: sent[sent_name][-1].strip() for sent_name in ("name", "seed", "patience") if sent_name in sent
    }
    if typed_values:
        typed_values["parties"] = list(sent.get("party", ()))
    return replace(draft, data=changed_data, **typed_values)


def name_upload(home: Path, draft: Draft, path: str, name: str, content: bytes) -> Draft:
    """Keeps an uploaded file of texts, and returns the draft whose field at ``path`` names it.

    Raises ConfigurationError for a field that names no file, and for an upload that is empty or no table.
    """
    form_field = next((form_field for form_field in _fields(draft) if form_field.path == path), None)
    if form_field is None or form_field.control != "file":
        raise ConfigurationError(
            f"{printable(path, 100)!r} is not a key that names a file", "upload the file at the field of such a key"
        )
    if not content:
        raise ConfigurationError("no file was chosen", "choose a file of texts, then Upload")
    file_name = _name_from(Path(draft.folder), keep_upload(home, name, content))
    changed_data = copy.deepcopy(dict(draft.data))
    _put(changed_data, path, form_field.value([file_name]))
    return replace(draft, data=changed_data)


def use_labels(draft: Draft, labels: Sequence[str]) -> Draft:
    """Returns the draft with these labels; the meanings of those that it had already stay."""
    changed_data = copy.deepcopy(dict(draft.data))
    meanings = draft.data["task"].get("label_descriptions", {})
    _put(changed_data, "task.labels", list(labels))
    _put(
        changed_data,
        "task.label_descriptions",
        {label: meanings[label] for label in labels if label in meanings} or None,
    )
    return replace(draft, data=changed_data)


def _fields(draft: Draft) -> list[TaskField]:
    return [form_field for section in draft.sections for form_field in section.fields]


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a path, or removes it where it is None."""
    *sections, key = path.split(".")
    section_table: Any = data
    for section_name in sections:
        if isinstance(section_table, list):
            section_table = section_table[int(section_name)]
        else:
            section_table = section_table.setdefault(section_name, {})
    if value is None:
        section_table.pop(key, None)
    else:
        section_table[key] = value


def add_table(draft: Draft, section: str, kind: str) -> Draft:
    """Returns the draft with one more generator of that kind, or one more attribute."""
    new_table: dict[str, Any] = {}
    if section == "generators":
        kinds.load(kind)
        generator_names = {generator.get("name") for generator in draft.data.get("generators", ())}
        # The first one gets a number too: a name without a number would be proposed again once that one is renamed.
        first_number = 1 + sum(generator.get("kind") == kind for generator in draft.data.get("generators", ()))
        numbered_names = (f"{kind}-{number}" for number in itertools.count(first_number))
        table_name = next(name for name in numbered_names if name not in generator_names)
        new_table = {"name": table_name, "kind": kind, **started_table(first_values()["generators"].get(kind, {}))}
    return replace(draft, data={**draft.data, section: [*draft.data.get(section, ()), new_table]})


def remove_table(draft: Draft, section: str, table_number: int) -> Draft:
    """Returns the draft without one generator or attribute."""
    remaining_tables = [
        table for other_number, table in enumerate(draft.data.get(section, ())) if other_number != table_number
    ]
    return replace(draft, data={**draft.data, section: remaining_tables})


def try_generator(draft: Draft, generator_number: int, check: runs.Check, **surroundings: Any) -> Draft:
    """Orders five texts from a generator, which may cost money; returns the draft with them, or with the problem.

    Args:
        generator_number: position of the generator in the task.
        check: as in :func:`undersong_server.operations.runs.plan_task`.
        surroundings: ``environment`` and ``public_cache``, as in :func:`undersong_server.operations.tasks.try_task`.
    """
    generator_name = str(draft.data["generators"][generator_number].get("name"))
    try:
        task = coordinator_task(draft.data, Path(draft.folder), draft.parties or ("",) * DEFAULT_PARTIES)
        check(task)
        trial_texts = tasks.try_task(generator_name, task, "the task", **surroundings)
    except UndersongError as error:
        return replace(draft, trial={"generator": generator_name, "problem": f"{error.problem}; {error.remedy}"})
    example_texts = [
        {"label": trial_text.label, "text": trial_text.text or trial_text.answer, "fault": trial_text.fault}
        for trial_text in trial_texts
    ]
    return replace(
        draft, trial={"generator": generator_name, "texts": example_texts, "cost": tasks.cost_of(trial_texts)}
    )
