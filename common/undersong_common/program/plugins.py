"""Plug-ins: other packages' entry points, found by name without an import and hashed before they are imported.

A package declares, for example in its pyproject.toml, ``[project.entry-points."undersong.statistics"]`` with
``NAME = "package.module:Class"``. The programs look here for a name that is not Undersong's own, and hand the object
that they find to the packages below, which do no input or output.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

from undersong_common.canonical import tagged_hash
from undersong_common.errors import ConfigurationError
from undersong_common.files import FileState, file_state

Kind = Literal["methods", "statistics", "generators", "embedders", "references"]
KINDS: tuple[Kind, ...] = ("methods", "statistics", "generators", "embedders", "references")


@dataclass(frozen=True)
class Plugin:
    """One entry point that an installed package declares.

    Attributes:
        kind: group of the entry point, without "undersong.".
        target: what the entry point names, ``package.module:attribute``.
        package, version: name and version of the installed distribution that declares it.
    """

    kind: Kind
    name: str
    target: str
    package: str
    version: str

    @property
    def words(self) -> str:
        """Package and version, as messages to people name them."""
        return f"{self.package} {self.version}"


def installed(kind: Kind) -> tuple[Plugin, ...]:
    """Returns all installed plug-ins of a kind, sorted by name, without importing them."""
    plugins = [
        Plugin(kind, entry.name, entry.value, entry.dist.name if entry.dist else "", entry.dist.version)
        for entry in _entry_points(kind, tuple([(search_path, file_state(search_path)) for search_path in sys.path]))
        if entry.dist is not None
    ]
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.package)))


@lru_cache(maxsize=len(KINDS))
def _entry_points(kind: Kind, _places: tuple[tuple[str, FileState], ...]) -> importlib.metadata.EntryPoints:
    """Returns all packages' entry points of a kind; cached until a folder of ``sys.path`` changes (``_places``)."""
    return importlib.metadata.entry_points(group=f"undersong.{kind}")


def find(kind: Kind, name: str) -> Plugin | None:
    """Returns the installed plug-in of that name, or None. Raises ConfigurationError if two packages declare it."""
    namesakes = [plugin for plugin in installed(kind) if plugin.name == name]
    if len(namesakes) > 1:
        raise ConfigurationError(
            f"two packages declare {name!r} among {kind}: {', '.join(plugin.package for plugin in namesakes)}",
            "uninstall one of them",
        )
    if namesakes:
        return namesakes[0]
    return None


def source_hash(plugin: Plugin) -> str:
    """Returns the SHA-256 (hex) over a plug-in's entry point and all files of its top-level package; imports nothing.

    The hash does not cover other packages that this one imports, nor ``__pycache__``; :func:`load` reads no file that
    the hash does not cover. Raises ConfigurationError if the package is missing, spreads over several folders (a
    namespace), or is not a folder of files (a zip archive).
    """
    return _hash_files(plugin, _read_files(plugin))


@dataclass(frozen=True)
class _Files:
    """The SHA-256 of every file of a package, by its path in ``folder``, as they were when they were read once."""

    folder: Path
    digests: Mapping[str, bytes]

    def check(self, module: str, path: str, data: bytes) -> None:
        """Raises ImportError for a file that the package's hash does not cover, or that has changed since."""
        recorded_digest = None
        if self._holds_path(path):
            recorded_digest = self.digests.get(Path(path).relative_to(self.folder).as_posix())
        if recorded_digest is None:
            raise ImportError(f"{module} is in a file that its package's hash does not cover")
        if recorded_digest != hashlib.sha256(data).digest():
            raise ImportError(f"{module} has changed since its package was hashed; start this program again")

    def _holds_path(self, path: str) -> bool:
        return Path(path).is_relative_to(self.folder)


def _top_package(plugin: Plugin) -> str:
    return plugin.target.partition(":")[0].partition(".")[0]


def _read_files(plugin: Plugin) -> _Files:
    top_package = _top_package(plugin)
    try:
        spec = importlib.util.find_spec(top_package)
    except ValueError:  # no name of a module, or a loaded module without a spec
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        problem = "is no folder of files, which could be read"
        if spec is None or spec.origin is None:
            if spec is None:
                problem = "is not installed"
            else:
                problem = "is a namespace, which other packages may add to"
        raise ConfigurationError(
            f"{plugin.name}: its package {top_package!r} {problem}",
            f"have {plugin.package} put it into a package of its own",
        )
    origin = Path(spec.origin)
    folder = origin.parent
    if spec.submodule_search_locations is None:
        paths = [origin]
    else:
        paths = sorted(_source_files(folder))
    try:
        return _Files(
            folder, {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).digest() for path in paths}
        )
    except OSError as error:
        raise ConfigurationError(f"{plugin.name}: {folder}: {error.strerror}", "install the package again") from None


def _hash_files(plugin: Plugin, files: _Files) -> str:
    identity_parts = (
        plugin_part.encode() for plugin_part in (plugin.kind, plugin.name, plugin.target, _top_package(plugin))
    )
    contents = (file_part for path, digest in files.digests.items() for file_part in (path.encode(), digest))
    return tagged_hash("undersong plug-in", *identity_parts, *contents).hex()


def _source_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts:
            yield path


class _FromSource(SourceFileLoader):
    """Compiles the very bytes that were hashed.

    A package may bring compiled files that do not come from the source beside them, and a file may have changed since.
    """

    def __init__(self, fullname: str, path: str, files: _Files) -> None:
        super().__init__(fullname, path)
        self._files = files

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source_bytes = self.get_data(path)
        self._files.check(fullname, path, source_bytes)
        return self.source_to_code(source_bytes, path)


class _Plugins(MetaPathFinder):
    """Finds the modules of plug-ins as Python does, and imports only files that their packages' hashes cover."""

    def __init__(self) -> None:
        self.packages: dict[str, _Files] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (files := self.packages.get(fullname.partition(".")[0])) is None:
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((candidate for candidate in specs if candidate is not None), None)
        if spec is None or spec.loader is None or isinstance(spec.loader, NamespaceLoader):
            return spec  # no module, or a folder without code of its own
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromSource(fullname, spec.loader.path, files)
        else:  # a compiled extension
            origin = Path(spec.origin or "")
            files.check(fullname, str(origin), origin.read_bytes() if origin.is_file() else b"")
        return spec


_plugins = _Plugins()


def load(plugin: Plugin, source: str = "") -> Any:
    """Imports a plug-in and returns the object that its entry point names.

    Modules that the plug-in imports from its own package later also come from the files as they are now.

    Args:
        source: hash (hex) that the package must have; "" accepts any, for a program that holds no records.

    Raises ConfigurationError that names the package if its hash is another one, if other files of it were imported
    before, or if the import fails.
    """
    files = _read_files(plugin)
    module = plugin.target.partition(":")[0]
    if source and (installed_hash := _hash_files(plugin, files)) != source:
        raise ConfigurationError(
            f"{plugin.name} of {plugin.words} has the source {installed_hash}, and {source} is asked for",
            "install the release with that hash, or state the hash of the one that is here",
        )
    _keep_to(plugin, files, strictly=bool(source))
    try:
        loaded_object: Any = importlib.import_module(module)
        attribute = plugin.target.partition(":")[2]
        for attribute_part in attribute.split(".") if attribute else ():
            loaded_object = getattr(loaded_object, attribute_part)
    except (Exception, SystemExit) as error:  # A package that calls sys.exit must not end this program.
        raise ConfigurationError(
            f"{plugin.name} of the package {plugin.words} cannot be loaded: {type(error).__name__}: {error}",
            "ask whoever wrote the package",
        ) from error
    return loaded_object


def _keep_to(plugin: Plugin, files: _Files, *, strictly: bool) -> None:
    """Makes later imports from the plug-in's package read ``files`` alone.

    With ``strictly`` it raises ConfigurationError if the package was loaded from other files before.
    """
    top_package = _top_package(plugin)
    if _plugins not in sys.meta_path:
        sys.meta_path.insert(0, _plugins)
    if not any(module_name.partition(".")[0] == top_package for module_name in sys.modules):
        _plugins.packages[top_package] = files
    elif strictly and _plugins.packages.get(top_package) != files:
        raise ConfigurationError(
            f"{plugin.name}: other files of the package {plugin.words} are loaded here than those that were hashed",
            "start this program again",
        )
