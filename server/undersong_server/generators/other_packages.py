"""Generators of other packages: what their entry points of ``undersong.generators`` name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from undersong_common import plugins
from undersong_common.embedding import Embed
from undersong_common.errors import ConfigurationError
from undersong_server.generators.interface import Generator


class NamedSettings(Protocol):
    """Settings that a generator is built from; :class:`undersong_server.generators.settings.CommonSettings` is."""

    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class Surroundings:
    """What a generator may be built with beside its own settings.

    Attributes:
        labels: of the task; empty where it has none.
        folder: where relative paths start.
        embed: texts -> float32 [n, d] unit vectors.
        environment: where keys are found.
    """

    labels: tuple[str, ...]
    folder: Path
    embed: Embed
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GeneratorKind:
    """A kind of generator; the entry point's name is the ``kind`` of its tables.

    Attributes:
        Settings: a subclass of CommonSettings: the keys of its ``[[generators]]`` table.
        build: of the settings and the surroundings; raises ConfigurationError where it cannot write.
    """

    Settings: type[Any]
    build: Callable[[Any, Surroundings], Generator]


def find(kind: str) -> GeneratorKind | None:
    """The installed kind of that name. Raises ConfigurationError where a package's entry point is none."""
    plugin = plugins.find("generators", kind)
    if plugin is None:
        return None
    loaded = plugins.load(plugin)
    if not isinstance(loaded, GeneratorKind):
        raise ConfigurationError(
            f"the generator {kind!r} of the package {plugin.words} is no GeneratorKind", "correct its entry point"
        )
    return loaded


def build(settings: NamedSettings, surroundings: Surroundings) -> Generator:
    """The generator of another package's settings."""
    found = find(settings.kind)
    if found is None:
        raise ConfigurationError(f"the package of the generators {settings.kind!r} is not installed", "install it")
    return found.build(settings, surroundings)
