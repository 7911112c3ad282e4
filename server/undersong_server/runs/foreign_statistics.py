"""Statistics of other packages, registered where the coordinator plans with them: what is installed here is trusted."""

from __future__ import annotations

from collections.abc import Iterable

from undersong_common import plugins
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_protocol import statistics
from undersong_protocol.plan import SumRequest


def register(requests: Iterable[SumRequest]) -> None:
    """Makes the statistics of a method's requests known, each with the hash of its package's source.

    Raises ConfigurationError for one that no package declares, or that is another class than the declared one.
    """
    for request in requests:
        asked = type(request.statistic)
        if asked.__module__.startswith("undersong_protocol.") or statistics.source(asked.name):
            continue
        plugin = plugins.find("statistics", asked.name)
        if plugin is None:
            raise ConfigurationError(
                f"{request.name}: no installed package declares the statistic {asked.name!r}",
                "declare it by an entry point of undersong.statistics: parties trust it by its name and hash",
            )
        if plugins.load(plugin) is not asked:
            raise ConfigurationError(
                f"{request.name}: {plugin.words} declares another statistic {asked.name!r} than the method asks for",
                "correct the entry point",
            )
        statistics.register_foreign(asked.name, asked, plugins.source_hash(plugin))


def register_named(sources: Iterable[tuple[str, str]]) -> None:
    """Makes statistics known that a plan names with these source hashes ("" for this program's own).

    Raises ConfigurationError where what is installed here is not just that; nothing else is imported.
    """
    for name, source in dict(sources).items():
        if not source or statistics.source(name) == source:
            continue
        plugin = plugins.find("statistics", name)
        if plugin is None or plugins.source_hash(plugin) != source:
            raise ConfigurationError(
                f"the plan's statistic {printable(name, 60)!r} is another package's, which is not installed here with"
                f" the plan's source {printable(str(source), 64)}",
                "install that very release of its package",
            )
        statistics.register_foreign(name, plugins.load(plugin, source), source)


def register_installed() -> None:
    """Makes every installed statistic known, in a process that computes for simulated parties and plans nothing."""
    for plugin in plugins.installed("statistics"):
        statistics.register_foreign(plugin.name, plugins.load(plugin), plugins.source_hash(plugin))
