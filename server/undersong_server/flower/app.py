"""The coordinator as a Flower ServerApp: a run of the coordinator's folder, carried by a SuperLink.

``flwr run`` starts it with the run configuration of bundle/pyproject.toml (``[tool.flwr.app.config]``). The folder is
the one that ``undersong coordinator init``, ``invite`` and ``sign`` made: its registry says who the parties are and by
which keys, and keeps plan, journal and outputs of every run, whichever transport carried it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict

from undersong_common import configuration
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.files import holding
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.run_driver import RunDriver, tell_ending
from undersong_server.defaults import RunOptions, public_cache_path
from undersong_server.federation.driver import Transport
from undersong_server.flower.transport import FlowerTransport
from undersong_server.operations import enrolment, releases, runs
from undersong_server.release.signature import Signer
from undersong_server.runs.folder import AwaitedParty, RunFolder
from undersong_server.runs.planning import Planned

OUTSTANDING = 100  # messages under way at a time: what they bring lies in memory until it is sent
APPROVAL_S = 10.0  # between two questions for an approval: each starts a process at the party

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]  # flwr has no types
def main(grid: Grid, context: Context) -> None:
    """Plans the run where it is new, goes on with it where it is not, and writes what came of it."""
    given = {key: value for key, value in context.run_config.items() if value != ""}
    if "coordinator" not in given:
        raise ConfigurationError(
            "the run configuration does not name the coordinator's folder",
            'flwr run . --run-config \'coordinator="/path" task-file="/path/task.toml"\'',
        )
    settings = configuration.validate(FlowerRunSettings, given, "the run configuration")
    home = CoordinatorHome(settings.coordinator)
    folder = home.run(planned_run(settings, context.run_id))
    busy = ConfigurationError(f"run {folder.name!r} is under way already", "wait for it, or stop it")
    with holding(folder.path / "driver.lock", busy):  # two drivers of one run would both write its journal
        drive(grid, home, folder)
    if settings.out is not None:
        exported = releases.export(home.path, folder.name, settings.out)
        print(f"wrote {', '.join(exported.files)} into {settings.out}", flush=True)


class FlowerRunSettings(BaseModel):
    """The run configuration.

    Attributes:
        coordinator: the coordinator's folder.
        task_file: a task file on the SuperLink's machine; not needed where ``run`` exists already.
        run: the run's name; "" makes one of the task's name and Flower's run id. A name that exists is continued.
        parties: names separated by commas; "" takes everyone who is enrolled.
        out: a folder that the outputs are copied into, or None.
        seed: of everything but noise, keys and masks.
        patience_s: how long a message waits for a party.
        insecure_noise_seed: tests only, if not negative; the parties run with this seed too.
    """

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    coordinator: Path
    task_file: Path | None = None
    run: str = ""
    parties: str = ""
    out: Path | None = None
    seed: int = 0
    patience_s: float = 300.0
    insecure_noise_seed: int = -1


def planned_run(settings: FlowerRunSettings, flower_run: int) -> str:
    """Plans the run where it is new, and returns its name. Raises ConfigurationError where it cannot be planned."""
    if settings.run and CoordinatorHome(settings.coordinator).run(settings.run).exists:
        return settings.run
    if settings.task_file is None:
        raise ConfigurationError(
            f"no run {settings.run!r} is planned and the run configuration names no task-file",
            "add task-file, an absolute path on the SuperLink's machine",
        )
    planned = runs.plan(
        settings.coordinator,
        settings.task_file,
        RunOptions(
            name=settings.run or None,
            suffix=f"{flower_run:x}",
            parties=enrolment.party_names(settings.parties) if settings.parties else None,
            seed=settings.seed,
            patience_s=settings.patience_s,
            insecure_noise_seed=settings.insecure_noise_seed if settings.insecure_noise_seed >= 0 else None,
        ),
    )
    return planned.run


def drive(grid: Grid, home: CoordinatorHome, folder: RunFolder) -> None:
    """Drives the run to its end. Raises UndersongError with its reason where it did not finish."""
    environment = dict(os.environ)
    identities = enrolment.identities(home.path)
    driver = FlowerRunDriver(
        folder,
        grid,
        identities,
        public_cache=public_cache_path(environment),
        environment=environment,
        number=folder.requested().number,
        signer=Signer(home.settings.name, home.authority(), identities),
    )
    driver.run()
    status = folder.status()
    if status.state == "failed":
        planned = folder.planned()
        tell_ending(driver.carrier(planned), folder, status, planned.roster, planned.patience_s)
    if status.state != "finished":
        error = status.error
        raise UndersongError(
            f"the run is {status.state}" if error is None else error.problem, "" if error is None else error.remedy
        )


class FlowerRunDriver(RunDriver):
    """One run over a Grid.

    Args:
        identities: Ed25519 public key of every enrolled party, by name.
        rest: see :class:`RunDriver`.
    """

    def __init__(self, folder: RunFolder, grid: Grid, identities: Mapping[str, bytes], **rest: Any) -> None:
        super().__init__(folder, **rest)
        self._told: list[str] = []
        self._transport = FlowerTransport(
            grid,
            identities=identities,
            say=self.say,
            watch=self.check,
            outstanding=OUTSTANDING,
            reply_bytes=lambda: self._reply_bytes,
        )

    def missing(self, planned: Planned) -> tuple[AwaitedParty, ...]:
        found = self._transport.locate(timeout_s=planned.patience_s)
        missing = [name for name in planned.roster if name not in found]
        if missing and missing != self._told:
            self.say(f"waiting for the SuperNodes of {', '.join(missing)}")
        self._told = missing
        return tuple(AwaitedParty(name, False, None) for name in missing)

    def carrier(self, planned: Planned) -> Transport:
        return self._transport

    def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, APPROVAL_S))

    def say(self, message: str) -> None:
        """Prints the line as well: Flower keeps what is printed as the run's log."""
        super().say(message)
        print(message, flush=True)

    def run(self) -> None:
        super().run()
        print(f"{self._transport.messages} Flower messages", flush=True)
