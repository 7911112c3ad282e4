"""One fault is one fault: it holds up one run or one host, is told there, and passes without a restart.

A served coordinator and four daemons run in this process over real gRPC. A fault is planted at the one place where the
system would raise it, for one run or one hospital; another run is under way and ends.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles.pace import slow_after
from undersong_client.home import SETTINGS, PartyHome
from undersong_client.storage.outbox import Outbox
from undersong_common.program.machine import held_steps
from undersong_server.runs.folder import RunFolder

pytestmark = pytest.mark.heavy

CONTENTS = {
    "empty": b"",
    "truncated": b'{"name": "faul',
    "NUL-filled": bytes(512),
    "other keys": b"{}",
    "no JSON": b"\xff\xfe",
    "a list": b"[]",
}


def lacking(number, file):
    return OSError(number, os.strerror(number), str(file))


def check_the_others(alliance, run):
    """Another run begins and ends while the fault lasts, and everybody stays connected."""
    alliance.start(run)
    alliance.watch(run)
    assert sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals)


def check_books(alliance, *runs):
    """Each sum of these runs was charged once at each hospital, and every ledger's chain holds."""
    for hospital in alliance.hospitals.values():
        charges = [charge for charge in hospital.charges if charge[0] in runs]
        assert len(charges) == len(set(charges))
        assert {charge[0] for charge in charges} == set(runs)
        hospital("ledger", "--verify")


def list_held_steps(alliance):
    return [f"{step['step']} {step['problem']}" for step in alliance.coordinator.health()["held_up"]]


@contextmanager
def foreign(file, content):
    """Puts other bytes, or with None a folder, in a file's place; puts the file back at the end."""
    kept = file.with_name(f".{file.name}.kept")
    os.rename(file, kept)
    if content is None:
        file.mkdir(mode=0o700)
    else:
        file.write_bytes(content)
        file.chmod(kept.stat().st_mode)
    try:
        yield
    finally:
        if content is None:
            shutil.rmtree(file)
        os.replace(kept, file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    slow_after(
        [
            ("requested.json", "a folder"),
            *(("requested.json", content) for content in CONTENTS),
            *(("plan.json", content) for content in ("a folder", *CONTENTS)),
        ],
        1,
    ),
)
def test_run_with_an_unreadable_file_waits_and_other_runs_go_on(alliance, name, content):
    run, other = f"{name} {content}", f"beside {name} {content}"
    alliance.operator("run", "plan", alliance.task, "--name", run)
    file = alliance.home / "runs" / run / name
    alliance.start(other)
    RunFolder(alliance.home / "runs" / run).request("run")
    with foreign(file, CONTENTS.get(content)):
        alliance.until(lambda: any(run in words and name in words for words in list_held_steps(alliance)))
        alliance.watch(other)
        assert sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals)
        assert alliance.coordinator.health()["status"] == "ok"  # one run's fault is no fault of the machine
    alliance.watch(run)
    assert not any(run in words for words in list_held_steps(alliance))
    check_books(alliance, run, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", slow_after([errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENOMEM], 1)
)
def test_run_waits_for_a_resource_that_a_hospital_lacks(alliance, number, monkeypatch):
    run = f"hospital {errno.errorcode[number]}"
    hospital = alliance.hospitals["beta"]
    party = PartyHome(hospital.home)
    record = Outbox.record

    def failing(outbox, *arguments, **facts):
        if outbox._home.path == hospital.home and facts.get("run") == run:
            raise lacking(number, party.journal)
        return record(outbox, *arguments, **facts)

    with monkeypatch.context() as planted:
        planted.setattr(Outbox, "record", failing)
        alliance.start(run)
        alliance.until(lambda: held_steps(party.held_steps_file))
        (step,) = held_steps(party.held_steps_file)
        assert os.strerror(number) in step.problem
        assert str(party.journal) in step.problem
        assert "held up since" in hospital("status", code=75)
        assert alliance.shown(run)["status"]["state"] not in ("failed", "finished")
        assert sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals)
    alliance.watch(run)
    alliance.until(lambda: not held_steps(party.held_steps_file))
    check_books(alliance, run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.ENFILE])
def test_run_waits_for_a_resource_that_the_coordinator_lacks(alliance, number, monkeypatch):
    run = f"coordinator {errno.errorcode[number]}"
    write = RunFolder.write_status

    def failing(folder, *arguments, **facts):
        if folder.name == run:
            raise lacking(number, folder.path / "status.json")
        return write(folder, *arguments, **facts)

    alliance.operator("run", "plan", alliance.task, "--name", run)
    with monkeypatch.context() as planted:
        planted.setattr(RunFolder, "write_status", failing)
        RunFolder(alliance.home / "runs" / run).request("run")
        alliance.until(
            lambda: any(run in words and os.strerror(number) in words for words in list_held_steps(alliance))
        )
        assert any("status.json" in words for words in list_held_steps(alliance))
        assert alliance.coordinator.health()["status"] == "held up"
        check_the_others(alliance, f"other {run}")
    alliance.watch(run)
    check_books(alliance, run, f"other {run}")


@pytest.mark.slow
def test_run_that_is_retried_logs_its_preparation_once(alliance, monkeypatch):
    run, attempts, journal = "tried again", [], RunFolder.journal

    def failing(folder, *arguments):
        if folder.name != run:
            return journal(folder, *arguments)
        attempts.append(run)
        raise lacking(errno.ENOSPC, folder.journal_path)

    with monkeypatch.context() as planted:
        planted.setattr(RunFolder, "journal", failing)
        alliance.start(run)
        alliance.until(lambda: len(attempts) > 2)
    alliance.watch(run)
    assert sum("prepares the run" in line for line in RunFolder(alliance.home / "runs" / run).log()) == 1
    check_books(alliance, run)


# Files that a request needs, whose fault is no refusal: the run of all waits, and nobody else learns of a path here.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ledger.jsonl", "NUL-filled"),
        *(("ledger.jsonl", content) for content in ("a folder", *CONTENTS) if content != "NUL-filled"),
        *(("keys/identity.key", content) for content in ("a folder", *CONTENTS)),
        # Other keys are those of another version, which is said of the whole folder.
        *(("settings.json", content) for content in ("a folder", *CONTENTS) if content != "other keys"),
    ],
)
def test_damaged_party_file_delays_its_answers_and_refuses_none(alliance, name, content):
    run, hospital = f"{name.replace('/', ' ')} {content} in an answer", alliance.hospitals["delta"]
    others = ",".join(sorted({*alliance.hospitals} - {"delta"}))
    party = PartyHome(hospital.home)
    alliance.start(run, "--patience", 60)
    with foreign(hospital.home / name, CONTENTS.get(content)):
        alliance.until(lambda: any(Path(name).name in step.problem for step in held_steps(party.held_steps_file)))
        assert name in hospital("status", code=2 if name == SETTINGS else 75)  # without settings there is no party
        alliance.start(f"beside {run}", "--set", "federation.parties=3", "--parties", others)
        alliance.watch(f"beside {run}")
        shown = alliance.shown(run)["status"]
        assert shown["state"] not in ("failed", "finished")
        assert str(hospital.home) not in str(shown)
    alliance.watch(run)
    assert hospital.error is None
    alliance.until(lambda: not held_steps(party.held_steps_file))
    check_books(alliance, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    slow_after(
        [
            ("policy.json", "NUL-filled"),
            *(("policy.json", content) for content in ("a folder", *CONTENTS) if content != "NUL-filled"),
            *(("coordinator.json", content) for content in ("a folder", *CONTENTS)),
        ],
        1,
    ),
)
def test_unreadable_file_of_a_hospital_holds_up_that_hospital_alone(alliance, name, content):
    run, hospital = f"{name} {content} at a hospital", alliance.hospitals["gamma"]
    others = sorted({*alliance.hospitals} - {"gamma"})
    party = PartyHome(hospital.home)
    with foreign(hospital.home / name, CONTENTS.get(content)):
        alliance.until(lambda: any(name in step.problem for step in held_steps(party.held_steps_file)))
        alliance.until(lambda: sorted(alliance.coordinator.server.connected) == others)
        alliance.start(f"beside {run}", "--set", "federation.parties=3", "--parties", ",".join(others))
        alliance.watch(f"beside {run}")
    alliance.until(lambda: sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals))
    assert hospital.error is None
    alliance.start(run)
    alliance.watch(run)
    assert not held_steps(party.held_steps_file)
    check_books(alliance, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("registry.sqlite", "truncated"),
        *(
            (name, content)
            for name in (
                "coordinator.json",
                "registry.sqlite",
                "authority/ca.crt",
                "authority/ca.key",
                "authority/server.crt",
                "authority/server.key",
                "authority/signing.key",
                "held.json",
            )
            for content in ("NUL-filled", "a folder")
        ),
    ],
)
def test_damaged_file_of_the_coordinator_ends_no_run_and_no_connection(alliance, name, content):
    run = f"coordinator {name.replace('/', ' ')} {content}"
    alliance.start(run)
    with foreign(alliance.home / name, CONTENTS.get(content)):
        status = RunFolder(alliance.home / "runs" / run).status
        alliance.until(lambda: status().state == "finished", 60.0)
        assert sorted(alliance.coordinator.server.connected) == sorted(alliance.hospitals)
    alliance.watch(run)
    check_the_others(alliance, f"after {run}")
    check_books(alliance, run, f"after {run}")
