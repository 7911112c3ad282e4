"""``.venv-serve``: the environment of ``transformers serve``, a real OpenAI-compatible server for the slow tests.

It is apart from the project's own because the server pins packages that the project does not want. Made when missing,
by ``python -m tools.serve_environment`` or by the first test that needs it.
"""

import fcntl
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-serve"
# torch has the version of constraints.txt, because a newer one brings gigabytes of CUDA.
REQUIREMENTS = ("transformers[serving]==5.23.0", "torch==2.13.0")
START_S = 120.0


def serve_environment() -> Path:
    """Returns the folder of the environment's programs.

    The environment is made first, in minutes, if it is missing, half made or of other versions.
    """
    stamp_file = FOLDER / "undersong-requirements.txt"
    requirements_text = "\n".join(REQUIREMENTS)
    # Two test runs may make the environment at once, so one waits. This source file is always there to be locked.
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp_file.is_file() or stamp_file.read_text(encoding="utf-8") != requirements_text:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True)
            subprocess.run(
                [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True
            )
            stamp_file.write_text(requirements_text, encoding="utf-8")
    return FOLDER / "bin"


@contextmanager
def transformers_serve(port: int, cache: Path) -> Iterator[str]:
    """Runs the server on 127.0.0.1 and yields its ``base_url``; its log and its empty hub lie in ``cache``."""
    programs = serve_environment()
    hub = cache / "hub"
    hub.mkdir(parents=True)  # The server lists the hub's folder, and fails without it.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))},
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    log = cache / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(programs / "transformers"), "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _await_server(process, port, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_server(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    start_s = time.monotonic()
    while time.monotonic() - start_s < START_S:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # The server answers, if only that it has no such page.
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"transformers serve did not start:\n{log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    print(serve_environment())
