"""What the tests of methods share: prompts of the embedded generators are made too, so that tests can look at them."""

from __future__ import annotations

import pytest

from undersong_server.generators.interface import PromptFormat
from undersong_server.generators.kinds.ngram import NgramSettings


@pytest.fixture(autouse=True)
def rendered_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An n-gram model reads none, so that a run makes none for it."""
    monkeypatch.setattr(NgramSettings, "prompt_format", lambda _settings, _folder: PromptFormat(reads=False))
