"""The form of a task: what it takes from the models of methods and generators."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from undersong_server.operations import form
from undersong_server.operations.drafts import Draft


class Foreign(BaseModel):
    """Options of another package, of which JSON has no word for two."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    shown: Annotated[Literal["a", "b"], Field(alias="other-name")] = "a"
    count: int | None = None
    made: Callable[[str], str] = str.strip
    form: re.Pattern[bytes] | None = None
    place: complex | None = 1j


def test_form_shows_a_field_without_a_schema():
    section = form._section("generators", Foreign, {}, "generators.0")
    found = {each.path.rpartition(".")[2]: each.control for each in section.fields}
    assert found == {"shown": "choice", "count": "number", "made": "toml", "form": "text", "place": "text"}


@pytest.mark.parametrize("words", ["", "   "])
def test_an_empty_contact_says_what_is_accepted(words):
    draft = Draft("x", "a template", ".", {"task": {}, "publication": {"contact": words, "where": "here"}}, {})
    assert "an e-mail address, a telephone number or a web address" in draft.missing["publication.contact"]
    assert "publication.where" not in draft.missing
