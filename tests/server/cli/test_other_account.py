"""A command in another account's coordinator: who writes is refused before a file changes, who reads leaves nothing."""

from __future__ import annotations

import os

import pytest
import typer

from tests.doubles.hospitals import operator
from tests.doubles.stream import make_home
from undersong_common.errors import ConfigurationError, MachineFault
from undersong_server.cli.app import app
from undersong_server.cli.options import READING_COMMANDS

WRITING = [
    ("run", "plan", "task.toml", "--name", "x"),
    ("run", "start", "x"),
    ("invite", "alpha"),
    ("coordinator", "serve"),
    ("coordinator", "notify", "true"),
    ("console", "link"),
]
READING = [("run", "list"), ("parties",), ("coordinator", "show")]


@pytest.fixture
def home(tmp_path, monkeypatch):
    made = make_home(tmp_path / "home", ("alpha",)).path
    os.unlink(made / "serving.lock") if (made / "serving.lock").exists() else None
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    monkeypatch.chdir(tmp_path)
    return made


def read_times(folder):
    return {path.relative_to(folder): path.lstat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.heavy
@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_writing_command_of_another_account_is_refused_at_once(home, command):
    before = read_times(home.parent)
    # A unit starts its program again, and not for good is it ended by a folder that changed hands.
    kind = MachineFault if command[-1] == "serve" else ConfigurationError
    said = operator(*command, "--home", home, code=kind.exit_code)
    assert read_times(home.parent) == before
    assert "chown" not in said


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_reading_command_of_another_account_leaves_no_file(home, command):
    before = set(read_times(home))
    operator(*command, "--home", home)
    assert set(read_times(home)) == before


def test_every_command_in_the_list_of_reading_commands_exists():
    group = typer.main.get_command(app)
    known = set()
    for name, command in group.commands.items():
        known |= {f"{name} {inner}" for inner in getattr(command, "commands", {})} or {name}
    assert known >= READING_COMMANDS
