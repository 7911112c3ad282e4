"""kill -9 of anybody at any time, slow and vanished parties, a full disk: the right sum or a clean, explained stop."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time

import pytest

from tests.doubles.hospitals import exported, simulated
from tests.doubles.loops import wait_for
from undersong_common.program.machine import held_steps
from undersong_server.coordinator.home import CoordinatorHome

pytestmark = pytest.mark.heavy

CHANGES = ["--set", "method.samples=36", "--set", "method.rounds=3"]
SEED = 7


def start_run(federation, run, *options):
    federation.operator("run", "plan", federation.task, "--name", run, *CHANGES, *options)
    federation.operator("run", "start", run)


def read_manifest(federation, run, folder):
    """The verified manifest of a finished run; what was charged is what was sent."""
    exported(federation, run, folder)
    return json.loads((folder / "manifest.json").read_text())


def charges(federation, run):
    """(sum, attempt) of every charge at each hospital."""
    found = {}
    for name, each in federation.hospitals.items():
        entries = [json.loads(line) for line in (each.home / "ledger.jsonl").read_text().splitlines()]
        found[name] = [
            (entry["query"], entry["attempt"]) for entry in entries if entry["kind"] == "charge" and entry["run"] == run
        ]
    return found


def check_killed_run(federation, seed, tmp_path):
    """One run, in which the coordinator, a party, or both are killed at random moments, and started again."""
    random_ = random.Random(seed)
    run = f"killed {seed}"
    victims = random_.choice([["coordinator"], ["party"], ["coordinator", "party"], ["party", "party"]])
    start_run(federation, run)
    for victim in victims:
        time.sleep(random_.uniform(0.0, 4.0))
        if victim == "coordinator":
            federation.coordinator.kill()
            time.sleep(random_.uniform(0.0, 0.5))
            federation.coordinator.start()
        else:
            each = federation.hospitals[random_.choice(sorted(federation.hospitals))]
            each.daemon.kill()
            time.sleep(random_.uniform(0.0, 0.5))
            each.daemon.start()
    status = federation.wait(run, ["finished", "failed"], 200.0)
    if status["state"] == "failed":
        assert status["error"]["problem"]
        assert status["error"]["exit_code"] != 70, status
        return
    value = read_manifest(federation, run, tmp_path / "published")
    undisturbed = all(
        facts["attempt"] == 0 and len(facts["survivors"]) == len(federation.hospitals)
        for facts in value["sums"].values()
    )
    if undisturbed:
        assert all(
            sorted(found) == sorted({(name, 0) for name in value["sums"]})
            for found in charges(federation, run).values()
        )
        alone = simulated(federation.task, tmp_path / "simulated", federation, CHANGES, SEED, run)
        assert json.loads((alone / "manifest.json").read_text())["manifest"] == value["manifest"]
        assert (alone / "synthetic.jsonl").read_bytes() == (tmp_path / "published" / "synthetic.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_run_gives_the_right_sum_after_a_kill_at_a_random_moment(unattended, seed, tmp_path):
    check_killed_run(unattended, seed, tmp_path)


@pytest.mark.slow
def test_party_that_never_returns_is_waited_for_and_then_left_out(unattended, tmp_path):
    run = "left"
    each = unattended.hospitals["stella-maris"]
    # it signs the manifest and then is gone
    longer = ["--set", "method.samples=48", "--set", "method.rounds=4"]
    unattended.operator("run", "plan", unattended.task, "--name", run, *longer, "--patience", 2)
    unattended.operator("run", "start", run)
    wait_for(lambda: f"answered agree with agreed (run '{run}')" in each.daemon.text(), 90.0)
    each.daemon.kill()
    words = []

    def finished():
        status = status_of(unattended, run)
        if status.get("waiting"):
            words.append(status["waiting"]["words"])
        return status["state"] in ("finished", "failed")

    try:
        wait_for(finished, 120.0)
    finally:
        each.daemon.start()
    value = read_manifest(unattended, run, tmp_path / "published")
    survivors = [facts["survivors"] for facts in value["sums"].values()]
    assert "stella-maris" not in survivors[-1]
    assert len(survivors[-1]) == 4
    said = [line for line in words if "stella-maris" in line and "quorum is 4" in line and "goes on" in line]
    assert said, words


@pytest.mark.slow
def test_run_waits_for_a_slow_party(unattended, tmp_path):
    run = "slow"
    each = unattended.hospitals["childrens"]
    wait_for(lambda: connected(unattended, "childrens"), 60.0)
    each.daemon.process.send_signal(signal.SIGSTOP)
    try:
        start_run(unattended, run)
        wait_for(lambda: "childrens" in status_of(unattended, run).get("waiting", {}).get("words", ""), 60.0)
    finally:
        each.daemon.process.send_signal(signal.SIGCONT)
    unattended.wait(run, ["finished"], 120.0)
    value = read_manifest(unattended, run, tmp_path / "published")
    assert all("childrens" in facts["survivors"] for facts in value["sums"].values())


@pytest.mark.slow
def test_run_waits_after_pause_continues_after_resume_ends_after_stop(unattended, tmp_path):
    start_run(unattended, "held")
    unattended.operator("run", "pause", "held")
    unattended.wait("held", ["paused"], 30.0)
    unattended.coordinator.kill()
    unattended.coordinator.start()
    time.sleep(1.0)
    assert status_of(unattended, "held")["state"] == "paused"
    unattended.operator("run", "resume", "held")
    told = unattended.wait("held", ["finished"], 120.0)["message"]
    read_manifest(unattended, "held", tmp_path / "published")
    texts = len((tmp_path / "published" / "synthetic.jsonl").read_text(encoding="utf-8").splitlines())
    assert told.startswith(f"{texts} texts, ")
    start_run(unattended, "ended")
    unattended.operator("run", "stop", "ended")
    unattended.wait("ended", ["stopped"], 30.0)
    unattended.operator("run", "resume", "ended", code=2)
    unattended.operator("run", "watch", "ended", code=3)


@pytest.mark.slow
def test_a_full_disk_holds_the_run_up_until_there_is_room(unattended, tmp_path):
    run = "full"
    unattended.coordinator.kill()
    unattended.operator("run", "plan", unattended.task, "--name", run, *CHANGES)
    unattended.operator("run", "start", run)
    process = unattended.coordinator
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files of the coordinator may not grow beyond this: the journal's writes fail as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        process.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    coordinator_home = CoordinatorHome(unattended.home)
    wait_for(lambda: held_steps(coordinator_home.held_steps_file), 120.0)
    (step, *_) = held_steps(coordinator_home.held_steps_file)
    assert os.strerror(errno.EFBIG) in step.problem, step
    assert step.remedy
    process.kill()
    process.start()
    unattended.wait(run, ["finished"], 120.0)
    read_manifest(unattended, run, tmp_path / "published")


def status_of(federation, run):
    return json.loads((federation.home / "runs" / run / "status.json").read_text())


def connected(federation, name):
    parties = json.loads(federation.operator("parties", "--json"))
    return any(party["name"] == name and party["last_seen"] for party in parties)
