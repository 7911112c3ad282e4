"""Threads that each run torch on one core: blocks of work side by side cost no barrier at every small operation.

Measured with blocks of top-Q votes on two busy cores: half the time of torch's own parallelism, whose every barrier
waits for the slower core.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_LOCK = threading.Lock()
_POOLS: dict[int, ThreadPoolExecutor | None] = {}  # by process: threads do not survive a fork


def for_each(work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Calls ``work`` with every item, on as many threads as torch was given cores; raises what a call raised."""
    for _ in in_order(work, items):
        pass


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yields the result of ``work`` for every item, in order, as :func:`for_each`. Each call has one torch thread."""
    pool = _pool()
    if pool is not None:
        yield from pool.map(work, items)
        return
    for item in items:
        with one_torch_thread():
            result = work(item)
        yield result


def _pool() -> ThreadPoolExecutor | None:
    """None if there is one core only."""
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


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch computes in the calling thread alone: the same sums in the same order on any number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_numpy_thread() -> Iterator[None]:
    """Numpy's products and decompositions take one thread.

    For small ones: a second thread gains nothing there, and on a busy machine waiting for it costs tenfold.
    """
    with _pools(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _pools(_modules: int) -> Any:
    """The thread pools of the libraries that this process has loaded.

    Finding them reads the list of all its libraries, which takes longer than a small product; only the import of a
    module brings a new one.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
