"""A simulation on Flower's simulation engine: the parties' work is spread over Ray's actors, a message at a time.

What an actor needs lies in the workspace: whichever actor gets a message makes the party anew from its encrypted
journal, as a ClientApp process of a real federation does. What is public or the same for all parties (records file,
keys, embedding model, public blocks) an actor reads once.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undersong.run.records import private_tables
from undersong.run.workspace import SimulatedParties, clocks
from undersong_client.answering.computation import Lazy
from undersong_client.home import make_folder
from undersong_common.errors import ConfigurationError, InternalError, TransportError
from undersong_common.models import embedders
from undersong_common.models.embedding import CachedEmbedder
from undersong_server import cluster
from undersong_server.federation.exchange import Transport
from undersong_server.progress import Progress
from undersong_server.runs.execution import Outcome
from undersong_server.runs.planning import register_installed_statistics
from undersong_server.runs.task import Task

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from undersong_server.flower.app import FlowerTransport

STATE_FILE = "flower.json"  # holds all that an actor needs to know of the simulation
OBJECT_STORE_BYTES = 256 * 2**20  # Ray's shared memory: messages only, a few at a time
NODES_S = 600.0  # longest wait for all nodes
OUTSTANDING = 16  # messages per actor: enough to keep it busy, few enough to stay small
# Settings with which Flower calls no server of its makers.
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def over_flower(
    parties: SimulatedParties,
    names: Sequence[str],
    run: Callable[[Transport], Outcome],
    *,
    progress: Progress,
    actors: int | None = None,
) -> Outcome:
    """Lets Flower's engine host the parties while ``run`` drives the coordinator over it.

    Args:
        names: of the parties, one per simulated SuperNode.
        run: makes the run over the transport it is given; called in the ServerApp's thread.
        actors: Ray's processes; one per core if None.

    Raises:
        ConfigurationError: Flower or Ray is not installed, or Ray was loaded before without a token.
        and what ``run`` raises.
    """
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)
    cluster.prepare("--engine flower", "--engine flower")
    try:
        import ray  # noqa: F401
        from flwr.clientapp import ClientApp
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation
    except ImportError:
        raise ConfigurationError(
            "Flower's simulation engine is not installed", "pip install 'undersong[coordinator,flower]'"
        ) from None
    from undersong_server.flower.app import FlowerTransport

    actor_count = actors or len(os.sched_getaffinity(0))
    _write_state(parties)
    server = ServerApp()
    client = ClientApp()
    client.query()(_Actor(str(parties.state)))
    outcomes: list[Outcome | BaseException] = []

    @server.main()  # type: ignore[untyped-decorator]  # flwr has no types
    def main(grid: Grid, context: "Context") -> None:
        try:
            transport = FlowerTransport(grid, identities=None, say=progress.say, outstanding=OUTSTANDING * actor_count)
            _await_nodes(transport, len(names))
            outcomes.append(run(transport))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the engine
            outcomes.append(error)

    with _silence_log(), _idle_nodes_skipped():
        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=len(names),
            backend_config=_make_engine_settings(actor_count),
        )
    if not outcomes:
        raise InternalError("Flower's engine ended without running the ServerApp")
    if isinstance(outcomes[0], BaseException):
        raise outcomes[0]
    return outcomes[0]


def _make_engine_settings(actor_count: int) -> dict[str, dict[str, Any]]:
    """Returns settings of Flower's engine: so many processes of Ray, each on one core and without a GPU."""
    return {
        "init_args": {"num_cpus": actor_count, "object_store_memory": OBJECT_STORE_BYTES, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }


def _await_nodes(transport: "FlowerTransport", node_count: int) -> None:
    """Blocks until every node has introduced itself: the engine adds them while the ServerApp runs already."""
    give_up_at_s = time.monotonic() + NODES_S
    while len(nodes := transport.locate(timeout_s=NODES_S)) < node_count:
        if time.monotonic() > give_up_at_s:
            raise TransportError(
                f"after {NODES_S:g} s only {len(nodes)} of {node_count} simulated parties have answered",
                "look at Flower's log with --debug",
            )
        time.sleep(0.2)


@dataclass(frozen=True)
class _Actor:
    """Client app that the engine sends to its actors with every message. It holds only the state's folder."""

    state: str

    def __call__(self, message: "Message", context: "Context") -> "Message":
        from undersong_client.flower_app import address_of, reply_to, requests_of

        state = _load_state(self.state)
        partition = context.node_config["partition-id"]
        return reply_to(message, state.answers(partition, requests_of(message), address_of(context)))


class _ActorState:
    """State that one actor keeps between messages. It holds nothing that belongs to a message."""

    def __init__(self, state_folder: Path) -> None:
        from undersong_client.storage.public_blocks import DiskBlocks

        state_json = json.loads((state_folder / STATE_FILE).read_text(encoding="utf-8"))
        task = Task.model_validate({**state_json["task"], "folder": Path(state_json["folder"])})
        self._parties = SimulatedParties(task, state_folder, state_json["seed"], state_json["insecure_noise_seed"])
        self._clock = clocks(state_json["insecure_noise_seed"])[0]
        self._tables = private_tables(task, state_json["seed"])
        self._names = list(self._tables)
        self._blocks = DiskBlocks(state_folder / "blocks")
        self._embedder_section = task.embedder
        register_installed_statistics()

    @cached_property
    def _load_embedder(self) -> "CachedEmbedder":

        section = self._embedder_section
        return CachedEmbedder(embedders.load(section.model, section.max_windows), self._parties.shared_cache())

    def answers(self, party_index: int, requests: Sequence[bytes], address: str) -> list[bytes]:

        name = self._names[party_index]
        embedder: Any = Lazy(lambda: self._load_embedder)
        party = self._parties.party(
            name,
            self._tables[name],
            blocks=self._blocks,
            embed=lambda texts: self._load_embedder.encode(texts),
            embedder=embedder,
            clock=self._clock,
            address=address,
        )
        return [party.handle(request) for request in requests]


@cache
def _load_state(folder: str) -> _ActorState:
    return _ActorState(Path(folder))


@contextmanager
def _idle_nodes_skipped() -> Iterator[None]:
    """Keeps Flower's engine from searching for messages to nodes that have none.

    Ten times a second it looks through every stored message for each of its nodes: with a thousand of both that keeps
    one core busy with nothing else.
    """
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState

    original_store = InMemoryLinkState.store_message_ins
    original_get = InMemoryLinkState.get_message_ins
    waiting_by_node: Counter[int] = Counter()  # number of messages that a node has not got yet
    lock = threading.Lock()

    def store_and_count(self: Any, message: Any) -> Any:
        if message_id := original_store(self, message):
            with lock:
                waiting_by_node[message.metadata.dst_node_id] += 1
        return message_id

    def get_if_waiting(self: Any, node_id: int, limit: int | None, **keywords: Any) -> Any:
        if waiting_by_node[node_id] <= 0:
            return []
        messages = original_get(self, node_id, limit, **keywords)
        with lock:
            waiting_by_node[node_id] -= len(messages)
        return messages

    InMemoryLinkState.store_message_ins = store_and_count
    InMemoryLinkState.get_message_ins = get_if_waiting
    try:
        yield
    finally:
        InMemoryLinkState.store_message_ins = original_store
        InMemoryLinkState.get_message_ins = original_get


@contextmanager
def _silence_log() -> Iterator[None]:
    """Silences Flower's own log unless ours is verbose, and restores the environment that it changes."""
    logger = logging.getLogger("flwr")
    level_before = logger.level
    path_before = os.environ.get("PYTHONPATH")
    logger.setLevel(logging.DEBUG if logging.getLogger("undersong").level == logging.DEBUG else logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level_before)
        os.environ.pop("PYTHONPATH", None) if path_before is None else os.environ.update(PYTHONPATH=path_before)


def _write_state(parties: SimulatedParties) -> None:

    make_folder(parties.state / "blocks")
    state_json = {
        "task": parties.task.model_dump(exclude={"folder"}),  # not in pydantic's JSON mode, which has no infinity
        "folder": str(parties.task.folder),
        "seed": parties.seed,
        "insecure_noise_seed": parties.insecure_noise_seed,
    }
    (parties.state / STATE_FILE).write_text(json.dumps(state_json, default=str), encoding="utf-8")
