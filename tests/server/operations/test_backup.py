"""A coordinator's backup: whole, checked when it is written, and never put over anything."""

from __future__ import annotations

import json
import os
import sqlite3
import zipfile
from pathlib import Path

import pytest

from tests.doubles.coded import raises
from tests.doubles.hospitals import operator_screen
from tests.doubles.stream import Credentials
from undersong_common.errors import ConfigurationError
from undersong_server.coordinator.home import CoordinatorHome, Serving
from undersong_server.defaults import NewCoordinator
from undersong_server.operations import coordinator, enrolment
from undersong_server.runs.folder import RunStatus
from undersong_server.runs.planning import Planned


@pytest.fixture
def home(tmp_path):
    """A coordinator with an enrolled party and a revoked one, that is being served."""
    path = tmp_path / "home"
    coordinator.create(path, NewCoordinator(name="clinics", addresses=["example.org:7443"], metrics=""))
    opened = CoordinatorHome(path)
    Credentials(opened, "heart")
    Credentials(opened, "lung")
    enrolment.revoke(path, "lung", "left")
    coordinator.note_command(path, "revoke", "lung")
    with opened.hold():
        opened.write_serving(Serving(pid=1, port=7443, metrics_port=None, since=0.0, connected=("heart",)))
        yield path


@pytest.fixture
def made(home, tmp_path):
    file = tmp_path / "kept" / "backup"
    coordinator.back_up(home, file)
    return file


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_restored_backup_has_the_same_keys_parties_and_runs(home, made, tmp_path):
    restored = coordinator.restore(made, tmp_path / "new")
    new, left = files(tmp_path / "new"), ("serving.", "registry.")
    assert restored.fingerprint == coordinator.show(home).fingerprint == coordinator.show(tmp_path / "new").fingerprint
    assert [(each.party.name, each.party.state) for each in enrolment.parties(tmp_path / "new")] == [
        ("heart", "enrolled"),
        ("lung", "revoked"),
    ]
    assert [name for name in new if name.startswith(left)] == ["registry.sqlite"]
    assert {name: data for name, data in new.items() if not name.startswith(left)} == {
        name: data for name, data in files(home).items() if not name.startswith(left)
    }


def test_backup_file_is_readable_by_its_owner_only(made, tmp_path):
    coordinator.restore(made, tmp_path / "new")
    assert made.stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "new").rglob("*")} == {0}
    assert [path.name for path in made.parent.iterdir()] == ["backup"]


def test_backup_is_synced_to_disk_before_it_is_renamed(home, tmp_path, monkeypatch):
    file, synced, renamed = tmp_path / "backup", set(), []
    sync, rename = os.fsync, os.replace

    def note_sync(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def note_rename(source, target):
        if target == file:
            renamed.append(os.stat(source).st_ino in synced)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    coordinator.back_up(home, file)
    assert renamed == [True]


def test_backup_and_restore_replace_no_file_and_no_folder(home, made, tmp_path):
    with raises(ConfigurationError, "backup-exists"):
        coordinator.back_up(home, made)
    before = files(home)
    with raises(ConfigurationError, "home-not-empty"):
        coordinator.restore(made, home)
    assert files(home) == before
    (tmp_path / "empty").mkdir()
    coordinator.restore(made, tmp_path / "empty")


def test_checking_a_backup_changes_nothing(made, tmp_path):
    assert coordinator.check_backup(made).coordinator == "clinics"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "kept"]


def rewritten(made, changed):
    """The backup with other contents of these files; None leaves one out."""
    with zipfile.ZipFile(made) as archive:
        held = {name: archive.read(name) for name in archive.namelist()} | changed
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in held.items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "changed",
    [
        {"undersong-backup.json": None},
        {"undersong-backup.json": b"[]"},
        {"undersong-backup.json": b'{"format": 1, "made_at": 0, "fingerprint": "1234"}'},
        {"authority/signing.key": None},
        {"registry.sqlite": b"SQLite format 3\0" + bytes(4096)},
    ],
    ids=["no note", "another note", "another coordinator's", "no key", "a database of zeros"],
)
def test_damaged_backup_is_refused_and_leaves_nothing(changed, made, tmp_path):
    rewritten(made, changed)
    with raises(ConfigurationError, "backup-damaged"):
        coordinator.restore(made, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "kept"]


def test_backup_that_was_cut_off_or_flipped_is_refused(made):
    whole = made.read_bytes()
    for data in (whole[: len(whole) // 2], b"", whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]):
        made.write_bytes(data)
        with raises(ConfigurationError, "backup-damaged"):
            coordinator.check_backup(made)


def test_backup_of_another_format_is_refused_by_name(made):
    note = json.dumps({"format": 2, "made_at": 0, "fingerprint": ""}).encode()
    rewritten(made, {"undersong-backup.json": note})
    with raises(ConfigurationError, "backup-format"):
        coordinator.check_backup(made)


def break_journal(path):
    with sqlite3.connect(path / "journal.sqlite") as database:
        database.execute("CREATE TABLE entries AS SELECT zeroblob(20000) AS value")
    data = bytearray((path / "journal.sqlite").read_bytes())
    data[200:4096] = os.urandom(3896)
    (path / "journal.sqlite").write_bytes(data)


# What is wrong with one run's files, the file that is named, and whether the run would be driven after a restore.
DAMAGES = {
    "status cut off": ("status.json", lambda run: (run / "status.json").write_bytes(b'{"state": "runn'), True),
    "status of zeros": ("status.json", lambda run: (run / "status.json").write_bytes(bytes(300)), True),
    "request of a newer release": ("requested.json", lambda run: (run / "requested.json").write_text("{}"), False),
    "a folder in a file's place": ("status.json", lambda run: swap(run / "status.json", Path.mkdir), True),
    "a loop of links": ("plan.json", lambda run: swap(run / "plan.json", link_to_itself), True),
    "a damaged journal": ("journal.sqlite", break_journal, True),
}


def swap(path, make):
    path.unlink()
    make(path)


def link_to_itself(path):
    path.symlink_to(path)


@pytest.fixture
def planned_runs(home, tmp_path):
    for name in ("first", "second"):
        folder = CoordinatorHome(home).run(name)
        folder.create(Planned(name, {"task": {"name": name}}, str(tmp_path), ("heart",), 0, None, 5.0))
        folder.request("run")
        folder.write_status(RunStatus("running", 1))
    return home


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_the_others_are_backed_up(planned_runs, tmp_path, damage):
    name, break_run, is_driven = DAMAGES[damage]
    break_run(planned_runs / "runs" / "first")
    backup = coordinator.back_up(planned_runs, tmp_path / "backup")
    assert list(backup.faults) == ["first"]
    assert name in backup.faults["first"]
    restored = coordinator.restore(tmp_path / "backup", tmp_path / "new")
    assert restored.faults == backup.faults
    assert "second" in restored.paused
    new = CoordinatorHome(tmp_path / "new")
    assert new.run("second").requested().action == "pause"
    if is_driven and new.run("first").exists:
        assert new.run("first").requested().action == "pause"
    before = planned_runs / "runs" / "first" / name
    if before.is_file():
        assert (tmp_path / "new" / "runs" / "first" / name).read_bytes() == before.read_bytes()


def test_backup_omits_and_names_files_that_it_may_not_read(planned_runs, tmp_path, monkeypatch):
    path = planned_runs / "runs" / "first" / "log.txt"
    path.write_text("a line\n")
    opened = Path.open

    def refusing(self, *arguments, **options):
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    backup = coordinator.back_up(planned_runs, tmp_path / "backup")
    assert backup.faults == {"first": "log.txt: cannot be read, and is not in the backup"}
    assert "warning: run first" in operator_screen("coordinator", "restore", tmp_path / "backup", "--check", "--quiet")


def test_a_damaged_registry_is_named_with_its_file(home, tmp_path):
    (home / "registry.sqlite-wal").unlink(missing_ok=True)
    data = bytearray((home / "registry.sqlite").read_bytes())
    data[100:] = os.urandom(len(data) - 100)
    (home / "registry.sqlite").write_bytes(data)
    with raises(ConfigurationError, "damaged") as refused:
        coordinator.back_up(home, tmp_path / "backup")
    assert "registry.sqlite" in refused.value.problem
    assert not (tmp_path / "backup").exists()
