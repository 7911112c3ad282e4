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


def pinned(get_fab: Callable[[str, int], Any], hashes: frozenset[str], refusal: type[Exception]) -> Callable[..., Any]:
    """Wraps ``get_fab`` to raise ``refusal`` for a bundle whose SHA-256 is not in ``hashes``."""

    def get(fab_hash: str, run_id: int) -> Any:
        fab = get_fab(fab_hash, run_id)
        digest = hashlib.sha256(fab.content).hexdigest()
        if digest not in hashes:
            print(f"run {run_id} brings the app bundle {digest}, which is not pinned; it is not run", flush=True)
            raise refusal
        return fab

    return get


def run(hashes: Sequence[str], arguments: Sequence[str]) -> None:
    """Runs ``flower-supernode`` with ``arguments`` until it ends, for bundles with these SHA-256 hashes only.

    Raises ConfigurationError for a malformed hash, or a version of Flower that is missing or unsuitable.
    """
    if not hashes or not all(HASH.fullmatch(digest) for digest in hashes):
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

    def pulling(**keywords: Any) -> Any:
        # Flower takes this error to mean that the run is not running: it leaves the run's messages alone and goes on.
        keywords["get_fab"] = pinned(keywords["get_fab"], frozenset(hashes), RunNotRunningException)
        return pull(**keywords)

    internal._pull_and_store_message = pulling
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()
