"""Checks that no file imports another in a circle, within functions and for type checkers too (``make check``)."""

import configparser
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent


def packages() -> list[str]:
    """Returns the packages whose imports import-linter checks."""
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / ".importlinter", encoding="utf-8")
    return configuration["importlinter"]["root_packages"].split()


def imports() -> dict[str, AbstractSet[str]]:
    """Returns the modules that a module imports, by its name."""
    first, *rest = packages()
    graph = grimp.build_graph(first, *rest, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def cycle(imported: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Returns one circle of imports, from a module back to itself; empty if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> None:
    import_circle = cycle(imports())
    if import_circle:
        sys.exit("imports in a circle: " + " -> ".join(import_circle))


if __name__ == "__main__":
    main()
