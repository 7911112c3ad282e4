"""Kinds of text generators, one file each: a module of this folder whose ``KIND`` is a subclass of GeneratorSettings.

The module's name is the ``kind`` of the ``[[generators]]`` tables that it reads. Nothing else changes when one is
added. Other packages add kinds by entry points of ``undersong.generators`` that name such a subclass.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import SerializeAsAny

from undersong_common.errors import ConfigurationError
from undersong_common.program import plugins
from undersong_common.program.configuration import ModelByValue, nearest
from undersong_server.generators.interface import GeneratorSettings


def names() -> tuple[str, ...]:
    """Names of all kinds, sorted: this program's and those of other packages that are installed."""
    return tuple(sorted({*_own_names(), *(plugin.name for plugin in plugins.installed("generators"))}))


def load(kind: str) -> type[GeneratorSettings]:
    """Returns the class of settings of a kind: this program's own, else that of another installed package.

    Raises ConfigurationError for an unknown kind, with the nearest known one, and for a package that gives no class.
    """
    if kind in _own_names():
        settings_class: type[GeneratorSettings] = importlib.import_module(f"{__name__}.{kind}").KIND
        return settings_class
    plugin = plugins.find("generators", kind)
    if plugin is None and kind == "vllm":
        raise ConfigurationError(
            'the kind "vllm" was removed: vLLM serves its models at an endpoint',
            'start vllm serve FOLDER, and write kind = "openai", base_url = "http://127.0.0.1:8000/v1", '
            'api_key_env = ""',
        )
    if plugin is None:
        raise ConfigurationError(f"kind {kind!r} is unknown", nearest(kind, names()))
    plugin_class = plugins.load(plugin)
    if not isinstance(plugin_class, type) or not issubclass(plugin_class, GeneratorSettings):
        raise ConfigurationError(
            f"the generator {kind!r} of the package {plugin.words} is no subclass of GeneratorSettings",
            "correct its entry point",
        )
    return plugin_class


def _own_names() -> frozenset[str]:
    return _module_names(tuple(__path__))


@cache
def _module_names(folders: tuple[str, ...]) -> frozenset[str]:
    """Returns the names of the modules in folders, which are listed once in a process."""
    return frozenset(module.name for module in pkgutil.iter_modules(folders))


def _settings_of(table: Any) -> type[GeneratorSettings]:
    if isinstance(table, Mapping):
        kind = table.get("kind")
    else:
        kind = getattr(table, "kind", None)
    if not isinstance(kind, str):
        raise ConfigurationError("kind is required and missing", f"write kind = ..., one of {', '.join(names())}")
    return load(kind)


GeneratorTable = Annotated[SerializeAsAny[GeneratorSettings], ModelByValue(_settings_of)]
