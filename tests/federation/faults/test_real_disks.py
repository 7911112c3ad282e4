"""Faults of real disks and folders: a file system without room or inodes, and a folder that is away for seconds."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import contextmanager, suppress

import pytest

from tests.doubles.alliance import Alliance
from tests.federation.faults.test_one_fault import check_books, list_held_steps
from undersong_client.home import PartyHome
from undersong_common.program.machine import held_steps
from undersong_server.runs.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

DISK = "16m"
BLOCK = 4096  # bytes


def mount(*arguments):
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")


@contextmanager
def disk(folder, size=DISK):
    folder.mkdir(mode=0o700, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def without_room(folder):
    filler = folder / "filler"
    filler.touch(mode=0o600)
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(BLOCK))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def without_inodes(folder):
    used = os.statvfs(folder).f_files - os.statvfs(folder).f_ffree
    mount("-o", f"remount,nr_inodes={used}", folder)
    try:
        yield
    finally:
        mount("-o", "remount,nr_inodes=0", folder)


@pytest.fixture(scope="module")
def alliance_on_disks(alliance_folder):
    with disk(alliance_folder / "beta"), Alliance(alliance_folder) as made:
        yield made


def check_beside(alliance, run):
    """A run of the other hospitals begins and ends while the fault lasts."""
    others = ",".join(name for name in alliance.hospitals if name != "beta")
    alliance.start(run, "--set", "federation.parties=3", "--parties", others)
    alliance.watch(run)
    assert sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals)
    assert alliance.coordinator.health()["status"] == "ok"


@pytest.mark.parametrize("fault", [without_room, without_inodes])
def test_full_disk_of_a_hospital_holds_up_that_hospital_until_freed(alliance_on_disks, fault):
    run = f"hospital {fault.__name__}"
    hospital = alliance_on_disks.hospitals["beta"]
    party = PartyHome(hospital.home)
    with fault(hospital.home):
        alliance_on_disks.start(run)
        alliance_on_disks.until(lambda: held_steps(party.held_steps_file))
        said = hospital("status", code=75)
        assert "No space left on device" in said
        assert str(hospital.home) in said
        check_beside(alliance_on_disks, f"beside {run}")
        assert alliance_on_disks.shown(run)["status"]["state"] not in ("failed", "finished")
    alliance_on_disks.watch(run)
    alliance_on_disks.until(lambda: not held_steps(party.held_steps_file))
    check_books(alliance_on_disks, run)


def test_a_run_whose_disk_is_full_waits_and_the_others_go_on(alliance_on_disks):
    run, other = "full", "beside full"
    alliance_on_disks.operator("run", "plan", alliance_on_disks.task, "--name", run)
    folder = alliance_on_disks.home / "runs" / run
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with disk(folder):
        for name, data in files.items():
            (folder / name).write_bytes(data)
        asked = {"action": "run", "number": RunFolder(folder).requested().number + 1}
        (folder / "asked").write_text(json.dumps(asked))
        with without_room(folder):
            os.rename(folder / "asked", folder / "requested.json")  # needs no room
            alliance_on_disks.until(
                lambda: any(
                    run in words and "No space left on device" in words for words in list_held_steps(alliance_on_disks)
                )
            )
            alliance_on_disks.start(other)
            alliance_on_disks.watch(other)
        alliance_on_disks.watch(run)
        alliance_on_disks.until(lambda: not list_held_steps(alliance_on_disks))
    check_books(alliance_on_disks, run, other)


def test_hospital_folder_missing_for_seconds_ends_no_daemon_and_no_run(alliance_on_disks):
    run, hospital = "away", alliance_on_disks.hospitals["gamma"]
    away = hospital.home.with_name("gamma away")
    os.rename(hospital.home, away)
    time.sleep(3.0)
    alliance_on_disks.start(run)
    os.rename(away, hospital.home)
    alliance_on_disks.watch(run)
    assert hospital.error is None
    check_books(alliance_on_disks, run)
