"""Calls spread over a Ray cluster, or over Ray on this machine; a call whose worker process is lost is repeated.

Every machine needs the same version of Undersong, and the files that the work names (task, data, models) under the same
paths, as on a shared folder. Embeddings are the same rows, to the last bit, as this machine computes: a worker whose
processor or libraries give other bits is refused by name, so that a cache never holds rows of two kinds.
"""

import atexit
import hashlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from undersong_common.arrays import Float32
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder, Embedder, EmbeddingCache, Progress

HERE = "local"  # address that begins Ray on this machine instead of joining a cluster
# Environment of each worker, for which Ray counts one core; numpy and torch read it when they are loaded.
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Environment of this process before Ray begins: no usage statistics, and the installed packages as they are. Workers
# have this process's priority: Ray's own is 15 lower, and other programs would starve them.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "AUTOSCALER_METRIC_PORT": "-1",  # off, because it gives its figures to whoever asks, without a token
}
AUTHENTICATION = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"  # variables that make Ray ask its clients for a token
FOLDER = "RAY_TMPDIR"  # names the folder of sockets and logs
REACHED_S = 10.0  # longest wait for a cluster to answer
RESTARTS = 1  # repeats of a call whose worker or machine was lost
_LOST = "the worker process of a call was lost twice: killed, or out of memory"

TEXTS_A_CALL = 512  # one core embeds so many in some seconds
FEWEST = 2048  # smallest number of texts for which loading the model in other processes saves time
_CALLS_A_CORE = 8  # calls a core between two writes to a cache, so that a stop loses about a minute's work
_WORDS = ("the", "patient", "was", "seen", "on", "Monday", "with", "chest", "pain;", "BP", "137/82", "naïve")
# Texts of one word to 400 words. Two machines compute the same embeddings if those of these texts have the same bits.
_TRIAL_TEXTS = tuple(
    " ".join(_WORDS[word_number % len(_WORDS)] for word_number in range(length)) for length in (1, 5, 12, 30, 70, 400)
)


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to Ray that the first call opens; a context whose end closes it.

    A process has one connection at a time. What is sent to a cluster leaves this process: Ray keeps it in the memory
    of its machines, and on their disks if that is full. What a cluster returns is unpickled, so a cluster can run code
    here. Ray on this machine listens on all its interfaces and refuses whoever does not have this process's token.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; empty or ``local`` begins Ray on this machine.
        worker_count: number of workers on this machine; None is one per core. An existing cluster has its own number.
        option: how the caller's user named the address, for errors.
    """

    def __init__(self, address: str, worker_count: int | None = None, *, option: str = "--ray") -> None:
        self._address = "" if address == HERE else address
        self._local_worker_count = worker_count or len(os.sched_getaffinity(0))
        self._option = option
        self._lock = threading.Lock()
        self._ray: Any = None

    def __exit__(self, *_: object) -> None:
        """Ends the connection; the next call opens another one."""
        with self._lock:
            if self._ray is not None:
                self._ray.shutdown()
                self._ray = None

    @property
    def cores(self) -> int:
        """Cores of the whole cluster. Raises ConfigurationError as :meth:`each`."""
        return max(1, int(self._ensure_ray().cluster_resources().get("CPU", 1)))

    def each(
        self, function: Callable[..., Any], calls: Sequence[Sequence[Any]], *, gpus: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yields (number of the call, its result) as each call of ``function`` completes, each on one core.

        ``gpus``: number of GPUs for each call, if the cluster has any. A worker then keeps its GPUs for further calls.

        An object that several calls have as an argument is sent once. A call whose worker was lost is made once
        more; if it is lost again, its value is an UndersongError. ``function`` must belong to a module, and should
        return errors rather than raise them: Ray's message for a raised one holds its traceback.

        Raises ConfigurationError without Ray, or if no cluster is at the address.
        """
        if not calls:
            return
        ray = self._ensure_ray()
        if gpus and ray.cluster_resources().get("GPU"):
            gpu_options = {"num_gpus": gpus, "max_calls": 0}
        else:
            gpu_options = {}
        remote_function = ray.remote(num_cpus=1, max_retries=RESTARTS, **gpu_options)(function)
        argument_by_id = {id(argument): argument for call in calls for argument in call}
        reference_by_id = {argument_id: ray.put(argument) for argument_id, argument in argument_by_id.items()}
        number_of_waiting_call = {
            remote_function.remote(*(reference_by_id[id(argument)] for argument in call)): call_number
            for call_number, call in enumerate(calls)
        }
        try:
            while number_of_waiting_call:
                finished_calls, _ = ray.wait(list(number_of_waiting_call), num_returns=1)
                for finished_call in finished_calls:
                    yield number_of_waiting_call.pop(finished_call), _finished_value(ray, finished_call)
        finally:
            for unfinished_call in number_of_waiting_call:
                ray.cancel(unfinished_call)

    def _ensure_ray(self) -> Any:
        with self._lock:
            if self._ray is None:
                self._ray = self._connect_ray()
            return self._ray

    def _connect_ray(self) -> Any:
        shown_option = f"{self._option} {self._address or HERE}"
        remedy = "check the address: `ray status` on that machine"
        _check_reachable(self._address, shown_option, remedy)
        prepare(shown_option, self._option, here=not self._address)
        try:
            import ray
        except ImportError:
            raise ConfigurationError(
                f"{shown_option} needs Ray",
                f'pip install "undersong[ray]", or leave {self._option} away',
                code="ray-missing",
            ) from None
        if ray.is_initialized():
            raise ConfigurationError(
                f"{shown_option}: this process has a connection to Ray already",
                "end that connection first, with ray.shutdown()",
                code="ray-in-use",
            )
        if self._address:
            local_options: dict[str, Any] = {}
        else:
            local_options = {"num_cpus": self._local_worker_count, "include_dashboard": False}
        try:
            ray.init(
                address=self._address or HERE,
                log_to_driver=False,
                runtime_env={"env_vars": dict(SINGLE_THREAD)},
                **local_options,
            )
        except Exception as error:  # noqa: BLE001 - Ray raises plain ones too
            raise ConfigurationError(f"{shown_option}: {error}", remedy, code="ray-unreachable") from None
        return ray


def prepare(shown_option: str, option: str, *, here: bool = True) -> None:
    """Sets this process's environment for Ray, before it is loaded.

    Ray that is begun ``here`` requires a token, which is drawn here and known to this process only. Its sockets and
    logs lie in a folder of this user alone, deleted at the end of this process: Ray's own folder is writable by
    everybody.

    Args:
        shown_option: the option with its value, such as "--ray local", with which errors begin.
        option: the option that errors advise the user to leave out.
        here: True if this process begins Ray, False if it connects to a cluster.

    Raises ConfigurationError if Ray was loaded before without a token: then it may ask its clients for none.
    """
    for setting_name, setting_value in SETTINGS.items():
        os.environ.setdefault(setting_name, setting_value)
    if here and not os.environ.get(FOLDER):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="ray-")
        atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)
    mode_variable, token_variable = AUTHENTICATION
    if not here or (os.environ.get(mode_variable) == "token" and os.environ.get(token_variable)):
        return
    if sys.modules.get("ray") is not None:
        raise ConfigurationError(
            f"{shown_option}: Ray was loaded before, and would listen on all interfaces without asking for a token",
            f"set {mode_variable}=token and {token_variable} before this program begins, or leave {option} away",
            code="ray-without-token",
        )
    os.environ.update({mode_variable: "token", token_variable: secrets.token_hex(32)})


def connected(address: str | None) -> AbstractContextManager[Cluster | None]:
    """Returns a context that gives the :class:`Cluster` at ``address``, or None if the address is None."""
    if address is None:
        return nullcontext()
    return Cluster(address)


def _check_reachable(address: str, shown_option: str, remedy: str) -> None:
    """Raises ConfigurationError if nothing listens; Ray itself would try for minutes and then end the program."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACHED_S).close()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{shown_option}: {error}", remedy, code="ray-unreachable") from None


def _finished_value(ray: Any, finished_call: Any) -> Any:
    ray_errors = ray.exceptions
    try:
        return ray.get(finished_call)
    except (
        ray_errors.WorkerCrashedError,
        ray_errors.OutOfMemoryError,
        ray_errors.NodeDiedError,
        ray_errors.ObjectLostError,
    ):
        return UndersongError(_LOST, code="worker-lost")


class SpreadEmbedder(Embedder):
    """An embedder that spreads many texts over a cluster.

    Args:
        here: the embedder in this process, which embeds fewer than ``fewest`` texts.
        model: its name or folder, by which :func:`undersong_common.models.embedders.load` finds it at every machine of
            the cluster.
        cluster: open as long as this embedder is in use.
        fewest: smallest number of texts that the cluster embeds.
    """

    def __init__(self, here: Embedder, model: str | Path, cluster: Cluster, *, fewest: int = FEWEST) -> None:
        super().__init__(Path(model).absolute() if Path(model).is_dir() else model, here.fingerprint, here.max_windows)
        self._local_embedder = here
        self._cluster = cluster
        self._fewest = fewest

    @cached_property
    def dimension(self) -> int:
        return self._local_embedder.dimension

    def slab(self, missing_count: int) -> int:
        """Number of texts embedded in about a minute if ``missing_count`` are left. Raises as :meth:`encode`."""
        return TEXTS_A_CALL * _CALLS_A_CORE * (1 if missing_count < self._fewest else self._cluster.cores)

    @cached_property
    def _expected_hash(self) -> str:
        return _trial_hash(self._local_embedder)

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32:
        """Embeds as :meth:`Embedder.encode`, over the cluster if the texts are many.

        Raises:
            ConfigurationError: no cluster, or one of its machines has another embedder or computes other bits.
            UndersongError: the worker that embeds a part of the texts was lost twice.
        """
        if len(texts) < self._fewest:
            return self._local_embedder.encode(texts, progress)
        # A batch is as wide as its longest text, so texts of like lengths go together. The longest go first, or the
        # other workers would wait for them at the end.
        text_order = sorted(range(len(texts)), key=lambda text_number: -len(texts[text_number]))
        parts = [
            text_order[call_start : call_start + TEXTS_A_CALL] for call_start in range(0, len(text_order), TEXTS_A_CALL)
        ]
        shared_arguments = (self._source, self.max_windows, self.fingerprint, self._expected_hash)
        embeddings = np.zeros((len(texts), self.dimension), dtype=np.float32)
        done_count = 0
        for part_number, part_embeddings in self._cluster.each(
            embed_part,
            [(*shared_arguments, [texts[text_number] for text_number in part_numbers]) for part_numbers in parts],
        ):
            if isinstance(part_embeddings, UndersongError):
                raise part_embeddings
            embeddings[parts[part_number]] = part_embeddings
            done_count += len(parts[part_number])
            if progress is not None:
                progress(done_count, len(texts))
        return embeddings


def spread(
    here: Embedder, model: str | Path, cache: EmbeddingCache, cluster: Cluster | None, *, fewest: int = FEWEST
) -> CachedEmbedder:
    """Returns the embedder ``here`` with a cache, spread over ``cluster`` if there is one (:class:`SpreadEmbedder`)."""
    if cluster is None:
        return CachedEmbedder(here, cache)
    embedder = SpreadEmbedder(here, model, cluster, fewest=fewest)
    return CachedEmbedder(embedder, cache, slab=embedder.slab)


_loaded: dict[str, Embedder] = {}  # checked embedders of this worker by fingerprint


def embed_part(
    model: str | Path, max_windows: int, fingerprint: str, expected_hash: str, texts: Sequence[str]
) -> Float32 | UndersongError:
    """Embeds texts in a worker, float32 [n, d]; returns an error if this machine computes other embeddings.

    ``expected_hash``: hash of the trial texts' embeddings at the machine that makes the call.
    """
    try:
        if fingerprint not in _loaded:
            embedder = embedders.load(model, max_windows)
            if embedder.fingerprint != fingerprint:
                raise ConfigurationError(
                    f"this machine has another embedding model at {model}",
                    "copy the model's files there from the machine that asks",
                    code="other-embedder",
                )
            if _trial_hash(embedder) != expected_hash:
                raise ConfigurationError(
                    "this machine computes embeddings with other last bits than the machine that asks",
                    "use machines with the same processor and the same releases of numpy and torch, or begin the"
                    " command on one of them",
                    code="other-bits",
                )
            _loaded[fingerprint] = embedder
        return _loaded[fingerprint].encode(texts)
    except UndersongError as error:
        return at_this_machine(error)


def at_this_machine(error: UndersongError) -> ConfigurationError:
    """Returns the error with the name of this machine in front, for a call that returns errors to another machine."""
    return ConfigurationError(f"{socket.gethostname()}: {error.problem}", error.remedy, code=error.code)


def _trial_hash(embedder: Embedder) -> str:
    return hashlib.sha256(embedder.encode(_TRIAL_TEXTS).tobytes()).hexdigest()
