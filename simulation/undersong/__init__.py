"""The library: many parties on one machine, from a DataFrame of records to a private synthetic corpus.

``import undersong as us``, then :class:`Task`, :func:`plan`, :func:`simulate`, :func:`evaluate`, :func:`compare` and
:func:`verify` (docs/library.md). The command line does the same with files. What ``__all__`` names keeps its meaning
within a major version; every other module of this package is internal. A name is imported when it is first used, so
that importing the package takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from undersong_common.version import VERSION

if TYPE_CHECKING:
    from undersong.front import compare, evaluate, plan, simulate, verify
    from undersong.results import Comparison, Evaluation, Plan, Simulation, Verification
    from undersong.task_files import Task
    from undersong_common.errors import UndersongError

__all__ = [
    "Comparison",
    "Evaluation",
    "Plan",
    "Simulation",
    "Task",
    "UndersongError",
    "Verification",
    "__version__",
    "compare",
    "evaluate",
    "plan",
    "simulate",
    "verify",
]

__version__ = VERSION
_MODULES = {
    **dict.fromkeys(("compare", "evaluate", "plan", "simulate", "verify"), "undersong.front"),
    **dict.fromkeys(("Comparison", "Evaluation", "Plan", "Simulation", "Verification"), "undersong.results"),
    "Task": "undersong.task_files",
    "UndersongError": "undersong_common.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
