"""A run that cannot be read is that run's fault: it is named with file and reason, and nothing else is held up."""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import cycle, product

import pytest

from tests.doubles.hospitals import operator
from tests.doubles.loops import wait_for
from tests.doubles.pace import slow_but
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.models.embedding import Embedder
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.run_driver import GrpcRunDriver
from undersong_server.coordinator.service import Coordinator
from undersong_server.defaults import RunOptions
from undersong_server.operations import coordinator as operations
from undersong_server.operations import runs
from undersong_server.operations.beginning import next_step
from undersong_server.operations.overview import generator_usage, list_runs, needs, spending, support_bundle
from undersong_server.report.evaluations import EVALUATION_FILE, Evaluated, KeptMeasure, evaluated, keep_evaluation
from undersong_server.runs.folder import RunStatus, UnreadableRun

READ_BY_SERVING = ("plan.json", "status.json", "requested.json")

READ = (*READ_BY_SERVING, "heard.json", EVALUATION_FILE)  # the fourth by endings, the last one by Result and Compare


KEPT = Evaluated("test.jsonl, 0123abcd", {"recall": "0.5"}, {"recall": KeptMeasure(0.5, "high", False, (0.4, 0.6))}, 9)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_loop(path):
    path.unlink()
    path.symlink_to(path)


DAMAGES = {
    "cut off": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(512)),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00{"),
    "a list": lambda path: path.write_text("[]"),
    "other keys": lambda path: path.write_text('{"action": 3, "state": "sublimated", "roster": 1, "parties": {}}'),
    "no keys": lambda path: path.write_text("{}"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a folder": replace_by_folder,
    "a pipe": replace_by_pipe,
    "a loop of links": replace_by_loop,
}


@pytest.fixture
def home(tmp_path):
    made = make_home(tmp_path / "home", ("alpha", "beta", "gamma"), metrics="127.0.0.1:0")
    task = make_task(tmp_path / "task")
    for name in ("first", "second"):
        runs.plan(made.path, task, RunOptions(name=name))
        made.run(name).request("pause")
    return made.path


@contextmanager
def serving(home, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    opened = CoordinatorHome(home)
    with opened.hold():
        cache = home.parent / "cache.sqlite"
        coordinator = Coordinator(opened, public_cache=cache, environment={}, keepalive_s=5.0)
        thread = threading.Thread(target=coordinator.serve)
        thread.start()
        try:
            yield coordinator
            assert thread.is_alive()
        finally:
            coordinator.stop()
            thread.join(30.0)


def read_all(folder):
    """Reads every file of a run as the serving process does, and the kept figures."""
    folder.planned(), folder.requested(), folder.heard(folder.status()), evaluated(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"), slow_but(product(READ, DAMAGES), list(zip(cycle(READ), DAMAGES, strict=False)))
)
def test_every_damaged_run_file_raises_one_error_naming_run_and_file(home, name, damage):
    folder = CoordinatorHome(home).run("first")
    folder.note_heard(folder.status(), ["alpha"])
    keep_evaluation(folder, KEPT)
    if (name, damage) == ("status.json", "no keys"):
        return  # as a run is planned that has not been driven yet
    DAMAGES[damage](folder.path / name)
    with pytest.raises(UnreadableRun) as unreadable:
        read_all(folder)
    assert (unreadable.value.run, unreadable.value.file, unreadable.value.code) == ("first", name, "unreadable")
    assert unreadable.value.reason
    assert unreadable.value.remedy


def test_damaged_evaluation_file_makes_the_next_step_an_evaluation(home):
    folder = CoordinatorHome(home).run("first")
    folder.write_status(RunStatus("finished", since=1.0))
    keep_evaluation(folder, KEPT)
    assert evaluated(folder) == KEPT
    truncate(folder.path / EVALUATION_FILE)
    assert next_step(home, lambda: [], "first").words.endswith("and evaluate it on a public test file")


@pytest.mark.heavy
@pytest.mark.parametrize("name", READ_BY_SERVING)
def test_the_list_shows_a_run_that_cannot_be_read_beside_the_others(home, name):
    list_runs(home)
    truncate(home / "runs" / "first" / name)
    states = {run.run: run.status.state for run in list_runs(home)}
    # What is requested of a run stands in no list.
    assert states == {"first": "planned" if name == "requested.json" else "unreadable", "second": "planned"}
    assert "first" in operator("run", "list", "--home", home)


def test_a_folder_that_may_not_be_searched_is_listed_as_unreadable(home, monkeypatch):
    stat = os.stat

    def refusing(path, *arguments, **named):
        if "runs/first/" in os.fspath(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return stat(path, *arguments, **named)

    for call in ("stat", "lstat", "open"):
        original = getattr(os, call)
        guarded = refusing if call == "stat" else refused_below("runs/first/", original)
        monkeypatch.setattr(os, call, guarded)
    assert {run.run: run.status.state for run in list_runs(home)} == {"first": "unreadable", "second": "planned"}
    wanted = needs(home, list_runs(home), [])
    assert [need.name for need in wanted if "cannot be read" in need.says] == ["first"]


def refused_below(part, call):
    def refusing(path, *arguments, **named):
        if part in os.fspath(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return call(path, *arguments, **named)

    return refusing


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan.json", "live.jsonl", "log.txt"])
@pytest.mark.parametrize("damage", ["a folder", "a pipe", "a loop of links"])
def test_totals_over_all_runs_omit_unreadable_files(home, name, damage):
    for run in ("first", "second"):
        folder = CoordinatorHome(home).run(run)
        folder.write_status(replace(folder.status(), state="stopped", since=1.0, charged=True))
        folder.tell("usage", {"usage": {"good": {"calls": 2, "price_usd": 0.5}}})
        folder.say("a line")
    seen = list_runs(home)
    DAMAGES[damage](home / "runs" / "first" / name)
    readable = 2 if name == "log.txt" else 1
    assert spending(home, seen).price_usd == 0.5 * (2 if name != "live.jsonl" else 1)
    usage = {used.name: used.runs for used in generator_usage(home, ["first", "second"])}
    assert usage["good"] == readable
    assert support_bundle(home)


JOURNAL_DAMAGES = {
    "cut off": truncate,
    "a torn page": lambda path: path.write_bytes(path.read_bytes()[:100] + os.urandom(4000)),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "foreign": lambda path: path.write_text("a line of another program\n" * 400),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", JOURNAL_DAMAGES)
def test_damaged_journal_makes_its_run_unreadable_and_stays_unchanged(home, damage):
    folder = CoordinatorHome(home).run("first")
    with closing(folder.journal()) as journal:
        for number in range(40):
            journal.put(f"sum/{number}", bytes(1000))
    folder.write_status(replace(folder.status(), state="waiting", charged=True))
    whole = folder.journal_path.read_bytes()
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder.path / name).unlink(missing_ok=True)
    JOURNAL_DAMAGES[damage](folder.journal_path)
    with pytest.raises(UnreadableRun) as unreadable:
        folder.journal()
    assert unreadable.value.file == "journal.sqlite"
    folder.journal_path.write_bytes(whole)
    with closing(folder.journal()) as journal:
        assert len(journal.items("sum/")) == 40


def test_journal_drops_a_last_write_that_a_crash_cut_off(home):
    """The write-ahead log ends in a write that was cut off: nobody acted upon it."""
    folder = CoordinatorHome(home).run("first")
    log_path = folder.path / "journal.sqlite-wal"
    with closing(folder.journal()) as journal:
        journal.put("sum/1", bytes(3000))
        kept = log_path.read_bytes()
        journal.put("sum/2", bytes(3000))
        cut = log_path.read_bytes()[:-100], kept + bytes(4096)
        main = folder.journal_path.read_bytes()
    for log in cut:
        folder.journal_path.write_bytes(main)
        log_path.write_bytes(log)
        with closing(folder.journal()) as journal:
            assert list(journal.items("sum/")) == ["sum/1"]


@pytest.mark.heavy
@pytest.mark.parametrize("damage", ["cut off", "no keys", "a folder"])
def test_damaged_request_file_stops_only_its_run_until_it_is_restored(home, monkeypatch, damage, caplog):
    path = home / "runs" / "first" / "requested.json"
    whole = path.read_bytes()
    DAMAGES[damage](path)
    with serving(home, monkeypatch):
        second = CoordinatorHome(home).run("second")
        wait_for(lambda: second.status().state == "paused")
        wait_for(lambda: "requested.json" in str(operations.health(home)["held_up"]))
        assert operations.health(home)["status"] == "ok"
        assert "requested.json" in operator("coordinator", "healthy", "--home", home)
        assert "requested.json" in operator("coordinator", "show", "--home", home)
        if path.is_dir():
            path.rmdir()
        path.write_bytes(whole)
        wait_for(lambda: CoordinatorHome(home).run("first").status().state == "paused")
        wait_for(lambda: operations.health(home)["held_up"] == [])
    logged = [record.message for record in caplog.records if "run first is held up" in record.message]
    assert len(logged) == 1, "it is logged once, and not at each look"


def test_new_request_replaces_an_unreadable_request(home):
    path = home / "runs" / "first" / "requested.json"
    path.write_text("{}")
    runs.request(home, "first", "stop")
    assert json.loads(path.read_text())["action"] == "stop"


def test_run_with_a_damaged_plan_file_waits_until_it_is_restored(home, monkeypatch):
    ended = []

    def conduct(driver):
        ended.append(driver.folder.planned().name)
        return "2 texts, epsilon 4"

    monkeypatch.setattr(GrpcRunDriver, "_conduct", conduct)
    path = home / "runs" / "first" / "plan.json"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with serving(home, monkeypatch):
        runs.request(home, "first", "run")
        wait_for(lambda: any("plan.json" in step["problem"] for step in operations.health(home)["held_up"]))
        path.write_bytes(whole)
        wait_for(lambda: CoordinatorHome(home).run("first").status().state == "finished")
    assert CoordinatorHome(home).run("first").status().message == "2 texts, epsilon 4"
    assert ended == ["first"]
