"""Generators of every kind as if the run's packaged embedder steered and tuned them, for tests that look at orders."""

from pathlib import Path
from typing import Any

import pytest

from undersong_common.models.model_files import PACKAGED
from undersong_server.generators.author import Author
from undersong_server.generators.interface import GeneratorSettings


def steer_by_packaged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Makes every generator's settings name the packaged embedder as its model; tuning changes nothing.

    Returns the tunings that are asked for from now on: step, preferences and settings.
    """
    monkeypatch.setattr(GeneratorSettings, "steerable", str(Path(PACKAGED).resolve()))
    asked: list[tuple[Any, ...]] = []

    def tune(_self: Author, *given: Any) -> dict[str, Any]:
        asked.append(given)
        return {}

    monkeypatch.setattr(Author, "tune", tune)
    return asked
