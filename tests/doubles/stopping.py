"""``python -m tests.doubles.stopping``: `undersong`, which stops itself once at a write of its journal.

The file ``stop-at`` beside the coordinator's folder holds "before" or "after" and part of a key. The process that is to
write such a key takes the file away and stops as by SIGSTOP.
"""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from undersong.cli import main
from undersong_server.database.journal import Journal

PLACE = Path(sys.argv[sys.argv.index("--home") + 1]).parent / "stop-at"
_exchange = Journal.exchange


def _due(given: list[tuple[str, bytes]]) -> str:
    """When to stop; "" for not at this write."""
    try:
        when, _, part = PLACE.read_text().partition(" ")
    except FileNotFoundError:
        return ""
    if not any(part in key for key, _ in given):
        return ""
    PLACE.unlink()
    return when


def _stopping(
    journal: Journal, dropped: Iterable[str], entries: Iterable[tuple[str, bytes]], *more: Any, **named: Any
) -> None:
    given = list(entries)
    when = _due(given)
    if when == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    _exchange(journal, dropped, given, *more, **named)
    if when == "after":
        os.kill(os.getpid(), signal.SIGSTOP)


Journal.exchange = _stopping  # type: ignore[method-assign,assignment]

if __name__ == "__main__":
    main()
