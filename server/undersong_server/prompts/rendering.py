"""Prompts from templates: data files with named placeholders, each of which a task may replace by its own.

A template is the ``template`` key of ``<kind>.toml``, in Jinja2's sandbox: ``{{ name }}`` stands for
a field, ``{% if name %} ... {% endif %}`` encloses a part that is left out where the field is empty. Texts (good, bad,
parents) are written one per line, labels and terms as a list with commas. What a field holds is never read as a
template.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError

Value = str | int | Sequence[str] | None

FIELDS = ("description", "labels", "label", "good", "bad", "parents", "masked", "terms", "words")
"""Every placeholder that a template may use."""

MASK = "_"
"""What stands for a hidden word in ``{{ masked }}``."""

_LISTED_INLINE = ("labels", "terms")


class _Absent(StrictUndefined):
    """A field without a value: false where a template asks for it, an error where one shows it."""

    def __bool__(self) -> bool:  # type: ignore[override] # jinja2 annotates that it always raises
        return False


_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=_Absent, autoescape=False, keep_trailing_newline=True)
_ENVIRONMENT.globals.clear()  # a template has its fields, and nothing else


class Prompts:
    """The templates of one task."""

    def __init__(self, templates: Mapping[str, Template], description: str, labels: Sequence[str]) -> None:
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
            ConfigurationError: an unknown file, an unknown key or field (named, with the nearest known one), a
                template that Jinja2 cannot read.
        """
        templates = dict(_built_in())
        if folder is not None:
            templates |= _overrides(folder, templates)
        return cls(templates, description, labels)

    def render(self, kind: str, **fields: Value) -> str:
        """The prompt of one request.

        Args:
            kind: name of a template.
            **fields: values of the fields: good, bad, parents (texts), terms (strings), label (str), words (int).
                ``description`` and ``labels`` are the task's own where not given; ``masked`` is made from the first
                of the parents where not given.

        Raises:
            ConfigurationError: no such kind, no such field, or a field without a value that the template needs.
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
        shown = {name: words for name, value in given.items() if (words := _shown(name, value))}
        try:
            return self._templates[kind].render(shown)
        except UndefinedError as error:
            raise ConfigurationError(
                f"prompt {kind!r}: {error.message}",
                "put it between {% if NAME %} and {% endif %}, or leave it out of this template",
            ) from None
        except TemplateError as error:
            raise ConfigurationError(f"prompt {kind!r}: {type(error).__name__}", "correct the template") from None


def mask_words(text: str, probability: float, seed: int | str) -> str:
    """The text with each word replaced by ``_`` with that probability, independently (DPGA-TextSyn's fill-in).

    >>> mask_words("pain in the left knee", 1.0, 0)
    '_ _ _ _ _'
    """
    draw = random.Random(seed)
    return " ".join(MASK if draw.random() < probability else word for word in text.split())


@cache
def _built_in() -> dict[str, Template]:
    files = [file for file in resources.files("undersong_server.prompts").iterdir() if file.name.endswith(".toml")]
    if not files:
        raise ConfigurationError("server/prompts: the templates are missing", "reinstall the package")
    return {file.name.removesuffix(".toml"): _template(file.name, file.read_bytes()) for file in files}


def _overrides(folder: Path, known: Mapping[str, Template]) -> dict[str, Template]:
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


def _template(source: str, content: bytes) -> Template:
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
    return _compiled(source, template.strip())


def _compiled(source: str, template: str) -> Template:
    """Raises ConfigurationError for what could not be filled in later."""
    try:
        parsed = _ENVIRONMENT.parse(template)
        compiled = _ENVIRONMENT.from_string(template)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = source if line is None else f"{source}, line {line} of the template"
        raise ConfigurationError(f"{place}: {error.message}", "see Jinja2's template language") from None
    for name in sorted(meta.find_undeclared_variables(parsed)):
        if name not in FIELDS:
            raise ConfigurationError(f"{source}: unknown field {name!r}", nearest(name, FIELDS))
    return compiled


def _shown(name: str, value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    if name in _LISTED_INLINE:
        return ", ".join(value)
    return "\n".join("- " + " ".join(text.split()) for text in value)
