"""Hints that tell the prompts of a batch apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from undersong_server.prompts import rendering
from undersong_server.prompts.rendering import Prompts, TaskWords

LANGUAGES = sorted(file.stem for file in (Path(rendering.__file__).parent / "hints").glob("*.toml"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_as_many_hints_and_none_twice(language: str) -> None:
    lists, english = rendering.built_in_hints(language.upper()), rendering.built_in_hints()
    assert [len(each) for each in lists] == [len(each) for each in english]
    assert all(len(set(each)) == len(each) for each in lists)
    assert (lists == english) == (language == "english")


def test_hints_are_in_the_task_s_language_where_there_are_such() -> None:
    texts = {
        language: Prompts(TaskWords(description="a note", language=language)).render("zero_shot", number=3).user
        for language in ("", "German", "Finnish")
    }
    assert rendering.hints_of(rendering.built_in_hints("german"), 3)[0] in texts["German"]
    english = rendering.hints_of(rendering.built_in_hints(), 3)[0]
    assert english in texts[""]
    assert english in texts["Finnish"]
