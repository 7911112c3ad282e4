"""The operator's commands print what the operations return: for a person, for a program, or only what must be said."""

from __future__ import annotations

import json

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.stream import Credentials
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_server.cli.display import Display
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.progress import Silent
from undersong_server.runs.status import RunFailure, RunStatus


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    operator("coordinator", "init", "--home", path, "--address", "localhost:7443", "--metrics", "")
    for name in ("alpha", "beta", "gamma"):
        Credentials(CoordinatorHome(path), name)
    return path


@pytest.fixture
def task(tmp_path):
    return make_task(tmp_path / "task")


def test_quiet_commands_print_only_what_the_next_one_needs(home, task, tmp_path):
    shown = json.loads(operator("coordinator", "show", "--home", home, "--json"))
    package = tmp_path / "delta.package"
    assert operator("invite", "delta", "--out", package, "--home", home, "-q") == shown["fingerprint"] + "\n"
    assert package.stat().st_mode & 0o777 == 0o600
    assert operator("run", "plan", task, "--name", "first", "--home", home, "--quiet") == "first\n"
    assert operator("run", "start", "first", "--home", home, "-q") == ""
    assert operator("revoke", "delta", "--home", home, "-q") == ""
    assert operator("init", "--out", tmp_path / "mine.toml", "-q") == ""


def test_without_quiet_the_next_command_is_named(home, task):
    assert "start it with: undersong run start 'first'" in operator(
        "run", "plan", task, "--name", "first", "--home", home
    )
    said = operator("run", "start", "first", "--home", home)
    assert "is to go on" in said
    assert "it takes effect once the coordinator is served" in said
    assert json.loads(operator("run", "pause", "first", "--home", home, "--json")) == {
        "run": "first",
        "requested": "pause",
        "served": False,
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RunStatus("finished"), 0),
        (RunStatus("stopped"), 3),
        (RunStatus("failed", error=RunFailure("it broke", "mend it", 7)), 7),
    ],
)
def test_watching_ends_with_the_code_of_the_run(home, task, status, code):
    operator("run", "plan", task, "--name", "first", "--home", home)
    folder = CoordinatorHome(home).run("first")
    folder.say("a line of the log")
    folder.write_status(status)
    said = operator("run", "watch", "first", "--home", home, code=code)
    assert said.splitlines()[0].endswith("a line of the log")
    assert said.splitlines()[1] == status.words
    assert operator("run", "watch", "first", "--home", home, "-q", code=code) == f"{status.state}\n"
    value = json.loads(operator("run", "watch", "first", "--home", home, "--json", code=code))
    assert (value["state"], len(value["log"])) == (status.state, 1)
    assert operator("run", "list", "--home", home).splitlines()[1].split("\t")[1] == status.state


def test_who_takes_part_is_named_by_commas(home, task):
    planned = operator("run", "plan", task, "--parties", "alpha, beta,gamma", "--home", home, "--json")
    assert json.loads(planned)["parties"] == ["alpha", "beta", "gamma"]
    operator("run", "plan", task, "--parties", "alpha,nobody", "--home", home, code=2)
    operator("run", "plan", task, "--parties", "", "--home", home, code=2)


@pytest.mark.parametrize(("option", "shown"), [((), Display), (("-q",), Silent), (("--json",), Silent)])
def test_a_quiet_simulation_shows_no_progress(task, tmp_path, monkeypatch, option, shown):
    seen = []

    def deliver(*_arguments, progress, **_options):
        seen.append(type(progress))
        raise ConfigurationError("enough")

    monkeypatch.setattr("undersong.deliver.deliver", deliver)
    operator("simulate", task, "--out", tmp_path / "out", *option, code=2)
    assert seen == [shown]
