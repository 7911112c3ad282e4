"""Prompts from templates: data files with named placeholders, each of which a task may replace by its own.

A template is the ``template`` key of ``<kind>.toml``. ``{name}`` stands for a field and ``[[ ... ]]`` for a part that
is left out where one of its own fields is empty; ``{{`` and ``}}`` are plain braces. Texts (good, bad, parents) are
written one per line, labels and terms as a list with commas.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError

Value = str | int | Sequence[str] | None

FIELDS = ("description", "labels", "label", "good", "bad", "parents", "masked", "terms", "words")
"""Every placeholder that a template may use."""

MASK = "_"
"""What stands for a hidden word in ``{masked}``."""

_LISTED_INLINE = ("labels", "terms")
_MARK = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{([^{}]*)\}|\{|\}")


class Prompts:
    """The templates of one task."""

    def __init__(self, templates: Mapping[str, str], description: str, labels: Sequence[str]) -> None:
        self._templates = dict(templates)
        self._description = description
        self._labels = tuple(labels)

    @classmethod
    def load(cls, *, description: str, labels: Sequence[str] = (), folder: Path | None = None) -> Prompts:
        """The built-in templates, those in ``folder`` replacing their namesakes.

        Args:
            description: what a text is, e.g. "a nurse's triage note"; public.
            labels: the task's labels; public.
            folder: files ``<kind>.toml``; a file that is no template of ours is an error.

        Raises:
            ConfigurationError: an unknown file, an unknown key or placeholder (named, with the nearest known one),
                an unbalanced bracket or brace.
        """
        templates = dict(_built_in())
        if folder is not None:
            templates |= _overrides(folder, templates)
        return cls(templates, description, labels)

    def render(self, kind: str, **fields: Value) -> str:
        """The prompt of one request.

        Args:
            kind: name of a template.
            **fields: values of the placeholders: good, bad, parents (texts), terms (strings), label (str), words (int).
                ``description`` and ``labels`` are the task's own where not given; ``masked`` is made from the first
                of the parents where not given.

        Raises:
            ConfigurationError: no such kind, no such field, or a placeholder outside of ``[[ ]]`` without a value.
        """
        if kind not in self._templates:
            raise ConfigurationError(f"no prompt of the kind {kind!r}", nearest(kind, self._templates))
        given: dict[str, Value] = {"description": self._description, "labels": self._labels, **fields}
        for name in given:
            if name not in FIELDS:
                raise ConfigurationError(f"prompt {kind!r}: there is no field {name!r}", nearest(name, FIELDS))
        parents = given.get("parents")
        if given.get("masked") is None and parents and not isinstance(parents, str | int):
            # The seed is the text itself: a prompt is a function of its fields, so that a rerun asks the same.
            given["masked"] = mask_words(parents[0], 0.5, parents[0])
        return _fill(kind, self._templates[kind], {name: _shown(name, value) for name, value in given.items()})


def mask_words(text: str, probability: float, seed: int | str) -> str:
    """The text with each word replaced by ``_`` with that probability, independently (DPGA-TextSyn's fill-in).

    >>> mask_words("pain in the left knee", 1.0, 0)
    '_ _ _ _ _'
    """
    draw = random.Random(seed)
    return " ".join(MASK if draw.random() < probability else word for word in text.split())


@cache
def _built_in() -> dict[str, str]:
    files = [file for file in resources.files("undersong_server.prompts").iterdir() if file.name.endswith(".toml")]
    if not files:
        raise ConfigurationError("server/prompts: the templates are missing", "reinstall the package")
    return {file.name.removesuffix(".toml"): _template(file.name, file.read_bytes()) for file in files}


def _overrides(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder of prompts", "correct [prompts] folder")
    found = {}
    for file in sorted(folder.glob("*.toml")):
        if file.stem not in known:
            raise ConfigurationError(
                f"{file}: no method asks for prompts of the kind {file.stem!r}", nearest(file.stem, known)
            )
        found[file.stem] = _template(str(file), file.read_bytes())
    if not found:
        raise ConfigurationError(
            f"{folder}: holds no template", f"put one of these there: {', '.join(sorted(known))} (.toml)"
        )
    return found


def _template(source: str, content: bytes) -> str:
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"{source}: is not UTF-8", "save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: is not valid TOML: {error}", "correct the line that is named") from None
    for key in data:
        if key not in ("template", "about"):
            raise ConfigurationError(f"{source}: unknown key {key!r}", nearest(key, ("template", "about")))
    template = data.get("template")
    if not isinstance(template, str) or not template.strip():
        raise ConfigurationError(f"{source}: has no text under the key 'template'", 'write template = """..."""')
    _check(source, template)
    return template.strip()


def _check(source: str, template: str) -> None:
    """Raises ConfigurationError for what could not be filled in later."""
    inside = False
    for found in _MARK.finditer(template):
        mark, name = found[0], found[1]
        if name is not None and name not in FIELDS:
            raise ConfigurationError(f"{source}: unknown placeholder {{{name}}}", nearest(name, FIELDS))
        if mark in ("{", "}"):
            raise ConfigurationError(f"{source}: a single {mark!r}", f"write {mark * 2} for a plain brace")
        if mark in ("[[", "]]"):
            if inside == (mark == "[["):
                raise ConfigurationError(
                    f"{source}: [[ and ]] do not pair up", "close every [[ with ]]; they do not nest"
                )
            inside = not inside
    if inside:
        raise ConfigurationError(f"{source}: a [[ is not closed", "close it with ]]")


def _shown(name: str, value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    if name in _LISTED_INLINE:
        return ", ".join(value)
    return "\n".join("- " + " ".join(text.split()) for text in value)


def _fill(kind: str, template: str, values: Mapping[str, str]) -> str:
    written: list[str] = []
    part: list[str] | None = None  # what stands inside [[ ]]; None outside
    missing = False
    position = 0
    for found in _MARK.finditer(template):
        target = written if part is None else part
        target.append(template[position : found.start()])
        position = found.end()
        mark, name = found[0], found[1]
        if mark == "[[":
            part, missing = [], False
        elif mark == "]]":
            written += [] if missing or part is None else part
            part = None
        elif name is None:
            target.append(mark[0])
        elif values.get(name):
            target.append(values[name])
        elif part is not None:
            missing = True
        else:
            raise ConfigurationError(
                f"prompt {kind!r}: the placeholder {{{name}}} has no value here",
                f"put it between [[ and ]], or leave {{{name}}} out of this template",
            )
    written.append(template[position:])
    return "".join(written)
