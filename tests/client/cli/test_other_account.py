"""A command in another account's party: it is refused before a file changes, with the line to type instead."""

from __future__ import annotations

import os

import pytest

from tests.doubles.authority import Authority
from tests.doubles.party_home import command, joined

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
    assert "chown" not in said
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before
