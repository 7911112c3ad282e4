"""A command in another account's party: it is refused before a file changes, with the line to type instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.doubles.authority import Authority
from tests.doubles.party_home import command, joined
from undersong_client.cli.options import checkpoints_folder
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_common.program import entry

COMMANDS = [
    ("status",),
    ("requests",),
    ("pause",),
    ("policy", "set", "--question", "all"),
    ("budget", "set", "--epsilon", "1", "--delta", "1e-5"),
    ("data", "refresh"),
    ("ledger", "--verify"),
]


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_by_another_account_prints_the_line_to_use_and_stops(tmp_path, monkeypatch, arguments):
    home = joined(tmp_path, Authority())
    before = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    said = command(*arguments, "--home", home, code=2)
    assert "run it as sudo -u" in said
    assert f"--home {home}" in said
    assert "chown" not in said
    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == before


def test_checkpoints_beside_the_folder_are_found_without_a_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    home = tmp_path / "service" / "home"
    assert checkpoints_folder(home) == tmp_path / "somebody" / ".local" / "state" / "undersong" / "ledgers"
    beside = tmp_path / "service" / "state" / "undersong" / "ledgers"
    beside.mkdir(parents=True)
    assert checkpoints_folder(home) == beside
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    assert checkpoints_folder(home) == tmp_path / "mine" / "undersong" / "ledgers"


@pytest.mark.parametrize("name", ["", "ledger.jsonl", "keys/identity.key"])
def test_daemon_exits_to_be_restarted_at_a_file_of_another_account(tmp_path, monkeypatch, name):
    """A root shell that has left a file ends no daemon for good: the unit starts it again, and 2 it would not."""
    home = joined(tmp_path, Authority())
    path, lstat, stat = home / name, Path.lstat, os.stat

    def with_owner(status):
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:10]))

    monkeypatch.setattr(Path, "lstat", lambda self: with_owner(lstat(self)) if self == path else lstat(self))
    if not name:
        monkeypatch.setattr(os, "stat", lambda place, **more: with_owner(stat(place, **more)))
    monkeypatch.setattr(entry, "only_tls_1_3", lambda: None)  # it asks for a process that has not imported gRPC
    said = command("run", "--home", home, code=MachineFault.exit_code)
    assert str(path) in said
    assert ("sudo -u" if not name else "let an administrator give it to") in said


def test_daemon_exits_to_be_restarted_at_a_file_that_others_may_read(tmp_path, monkeypatch):
    home = joined(tmp_path, Authority())
    (home / "policy.json").chmod(0o644)
    monkeypatch.setattr(entry, "only_tls_1_3", lambda: None)
    assert "chmod 600" in command("run", "--home", home, code=MachineFault.exit_code)
    assert "chmod 600" in command("status", "--home", home, code=ConfigurationError.exit_code)
