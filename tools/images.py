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
        return self._run_command([self.name, *words], check)

    def compose(self, *words: str, check: bool = True) -> str:
        return self._run_command([*self._compose, "-p", PROJECT, *words], check)

    @staticmethod
    def _run_command(command: list[str], check: bool) -> str:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if check and process.returncode:
            output_end = f"{process.stdout[-4000:]}{process.stderr[-4000:]}"
            raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}\n{output_end}")
        return process.stdout + (process.stderr if not check else "")

    def container(self, service: str) -> str:
        """Returns the name of a service's container, into which the compose program puts - or _."""
        names = self.run("ps", "--all", "--format", "{{.Names}}").split()
        return next(name for name in names if name.startswith(PROJECT) and service in name)

    def state(self, container: str) -> tuple[str, int]:
        state_json = json.loads(self.run("inspect", container))[0]["State"]
        return state_json["Status"], int(state_json["ExitCode"])


def build(engine: Engine, options: list[str]) -> list[str]:
    """Builds both images. Returns the names of those that are too large."""
    too_large = []
    for image in IMAGES:
        start_s = time.monotonic()
        engine.run("build", *options, "-f", f"docker/{image}.Dockerfile", "-t", f"undersong-{image}", ".")
        image_bytes = int(json.loads(engine.run("image", "inspect", f"undersong-{image}"))[0]["Size"])
        print(f"undersong-{image}: built in {time.monotonic() - start_s:.0f} s, {image_bytes / 1e9:.2f} GB", flush=True)
        if image_bytes > LARGEST_BYTES[image]:
            too_large.append(image)
    return too_large


def wait_until(event: str, timeout_s: float, has_happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not has_happened():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{event}: not within {timeout_s:.0f} s")
        time.sleep(2.0)


def live(engine: Engine) -> None:
    """Runs the composition from nothing to a verified data set; kills one hospital on the way and starts it again."""
    start_s = time.monotonic()
    engine.compose("up", "--detach", "--no-build")
    coordinator, killed = engine.container("coordinator"), engine.container(KILLED)

    def read_log(container: str) -> str:
        return engine.run("logs", container, check=False)

    def has_ended() -> bool:
        return engine.state(coordinator)[0] == "exited"

    try:
        wait_until(f"{KILLED} is connected", PATIENCE_S, lambda: has_ended() or "connected" in read_log(killed))
        engine.run("kill", killed)
        print(f"killed {KILLED} after {time.monotonic() - start_s:.0f} s", flush=True)
        engine.run("start", killed)
        wait_until("the coordinator has verified what it published", PATIENCE_S, has_ended)
        state, code = engine.state(coordinator)
        if code or "holds" not in read_log(coordinator):
            raise SystemExit(
                f"the coordinator {state} with {code}:\n{read_log(coordinator)[-4000:]}\n{read_log(killed)[-2000:]}"
            )
        print(f"published and verified after {time.monotonic() - start_s:.0f} s")
        volume = next(
            name for name in engine.run("volume", "ls", "--format", "{{.Name}}").split() if name.endswith("_published")
        )
        listing = engine.run(
            "run", "--rm", "--entrypoint", "ls", "-v", f"{volume}:/there:ro", "undersong-coordinator", "/there"
        )
        print(f"in the volume {volume}: {' '.join(listing.split())}")
    finally:
        engine.compose("down", "--volumes", check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-options", default="", help="passed to each build")
    options = parser.parse_args()
    engine = Engine()
    too_large = build(engine, shlex.split(options.build_options))
    live(engine)
    if too_large:
        raise SystemExit(f"larger than its bound: {', '.join(too_large)}")


if __name__ == "__main__":
    main()
