"""How many threads numbers are computed in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        yield
