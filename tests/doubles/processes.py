"""The programs as a person starts them: real processes on the loopback interface, bounded and always ended."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# This checkout's packages, whichever one is installed.
SOURCES = (ROOT, *(ROOT / name for name in ("common", "protocol", "client", "server", "simulation")))
OPERATOR = "undersong.cli"
HOSPITAL = "undersong_client.cli.app"
WEIGHTLESS = Path(__file__).parent / "weightless"


def free_port() -> int:
    """A port that nothing listens on, below those that the system gives to whoever asks for any: until it is used,
    neither another worker's sockets nor an outgoing connection takes it."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def environment(**changes: str) -> dict[str, str]:
    """Of every process: this tree's code, one thread, nothing from the network, and no proxy of the machine."""
    kept = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    fixed = {
        "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "200",
    }
    return {**kept, **fixed, **changes}


def command(program: str, arguments: Sequence[object], **changes: Any) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end and returns it whatever its exit code."""
    timeout_s = changes.pop("timeout_s", 280)
    return subprocess.run(
        [sys.executable, "-m", program, *map(str, arguments)],
        env=environment(**changes.pop("env", {})),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **changes,
    )


def succeed(program: str, arguments: Sequence[object], **changes: Any) -> str:
    """Standard output of a command that must succeed."""
    done = command(program, arguments, **changes)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Process:
    """A program in the background; its output goes to a file.

    Args:
        weights: whether it loads the embedding model (six seconds of a core); else texts are embedded by hashing.
        packages: a folder of packages that are installed beside Undersong where it runs.
        prefix: a program, with its arguments, that starts this one.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[object],
        log: Path,
        env: Mapping[str, str],
        *,
        weights: bool = True,
        packages: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._command = [*prefix, sys.executable, "-m", program, *map(str, arguments)]
        self.log = log
        self._env = environment(**env)
        first = [*([] if weights else [WEIGHTLESS]), *([packages] if packages else [])]
        self._env["PYTHONPATH"] = os.pathsep.join([*map(str, first), self._env["PYTHONPATH"]])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)
            self.process = None

    def end(self) -> int:
        """Asks it to end; its exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(30)
        self.process = None
        return code

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def __enter__(self) -> "Process":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class CoordinatorProcess(Process):
    """`undersong coordinator serve`; entering it waits until the port answers."""

    def __init__(
        self,
        home: Path,
        port: int,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        weights: bool = True,
        packages: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(
            OPERATOR,
            ["coordinator", "serve", "--home", home, *arguments],
            home.parent / "coordinator.log",
            {"UNDERSONG_CACHE": str(home.parent / "cache"), **(env or {})},
            weights=weights,
            packages=packages,
            prefix=prefix,
        )
        self.port = port

    def start(self) -> None:
        super().start()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.running, self.text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise TimeoutError(f"the coordinator does not listen\n{self.text()}")
