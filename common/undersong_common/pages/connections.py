"""Connections of a page: one without a request ends soon, and of too many the one that has waited longest ends."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 30.0  # until a request has wholly arrived, or what was written was read
MOST_CONNECTIONS = 300  # beyond them the one that has waited longest for its browser is closed
MOST_AT_WORK = 400  # beyond them requests are answered with 503


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped here
    """One connection of a browser.

    Whoever opens many and neither asks nor reads loses their own: time counts from the beginning, whatever trickles in.
    """

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits()
        if (excess := len(self.connections) - MOST_CONNECTIONS) > 0:
            waiting = sorted((each for each in self.connections if each.waiting), key=lambda each: each.since)
            for each in waiting[:excess]:
                each.transport.abort()

    def on_response_complete(self) -> None:
        self._waits()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """True while it is the browser's turn: to ask, to send the rest, or to read."""
        return self.flow.write_paused or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _waits(self) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self._ends = self.loop.call_later(PATIENCE_S, self._end_if_waiting)

    def _stop_waiting(self) -> None:
        if self._ends is not None:
            self._ends.cancel()

    def _end_if_waiting(self) -> None:
        if self.waiting:
            self.transport.abort()
