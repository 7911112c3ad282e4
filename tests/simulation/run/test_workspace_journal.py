"""The parties' journal in a simulation: one exchange is one transaction, and its replies wait for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.doubles.coded import raises
from undersong.run.workspace import PARTIES, SimulatedParties
from undersong_client.storage import store
from undersong_common.errors import ConfigurationError

NO_TASK: Any = None


def on_disk(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("SELECT COUNT(*) FROM entry").fetchone()[0])


def test_all_parties_writes_are_on_disk_once_the_exchange_ends(tmp_path: Path) -> None:
    one, other = (store.Store(tmp_path / PARTIES, name, bytes(32)) for name in ("one", "other"))
    with SimulatedParties(NO_TASK, tmp_path, 0, None).together():
        one.put("reply", b"1")
        other.put("reply", b"2")
        assert on_disk(tmp_path / PARTIES) == 0
        one.begin_compartment("attempt").put_all({"machine": b"secret"})
        assert on_disk(tmp_path / PARTIES) == 0, "a compartment without a key of its own needs no disk before"
    assert on_disk(tmp_path / PARTIES) == 3
    store.close(tmp_path / PARTIES)


def test_exchange_with_an_undone_write_raises_not_written(tmp_path: Path) -> None:
    kept = store.Store(tmp_path / PARTIES, "one", bytes(32))
    with raises(ConfigurationError, "not-written"), SimulatedParties(NO_TASK, tmp_path, 0, None).together():
        kept.put("reply", b"1")
        with suppress(ValueError), store.journal(tmp_path / PARTIES).writing():
            raise ValueError  # as where the disk is full at another party, which answers with a refusal
        kept.put("later", b"2")
    assert kept.get("reply") is None
    store.close(tmp_path / PARTIES)
