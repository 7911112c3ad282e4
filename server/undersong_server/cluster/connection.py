"""A Ray cluster, or Ray on this machine: what is given to it is placed, and started again where a worker is lost.

Every machine needs the same version of Undersong, and the files that the work names (task, data, models) under the same
paths, as on a shared folder.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from undersong_common.errors import ConfigurationError, UndersongError

HERE = "local"  # this machine, where no cluster is named
# of each worker: Ray counts one core for it; read by the libraries when they are loaded
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# of this process, before Ray begins: nothing is told to Ray's makers, the environment is taken as it is, and workers
# have its priority (15 below it would let whatever else runs starve them)
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
AUTHENTICATION = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
REACHED_S = 10.0
RESTARTS = 1  # of work whose worker or machine was lost
_LOST = "its worker was lost: killed, or out of memory"


class Cluster:
    """A connection to Ray, made when work comes first; a context that ends it.

    A process has one connection at a time. What is sent to a cluster leaves this process: Ray keeps it in the memory
    of its machines, and on their disks where that is full. Ray on this machine listens on all its interfaces; who has
    not this process's token is refused. What a cluster returns is unpickled, so a cluster can run code here.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; empty or ``local`` begins Ray on this machine.
        workers: on this machine; None is one per core. A cluster's own number counts elsewhere.
        option: how the caller's user named the address, for errors.
    """

    def __init__(self, address: str, workers: int | None = None, *, option: str = "--ray") -> None:
        self._address = "" if address == HERE else address
        self._here = workers or len(os.sched_getaffinity(0))
        self._option = option
        self._lock = threading.Lock()
        self._ray: Any = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the next work makes another one."""
        with self._lock:
            if self._ray is not None:
                self._ray.shutdown()
                self._ray = None

    @property
    def cores(self) -> int:
        """Of the whole cluster. Raises ConfigurationError as :meth:`each`."""
        return max(1, int(self._connected().cluster_resources().get("CPU", 1)))

    def each(self, function: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
        """(number of the call, what ``function`` returned for its arguments), as each completes, on one core each.

        An argument that several calls have, the same object, is sent once. A call whose worker was lost is made once
        more, and is then an UndersongError in place of a value. ``function`` must be a module's own, and is better off
        returning its errors than raising them: Ray's words for a raised one hold its traceback.

        Raises ConfigurationError without Ray, or where no cluster is at the address.
        """
        if not calls:
            return
        ray = self._connected()
        remote = ray.remote(num_cpus=1, max_retries=RESTARTS)(function)
        kept = {id(argument): argument for call in calls for argument in call}
        sent = {name: ray.put(argument) for name, argument in kept.items()}
        waiting = {
            remote.remote(*(sent[id(argument)] for argument in call)): number for number, call in enumerate(calls)
        }
        try:
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1)
                for finished in done:
                    yield waiting.pop(finished), _value(ray, finished)
        finally:
            for unfinished in waiting:
                ray.cancel(unfinished)

    def _connected(self) -> Any:
        with self._lock:
            if self._ray is None:
                self._ray = self._connect()
            return self._ray

    def _connect(self) -> Any:
        named = f"{self._option} {self._address or HERE}"
        remedy = "check the address: `ray status` on that machine"
        _check_reachable(self._address, named, remedy)
        prepare(named, self._option, here=not self._address)
        try:
            import ray
        except ImportError:
            raise ConfigurationError(
                f"{named} needs Ray", f'pip install "undersong[ray]", or leave {self._option} away'
            ) from None
        if ray.is_initialized():
            raise ConfigurationError(f"{named}: this process works with Ray already", "end that first")
        here: dict[str, Any] = {} if self._address else {"num_cpus": self._here, "include_dashboard": False}
        try:
            ray.init(
                address=self._address or HERE,
                log_to_driver=False,
                runtime_env={"env_vars": dict(SINGLE_THREAD)},
                **here,
            )
        except Exception as error:  # noqa: BLE001 - Ray raises plain ones too
            raise ConfigurationError(f"{named}: {error}", remedy) from None
        return ray


def prepare(named: str, option: str, *, here: bool = True) -> None:
    """Sets this process's environment for Ray, before it is loaded.

    Ray that is begun ``here`` then answers whoever knows a token, drawn here and told to nobody.

    Args:
        named: what the user asked for, in errors; ``option`` is what would have to be left away.

    Raises ConfigurationError where Ray was loaded before without a token: it may not ask for one any more.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if here:
        _lock_others_out(named, option)


def _lock_others_out(named: str, option: str) -> None:
    mode, token = AUTHENTICATION
    if os.environ.get(mode) == "token" and os.environ.get(token):
        return
    if sys.modules.get("ray") is not None:
        raise ConfigurationError(
            f"{named}: Ray was loaded before, and would listen on all interfaces without asking for a token",
            f"set {mode}=token and {token} before this program begins, or leave {option} away",
        )
    os.environ.update({mode: "token", token: secrets.token_hex(32)})


@contextmanager
def connected(address: str | None) -> Iterator[Cluster | None]:
    """The cluster at ``address`` as :class:`Cluster` takes it, until the context ends; None for None."""
    if address is None:
        yield None
        return
    with Cluster(address) as cluster:
        yield cluster


def _check_reachable(address: str, named: str, remedy: str) -> None:
    """Raises ConfigurationError where nobody listens: Ray itself tries for minutes and then ends the program."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{named}: {error}", remedy) from None


def _value(ray: Any, finished: Any) -> Any:
    lost = ray.exceptions
    try:
        return ray.get(finished)
    except (lost.WorkerCrashedError, lost.OutOfMemoryError, lost.NodeDiedError, lost.ObjectLostError):
        return UndersongError(_LOST)
