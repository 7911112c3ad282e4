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
    """A program's output; what it says where it fails ends this one."""
    own = {
        key: value for key, value in os.environ.items() if key != "PYTHONPATH"
    }  # the sources must not help the wheel
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=own, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_tree() -> None:
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
        (again,) = Path(folder).glob("*.whl")
        if sha256(again) != sha256(wheel):
            differing = held(again).items() ^ held(wheel).items()
            raise SystemExit(f"the sdist builds another wheel: {sorted({name for name, _ in differing})[:10]}")
    if f"undersong-{VERSION}-" not in wheel.name:
        raise SystemExit(f"{wheel.name}: is not of version {VERSION}")
    return wheel, sdist


def held(wheel: Path) -> dict[str, tuple[object, ...]]:
    """The files of a wheel with their checksums, times and modes."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: (each.CRC, each.date_time, each.external_attr) for each in archive.infolist()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(folder: Path, python: str) -> Path | None:
    """An empty environment of a release of Python; None where it is not found."""
    found = shutil.which(f"python{python}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    run([found, "-m", "venv", folder])
    return folder / "bin"


def installed(bin_folder: Path, wheel: Path, python: str) -> None:
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
        if (said := run([bin_folder / program, "--version"]).strip()) != f"undersong {VERSION}":
            raise SystemExit(f"{program} --version on Python {python}: {said}")


def packages_of(wheel: Path, bin_folder: Path, dist: Path) -> Iterator[Path]:
    """The offline bundle, and the hospital's Debian package, from the same downloaded wheels."""
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
    """Writes the SBOM of an environment; how many components it lists."""
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


def images_context(target: Path) -> None:
    named = ["archive", "--format=tar.gz", f"--prefix=undersong-{VERSION}/", f"--output={target}", "HEAD"]
    run(["git", *named, *CONTEXT, *CONTEXT_FILES])


def sums(dist: Path) -> Path:
    listed = dist / "SHA256SUMS"
    files = sorted(path for path in dist.iterdir() if path.is_file() and path.name != listed.name)
    listed.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    return listed


def signed(listed: Path, key: Path) -> None:
    """Signs the sums and verifies that; a signature that does not verify does not stay."""
    made = listed.with_name(f"{listed.name}.sig")
    run(["ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", NAMESPACE, listed])
    public = Path(f"{key}.pub").read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", suffix=".signers") as signers, listed.open("rb") as data:
        signers.write(f"release {public}")
        signers.flush()
        command = ["ssh-keygen", "-Y", "verify", "-f", signers.name, "-I", "release", "-n", NAMESPACE, "-s", str(made)]
        if subprocess.run(command, stdin=data, capture_output=True, check=False).returncode:
            made.unlink()
            raise SystemExit("the signature does not verify; it was removed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds and checks a release.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--sign", type=Path, help="a private key of ssh-keygen, with its .pub beside it")
    given = parser.parse_args()
    clean_tree()
    shutil.rmtree(given.dist, ignore_errors=True)
    given.dist.mkdir(parents=True)
    wheel, sdist = build(given.dist)
    print(f"built {wheel.name} and {sdist.name}; the sdist builds the same wheel: {sha256(wheel)}")
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            if (bin_folder := environment(Path(folder) / python, python)) is None:
                print(f"Python {python}: not found here, NOT checked")
                continue
            installed(bin_folder, wheel, python)
            print(f"Python {python}: installed and asked")
            if python == PYTHONS[0]:
                for made in packages_of(wheel, bin_folder, given.dist):
                    print(f"{made.name}: {made.stat().st_size / 2**20:.0f} MB")
                count = bill_of_materials(bin_folder, given.dist / "sbom.json")
                print(f"sbom.json lists {count} components")
    images_context(given.dist / "images-context.tar.gz")
    listed = sums(given.dist)
    if given.sign is not None:
        signed(listed, given.sign)
    print(f"{given.dist}: {len(list(given.dist.iterdir()))} files" + ("" if given.sign else ", unsigned (--sign KEY)"))


if __name__ == "__main__":
    main()
