"""Blocks of work on threads: every item once, errors surface, numpy's own setting stays."""

import subprocess
import sys
import types

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from undersong_common import workers
from undersong_common.workers import for_each


def test_every_item_once_and_errors_surface() -> None:
    done: list[int] = []
    for_each(done.append, range(100))
    assert sorted(done) == list(range(100))

    def fail(item: int) -> None:
        if item == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        for_each(fail, range(20))


@pytest.mark.heavy
def test_numpy_keeps_its_threads_and_a_fork_gets_its_own_pool() -> None:
    script = """
import os, numpy
from threadpoolctl import threadpool_info, threadpool_limits
threadpool_limits(3, user_api='blas')
from undersong_common.workers import for_each, one_numpy_thread
def threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}
assert threads() == {3}
seen = []
def work(_):
    with one_numpy_thread():
        pass  # whoever leaves first lifts no limit
    seen.append(threads())
for_each(work, range(50))
assert all(each == {1} for each in seen), seen
assert threads() == {3}
child = os.fork()
if child == 0:
    done = []
    for_each(done.append, range(10))
    os._exit(0 if sorted(done) == list(range(10)) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_pools_are_limited_inside_only_and_found_again_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.ones(2) @ np.ones(2) == 2.0  # numpy's pool is there
    scans: list[int] = []

    class Counted(ThreadpoolController):
        def __init__(self) -> None:
            scans.append(1)
            super().__init__()

    monkeypatch.setattr("threadpoolctl.ThreadpoolController", Counted)
    workers._products.cache_clear()

    def most() -> int:
        return max((pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()), default=1)

    before = most()
    for _ in range(3):
        with workers.one_numpy_thread():
            assert most() == 1
        assert most() == before
    assert len(scans) == 1
    monkeypatch.setitem(sys.modules, "a module that came later", types.ModuleType("later"))
    with workers.one_numpy_thread():
        assert len(scans) == 2
    workers._products.cache_clear()
