"""TOML files, validated once at the edge: one clear error that names the file, the key, the value and the remedy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from undersong_common.errors import ConfigurationError

Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The parsed file. Raises ConfigurationError that names the file (and the line, where the syntax is wrong)."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file", "check the path, or write one with `undersong init`"
        ) from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder, not a task file", "name the TOML file inside it") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 (byte {error.start})", "save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: is not valid TOML: {error}", "correct the line that is named") from None


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of ``data`` with ``section.key=value`` assignments applied; values are TOML, or else plain text.

    >>> override({"privacy": {"epsilon": 4}}, ["privacy.epsilon=1.5", "task.name=triage"])
    {'privacy': {'epsilon': 1.5}, 'task': {'name': 'triage'}}
    """
    result: dict[str, Any] = _copy(data)
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        path = key.strip().split(".")
        if not separator or not all(path):
            raise ConfigurationError(
                f"--set {assignment}: is not KEY=VALUE", "write for example --set privacy.epsilon=4"
            )
        node: Any = result
        for depth, part in enumerate(path[:-1]):
            node = _child(node, part, ".".join(path[: depth + 1]))
        value = _toml_value(text.strip())
        if isinstance(node, list):
            node[_index(node, path[-1], key)] = value
        else:
            node[path[-1]] = value
    return result


def validate(model: type[Model], data: Mapping[str, Any], source: str) -> Model:
    """``data`` as a frozen ``model``. Raises one ConfigurationError that lists every faulty key of ``source``."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, dict(item)) for item in error.errors(include_url=False)]
    raise ConfigurationError("\n".join(f"{source}: {problem}" for problem in problems))


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy that names the known word nearest to ``word``, or all of them where none is near."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _index(node: list[Any], part: str, where: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigurationError(f"--set {where}: {part!r} is not one of the entries 0 to {len(node) - 1}")
    return int(part)


def _child(node: Any, part: str, where: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, where)]
    if not isinstance(node.setdefault(part, {}), dict | list):
        raise ConfigurationError(f"--set {where}: is a value, not a section")
    return node[part]


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _problem(model: type[BaseModel], item: dict[str, Any]) -> str:
    location, section = _walk(model, item["loc"])
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    kind = item["type"]
    if kind == "extra_forbidden":
        return f"{where}: unknown key; {nearest(str(location[-1]), section.model_fields)}"
    if kind == "missing":
        return f"{where}: is required and missing"
    if kind == "union_tag_invalid":
        context = item.get("ctx", {})
        return f"{where}.kind: {context.get('tag')!r} is not one of {context.get('expected_tags')}"
    message = item["msg"].removeprefix("Value error, ")
    given = item.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{where or 'the file'}: {message}{shown}"


def _walk(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[list[str | int], type[BaseModel]]:
    """The location as a person writes it, and the model of the section that holds its last key."""
    shown: list[str | int] = []
    section, choices = model, [model]
    for part in location:
        if len(choices) > 1 and isinstance(part, str):
            # pydantic inserts the tag of a discriminated union: generators, 0, "ngram", "corpus"
            choices = [choice for choice in choices if part in get_args(choice.model_fields["kind"].annotation)]
            continue
        if isinstance(part, str):
            section = choices[0] if choices else section
            field = section.model_fields.get(part)
            choices = _models_in(field.annotation) if field is not None else []
        shown.append(part)
    return shown, section


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]
