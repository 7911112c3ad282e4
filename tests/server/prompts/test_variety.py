"""Hints that tell the prompts of a batch apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undersong_server.prompts import rendering
from undersong_server.prompts.rendering import Prompts, TaskWords

LANGUAGES = sorted(file.stem for file in (Path(rendering.__file__).parent / "hints").glob("*.toml"))


# Beginnings of English words, of which a hint has one if it asks for a length, or for a choice of words.
TELLING = {"length": ("brief", "complete", "long", "talk", "telegra"), "words": ("word", "term", "adjective")}
# Fields by which a prompt asks for such itself.
ASKING: dict[str, dict[str, Any]] = {"length": {"words": 12}, "words": {"terms": ("card", "lost")}}


@pytest.mark.parametrize("language", LANGUAGES)
def test_hint_lists_of_all_languages_have_equal_lengths_and_no_duplicates(language: str) -> None:
    lists, english = rendering.built_in_hints(language.upper()), rendering.built_in_hints()
    assert [len(each) for each in lists] == [len(each) for each in english]
    assert all(len(set(each)) == len(each) for each in lists)
    assert (lists == english) == (language == "english")


def test_hints_are_in_the_tasks_language_if_available_else_in_english() -> None:
    texts = {
        language: Prompts(TaskWords(description="a note", language=language)).render("zero_shot", number=3).user
        for language in ("", "German", "Finnish")
    }
    assert rendering.hints_of(rendering.built_in_hints("german"), 3)[0] in texts["German"]
    english = rendering.hints_of(rendering.built_in_hints(), 3)[0]
    assert english in texts[""]
    assert english in texts["Finnish"]


def hints_on(asked: str, language: str) -> set[tuple[int, str]]:
    """The hints that a prompt leaves out, each with the number of its list."""
    lists = rendering.built_in_hints(language)
    left = rendering.built_in_hints(language, frozenset([asked]))
    return {(number, hint) for number, hints in enumerate(lists) for hint in {*hints} - {*left[number]}}


@pytest.mark.heavy
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("asked", ASKING)
def test_hints_on_what_a_prompt_already_asks_for_are_left_out(language: str, asked: str) -> None:
    left_out = hints_on(asked, language)
    lists, english = rendering.built_in_hints(language), rendering.built_in_hints()
    assert {(number, english[number][lists[number].index(hint)]) for number, hint in left_out} == hints_on(
        asked, "english"
    )
    prompts = Prompts(TaskWords(description="a note", language=language))
    for number in range(300):
        told = prompts.render("worded", number=number, **ASKING[asked]).told
        assert not {hint for _, hint in left_out} & {*told}


@pytest.mark.parametrize("asked", ASKING)
def test_prompts_that_state_length_or_words_show_no_hint_on_them(asked: str) -> None:
    telling = {
        hint
        for hints in rendering.built_in_hints()
        for hint in hints
        if any(word.startswith(TELLING[asked]) for word in hint.split())
    }
    assert telling - {hint for _, hint in hints_on(asked, "english")} <= {"somebody has long experience of it"}
    assert len(telling) >= 4


def test_prompts_with_a_least_length_show_no_hint_on_length() -> None:
    left_out = {hint for _, hint in hints_on("length", "english")}
    prompts = Prompts(TaskWords(description="a note", author="a nurse", least_words=80))
    assert not [number for number in range(300) if left_out & {*prompts.render("author", number=number).told}]


@pytest.mark.heavy
def test_two_thousand_prompts_with_length_and_words_all_differ() -> None:
    prompts = Prompts(TaskWords(description="a note"))
    shown = {prompts.render("worded", number=number, words=9, terms=("card",)).user for number in range(2_000)}
    assert len(shown) == 2_000
