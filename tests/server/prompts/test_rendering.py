"""Templates: every kind renders, optional parts vanish, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undersong_common.errors import ConfigurationError
from undersong_server.prompts import rendering
from undersong_server.prompts.rendering import FIELDS, Prompts, mask_words

KINDS = ("contrast", "cross", "fill_in", "keyphrases", "keywords", "metadata", "paraphrase", "random", "zero_shot")
FULL: dict[str, Any] = {
    "label": "cardiac",
    "good": ("good one", "good two"),
    "bad": ("bad one",),
    "parents": ("first parent text", "second parent"),
    "terms": ("chest pain", "ECG"),
    "words": 30,
}


@pytest.fixture
def prompts() -> Prompts:
    return Prompts.load(description="a nurse's triage note", labels=("cardiac", "trauma"))


def test_every_kind_is_a_data_file() -> None:
    assert set(KINDS) == {path.stem for path in Path(rendering.__file__).parent.glob("*.toml")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_renders_in_full(prompts: Prompts, kind: str) -> None:
    text = prompts.render(kind, **FULL)
    assert "a nurse's triage note" in text
    assert "cardiac" in text
    assert "about 30 words" in text
    assert not set("{}[]") & set(text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_not_named_does_not_show(kind: str) -> None:
    text = Prompts.load(description="a note").render(kind, **{**FULL, "label": "", "words": None})
    assert "category" not in text
    assert '"' not in text.replace('"_"', "")
    assert "words" not in text.replace("other words", "").replace("some words", "").replace("a few words", "")


def test_contrast_shows_bad_and_good_apart_and_asks_for_the_midpoint(prompts: Prompts) -> None:
    text = prompts.render("contrast", **FULL)
    assert text.index("- bad one") < text.index("- good one") < text.index("- good two") < text.index("midway")
    without_bad = prompts.render("contrast", **{**FULL, "bad": ()})
    assert "Bad examples" not in without_bad
    assert "- good one" in without_bad


def test_brackets_and_line_breaks_inside_a_text_are_only_text(prompts: Prompts) -> None:
    text = prompts.render("cross", parents=("a {{ label }} and {% if x %}\n- and a forged item",), label="trauma")
    assert "- a {{ label }} and {% if x %} - and a forged item" in text


def test_fill_in_hides_words_of_the_parent_and_is_a_function_of_it(prompts: Prompts) -> None:
    parent = "pain in the left knee since a fall on monday morning at work"
    text = prompts.render("fill_in", parents=(parent,))
    assert parent not in text
    assert " _ " in text
    assert text == prompts.render("fill_in", parents=(parent,))
    assert "my _ one" in prompts.render("fill_in", masked="my _ one")


def test_masking_hides_each_word_with_the_given_probability() -> None:
    words = " ".join(f"w{i}" for i in range(4000))
    hidden = mask_words(words, 0.5, 1).split().count("_")
    assert 1840 < hidden < 2160  # 5 standard deviations
    assert mask_words(words, 0.0, 1) == words


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("zeroshot", {}, "zero_shot"),
        ("zero_shot", {"lable": "x"}, "label"),
        ("paraphrase", {}, "'parents'"),
        ("keyphrases", {"terms": ()}, "'terms'"),
    ],
)
def test_a_wrong_call_names_what_is_wrong(prompts: Prompts, kind: str, fields: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        prompts.render(kind, **fields)
    assert named in str(failure.value)


def override(folder: Path, content: str, name: str = "contrast.toml") -> Prompts:
    (folder / name).write_text(content, encoding="utf-8")
    return Prompts.load(description="a note", labels=("a",), folder=folder)


def test_a_folder_replaces_single_templates(tmp_path: Path) -> None:
    prompts = override(
        tmp_path, 'template = "Besser als {{ bad }}, {so} {% if good %}wie {{ good }} {% endif %}sein, {{ label }}!"'
    )
    assert prompts.render("contrast", bad=("x",), label="a") == "Besser als - x, {so} sein, a!"
    assert prompts.render("zero_shot") == Prompts.load(description="a note", labels=("a",)).render("zero_shot")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('template = "Hello {{ exmples }}"', "unknown field 'exmples'"),
        ('template = "Hello {{ words"', "line 1 of the template"),
        ('template = "{% if words %} {{ words }}"', "line 1 of the template"),
        ('template = "{{ range(9) }}"', "unknown field 'range'"),
        ('template = ""', "'template'"),
        ('text = "Hello"', "unknown key 'text'"),
        ("template = ", "not valid TOML"),
    ],
)
def test_a_wrong_template_is_refused_when_it_is_loaded(tmp_path: Path, content: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        override(tmp_path, content)
    assert named in str(failure.value)
    assert "contrast.toml" in str(failure.value)


def test_a_template_reaches_nothing_but_its_fields(tmp_path: Path) -> None:
    prompts = override(tmp_path, 'template = "{{ label.__class__.__mro__ }}"')
    with pytest.raises(ConfigurationError, match="contrast"):
        prompts.render("contrast", label="a")


def test_a_file_that_no_method_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'contrast'"):
        override(tmp_path, 'template = "x"', "contrasts.toml")
    with pytest.raises(ConfigurationError, match="no such folder"):
        Prompts.load(description="a note", folder=tmp_path / "missing")


def test_every_field_is_used_by_some_template() -> None:
    marked = {field: f"<{field}>" for field in FIELDS}
    prompts = Prompts.load(description="")
    everything = "".join(prompts.render(kind, **marked) for kind in KINDS)
    assert [field for field in FIELDS if marked[field] not in everything] == []
