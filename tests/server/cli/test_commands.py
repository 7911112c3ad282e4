"""The operator's commands print what the operations return: for a person, for a program, or only what must be said."""

from __future__ import annotations

import io
import json
import re

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.stream import Credentials
from tests.doubles.tasks import make_task
from tests.doubles.typed import typed
from undersong_common.errors import ConfigurationError
from undersong_common.program import entry
from undersong_server.cli.app import app
from undersong_server.cli.display import Lines
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations import runs
from undersong_server.progress import Silent
from undersong_server.runs.folder import Awaited, AwaitedParty, RunFailure, RunStatus


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    place = ("--home", path, "--address", "localhost:7443", "--metrics", "")
    operator("coordinator", "init", *place, "--operator", "Example Hospital", "--contact", "01 234 56")
    for name in ("alpha", "beta", "gamma"):
        Credentials(CoordinatorHome(path), name)
    return path


@pytest.fixture
def task(tmp_path):
    return make_task(tmp_path / "task")


def test_quiet_commands_print_only_what_the_next_command_needs(home, task, tmp_path):
    shown = json.loads(operator("coordinator", "show", "--home", home, "--json"))
    package = tmp_path / "delta.package"
    assert operator("invite", "delta", "--out", package, "--home", home, "-q") == shown["fingerprint"] + "\n"
    assert package.stat().st_mode & 0o777 == 0o600
    assert operator("run", "plan", task, "--name", "first", "--home", home, "--quiet") == "first\n"
    assert operator("run", "start", "first", "--home", home, "-q") == ""
    assert operator("revoke", "delta", "--home", home, "-q") == ""
    assert operator("init", "--out", tmp_path / "mine.toml", "-q") == ""


def test_init_and_change_say_where_the_coordinator_listens(tmp_path):
    path = tmp_path / "home"
    made = operator("coordinator", "init", "--home", path, "--address", "localhost:27443")
    assert "listens on 0.0.0.0:27443; hospitals reach it at localhost:27443" in made
    assert "undersong coordinator change --bind HOST:PORT" in made
    changed = operator("coordinator", "change", "--home", path, "--bind", "127.0.0.1:27444")
    assert "bind: 127.0.0.1:27444" in changed
    assert "bind: 127.0.0.1:27444" in operator("coordinator", "show", "--home", path)
    assert "127.0.0.1:27444" in operator("console", "audit", "--home", path)
    assert "bind:" not in operator("coordinator", "change", "--home", path, "--contact", "01 234")


def test_commands_without_quiet_name_the_next_command(home, task):
    assert "start it with: undersong run start 'first'" in operator(
        "run", "plan", task, "--name", "first", "--home", home
    )
    said = operator("run", "start", "first", "--home", home)
    assert "will continue" in said
    assert "takes effect once the coordinator runs" in said
    assert json.loads(operator("run", "pause", "first", "--home", home, "--json")) == {
        "run": "first",
        "requested": "pause",
        "served": False,
    }


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RunStatus("finished"), 0),
        (RunStatus("stopped"), 3),
        (RunStatus("failed", error=RunFailure("it broke", "mend it", 7)), 7),
    ],
)
def test_run_watch_exits_with_the_exit_code_of_the_ended_run(home, task, status, code):
    operator("run", "plan", task, "--name", "first", "--home", home)
    folder = CoordinatorHome(home).run("first")
    folder.say("a line of the log")
    if status.error is not None:  # as the driver says it: in the log, and as the run's error
        folder.say(status.error.problem)
        folder.say(f"failed: {status.error.problem}")
    folder.write_status(status)
    explained, line, *rest = operator("run", "watch", "first", "--home", home, code=code).splitlines()
    assert "that is a round" in explained
    assert line.endswith("a line of the log")
    assert [each[20:] for each in rest] == ([] if status.error else [status.words])
    assert operator("run", "watch", "first", "--home", home, "-q", code=code) == f"{status.state}\n"
    value = json.loads(operator("run", "watch", "first", "--home", home, "--json", code=code))
    assert (value["state"], len(value["log"])) == (status.state, 1)
    assert operator("run", "list", "--home", home).splitlines()[1].split("\t")[1] == status.state


def test_a_planned_run_says_which_full_names_it_ignores(home, task):
    printed = operator("run", "plan", task, "--set", "federation.full_names={delta = 'Delta'}", "--home", home)
    assert "federation.full_names is ignored for 'delta': no hospital of this run has that name" in printed


def test_run_plan_takes_enrolled_party_names_separated_by_commas(home, task):
    planned = operator("run", "plan", task, "--parties", "alpha, beta,gamma", "--home", home, "--json")
    assert json.loads(planned)["parties"] == ["alpha", "beta", "gamma"]
    operator("run", "plan", task, "--parties", "alpha,nobody", "--home", home, code=2)
    operator("run", "plan", task, "--parties", "", "--home", home, code=2)


@pytest.mark.parametrize(("option", "shown"), [((), Lines), (("-q",), Silent), (("--json",), Silent)])
def test_a_quiet_simulation_shows_no_progress(task, tmp_path, monkeypatch, option, shown):
    seen = []

    def deliver(*_arguments, host, **_options):
        seen.append(type(host.progress))
        raise ConfigurationError("enough")

    monkeypatch.setattr("undersong.run.simulation.deliver", deliver)
    operator("simulate", task, "--out", tmp_path / "out", *option, code=2)
    assert seen == [shown]


def watched(home, task, status, *arguments, name="first"):
    operator("run", "plan", task, "--name", name, "--home", home)
    CoordinatorHome(home).run(name).write_status(status)
    return typed(app, "run", "watch", name, "--home", home, "--timeout", "0.1", *arguments, standalone_mode=False)


@pytest.mark.heavy
def test_full_name_can_be_set_at_invitation_changed_and_removed(home, tmp_path):
    operator("invite", "delta", "--full-name", "Delta Clinic, Faro", "--home", home, "--out", tmp_path / "package")
    assert "Delta Clinic, Faro" in operator("parties", "--json", "--home", home)
    assert operator("full-name", "delta", "Delta Hospital, Porto", "--home", home) == "delta: Delta Hospital, Porto\n"
    assert operator("full-name", "delta", "", "--home", home) == "delta: no full name is noted\n"


@pytest.mark.heavy
def test_watch_distinguishes_waiting_for_people_from_waiting_for_machines(home, task):
    operator("invite", "alpha", "--again", "--contact", "Dr Novak, 01 234", "--home", home, "--out", task.parent / "a")
    both = (AwaitedParty("alpha", True, 1.0), AwaitedParty("beta", False, 9.0))
    people = Awaited(both, 1e9, None, 3, "waiting for people", "people")
    said = watched(home, task, RunStatus("running", waiting=people)).stdout.splitlines()[1]
    for words in (
        "running: waiting for people since 2001-09-",
        "to telephone: alpha: Dr Novak, 01 234; beta: no telephone number noted (its machine is away, too)",
        "NOBODY IS SERVING",
    ):
        assert words in said, said
    machines = Awaited((AwaitedParty("beta", False, 9.0),), 1e9, None, 3, "waiting for beta (away for 9 s)")
    said = watched(home, task, RunStatus("running", waiting=machines), name="second").stdout
    assert "telephone" not in said
    with CoordinatorHome(home).hold():
        assert "NOBODY" not in watched(home, task, RunStatus("running"), name="third").stdout


def test_countdown_is_printed_once_when_output_is_a_pipe(home, task, monkeypatch):
    operator("run", "plan", task, "--name", "first", "--home", home)
    folder = CoordinatorHome(home).run("first")

    def status(seconds):
        waits = Awaited((AwaitedParty("beta", False, seconds),), 1e9, None, 3, f"waiting for beta, {seconds} s left")
        return RunStatus("running", waiting=waits)

    steps = iter([status(9), status(8), status(7), RunStatus("running", phase="writing", done=1, total=9)])
    monkeypatch.setattr(runs.time, "sleep", lambda _: folder.write_status(next(steps, RunStatus("finished"))))
    with CoordinatorHome(home).hold():
        lines = operator("run", "watch", "first", "--home", home).splitlines()[1:]
    assert [line[20:].split(",")[0] for line in lines] == [
        "planned",
        "running: waiting for beta",
        "running: writing 1/9",
        "finished",
    ]


def test_ctrl_c_ends_run_watch_and_says_that_the_run_goes_on(home, task, monkeypatch, capsys):
    def stopped(_):
        raise KeyboardInterrupt

    operator("run", "plan", task, "--name", "first", "--home", home)
    monkeypatch.setattr(runs.time, "sleep", stopped)
    with pytest.raises(SystemExit) as ended:
        entry.run(lambda: app(["run", "watch", "first", "--home", str(home)], standalone_mode=False))
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert said == "stopped watching; run 'first' continues once the coordinator runs again\n"


def test_lists_say_when_no_coordinator_is_serving(home, task):
    operator("run", "plan", task, "--name", "first", "--home", home)
    for arguments in (["run", "list"], ["parties"]):
        done = typed(app, *arguments, "--home", home, standalone_mode=False)
        assert "the coordinator is not running" in done.stderr
    with CoordinatorHome(home).hold():
        assert typed(app, "run", "list", "--home", home, standalone_mode=False).stderr == ""


def test_run_watch_on_a_terminal_overwrites_its_progress_line(home, task, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    operator("run", "plan", task, "--name", "first", "--home", home)
    folder = CoordinatorHome(home).run("first")
    steps = iter(RunStatus("running", phase="writing", done=done, total=3) for done in (1, 2, 3))

    def step(_):
        status = next(steps, RunStatus("finished"))
        if status.done == 2:
            folder.say("a line that stays")
        folder.write_status(status)

    monkeypatch.setattr(runs.time, "sleep", step)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    with CoordinatorHome(home).hold():
        app(["run", "watch", "first", "--home", str(home)], standalone_mode=False)
    shown = screen.getvalue()
    renewed = [part for part in re.split(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]", shown) if "running: writing" in part]
    assert {part.strip() for part in renewed} >= {"running: writing 1/3", "running: writing 3/3"}
    assert "\x1b[2K" in shown  # erased before it is written anew
    assert shown.count("a line that stays") == 1
    after = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.rpartition("running: writing 3/3")[2])
    assert after.split() == ["finished"]  # nothing of the line stays behind
