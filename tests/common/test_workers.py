"""Blocks of work on threads: every item once, errors surface, torch's own setting stays."""

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


def test_torch_keeps_its_threads_and_a_fork_gets_its_own_pool() -> None:
    import torch

    script = """
import os, torch
torch.set_num_threads(2)
from undersong_common.workers import for_each
seen = set()
for_each(lambda _: seen.add(torch.get_num_threads()), range(50))
assert seen == {1}, seen
assert torch.get_num_threads() == 2
child = os.fork()
if child == 0:
    done = []
    for_each(done.append, range(10))
    os._exit(0 if sorted(done) == list(range(10)) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert torch.get_num_threads() >= 1
