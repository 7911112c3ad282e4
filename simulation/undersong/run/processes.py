"""Work spread over processes of this machine: the runs of an audit, and the cells of a comparison."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from undersong_server.cluster import SINGLE_THREAD


def each_in_processes(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yields (number of the call, its result) as each call of ``function`` completes; raises the first error.

    One job stays in this process: no other one has a notebook's functions.
    """
    if jobs == 1 or not calls:
        yield from ((number, function(*call)) for number, call in enumerate(calls))
        return
    # Fresh processes: forking one that has started torch's threads would hang.
    context = multiprocessing.get_context("spawn")
    environment_before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)  # read by the libraries when a worker loads them
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_worker) as pool:
            waiting = {pool.submit(function, *call): number for number, call in enumerate(calls)}
            try:
                for finished in as_completed(waiting):
                    yield waiting[finished], finished.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        for name, value in environment_before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _begin_worker() -> None:
    """Ends a worker with its parent: one whose parent was killed would wait for its next call for ever."""

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
