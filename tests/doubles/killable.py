"""Parties and coordinators as processes that begin in a moment, so that a test kills them by the hundred."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from tests.doubles.parties import make_party
from tests.server.federation.test_driver import LABELS, World
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import secagg_pb2
from undersong_protocol.wire.public import MemoryBlocks
from undersong_server import storage
from undersong_server.federation.driver import Federation, PublicBlocks
from undersong_server.journal import Journal
from undersong_server.postgres import Postgres
from undersong_server.progress import Silent

LEASE_S = 0.6
RENEW_S = 0.15
ANSWER_S = 60.0
NOISE_SEED = 3

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def begun(target: Any, *arguments: Any) -> Any:
    """A process of its own that runs ``target``."""
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def serve_party(folder: Path, name: str, table: Any) -> None:
    """Answers one request per connection, and notes the hash of each reply about a sum before it leaves."""
    party = make_party(folder, name, table, noise_seed=NOISE_SEED, blocks=MemoryBlocks())
    place = folder / f"{name}.socket"
    place.unlink(missing_ok=True)
    with Listener(str(place)) as listener, (folder / f"{name}.sent").open("a") as sent:
        while True:
            try:
                with listener.accept() as connection:
                    data = connection.recv_bytes()
                    reply = party.handle(data)
                    if note := _noted(data, reply):
                        sent.write(note)
                        sent.flush()
                    connection.send_bytes(reply)
            except (OSError, EOFError):  # the coordinator was killed
                continue


def _noted(data: bytes, reply: bytes) -> str:
    request, answer = wire.Request.FromString(data), wire.Reply.FromString(reply)
    kind = request.WhichOneof("body") or ""
    if answer.WhichOneof("body") != "sum_reply" or kind not in ("open_sum", "prepare_sum", "sum_step"):
        return ""
    body = getattr(request, kind)
    stage = secagg_pb2.Request.FromString(body.payload).WhichOneof("stage")
    place = [body.manifest_hash.hex(), body.sum, body.attempt, stage]
    return json.dumps([place, hashlib.sha256(answer.sum_reply.payload).hexdigest()]) + "\n"


class Sockets:
    """A transport to the parties' processes; one that was killed is asked again when it has come back."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder = folder
        self._epoch = wire.Request(epoch=epoch).SerializeToString()

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        return {name: self._asked(name, data + self._epoch) for name, data in requests.items()}

    def _asked(self, name: str, data: bytes) -> bytes:
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                with Client(str(self._folder / f"{name}.socket")) as connection:
                    connection.send_bytes(data)
                    return connection.recv_bytes()
            except (OSError, EOFError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


def serve_runs(folder: Path, target: str, plan: Any, members: Any) -> None:
    """Waits for the lease, then drives one run after the other, each from where the journal is."""
    storage.RENEW_S = RENEW_S
    storage.Database.renew.__defaults__ = (LEASE_S,)
    place = Postgres(target)
    while (epoch := place.take("killable", LEASE_S)) is None:
        time.sleep(0.05)
    lost = threading.Event()
    storage.Lease(place, epoch, lost.set)
    done = Journal(Postgres(target, epoch), "done/")
    while not lost.is_set():
        number = len(done.items("run ")) + 1
        try:
            done.put(
                f"run {number:04}",
                one_run(folder, Journal(Postgres(target, epoch), f"run {number}/"), number, epoch, plan, members),
            )
        except storage.Superseded:
            return


def one_run(folder: Path, journal: Journal, number: int, epoch: int, plan: Any, members: Any) -> bytes:
    manifest = manifest_of(plan, members, number)
    blocks = PublicBlocks(journal)
    federation = Federation(Sockets(folder, epoch), manifest, journal, Silent(), blocks=blocks)
    return result_of(federation, blocks, plan)


def manifest_of(plan: Any, members: Any, number: int) -> Manifest:
    return Manifest(
        run=f"run {number}",
        task={"name": "test", "description": "a note", "labels": list(LABELS)},
        method="test",
        embedder=hashlib.sha256(b"hashed directions").hexdigest(),
        roster=members,
        plan=plan,
    )


def result_of(federation: Federation, blocks: PublicBlocks, plan: Any) -> bytes:
    """What a run opens, and who was in it."""
    federation.agree()
    found = []
    for planned in plan.sums:
        opened = federation.private_sum(planned.name, World.inputs(_Holds(blocks)))  # type: ignore[arg-type]
        facts = federation.opened_facts(planned.name)
        assert facts is not None
        found.append([opened.values.tolist(), facts["survivors"], facts["attempt"]])
    federation.receipts()
    return json.dumps(found).encode()


class _Holds:
    def __init__(self, blocks: PublicBlocks) -> None:
        self.blocks = blocks
