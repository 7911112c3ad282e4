"""Python imports this module at its start where this folder is on its path: then texts are embedded by hashing.

So a test's processes, and those that they start, load no weights. Where ``CLOCK`` names a file, their clock is ahead by
the seconds that the file states.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

CLOCK = "UNDERSONG_TEST_CLOCK"


def _set_clock(file: Path) -> None:
    """Replaces ``time.time`` before any program binds it."""
    seconds, ahead_s = time.time, 0.0

    def shifted() -> float:
        nonlocal ahead_s
        with suppress(OSError, ValueError):  # no descriptor is left, or the file is being written
            ahead_s = float(file.read_text())
        return seconds() + ahead_s

    time.time = shifted


if CLOCK in os.environ:
    _set_clock(Path(os.environ[CLOCK]))

from undersong_common.models import embedders  # noqa: E402 - it may bind the clock
from undersong_common.models.embedding import Embedder  # noqa: E402


def _load(*_: object) -> Embedder:
    from tests.doubles.party_home import HashedEmbedder

    return HashedEmbedder()


def _dimension(model: str) -> int:
    return _load().dimension


embedders.dimension = _dimension
Embedder.load = staticmethod(_load)  # type: ignore[assignment,method-assign]
