"""The package that docs/extending.md builds, from the page's own blocks, installed into a folder of the import path."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from undersong_protocol.statistics import interface

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
FILE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = "sentence_histogram"


def files() -> dict[str, str]:
    """The page's files by name; blocks of one name together."""
    found: dict[str, str] = {}
    for name, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        found[name] = found.get(name, "") + content
    return found


def write_package(folder: Path, *, package: str = "undersong_sentences") -> Path:
    """What pip leaves of it in ``folder``: the modules, and the metadata with the entry points."""
    written = files()
    described = written.pop("pyproject.toml")
    for name, content in {**written, "sentences/__init__.py": ""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    write_metadata(folder, package, "1.0", described)
    return folder


def write_metadata(folder: Path, package: str, version: str, described: str) -> None:
    """What an installation writes beside the modules: name, version and the entry points of a pyproject.toml's text."""
    information = folder / f"{package}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    groups = tomllib.loads(described)["project"]["entry-points"]
    (information / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
            for group, entries in groups.items()
        )
    )


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """On the import path meanwhile; nothing of it is left afterwards, in modules and registry either."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget()


def forget() -> None:
    """As a program that has just started: none of its modules is imported, and its statistic is not known."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sentences"]:
        del sys.modules[name]
    interface._STATISTICS.pop(NAME, None)
    interface._SOURCES.pop(NAME, None)
    importlib.invalidate_caches()


def is_imported() -> bool:
    return any(name.partition(".")[0] == "sentences" for name in sys.modules)
