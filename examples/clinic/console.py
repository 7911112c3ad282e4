"""A coordinator, five hospitals with the clinic's notes, and the pages of all six: a person does the rest by clicking.

Run it with ``make demo-console``. The hospitals have their data and a budget and belong to nobody yet. Each hospital's
daemon starts by itself once its certificate is installed. Ctrl-C or SIGTERM ends it; the next start begins anew.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from undersong_client.consent.rules import PolicyChoices
from undersong_client.home import Declared
from undersong_client.operations import data, joining, rules
from undersong_server.defaults import NewCoordinator
from undersong_server.operations import coordinator

HERE = Path(__file__).resolve().parent
HOSPITALS = ("childrens", "harbour-general", "heart-institute", "ranges-district", "stella-maris")
OPERATOR, HOSPITAL = "undersong.cli", "undersong_client.cli.app"
START_S = 90.0  # longest wait until a program prints its link
MARK = ".demo-console"  # file that marks a folder of this demo


class ConsoleDemo:
    """Everything of the demo in one folder, as processes; they end with the context.

    Args:
        notes: each hospital's file by name.
    """

    def __init__(self, folder: Path, notes: Mapping[str, Path]) -> None:
        self.folder = folder.absolute()
        self.home = self.folder / "coordinator"
        self.links: dict[str, str] = {}
        self._notes = notes
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}

    def __enter__(self) -> ConsoleDemo:
        if self.folder.exists():
            if not (self.folder / MARK).exists():
                raise SystemExit(f"{self.folder} is there and is no folder of this demo: move it away")
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        (self.folder / MARK).touch()
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self) -> None:
        with socket.socket() as probe_socket:
            probe_socket.bind(("127.0.0.1", 0))
            port = probe_socket.getsockname()[1]
        address = f"localhost:{port}"
        coordinator.create(
            self.home,
            NewCoordinator(
                name="north-hospitals",
                addresses=[address],
                bind=f"127.0.0.1:{port}",
                metrics="",
                operator="North Hospitals Research Office",
                contact="Mara Holm, 0123 456 78",
            ),
        )
        self.start("coordinator", OPERATOR, "coordinator", "serve", "--home", self.home)
        self.start("console", OPERATOR, "console", "serve", "--home", self.home, "--port", 0, "--tasks", HERE)
        for name, notes in self._notes.items():
            home = self.folder / name
            joining.create(home, name)
            checkpoints = self.folder / "state" / "undersong" / "ledgers"
            # The hospital's program writes files beside the records, so it gets a copy in the demo's folder.
            records_file = shutil.copy(notes, self.folder / f"{name}.jsonl")
            data.add(home, Declared(str(records_file), "text", "label", "patient"), checkpoints=checkpoints)
            rules.set_budget(home, epsilon=8.0, delta=1e-4, per_run=5.0)
            rules.set_policy(home, PolicyChoices(questions=["all"]))
            log = self.folder / f"{name} daemon.txt"
            self.start(f"{name} page", HOSPITAL, "page", "--home", home, "--port", 0, "--log", log)
        for name in ("console", *(f"{name} page" for name in self._notes)):
            self.links[name.removesuffix(" page")] = self._await_link(name)

    def start(self, name: str, program: str, *arguments: object) -> None:
        """Starts one of the programs; its output goes to a file of that name."""
        with (self.folder / f"{name}.txt").open("ab") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - our own programs
                [sys.executable, "-m", program, *map(str, arguments)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._processes[name]

    def output(self, name: str) -> str:
        """Returns what a program has printed."""
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace")

    def _await_link(self, name: str) -> str:
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            lines = self.output(name).splitlines()
            link_line = next((line for line in lines if "/enter#" in line), None)
            if link_line is not None:
                return link_line
            if self._processes[name].poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{name} did not start:\n{self.output(name)}")

    def tend(self) -> None:
        """Starts the daemon of each hospital that has its certificate by now."""
        for name in self._notes:
            if f"{name} daemon" in self._processes or not (self.folder / name / "keys" / "tls.pem").exists():
                continue
            self.start(f"{name} daemon", HOSPITAL, "run", "--home", self.folder / name, "--no-proxy")

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def main() -> None:
    notes = {name: HERE / "data" / "hospitals" / f"{name}.jsonl" for name in HOSPITALS}
    print(
        "starting a coordinator, five hospitals and six pages: half a minute on an idle machine, minutes on a busy one",
        flush=True,
    )
    # The exit leaves the demo's context, which ends its programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ConsoleDemo(Path("runs") / "demo-console", notes) as demo, contextlib.suppress(KeyboardInterrupt):
        print("\nOpen each link once, within 15 minutes:")
        for name, link in demo.links.items():
            print(f"  {'the operator' if name == 'console' else name:16} {link}")
        print(
            "\nThe operator invites each hospital by its name (Parties) and tells it the fingerprint; the hospital"
            "\ncompares it and makes a request (Coordinator); the operator signs it by the hospital's fingerprint; the"
            "\nhospital installs the grant. Then: New run, the clinic's task.toml, the plan, start; approve it at each"
            "\nhospital (Requests) by the plan's nine words; watch it, and look at its result. Ctrl-C ends everything."
        )
        while True:
            demo.tend()
            time.sleep(0.5)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="examples.clinic.console", description=__doc__).parse_args()
    main()
