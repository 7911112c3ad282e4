"""The library: many parties on one machine, from a DataFrame of records to a private synthetic corpus.

``import undersong as us``, then :class:`Task`, :func:`plan`, :func:`simulate`, :func:`evaluate` and the others of
``__all__`` (docs/library.md). The command line does the same with files. What ``__all__`` names keeps its meaning
within a major version; every other module of this package is internal. A name is imported when it is first used, so
that importing the package takes no time.

>>> import undersong as us
>>> us.__version__.count(".")
2
"""

import importlib
from typing import TYPE_CHECKING, Any

from undersong_common.version import VERSION

if TYPE_CHECKING:
    from undersong.library.functions import audit, compare, evaluate, load, plan, simulate, try_, verify
    from undersong.library.results import Audit, Comparison, Evaluation, Plan, Published, Simulation, Verification
    from undersong.library.task_files import Task
    from undersong_common.errors import UndersongError

__all__ = [
    "Audit",
    "Comparison",
    "Evaluation",
    "Plan",
    "Published",
    "Simulation",
    "Task",
    "UndersongError",
    "Verification",
    "__version__",
    "audit",
    "compare",
    "evaluate",
    "load",
    "plan",
    "simulate",
    "try_",
    "verify",
]

__version__ = VERSION
_FUNCTIONS = ("audit", "compare", "evaluate", "load", "plan", "simulate", "try_", "verify")
_RESULTS = ("Audit", "Comparison", "Evaluation", "Plan", "Published", "Simulation", "Verification")
_MODULES = {
    **dict.fromkeys(_FUNCTIONS, "undersong.library.functions"),
    **dict.fromkeys(_RESULTS, "undersong.library.results"),
    "Task": "undersong.library.task_files",
    "UndersongError": "undersong_common.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    attribute = getattr(module, name)
    if name in _FUNCTIONS:
        attribute = module.public(attribute)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted(__all__)
