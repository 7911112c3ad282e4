"""Two machines' coordinators over one PostgreSQL: whoever is stopped at any stage, the other one finishes the run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time

import pytest

from tests.doubles.alliance import Hospital
from tests.doubles.hospitals import CONTACT, OPERATOR, enrol, operator, simulated
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.postgres import PostgresServer
from tests.doubles.processes import Process, free_port
from tests.doubles.tasks import make_task
from undersong_client.link.connection import Connection
from undersong_common.errors import MachineFault
from undersong_common.models.embedding import Embedder

pytestmark = pytest.mark.slow

SEED = 7
STOPPED_S = 30.0
TAKEN_OVER_S = 15.0  # ten seconds on a machine that runs nothing else
NAMES = tuple(f"site-{number}" for number in range(4))


class Machine:
    """One of the two coordinators: a folder and a process that serves or stands by."""

    def __init__(self, folder, port):
        self.folder, self.home, self.port = folder, folder / "coordinator", port
        folder.mkdir()
        self.process = Process(
            "tests.doubles.stopping",
            ["coordinator", "serve", "--standby", "--keepalive", 1, "--home", self.home],
            folder / "log",
            {"UNDERSONG_CACHE": str(folder / "cache")},
            weights=False,
        )

    def operator(self, *arguments, code=0):
        return operator(*arguments, "--home", self.home, code=code)

    @property
    def listens(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        return False

    def stand_by(self):
        """Starts the process and waits until it waits for the other machine's."""
        before = self.text().count("stands by")
        self.process.start()
        wait_for(lambda: self.text().count("stands by") > before, 60.0)

    @property
    def is_stopped(self):
        pid = self.process.process.pid
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def status(self, run):
        path = self.home / "runs" / run / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def text(self):
        return self.process.text()


class Two:
    """Two machines, and four hospitals in this process; ends with its context."""

    def __init__(self, folder, storage, *settings):
        self.folder = folder
        self.one, self.two = (Machine(folder / name, free_port()) for name in ("one", "two"))
        self.task = make_task(folder / "task", parties=len(NAMES), records=10)
        self.settings = settings
        addresses = [part for each in (self.one, self.two) for part in ("--address", f"localhost:{each.port}")]
        bind = ("--bind", f"127.0.0.1:{self.one.port}", "--metrics", "")
        self.one.operator(
            "coordinator",
            "init",
            *addresses,
            *bind,
            "--storage",
            storage,
            "--operator",
            OPERATOR,
            "--contact",
            CONTACT,
        )
        shutil.copytree(self.one.home / "authority", self.two.home / "authority")
        settings = json.loads((self.one.home / "coordinator.json").read_text())
        settings["bind"] = f"127.0.0.1:{self.two.port}"
        settings["storage"] = storage
        (self.two.home / "coordinator.json").write_text(json.dumps(settings))
        self.hospitals = {name: Hospital(name, folder, 0.0) for name in NAMES}
        self.coordinator = self.one  # whose log is searched for notes

    def __enter__(self):
        self.fingerprint = json.loads(self.one.operator("coordinator", "show", "--json"))["fingerprint"]
        for name, each in self.hospitals.items():
            each.notes = self.folder / "task" / "private" / f"{name}.jsonl"
            budget = ("budget", "set", "--epsilon", 500, "--delta", "1e-3", "--per-run", 5)
            policy = ("policy", "set", "--question", "all", "--approval", "standing", "--require-post-quantum", "never")
            seed = ("--insecure-noise-seed", SEED)
            enrol(self.folder, self.one.operator, each, self.fingerprint, budget, policy, options=seed)
            each("data", "add", each.notes, "--label-field", "label", "--user-field", "user")
        self.one.process.start()
        wait_for(lambda: self.one.listens, 60.0)
        self.two.stand_by()
        for each in self.hospitals.values():
            each.start()
        return self

    def __exit__(self, *_):
        for machine in (self.one, self.two):
            if machine.process.running:
                machine.process.process.send_signal(signal.SIGCONT)
                machine.process.end()
        for each in self.hospitals.values():
            each.stop()

    def start(self, machine, run, code=0):
        machine.operator("run", "plan", self.task, "--name", run, "--patience", 20, *self.settings)
        machine.operator("run", "start", run)

    def check(self, machine, run, folder):
        """The published run is the one that nothing disturbed, and each vector was charged once."""
        machine.operator("export", run, "--out", folder / "published")
        verdict = json.loads(operator("verify", folder / "published", "--fingerprint", self.fingerprint, "--json"))
        assert verdict["holds"], verdict["faults"]
        value = json.loads((folder / "published" / "manifest.json").read_text())
        for each in self.hospitals.values():
            each("ledger", "--verify")
            found = [(query, attempt) for of, query, attempt in each.charges if of == run]
            assert sorted(found) == sorted((name, facts["attempt"]) for name, facts in value["sums"].items())
        assert all(facts["attempt"] == 0 and len(facts["survivors"]) == 4 for facts in value["sums"].values())
        alone = simulated(self.task, folder / "simulated", self, self.settings, SEED, run)
        assert json.loads((alone / "manifest.json").read_text())["manifest"] == value["manifest"]
        assert (alone / "synthetic.jsonl").read_bytes() == (folder / "published" / "synthetic.jsonl").read_bytes()


@pytest.fixture
def impatient_standby(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    monkeypatch.setattr(Connection.wait_welcome, "__defaults__", (lambda: False, 2.0))


STAGES = {
    "classical": ["before manifest/signatures", "after /stage/0", "before /stage/3", "after /values"],
    "hybrid": ["before manifest", "before /stage/0", "after /stage/2", "before /values"],
}


@pytest.mark.parametrize("masks", sorted(STAGES))
def test_standby_takes_over_a_run_if_the_coordinator_stops_for_30_seconds(impatient_standby, tmp_path, masks):
    settings = ["--set", f"federation.post_quantum={'true' if masks == 'hybrid' else 'false'}"]
    with PostgresServer() as server, Two(tmp_path, server.database(), *settings) as federation:
        holder, standby = federation.one, federation.two
        for number, stage in enumerate(STAGES[masks]):
            run = f"stopped {number}"
            (holder.folder / "stop-at").write_text(stage)
            federation.start(holder, run)
            wait_for(lambda of=holder: of.is_stopped, 60.0)
            since = time.monotonic()
            wait_for(lambda of=standby: of.listens, 30.0)
            took = time.monotonic() - since
            assert took < TAKEN_OVER_S, f"{stage}: {took:.1f} s\n{standby.text()}"
            wait_for(lambda of=standby, name=run: of.status(name).get("state") in ("finished", "failed"), 120.0)
            time.sleep(max(0.0, STOPPED_S - (time.monotonic() - since)))
            holder.process.process.send_signal(signal.SIGCONT)
            assert holder.process.process.wait(30) == MachineFault.exit_code
            assert "taken over this coordinator" in holder.text()
            (tmp_path / str(number)).mkdir()
            federation.check(standby, run, tmp_path / str(number))
            holder.stand_by()
            holder, standby = standby, holder
            print(f"{masks}, {stage}: taken over in {took:.1f} s")
