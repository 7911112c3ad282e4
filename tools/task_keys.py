"""The site's page of a task file's keys, from the models that read it. ``python -m tools.task_keys`` prints it."""

import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from undersong_common.program.configuration import descriptions
from undersong_server import methods
from undersong_server.generators import kinds
from undersong_server.runs.task import Task

PAGE = "reference/task.md"  # its place below docs/
HEAD = """# Keys of a task file

Every section and key of a task file, from the program's own models.
`undersong init` writes a commented file. `undersong simulate task.toml --set section.key=value` overrides a key.
"""
STANDARD = {  # meanings of keys that every method, or every generator, has
    "rounds": "Rounds of generation.",
    "samples": "Texts to write.",
    "name": "Of the generator, in weights and reports.",
    "kind": "Of the generator.",
}
LISTS = ("generators", "attributes")
BOUNDS = {
    Ge: "from {.ge}",
    Gt: "above {.gt}",
    Le: "to {.le}",
    Lt: "below {.lt}",
    MaxLen: "at most {.max_length} characters",
}


def page() -> str:
    """Returns the whole page."""
    lines = [HEAD]
    for name, info in Task.model_fields.items():
        if name in ("folder", "set_aside", "replaced", "generators"):
            continue
        model = next(_models(info.annotation))
        title = f"[[{name}]]" if name in LISTS else f"[{name}]"
        lines += _section(title, model)
    for method in methods.own_names():
        lines += _section(f"[method] of {method}", methods.load(method).Options)
    for kind in kinds.names():
        if kinds.load(kind).__module__.startswith("undersong_server."):
            lines += _section(f"[[generators]] of kind {kind}", kinds.load(kind))
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(title: str, model: type[BaseModel]) -> list[str]:
    docstring_words = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
    lines = [
        f"## {title}",
        "",
        _sentence(docstring_words.removeprefix(f"{title}: ")),
        "",
        "| key | value | default | |",
        "|---|---|---|---|",
    ]
    description_by_key = descriptions(model)
    for name, info in model.model_fields.items():
        if info.exclude:
            continue
        default = "required" if info.is_required() else f"`{_toml(info.get_default(call_default_factory=True))}`"
        meaning = _sentence(description_by_key.get(name, "") or _describe_indirectly(name, description_by_key))
        cells = [f"`{name}`", _words(info), default, meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return [*lines, ""]


def _describe_indirectly(name: str, description_by_key: Mapping[str, str]) -> str:
    """Returns "with KEY" for a key that the description of another key explains, else its standard meaning."""
    explaining_keys = [key for key, words in description_by_key.items() if re.search(rf"\b{name}\b", words)]
    return f"with `{explaining_keys[0]}`." if explaining_keys else STANDARD.get(name, "")


def _sentence(words: str) -> str:
    """Returns words of a docstring as Markdown: docstrings mark code by two backquotes, and other names by a role."""
    plain = re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", " ".join(words.split())).replace("``", "`")
    return plain[:1].upper() + plain[1:]


def _words(info: FieldInfo) -> str:
    type_words = _kind(info.annotation)
    bounds = [BOUNDS[type(bound)].format(bound) for bound in info.metadata if type(bound) in BOUNDS]
    return ", ".join([type_words, *bounds])


def _kind(annotation: Any) -> str:
    origin, type_arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(type_arguments[0])
    if origin is Literal:
        return ", ".join(f"`{_toml(type_argument)}`" for type_argument in type_arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(_kind(type_argument) for type_argument in type_arguments if type_argument is not type(None))
        )
    if origin in (tuple, list):
        return f"list of {_kind(type_arguments[0])}s" if type_arguments else "list"
    if origin is dict or annotation is dict:
        return "table"
    return {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}.get(
        annotation, "table"
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


if __name__ == "__main__":
    print(page(), end="")
