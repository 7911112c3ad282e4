"""Cells of a comparison over a Ray cluster, or over this machine's cores by Ray (undersong_server.cluster).

The cells' files are written by the process that asks, so a comparison goes on after a stop as with any other engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from undersong.compare_cell import Bench, Cell
from undersong.compare_cells import Measured, guarded
from undersong_common.errors import UndersongError
from undersong_server.cluster import Cluster

_benches: dict[tuple[Any, ...], Bench] = {}  # of this worker: what its cells share stays loaded


def over(address: str) -> Callable[[Bench, Sequence[Cell], int], Iterator[Measured]]:
    """What measures cells over the cluster at ``address`` (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``).

    An empty address begins Ray on this machine, with as many workers as are asked for; the cluster's own number of
    cores counts elsewhere.
    """

    def measured(bench: Bench, cells: Sequence[Cell], jobs: int) -> Iterator[Measured]:
        """(cell, figures or the error that stopped it), as each completes. Raises ConfigurationError without Ray."""
        shared = replace(bench, _loaded={})
        with Cluster(address, jobs, option="--ray-address") as cluster:
            for number, value in cluster.each(_in_worker, [(shared, cell) for cell in cells]):
                yield cells[number], value

    return measured


def _in_worker(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    key = (bench.task_file, bench.assignments, bench.test, bench.frechet_rows, bench.insecure_noise_seed)
    return guarded(_benches.setdefault(key, bench), cell)
