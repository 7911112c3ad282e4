"""The form of a task file: its fields, made from the models of the task, its methods and generators."""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from undersong_common.printable import joined
from undersong_common.privacy import impact
from undersong_common.program import configuration
from undersong_server import methods
from undersong_server.generators import kinds
from undersong_server.methods.parts import papers
from undersong_server.runs.task import AttributeSection, Task

IGNORED = ("data", "output", "evaluation")  # sections that the form leaves out: a coordinator's run ignores them
TABLES = ("generators", "attributes")  # sections that may stand several times
# Keys without a field of their own: the number of parties follows from their names, "labels" holds the meanings,
# a table's kind is chosen when it is added, full names are noted on the hospitals' own screens.
WITHOUT_FIELD = (
    *("federation.parties", "federation.alpha", "federation.full_names"),
    *("task.label_descriptions", "task.revises", "generators.kind"),
)
REQUIRED = (
    "task.purpose",
    "publication.where",
    "publication.licence",
    "publication.contact",
)  # keys that the form requires beside those that the schema requires
UNITS = {"s": "seconds", "usd": "US$"}  # units by the last part of a key
_PARTY = re.compile(r'(?<!["\w.-])(?:party|parties)(?!["\w])(?!`)')
FULL_NAME_KEY = "federation.full_names."  # begins the key of one hospital's full name in a task
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
        first: True if the form shows the field at first, without a click for more.
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
    def spoken(self) -> Mapping[str, Any]:
        """Plain words about the key, as :func:`field_words` has them: "is", "usual" and others. Empty for most keys."""
        section, _, key = self.path.partition(".")
        return cast("Mapping[str, Any]", field_words().get(section, {}).get(key.rpartition(".")[2], {}))

    @property
    def words(self) -> str:
        """Name of the key with its unit, as the label of its field."""
        if title := self.spoken.get("title"):
            return str(title)
        key = self.path.rpartition(".")[2]
        key_without_unit, _, last_word = key.rpartition("_")
        if last_word in UNITS:
            label_words = key_without_unit
            unit_words = f" ({UNITS[last_word]})"
        else:
            label_words, unit_words = key, ""
        return label_words.replace("_", " ").capitalize() + unit_words

    @property
    def pair(self) -> tuple[str, str]:
        """The texts of both inputs of a field whose control is "pair"."""
        low_text, _, high_text = self.text.strip("[]").partition(",")
        return low_text.strip(), high_text.strip()

    def value(self, sent: Sequence[str]) -> Any:
        """Value of the key from the texts that a form sent; None leaves the key out. Invalid TOML stays a text."""
        sent_text = sent[-1]
        if self.control == "pair":
            if any(sent):
                return configuration.toml_or_text(f"[{', '.join(sent)}]")
            return None
        if self.control == "list":
            return [line.strip() for line in sent_text.splitlines() if line.strip()] or None
        if self.control in ("number", "flag", "toml"):
            if sent_text.strip():
                return configuration.toml_or_text(sent_text.strip())
            return None
        if sent_text or self.default:
            return sent_text
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
        return "." in self.path or any(form_field.first for form_field in self.fields)


@cache
def first_values() -> Mapping[str, Any]:
    """Returns the first values of new tasks, by template, and of generators, by kind."""
    new_task_text = resources.files("undersong_server.operations").joinpath("new_task.toml").read_bytes()
    return configuration.parse_toml("new_task.toml", new_task_text)


@cache
def field_words() -> Mapping[str, Any]:
    """Returns what the form says in plain words, by section and key; "methods" and "kinds" have a line for each name.

    Of a key, "is" says what it is, "usual" what people write, "loses" what another value costs, "scale" what its sizes
    mean, "title" replaces a label that another field has too, and "names" says what its choices are.
    """
    words_text = resources.files("undersong_server.operations").joinpath("field_words.toml").read_bytes()
    words = configuration.parse_toml("field_words.toml", words_text)
    epsilon_words = words["privacy"]["epsilon"]
    epsilon_words["scale"] = epsilon_words["scale"].format(yardstick=impact.yardstick())
    return words


def templates() -> tuple[str, ...]:
    """Names of the templates of new tasks."""
    return tuple(name for name in first_values() if name != "generators")


@cache
def first_level() -> tuple[str, ...]:
    """Returns the keys that the form shows at first, without a click for more, in order, whether set or not."""
    generator_tables = {"generators": {key: "" for table in first_values()["generators"].values() for key in table}}
    sections = [first_values()[name] for name in templates()] + [generator_tables]
    return tuple(
        dict.fromkeys(f"{name}.{key}" for section in sections for name, table in section.items() for key in table)
    )


def started_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section of a template without the keys that are still empty, which people fill in."""
    return {table_key: copy.copy(table_value) for table_key, table_value in table.items() if table_value != ""}


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
    """Kinds of generators that a form can add, those with the best texts first: all but functions in a notebook."""
    best_first = list(field_words()["kinds"])
    offered_kinds = [kind for kind in kinds.names() if kind != "function"]
    return tuple(
        sorted(offered_kinds, key=lambda kind: best_first.index(kind) if kind in best_first else len(best_first))
    )


def form_sections(data: Mapping[str, Any]) -> Iterator[FormSection]:
    """Yields the sections of a task's form, in the order of the schema."""
    for name, field_info in Task.model_fields.items():
        if name in IGNORED or field_info.exclude or name == "folder":
            continue
        if name in TABLES:
            for table_number, table in enumerate(data.get(name, ())):
                model: type[BaseModel] = AttributeSection
                if name == "generators":
                    model = kinds.load(str(table.get("kind")))
                yield _section(name, model, table, f"{name}.{table_number}")
            continue
        section_model = cast("type[BaseModel]", field_info.annotation)
        generator_names = _generator_names(data)
        yield _section(name, section_model, data.get(name, {}), name, _preset(data, name), generators=generator_names)


def hospital_words(text: str) -> str:
    """Returns a text as an operator reads it: a party is a hospital. Keys, options and values stay as they are."""
    return _PARTY.sub(lambda match: "hospitals" if match[0] == "parties" else "hospital", text)


def change_words(key: str) -> str:
    """Returns a task's key, such as "generators.handbook.path", as the form labels it.

    >>> change_words("task.labels"), change_words("generators.handbook.path")
    ('Labels', 'Generator handbook: path')
    >>> change_words("federation.full_names.stella-maris")
    'Full name of stella-maris'
    """
    section, _, rest = key.partition(".")
    entry, _, table_key = rest.partition(".")
    if section in TABLES and table_key:
        return f"{section.removesuffix('s').capitalize()} {entry}: {table_key.replace('_', ' ').replace('.', ' ')}"
    if key.startswith(FULL_NAME_KEY):
        return f"Full name of {key.removeprefix(FULL_NAME_KEY)}"
    title = field_words().get(section, {}).get(rest, {}).get("title", "") if rest else ""
    return title or hospital_words((rest or section).replace("_", " ").replace(".", " ")).capitalize()


def counted_from_one(path: str) -> str:
    """Returns a field's path with the number of its table as people count.

    >>> counted_from_one("generators.0.corpus"), counted_from_one("task.labels")
    ('generators.1.corpus', 'task.labels')
    """
    parts = path.split(".")
    return ".".join(str(int(part) + 1) if part.isdigit() else part for part in parts)


def change_value(value: Any) -> str:
    """Returns a task's value as a list of changes shows it.

    >>> change_value(None), change_value(["mental", "other"]), change_value(4.0)
    ('not set', 'mental, other', '4.0')
    """
    if value is None:
        return "not set"
    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value) or "none"
    return str(value)


def change_line(key: str, before: Any, now: Any) -> str:
    """Returns one change between two plans as a list shows it.

    >>> change_line("task.language", None, "German"), change_line("generators", ["handbook", "mixed"], ["handbook"])
    ('Language of the texts: not set → German', 'Without generator mixed')
    """
    if key == "generators":
        removed_words = [f"without generator {name}" for name in before if name not in now]
        added_words = [f"with generator {name}" for name in now if name not in before]
        if removed_words or added_words:
            words = joined([*removed_words, *added_words])
            return f"{words[:1].upper()}{words[1:]}"
    return f"{change_words(key)}: {change_value(before)} → {change_value(now)}"


def _generator_names(data: Mapping[str, Any]) -> list[str]:
    """Names of the generators of a draft, in which not all may have one."""
    table_names = (str(table.get("name", "")) for table in data.get("generators", ()))
    return list(dict.fromkeys(filter(None, table_names)))


def _preset(data: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Values that the method's preset, if the task names one, sets in a section."""
    method = data.get("method", {})
    try:
        return papers.sections(str(method.get("name")), str(method["preset"])).get(section, {})
    except (KeyError, ValueError):
        return {}


def _section(
    name: str,
    model: type[BaseModel],
    data: Mapping[str, Any],
    section_path: str,
    defaults: Mapping[str, Any] = {},
    *,
    generators: Sequence[str] = (),
) -> FormSection:
    key_descriptions = configuration.descriptions(model)
    fields_by_name = dict(model.model_fields)
    key_schemas = _schemas(model)
    if name == "method" and data.get("name") in methods.names():
        options: type[BaseModel] = methods.load(str(data["name"])).Options
        key_descriptions = {**key_descriptions, **configuration.descriptions(options)}
        fields_by_name = {**fields_by_name, **options.model_fields}
        key_schemas = {**key_schemas, **_schemas(options)}
    fields_by_name |= {key: FieldInfo(default=None) for key in data if key not in fields_by_name}
    known_order = [path.partition(".")[2] for path in first_level() if path.startswith(f"{name}.")]
    form_fields = []
    for key in sorted(
        fields_by_name, key=lambda key: known_order.index(key) if key in known_order else len(known_order)
    ):
        field_info = fields_by_name[key]
        path = f"{name}.{key}"
        if path in WITHOUT_FIELD:
            continue
        control, choices = _control(path, field_info, key_schemas.get(key, {}))
        default_text = _text(
            control,
            defaults.get(key, None if field_info.is_required() else field_info.get_default(call_default_factory=True)),
        )
        task_value = data.get(key)
        is_required = path in REQUIRED or field_info.is_required()
        is_first_level = is_required or key in data or (key in known_order and control != "labels")
        if key.endswith("_generator") and generators:
            control = "choice"
            choices = tuple(generators)
        if control == "choice" and not default_text:
            choices = ("", *choices)
        form_fields.append(
            TaskField(
                f"{section_path}.{key}",
                control,
                default_text if task_value is None else _text(control, task_value),
                default_text,
                choices,
                hospital_words(key_descriptions.get(key, "")),
                is_required,
                is_first_level,
            )
        )
    title, _, help_ = " ".join((model.__doc__ or "").partition("\n\n")[0].split()).partition(": ")
    section_words = field_words()["sections"].get(name, hospital_words(help_ or title))
    kind = ""
    if name == "generators":
        kind = str(data.get("kind", ""))
        section_words = field_words()["kinds"].get(kind, section_words)
    return FormSection(section_path, name, section_words, tuple(form_fields), kind)


class _Schemas(GenerateJsonSchema):
    """Makes schemas of models that may hold what JSON has no words for, such as functions of another package."""

    def emit_warning(self, *_: Any) -> None:
        """Suppresses the warning of a default that JSON cannot hold: only the type is read."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


@cache
def _schemas(model: type[BaseModel]) -> Mapping[str, Mapping[str, Any]]:
    """JSON schema of each field of a model, by name; empty for a field that has none."""
    model_schema = model.model_json_schema(by_alias=False, schema_generator=_Schemas)
    properties: Mapping[str, Mapping[str, Any]] = model_schema.get("properties", {})
    return properties


def _control(path: str, info: FieldInfo, schema: Mapping[str, Any]) -> tuple[Control, tuple[str, ...]]:
    """The control of a field, and its choices."""
    if path == "task.labels":
        return "labels", ()
    if path == "method.name":
        return "choice", methods.names()
    if info.json_schema_extra:
        return "file", ()
    type_forms = [variant for variant in schema.get("anyOf", [schema]) if variant.get("type") != "null"]
    if len(type_forms) == 1:
        type_form = type_forms[0]
    else:
        type_form = {}
    if "enum" in type_form or "const" in type_form:
        return "choice", tuple(map(str, type_form.get("enum") or [type_form["const"]]))
    if type_form.get("type") == "array":
        has_texts = type_form.get("items", {}).get("type") == "string"
        return "pair" if "prefixItems" in type_form else "list" if has_texts else "toml", ()
    if type_form.get("type") == "string":
        return "long" if type_form.get("maxLength", 0) >= LONG_TEXT else "text", ()
    control_by_type: dict[str, Control] = {"boolean": "flag", "integer": "number", "number": "number"}
    return control_by_type.get(type_form.get("type", ""), "toml"), ()


def _text(control: Control, value: Any) -> str:
    """A value as the control shows it."""
    if isinstance(value, str):
        if control != "toml" or _needs_no_quotes(value):
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


def _needs_no_quotes(text: str) -> bool:
    """True if a field that takes any TOML value reads the text as itself, so that nobody has to know of quotes."""
    return text != "" and text == " ".join(text.split()) and configuration.toml_or_text(text) == text


def task_file_text(values: Mapping[str, Any]) -> str:
    """Returns a task file of these values; sections without a key are left out."""
    import tomli_w

    return tomli_w.dumps({name: section for name, section in plain(values).items() if section})


def toml_value(value: Any) -> str:
    """Returns a value in TOML's syntax on one line, as a field shows it.

    tomli-w writes one entry of an array per line, with a comma after the last one too; no line ends within a text.
    """
    import tomli_w

    toml_lines = tomli_w.dumps({"value": [[plain(value)]]}, indent=0).split("\n")[2:-3]
    toml_text = ""
    for line in toml_lines:
        if line.startswith("]"):
            text_before = toml_text.rstrip(", ")
        else:
            text_before = toml_text
        toml_text = text_before + (line if line.endswith("[") else f"{line} ")
    return toml_text.rstrip(", ")


def plain(value: Any) -> Any:
    """Turns dates and objects, which neither JSON nor a task needs, into text."""
    return json.loads(json.dumps(value, default=str))
