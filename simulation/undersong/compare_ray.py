"""Cells of a comparison over a Ray cluster, or over this machine's cores by Ray: placing and restarting are Ray's work.

Every machine of the cluster needs the same version of Undersong, and the task file with what it names (data, models,
test file) under the same paths, as on a shared folder. The cells' files are written by the process that asks, so a
comparison goes on after a stop as with any other engine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from undersong.compare_cell import Bench, Cell
from undersong.compare_cells import SINGLE_THREAD, Measured, guarded
from undersong_common.errors import ConfigurationError, UndersongError

REACHED_S = 10.0
RESTARTS = 1  # of a cell whose worker or machine was lost

_benches: dict[tuple[Any, ...], Bench] = {}  # of this worker: what its cells share stays loaded


def over(address: str) -> Callable[[Bench, Sequence[Cell], int], Iterator[Measured]]:
    """What measures cells over the cluster at ``address`` (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``).

    An empty address begins Ray on this machine, with as many workers as are asked for; the cluster's own number of
    cores counts elsewhere.
    """

    def measured(bench: Bench, cells: Sequence[Cell], jobs: int) -> Iterator[Measured]:
        """(cell, figures or the error that stopped it), as each completes. Raises ConfigurationError without Ray."""
        if not cells:
            return
        _check_reachable(address)
        try:
            import ray
        except ImportError:
            raise ConfigurationError(
                "--engine ray needs Ray", 'pip install "undersong[flower]", or leave --engine away'
            ) from None
        here: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        try:
            ray.init(
                address=address or "local", log_to_driver=False, runtime_env={"env_vars": dict(SINGLE_THREAD)}, **here
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise ConfigurationError(
                f"--ray-address {address or 'local'}: {error}", "check the address: `ray status` on that machine"
            ) from None
        try:
            remote = ray.remote(num_cpus=1, max_retries=RESTARTS)(_in_worker)
            shared = ray.put(replace(bench, _loaded={}))
            waiting = {remote.remote(shared, cell): cell for cell in cells}
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1)
                for finished in done:
                    yield waiting.pop(finished), _value(ray, finished)
        finally:
            ray.shutdown()

    return measured


def _check_reachable(address: str) -> None:
    """Raises ConfigurationError where nobody listens: Ray itself tries for minutes and then ends the program."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--ray-address {address}: {error}", "check the address: `ray status` on that machine"
        ) from None


def _value(ray: Any, finished: Any) -> dict[str, Any] | UndersongError:
    try:
        value: dict[str, Any] | UndersongError = ray.get(finished)
    except ray.exceptions.WorkerCrashedError:
        return UndersongError("its worker was lost: killed, or out of memory")
    return value


def _in_worker(bench: Bench, cell: Cell) -> dict[str, Any] | UndersongError:
    key = (bench.task_file, bench.assignments, bench.test, bench.frechet_rows, bench.head, bench.insecure_noise_seed)
    return guarded(_benches.setdefault(key, bench), cell)
