"""How many threads numbers are computed in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


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
    """Numpy's products and decompositions take one thread.

    For small ones: a second thread gains nothing there, and on a busy machine waiting for it costs tenfold.
    """
    with _pools(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _pools(_modules: int) -> Any:
    """The thread pools of the libraries that this process has loaded.

    Finding them reads the list of all its libraries, which takes longer than a small product; only the import of a
    module brings a new one.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()
