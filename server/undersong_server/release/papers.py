"""What is read of a published folder, whoever made it: regular files of a bounded size, and one meaning for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_server.release.files import MANIFEST_NAME

LARGEST_BYTES = 256 << 20  # of manifest.json or ledger.jsonl: a thousand parties and a hundred sums need less
FRESH = "it was changed after the run; get a fresh copy"


def read_text(path: Path) -> str | None:
    """A file's text; None where there is no such file.

    Raises ConfigurationError where it is no regular file (a pipe would never end), too large, or not UTF-8.
    """
    if not path.is_symlink() and not path.exists():
        return None
    if not path.is_file():
        raise ConfigurationError(f"{path}: is no regular file", FRESH)
    if (size := path.stat().st_size) > LARGEST_BYTES:
        raise ConfigurationError(f"{path}: has {size} bytes, {LARGEST_BYTES} are allowed", FRESH)
    try:
        return path.read_text(encoding="utf-8")
    except ValueError:
        raise ConfigurationError(f"{path}: is not text", FRESH) from None


def published_manifest(folder: Path) -> dict[str, Any]:
    """``manifest.json`` of a published data set. Raises ConfigurationError where there is none that can be read."""
    path = folder / MANIFEST_NAME
    text = read_text(path)
    if text is None:
        raise ConfigurationError(f"{path}: no such file", "name the output folder of a finished run")
    try:
        value = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: is not JSON", FRESH) from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: is not the manifest of a run", FRESH)
    return value


def sha256_of(path: Path) -> str | None:
    """SHA-256 (hex) of a regular file of any size; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ: of two equal ones a person may read the first and a program the last."""
    pairs = list(pairs)
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value
