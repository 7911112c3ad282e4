"""TOML files, validated once at the entry point: one error names the file, the key, the value and the remedy."""

import copy
import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema

from undersong_common.errors import ConfigurationError

Model = TypeVar("Model", bound=BaseModel)
LARGEST_FILE_BYTES = 2**18
MOST_LEVELS = 16  # tables within tables: the parser's time grows with the square of a dotted key's parts
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:\.[ \t]*{_PART}){{{MOST_LEVELS},}}")


@dataclass(frozen=True)
class ModelByValue:
    """Marks a field of a pydantic model whose value is validated by another model, which depends on that value.

    An example is a ``[[generators]]`` table, whose ``kind`` decides the model.

    Attributes:
        model_of: returns the model for a value; raises ConfigurationError if no model fits.
    """

    model_of: Callable[[Any], type[BaseModel]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, value: Any) -> BaseModel:
        if isinstance(value, BaseModel):
            return value
        try:
            model = self.model_of(value)
        except ConfigurationError as error:
            raise ValueError(f"{error.problem}; {error.remedy}") from None
        return model.model_validate(value)


def read_toml(path: Path) -> dict[str, Any]:
    """Reads and parses a TOML file.

    Raises ConfigurationError that names the file if it is missing or a folder, and the line if the syntax is wrong.
    """
    try:
        return parse_toml(str(path), path.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file", "check the path, or write one with `undersong init`"
        ) from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder, not a task file", "name the TOML file inside it") from None


def parse_toml(name: str, data: bytes) -> dict[str, Any]:
    """Parses the contents of a TOML file; errors call it ``name``. Raises ConfigurationError as :func:`read_toml`."""
    if len(data) > LARGEST_FILE_BYTES:
        raise ConfigurationError(
            f"{name}: is too large, with {len(data):,} bytes",
            f"write at most {LARGEST_FILE_BYTES:,}",
            code="file-too-large",
        )
    try:
        return _parse_toml(data.decode("utf-8-sig"))  # some editors of Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name}: is not UTF-8 (byte {error.start})", "save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"{name}: is not valid TOML: {error}", "correct the line that is named", code="not-toml"
        ) from None
    except RecursionError:
        raise ConfigurationError(
            f"{name}: has more than {MOST_LEVELS} levels of tables and lists", "use fewer levels", code="file-too-deep"
        ) from None
    except ValueError:
        raise ConfigurationError(
            f"{name}: has a number of thousands of digits", "write a shorter number", code="file-too-deep"
        ) from None


def _parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML.

    Raises RecursionError beyond ``MOST_LEVELS``, before it costs time, and ValueError for a number of too many digits.
    """
    if _LONG_KEY.search(text):
        raise RecursionError
    toml_document = tomllib.loads(text)
    level: list[Any] = [toml_document]
    for _ in range(MOST_LEVELS):
        level_members = [
            node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)
        ]
        level = [item for items in level_members for item in items]
    if any(isinstance(node, dict | list) for node in level):
        raise RecursionError
    return toml_document


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Returns a copy of ``data`` with ``section.key=value`` assignments applied; values are TOML, or else plain text.

    >>> override({"privacy": {"epsilon": 4}}, ["privacy.epsilon=1.5", "task.name=triage"])
    {'privacy': {'epsilon': 1.5}, 'task': {'name': 'triage'}}
    """
    overridden_data: dict[str, Any] = copy.deepcopy(dict(data))
    for assignment in assignments:
        key_path, equals_sign, value_text = assignment.partition("=")
        path = key_path.strip().split(".")
        if not equals_sign or not all(path):
            raise ConfigurationError(
                f"--set {assignment}: is not KEY=VALUE", "write for example --set privacy.epsilon=4"
            )
        table_node: Any = overridden_data
        for path_depth, path_part in enumerate(path[:-1]):
            table_node = _child_value(table_node, path_part, ".".join(path[: path_depth + 1]))
        assigned_value = toml_or_text(value_text.strip())
        if isinstance(table_node, list):
            table_node[_list_index(table_node, path[-1], key_path)] = assigned_value
        else:
            table_node[path[-1]] = assigned_value
    return overridden_data


def validate(model: type[Model], data: Mapping[str, Any], source: str, *, section: str = "") -> Model:
    """Reads ``data`` into a ``model``. Raises one ConfigurationError that lists every faulty key, if any is faulty.

    Args:
        source: file name that the error shows.
        section: prefix of each key's path in the error's ``places``, such as "method.".
    """
    try:
        validated_model = model.model_validate(data)
    except ValidationError as error:
        error_items = _relevant_items(model, [dict(error_item) for error_item in error.errors(include_url=False)], data)
        problem_words = dict.fromkeys(_describe_problem(model, error_item, data) for error_item in error_items)
    else:
        # pydantic takes true for 1.
        problem_words = dict.fromkeys(
            (f"{key_path}: is true or false, not a number", f"{key_path}: write a number", key_path)
            for key_path in _truth_values_as_numbers(validated_model, data)
        )
        if not problem_words:
            return validated_model
    raise ConfigurationError.together(
        [(f"{source}: {problem[0]}", problem[1], f"{section}{problem[2]}") for problem in problem_words]
    )


def _truth_values_as_numbers(validated: Any, input_value: Any, key_path: str = "") -> Iterator[str]:
    """Yields the paths of the keys whose value was given as true or false and read as a number."""
    if isinstance(input_value, bool) and isinstance(validated, int | float) and not isinstance(validated, bool):
        yield key_path
    elif isinstance(input_value, Mapping) and isinstance(validated, BaseModel | Mapping):
        members = vars(validated) if isinstance(validated, BaseModel) else validated
        for key in input_value:
            if key in members:
                yield from _truth_values_as_numbers(members[key], input_value[key], f"{key_path}.{key}".lstrip("."))
    elif isinstance(input_value, list | tuple) and isinstance(validated, list | tuple):
        for place, (member, input_member) in enumerate(zip(validated, input_value, strict=False)):
            yield from _truth_values_as_numbers(member, input_member, f"{key_path}[{place}]")


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Returns a model's field descriptions by field name, read from "Attributes:" in its and its bases' docstrings."""
    words_by_field: dict[str, str] = {}
    for base_class in reversed(model.__mro__):
        _, _, attributes = inspect.cleandoc(base_class.__doc__ or "").partition("Attributes:\n")
        for field_names, field_words in re.findall(r"^ {4}(\w[\w, ]*): (.+(?:\n {8}.*)*)", attributes, re.MULTILINE):
            words_by_field |= dict.fromkeys(field_names.split(", "), " ".join(field_words.replace("``", "").split()))
    return words_by_field


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns a remedy for an unknown ``word``: the most similar known word, or all known ones if no one is similar."""
    known_words = sorted(known)
    close_words = difflib.get_close_matches(word, known_words, n=1, cutoff=0.6)
    if close_words:
        return f"did you mean {close_words[0]!r}?"
    return f"known: {', '.join(known_words)}"


def _list_index(node: list[Any], part: str, key_path: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigurationError(
            f"--set {key_path}: {part!r} is not one of the entries 0 to {len(node) - 1}", "name an entry that is there"
        )
    return int(part)


def _child_value(node: Any, part: str, key_path: str) -> Any:
    if isinstance(node, list):
        return node[_list_index(node, part, key_path)]
    if not isinstance(node.setdefault(part, {}), dict | list):
        raise ConfigurationError(
            f"--set {key_path}: {part} is a value, not a section", f"leave out what follows {part}"
        )
    return node[part]


def toml_or_text(text: str) -> Any:
    """Parses a text as a TOML value; returns the text itself if it is not one."""
    try:
        return _parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# Each of pydantic's errors, by its name there: the problem with the value, and the remedy.
_WORDS = {
    "int_parsing": ("is not a whole number", "write a whole number"),
    "int_type": ("is not a whole number", "write a whole number, without quotes"),
    "int_from_float": ("is not a whole number", "write a whole number"),
    "float_parsing": ("is not a number", "write a number, without quotes"),
    "float_type": ("is not a number", "write a number, without quotes"),
    "bool_parsing": ("is neither true nor false", "write true or false, without quotes"),
    "bool_type": ("is neither true nor false", "write true or false, without quotes"),
    "string_type": ("is not text", "put it in quotes"),
    "tuple_type": ("is not a list", 'write a list, for example ["one", "two"]'),
    "list_type": ("is not a list", 'write a list, for example ["one", "two"]'),
    "model_type": ("is not a section", "write it as a [section] with keys"),
    "model_attributes_type": ("is not a section", "write it as a [section] with keys"),
    "dict_type": ("is not a section", "write it as a [section] with keys"),
    "greater_than": ("is not above {gt}", "choose a value above {gt}"),
    "greater_than_equal": ("is below {ge}", "choose {ge} or more"),
    "less_than": ("is not below {lt}", "choose a value below {lt}"),
    "less_than_equal": ("is above {le}", "choose {le} or less"),
    "literal_error": ("is none of {expected}", "choose one of {expected}"),
    "enum": ("is none of {expected}", "choose one of {expected}"),
    "string_too_short": ("is too short", "write at least {min_length} characters"),
    "string_too_long": ("is too long", "write at most {max_length} characters"),
    "too_short": ("has too few entries", "give at least {min_length}"),
    "too_long": ("has too many entries", "give at most {max_length}"),
    "string_pattern_mismatch": ("has a form that is not allowed", "it must match {pattern}"),
    "finite_number": ("is not finite", "write a finite number"),
    "dataclass_exact_type": ("is not a {class_name}", "give a {class_name}"),
    "is_instance_of": ("is not a {class}", "give a {class}"),
    "path_type": ("is not a path", "give a path, as text or as pathlib.Path"),
    "mapping_type": ("is not a mapping", "give a dict"),
    "callable_type": ("is not a function", "give a function"),
    "sequence_str": ("is one text, not a list", "give a list of texts"),
}

# Patterns that operators' texts often miss, with their remedies; another pattern is shown as it is.
TITLE = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
COLUMN = r"^[A-Za-z][A-Za-z0-9 _-]*$"
# A host and a path: no user name, password, query or fragment.
ADDRESS = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$"
OPTIONAL_ADDRESS = rf"{ADDRESS}|^$"
_FORMS = {
    **dict.fromkeys((ADDRESS, OPTIONAL_ADDRESS), "write http or https, host, port and path, without user and query"),
    TITLE: "begin with a letter or digit; use letters, digits, spaces and the signs . _ -",
    NAME: "begin with a letter or digit; use letters, digits and the signs . _ -",
    COLUMN: "begin with a letter; use letters, digits, spaces and the signs _ -",
}


def in_words(item: Mapping[str, Any]) -> tuple[str, str]:
    """Returns problem and remedy for one item of pydantic's error list; the problem is "" for an unknown kind."""
    problem, remedy = _WORDS.get(item["type"], ("", ""))
    context = item.get("ctx", {})
    remedy = _FORMS.get(context.get("pattern", ""), remedy)
    return problem.format(**context), remedy.format(**context)


def _relevant_items(model: type[BaseModel], items: list[dict[str, Any]], data: Any) -> list[dict[str, Any]]:
    """Returns pydantic's error items without those about a wrong type of a value that another item faults as well.

    For a key that takes a number or a list, pydantic says of 0 that it is below 1, and also that it is no list. Only
    the first is of use.
    """
    written_paths = [tuple(_walk_location(model, error_item["loc"], data)[0]) for error_item in items]
    fault_paths = [
        written_path
        for written_path, error_item in zip(written_paths, items, strict=True)
        if not _is_type_fault(error_item)
    ]
    return [
        error_item
        for written_path, error_item in zip(written_paths, items, strict=True)
        if not (
            _is_type_fault(error_item)
            and len(written_path) < len(error_item["loc"])
            and any(fault_path[: len(written_path)] == written_path for fault_path in fault_paths)
        )
    ]


def _is_type_fault(item: Mapping[str, Any]) -> bool:
    """Returns True if an error says that a value has a wrong type: no list, or no text where words are listed."""
    is_no_text = not isinstance(item.get("input"), str)
    return str(item["type"]).endswith("_type") or (item["type"] == "literal_error" and is_no_text)


def _describe_problem(model: type[BaseModel], item: dict[str, Any], data: Any) -> tuple[str, str, str]:
    """Returns the problem with one key, the remedy, and the key's path."""
    stated_location, section_model = _walk_location(model, item["loc"], data)
    place_words = ".".join(map(str, stated_location))
    key_path = "".join(
        f"[{path_part}]" if isinstance(path_part, int) else f".{path_part}" for path_part in stated_location
    ).lstrip(".")
    problem_kind = item["type"]
    if problem_kind == "extra_forbidden":
        return (
            f"{key_path}: unknown key",
            f"{key_path}: {nearest(str(stated_location[-1]), section_model.model_fields)}",
            place_words,
        )
    if problem_kind == "missing":
        return f"{key_path}: is required and missing", _missing_remedy(stated_location), place_words
    stated_value = item.get("input")
    input_words = ""
    if isinstance(stated_value, str | int | float | bool):
        input_words = f" (given: {_without_secrets(stated_value)!r})"
    problem, remedy = in_words(item)
    if problem:
        return f"{key_path}: {problem}{input_words}", f"{key_path}: {remedy}", place_words
    # The program's own checks say problem and remedy in one sentence.
    message = item["msg"].removeprefix("Value error, ")
    problem_words, _, remedy = message.partition("; ")
    wrong_key, colon, _ = problem_words.partition(":")
    if colon and wrong_key.isidentifier():
        place_words = f"{place_words}.{wrong_key}"
    return (
        f"{key_path or 'the file'}: {problem_words}{input_words}",
        f"{key_path + ': ' if key_path else ''}{remedy}" if remedy else "",
        place_words,
    )


def _missing_remedy(location: Sequence[str | int]) -> str:
    """Returns the remedy for a missing key.

    It numbers the tables of one name, because a key path in the file does not tell them apart.
    """
    *table, key = location
    if len(table) == 2 and isinstance(table[1], int):
        return f"write {key} = ... under [[{table[0]}]], table {table[1] + 1} of that name"
    return f"write {'.'.join(map(str, location))} = ..."


def _without_secrets(value: Any) -> Any:
    """Returns a value as an error may show it: without an address's user, password and query, which may be secret.

    >>> _without_secrets("https://me:word@host/v1?key=word")
    'https://***@host/v1?***'
    """
    if not isinstance(value, str) or "//" not in value:
        return value
    scheme, slashes, rest = value.partition("//")
    address = re.sub(r"[?#].*", "?***", rest, flags=re.DOTALL)
    _, at_sign, place = address.rpartition("@")
    return f"{scheme}{slashes}{'***@' if at_sign else ''}{place}"


def _walk_location(
    model: type[BaseModel], location: tuple[str | int, ...], input_value: Any
) -> tuple[list[str | int], type[BaseModel]]:
    """Returns a fault's location as a person writes it, and the model of the section that holds its last key.

    pydantic's own ``location`` also holds types that a value might have, such as "constrained-int": these are left out.
    """
    written_location: list[str | int] = []
    section, candidate_models = model, [model]
    for path_part in location:
        if (
            isinstance(path_part, str)
            and written_location
            and not candidate_models
            and not _has_key(input_value, path_part)
        ):
            continue
        if isinstance(path_part, str):
            models = [
                candidate.model_of(input_value) if isinstance(candidate, ModelByValue) else candidate
                for candidate in candidate_models
            ]
            section = models[0] if models else section
            model_field = section.model_fields.get(path_part)
            if model_field is not None:
                candidate_models = _models_in(model_field.annotation)
            else:
                candidate_models = []
        input_members = input_value
        if isinstance(input_value, list | tuple):
            input_members = dict(enumerate(input_value))
        input_value = None
        if isinstance(input_members, Mapping):
            input_value = input_members.get(path_part)
        written_location.append(path_part)
    return written_location, section


def _has_key(table: Any, part: str) -> bool:
    return isinstance(table, Mapping) and part in table


def _models_in(annotation: Any) -> list[Any]:
    """Returns the pydantic models that an annotation names; if it has any, its :class:`ModelByValue` marks instead."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    tagged_models = [mark for mark in get_args(annotation) if isinstance(mark, ModelByValue)]
    return tagged_models or [model for argument in get_args(annotation) for model in _models_in(argument)]
