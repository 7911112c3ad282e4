"""Blocks of work on threads: every item once, errors surface, numpy's own setting stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from undersong_common.workers import for_each

pytestmark = pytest.mark.heavy


def test_every_item_once_and_errors_surface() -> None:
    done: list[int] = []
    for_each(done.append, range(100))
    assert sorted(done) == list(range(100))

    def fail(item: int) -> None:
        if item == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        for_each(fail, range(20))


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
