"""A machine that waits for another one's coordinator to end."""

from __future__ import annotations

import logging
import time
import tomllib
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from tests.doubles.stream import make_home
from tests.doubles.tasks import make_task
from undersong_common.errors import ConfigurationError
from undersong_server.coordinator import service
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.database import turn
from undersong_server.runs.planning import Planned


def test_standby_logs_public_files_that_are_missing_on_its_machine(tmp_path, caplog):
    task = make_task(tmp_path / "task", parties=2)
    planned = Planned("first", tomllib.loads(task.read_text()), str(task.parent), ("a", "b"), 0, None, 5.0)
    run = make_home(tmp_path / "home").run("first")
    run.create(planned)
    with caplog.at_level(logging.WARNING):
        service._check_public_files(run)
        assert not caplog.records
        (task.parent / "good.jsonl").unlink()
        service._check_public_files(run)
    assert f"run first could not be continued here: {task.parent / 'good.jsonl'} is missing" in caplog.text


def await_its_turn(home, stack, *, standby):
    return turn.await_turn(home.storage, home.candidate(), stack, standby=standby, meanwhile=home.copy_shared)


def test_second_process_of_a_folder_is_refused_and_a_standby_waits(tmp_path, monkeypatch):
    home = make_home(tmp_path / "home")
    holding, waits = home.hold(), []
    holding.__enter__()

    def ends(_seconds):
        waits.append(True)
        if len(waits) == 3:
            holding.__exit__(None, None, None)

    second = CoordinatorHome(home.path)
    with ExitStack() as stack:
        with raises(ConfigurationError, "coordinator-in-use"):
            await_its_turn(second, stack, standby=False)
        monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=time.monotonic, sleep=ends))
        database, epoch = await_its_turn(second, stack, standby=True)
        assert len(waits) == 3
        assert (second.epoch, database.last[0]) == (epoch, epoch)
        assert second.served
    assert not second.served


@pytest.mark.parametrize("code", ["registry-version", "no-coordinator"])
def test_standby_ends_with_an_error_that_only_a_person_can_correct(tmp_path, monkeypatch, code):
    home = make_home(tmp_path / "home")

    def broken(_storage, _candidate, *, standby):
        assert standby
        raise ConfigurationError("is broken", "mend it", code=code)

    monkeypatch.setattr(turn, "take_turn", broken)
    with ExitStack() as stack, raises(ConfigurationError, code):
        await_its_turn(home, stack, standby=True)
