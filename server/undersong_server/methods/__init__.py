"""The methods of the field, one file each; a method is found by its file's name.

A method's file holds ``Options`` (a frozen pydantic model of its [method] keys), ``plan(options, setting)`` (every
private sum it will make, in order), ``generator_calls(options, setting)`` and ``run(options, run)``, which a reader can
lay beside the paper. Nothing else changes when one is added.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any, Protocol, cast

from pydantic import BaseModel

from undersong_common import configuration
from undersong_common.errors import ConfigurationError
from undersong_protocol.plan import SumRequest
from undersong_server.methods.interface import RunContext, Setting
from undersong_server.pool import Sample


class Method(Protocol):
    """What a method's module offers."""

    Options: type[BaseModel]

    def plan(self, options: Any, setting: Setting) -> Sequence[SumRequest]: ...

    def generator_calls(self, options: Any, setting: Setting) -> int: ...

    def run(self, options: Any, run: RunContext) -> Sequence[Sample]: ...


def names() -> tuple[str, ...]:
    """Every method there is, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(name: str) -> Method:
    """The method's module. Raises ConfigurationError with the nearest known name."""
    if name not in names():
        raise ConfigurationError(f"[method] name: {name!r} is unknown", configuration.nearest(name, names()))
    return cast(Method, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
