"""Reference methods of the simulation's comparison: methods of newer papers, one file each, that no task may name.

They make their private sums like any other method, and their plans charge them. Each has lost its comparison, or has
not been compared enough, so that no user is offered it. A page of each follows from the table beside its file
(tools/papers.py). The file's name with hyphens is the method's.
"""

import importlib
import pkgutil
from functools import cache

from undersong_server import methods


@cache
def names() -> tuple[str, ...]:
    """Returns the names of the methods of this folder, sorted. The folder is listed once in a process."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def offer(name: str) -> None:
    """Makes the method ``name`` known to this process if it is one of this folder; does nothing for another name."""
    if name in names():
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        methods.offer(name, module.METHOD)
