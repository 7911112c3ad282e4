"""A small comparison, cells of it that need no model, and embeddings without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.doubles.party_home import HashedEmbedder
from tests.doubles.tasks import Row, make_replay_task
from undersong.comparison.cell import Bench
from undersong_common.models.embedding import Embedder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is the same with any embedder: no weights."""
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    rows: list[Row] = [{"text": f"{label} text number {n}", "label": label} for n in range(60) for label in "ab"]
    task_file = make_replay_task(
        tmp_path,
        rows,
        generators={"one": rows, "two": rows},
        data={"file_records": 300},
        federation={"parties": 1},
        method={"name": "wasp", "samples": 40, "rounds": 2, "votes": 2, "examples": 2, "shortlist": 2},
    )
    return Bench(task_file, (), tmp_path / "test.jsonl", 10)


@pytest.fixture
def embedded_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Sequence[str]], np.ndarray]], None]:
    """Makes every cell embed texts by the given function: no model, no cache."""

    def replace(embed: Callable[[Sequence[str]], np.ndarray]) -> None:
        monkeypatch.setattr(Bench, "_embed_public", lambda _bench, texts: embed(texts))
        monkeypatch.setattr(Bench, "_embed_private", lambda _bench, texts: embed(texts))

    return replace
