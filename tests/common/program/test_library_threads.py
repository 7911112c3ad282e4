"""One owner of the libraries' threads: everything of ours computes with one, and a notebook gets its numbers back."""

import os
import subprocess
import sys
import types
from functools import lru_cache
from typing import Any

import pytest

from undersong_common.errors import InternalError
from undersong_common.program import library_threads
from undersong_common.program.library_threads import LibraryThreads, one_library_thread


class FakeLibrary:
    """A library's controller; ``stuck`` ones ignore whoever sets their number."""

    def __init__(self, name: str, number: int, *, user_api: str = "blas", stuck: bool = False) -> None:
        self.filepath, self.num_threads, self.user_api, self._stuck = name, number, user_api, stuck

    def set_num_threads(self, number: int) -> None:
        if not self._stuck:
            self.num_threads = number


def owner_of(monkeypatch: pytest.MonkeyPatch, *libraries: FakeLibrary) -> LibraryThreads:
    monkeypatch.setattr(library_threads, "_loaded_libraries", lambda: list(libraries))
    monkeypatch.setattr(library_threads, "_TORCH", "no such module")
    return LibraryThreads()


def test_last_of_nested_thread_blocks_restores_original_thread_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy, scipy, openmp = FakeLibrary("n", 4), FakeLibrary("s", 3), FakeLibrary("o", 2, user_api="openmp")
    owner = owner_of(monkeypatch, numpy, scipy, openmp)
    owner.enter()
    owner.enter()
    owner.leave()
    assert (numpy.num_threads, scipy.num_threads, openmp.num_threads) == (1, 1, 1)
    owner.leave()
    assert (numpy.num_threads, scipy.num_threads, openmp.num_threads) == (4, 3, 2)


def test_thread_block_without_torch_leaves_openmp_threads_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy, openmp = FakeLibrary("n", 4), FakeLibrary("o", 2, user_api="openmp")
    owner = owner_of(monkeypatch, numpy, openmp)
    owner.enter(torch_too=False)
    assert (numpy.num_threads, openmp.num_threads) == (1, 2)
    owner.enter()
    assert (numpy.num_threads, openmp.num_threads) == (1, 1)
    owner.leave()
    assert (numpy.num_threads, openmp.num_threads) == (1, 2)
    owner.leave(torch_too=False)
    assert (numpy.num_threads, openmp.num_threads) == (4, 2)


def test_a_library_that_keeps_several_threads_stops_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    other, stuck = FakeLibrary("other", 4), FakeLibrary("/lib/stuck.so", 2, stuck=True)
    owner = owner_of(monkeypatch, other, stuck)
    for _ in range(2):
        with pytest.raises(InternalError, match=r"stuck\.so") as refused:
            owner.enter()
        assert refused.value.code == "library-threads"
        assert other.num_threads == 4, "nobody is left in the block"


def test_thread_number_changed_within_a_block_is_overruled_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = FakeLibrary("n", 4)
    owner = owner_of(monkeypatch, numpy)
    owner.enter()
    numpy.num_threads = 3
    owner.enter()
    assert numpy.num_threads == 1
    owner.leave()
    owner.leave()
    assert numpy.num_threads == 4


def test_thread_libraries_are_searched_again_only_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    found = library_threads._search_libraries.__wrapped__

    def counted(modules: int) -> Any:
        searches.append(modules)
        return found(modules)

    monkeypatch.setattr(library_threads, "_search_libraries", lru_cache(maxsize=1)(counted))
    for _ in range(3):
        with one_library_thread():
            pass
    assert len(set(searches)) == len(searches) <= 2  # threadpoolctl itself may be loaded by the first
    monkeypatch.setitem(sys.modules, "a module that came later", types.ModuleType("later"))
    before = len(searches)
    with one_library_thread():
        assert len(searches) == before + 1


IN_PROCESS = """
import os, sys, threading
import numpy as np, scipy.linalg, torch
from concurrent.futures import ThreadPoolExecutor
from threadpoolctl import threadpool_info, threadpool_limits
from undersong_common.program.library_threads import one_library_thread
from undersong_common.models.workers import for_each

def numbers():
    return [library["num_threads"] for library in threadpool_info()] + [torch.get_num_threads()]

threadpool_limits(3)  # as a notebook does, by the thread that threadpoolctl then lets set the number alone
torch.set_num_threads(3)
before = numbers()
assert set(before) == {3}, before
together = threading.Barrier(4)
seen = []

def block(number):
    together.wait()
    with one_library_thread():
        seen.append(numbers())
        np.linalg.eigh(np.eye(50) + np.ones((50, 50)))
        with one_library_thread():
            seen.append(numbers())
        seen.append(numbers())

with ThreadPoolExecutor(4) as pool:
    for _ in range(20):
        list(pool.map(block, range(4)))
for_each(lambda _: seen.append(numbers()), range(20))
assert all(set(each) == {1} for each in seen), seen
assert numbers() == before, (numbers(), before)
"""


@pytest.mark.slow
def test_thread_blocks_use_one_thread_and_restore_a_notebook_s_number() -> None:
    pytest.importorskip("torch")
    several = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")}
    subprocess.run([sys.executable, "-c", IN_PROCESS], check=True, timeout=120, env=several)


IN_PROGRAM = """
from undersong_common.program import entry
def command():
    import numpy, scipy.linalg
    from threadpoolctl import threadpool_info
    assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {1}
entry.run(command)
"""


@pytest.mark.slow
def test_a_program_s_libraries_have_one_thread_outside_any_block() -> None:
    several = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3")}
    subprocess.run([sys.executable, "-c", IN_PROGRAM], check=True, timeout=120, env=several)
