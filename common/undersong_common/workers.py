"""Threads that each run torch on one core: blocks of work side by side cost no barrier at every small operation.

Measured with blocks of top-Q votes on two busy cores: half the time of torch's own parallelism, whose every barrier
waits for the slower core.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from undersong_common.threads import one_torch_thread

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_LOCK = threading.Lock()
_POOLS: dict[int, ThreadPoolExecutor | None] = {}  # by process: threads do not survive a fork


def for_each(work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Calls ``work`` with every item, on as many threads as torch was given cores; raises what a call raised."""
    for _ in in_order(work, items):
        pass


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """What ``work`` gives for every item, in their order; as :func:`for_each`. Each call has one torch thread."""
    pool = _pool()
    if pool is not None:
        yield from pool.map(work, items)
        return
    for item in items:
        with one_torch_thread():
            result = work(item)
        yield result


def _pool() -> ThreadPoolExecutor | None:
    """None where there is one core only."""
    with _LOCK:
        process = os.getpid()
        if process not in _POOLS:
            import torch

            cores = torch.get_num_threads()
            if cores == 1:
                _POOLS[process] = None
            else:
                pool = ThreadPoolExecutor(cores, thread_name_prefix="undersong-torch")
                together = threading.Barrier(cores)

                def settle(_: int) -> None:
                    together.wait()  # so that every thread runs this once
                    torch.get_num_threads()  # a thread's first use of torch sets it to the common number
                    torch.set_num_threads(1)

                for _ in pool.map(settle, range(cores)):
                    pass
                torch.set_num_threads(cores)  # the setting is each thread's own, but new threads inherit the last
                _POOLS[process] = pool
        return _POOLS[process]
