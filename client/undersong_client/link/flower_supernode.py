"""A Flower SuperNode that runs only app bundles with known hashes.

A SuperLink pushes code to its SuperNodes: the bundle (FAB) that a run names is installed and started. Flower's own
``--trusted-entities`` admits bundles that a reviewer has signed on Flower's hub. This module admits bundles by their
SHA-256, before anything of them is unpacked. Otherwise it behaves as ``flower-supernode``.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from undersong_common.errors import ConfigurationError

HASH = re.compile(r"[0-9a-f]{64}")


def pinned(get_fab: Callable[[str, int], Any], hashes: frozenset[str], refused: type[Exception]) -> Callable[..., Any]:
    """Wraps ``get_fab`` to raise ``refused`` for a bundle whose SHA-256 is not in ``hashes``."""

    def get(fab_hash: str, run_id: int) -> Any:
        fab = get_fab(fab_hash, run_id)
        found = hashlib.sha256(fab.content).hexdigest()
        if found not in hashes:
            print(f"run {run_id} brings the app bundle {found}, which is not pinned; it is not run", flush=True)
            raise refused
        return fab

    return get


def run(hashes: Sequence[str], arguments: Sequence[str]) -> None:
    """Runs ``flower-supernode`` with ``arguments`` until it ends, for bundles with these SHA-256 hashes only.

    Raises ConfigurationError for a malformed hash, or a version of Flower that is missing or unsuitable.
    """
    if not hashes or not all(HASH.fullmatch(each) for each in hashes):
        raise ConfigurationError(
            "--fab-hash takes the SHA-256 of an app bundle, 64 hexadecimal digits",
            "sha256sum the bundle that `flwr build` wrote; ask the operator for the same bundle",
        )
    try:
        from flwr.supercore.run import RunNotRunningException
        from flwr.supernode import start_client_internal as internal
        from flwr.supernode.cli.flower_supernode import flower_supernode
    except ImportError:
        raise ConfigurationError("Flower is not installed", "pip install 'undersong[flower]'") from None
    pull = internal._pull_and_store_message

    def pulling(**given: Any) -> Any:
        # A run that is not running: Flower leaves its messages alone and goes on.
        given["get_fab"] = pinned(given["get_fab"], frozenset(hashes), RunNotRunningException)
        return pull(**given)

    internal._pull_and_store_message = pulling
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()
