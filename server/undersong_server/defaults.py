"""Default values of the operator's options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOME = "coordinator"  # folder of a coordinator, below the current one
BIND = "0.0.0.0:7443"  # host:port that a coordinator listens on
METRICS = "127.0.0.1:9464"  # host:port of a coordinator's metrics and health
INVITATION_DAYS = 14.0
PATIENCE_S = 120.0  # longest wait of a request for a party
TOKEN_DAYS = 90.0  # life of a token with which a script reads the console
KEEPALIVE_S = 20.0  # silence on a stream after which either side asks


def public_cache_path(environment: Mapping[str, str]) -> Path:
    """File that keeps the embeddings of public texts between runs.

    It lies below $UNDERSONG_CACHE or $XDG_CACHE_HOME, else below ~/.cache.
    """
    base = environment.get("UNDERSONG_CACHE") or environment.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "undersong" / "public-embeddings.sqlite"
