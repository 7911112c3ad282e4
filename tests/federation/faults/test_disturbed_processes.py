"""Real processes that are stopped for a while: what others depend on goes on, and the books agree."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.doubles.hospitals import Federation, clinic_task, some_notes
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder
from undersong_common.models.embedding import Embedder

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

NAMES = ("childrens", "harbour-general", "heart-institute")
VICTIM = "childrens"
RUN_S = 90.0  # until a run has ended, on a busy machine
KEEPALIVE_S = 1.0  # a stream that is silent for three of them is given up
SHORT = ("--set", "method.samples=24", "--set", "method.rounds=2", "--patience", 6)
THREE = ("--set", "federation.parties=3", "--set", "federation.colluders=0")
ENDED = ("finished", "failed")


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disturbed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setenv("UNDERSONG_CACHE", str(folder / "cache"))
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())  # as the processes do
        notes = some_notes(folder / "notes", 12, NAMES)
        with Federation(folder, notes, keepalive_s=KEEPALIVE_S, weights=False) as made:
            made.task = clinic_task(folder)
            made.set_up()
            for hospital in made.hospitals.values():
                wait_for(lambda hospital=hospital: state_of(hospital) == "connected", 60.0, said=hospital.daemon.text)
            yield made


def state_of(hospital):
    file = hospital.home / "status.json"
    return json.loads(file.read_text())["state"] if file.exists() else ""


def begin(federation, run, *options):
    federation.operator("run", "plan", federation.task, "--name", run, *THREE, *SHORT, *options)
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
    """A run of all three ends well, and nobody was started again."""
    assert all(each.daemon.running for each in federation.hospitals.values())
    assert federation.coordinator.running
    begin(federation, run)
    assert ends(federation, run) == "finished", federation.status(run)
    assert all(entries(federation, name, run, "sent") for name in NAMES)
    check_books(federation, run)


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


def test_a_daemon_stopped_while_it_computes_drops_what_nobody_asks_for(federation):
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
