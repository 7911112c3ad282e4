"""A served coordinator and real daemons in one process: real gRPC and TLS, the programs' own commands, no weights."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.doubles.hospitals import Operated, enrol, operator_screen
from tests.doubles.loops import wait_for
from tests.doubles.party_home import HashedEmbedder, command
from tests.doubles.tasks import make_task
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import HospitalComputation
from undersong_client.home import PartyHome, read_json
from undersong_client.link.daemon import Backoff, Daemon
from undersong_common.errors import UndersongError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.service import Coordinator
from undersong_server.database.turn import take_turn
from undersong_server.methods import wasp

NAMES = ("alpha", "beta", "delta", "gamma")
FAST = Backoff(first_s=0.05, largest_s=0.2, refused_s=0.4)


def before_the_first_sum(monkeypatch: Any, act: Callable[[], object]) -> None:
    """Calls ``act`` in each run once everybody has agreed and before the method asks anything."""
    original = wasp.METHOD

    def run(options: Any, run_: Any) -> Any:
        act()
        return original.run(options, run_)

    monkeypatch.setattr(wasp, "METHOD", dataclasses.replace(original, run=run))


class Hospital:
    """One party; its daemon runs in a thread."""

    def __init__(self, name: str, folder: Path, offset_s: float) -> None:
        self.name = name
        self.home = folder / name
        self._marks = folder / "state" / "undersong" / "ledgers"
        self.offset_s = offset_s
        self.daemon: Daemon | None = None
        self.error: UndersongError | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, *arguments: object, code: int = 0) -> str:
        return command(*arguments, "--home", self.home, code=code)

    def start(self) -> None:
        home = PartyHome(self.home)
        embedder = HashedEmbedder()
        computation = HospitalComputation(home, embedder)
        assembled = assemble(
            home, checkpoints=self._marks, clock=self.clock, embedder=embedder, computation=computation
        )
        self.daemon = Daemon(home, assembled, backoff=FAST, use_proxy=False, clock=self.clock)
        self._thread = threading.Thread(target=self._run, args=(self.daemon,), daemon=True)
        self._thread.start()

    def clock(self) -> float:
        return time.time() + self.offset_s

    def _run(self, daemon: Daemon) -> None:
        try:
            with PartyHome(self.home).running():
                daemon.run()
        except UndersongError as error:
            self.error = error

    def stop(self) -> None:
        if self.daemon is not None and self._thread is not None:
            self.daemon.stop()
            self._thread.join(40.0)
            self.daemon = None

    @property
    def status(self) -> dict[str, Any]:
        return read_json(PartyHome(self.home).status)

    @property
    def charges(self) -> list[tuple[str, str, int]]:
        lines = (self.home / "ledger.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return [(each["run"], each["query"], each["attempt"]) for each in entries if each["kind"] == "charge"]


class Alliance(Operated):
    """Everybody enrolled, connected and approving by a standing policy; ends with its context.

    The caller replaces ``Embedder.load`` (see the fixture), because a coordinator loads its model by itself.

    Args:
        clocks: seconds by which each party's clock is wrong, by name.
    """

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, clocks: Mapping[str, float] | None = None) -> None:
        super().__init__(folder)
        self.task = make_task(folder / "task", parties=len(names), records=10)
        offsets = dict(clocks or {})
        self.hospitals = {name: Hospital(name, folder, offsets.get(name, 0.0)) for name in names}

    def __enter__(self) -> "Alliance":
        self.found()
        self.serve()
        private = sorted((self.folder / "task" / "private").glob("*.jsonl"))
        for each, notes in zip(self.hospitals.values(), private, strict=True):
            self._enrol(each, notes)
        for each in self.hospitals.values():
            each.start()
        self.until(lambda: sorted(self.coordinator.server.connected) == sorted(self.hospitals))
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.hospitals.values():
            each.stop()
        self.halt()

    def serve(self) -> None:
        """Serves the coordinator that is in ``home``."""
        home = CoordinatorHome(self.home)
        take_turn(home.storage, home.candidate("this test"))
        self.coordinator = Coordinator(home, public_cache=self.folder / "cache.sqlite", environment={}, keepalive_s=5.0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def halt(self) -> None:
        """Ends the serving as SIGTERM does."""
        self.coordinator.stop()
        self._thread.join(30.0)

    def _serve(self) -> None:
        with CoordinatorHome(self.home).hold():
            self.coordinator.serve()

    def start(self, run: str, *options: object) -> None:
        self.operator("run", "plan", self.task, "--name", run, "--patience", 5, *options)
        self.operator("run", "start", run)

    def watch(self, run: str, code: int = 0) -> str:
        """What `undersong run watch` says until the run has ended with ``code``."""
        return operator_screen("run", "watch", run, "--timeout", 60, "--home", self.home, code=code)

    def shown(self, run: str) -> dict[str, Any]:
        return dict(json.loads(self.operator("run", "show", run, "--json")))

    @staticmethod
    def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        wait_for(condition, timeout_s)

    def _enrol(self, each: Hospital, notes: Path) -> None:
        budget = ("budget", "set", "--epsilon", 500, "--delta", "1e-3", "--per-run", 5)
        policy = ("policy", "set", "--question", "all", "--approval", "standing")
        enrol(self.folder, self.operator, each, self.fingerprint, budget, policy)
        each("data", "add", notes, "--label-field", "label", "--user-field", "user")
