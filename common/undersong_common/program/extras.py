"""Optional packages: errors for a missing one name the extra of this program that installs it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec

from undersong_common.errors import ConfigurationError

# Modules whose package has another name. The name of any other differs from its package's in hyphens only.
_PACKAGES = {
    "argon2": "argon2-cffi",
    "grpc_health": "grpcio-health-checking",
    "multipart": "python-multipart",
    "sklearn": "scikit-learn",
}
# Name, extras and the extra that has it, of a requirement in a wheel's description.
_REQUIREMENT = re.compile(r"""([\w.-]+)(?:\[([^\]]*)\])?.*extra == ["']([\w-]+)["']""")
_TORCH = ("torch", "sentence-transformers", "transformers")


def package_of(module: str) -> str:
    """Returns the name of the package that installs a top-level module.

    >>> package_of("sklearn"), package_of("prometheus_client")
    ('scikit-learn', 'prometheus-client')
    """
    return _PACKAGES.get(module, module.replace("_", "-"))


def packages_of_extras() -> dict[str, set[str]]:
    """Returns the packages that each extra of pyproject.toml installs, those of further extras that it names included.

    The extras have the order of pyproject.toml. The result is {} if undersong is run from its sources.
    """
    try:
        description = metadata.metadata("undersong")
    except metadata.PackageNotFoundError:
        return {}
    packages: dict[str, set[str]] = {extra: set() for extra in description.get_all("Provides-Extra") or []}
    nested_extras: dict[str, set[str]] = {extra: set() for extra in packages}
    for text in description.get_all("Requires-Dist") or []:
        if (requirement := _REQUIREMENT.match(text)) is None:
            continue
        package, extras, extra = requirement.groups()
        if package == "undersong":
            nested_extras[extra].update(extras.split(","))
        else:
            packages[extra].add(package)
    return {
        extra: set().union(*(packages[reached_extra] for reached_extra in _reached_extras(extra, nested_extras)))
        for extra in packages
    }


def _reached_extras(extra: str, nested_extras: Mapping[str, set[str]]) -> set[str]:
    """Returns an extra and all extras that it names, directly or through others."""
    reached_extras: set[str] = set()
    pending_extras = [extra]
    while pending_extras:
        next_extra = pending_extras.pop()
        if next_extra not in reached_extras:
            reached_extras.add(next_extra)
            pending_extras += nested_extras[next_extra]
    return reached_extras


def extra_of(package: str) -> str | None:
    """Returns the first extra of pyproject.toml that installs a package; None if no extra does."""
    return next((extra for extra, packages in packages_of_extras().items() if package in packages), None)


def missing_packages(*extra_names: str) -> list[str]:
    """Returns the packages of these extras that are not installed, sorted; none if undersong is run from its sources.

    >>> missing_packages("no-such-extra")
    []
    """
    packages_by_extra = packages_of_extras()
    required_packages = set().union(*(packages_by_extra.get(extra, set()) for extra in extra_names))
    return sorted(package for package in required_packages if not _is_installed(package))


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def remedy_of(package: str) -> str | None:
    """Returns the line that installs a package with its extra; None if no extra has it."""
    if (extra := extra_of(package)) is None:
        return None
    remedy = f'pip install "undersong[{extra}]"'
    if package in _TORCH:
        remedy += " (with torch for CUDA; without a GPU install a CPU build of torch before it: docs/operations.md)"
    return remedy


def require(*modules: str) -> None:
    """Raises ModuleNotFoundError for the first of these top-level modules that is not installed; imports no module."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


@contextmanager
def named(place: str = "", otherwise: str = "") -> Iterator[None]:
    """Turns a failed import of an optional package within the block into an error that names its extra.

    That error is a ConfigurationError (code "no-package") with the import's own error as its cause. Other errors pass
    as they are.

    Args:
        place: what needs the package, such as a file; it begins the error.
        otherwise: a remedy beside the package's installation.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = package_of(error.name or "")
        if (remedy := remedy_of(package)) is None:
            raise
        problem = f"the package {package} is not installed"
        raise ConfigurationError(
            f"{place}: {problem}" if place else problem,
            f"{remedy}, or {otherwise}" if otherwise else remedy,
            code="no-package",
        ) from error
