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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError

Kind = Literal["methods", "statistics", "generators", "embedders"]
KINDS: tuple[Kind, ...] = ("methods", "statistics", "generators", "embedders")


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

    What that package imports from elsewhere is not in it. What Python keeps in ``__pycache__`` does not count, and
    :func:`load` does not read it. Raises ConfigurationError where the package is not there, or spreads over several
    folders (a namespace).
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
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts:
            yield path


class _FromSource(SourceFileLoader):
    """Compiles what was hashed: a package may bring compiled files that are of another source than the one beside."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        compiled: CodeType = self.source_to_code(self.get_data(path), path)
        return compiled


class _Plugins(MetaPathFinder):
    """Finds the modules of plug-ins as anybody does, and has them compiled from their sources."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromSource(fullname, spec.loader.path)
        return spec


_plugins = _Plugins()


def load(plugin: Plugin) -> Any:
    """Imports it, from its sources alone. Raises ConfigurationError that names the package where that fails."""
    module, _, attribute = plugin.target.partition(":")
    _plugins.packages.add(module.partition(".")[0])
    if _plugins not in sys.meta_path:
        sys.meta_path.insert(0, _plugins)
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
