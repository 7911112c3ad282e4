"""Threads that each compute on one core: blocks of work side by side cost no barrier at every small operation.

Measured with blocks of top-Q votes on two busy cores: half the time of a library's own parallelism, whose every barrier
waits for the slower core. The libraries' products take one thread meanwhile, so that a block has the same bits on any
number of cores.
"""

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
_limited: list[Any] = []  # who has limited numpy's threads: the first one sets the limit, the last one lifts it


def for_each(work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Calls ``work`` with every item, on as many threads as numpy was given cores; raises what a call raised."""
    for _ in in_order(work, items):
        pass


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yields the result of ``work`` for every item, in order, as :func:`for_each`. Numpy's products take one thread."""
    pool = _pool()
    with one_numpy_thread():
        yield from map(work, items) if pool is None else pool.map(work, items)


def _pool() -> ThreadPoolExecutor | None:
    """The pool of threads; None if there is one core only."""
    with _LOCK:
        process = os.getpid()
        if process not in _POOLS:
            cores = max((each.num_threads for each in _products(len(sys.modules)).lib_controllers), default=1)
            _POOLS[process] = ThreadPoolExecutor(cores, thread_name_prefix="undersong") if cores > 1 else None
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
    """Numpy's products and decompositions take one thread, in all threads of this process.

    For small ones: a second thread gains nothing there, and on a busy machine waiting for it costs tenfold.
    """
    with _LOCK:
        _limited.append(None if _limited else _products(len(sys.modules)).limit(limits=1))
    try:
        yield
    finally:
        with _LOCK:
            last = _limited.pop()
            if not _limited:
                last.restore_original_limits()


@lru_cache(maxsize=1)
def _products(_modules: int) -> Any:
    """The thread pools of the products of the libraries that this process has loaded.

    Finding them reads the list of all its libraries, which takes longer than a small product; only the import of a
    module brings a new one.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController().select(user_api="blas")
