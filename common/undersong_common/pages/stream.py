"""Live stream to a page's screens: tells whether a screen is out of date and whether the program behind it runs."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.requests import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from undersong_common.pages.site import Site

BEAT_S = 1.0  # time between two events of a stream
MOST_STREAMS, MOST_OF_SESSION = 200, 10  # largest numbers of streams of all browsers, and of one session
LASTS_S = 3600.0  # longest life of one stream; the browser then connects again, and its session is checked anew


@dataclass(frozen=True)
class Pulse:
    """State of the program's folder, as far as screens depend on it.

    Attributes:
        version: a text that changes whenever something that a screen shows has changed.
        away: sentence if the program behind this page is not running; "" if it is.
    """

    version: str
    away: str = ""


class _Counted(StreamingResponse):  # type: ignore[misc]  # fastapi is untyped here
    """A response that counts in ``stream_counts`` as an open stream of its watcher until its connection ends."""

    def __init__(self, events: AsyncIterator[str], stream_counts: Counter[object], watcher: object) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._stream_counts = stream_counts
        self._watcher = watcher
        stream_counts[watcher] += 1

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream_counts[self._watcher] -= 1


class PulseStream:
    """Sends each open screen its present :class:`Pulse` as a server-sent event every ``BEAT_S`` seconds.

    Each event holds the whole state, so that a browser that connects again misses nothing.

    Args:
        look: returns the pulse for a topic, which the screen names; called once per beat for all browsers together.
    """

    def __init__(self, site: Site, look: Callable[[str], Pulse]) -> None:
        self._site = site
        self._look = look
        self._last_pulses: dict[str, tuple[float, Pulse]] = {}  # time and pulse of the last look, by topic
        self._topic_locks: dict[str, asyncio.Lock] = {}
        self._stream_counts: Counter[object] = Counter()  # number of open streams, by session
        site.raw("/stream", self._stream_endpoint)
        site.raw("/alive", self._answer_alive)

    async def _stream_endpoint(self, request: Request) -> Response:
        page_visitor = await run_in_threadpool(lambda: self._site.who(request, active=False))
        if page_visitor is None:
            return JSONResponse({"problem": "nobody is logged in"}, status_code=401)
        visiting_account, session = page_visitor
        watcher_name = visiting_account.name if session is None else session.number
        if self._stream_counts[watcher_name] >= MOST_OF_SESSION or self._stream_counts.total() >= MOST_STREAMS:
            return JSONResponse({"problem": "too many pages are open"}, status_code=429)
        page_topic = request.query_params.get("topic", "")[:200]
        return _Counted(self._stream_events(request, page_topic), self._stream_counts, watcher_name)

    def _answer_alive(self, request: Request) -> Response:
        """Answers 204 if a stream would be given, else 401: a browser's event source does not say why it ended."""
        return Response(status_code=401 if self._site.who(request, active=False) is None else 204)

    async def _stream_events(self, request: Request, topic: str) -> AsyncIterator[str]:
        end_at_s = time.monotonic() + LASTS_S
        while time.monotonic() < end_at_s and not self._site.ending.is_set():
            topic_pulse = await self._topic_pulse(topic)
            pulse_json = {"version": topic_pulse.version, "away": topic_pulse.away, "at": time.time()}
            yield f"event: pulse\ndata: {json.dumps(pulse_json)}\n\n"
            await asyncio.sleep(BEAT_S)
            if await run_in_threadpool(lambda: self._site.who(request, active=False)) is None:
                yield "event: ended\ndata: {}\n\n"
                return

    async def _topic_pulse(self, topic: str) -> Pulse:
        lock = self._topic_locks.setdefault(topic, asyncio.Lock())
        async with lock:
            looked_at_s, seen_pulse = self._last_pulses.get(topic, (0.0, Pulse("")))
            if time.monotonic() - looked_at_s >= BEAT_S * 0.9:
                seen_pulse = await run_in_threadpool(self._safe_look, topic)
                if len(self._last_pulses) > 500:
                    self._last_pulses.clear()
                self._last_pulses[topic] = (time.monotonic(), seen_pulse)
            return seen_pulse

    def _safe_look(self, topic: str) -> Pulse:
        try:
            return self._look(topic)
        except Exception as error:  # noqa: BLE001 - a stream must not end because a file is away for a moment
            return Pulse("", f"this page cannot read its folder ({type(error).__name__})")
