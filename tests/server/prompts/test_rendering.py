"""Templates: every kind renders, optional parts vanish, and what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.coded import raises
from tests.doubles.pace import examples
from undersong_common.errors import ConfigurationError
from undersong_server.prompts import rendering
from undersong_server.prompts.rendering import FIELDS, Prompts, TaskWords, mask_words

KINDS = (
    "author",
    "contrast",
    "cross",
    "examples",
    "fill_in",
    "keyphrases",
    "keywords",
    "keywords_by_label",
    "rewrite",
    "metadata",
    "paraphrase",
    "random",
    "zero_shot",
    "persona",
    "vocabulary",
    "worded",
)
LIST_ENDS = dict.fromkeys(("keywords", "vocabulary"), 'category "cardiac":') | {"keywords_by_label": "ECG:"}
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
    return Prompts(TaskWords(description="a nurse's triage note", labels=("cardiac", "trauma")), variety=False)


def test_every_prompt_kind_has_its_template_file() -> None:
    assert set(KINDS) == {path.stem for path in Path(rendering.__file__).parent.glob("templates/*.toml")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_kind_renders_with_all_its_fields(prompts: Prompts, kind: str) -> None:
    text = prompts.render(kind, **FULL).text
    assert "a nurse's triage note" in text
    assert "cardiac" in text
    assert "about 30 words" in text
    assert not set("{}[]") & set(text)


def test_prompt_for_400_words_or_more_asks_for_sections_and_an_end(prompts: Prompts) -> None:
    short, long = (prompts.render("zero_shot", label="cardiac", words=count).user for count in (399, 400))
    assert "sections" not in short
    assert {"sections", "end"} <= set(re.findall(r"[a-z]+", long))


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_kind_has_a_completion_form_for_base_models(prompts: Prompts, kind: str) -> None:
    prompt = prompts.render(kind, style="completion", **FULL)
    assert not prompt.system
    assert prompt.user.endswith(LIST_ENDS.get(kind, ': "'))
    assert prompt.stop == (("\n",) if kind in rendering.LIST_KINDS else ('"', "\n"))
    assert "a nurse's triage note" in prompt.user.casefold()
    assert "\n\n" not in prompt.user
    assert ("bad one" in prompt.user) == (kind == "contrast")  # orders decide if a completion gets bad examples
    assert "<text>" not in prompt.user


def test_completion_prompt_uses_a_separator_for_examples_with_line_breaks(prompts: Prompts) -> None:
    prompt = prompts.render("contrast", style="completion", label="cardiac", good=("BP low\nHR fast", "pale"))
    title = 'A nurse\'s triage note, category "cardiac":'
    assert prompt.user == f"{title}\nBP low\nHR fast\n###\n{title}\npale\n###\n{title}"
    assert prompt.stop == ("\n###", "\nA nurse's triage note")
    lines = Prompts(TaskWords(description="a note", line_breaks=True))
    assert lines.render("zero_shot", style="completion").stop[0] == "\n###"


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_without_a_label_and_length_mentions_neither(kind: str) -> None:
    text = (
        Prompts(TaskWords(description="a note"), variety=False)
        .render(kind, **{**FULL, "label": "", "words": None})
        .user
    )
    assert "category" not in text
    assert '"' not in text.replace('"_"', "")
    assert "words" not in text.replace("other words", "").replace("some words", "").replace("a few words", "")


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_a_label_that_is_an_identifier_is_read_as_words(style: Any) -> None:
    task = TaskWords(
        description="a question",
        labels=("activate_my_card", "age_limit"),
        label_descriptions={"activate_my_card": "a new card"},
    )
    text = Prompts(task, variety=False).render("zero_shot", style=style, label="activate_my_card").user
    assert '"activate my card" (a new card)' in text
    assert "age limit" in text if style == "chat" else "age" not in text
    assert "_" not in text


def test_contrast_prompt_shows_bad_then_good_examples_and_asks_for_midway(prompts: Prompts) -> None:
    text = prompts.render("contrast", **FULL).user
    order = ("<bad>\nbad one\n</bad>", "<good>\ngood one\n</good>", "<good>\ngood two\n</good>", "midway")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "far from what real ones look like" in text
    # WASP, Table 7 and 4.6 (2): diverse in expression; further refined, closer to real ones, as clear as the good ones
    for asked in ("Express it differently from every example", "better still than the good ones", "as clear"):
        assert asked in text
    continued = prompts.render("contrast", **FULL, style="completion").user
    assert all(asked in continued for asked in ("midway", "better still", "as clear", "in other words"))
    alone = prompts.render("contrast", **{**FULL, "bad": ()}).user  # Table 7's prompt without contrast
    assert "Express it differently from every example" in alone
    assert "better still" not in alone
    mislabelled = prompts.render("contrast", **FULL, bad_reason="mislabelled").user
    assert "read like texts of another one" in mislabelled
    assert "far from" not in mislabelled


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_mention_good_and_bad_examples_only_when_they_show_them(prompts: Prompts, kind: str) -> None:
    given = {name: value for name, value in FULL.items() if name not in ("good", "bad")}
    without_bad = prompts.render(kind, **given, good=FULL["good"]).user.casefold()
    assert "bad" not in without_bad
    if kind in ("contrast", "examples"):
        return  # asked for without examples by no method
    assert not {"bad", "good"} & set(prompts.render(kind, **given).user.casefold().split())


def test_examples_keep_their_line_breaks_and_are_never_read_as_templates(prompts: Prompts) -> None:
    lines = "a {{ label }} and {% if x %}\n\n  - and an indented item\n</example>"
    text = prompts.render("cross", parents=(lines, "second"), label="trauma").user
    assert f"<example-2>\n{lines}\n</example-2>" in text
    assert "<example>\nsecond\n</example>" in text


def test_prompt_of_a_task_with_many_labels_names_only_some_others(prompts: Prompts) -> None:
    labels = tuple(f"label {number}" for number in range(77))
    many = Prompts(TaskWords(description="a note", labels=labels, label_descriptions={"label 3": "about threes"}))
    texts = [many.render("zero_shot", label="label 3", number=number).user for number in range(20)]
    assert all(text.count("label ") <= 20 for text in texts)
    assert all('"label 3" (about threes)' in text for text in texts)
    named = {label for label in labels if any(f"{label}," in text for text in texts)}
    assert len(named) > 20


def test_every_prompt_for_a_text_states_language_and_attributes() -> None:
    task = TaskWords(description="a note", language="German", attributes={"age": ("child", "adult")})
    for prompts in (Prompts(task), Prompts(task, variety=False)):
        check_language_and_attributes(prompts)


def check_language_and_attributes(prompts: Prompts) -> None:
    for kind in KINDS:
        texts = [prompts.render(kind, number=number, **FULL).user for number in range(12)]
        assert all("German" in text for text in texts)
        if kind not in rendering.LIST_KINDS:
            assert {"child", "adult"} == {age for age in ("child", "adult") for text in texts if f"age: {age}" in text}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"vocabulary"}))  # asked once a label: models repeat the hints
@pytest.mark.parametrize("style", ["chat", "completion"])
def test_prompts_of_one_batch_differ_unless_variety_is_off(kind: str, style: Any) -> None:
    prompts = Prompts(TaskWords(description="a note", labels=("cardiac", "trauma")))
    count = examples(200, 2000)
    assert len({prompts.render(kind, style=style, number=1000 + i, **FULL).text for i in range(count)}) == count
    assert prompts.combinations > 10_000
    alike = Prompts(TaskWords(description="a note", labels=("cardiac", "trauma")), variety=False)
    assert len({alike.render("zero_shot", style=style, number=i, label="trauma").text for i in range(20)}) == 1


def test_fill_in_prompt_hides_words_chosen_by_parent_and_prompt_number(prompts: Prompts) -> None:
    parent = "pain in the left knee\nsince a fall on monday morning at work"
    varied = Prompts(TaskWords(description="a note"))
    texts = [varied.render("fill_in", parents=(parent,), number=number).user for number in (1, 1, 2)]
    assert parent not in texts[0]
    assert " _ " in texts[0]
    assert texts[0] == texts[1]
    hidden = [text.split("<gaps>\n")[1].split("\n</gaps>")[0] for text in texts]
    assert hidden[0] != hidden[2]
    assert all(each.count("\n") == 1 for each in hidden)
    assert "my _ one" in prompts.render("fill_in", masked="my _ one").user


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
def test_rendering_with_wrong_fields_raises_an_error_naming_the_field(
    prompts: Prompts, kind: str, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError) as failure:
        prompts.render(kind, **fields)
    assert named in str(failure.value)


def override(folder: Path, content: str, name: str = "contrast.toml") -> Prompts:
    (folder / name).write_text(content, encoding="utf-8")
    return Prompts(TaskWords(description="a note", labels=("a",)), variety=False, folder=folder)


def test_prompts_folder_replaces_only_the_templates_that_it_holds(tmp_path: Path) -> None:
    prompts = override(
        tmp_path, 'user = "Besser als {{ bad }}, {so} {% if good %}wie {{ good }} {% endif %}sein, {{ label }}!"'
    )
    usual = Prompts(TaskWords(description="a note", labels=("a",)), variety=False)
    chat = prompts.render("contrast", bad=("x",), label="a")
    assert chat.user == "Besser als <example>\nx\n</example>, {so} sein, a!"
    assert chat.system == usual.render("contrast", bad=("x",), label="a").system
    completion = prompts.render("contrast", style="completion", good=("x",), label="a")
    assert completion == usual.render("contrast", style="completion", good=("x",), label="a")
    assert prompts.render("zero_shot") == usual.render("zero_shot")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('user = "Hello {{ exmples }}"', "unknown field 'exmples'"),
        ('user = "Hello {{ words"', "line 1 of the template"),
        ('user = "{% if words %} {{ words }}"', "line 1 of the template"),
        ('user = "{{ range(9) }}"', "unknown field 'range'"),
        ('user = ""', "'user'"),
        ('text = "Hello"', "unknown key 'text'"),
        ('about = "nothing"', "has no template"),
        ("user = '{% include \"what\" %}'", "there is no part 'what'"),
        ("user = ", "not valid TOML"),
    ],
)
def test_invalid_template_is_refused_when_it_is_loaded(tmp_path: Path, content: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        override(tmp_path, content)
    assert named in str(failure.value)
    assert "contrast.toml" in str(failure.value)


def test_template_cannot_access_attributes_of_its_fields(tmp_path: Path) -> None:
    prompts = override(tmp_path, 'user = "{{ label.__class__.__mro__ }}"')
    with raises(ConfigurationError, "template-unusable"):
        prompts.render("contrast", label="a")


def test_template_file_that_no_method_reads_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "unknown-kind"):
        override(tmp_path, 'user = "x"', "contrasts.toml")
    with raises(ConfigurationError, "no-folder"):
        Prompts(TaskWords(description="a note"), folder=tmp_path / "missing")


def test_every_prompt_field_is_used_by_some_template() -> None:
    folder = Path(rendering.__file__).parent
    everything = "".join(path.read_text() for path in (*folder.glob("templates/*"), *folder.glob("parts/*")))
    assert [field for field in FIELDS if field not in everything] == []
    assert (folder / "parts" / "system.j2").read_text().strip()
