"""The coordinator as a systemd service: its units, and the move of its folder to the service's account."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from undersong_common.program.moving import Owner, acting_as
from undersong_common.program.services import Installation, Machine, MovableFolder, Service
from undersong_server.coordinator.home import CoordinatorHome

ACCOUNT = "undersong"
FOLDER = "/var/lib/undersong"
HOME = f"{FOLDER}/coordinator"


def service() -> Service:
    """Returns the units of coordinator and console; the console is started only where its packages are installed."""
    console_units = ("undersong-console.service",) if find_spec("fastapi") else ()
    return Service(
        name="undersong",
        command="undersong coordinator service",
        account=ACCOUNT,
        folder=FOLDER,
        home=HOME,
        settings="coordinator.json",
        units=("undersong-coordinator.service", "undersong-console.service"),
        started=("undersong-coordinator.service", *console_units),
    )


def installation(home: Path | None, machine: Machine | None = None) -> Installation:
    """Returns the installation of a coordinator whose folder ``home`` moves; None moves none."""
    return Installation(service(), CoordinatorFolder(home), machine or Machine())


class CoordinatorFolder(MovableFolder):
    """A coordinator's folder that moves; the cache of public embeddings outside it stays, and is made anew."""

    @contextmanager
    def hold(self, owner: Owner) -> Iterator[Mapping[str, str]]:
        assert self.source is not None
        with acting_as(owner):
            lock = CoordinatorHome(self.source).hold()
            lock.__enter__()
        try:
            yield {}
        finally:
            lock.__exit__(None, None, None)
