"""Loops of tests: until something has come to pass, and of coroutines beside others that drive a browser."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` in another thread: Playwright's driver leaves its own event loop running in the main one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


def wait_for(
    condition: Callable[[], object],
    timeout_s: float = 10.0,
    *,
    said: Callable[[], str] = lambda: "it did not come to pass",
    every_s: float = 0.02,
) -> None:
    """Returns once ``condition`` holds; fails with what ``said`` returns where it does not in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(every_s)
