"""The event loop of this process's streams, in one thread of its own.

One for all: gRPC has one poller in a process, and each of its events wakes every event loop that there is.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading

THREAD = "stream"
END_S = 2.0  # for what still runs when the process ends

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """The loop, started with the first call; it runs until the process ends."""
    global _loop
    with _lock:
        if _loop is None:
            started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()
            thread = threading.Thread(target=lambda: asyncio.run(_run(started)), name=THREAD, daemon=True)
            thread.start()
            _loop, stop = started.get()
            atexit.register(_end, _loop, stop, thread)
        return _loop


async def _run(started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stop = asyncio.Event()
    started.put((asyncio.get_running_loop(), stop))
    await stop.wait()


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread) -> None:
    """Cancels what still runs, while it can: the interpreter breaks its threads off anywhere, in gRPC's code too."""
    loop.call_soon_threadsafe(stop.set)
    thread.join(END_S)
