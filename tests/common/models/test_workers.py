"""Blocks of work on threads: every item once, errors surface, a pool for each process."""

import os
import subprocess
import sys

import pytest

from undersong_common.models import workers
from undersong_common.models.workers import for_each


def test_workers_take_every_item_once_and_raise_its_error() -> None:
    done: list[int] = []
    for_each(done.append, range(100))
    assert sorted(done) == list(range(100))

    def fail(item: int) -> None:
        if item == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        for_each(fail, range(20))


@pytest.mark.heavy
def test_forked_process_gets_its_own_worker_pool() -> None:
    script = """
import os, numpy
from undersong_common.models.workers import for_each
for_each(print, range(5))
child = os.fork()
if child == 0:
    done = []
    for_each(done.append, range(10))
    os._exit(0 if sorted(done) == list(range(10)) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(("limit", "most"), [("1", 1), ("2", 2), ("999", 999), ("", 999), ("many", 999), ("1,4", 1)])
def test_omp_num_threads_limits_the_worker_pool(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert 1 <= workers._core_count() <= most
    assert workers._core_count() == min(most, len(os.sched_getaffinity(0)))
