"""Flower's own programs on the loopback interface, and what one ClientApp process loads."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.doubles.flower import Flower
from tests.doubles.hospitals import (
    HOSPITALS,
    Federation,
    clinic_task,
    exported,
    operator,
    simulated,
    some_notes,
)
from tests.doubles.processes import ROOT, environment
from undersong_client.link.flower_supernode import pinned, run
from undersong_common.errors import ConfigurationError

pytestmark = pytest.mark.heavy

SEED = 7
CHANGES = ["--set", "method.samples=60", "--set", "method.rounds=3"]
THREE = {"federation.parties": 3, "federation.colluders": 0, "method.samples": 60, "method.rounds": 3}


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    """Three of the clinic's hospitals, enrolled; no daemon and no native coordinator runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UNDERSONG_CACHE", str(tmp_path / "cache"))
    federation = Federation(tmp_path, some_notes(tmp_path / "notes", 12, HOSPITALS[:3]), noise_seed=SEED)
    address = f"localhost:{federation.port}"
    federation.operator(
        "coordinator",
        "init",
        "--address",
        address,
        "--metrics",
        "",
        "--operator",
        "Example Hospital",
        "--contact",
        "01 234 56",
    )
    for each in federation.hospitals.values():
        federation.enrol(each)
    task = clinic_task(tmp_path).read_text()
    for key, value in THREE.items():
        name = key.partition(".")[2]
        task = "\n".join(f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in task.splitlines())
    federation.task = tmp_path / "three.toml"
    federation.task.write_text(task)
    return federation


def environment_of(folder):
    return {"XDG_STATE_HOME": str(folder / "state"), "UNDERSONG_CACHE": str(folder / "cache")}


def await_end(federation, flower, run, timeout_s):
    path = federation.home / "runs" / run / "status.json"
    end = time.monotonic() + timeout_s
    while True:
        status = json.loads(path.read_text()) if path.exists() else {"state": "not begun"}
        if status["state"] in ("finished", "failed", "stopped"):
            assert status["state"] == "finished", f"{status}\n{flower.text()}"
            return
        assert time.monotonic() < end, f"{status}\n{flower.text()}"
        time.sleep(0.3)


def check(federation, folder, run):
    """Exported, verified, and byte for byte what the simulation in one process writes."""
    assert exported(federation, run, folder / "published")["parties"] == list(HOSPITALS[:3])
    alone = simulated(federation.task, folder / "simulated", federation, [], SEED, run)
    for name in ("synthetic.jsonl", "synthetic.parquet"):
        assert (folder / "published" / name).read_bytes() == (alone / name).read_bytes()
    for each in federation.hospitals.values():
        kinds = {entry["kind"] for entry in each.outbox()}
        assert {"introduction", "signature", "agreed", "sum_reply", "receipt"} <= kinds


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_superlink_and_three_supernodes_run_the_clinic_and_export(hospitals, tmp_path):
    folders = {name: each.home for name, each in hospitals.hospitals.items()}
    with Flower(tmp_path / "flower", folders, environment_of(tmp_path)) as flower:
        flower.run(
            {
                "coordinator": str(hospitals.home),
                "task-file": str(hospitals.task),
                "run": "spring",
                "out": str(tmp_path / "out"),
                "insecure-noise-seed": SEED,
            }
        )
        await_end(hospitals, flower, "spring", 1800.0)
        notes = [json.loads(line)["text"] for each in hospitals.hospitals.values() for line in each.notes.open()]
        assert not any(note in flower.text() for note in notes)
    check(hospitals, tmp_path, "spring")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_flwr_run_works_on_a_simulating_superlink(hospitals, tmp_path):
    with Flower(tmp_path / "flower", {}, environment_of(tmp_path), simulation=True) as flower:
        flower.run(
            {
                "coordinator": str(hospitals.home),
                "task-file": str(hospitals.task),
                "run": "spring",
                "simulated-parties": str(tmp_path),
                "insecure-noise-seed": SEED,
            },
            "--federation-config",
            "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2",
        )
        await_end(hospitals, flower, "spring", 1200.0)
    check(hospitals, tmp_path, "spring")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_simulation_engine_writes_what_one_process_writes(hospitals, tmp_path):
    notes = json.dumps([str(each.notes) for each in hospitals.hospitals.values()])
    arguments = ["--set", f"data.path={notes}", "--insecure-noise-seed", SEED]
    operator("simulate", hospitals.task, "--out", tmp_path / "flower", "--engine", "flower", *arguments)
    operator("simulate", hospitals.task, "--out", tmp_path / "alone", *arguments)
    names = sorted(path.name for path in (tmp_path / "alone").iterdir() if path.is_file())
    assert "manifest.json" in names
    for name in names:
        assert (tmp_path / "flower" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


ANSWER = """
import json, sys
from pathlib import Path
from undersong_client.flower_app import answers
from undersong_client.home import PartyHome
requests = [bytes.fromhex(line) for line in sys.stdin.read().split()]
replies = answers(PartyHome(Path(sys.argv[1])), requests)
print("ANSWER", json.dumps({"replies": [reply.hex() for reply in replies], "modules": sorted(sys.modules)}))
"""
HEAVY = {"torch", "sentence_transformers", "transformers", "sklearn", "openai", "ray"}


@pytest.mark.slow
def test_flower_process_imports_only_what_its_one_message_needs(hospitals, tmp_path):
    """A whole private sum; each message to the first hospital starts a process, as Flower does. The data file lies
    elsewhere while nothing of it is needed."""
    from undersong_client.flower_app import answers
    from undersong_client.home import PartyHome
    from undersong_protocol.agreement.manifest import Manifest
    from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
    from undersong_protocol.secagg.parameters import Member, defaults
    from undersong_protocol.statistics import LabelHistogram
    from undersong_server.database.journal import Journal
    from undersong_server.federation import sums
    from undersong_server.federation.agreement import introduce
    from undersong_server.federation.exchange import PublicBlocks
    from undersong_server.progress import Silent

    names = sorted(hospitals.hospitals)
    homes = {name: hospitals.hospitals[name].home for name in names}
    watched, data = names[0], hospitals.hospitals[names[0]].notes
    away = data.with_suffix(".away")
    seen = []

    def in_a_process(batch):
        needed = any(word in kinds(batch) for word in ("introduce", "propose", "mask", "close_run"))
        if not needed:
            data.rename(away)
        try:
            done = subprocess.run(
                [sys.executable, "-c", ANSWER, str(homes[watched])],
                input="\n".join(request.hex() for request in batch),
                env=environment(**environment_of(tmp_path)),
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
                cwd=ROOT,
            )
        finally:
            if not needed:
                away.rename(data)
        found = json.loads(done.stdout.rpartition("ANSWER ")[2])
        seen.append((kinds(batch), set(found["modules"])))
        return [bytes.fromhex(reply) for reply in found["replies"]]

    class Processes:
        def exchange(self, requests, *, timeout_s):
            found = self.exchange_batches({name: [each] for name, each in requests.items()}, timeout_s=timeout_s)
            return {name: replies[0] for name, replies in found.items()}

        def exchange_batches(self, requests, *, timeout_s):
            return {
                name: in_a_process(batch) if name == watched else answers(PartyHome(homes[name]), batch)
                for name, batch in requests.items()
            }

    labels = ("cardiac", "respiratory", "abdominal", "injury", "infection", "neurological")
    transport = Processes()
    found = introduce(transport, names)
    threshold, dropouts, colluders = defaults(3)
    manifest = Manifest(
        run="a run",
        task={"name": "test", "description": "a note", "labels": list(labels)},
        method="test",
        embedder=found[watched].embedder.hex(),
        roster=tuple(Member(name, found[name].identity) for name in names),
        plan=plan_sums(
            [SumRequest("labels", LabelHistogram(labels=len(labels)))],
            Privacy(4.0, 1e-4),
            Quorum(3, threshold, dropouts, colluders),
        ),
    )
    journal = Journal(tmp_path / "journal.sqlite")
    federation = sums.Federation(transport, manifest, journal, Silent(), blocks=PublicBlocks(journal))
    federation.agree()
    assert federation.private_sum("labels", []).survivors == tuple(names)
    assert set(federation.receipts()) == set(names)
    assert [kind for kind, _ in seen] == [
        ["introduce"],
        ["propose"],
        ["agree", "prepare_sum"],
        ["share"],
        ["open_sum", "mask"],
        ["consistency"],
        ["unmask"],
        ["close_run"],
    ]
    for kind, modules in seen:
        assert not modules & HEAVY, f"{kind} loads {sorted(modules & HEAVY)}"
        if kind[-1] in ("prepare_sum", "share", "consistency", "unmask"):
            assert "dp_accounting" not in modules


def kinds(batch):
    from undersong_protocol.wire.messages import federation_pb2, secagg_pb2

    found = []
    for request in batch:
        message = federation_pb2.Request.FromString(request)
        kind = message.WhichOneof("body")
        if kind == "sum_step":
            kind = secagg_pb2.Request.FromString(message.sum_step.payload).WhichOneof("stage")
        found.append(kind)
    return found


def test_supernode_runs_only_the_bundle_whose_hash_is_pinned():
    class Refused(Exception):
        pass

    bundles = {"good": b"the bundle", "bad": b"another one"}
    get = pinned(
        lambda name, _run: SimpleNamespace(content=bundles[name]),
        frozenset([hashlib.sha256(b"the bundle").hexdigest()]),
        Refused,
    )
    assert get("good", 1).content == b"the bundle"
    with pytest.raises(Refused):
        get("bad", 1)
    with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
        run(["6d5c"], [])
