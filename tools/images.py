"""`make test-images` builds both images and runs compose.yaml in containers; one hospital is killed and started anew.

Needs docker, or podman with podman-compose, and the base image python:3.11-slim. `BUILD_OPTIONS` go to each build, for
instance an index with torch for the CPU: `--build-arg TORCH_INDEX=...`. What it starts is removed; the images stay.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("coordinator", "party")
LARGEST_BYTES = {"coordinator": 1_400_000_000, "party": 600_000_000}
PROJECT = "undersong-images-test"
KILLED = "childrens"
PATIENCE_S = 900.0


class Engine:
    """docker or podman, and its compose."""

    def __init__(self) -> None:
        if (
            shutil.which("docker")
            and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
        ):
            self.name, self._compose = "docker", ["docker", "compose"]
        elif shutil.which("podman") and shutil.which("podman-compose"):
            self.name, self._compose = "podman", ["podman-compose", "--no-ansi"]
        else:
            raise SystemExit("neither docker's daemon nor podman with podman-compose is here: nothing was tested")

    def run(self, *words: str, check: bool = True) -> str:
        return self._said([self.name, *words], check)

    def compose(self, *words: str, check: bool = True) -> str:
        return self._said([*self._compose, "-p", PROJECT, *words], check)

    @staticmethod
    def _said(command: list[str], check: bool) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(
                f"{shlex.join(command)} ended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )
        return done.stdout + (done.stderr if not check else "")

    def container(self, service: str) -> str:
        """The container of a service; its name has - or _ in it, as the compose likes it."""
        names = self.run("ps", "--all", "--format", "{{.Names}}").split()
        return next(name for name in names if name.startswith(PROJECT) and service in name)

    def state(self, container: str) -> tuple[str, int]:
        found = json.loads(self.run("inspect", container))[0]["State"]
        return found["Status"], int(found["ExitCode"])


def build(engine: Engine, options: list[str]) -> list[str]:
    """Builds both; the names of those that are too large."""
    large = []
    for image in IMAGES:
        started = time.monotonic()
        engine.run("build", *options, "-f", f"docker/{image}.Dockerfile", "-t", f"undersong-{image}", ".")
        size = int(json.loads(engine.run("image", "inspect", f"undersong-{image}"))[0]["Size"])
        print(f"undersong-{image}: built in {time.monotonic() - started:.0f} s, {size / 1e9:.2f} GB", flush=True)
        if size > LARGEST_BYTES[image]:
            large.append(image)
    return large


def until(what: str, seconds: float, look: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(2.0)


def live(engine: Engine) -> None:
    """The composition from nothing to a verified data set, one hospital killed and started again on the way."""
    started = time.monotonic()
    engine.compose("up", "--detach", "--no-build")
    coordinator, killed = engine.container("coordinator"), engine.container(KILLED)

    def said(container: str) -> str:
        return engine.run("logs", container, check=False)

    def ended() -> bool:
        return engine.state(coordinator)[0] == "exited"

    try:
        until(f"{KILLED} is connected", PATIENCE_S, lambda: ended() or "connected" in said(killed))
        engine.run("kill", killed)
        print(f"killed {KILLED} after {time.monotonic() - started:.0f} s", flush=True)
        engine.run("start", killed)
        until("the coordinator has verified what it published", PATIENCE_S, ended)
        state, code = engine.state(coordinator)
        if code or "holds" not in said(coordinator):
            raise SystemExit(
                f"the coordinator {state} with {code}:\n{said(coordinator)[-4000:]}\n{said(killed)[-2000:]}"
            )
        print(f"published and verified after {time.monotonic() - started:.0f} s")
        volume = next(
            name for name in engine.run("volume", "ls", "--format", "{{.Name}}").split() if name.endswith("_published")
        )
        there = engine.run(
            "run", "--rm", "--entrypoint", "ls", "-v", f"{volume}:/there:ro", "undersong-coordinator", "/there"
        )
        print(f"in the volume {volume}: {' '.join(there.split())}")
    finally:
        engine.compose("down", "--volumes", check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-options", default="", help="passed to each build")
    given = parser.parse_args()
    engine = Engine()
    large = build(engine, shlex.split(given.build_options))
    live(engine)
    if large:
        raise SystemExit(f"larger than its bound: {', '.join(large)}")


if __name__ == "__main__":
    main()
