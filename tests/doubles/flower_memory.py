"""Flower in one process: its own link state, grid and simulation loop; only Ray is replaced, by this thread."""

import threading
from collections.abc import Mapping
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.compat.client.run_info_store import DeprecatedRunInfoStore
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.fleet.vce.vce_api import _register_nodes, run_api
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

RUN = 4711


class Here(Backend):
    """Flower's seam for whatever runs a ClientApp: this one runs it at once."""

    num_workers = 1

    def __init__(self) -> None:
        super().__init__({})

    def build(self, app_fn) -> None:
        self._app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None: ...

    def process_message(self, message, context):
        return self._app(message=message, context=context), context


class FlowerInMemory:
    """A SuperLink's state with one node per party (``nodes``, by name); ``grid`` is what a ServerApp is given.

    Args:
        app: what every node runs.
        folders: each node's ``party-folder``.
    """

    def __init__(self, app: ClientApp, folders: Mapping[str, Path]) -> None:
        states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, SUPERLINK_NODE_ID
        run = Run.create_empty(run_id=RUN)
        run.primary_task_id = 1
        run.federation_id = NOOP_FEDERATION_ID
        states.state().run_ids[RUN] = RunRecord(run=run)
        states.state().task_store[1] = Task(task_id=1, run_id=RUN)
        nodes = _register_nodes(len(folders), states)
        self.nodes = dict(zip(folders, nodes, strict=True))
        stores = {}
        for node, folder in zip(nodes, folders.values(), strict=True):
            stores[node] = DeprecatedRunInfoStore(node, {"party-folder": str(folder)})
            stores[node].register_context(RUN)
        self.grid = InMemoryGrid(states)
        self.grid.set_run(run)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=run_api, args=(lambda: app, Here, nodes, states, stores, self._stop, VceMetrics()), daemon=True
        )

    def __enter__(self) -> "FlowerInMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10.0)
