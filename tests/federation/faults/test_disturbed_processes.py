"""Real processes that are stopped, short of something or of a wrong clock: the others go on, and the books agree.

One coordinator and three hospitals, each a process of its own, and two runs under way. Nothing is started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.doubles.hospitals import Federation, clinic_task, some_notes
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder
from tests.federation.faults.test_real_disks import disk, without_inodes, without_room
from undersong_client.home import PartyHome
from undersong_common.models.embedding import Embedder
from undersong_server.coordinator.home import CoordinatorHome

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

NAMES = ("childrens", "harbour-general", "heart-institute")
VICTIM = "childrens"
CLOCKED = "heart-institute"  # its clock, and the coordinator's, can be set
RUN_S = 90.0  # until a run has ended, on a busy machine
REVIEW_S = 60.0 + RUN_S  # until the coordinator has looked at its certificates again
KEEPALIVE_S = 1.0  # a stream that is silent for three of them is given up
SHORT = ("--set", "method.samples=24", "--set", "method.rounds=2", "--patience", 6)
THREE = ("--set", "federation.parties=3", "--set", "federation.colluders=0")
OTHERS = ("--patience", 30, *THREE[2:], "--set", "federation.parties=2", "--set", "federation.tolerated_dropouts=0")
ENDED = ("finished", "failed")
STRANGER = 54321  # uid
DISK = "256m"  # room for all runs of this file
DAYS_AHEAD = 400
CLOCK = "UNDERSONG_TEST_CLOCK"
# Root reads every account's files, unless it gives up these capabilities.
WITHOUT_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


class Clock:
    """The clock of a process, which is ahead by the seconds that a file states (tests/doubles/weightless)."""

    def __init__(self, file):
        self._file = file
        self.env = {CLOCK: str(file)}
        self._set(0)

    def _set(self, days):
        self._file.write_text(str(days * 86400))

    @contextlib.contextmanager
    def ahead(self, days):
        self._set(days)
        try:
            yield
        finally:
            self._set(0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disturbed")
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as disks:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setenv("UNDERSONG_CACHE", str(folder / "cache"))
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())  # as the processes do
        with contextlib.suppress(pytest.skip.Exception):  # tests of disks are skipped where none can be mounted
            for name in ("coordinator", VICTIM):
                disks.enter_context(disk(folder / name, DISK))
        clocks = {name: Clock(folder / f"{name}.clock") for name in ("coordinator", CLOCKED)}
        with Federation(
            folder,
            some_notes(folder / "notes", 12, NAMES),
            keepalive_s=KEEPALIVE_S,
            weights=False,
            env={name: clock.env for name, clock in clocks.items()},
            prefix=WITHOUT_OVERRIDE if os.geteuid() == 0 and shutil.which("setpriv") else (),
        ) as made:
            made.task, made.clocks = clinic_task(folder), clocks
            made.set_up()
            for hospital in made.hospitals.values():
                wait_for(lambda hospital=hospital: state_of(hospital) == "connected", 60.0, said=hospital.daemon.text)
            yield made


def state_of(hospital):
    file = hospital.home / "status.json"
    return json.loads(file.read_text())["state"] if file.exists() else ""


def everybody_is_connected(federation, names=NAMES):
    return all(state_of(federation.hospitals[name]) == "connected" for name in names)


def plan_short_run(federation, run, *options):
    federation.operator("run", "plan", federation.task, "--name", run, *THREE, *SHORT, *options)


def begin(federation, run, *options):
    plan_short_run(federation, run, *options)
    federation.operator("run", "start", run)


def ends(federation, run):
    return federation.wait(run, ENDED, RUN_S)["state"]


def entries(federation, name, run, kind):
    """(sum, attempt) of the entries of a kind that a hospital's ledger has of a run."""
    lines = (federation.hospitals[name].home / "ledger.jsonl").read_text().splitlines()
    return {
        (entry["query"], entry["attempt"])
        for entry in map(json.loads, lines)
        if entry["kind"] == kind and entry["run"] == run
    }


def check_books(federation, *runs):
    """What a hospital was charged for is what it sent; the rest was withdrawn, and every chain holds."""
    for name, hospital in federation.hospitals.items():
        hospital("ledger", "--verify")
        for run in runs:
            charged, sent, withdrawn = (
                entries(federation, name, run, kind) for kind in ("charge", "sent", "withdrawn")
            )
            assert charged - withdrawn == sent, (name, run)


def check_everybody_goes_on(federation, run):
    """A run of all three ends well, its receipts agree with the ledgers, and nobody was started again."""
    assert all(each.daemon.running for each in federation.hospitals.values())
    assert federation.coordinator.running
    begin(federation, run)
    assert ends(federation, run) == "finished", federation.status(run)
    assert all(entries(federation, name, run, "sent") for name in NAMES)
    check_books(federation, run)
    check_receipts(federation, run)


def check_receipts(federation, run):
    published = federation.folder / f"published {run}"
    federation.operator("export", run, "--out", published)
    verdict = federation.verdict(published)
    assert verdict["holds"], verdict["faults"]


def child_of(process):
    """The process that computes a daemon's vectors."""
    pid = process.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@contextlib.contextmanager
def stopped(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_daemon_paused_in_a_computation_drops_a_vector_no_longer_asked_for(federation):
    run, victim = "stopped in a vector", federation.hospitals[VICTIM]
    with stopped(child_of(victim.daemon)):  # so that the vector is under way for as long as the test likes
        begin(federation, run)
        wait_for(lambda: entries(federation, VICTIM, run, "charge"), RUN_S)
        with stopped(victim.daemon.process.pid):
            assert ends(federation, run) == "finished", federation.status(run)
            assert not entries(federation, VICTIM, run, "sent")
    wait_for(lambda: "a request is dropped" in victim.daemon.text(), RUN_S)
    check_everybody_goes_on(federation, f"after {run}")
    assert not entries(federation, VICTIM, run, "sent")
    check_books(federation, run)


def test_paused_coordinator_process_ends_no_run_and_no_daemon(federation):
    run, other = "stopped coordinator", "another stopped one"
    begin(federation, run)
    begin(federation, other)
    wait_for(lambda: entries(federation, VICTIM, run, "charge"), RUN_S)
    with stopped(federation.coordinator.process.pid):
        wait_for(lambda: not any(state_of(each) == "connected" for each in federation.hospitals.values()), RUN_S)
    assert [ends(federation, each) for each in (run, other)] == ["finished"] * 2
    check_everybody_goes_on(federation, f"after {run}")
    check_books(federation, run, other)


# What a program's machine lacks


@contextlib.contextmanager
def short_of_descriptors(program, _folder):
    pid = program.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # What the program has closed meanwhile it could open again below a limit that is higher.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(("in", "out", "err")), limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def on_disk(fault):
    def lacking(_program, folder):
        if not os.path.ismount(folder):
            pytest.skip("no file system may be mounted here")
        return fault(folder)

    return lacking


LACKS = {
    "descriptors": (short_of_descriptors, "Too many open files"),
    "room": (on_disk(without_room), "No space left on device"),
    "inodes": (on_disk(without_inodes), "no free inodes"),
}


@pytest.mark.parametrize("thing", LACKS)
def test_status_names_a_resource_that_a_hospital_lacks_until_it_is_back(federation, thing):
    run, victim, (lacking, words) = f"a hospital lacks {thing}", federation.hospitals[VICTIM], LACKS[thing]
    others = [name for name in NAMES if name != VICTIM]
    party = PartyHome(victim.home)
    with lacking(victim.daemon, victim.home):
        begin(federation, run)
        begin(federation, f"beside {run}", *OTHERS, "--parties", ",".join(others))
        wait_for(lambda: any(words in step.problem for step in party.held_steps), RUN_S)
        said = victim("status", code=75)
        assert words in said
        assert str(victim.home) in said
        assert ends(federation, f"beside {run}") == "finished", federation.status(f"beside {run}")
        assert everybody_is_connected(federation, others)
        assert federation.status(run)["state"] not in ENDED
    assert ends(federation, run) == "finished", federation.status(run)
    wait_for(lambda: not party.held_steps, RUN_S)
    check_books(federation, run)
    check_everybody_goes_on(federation, f"after {run}")


@pytest.mark.parametrize("thing", LACKS)
def test_status_names_a_resource_the_coordinator_lacks_until_it_is_back(federation, thing):
    run, other, (lacking, words) = f"the coordinator lacks {thing}", f"beside {thing}", LACKS[thing]
    home = CoordinatorHome(federation.home)
    begin(federation, run)
    begin(federation, other)
    wait_for(lambda: entries(federation, VICTIM, run, "charge"), RUN_S)
    with lacking(federation.coordinator, federation.home):
        wait_for(lambda: any(words in step.problem for step in home.held_steps), RUN_S)
        said = federation.operator("coordinator", "show")
        assert words in said
        assert str(federation.home.parent) in said, "a file of the coordinator or of the cache beside it"
        assert federation.coordinator.running
        assert everybody_is_connected(federation)
    assert [ends(federation, each) for each in (run, other)] == ["finished"] * 2
    wait_for(lambda: not home.held_steps, RUN_S)
    check_books(federation, run, other)
    check_everybody_goes_on(federation, f"after {run}")


# Files of one run


def truncate(file):
    os.truncate(file, file.stat().st_size // 2)


def give_away(file):
    """The file of another account, which this one may not read."""
    os.chmod(file, 0)
    if os.geteuid() == 0:
        os.chown(file, STRANGER, STRANGER)


@pytest.mark.parametrize("damage", [truncate, give_away])
@pytest.mark.parametrize("name", ["status.json", "plan.json", "requested.json"])
def test_damaged_file_of_a_run_holds_up_that_run_and_no_other(federation, name, damage):
    run = f"{damage.__name__} {name}"
    home = CoordinatorHome(federation.home)
    begin(federation, f"beside {run}")
    with stopped(federation.coordinator.process.pid):  # so that it reads the file when that is damaged
        begin(federation, run)
        file = federation.home / "runs" / run / name
        whole = file.with_name("whole")
        shutil.copy2(file, whole)
        damage(file)
    wait_for(lambda: any(str(file) in step.problem for step in home.held_steps), RUN_S)
    assert str(file) in federation.operator("coordinator", "show")
    assert ends(federation, f"beside {run}") == "finished"
    assert everybody_is_connected(federation)
    os.replace(whole, file)
    assert ends(federation, run) == "finished", federation.status(run)
    wait_for(lambda: not home.held_steps, RUN_S)
    check_books(federation, run, f"beside {run}")
    check_everybody_goes_on(federation, f"after {run}")


# Clocks


def stop_until_away(hospital):
    """Its stream is given up meanwhile, and it connects anew."""
    with stopped(hospital.daemon.process.pid):
        time.sleep(4 * KEEPALIVE_S)


def clock_offset_s(hospital):
    return json.loads((hospital.home / "status.json").read_text())["clock_offset_s"]


@pytest.mark.parametrize("days", [DAYS_AHEAD, -2])
def test_hospital_with_a_wrong_clock_goes_on_once_the_clock_is_right(federation, days):
    run, victim = f"a hospital {days} days ahead", federation.hospitals[CLOCKED]
    others = [name for name in NAMES if name != CLOCKED]
    with federation.clocks[CLOCKED].ahead(days):
        stop_until_away(victim)
        wait_for(lambda: abs(clock_offset_s(victim)) > 86400, RUN_S, said=victim.daemon.text)
        # The command reads this machine's clock, the daemon the other one: one that is behind looks silent.
        assert "this machine's clock was" in victim("status", code=0 if days > 0 else 6)
        begin(federation, run)
        begin(federation, f"beside {run}", *OTHERS, "--parties", ",".join(others))
        assert ends(federation, f"beside {run}") == "finished"
        assert everybody_is_connected(federation, others)
    stop_until_away(victim)
    wait_for(lambda: abs(clock_offset_s(victim)) < 60, RUN_S, said=victim.daemon.text)
    assert ends(federation, run) == "finished", federation.status(run)
    check_books(federation, run)
    check_everybody_goes_on(federation, f"after {run}")


def test_a_coordinator_whose_clock_was_ahead_lets_everybody_in_again(federation):
    run = "the coordinator ahead"
    begin(federation, run)
    daemons = [hospital.daemon.process.pid for hospital in federation.hospitals.values()]
    with federation.clocks["coordinator"].ahead(DAYS_AHEAD), stopped(*daemons):
        wait_for(lambda: "the server's certificate was renewed" in federation.coordinator.text(), REVIEW_S)
    wait_for(lambda: "issued while the clock was ahead" in federation.coordinator.text(), REVIEW_S)
    wait_for(lambda: everybody_is_connected(federation), REVIEW_S)
    assert ends(federation, run) == "finished", federation.status(run)
    check_books(federation, run)
    check_everybody_goes_on(federation, f"after {run}")
