"""Work spread over processes of this machine: the runs of an audit, and the cells of a comparison."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from undersong_server.cluster import SINGLE_THREAD


def each_in_processes(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], process_count: int
) -> Iterator[tuple[int, Any]]:
    """Calls ``function`` once for each entry of ``calls``; yields (index of the call, its result) as each completes.

    Raises the first error of a call.

    Args:
        calls: positional arguments of each call.
        process_count: number of processes; 1 calls the function in this process, as a function of a notebook requires.
    """
    if process_count == 1 or not calls:
        yield from ((call_number, function(*arguments)) for call_number, arguments in enumerate(calls))
        return
    # Fresh processes: forking one that has started torch's threads would hang.
    context = multiprocessing.get_context("spawn")
    environment_before = {name: os.environ.get(name) for name in SINGLE_THREAD}
    os.environ.update(SINGLE_THREAD)  # read by the libraries when a worker loads them
    try:
        with ProcessPoolExecutor(process_count, mp_context=context, initializer=_begin_worker) as pool:
            number_by_future = {
                pool.submit(function, *arguments): call_number for call_number, arguments in enumerate(calls)
            }
            try:
                for future in as_completed(number_by_future):
                    yield number_by_future[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        for name, value in environment_before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _begin_worker() -> None:
    """Ends this worker when its parent ends. Without this, a worker of a killed parent would wait for ever."""

    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
