"""What other packages add (entry points): found by name without importing anything, hashed before it is trusted.

A package declares, for example in its pyproject.toml, ``[project.entry-points."undersong.statistics"]`` with
``NAME = "package.module:Class"``. The programs ask here when they meet a name that is not Undersong's own; the
packages below, which do no input or output, are handed what was found.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError

Kind = Literal["methods", "statistics", "generators", "embedders"]
KINDS: tuple[Kind, ...] = ("methods", "statistics", "generators", "embedders")
_COMPILED = (".pyc", ".pyo")


@dataclass(frozen=True)
class Plugin:
    """One entry point.

    Attributes:
        target: ``package.module:attribute``.
        package, version: of the installed distribution that declares it.
    """

    kind: Kind
    name: str
    target: str
    package: str
    version: str

    @property
    def words(self) -> str:
        """For people: the package that it is of."""
        return f"{self.package} {self.version}"


def installed(kind: Kind) -> tuple[Plugin, ...]:
    """Everything of that kind, by name. Reads what is installed, and imports nothing of it."""
    found = [
        Plugin(kind, entry.name, entry.value, entry.dist.name if entry.dist else "", entry.dist.version)
        for entry in importlib.metadata.entry_points(group=f"undersong.{kind}")
        if entry.dist is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.name, each.package)))


def find(kind: Kind, name: str) -> Plugin | None:
    """The plug-in of that name; None where there is none. Raises ConfigurationError where two packages declare it."""
    found = [each for each in installed(kind) if each.name == name]
    if len(found) > 1:
        raise ConfigurationError(
            f"two packages declare {name!r} among {kind}: {', '.join(each.package for each in found)}",
            "uninstall one of them",
        )
    return found[0] if found else None


def source_hash(plugin: Plugin) -> str:
    """SHA-256 (hex) over the plug-in's entry point and every file of its top-level package. Imports nothing.

    What that package imports from elsewhere is not in it. Compiled files that Python keeps beside its sources do not
    count. Raises ConfigurationError where the package is not there, or spreads over several folders (a namespace).
    """
    top = plugin.target.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        problem = "is not installed" if spec is None else "is a namespace, which other packages may add to"
        raise ConfigurationError(
            f"{plugin.name}: its package {top!r} {problem}", f"have {plugin.package} put it into a package of its own"
        )
    origin = Path(spec.origin)
    folder, files = (origin.parent, None) if spec.submodule_search_locations is not None else (origin.parent, [origin])
    parts = [plugin.kind.encode(), plugin.name.encode(), plugin.target.encode(), top.encode()]
    try:
        for path in files or sorted(_sources(folder)):
            parts += [path.relative_to(folder).as_posix().encode(), hashlib.sha256(path.read_bytes()).digest()]
    except OSError as error:
        raise ConfigurationError(f"{plugin.name}: {folder}: {error.strerror}", "install the package again") from None
    return tagged_hash("undersong plug-in", *parts).hex()


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in _COMPILED:
            yield path


def load(plugin: Plugin) -> Any:
    """Imports it. Raises ConfigurationError that names the package where that fails."""
    module, _, attribute = plugin.target.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            value = getattr(value, part)
    except Exception as error:
        raise ConfigurationError(
            f"{plugin.name} of the package {plugin.words} cannot be loaded: {type(error).__name__}: {error}",
            "ask whoever wrote the package",
        ) from error
    return value
