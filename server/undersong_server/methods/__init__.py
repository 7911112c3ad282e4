"""The methods of the field, one file each: a module of this folder that defines ``METHOD`` is a method of its name.

An underscore in the file's name is a hyphen in the method's: ``cleaned_mixture.py`` is ``cleaned-mixture``.
``mixture_labels.py`` alone is ``mixture+labels``, its name before that rule.

The file holds the options ([method] keys), the plan of its private sums and ``run``, which a reader can lay beside the
paper; ``METHOD`` names them (:class:`undersong_server.methods.interface.Method`). Nothing else changes when one is
added. What several methods use lies in ``parts``. Other packages add methods by entry points of ``undersong.methods``;
a program of a researcher offers one to its own process by :func:`offer`.
"""

import importlib
import pkgutil
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration, plugins
from undersong_server.methods.interface import Method

FILES = {"mixture+labels": "mixture_labels"}  # files of methods with another name than the method's
OFFERED: dict[str, Method[Any]] = {}  # methods that programs offer to this process alone


def offer(name: str, method: Method[Any]) -> None:
    """Makes ``method`` known as ``name`` in this process, for simulations of a program that defines it.

    Raises ConfigurationError for a name that one of this program's own methods has.
    """
    if name in own_names():
        raise ConfigurationError(f"there is a method {name!r} already", "choose another name", code="name-taken")
    OFFERED[name] = method


def names() -> tuple[str, ...]:
    """The names of all methods, sorted: this program's, those offered, and those of other installed packages."""
    return tuple(sorted({*own_names(), *OFFERED, *(plugin.name for plugin in plugins.installed("methods"))}))


def own_names() -> tuple[str, ...]:
    """The names of this program's methods, sorted."""
    modules = {module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg}
    others = modules - {"interface", *FILES.values()}
    return tuple(sorted({*FILES, *(module.replace("_", "-") for module in others)}))


def load(name: str) -> Method[Any]:
    """The method of that name; this program's own goes before one that was offered or another package's.

    Raises ConfigurationError for an unknown name, with the nearest known one, and for another package that is at fault.
    """
    if name in own_names():
        file = FILES.get(name, name.replace("-", "_"))
        found: Method[Any] = importlib.import_module(f"{__name__}.{file}").METHOD
        return found
    if name in OFFERED:
        return OFFERED[name]
    plugin = plugins.find("methods", name)
    if plugin is None:
        raise ConfigurationError(f"[method] name: {name!r} is unknown", configuration.nearest(name, names()))
    loaded = plugins.load(plugin)
    if not isinstance(loaded, Method):
        raise ConfigurationError(
            f"the method {name!r} of the package {plugin.words} is no Method", "name its METHOD in the entry point"
        )
    return loaded
