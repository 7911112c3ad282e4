"""Following a run while another process drives it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common.errors import TransportError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations.runs import LOG_LINES
from undersong_server.runs.status import ENDED, FINAL, RunStatus

POLL_S = 0.2


@dataclass(frozen=True)
class RunEvent:
    """Something happened: ``lines`` are new in the run's log, ``status`` is how it stands now."""

    lines: tuple[str, ...]
    status: RunStatus

    def to_json(self) -> dict[str, Any]:
        return {"lines": list(self.lines), "status": self.status.to_json()}


def watch(home: Path, run: str, *, timeout_s: float | None = None) -> Iterator[RunEvent]:
    """Yields an event for each change until the run ends; the last event's status says how.

    The first event holds the last lines of the log. Where a later action is requested of a failed run, its old end
    does not count.

    Args:
        timeout_s: gives up after so many seconds; None never does.

    Raises:
        ConfigurationError: no such run.
        TransportError: the run did not end in time; it goes on.
    """
    folder = CoordinatorHome(home).run(run)
    folder.planned()
    begun = time.monotonic()
    read = max(0, len(folder.log()) - LOG_LINES)
    shown = ""
    while True:
        status = folder.status()
        lines = tuple(folder.log()[read:])
        read += len(lines)
        ended = status.state in FINAL or (status.state in ENDED and status.number >= folder.requested().number)
        if lines or status.words != shown or ended:
            shown = status.words
            yield RunEvent(lines, status)
        if ended:
            return
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            raise TransportError(f"run {run!r} did not end within {timeout_s:g} s", "it goes on; watch it again")
        time.sleep(POLL_S)
