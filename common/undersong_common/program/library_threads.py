"""Limits numpy, scipy, scikit-learn and torch to one thread, from one object that owns their numbers of threads.

A product's last bits depend on the number of threads, so everything of ours computes with one. The owner counts those
who need that, sets what is not 1, and reads it back from the thread that computes. The first who enters sets a number
that holds for the whole process, and the last who leaves restores it; a program of ours holds 1 until it ends.

Some numbers hold for the process (OpenBLAS with threads of its own, torch's default), others for the thread that sets
them (OpenMP). threadpoolctl lets only the first thread that ever set OpenBLAS's number set it again. So the owner
starts a thread that takes this right over and sets the numbers that hold for the process.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from undersong_common.errors import InternalError

_TORCH = "torch"
# A library that is loaded later reads its number of threads from these variables of the environment.
_AT_START = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LibraryThreads:
    """Counts the users of one library thread, sets the numbers of threads, and restores them after the last user."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._user_counts = {False: 0, True: 0}  # number of users that do not limit torch (False), and that do (True)
        self._threads_before: dict[str, int] = {}  # the process's own numbers of threads, by library
        self._thread_state = threading.local()

    def enter(self, *, torch_too: bool = True) -> None:
        """Makes this thread compute with one library thread until :meth:`leave`.

        Args:
            torch_too: False leaves torch and OpenMP as they are, for whatever a model of the task's own computes.

        Raises InternalError if a library has another number of threads afterwards.
        """
        with self._lock:
            self._user_counts[torch_too] += 1
            libraries = [library for library in _loaded_libraries() if torch_too or library.user_api == "blas"]
            thread_libraries = [(library, library.num_threads) for library in libraries if _holds_for_thread(library)]
            vars(self._thread_state).setdefault("numbers", []).append(thread_libraries)
            try:
                self._set_process(libraries, torch_too)
                for library, _ in thread_libraries:
                    library.set_num_threads(1)
                _read_back(libraries, torch_too)
            except BaseException:
                self.leave(torch_too=torch_too)
                raise

    def leave(self, *, torch_too: bool = True) -> None:
        """Ends the limit that this thread's last :meth:`enter` began; the last user restores the former numbers."""
        with self._lock:
            self._user_counts[torch_too] -= 1
            if not self._user_counts[True] and (threads_before := self._threads_before.pop(_TORCH, None)) is not None:
                sys.modules[_TORCH].set_num_threads(threads_before)
            if not any(self._user_counts.values()):
                _set_from_own_thread(self._threads_before)
                self._threads_before.clear()
            for library, threads_before in vars(self._thread_state)["numbers"].pop():
                library.set_num_threads(threads_before)

    def _set_process(self, libraries: list[Any], torch_too: bool) -> None:
        thread_counts = {}
        for library in libraries:
            if not _holds_for_thread(library) and library.num_threads not in (None, 1):
                self._threads_before.setdefault(library.filepath, library.num_threads)
                thread_counts[library.filepath] = 1
        _set_from_own_thread(thread_counts)
        if torch_too and (torch_threads := _torch_threads()) not in (None, 1):
            self._threads_before.setdefault(_TORCH, torch_threads)
            sys.modules[_TORCH].set_num_threads(1)


_OWNER = LibraryThreads()


@contextmanager
def one_library_thread() -> Iterator[None]:
    """Makes every library compute with one thread within the block, so that bits do not depend on the number of cores.

    Use it for small products too: a second thread gains nothing there, and waiting for it on a busy machine costs
    tenfold. Raises InternalError if a library keeps another number.
    """
    _OWNER.enter()
    try:
        yield
    finally:
        _OWNER.leave()


@contextmanager
def one_thread_for_products() -> Iterator[None]:
    """Does as :func:`one_library_thread` for numpy and scipy, but not for torch, which a run's own models may use."""
    _OWNER.enter(torch_too=False)
    try:
        yield
    finally:
        _OWNER.leave(torch_too=False)


@contextmanager
def one_thread_in_program() -> Iterator[None]:
    """Does as :func:`one_thread_for_products` for a program and those that it starts, also for later libraries."""
    os.environ.update(dict.fromkeys(_AT_START, "1"))
    with one_thread_for_products():
        yield


def _read_back(libraries: list[Any], torch_too: bool) -> None:
    thread_counts = {library.filepath: library.num_threads for library in libraries}
    if torch_too:
        thread_counts[_TORCH] = _torch_threads()
    wrong_counts = {
        os.path.basename(library_name): thread_count
        for library_name, thread_count in thread_counts.items()
        if thread_count not in (None, 1)
    }
    if wrong_counts:
        raise InternalError(
            f"libraries kept several threads after they were set to one: {wrong_counts}", code="library-threads"
        )


def _torch_threads() -> int | None:
    """Returns with how many threads torch computes when this thread calls it; None if torch is not loaded."""
    torch_threads: int | None = None
    if (torch := sys.modules.get(_TORCH)) is not None:
        torch_threads = torch.get_num_threads()
    return torch_threads


def _holds_for_thread(library: Any) -> bool:
    """Returns True if a library's number of threads holds for the thread that sets it, not for the process."""
    return library.user_api == "openmp" or getattr(library, "threading_layer", "") == "openmp"


def _set_from_own_thread(thread_counts: dict[str, int]) -> None:
    """Sets each library's number of threads for the process, from a new thread that has ended when this returns.

    threadpoolctl gives the right to set OpenBLAS's number to another thread only after the last one has ended or given
    it up.
    """
    if not thread_counts:
        return

    def set_all() -> None:
        for library in _loaded_libraries():
            if library.filepath in thread_counts:
                if (take_over := getattr(library, "clear_controlling_thread", None)) is not None:
                    take_over(force=True)
                library.set_num_threads(thread_counts[library.filepath])

    thread = threading.Thread(target=set_all, name="library threads")
    thread.start()
    thread.join()


def _loaded_libraries() -> list[Any]:
    """Returns threadpoolctl's controllers for the thread pools of all libraries that this process has loaded."""
    # The import of threadpoolctl and its search take time that a command without numpy and torch need not spend.
    if "numpy" not in sys.modules and _TORCH not in sys.modules:
        return []
    return _search_libraries(len(sys.modules))


@lru_cache(maxsize=1)
def _search_libraries(_modules: int) -> list[Any]:
    """Searches all loaded libraries, which takes longer than a small product, and caches the result.

    It searches again once the number of modules has changed, because only an import loads a library.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return list(ThreadpoolController().lib_controllers)
