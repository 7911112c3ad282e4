"""The form of a task: what it takes from the models of methods and generators."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_server.operations import drafts, form
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
def test_missing_contact_message_lists_the_accepted_forms(words):
    draft = Draft("x", "a template", ".", {"task": {}, "publication": {"contact": words, "where": "here"}}, {})
    assert "an e-mail address, a telephone number or a web address" in draft.missing["publication.contact"]
    assert "publication.where" not in draft.missing


def test_form_shows_a_key_that_the_task_sets_among_the_first_fields():
    def first_keys(method_table):
        sections = {section.path: section for section in form.form_sections({"method": method_table})}
        return {field.path for field in sections["method"].fields if field.first}

    assert first_keys({"name": "wasp", "shortlist": 4}) - first_keys({"name": "wasp"}) == {"method.shortlist"}


def test_oldest_draft_is_deleted_beyond_the_limit(tmp_path, monkeypatch):
    home, task_file = make_home(tmp_path / "home").path, make_task(tmp_path / "task")
    monkeypatch.setattr(drafts, "MOST_DRAFTS", 3)
    identities = []
    for number in range(5):
        # Names in the other order than the times: no order of names is one of ages.
        monkeypatch.setattr(drafts, "os", SimpleNamespace(urandom=lambda size, start=9 - number: bytes([start] * size)))
        draft = drafts.from_file(home, task_file)
        identities.append(draft.identity)
        os.utime(drafts._folder(home) / f"{draft.identity}.json", (number, number))
    assert [draft.identity for draft, _ in drafts.unfinished(home)] == identities[:1:-1]
