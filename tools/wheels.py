"""Wheels built from the files that an image's build is given, and installed where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from tests.doubles.processes import ROOT, environment
from tools import packages
from tools.extras import EXTRAS, PYPROJECT

OFFLINE = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")


def copy_for(dockerfile: Path, folder: Path) -> Path:
    """Copies the source tree that the COPY instructions of ``dockerfile`` name, and returns ``folder``."""
    folder.mkdir()
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        if (copy_match := re.match(r"COPY (?!--)(.+) (\S+)$", line)) is None:
            continue
        for source in copy_match[1].split():
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
                shutil.copytree(path, folder / copy_match[2], ignore=ignored)
            else:
                shutil.copy(path, folder / copy_match[2])
    return folder


def build(source: Path, folder: Path) -> Path:
    """Builds the wheel of a source tree with this environment's setuptools, which fetches nothing; returns its path."""
    _pip("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def stranger(folder: Path) -> Path:
    """Writes a wheel by somebody else that has packages ``common`` and ``server``; returns its path."""
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
    """Returns the output of a Python command that finds ``installed`` before anything else of this environment."""
    process = subprocess.run(
        [sys.executable, *command],
        cwd=installed.parent,
        env=environment(PYTHONPATH=str(installed)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def installed_closure(extras: str, folder: Path) -> list[str]:
    """Packs as wheels the packages that an install of undersong with these extras has put into this environment.

    Returns the names of the packages that are not installed here.
    """
    folder.mkdir()
    missing: list[str] = []

    def requirements_of(name: str) -> list[str]:
        if name == "undersong":
            of_extras = [f'{text} ; extra == "{extra}"' for extra, texts in EXTRAS.items() for text in texts]
            return [*PYPROJECT["project"]["dependencies"], *of_extras]
        try:
            return distribution(name).requires or []
        except PackageNotFoundError:
            missing.append(name)
            return []

    names = packages.closure(extras, requirements_of)
    for name in names.difference(missing, ["undersong"]):
        _pack(distribution(name), folder)
    return missing


def _pack(installed_distribution: Distribution, folder: Path) -> None:
    """Packs one installed distribution as a wheel, without the files that its installation added."""
    tags = re.findall(r"^Tag: (\S+)-(\S+)-(\S+)", installed_distribution.read_text("WHEEL") or "", re.MULTILINE)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = re.sub(r"[-_.]+", "_", installed_distribution.name)
    with zipfile.ZipFile(folder / f"{name}-{installed_distribution.version}-{tag}.whl", "w") as archive:
        for file in installed_distribution.files or []:
            is_added = file.parts[0] == ".." or "__pycache__" in file.parts or file.name in ("INSTALLER", "REQUESTED")
            if not is_added:
                archive.write(str(file.locate()), file.as_posix())


def _pip(*arguments: object) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, (
        f"pip {arguments[0]}: exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    )
