"""Generators of every kind as if the run's packaged embedder steered them, for tests that look at orders alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from undersong_common.model_files import PACKAGED
from undersong_server.generators.interface import GeneratorSettings


def steer_by_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every generator's settings name the packaged embedder as the model that they steer."""
    monkeypatch.setattr(GeneratorSettings, "steerable", str(Path(PACKAGED).resolve()))
