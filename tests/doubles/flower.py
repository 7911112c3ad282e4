"""A real Flower federation on the loopback interface: SuperLink, SuperNodes and `flwr run` as processes, offline."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.doubles.processes import ROOT, Process, environment, free_port

BIN = Path(sys.executable).parent
BUNDLE = ROOT / "server" / "undersong_server" / "flower" / "bundle"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Program(Process):
    """One of Flower's own programs in the background."""

    def __init__(self, name: str, arguments: list[object], log: Path, env: Mapping[str, str]) -> None:
        super().__init__("", arguments, log, env)
        self._command = [str(BIN / name), *map(str, arguments)]


class Flower:
    """A SuperLink and one SuperNode per party folder; everything ends with the context.

    Args:
        folder: where Flower keeps what it keeps (FLWR_HOME) and the programs' logs lie.
        parties: party folders by name.
        env: of every process beside Flower's own offline settings.
        simulation: the SuperLink simulates its SuperNodes.
    """

    def __init__(
        self, folder: Path, parties: Mapping[str, Path], env: Mapping[str, str], *, simulation: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        path = f"{BIN}:{environment()['PATH']}"
        self.env = {**OFFLINE, **env, "FLWR_HOME": str(folder / "flwr"), "PATH": path}
        arguments = ["--insecure", "--host", "127.0.0.1"]
        link = [*arguments, "--port", self.port, "--disable-runtime-dependency-installation"]
        link += ["--simulation"] if simulation else []
        self.link = Program("flower-superlink", link, folder / "superlink.log", self.env)
        self.nodes = {
            name: Program(
                "flower-supernode",
                [
                    *arguments,
                    *("--port", free_port()),
                    *("--superlink", f"127.0.0.1:{self.port}"),
                    *("--node-config", f'party-folder="{home}"'),
                ],
                folder / f"{name}.supernode.log",
                self.env,
            )
            for name, home in parties.items()
        }

    def __enter__(self) -> "Flower":
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.link.start()
        end = time.monotonic() + 60
        while True:
            assert self.link.running, self.link.text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                break
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < end, self.link.text()
                time.sleep(0.1)
        for node in self.nodes.values():
            node.start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.process.terminate()
        for node in self.nodes.values():
            node.end()
        self.link.end()

    def run(self, config: Mapping[str, Any], *arguments: object, project: Path = BUNDLE) -> str:
        """`flwr run` on the project's bundle, or on another; its output."""
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(project), "here", "--run-config", words, *map(str, arguments)],
            env=environment(**self.env),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def text(self) -> str:
        """Every program's log."""
        return "\n".join(each.text()[-6000:] for each in (self.link, *self.nodes.values()))
