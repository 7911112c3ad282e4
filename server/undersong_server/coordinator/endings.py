"""Tells every party how its runs have ended: one that is away hears it when it is back.

A run that is finished or stopped is closed at the parties; one that has failed may go on, and is suspended there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass

from undersong_protocol import codec
from undersong_protocol.manifest import Manifest
from undersong_protocol.messages import federation_pb2 as wire
from undersong_server.coordinator.grpc_transport import GrpcTransport
from undersong_server.federation.driver import Transport, decode
from undersong_server.journal import Journal
from undersong_server.runs.folder import FINAL, RunFolder, RunStatus

log = logging.getLogger(__name__)

LOOK_S = 0.5
TIMEOUT_S = 5.0  # a party at work answers later, and is asked again


def tell(
    transport: Transport, run: RunFolder, status: RunStatus, parties: Collection[str], timeout_s: float = TIMEOUT_S
) -> set[str]:
    """Tells these parties how a run has ended; returns those that have answered, and keeps those that have heard.

    Nobody is told of a run that was never proposed. Raises ConfigurationError while its journal is in use.
    """
    if not run.journal_path.exists():
        return set(parties)
    journal = Journal(run.journal_path)
    proposed = journal.get("manifest")
    journal.close()
    if proposed is None:
        return set(parties)
    hash_ = Manifest.from_bytes(proposed).hash
    request = wire.Request(version=codec.VERSION, suspend_run=wire.SuspendRun(manifest_hash=hash_))
    if status.state in FINAL:
        request = wire.Request(version=codec.VERSION, close_run=wire.CloseRun(manifest_hash=hash_))
    replies = transport.exchange(dict.fromkeys(parties, request.SerializeToString()), timeout_s=timeout_s)
    heard = {name for name, data in replies.items() if decode(name, data).WhichOneof("body") in ("noted", "receipt")}
    run.note_heard(status, run.heard(status) | heard)
    return set(replies)


@dataclass(frozen=True)
class _Ending:
    run: RunFolder
    status: RunStatus
    waiting: set[str]  # parties that have not answered yet


class Endings:
    """The runs of which parties have not heard yet how they ended, and the thread that tells them."""

    def __init__(self, transport: GrpcTransport) -> None:
        self._transport = transport
        self._endings: dict[str, _Ending] = {}  # by run
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="endings", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S)

    def note(self, run: RunFolder, status: RunStatus) -> None:
        """A run has ended, and nothing drives it; may be called again and again."""
        known = self._endings.get(run.name)
        if known is None or (known.status.state, known.status.number) != (status.state, status.number):
            waiting = set(run.planned().roster) - run.heard(status)
            self._endings[run.name] = _Ending(run, status, waiting)

    def forget(self, run: RunFolder) -> None:
        """A run goes on."""
        self._endings.pop(run.name, None)

    def _work(self) -> None:
        while not self._stopping.wait(LOOK_S):
            silent: set[str] = set()  # one that does not answer is waited for once
            for ending in list(self._endings.values()):
                there = [name for name in ending.waiting - silent if self._transport.presence([name])[name].connected]
                if not there or self._stopping.is_set():
                    continue
                try:
                    answered = tell(self._transport, ending.run, ending.status, there)
                except Exception as error:  # noqa: BLE001 - a damaged folder must not keep the other runs' parties waiting
                    log.warning("run %s: its parties are not told that it ended: %s", ending.run.name, error)
                    ending.waiting.clear()
                    continue
                ending.waiting.difference_update(answered)
                silent |= set(there) - answered
