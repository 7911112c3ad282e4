"""One thread for small products: every library's pool, also of one that was loaded later."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from undersong_common import workers


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
