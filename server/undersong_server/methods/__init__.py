"""The methods of the field, one file each: a module of this folder that defines ``METHOD`` is a method of its name.

An underscore in the file's name is a hyphen in the method's: ``cleaned_mixture.py`` is ``cleaned-mixture``.
``mixture_labels.py`` alone is ``mixture+labels``, its name before that rule.

The file holds the options ([method] keys), the plan of its private sums and ``run``, which a reader can lay beside the
paper; ``METHOD`` names them (:class:`undersong_server.methods.interface.Method`). Nothing else changes when one is
added. What several methods use lies in ``parts``. Other packages add methods by entry points of ``undersong.methods``;
a program of a researcher offers one to its own process by :func:`offer`.
"""

import ast
import hashlib
import importlib
import inspect
import pkgutil
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.program import configuration, plugins
from undersong_server.methods.interface import Method

FILES = {"mixture+labels": "mixture_labels"}  # modules of the methods to whose names the rule above does not apply
WHERE_OFFERED = (
    "a method that a program offers is known in that program alone: run the program, or make the method a package"
    " (docs/extending.md)"
)
OFFERED: dict[str, Method[Any]] = {}  # methods that programs offer to this process alone


def offer(name: str, method: Method[Any]) -> None:
    """Makes ``method`` known as ``name`` in this process, for simulations of a program that defines it.

    Raises ConfigurationError if one of this program's own methods has the name, or ``method`` is no :class:`Method`.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            "the first argument of offer() is not the name of a method",
            'call offer("NAME", Method(...))',
            code="method-form",
        )
    if not isinstance(method, Method):
        raise ConfigurationError(
            f"what is offered as {name!r} is no Method",
            f'call offer("{name}", Method(Options=Options, plan=plan, run=run))',
            code="method-form",
        )
    if name in own_names():
        raise ConfigurationError(f"there is a method {name!r} already", "choose another name", code="name-taken")
    OFFERED[name] = method


def names() -> tuple[str, ...]:
    """The names of all methods, sorted: this program's, those offered, and those of other installed packages."""
    return tuple(sorted({*own_names(), *OFFERED, *(plugin.name for plugin in plugins.installed("methods"))}))


@cache
def own_names() -> tuple[str, ...]:
    """The names of this program's methods, sorted. The folder is listed once in a process."""
    module_names = {module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg}
    plugin_names = module_names - {"interface", *FILES.values()}
    return tuple(sorted({*FILES, *(module.replace("_", "-") for module in plugin_names)}))


def hash_code(name: str) -> str:
    """SHA-256 (hex) of the code of a method that other people write; "" for one of this program's own.

    The hash covers the whole file that defines ``run``. In a notebook, which has no file, it covers the bytecode of
    ``plan`` and ``run``.
    """
    if name in own_names():
        return ""
    method = load(name)
    try:
        source_bytes = Path(inspect.getfile(method.run)).read_bytes()
        code_bytes = ast.dump(ast.parse(source_bytes)).encode()  # Neither a comment nor a blank line is code.
    except (OSError, TypeError, ValueError, SyntaxError):
        code_bytes = b"".join(_bytecode(method_function) for method_function in (method.plan, method.run))
    return hashlib.sha256(code_bytes).hexdigest()


def _bytecode(function: object) -> bytes:
    """The instructions, constants and names of a function and of the functions in it; b"" for another callable."""
    code_object = getattr(function, "__code__", function)
    if not isinstance(code_object, CodeType):
        return b""
    # The order in which a set shows its members differs from process to process.
    constant_bytes = [
        sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
        for constant in code_object.co_consts
        if not isinstance(constant, CodeType)
    ]
    nested_code = [_bytecode(constant) for constant in code_object.co_consts if isinstance(constant, CodeType)]
    return b"".join([code_object.co_code, repr((constant_bytes, code_object.co_names)).encode(), *nested_code])


def load(name: str) -> Method[Any]:
    """Returns the method ``name``: this program's own, else the one that was offered, else another package's.

    Raises ConfigurationError for an unknown name, with the nearest known one, and for a package that gives no method.
    """
    if name in own_names():
        module_name = FILES.get(name, name.replace("-", "_"))
        method: Method[Any] = importlib.import_module(f"{__name__}.{module_name}").METHOD
        return method
    if name in OFFERED:
        return OFFERED[name]
    plugin = plugins.find("methods", name)
    if plugin is None:
        raise ConfigurationError(
            f"[method] name: {name!r} is unknown", f"{configuration.nearest(name, names())}; {WHERE_OFFERED}"
        )
    plugin_method = plugins.load(plugin)
    if not isinstance(plugin_method, Method):
        raise ConfigurationError(
            f"the method {name!r} of the package {plugin.words} is no Method", "name its METHOD in the entry point"
        )
    return plugin_method
