"""Coroutines in a test beside others that drive a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_a_thread(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` in another thread: Playwright's driver leaves its own event loop running in the main one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()
