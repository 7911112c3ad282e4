"""A command in another account's party: it is refused before a file changes, with the line to type instead."""

from __future__ import annotations

import os

import pytest

from tests.doubles.authority import Authority
from tests.doubles.party_home import command, joined
from undersong_client.cli.options import checkpoints_folder

COMMANDS = [
    ("status",),
    ("requests",),
    ("pause",),
    ("policy", "set", "--question", "all"),
    ("budget", "set", "--epsilon", "1", "--delta", "1e-5"),
    ("data", "refresh"),
    ("ledger", "--verify"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_another_account_is_told_the_line_and_changes_nothing(tmp_path, monkeypatch, arguments):
    home = joined(tmp_path, Authority())
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    said = command(*arguments, "--home", home, code=2)
    assert "run it as sudo -u" in said
    assert f"--home {home}" in said
    assert "chown" not in said
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_heads_beside_the_folder_are_found_without_a_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    home = tmp_path / "service" / "home"
    assert checkpoints_folder(home) == tmp_path / "somebody" / ".local" / "state" / "undersong" / "ledgers"
    beside = tmp_path / "service" / "state" / "undersong" / "ledgers"
    beside.mkdir(parents=True)
    assert checkpoints_folder(home) == beside
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    assert checkpoints_folder(home) == tmp_path / "mine" / "undersong" / "ledgers"
