"""Results with the same bits on every machine: blocks of work in threads, and arithmetic on rows.

Each block has one core. Sums, norms and cosines of a row are the same whatever rows stand beside it. Blocks of top-Q
votes on two busy cores took half the time of a library's own parallelism, whose every barrier waits for the slower
core. While blocks are computed, libraries take one thread, so that a block has the same bits on any number of cores.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from undersong_common.arrays import Float64, Int64
from undersong_common.program.library_threads import one_library_thread

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_LOCK = threading.Lock()
_POOLS: dict[int, ThreadPoolExecutor | None] = {}  # pools by process, because threads do not survive a fork


def for_each(work: Callable[[_Item], None], items: Iterable[_Item]) -> None:
    """Calls ``work`` with every item, in as many threads as there are cores; raises what a call raised."""
    with one_library_thread():
        for _ in in_order(work, items):
            pass


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yields the results of ``work`` in the order of the items, computed in threads as by :func:`for_each`.

    Libraries take one thread for each item.
    """

    def compute(item: _Item) -> _Result:
        with one_library_thread():
            return work(item)

    # For a single item the hand-over to a thread can take longer than the work.
    if isinstance(items, Sized) and len(items) < 2:
        pool = None
    else:
        pool = _thread_pool()
    yield from map(compute, items) if pool is None else pool.map(compute, items)


def _thread_pool() -> ThreadPoolExecutor | None:
    """Returns this process's pool of threads, one per core; None if there is one core only."""
    with _LOCK:
        process_id = os.getpid()
        if process_id not in _POOLS:
            core_count = _core_count()
            if core_count > 1:
                _POOLS[process_id] = ThreadPoolExecutor(core_count, thread_name_prefix="undersong")
            else:
                _POOLS[process_id] = None
        return _POOLS[process_id]


def _core_count() -> int:
    """Returns the number of cores that this process may use, at most OMP_NUM_THREADS if that is set."""
    limit_text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if hasattr(os, "sched_getaffinity"):
        core_count = len(os.sched_getaffinity(0))
    else:
        core_count = os.cpu_count() or 1
    if limit_text.isdecimal() and int(limit_text):
        return min(core_count, int(limit_text))
    return core_count


# Arithmetic on rows of numbers whose result for one row is the same beside any other rows, to the last bit.
# Numpy's sums and products over an axis take another order, hence other last bits, for other shapes of the whole
# array. Here every step is one addition, multiplication, division or square root an element, each of which IEEE 754
# rounds in one way only; and functions beyond these are looked up in tables.

STEPS_A_TURN = 1 << 16  # resolution of an angle: half a step is 5e-5 radians
STEPS_A_UNIT = 1 << 12  # resolution of an exponent
LARGEST_EXPONENT = 16  # e^-x is 1e-7 here, and counts as zero.

_ANGLES = np.arange(STEPS_A_TURN) * (2.0 * np.pi / STEPS_A_TURN)
_COSINES, _SINES = np.cos(_ANGLES), np.sin(_ANGLES)
_DECAY = np.append(np.exp(-np.arange(LARGEST_EXPONENT * STEPS_A_UNIT) / STEPS_A_UNIT), 0.0)


def row_sums(values: Float64) -> Float64:
    """Returns sums over the last axis, float64 [..., n] -> [...]; 0 for n = 0.

    It adds one half of the row to the other until one number is left, so that the bits do not depend on other rows.
    """
    width = values.shape[-1]
    if width == 0:
        return np.zeros(values.shape[:-1])
    while width > 1:
        half_width = width // 2
        folded = values[..., : width - half_width].copy()
        folded[..., :half_width] += values[..., width - half_width :]
        values = folded
        width -= half_width
    return values[..., 0]


def row_norms(values: Float64) -> Float64:
    """Returns Euclidean norms over the last axis, float64 [..., n] -> [...]."""
    return np.sqrt(row_sums(values * values))


def cosines(steps: Int64) -> Float64:
    """Returns the cosines of angles, float64, same shape; a step is 1 / ``STEPS_A_TURN`` of a turn."""
    table_entries: Float64 = _COSINES[steps & (STEPS_A_TURN - 1)]
    return table_entries


def sines(steps: Int64) -> Float64:
    """Returns the sines of angles in the steps of :func:`cosines`, float64, same shape."""
    table_entries: Float64 = _SINES[steps & (STEPS_A_TURN - 1)]
    return table_entries


def decay(exponents: Float64) -> Float64:
    """Returns e^-x of each x >= 0, float64, same shape.

    x is first rounded to a multiple of 1 / ``STEPS_A_UNIT``; the result is 0 from x = ``LARGEST_EXPONENT`` on.

    >>> decay(np.array([0.0, 99.0])).tolist()
    [1.0, 0.0]
    """
    steps = np.rint(np.minimum(exponents, float(LARGEST_EXPONENT)) * STEPS_A_UNIT).astype(np.int64)
    table_entries: Float64 = _DECAY[steps]
    return table_entries


def softmax(logits: Float64) -> Float64:
    """Returns the softmax over the last axis, float64 [..., n] of finite numbers, n >= 1 -> the same shape.

    Exponents are rounded as :func:`decay` does; a logit ``LARGEST_EXPONENT`` below the largest has probability 0. Each
    result is within [0, 1].

    >>> softmax(np.array([[7.0, 7.0], [0.0, 99.0]])).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    odds = decay(logits.max(axis=-1, keepdims=True) - logits)
    return odds / row_sums(odds)[..., None]
