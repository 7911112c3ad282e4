"""The operator's actions as plain functions with typed results: no command line, no HTTP, nothing is printed.

Every function that concerns a coordinator takes its folder. Results are frozen dataclasses. A module is imported when
it is first used, so that ``--help`` answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undersong_server.operations import (
        beginning,
        comparison,
        coordinator,
        curation,
        drafts,
        enrolment,
        form,
        overview,
        permissions,
        releases,
        runs,
        services,
        tasks,
        uploads,
    )

__all__ = [
    "beginning",
    "comparison",
    "coordinator",
    "curation",
    "drafts",
    "enrolment",
    "form",
    "overview",
    "permissions",
    "releases",
    "runs",
    "services",
    "tasks",
    "uploads",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
