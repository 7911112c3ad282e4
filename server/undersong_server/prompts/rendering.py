"""Prompts from templates: data files with named placeholders. A task may replace any of them.

A template is a file ``<kind>.toml`` with ``user`` and, if they differ from the usual, ``system`` (both for models
that follow instructions) and ``completion`` (for models that only continue a text). They are written in Jinja2, in its
sandbox: ``{{ name }}`` stands for a field, ``{% if name %} ... {% endif %}`` encloses a part that is left out if
the field is empty, ``{% include "answer.j2" %}`` takes a part that several templates share. Texts (good, bad, parents)
stand between fences with their line breaks: ``{{ good | fenced("good") }}``. What a field holds is never read as a
template.
"""

import math
import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from jinja2 import FunctionLoader, StrictUndefined, Template, TemplateError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

from undersong_common.errors import ConfigurationError
from undersong_common.program.configuration import nearest, parse_toml
from undersong_protocol.agreement.manifest import LONGEST_DESCRIPTION
from undersong_server.prompts.scripts import SENTENCE_END

Value = str | int | Sequence[str] | None
Style = Literal["chat", "completion"]

TEXT_FIELDS = ("good", "bad", "parents")
# every placeholder that a template may use
FIELDS = (
    *("description", "labels", "label", "label_description", "attributes", "language", "variety"),
    *("author", "least_words"),
    *("good", "good_terms", "bad", "bad_reason", "parents", "masked", "terms", "words", "opening", "closing"),
)

KEYS = ("about", "system", "user", "completion")
OTHER_LABELS = 8  # number of labels that a prompt names besides its own

_TEMPLATES = resources.files("undersong_server.prompts").joinpath("templates")
# every kind of prompt that a method may order
KINDS = frozenset(name.removesuffix(".toml") for file in _TEMPLATES.iterdir() if (name := file.name).endswith(".toml"))
VOCABULARY = "vocabulary"
# Kinds whose answers are lists, which generators/reading.py parses.
LIST_KINDS = frozenset({"keywords", "keywords_by_label", VOCABULARY})
# Quotes the texts of a completion prompt: after an opening mark, a base model writes a text and a closing mark.
QUOTE = '"'
_RULE = "###"  # stands after each example if texts have several lines
MASK = "_"  # replaces a hidden word in ``{{ masked }}``
MASK_RATE = 0.5  # chance of a word to be hidden, DPGA-TextSyn's

_WORD = re.compile(r"\S+")
BYTES_PER_TOKEN = 3  # bytes of UTF-8; English has about four, so this errs towards shorter prompts


class Texts(tuple[str, ...]):
    """Texts that a prompt shows. As a string, each stands between fences and is not changed in any way."""

    def __str__(self) -> str:
        return fenced(self)


class Names(tuple[str, ...]):
    """Labels, terms or attributes. As a string they are a list with commas."""

    def __str__(self) -> str:
        return ", ".join(self)


def fenced(texts: Sequence[str] | str, name: str = "example") -> str:
    """Puts each text between ``<name>`` and ``</name>``; a text that contains such a fence gets another one.

    >>> print(fenced(["a\\n  b"], "good"))
    <good>
    a
      b
    </good>
    """
    fenced_blocks = []
    for text in (texts,) if isinstance(texts, str) else texts:
        fence_name, fence_number = name, 1
        while f"<{fence_name}>" in text or f"</{fence_name}>" in text:
            fence_number += 1
            fence_name = f"{name}-{fence_number}"
        fenced_blocks.append(f"<{fence_name}>\n{text}\n</{fence_name}>")
    return "\n".join(fenced_blocks)


def mask_words(text: str, probability: float, seed: int | str) -> str:
    """Replaces each word by ``_`` with the given probability, independently; white space stays as it is.

    >>> mask_words("pain in the\\nleft knee", 1.0, 0)
    '_ _ _\\n_ _'
    """
    rng = random.Random(seed)
    return _WORD.sub(lambda word: MASK if rng.random() < probability else word[0], text)


_STRIDE = 7919  # a prime, so that its multiples reach every combination of lists whose lengths it does not divide


def hints_of(lists: Sequence[Sequence[str]], number: int) -> tuple[str, ...]:
    """One hint (a sentence that makes prompts differ) of each list, for the text of that ``number``.

    As many numbers in a row get different hints as there are combinations of the lists' entries.
    """
    remaining_number = number * _STRIDE % math.prod(map(len, lists))
    chosen_hints = []
    for hint_list in lists:
        remaining_number, hint_number = divmod(remaining_number, len(hint_list))
        chosen_hints.append(hint_list[hint_number])
    return tuple(chosen_hints)


@cache
def built_in_hints(language: str = "", stated_subjects: frozenset[str] = frozenset()) -> tuple[tuple[str, ...], ...]:
    """Returns the lists of hints in ``language``, an English name, or in English if that has none.

    Args:
        stated_subjects: what the prompt asks for by itself, "length" or "words". The hints on it are left out: they
            could ask for the opposite.
    """
    folder = resources.files("undersong_server.prompts").joinpath("hints")
    file_names = {file.name for file in folder.iterdir()}
    file_name = f"{language.strip().casefold()}.toml"
    hint_file = folder.joinpath(file_name if file_name in file_names else "english.toml").read_bytes()
    hint_lists = tomllib.loads(hint_file.decode("utf-8"))
    hints_by_subject = hint_lists.pop("left_out")
    left_out = {hint for subject in stated_subjects for hint in hints_by_subject[subject]}
    return tuple(tuple(hint for hint in hint_list if hint not in left_out) for hint_list in hint_lists.values())


class _Absent(StrictUndefined):
    """A field without a value: false if a template asks for it, empty in a loop, an error if one shows it."""

    def __bool__(self) -> bool:  # type: ignore[override] # jinja2 annotates that it always raises
        return False

    def __iter__(self) -> Any:
        return iter(())


def _template_part(name: str) -> str | None:
    file = resources.files("undersong_server.prompts").joinpath("parts", name)
    if name.endswith(".j2") and "/" not in name and file.is_file():
        return file.read_text(encoding="utf-8")
    return None


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=_Absent, autoescape=False, keep_trailing_newline=True, loader=FunctionLoader(_template_part)
)
_ENVIRONMENT.globals.clear()  # a template has its fields, and nothing else
_ENVIRONMENT.filters["capital"] = lambda text: _capitalise(str(text))
_ENVIRONMENT.filters["fenced"] = lambda shown, name: fenced(str(shown) if isinstance(shown, _Absent) else shown, name)


@dataclass(frozen=True)
class Prompt:
    """One prompt, in the parts that a model gets.

    Attributes:
        system: the model's instructions; "" for a completion.
        user: the request, or the text that the model continues.
        stop: strings that end the answer; empty for a chat.
        told: sentences of the prompt that a good text may repeat: the task's own words on its texts, and each hint.
    """

    system: str
    user: str
    stop: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole prompt as one text: ``system``, then ``user``."""
        if self.system:
            return f"{self.system}\n\n{self.user}"
        return self.user


class TaskWords(BaseModel):
    """The words of a task that every prompt may use, all of them public.

    Attributes:
        description: kind of one text, e.g. "a nurse's triage note".
        labels: kinds that the texts are sorted into, each with its meaning if the word alone does not say it.
        label_descriptions: meanings of some of the labels, by label.
        language: English name of the texts' language, e.g. "German"; "" if not stated.
        attributes: properties of texts with their possible values; each order draws one value of each.
        line_breaks: texts have several lines; if not, completion prompts end at the end of a line.
        author: the person who writes, in prompts that name one, such as "a triage nurse".
        least_words: the fewest words of a text, in prompts that state a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: Annotated[str, Field(min_length=1, max_length=LONGEST_DESCRIPTION)]
    labels: tuple[str, ...] = ()
    label_descriptions: dict[str, str] = {}
    language: Annotated[str, Field(max_length=40)] = ""
    attributes: dict[str, tuple[str, ...]] = {}
    line_breaks: bool = False
    author: Annotated[str, Field(max_length=LONGEST_DESCRIPTION)] = ""
    least_words: Annotated[int, Field(ge=1)] | None = None


class Prompts:
    """The templates of one task, which :meth:`render` turns into prompts."""

    def __init__(self, task: TaskWords, *, variety: bool = True, folder: Path | None = None) -> None:
        """Loads the built-in templates. Keys of the files ``<kind>.toml`` in ``folder`` replace built-in ones.

        Args:
            variety: adds hints that make the prompts of a batch differ; without them, prompts of one label that show
                no text differ in the task's attributes only.

        Raises:
            ConfigurationError: an unknown file, an unknown key or field (named, with the nearest known one), a
                template that Jinja2 cannot read.
        """
        if folder is None:
            self._kinds = _built_in()
        else:
            self._kinds = _built_in() | _read_overrides(folder, _built_in())
        self._task = task
        self._varies = variety
        self._attributes = {
            attribute_name: attribute_values
            for attribute_name, attribute_values in task.attributes.items()
            if attribute_values
        }
        self.language = task.language
        self.line_breaks = task.line_breaks
        # This many numbers in a row give different prompts, where hints are not left out.
        self.combinations = math.prod(map(len, self._hint_lists({})))

    def render(
        self, kind: str, *, style: Style = "chat", number: int = 0, mask_rate: float = MASK_RATE, **fields: Value
    ) -> Prompt:
        """Returns the prompt of one request.

        Args:
            kind: name of a template.
            style: "chat" for a model that follows instructions, "completion" for one that continues a text, which
                gets no bad examples: it would write more of them.
            mask_rate: chance of a word of the first of the parents to be hidden.
            number: number of the order; decides its hints, attributes, hidden words and the other labels that it names.
            **fields: values of the fields: good, bad, parents (texts), good_terms (of each good text), terms (strings),
                label, bad_reason (str), words (int). The task's own fields need not be given; ``masked`` is made from
                the first of the parents if not given.

        Raises:
            ConfigurationError: no such kind, no such field, or a field without a value that the template needs.
        """
        if kind not in self._kinds:
            raise ConfigurationError(f"no prompt of the kind {kind!r}", nearest(kind, self._kinds), code="unknown-kind")
        for field_name in fields:
            if field_name not in FIELDS:
                raise ConfigurationError(
                    f"prompt {kind!r}: there is no field {field_name!r}", nearest(field_name, FIELDS)
                )
        attributes = self._draw_attributes(number)
        number = number if self._varies else 0
        hints = hints_of(self._hint_lists(fields), number)
        task_fields = self._task_fields(number, str(fields.get("label") or ""))
        field_values = task_fields | {"variety": "; ".join(hints), "attributes": attributes} | fields
        field_values["label"] = readable_label(str(fields.get("label") or ""))
        if style == "completion":
            if self._varies:
                field_values["variety"] = f"no. {number % self.combinations + 1}"
            else:
                field_values["variety"] = ""
        filled_values, has_lines = self._fill_values(field_values, number, mask_rate)
        kind_templates = self._kinds[kind]
        own_words = (self._task.description, str(field_values["label_description"]), *hints)
        if style == "chat":
            system, user = (_fill_template(kind, kind_templates[part], filled_values) for part in ("system", "user"))
            return Prompt(system, user, (), own_words)
        continued_text = _fill_template(kind, kind_templates["completion"], filled_values)
        stop_marks: tuple[str, ...] = (QUOTE, "\n")
        if kind in LIST_KINDS:
            stop_marks = ("\n",)
        elif has_lines:
            stop_marks = (f"\n{_RULE}", f"\n{_capitalise(self._task.description)}")
        return Prompt("", continued_text, stop_marks, own_words)

    def _fill_values(
        self, field_values: Mapping[str, Value], hint_number: int, mask_rate: float
    ) -> tuple[dict[str, Any], bool]:
        """Returns the fields as templates read them, and True if some text of them may have several lines."""
        filled_values = {
            name: template_value
            for name, value in field_values.items()
            if (template_value := _template_value(name, value))
        }
        parent_text = filled_values.get("parents")
        if "masked" not in filled_values and isinstance(parent_text, Texts):
            filled_values["masked"] = mask_words(parent_text[0], mask_rate, f"{hint_number} {parent_text[0]}")
        has_lines = self._task.line_breaks or any(
            "\n" in text for name in ("good", "parents") for text in filled_values.get(name, ())
        )
        if has_lines:
            filled_values["opening"] = "\n"
            filled_values["closing"] = f"\n{_RULE}\n"
        else:
            filled_values["opening"] = f" {QUOTE}"
            filled_values["closing"] = f"{QUOTE}\n"
        return filled_values, has_lines

    def _task_fields(self, hint_number: int, label: str) -> dict[str, Value]:
        task = self._task
        other_labels = [other_label for other_label in task.labels if other_label != label]
        first_other = hint_number % max(1, len(other_labels))
        return {
            "description": task.description,
            "bad_reason": "far",
            "labels": [
                readable_label(label)
                for label in (other_labels[first_other:] + other_labels[:first_other])[:OTHER_LABELS]
            ],
            "label_description": task.label_descriptions.get(label, ""),
            "language": task.language,
            "author": task.author,
            "least_words": task.least_words,
        }

    def _hint_lists(self, fields: Mapping[str, Value]) -> tuple[tuple[str, ...], ...]:
        """Returns the lists of variety hints: a prompt takes one of each, but none for what its fields settle."""
        if not self._varies:
            return ()
        asking_values = {"length": fields.get("words") or self._task.least_words, "words": fields.get("terms")}
        return built_in_hints(self._task.language, frozenset(name for name, value in asking_values.items() if value))

    def _draw_attributes(self, hint_number: int) -> list[str]:
        rng = random.Random(f"attributes {hint_number}")
        return [
            f"{attribute_name}: {rng.choice(attribute_values)}"
            for attribute_name, attribute_values in self._attributes.items()
        ]


def readable_label(label: str) -> str:
    """Writes a label as words: models read ``activate_my_card`` as one identifier."""
    return label.replace("_", " ")


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _template_value(name: str, value: Value) -> Any:
    """Returns a field as templates read it; false if it is empty."""
    if value is None or isinstance(value, str | int):
        if value is None:
            return ""
        return str(value)
    if name in TEXT_FIELDS:
        return Texts(value)
    return Names(value)


def _fill_template(kind: str, template: Template, field_values: Mapping[str, Any]) -> str:
    try:
        return template.render(field_values).strip()
    except UndefinedError as error:
        raise ConfigurationError(
            f"prompt {kind!r}: {error.message}",
            "put it between {% if NAME %} and {% endif %}, or leave it out of this template",
            code="field-without-value",
        ) from None
    except TemplateError as error:
        raise ConfigurationError(
            f"prompt {kind!r}: {type(error).__name__}", "correct the template", code="template-unusable"
        ) from None


@cache
def _built_in() -> dict[str, dict[str, Template]]:
    if not KINDS:
        raise ConfigurationError("server/prompts: the templates are missing", "reinstall the package")
    usual_system = _compile_template("system.j2", _template_part("system.j2") or "")
    templates_by_kind = {}
    for kind in sorted(KINDS):
        file = _TEMPLATES.joinpath(f"{kind}.toml")
        templates_by_kind[kind] = {"system": usual_system, **_compile_file(file.name, file.read_bytes())}
    return templates_by_kind


def _read_overrides(folder: Path, parts: Mapping[str, dict[str, Template]]) -> dict[str, dict[str, Template]]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder of prompts", "correct [prompts] folder", code="no-folder")
    templates_by_override = {}
    for path in sorted(folder.glob("*.toml")):
        if path.stem not in parts:
            raise ConfigurationError(
                f"{path}: no method asks for prompts of the kind {path.stem!r}",
                nearest(path.stem, parts),
                code="unknown-kind",
            )
        templates_by_override[path.stem] = parts[path.stem] | _compile_file(str(path), path.read_bytes())
    if not templates_by_override:
        raise ConfigurationError(
            f"{folder}: holds no template", f"put one of these there: {', '.join(sorted(parts))} (.toml)"
        )
    return templates_by_override


def _compile_file(source: str, file_bytes: bytes) -> dict[str, Template]:
    """Returns the compiled templates of one file by their keys."""
    toml_data = parse_toml(source, file_bytes)
    for key in toml_data:
        if key not in KEYS:
            raise ConfigurationError(f"{source}: unknown key {key!r}", nearest(key, KEYS))
    template_entries = {key: value for key, value in toml_data.items() if key != "about"}
    for key, text in template_entries.items():
        if not isinstance(text, str) or (not text.strip() and key != "system"):
            raise ConfigurationError(f"{source}: has no text under the key {key!r}", f'write {key} = """..."""')
    if not template_entries:
        raise ConfigurationError(f"{source}: has no template", 'write user = """..."""')
    return {key: _compile_template(source, text.strip()) for key, text in template_entries.items()}


def _compile_template(source: str, template: str) -> Template:
    """Compiles a template. Raises ConfigurationError for unknown fields and parts, and if Jinja2 cannot read it."""
    try:
        parsed_template = _ENVIRONMENT.parse(template)
        compiled_template = _ENVIRONMENT.from_string(template)
    except TemplateError as error:
        line_number = getattr(error, "lineno", None)
        if line_number is None:
            source_and_line = source
        else:
            source_and_line = f"{source}, line {line_number} of the template"
        raise ConfigurationError(f"{source_and_line}: {error.message}", "see Jinja2's template language") from None
    for name in sorted(meta.find_undeclared_variables(parsed_template)):
        if name not in FIELDS:
            raise ConfigurationError(f"{source}: unknown field {name!r}", nearest(name, FIELDS))
    part_names = sorted(file.name for file in resources.files("undersong_server.prompts").joinpath("parts").iterdir())
    for part in meta.find_referenced_templates(parsed_template):
        if part is None or _template_part(part) is None:
            raise ConfigurationError(f"{source}: there is no part {part!r}", f"take one of {', '.join(part_names)}")
    return compiled_template


class PromptTexts(NamedTuple):
    """The texts that a prompt shows."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()


def estimated_tokens(text: str) -> int:
    """Estimates the number of tokens of a text, rather too large than too small."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def fit_prompt(
    render: Callable[[PromptTexts], Prompt], shown: PromptTexts, most_tokens: int | None
) -> tuple[Prompt, PromptTexts]:
    """Shortens a prompt to ``most_tokens`` estimated tokens if possible; returns it with the texts that it still shows.

    Whole examples are left out first, then their last sentences. A prompt that shows no text stays as it is:
    the endpoint then reports that it is too long.
    """
    prompt = render(shown)
    while most_tokens is not None and estimated_tokens(prompt.text) > most_tokens:
        shorter = _drop_texts(shown)
        if shorter == shown:
            break
        shown = shorter
        prompt = render(shorter)
    return prompt, shown


def _drop_texts(shown: PromptTexts) -> PromptTexts:
    largest_count = max(len(texts) for texts in shown)
    if largest_count > 1:
        # If two lists have equally many texts, the first of them in this order loses a text.
        field_name = next(
            field_name for field_name in ("bad", "good", "parents") if len(getattr(shown, field_name)) == largest_count
        )
        return shown._replace(**{field_name: getattr(shown, field_name)[:-1]})
    longest_text = max((text for texts in shown for text in texts), key=len, default="")
    shortened_text = _without_last_sentence(longest_text)
    if shortened_text != longest_text:
        return PromptTexts(
            *(tuple(shortened_text if text == longest_text else text for text in texts) for texts in shown)
        )
    if shown.bad and shown.good:
        return shown._replace(bad=())
    return shown


def _without_last_sentence(text: str) -> str:
    """Returns the text without its last sentence; a text of one sentence stays."""
    sentence_ends = [match.end() for match in SENTENCE_END.finditer(text) if text[match.end() :].strip()]
    if sentence_ends:
        return text[: sentence_ends[-1]].rstrip()
    return text
