"""What `make release` writes into dist/, and what it checks before it says that it may be handed out.

    wheel and sdist       of a clean tree (tests/packaging/test_versions.py: one version everywhere); the sdist builds
                          the same bytes of the wheel again
    sbom.json             CycloneDX: what an empty environment holds after the wheel's base install (a hospital's)
    undersong-offline-*.tar, undersong-party_*.deb
                          the same for machines without a registry (tools/packages.py); the package where dpkg-deb is
    images-context.tar.gz the tree that both images are built from
    SHA256SUMS            of all of it, written last; with --sign KEY also its signature, by `ssh-keygen -Y`, kept only
                          where it verifies

The wheel is installed into an empty environment for each supported Python that is found, and asked for its version
there. The base install brings no torch.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import packages
from tools import wheels as party
from undersong_common.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
CONTEXT = ("common", "protocol", "client", "server", "simulation", "docker", "compose.yaml")
CONTEXT_FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", ".dockerignore")
NAMESPACE = "undersong-release"


def run(command: Sequence[str | Path]) -> str:
    """Runs a program and returns its output. Raises SystemExit with all of it if the program fails."""
    # Without PYTHONPATH a program in another environment cannot import this checkout in place of the wheel.
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command_words = [str(word) for word in command]
    process = subprocess.run(command_words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command_words)}\n{process.stdout}{process.stderr}")
    return process.stdout


def check_clean_tree() -> None:
    if changed := run(["git", "status", "--porcelain"]):
        raise SystemExit(f"commit or remove first:\n{changed}")


def build(dist: Path) -> tuple[Path, Path]:
    """Returns the wheel, and the sdist from which it was built twice with the same bytes: files have the commit's time.

    A wheel that is built from the tree itself would hold files of earlier builds, which the folder `build` keeps.
    """
    os.environ["SOURCE_DATE_EPOCH"] = run(["git", "log", "-1", "--format=%ct"]).strip()
    uv = Path(sys.executable).parent / "uv"
    isolated = ["--no-build-isolation", "--python", sys.executable, "--offline", "--quiet"]
    run([uv, "build", "--out-dir", dist, *isolated, ROOT])
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        run([uv, "build", "--wheel", "--out-dir", folder, *isolated, sdist])
        (rebuilt_wheel,) = Path(folder).glob("*.whl")
        if sha256(rebuilt_wheel) != sha256(wheel):
            differences = list_files(rebuilt_wheel).items() ^ list_files(wheel).items()
            raise SystemExit(f"the sdist builds another wheel: {sorted({name for name, _ in differences})[:10]}")
    if f"undersong-{VERSION}-" not in wheel.name:
        raise SystemExit(f"{wheel.name}: is not of version {VERSION}")
    return wheel, sdist


def list_files(wheel: Path) -> dict[str, tuple[object, ...]]:
    """Returns checksum, time and mode of each file of a wheel, by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: (entry.CRC, entry.date_time, entry.external_attr) for entry in archive.infolist()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(folder: Path, python: str) -> Path | None:
    """Makes an empty environment of a release of Python and returns its ``bin``; None if that Python is not found."""
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "--version"], capture_output=True, check=False).returncode:
        return None
    run([program, "-m", "venv", folder])
    return folder / "bin"


def check_install(bin_folder: Path, wheel: Path, python: str) -> None:
    pip: list[str | Path] = [
        bin_folder / "python",
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    run([*pip, "-c", "constraints.txt", wheel])
    for program in ("undersong", "undersong-party"):
        if (version_line := run([bin_folder / program, "--version"]).strip()) != f"undersong {VERSION}":
            raise SystemExit(f"{program} --version on Python {python} prints {version_line}, not undersong {VERSION}")


def packages_of(wheel: Path, bin_folder: Path, dist: Path) -> Iterator[Path]:
    """Writes the offline bundle and the hospital's Debian package from the same wheels; yields their paths."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        packages.download(bin_folder / "python", wheel, wheels)
        yield packages.bundle(wheels, dist)
        if shutil.which("dpkg-deb") is None:
            print("dpkg-deb is not here: NO Debian package")
            return
        (wheels / wheel.name).unlink()
        party.build(party.copy_for(ROOT / "docker" / "party.Dockerfile", Path(folder) / "source"), wheels)
        yield packages.debian_package(wheels, dist)


def bill_of_materials(bin_folder: Path, target: Path) -> int:
    """Writes the SBOM of an environment. Returns how many components it lists."""
    cyclonedx = Path(sys.executable).parent / "cyclonedx-py"
    options: list[str | Path] = [
        "--output-reproducible",
        "--pyproject",
        ROOT / "pyproject.toml",
        "--output-file",
        target,
    ]
    run([cyclonedx, "environment", *options, bin_folder / "python"])
    return len(json.loads(target.read_text(encoding="utf-8"))["components"])


def write_images_context(target: Path) -> None:
    archive_options = ["archive", "--format=tar.gz", f"--prefix=undersong-{VERSION}/", f"--output={target}", "HEAD"]
    run(["git", *archive_options, *CONTEXT, *CONTEXT_FILES])


def write_sums(dist: Path) -> Path:
    sums_file = dist / "SHA256SUMS"
    files = sorted(path for path in dist.iterdir() if path.is_file() and path.name != sums_file.name)
    sums_file.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    return sums_file


def sign_sums(sums_file: Path, key: Path) -> None:
    """Signs the file of sums, and removes a signature that does not verify."""
    signature_file = sums_file.with_name(f"{sums_file.name}.sig")
    run(["ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", NAMESPACE, sums_file])
    public = Path(f"{key}.pub").read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers, sums_file.open("rb") as data:
        signers.write(f"release {public}")
        signers.flush()
        command = ["ssh-keygen", "-Y", "verify", "-f", signers.name, "-I", "release", "-n", NAMESPACE]
        command += ["-s", str(signature_file)]
        if subprocess.run(command, stdin=data, capture_output=True, check=False).returncode:
            signature_file.unlink()
            raise SystemExit(f"{signature_file}: the signature does not verify, and was removed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds and checks a release.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--sign", type=Path, help="a private key of ssh-keygen, with its .pub beside it")
    options = parser.parse_args()
    check_clean_tree()
    shutil.rmtree(options.dist, ignore_errors=True)
    options.dist.mkdir(parents=True)
    wheel, sdist = build(options.dist)
    print(f"built {wheel.name} and {sdist.name}; the sdist builds the same wheel: {sha256(wheel)}")
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            if (bin_folder := environment(Path(folder) / python, python)) is None:
                print(f"Python {python}: not found here, NOT checked")
                continue
            check_install(bin_folder, wheel, python)
            print(f"Python {python}: installed and asked")
            if python == PYTHONS[0]:
                for package in packages_of(wheel, bin_folder, options.dist):
                    print(f"{package.name}: {package.stat().st_size / 2**20:.0f} MB")
                count = bill_of_materials(bin_folder, options.dist / "sbom.json")
                print(f"sbom.json lists {count} components")
    write_images_context(options.dist / "images-context.tar.gz")
    sums_file = write_sums(options.dist)
    if options.sign is not None:
        sign_sums(sums_file, options.sign)
    print(
        f"{options.dist}: {len(list(options.dist.iterdir()))} files"
        + ("" if options.sign else ", unsigned (--sign KEY)")
    )


if __name__ == "__main__":
    main()
