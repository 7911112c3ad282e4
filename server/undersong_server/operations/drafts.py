"""Task files as forms: from a template, an uploaded file, one of an offered folder, or the task of an earlier run."""

import contextlib
import copy
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.printable import printable
from undersong_common.program import configuration
from undersong_common.text.row_files import SUFFIXES
from undersong_server import methods
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import PATIENCE_S
from undersong_server.generators import kinds
from undersong_server.methods.parts import papers
from undersong_server.operations import runs, tasks
from undersong_server.operations.coordinator import console_folder
from undersong_server.runs.folder import read_json, replace_json
from undersong_server.runs.planning import coordinator_task
from undersong_server.runs.task import DEFAULT_PARTIES, AttributeSection, Task

MOST_DRAFTS = 200  # the oldest beyond these are removed
WORD_SECTIONS = ("task", "publication", "output")  # sections without files that a coordinator's run reads
# Keys of a generator that decide which secret is sent where.
DESTINATION = ("kind", "base_url", "api_key_env", "proxy", "endpoints")
IGNORED = ("data", "output", "evaluation")  # sections that a coordinator's run ignores, or that name no choice of a run
TABLES = ("generators", "attributes")  # sections that may stand several times
# Keys without a field of their own: the number of parties follows from their names, "labels" holds the meanings,
# a table's kind is chosen when it is added.
WITHOUT_FIELD = ("federation.parties", "federation.alpha", "task.label_descriptions", "task.revises", "generators.kind")
REQUIRED = (
    "task.purpose",
    "publication.where",
    "publication.licence",
    "publication.contact",
)  # The schema requires further keys.
UNITS = {"s": "seconds", "usd": "US$"}  # units by the last part of a key
LONG_TEXT = 1_000  # characters; a text that may be longer has several lines
MOST_FILES = 200  # most files that a form offers for a key
Control = Literal["text", "long", "number", "choice", "flag", "list", "pair", "file", "toml", "labels"]


@dataclass(frozen=True)
class TaskField:
    """One key of a task file as a form shows it.

    Attributes:
        path: "section.key", with numbers for entries of a list of sections.
        control: "list" has one text per line, "pair" two numbers, "toml" anything else in TOML syntax.
        text: the value, or the default if the task has none.
        default: text of the default, "" for none; without it, an empty field leaves the key out.
        choices: of a "choice"; "" among them leaves the key out.
        first: stands at the form's first level.
    """

    path: str
    control: Control
    text: str
    default: str
    choices: tuple[str, ...]
    help: str
    required: bool
    first: bool

    @property
    def words(self) -> str:
        """Name of the key with its unit, as the label of its field."""
        key = self.path.rpartition(".")[2]
        key_without_unit, _, last = key.rpartition("_")
        words, unit = (key_without_unit, f" ({UNITS[last]})") if last in UNITS else (key, "")
        return words.replace("_", " ").capitalize() + unit

    @property
    def pair(self) -> tuple[str, str]:
        """The two numbers of a "pair"."""
        low, _, high = self.text.strip("[]").partition(",")
        return low.strip(), high.strip()

    def value(self, sent: Sequence[str]) -> Any:
        """Value of the key from the texts that a form sent; None leaves the key out. Invalid TOML stays a text."""
        text = sent[-1]
        if self.control == "pair":
            return configuration.toml_or_text(f"[{', '.join(sent)}]") if any(sent) else None
        if self.control == "list":
            return [line.strip() for line in text.splitlines() if line.strip()] or None
        if self.control in ("number", "flag", "toml"):
            return configuration.toml_or_text(text) if text.strip() else None
        return text if text or self.default else None


@dataclass(frozen=True)
class FormSection:
    """One section of a task file, or one table of several; ``kind`` is a generator's."""

    path: str
    title: str
    help: str
    fields: tuple[TaskField, ...]
    kind: str = ""

    @property
    def first(self) -> bool:
        """True if a field of the section stands at the form's first level."""
        return "." in self.path or any(field.first for field in self.fields)


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
        order = list(dict.fromkeys(path.partition(".")[0] for path in _first_level()))
        return tuple(sorted(_sections(self.data), key=lambda each: ([*order, each.title]).index(each.title)))

    @property
    def toml(self) -> str:
        """The draft as the text of a task file."""
        return _document(self.data)

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
        required_values = {path: _at(self.data, path) for path in REQUIRED} | {
            "task.labels": self.data["task"].get("labels", True)
        }
        return {
            path: "is required and missing; write a few words" for path, value in required_values.items() if not value
        }


def _folder(home: Path) -> Path:
    return console_folder(home) / "new-runs"


def offered(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Task files in the folders that the operator has named: TOML files with a [task] section."""
    return tuple(path for folder in folders for path in sorted(folder.glob("*.toml")) if _is_offered(path))


def _is_offered(path: Path) -> bool:
    try:
        data = path.read_bytes()
        return _is_task(configuration.parse_toml(path.name, data))
    except OSError:
        return False
    except ConfigurationError:
        return b"[task]" in data  # opening it names the wrong line


def _is_task(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("task"), Mapping)


@cache
def _starts() -> Mapping[str, Any]:
    """First values of new tasks, by template, and of generators, by kind."""
    text = resources.files("undersong_server.operations").joinpath("new_task.toml").read_bytes()
    return configuration.parse_toml("new_task.toml", text)


def templates() -> tuple[str, ...]:
    """Names of the templates of new tasks."""
    return tuple(name for name in _starts() if name != "generators")


@cache
def _first_level() -> tuple[str, ...]:
    """Keys at the form's first level, in order, whether set or not."""
    tables = {"generators": {key: "" for table in _starts()["generators"].values() for key in table}}
    sections = [_starts()[name] for name in templates()] + [tables]
    return tuple(
        dict.fromkeys(f"{name}.{key}" for section in sections for name, table in section.items() for key in table)
    )


def _started(table: Mapping[str, Any]) -> dict[str, Any]:
    """A section without the keys that nobody has thought of yet."""
    return {key: copy.copy(value) for key, value in table.items() if value != ""}


def from_template(home: Path, name: str, folders: Sequence[Path]) -> Draft:
    """Makes a draft with the first values of a template. Raises ConfigurationError for an unknown one."""
    if name not in templates():
        raise ConfigurationError(f"there is no template {name!r}", configuration.nearest(name, templates()))
    data = {section: _started(table) for section, table in _starts()[name].items()}
    return _keep(home, f"the template {name}", _folders(home, folders)[0], data, {})


def from_file(home: Path, path: Path) -> Draft:
    """Makes a draft of a task file on this machine. Raises ConfigurationError if it cannot be read."""
    data = configuration.read_toml(path)
    return _keep(home, path.name, path.absolute().parent, data, data)


def from_bytes(home: Path, name: str, data: bytes, folders: Sequence[Path]) -> Draft:
    """Makes a draft of an uploaded task file; its relative paths start at the first of the operator's folders."""
    return _keep(home, name, _folders(home, folders)[0], configuration.parse_toml(name, data), {})


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
    if not _is_task(data):
        raise ConfigurationError(
            f"{source}: is no task file, since it has no [task] section", "choose another file", code="no-task"
        )
    for name in Task.model_fields.keys() & data.keys():
        entries = data[name] if name in TABLES else [data[name]]
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
    replace_json(_folder(home) / f"{draft.identity}.json", _plain(asdict(draft)), durable=False)
    return draft


def find(home: Path, identity: str) -> Draft:
    """Returns a draft. Raises ConfigurationError if it does not exist."""
    value = None if not (identity.isalnum() and len(identity) < 64) else read_json(_folder(home) / f"{identity}.json")
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
        is_changed = tuple(texts) != form_field.pair if form_field.control == "pair" else texts[-1] != form_field.text
        if is_changed:
            _put(data, form_field.path, form_field.value(texts))
    labels, meanings = sent.get("label", ()), sent.get("meaning", ())
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


def _at(data: Any, path: str) -> Any:
    """The value at a path; None if there is none."""
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data.get(part) if isinstance(data, Mapping) else None
    return data


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a path, or removes it where it is None."""
    *sections, key = path.split(".")
    node: Any = data
    for part in sections:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    if value is None:
        node.pop(key, None)
    else:
        node[key] = value


def generator_kinds() -> tuple[str, ...]:
    """Kinds that a form can add: all but the functions of a notebook's process."""
    return tuple(kind for kind in kinds.names() if kind != "function")


def add_table(draft: Draft, section: str, kind: str) -> Draft:
    """Returns the draft with one more generator of that kind, or one more attribute."""
    table: dict[str, Any] = {}
    if section == "generators":
        kinds.load(kind)
        generator_names = {generator.get("name") for generator in draft.data.get("generators", ())}
        name = next(
            name for name in (kind, *(f"{kind}-{number}" for number in range(2, 99))) if name not in generator_names
        )
        table = {"name": name, "kind": kind, **_started(_starts()["generators"].get(kind, {}))}
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


def files(draft: Draft, folders: Sequence[Path]) -> list[str]:
    """Files of public texts in the operator's folders, as the draft would name them; records of a task are left out."""
    start = Path(draft.folder)
    public_paths = public_files(folders, _private(start, draft.data))
    return [str(path.relative_to(start) if path.is_relative_to(start) else path) for path in public_paths]


def public_files(folders: Sequence[Path], private: Set[str] = frozenset()) -> list[Path]:
    """Files of public texts in the operator's folders, without ``private`` paths and the records of a task there."""
    private = set(private)
    for path in offered(folders):
        with contextlib.suppress(OSError, ConfigurationError):  # a broken task file: opening it names the wrong line
            private |= _private(path.parent, configuration.read_toml(path))
    everything = (path for folder in folders for path in folder.absolute().rglob("*"))
    texts = (path for path in everything if path.suffix.lower() in SUFFIXES and not _names(private, path))
    return sorted(islice(texts, MOST_FILES))


def _private(folder: Path, data: Mapping[str, Any]) -> set[str]:
    """Real paths of the private records that a task's [data] names: files, folders or patterns."""
    root, paths = _at(data, "data.root"), _at(data, "data.path")
    start = folder / root if isinstance(root, str) else folder
    path_list = paths if isinstance(paths, list) else [paths]
    places = [str(start / path) for path in path_list if isinstance(path, str)]
    return {os.path.realpath(place) for place in places if "\0" not in place}


def _names(private: Set[str], path: Path) -> bool:
    real = os.path.realpath(path)
    return not private.isdisjoint((real, os.path.dirname(real))) or any(
        fnmatch(real, private_path) for private_path in private
    )


# The schema as fields


def _sections(data: Mapping[str, Any]) -> Iterator[FormSection]:
    for name, info in Task.model_fields.items():
        if name in IGNORED or info.exclude or name == "folder":
            continue
        if name in TABLES:
            for number, table in enumerate(data.get(name, ())):
                model = kinds.load(str(table.get("kind"))) if name == "generators" else AttributeSection
                yield _section(name, model, table, f"{name}.{number}")
            continue
        section, names = cast("type[BaseModel]", info.annotation), _generator_names(data)
        yield _section(name, section, data.get(name, {}), name, _preset(data, name), generators=names)


def _generator_names(data: Mapping[str, Any]) -> list[str]:
    """Names of the generators of a draft, in which not all may have one."""
    names = (str(table.get("name", "")) for table in data.get("generators", ()))
    return list(dict.fromkeys(filter(None, names)))


def _preset(data: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Values that a preset of the method sets in a section."""
    method = data.get("method", {})
    try:
        return papers.sections(str(method.get("name")), str(method["preset"])).get(section, {})
    except (KeyError, ValueError):
        return {}


def _section(
    name: str,
    model: type[BaseModel],
    data: Mapping[str, Any],
    at: str,
    defaults: Mapping[str, Any] = {},
    *,
    generators: Sequence[str] = (),
) -> FormSection:
    descriptions, fields_by_name, schemas = configuration.descriptions(model), dict(model.model_fields), _schemas(model)
    if name == "method" and data.get("name") in methods.names():
        options: type[BaseModel] = methods.load(str(data["name"])).Options
        descriptions, fields_by_name = (
            {**descriptions, **configuration.descriptions(options)},
            {**fields_by_name, **options.model_fields},
        )
        schemas = {**schemas, **_schemas(options)}
    fields_by_name |= {key: FieldInfo(default=None) for key in data if key not in fields_by_name}
    order = [path.partition(".")[2] for path in _first_level() if path.startswith(f"{name}.")]
    fields = []
    for key in sorted(fields_by_name, key=lambda key: order.index(key) if key in order else len(order)):
        info, path = fields_by_name[key], f"{name}.{key}"
        if path in WITHOUT_FIELD:
            continue
        control, choices = _control(path, info, schemas.get(key, {}))
        default = _text(
            control, defaults.get(key, None if info.is_required() else info.get_default(call_default_factory=True))
        )
        value = data.get(key)
        is_required = path in REQUIRED or info.is_required()
        is_first_level = is_required or key in data or (key in order and control != "labels")
        if key.endswith("_generator") and generators:
            control, choices = "choice", tuple(generators)
        if control == "choice" and not default:
            choices = ("", *choices)
        fields.append(
            TaskField(
                f"{at}.{key}",
                control,
                default if value is None else _text(control, value),
                default,
                choices,
                descriptions.get(key, ""),
                is_required,
                is_first_level,
            )
        )
    title, _, help_ = " ".join((model.__doc__ or "").partition("\n\n")[0].split()).partition(": ")
    kind = str(data.get("kind", "")) if name == "generators" else ""
    return FormSection(at, name, help_ or title, tuple(fields), kind)


class _Schemas(GenerateJsonSchema):
    """Makes schemas of models that may hold what JSON has no words for, such as functions of another package."""

    def emit_warning(self, *_: Any) -> None:
        """Says nothing of a default without JSON: only the type is read."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


@cache
def _schemas(model: type[BaseModel]) -> Mapping[str, Mapping[str, Any]]:
    """JSON schema of each field of a model, by name; empty for a field that has none."""
    schema = model.model_json_schema(by_alias=False, schema_generator=_Schemas)
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return properties


def _control(path: str, info: FieldInfo, schema: Mapping[str, Any]) -> tuple[Control, tuple[str, ...]]:
    """The control of a field, and its choices."""
    if path == "task.labels":
        return "labels", ()
    if path == "method.name":
        return "choice", methods.names()
    if info.json_schema_extra:
        return "file", ()
    forms = [variant for variant in schema.get("anyOf", [schema]) if variant.get("type") != "null"]
    form = forms[0] if len(forms) == 1 else {}
    if "enum" in form or "const" in form:
        return "choice", tuple(map(str, form.get("enum") or [form["const"]]))
    if form.get("type") == "array":
        texts = form.get("items", {}).get("type") == "string"
        return "pair" if "prefixItems" in form else "list" if texts else "toml", ()
    if form.get("type") == "string":
        return "long" if form.get("maxLength", 0) >= LONG_TEXT else "text", ()
    plain: dict[str, Control] = {"boolean": "flag", "integer": "number", "number": "number"}
    return plain.get(form.get("type", ""), "toml"), ()


def _text(control: Control, value: Any) -> str:
    """A value as the control shows it."""
    if isinstance(value, str):
        return value if control != "toml" else _toml(value)
    if value is None or value == () or value == {} or value == []:
        return ""
    if (
        control in ("list", "file")
        and isinstance(value, (list, tuple))
        and all(isinstance(line, str) for line in value)
    ):
        return "\n".join(value)
    return _toml(value)


@dataclass(frozen=True)
class Limits:
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
        """Raises ConfigurationError if the task names a file or key beyond the limits; nothing is read before."""
        operator_texts = {text for _, text in _paths(self.draft.operators)}
        faults: list[tuple[str, ...]] = [
            (
                f"{key_path}: {printable(text, 100)!r} is outside the operator's folders of task files",
                "name a file in one of them, or have the run planned on the coordinator's machine",
                key_path,
            )
            for key_path, text in _paths(self.draft.data)
            if text not in operator_texts
            and not self._allows(Path(self.draft.folder) if key_path == "data.root" else task.locate(""), text)
        ]
        operator_destinations = [destination for _, destination in _destinations(self.draft.operators)]
        operator_generators = {
            name for name, destination in _destinations(self.draft.data) if destination in operator_destinations
        }
        faults += [
            (
                f"generators.{generator.name}: the key {variable} may not be sent to {host}",
                "choose an endpoint of the operator's, who allows others by --key HOST=VARIABLE",
                f"generators.{number}.base_url",
            )
            for number, generator in enumerate(task.generators)
            for host, variable in generator.keys
            if generator.name not in operator_generators and (host, variable) not in self.keys
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
        if section not in WORD_SECTIONS:
            yield from _texts(section, value)


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    members = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _texts(f"{where}.{key}", member)


def _destinations(data: Mapping[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each generator's name with the parts of its table that say which key goes where."""
    tables = data.get("generators", ())
    for table in tables if isinstance(tables, list) else ():
        if isinstance(table, Mapping):
            yield table.get("name"), [table.get(key) for key in DESTINATION]


def _document(data: Mapping[str, Any]) -> str:
    """A task file of these values."""
    parts = []
    for name, section in data.items():
        for table in section if isinstance(section, list) else [section]:
            lines = [f"{_key(key)} = {_toml(value)}" for key, value in table.items()]
            head = f"[[{name}]]" if isinstance(section, list) else f"[{name}]"
            parts += ["\n".join([head, *lines])] if lines else []
    return "\n\n".join(parts) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    """Turns dates, which neither JSON nor a task needs, into text."""
    return json.loads(json.dumps(value, default=str))
