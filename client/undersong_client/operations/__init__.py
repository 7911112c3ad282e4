"""Actions of a hospital's people, as plain functions with typed results. They use no command line and no HTTP.

Every function takes the party's folder. Results are frozen values with ``to_json``. They are for these people only and
must not leave the building.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undersong_client.operations import (
        corpus,
        daemon,
        data,
        dossier,
        evidence,
        joining,
        outbox,
        rules,
        runs,
        services,
    )

__all__ = ["corpus", "daemon", "data", "dossier", "evidence", "joining", "outbox", "rules", "runs", "services"]


def __getattr__(name: str) -> Any:
    """Imports a module of this package when it is first used, so that help and light commands load none of them."""
    if name not in __all__:
        raise AttributeError(name)
    return import_module(f"{__name__}.{name}")
