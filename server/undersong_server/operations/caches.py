"""Location of the embeddings of public texts, which are kept between runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def public_cache_path(environment: Mapping[str, str]) -> Path:
    """A file below $UNDERSONG_CACHE or $XDG_CACHE_HOME, else below ~/.cache."""
    base = environment.get("UNDERSONG_CACHE") or environment.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "undersong" / "public-embeddings.sqlite"
