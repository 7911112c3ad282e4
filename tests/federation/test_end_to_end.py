"""A coordinator and five daemons as processes, from enrolment to a verified data set; equal to the simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doubles.hospitals import CLINIC, HOSPITALS, Federation, clinic_task, operator, some_notes

SEED = 7
REDUCED = ["--set", "method.samples=90", "--set", "method.rounds=3"]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def simulated(task: Path, folder: Path, notes: dict[str, Path], changes: list[str]) -> Path:
    """The same run with every party in one process."""
    paths = json.dumps([str(path) for path in notes.values()])
    operator(
        "simulate", task, "--out", folder, "--insecure-noise-seed", SEED,
        "--set", f"data.path={paths}", *changes,
    )  # fmt: skip
    return folder


def run_it(task: Path, federation: Federation, changes: list[str], published: Path, timeout_s: float) -> dict:
    planned = json.loads(federation.operator("run", "plan", task, "--insecure-noise-seed", SEED, *changes, "--json"))
    run = planned["run"]
    federation.operator("run", "start", run)
    waiting = federation.wait(run, ["waiting", "running"], 30.0)
    assert waiting["run"] == run
    for each in federation.hospitals.values():
        wait_for_request(each, timeout_s)
        preview = each("preview", run)
        assert "epsilon" in preview
        each("approve", run)
    federation.wait(run, ["finished"], timeout_s)
    federation.operator("export", run, "--out", published)
    return planned


def wait_for_request(each, timeout_s):
    import time

    end = time.monotonic() + timeout_s
    while not json.loads(each("requests", "--json"))["requests"]:
        assert time.monotonic() < end, each.daemon.text()[-3000:]
        assert each.daemon.running, each.daemon.text()[-3000:]
        time.sleep(0.2)


def check_all(
    federation: Federation, published: Path, changes: list[str], timeout_s: float, folder: Path, notes
) -> None:
    planned = run_it(task, federation, changes, published, timeout_s)
    verdict = json.loads(operator("verify", published, "--json"))
    assert verdict["holds"], verdict["faults"]
    assert verdict["parties"] == list(HOSPITALS)
    assert verdict["without_receipt"] == []
    assert verdict["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert not verdict["private"]  # the noise seed is insecure, and the data set says so
    alone = simulated(task, folder / "simulated", notes, changes)
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        assert (published / name).read_bytes() == (alone / name).read_bytes()
    ours, theirs = (json.loads((each / "manifest.json").read_text()) for each in (published, alone))
    assert ours["manifest"] == theirs["manifest"]
    for name, facts in theirs["sums"].items():
        assert {key: value for key, value in ours["sums"][name].items() if key != "evidence"} == {
            key: value for key, value in facts.items() if key != "evidence"
        }
    assert ours["manifest"]["run"] == planned["run"]
    # what left each hospital: replies to planned sums, and no note
    for each in federation.hospitals.values():
        texts = [json.loads(line)["text"] for line in each.notes.read_text(encoding="utf-8").splitlines()]
        written = each.daemon.text() + federation.coordinator.text()
        assert not any(text in written for text in texts)
        kinds = {entry["kind"] for entry in each.outbox()}
        assert {"introduction", "signature", "agreed", "sum_reply", "receipt"} <= kinds
        each("ledger", "--verify")


def test_five_hospitals_enrol_approve_run_export_and_verify_as_the_simulation_does(tmp_path):
    notes = some_notes(tmp_path / "notes", 24)
    with Federation(tmp_path, notes, noise_seed=SEED, approval="each") as federation:
        federation.set_up()
        check_all(clinic_task(tmp_path), federation, tmp_path / "published", REDUCED, 150.0, tmp_path, notes)


@pytest.mark.slow
def test_the_whole_clinic_equals_its_simulation(tmp_path):
    notes = some_notes(tmp_path / "notes", 1000)
    with Federation(tmp_path, notes, noise_seed=SEED, approval="each") as federation:
        federation.set_up()
        check_all(CLINIC / "task.toml", federation, tmp_path / "published", [], 900.0, tmp_path, notes)
