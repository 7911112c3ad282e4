"""The form of a task file: its fields, made from the models of the task, its methods and generators."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from undersong_common.program import configuration
from undersong_server import methods
from undersong_server.generators import kinds
from undersong_server.methods.parts import papers
from undersong_server.runs.task import AttributeSection, Task

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
        if last in UNITS:
            words = key_without_unit
            unit = f" ({UNITS[last]})"
        else:
            words, unit = key, ""
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
            if any(sent):
                return configuration.toml_or_text(f"[{', '.join(sent)}]")
            return None
        if self.control == "list":
            return [line.strip() for line in text.splitlines() if line.strip()] or None
        if self.control in ("number", "flag", "toml"):
            if text.strip():
                return configuration.toml_or_text(text)
            return None
        if text or self.default:
            return text
        return None


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


@cache
def first_values() -> Mapping[str, Any]:
    """Returns the first values of new tasks, by template, and of generators, by kind."""
    text = resources.files("undersong_server.operations").joinpath("new_task.toml").read_bytes()
    return configuration.parse_toml("new_task.toml", text)


def templates() -> tuple[str, ...]:
    """Names of the templates of new tasks."""
    return tuple(name for name in first_values() if name != "generators")


@cache
def first_level() -> tuple[str, ...]:
    """Returns the keys at the form's first level, in order, whether set or not."""
    tables = {"generators": {key: "" for table in first_values()["generators"].values() for key in table}}
    sections = [first_values()[name] for name in templates()] + [tables]
    return tuple(
        dict.fromkeys(f"{name}.{key}" for section in sections for name, table in section.items() for key in table)
    )


def started_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section without the keys that nobody has thought of yet."""
    return {key: copy.copy(value) for key, value in table.items() if value != ""}


def value_at(data: Any, path: str) -> Any:
    """Returns the value at a path; None if there is none."""
    for part in path.split("."):
        if isinstance(data, list):
            data = data[int(part)]
        elif isinstance(data, Mapping):
            data = data.get(part)
        else:
            data = None
    return data


def generator_kinds() -> tuple[str, ...]:
    """Kinds that a form can add: all but the functions of a notebook's process."""
    return tuple(kind for kind in kinds.names() if kind != "function")


def form_sections(data: Mapping[str, Any]) -> Iterator[FormSection]:
    """Yields the sections of a task's form, in the order of the schema."""
    for name, info in Task.model_fields.items():
        if name in IGNORED or info.exclude or name == "folder":
            continue
        if name in TABLES:
            for number, table in enumerate(data.get(name, ())):
                model: type[BaseModel] = AttributeSection
                if name == "generators":
                    model = kinds.load(str(table.get("kind")))
                yield _section(name, model, table, f"{name}.{number}")
            continue
        section = cast("type[BaseModel]", info.annotation)
        names = _generator_names(data)
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
    descriptions = configuration.descriptions(model)
    fields_by_name = dict(model.model_fields)
    schemas = _schemas(model)
    if name == "method" and data.get("name") in methods.names():
        options: type[BaseModel] = methods.load(str(data["name"])).Options
        descriptions = {**descriptions, **configuration.descriptions(options)}
        fields_by_name = {**fields_by_name, **options.model_fields}
        schemas = {**schemas, **_schemas(options)}
    fields_by_name |= {key: FieldInfo(default=None) for key in data if key not in fields_by_name}
    order = [path.partition(".")[2] for path in first_level() if path.startswith(f"{name}.")]
    fields = []
    for key in sorted(fields_by_name, key=lambda key: order.index(key) if key in order else len(order)):
        info = fields_by_name[key]
        path = f"{name}.{key}"
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
            control = "choice"
            choices = tuple(generators)
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
    kind = ""
    if name == "generators":
        kind = str(data.get("kind", ""))
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
    if len(forms) == 1:
        form = forms[0]
    else:
        form = {}
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
        if control != "toml":
            return value
        return toml_value(value)
    if value is None or value == () or value == {} or value == []:
        return ""
    if (
        control in ("list", "file")
        and isinstance(value, (list, tuple))
        and all(isinstance(line, str) for line in value)
    ):
        return "\n".join(value)
    return toml_value(value)


def task_file_text(values: Mapping[str, Any]) -> str:
    """Returns a task file of these values; sections without a key are left out."""
    import tomli_w

    return tomli_w.dumps({name: section for name, section in plain(values).items() if section})


def toml_value(value: Any) -> str:
    """Returns a value in TOML's syntax on one line, as a field shows it.

    tomli-w writes one entry of an array per line, with a comma after the last one too; no line ends within a text.
    """
    import tomli_w

    lines = tomli_w.dumps({"value": [[plain(value)]]}, indent=0).split("\n")[2:-3]
    text = ""
    for line in lines:
        if line.startswith("]"):
            before = text.rstrip(", ")
        else:
            before = text
        text = before + (line if line.endswith("[") else f"{line} ")
    return text.rstrip(", ")


def plain(value: Any) -> Any:
    """Turns dates and objects, which neither JSON nor a task needs, into text."""
    return json.loads(json.dumps(value, default=str))
