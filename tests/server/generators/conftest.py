"""The journal of a run, as an author and its generators keep it."""

from __future__ import annotations

from pathlib import Path

import pytest

from undersong_server.database.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")
