"""A fault of the machine is one class, made from the system's number; what it holds up is told and tried again."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from tests.doubles.machines import without_descriptors
from undersong_common.errors import ConfigurationError, InternalError, MachineFault
from undersong_common.files import open_database, transaction
from undersong_common.program import machine
from undersong_common.program.machine import LONGEST_PAUSE_S, HeldSteps, fault_of, held_steps, named_faults

OF_MACHINE = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE", "ENFILE", "ENOMEM", "ESTALE")
OF_PEOPLE = ("EACCES", "EPERM", "ENOENT", "ENOTDIR", "EISDIR", "ELOOP")


def system_error(name, path="/srv/home/journal.sqlite"):
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("name", OF_MACHINE)
def test_machine_fault_names_file_reason_and_remedy(name):
    fault = fault_of(system_error(name))
    assert isinstance(fault, MachineFault)
    assert (fault.exit_code, fault.code) == (75, name.lower())
    assert "/srv/home/journal.sqlite" in fault.problem
    assert os.strerror(getattr(errno, name)) in fault.problem
    assert fault.remedy


@pytest.mark.parametrize("name", OF_PEOPLE)
def test_system_error_that_people_must_correct_is_a_configuration_error(name):
    fault = fault_of(system_error(name))
    assert isinstance(fault, ConfigurationError)
    assert fault.exit_code == 2


def test_socket_timeout_is_no_machine_fault():
    assert isinstance(fault_of(TimeoutError(errno.ETIMEDOUT, "timed out")), ConfigurationError)
    assert isinstance(fault_of(TimeoutError(errno.ETIMEDOUT, "timed out", "/mnt/far")), MachineFault)


def test_disk_without_free_inodes_is_distinguished_from_a_full_one(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_files=64, f_favail=0))
    fault = fault_of(system_error("ENOSPC", str(tmp_path / "status.json")))
    assert fault.code == "no-inodes"


def test_missing_root_folder_is_a_machine_fault_whatever_the_error_says(tmp_path):
    root = tmp_path / "home" / "settings.json"
    gone = system_error("ENOENT", str(root))
    assert fault_of(gone, root=root).code == "folder-away"
    root.parent.mkdir()
    root.touch()
    assert isinstance(fault_of(gone, root=root), ConfigurationError)


def test_sqlite_full_disk_is_a_machine_fault_and_a_damaged_file_is_not(tmp_path):
    path = tmp_path / "one.sqlite"
    database = open_database(path)
    database.execute("CREATE TABLE entry (value BLOB)")
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
    with raises(MachineFault, "enospc"), named_faults(path), transaction(database):
        database.execute("INSERT INTO entry VALUES (?)", (bytes(100_000),))
    database.close()
    path.write_bytes(b"no database" * 500)
    with raises(ConfigurationError, "damaged"), named_faults(path):
        sqlite3.connect(path).execute("SELECT * FROM entry")


def test_sqlite_beyond_the_largest_size_of_a_file_names_that_limit(tmp_path):
    path = tmp_path / "one.sqlite"
    database = open_database(path)
    database.execute("CREATE TABLE entry (value BLOB)")
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard_limit))
    try:
        with raises(MachineFault, "efbig"), named_faults(path), transaction(database):
            database.execute("INSERT INTO entry VALUES (?)", (bytes(1_000_000),))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard_limit))
        database.close()


@pytest.mark.parametrize("of", ["its file", "no file that is named"])
def test_sqlite_that_can_open_no_file_says_that_descriptors_lack(tmp_path, of):
    path = tmp_path / "one.sqlite"
    open_database(path).close()
    with without_descriptors(), raises(MachineFault, "emfile"), named_faults(path if of == "its file" else ""):
        sqlite3.connect(path)


def test_sqlite_open_error_is_a_machine_fault_if_the_file_opens_now(tmp_path):
    path = tmp_path / "one.sqlite"
    open_database(path).close()
    with pytest.raises(sqlite3.OperationalError) as caught, without_descriptors():
        sqlite3.connect(path)
    assert isinstance(fault_of(caught.value, path), MachineFault)


def test_unforeseen_error_s_message_is_not_shown():
    fault = fault_of(ValueError("a private text"))
    assert isinstance(fault, InternalError)
    assert "private" not in fault.problem


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def held_in(tmp_path):
    clock = Clock()
    return HeldSteps(tmp_path / "held.json", clock=clock, monotonic=clock), clock


def fail(name="ENOSPC"):
    raise system_error(name)


def test_held_up_step_is_retried_after_growing_pauses(tmp_path):
    held, clock = held_in(tmp_path)
    pauses = []
    for _ in range(8):
        assert not held.attempt("writing", fail)
        pauses.append(held.pause_s("writing"))
        assert not held.attempt("writing", pytest.fail), "it is not tried during its pause"
        clock.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1.0
    assert pauses[-1] == LONGEST_PAUSE_S
    assert held.attempt("writing", lambda: None)
    assert held.all() == ()


def test_held_up_step_says_since_when_and_is_logged_once_per_change(tmp_path, caplog):
    held, clock = held_in(tmp_path)
    for name in ("ENOSPC", "ENOSPC", "EIO"):
        held.attempt("writing", lambda name=name: fail(name))
        clock.now += LONGEST_PAUSE_S
    (step,) = held_steps(tmp_path / "held.json")
    assert (step.since_s, step.of_machine, step.code) == (1000.0, True, "eio")
    assert "journal.sqlite" in step.words
    assert len([record for record in caplog.records if "is held up" in record.message]) == 2
    held.release("writing")
    assert held_steps(tmp_path / "held.json") == ()


def test_record_of_held_steps_is_overwritten_in_place(tmp_path, monkeypatch):
    held, _ = held_in(tmp_path)
    path = tmp_path / "held.json"
    before = path.stat()
    for number in range(20):
        held.hold(f"step {number} " + "é" * 400, system_error("ENOSPC", "/" + "ü" * 4000))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
    assert len(held_steps(path)) == machine.MOST_RECORDED


def test_record_of_held_steps_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    held, _ = held_in(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda *_: fail("EIO"))
    assert not held.attempt("writing", fail)
    assert held.all()[0].code == "enospc"


@pytest.mark.parametrize("record", [b"", b"\0" * 4096, b"{}", b"[{}]", b"[1]", b"\xff"])
def test_record_of_held_steps_that_cannot_be_read_lists_none(tmp_path, record):
    (tmp_path / "held.json").write_bytes(record)
    assert held_steps(tmp_path / "held.json") == ()


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (1024, 4096, 1024),
        (16, 4096, machine.FEWEST_DESCRIPTORS),
        (16, resource.RLIM_INFINITY, machine.FEWEST_DESCRIPTORS),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        (16, 32, None),
    ],
)
def test_low_limit_of_open_files_is_raised_or_reported_at_the_start(monkeypatch, soft, hard, limit):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, changed: limits.append(changed))
    if limit is not None:
        machine.check_descriptors()
        assert limits[-1][0] == limit
        return
    with raises(MachineFault, "emfile") as fault:
        machine.check_descriptors()
    assert "32 files" in fault.value.problem
    assert fault.value.exit_code == 75
