"""Optional packages: errors for a missing one name the extra of this program that installs it."""

import re
from collections.abc import Iterator
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
_REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ["']([\w-]+)["']""")


def package_of(module: str) -> str:
    """Returns the name of the package that installs a top-level module.

    >>> package_of("sklearn"), package_of("prometheus_client")
    ('scikit-learn', 'prometheus-client')
    """
    return _PACKAGES.get(module, module.replace("_", "-"))


def extra_of(package: str) -> str | None:
    """Returns the first extra of pyproject.toml that installs a package; None if no extra does."""
    try:
        requirements = metadata.requires("undersong") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return None
    return next((each[2] for each in map(_REQUIREMENT.match, requirements) if each and each[1] == package), None)


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
        if (extra := extra_of(package)) is None:
            raise
        problem, remedy = f"the package {package} is not installed", f'pip install "undersong[{extra}]"'
        raise ConfigurationError(
            f"{place}: {problem}" if place else problem,
            f"{remedy}, or {otherwise}" if otherwise else remedy,
            code="no-package",
        ) from error
