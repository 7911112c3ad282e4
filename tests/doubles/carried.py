"""The same hospitals behind each transport: real folders, real pipeline, only the embedding model replaced."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from tests.doubles.lossy import LossyBatches
from tests.doubles.party_home import HashedEmbedder, set_up
from tests.doubles.stream import Served, make_home
from tests.doubles.typed import typed
from undersong.run.simulation import InProcess
from undersong_client import keys
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import HospitalComputation
from undersong_client.cli.app import app as hospital_cli
from undersong_client.home import PartyHome
from undersong_client.link.daemon import Backoff, Daemon
from undersong_common.errors import UndersongError
from undersong_common.models.embedding import Embedder
from undersong_common.privacy.ledger import Ledger
from undersong_protocol.agreement.enrolment import EnrolmentRequest, Package
from undersong_protocol.wire.messages import federation_pb2, secagg_pb2

NOISE_SEED = 7
TRANSPORTS = ("in process", "in process, batches", "gRPC", "Flower")


class Hospitals:
    """A coordinator's folder and enrolled party folders, reproducible to the last bit.

    Attributes:
        homes: party folders by name.
        identities: Ed25519 public keys by name.
    """

    def __init__(self, folder: Path, names: Sequence[str], records: int, budget: float) -> None:
        self.folder = folder
        self.marks = folder / "marks"
        self.coordinator = make_home(folder / "coordinator")
        self.homes = {name: folder / name for name in names}
        self._records = records
        self._budget = budget

    def enrol(self, port: int) -> None:
        """Every party, with a coordinator that listens on ``port``."""
        from dataclasses import replace

        self.coordinator.settings = replace(self.coordinator.settings, addresses=(f"localhost:{port}",))
        for name, home in self.homes.items():
            self._enrol(name, home)
        self.identities = {
            name: keys.identity(PartyHome(home)).public_key().public_bytes_raw() for name, home in self.homes.items()
        }

    def _enrol(self, name: str, home: Path) -> None:
        def hospital(*arguments: object) -> None:
            done = typed(hospital_cli, *arguments, "--home", home, standalone_mode=False)
            assert not done.exit_code, f"{arguments}: {done.output} {done.exception!r}"

        notes, package, request, grant = (
            self.folder / f"{name}.{kind}" for kind in ("jsonl", "package", "request", "grant")
        )
        rows = [
            {"text": f"note {number} of {name}", "label": "xy"[number % 2], "patient": f"{name}-{number // 2}"}
            for number in range(self._records)
        ]
        notes.write_text("".join(json.dumps(row) + "\n" for row in rows))
        package.write_bytes(
            self.coordinator.invite(name, now=time.time()).sign(self.coordinator.authority().signing_key)
        )
        set_up(
            home,
            ("init", name, "--insecure-noise-seed", NOISE_SEED),
            ("budget", "set", "--epsilon", self._budget, "--delta", "1e-3"),
            ("policy", "set", "--question", "all", "--approval", "standing"),
            ("policy", "set", "--minimum-parties", 1),
        )
        fingerprint = Package.parse(package.read_bytes()).fingerprint
        hospital("enroll", package, "--fingerprint", fingerprint, "--request-out", request)
        grant.write_bytes(self.coordinator.sign(EnrolmentRequest.parse(request.read_bytes()), now=time.time()))
        hospital("enroll", "--grant", grant)
        hospital("data", "add", notes, "--text-field", "text", "--label-field", "label", "--user-field", "patient")

    def charges(self) -> dict[str, list[tuple[object, ...]]]:
        """What each party's ledger says was spent."""
        return {
            name: [
                (entry["run"], entry["query"], entry["attempt"], json.dumps(entry["events"]))
                for entry in Ledger.read(home / "ledger.jsonl").entries()
                if entry["kind"] == "charge"
            ]
            for name, home in self.homes.items()
        }


@contextmanager
def carried(kind: str, folder: Path, *, parties: int = 4, records: int = 12, budget: float = 50.0):
    """(hospitals, transport) of one of TRANSPORTS."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Embedder, "load", HashedEmbedder))
        hospitals = Hospitals(folder, [f"p{number}" for number in range(parties)], records, budget)
        if kind == "gRPC":
            yield hospitals, stack.enter_context(_native(hospitals))
            return
        hospitals.enrol(7443)
        if kind == "Flower":
            yield hospitals, stack.enter_context(_flower(hospitals))
            return
        made = {
            name: assemble(
                PartyHome(home),
                checkpoints=hospitals.marks,
                clock=time.time,
                embedder=HashedEmbedder(),
                computation=HospitalComputation(PartyHome(home), HashedEmbedder()),
            ).party
            for name, home in hospitals.homes.items()
        }
        yield hospitals, (InProcess if kind == "in process" else LossyBatches)(made)


@contextmanager
def _native(hospitals: Hospitals):
    """The real server, and the real daemon of each party in a thread."""
    with Served(hospitals.coordinator) as served:
        hospitals.enrol(served.port)
        daemons = []
        for home in map(PartyHome, hospitals.homes.values()):
            made = assemble(
                home,
                checkpoints=hospitals.marks,
                clock=time.time,
                embedder=HashedEmbedder(),
                computation=HospitalComputation(home, HashedEmbedder()),
            )
            daemons.append(Daemon(home, made, backoff=Backoff(0.05, 0.2), use_proxy=False, warm=False))
        threads = [threading.Thread(target=_run, args=(daemon,), daemon=True) for daemon in daemons]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 30.0
            while len(served.server.connected) < len(daemons):
                assert time.monotonic() < end, "the daemons do not connect"
                time.sleep(0.02)
            yield served.transport
        finally:
            for daemon in daemons:
                daemon.stop()
            for thread in threads:
                thread.join(30.0)


def _run(daemon: Daemon) -> None:
    try:
        daemon.run()
    except UndersongError as error:
        print(error)


@contextmanager
def _flower(hospitals: Hospitals):
    """The real ClientApp on Flower's own grid and loop; a party is assembled anew for each message."""
    from tests.doubles.flower_memory import FlowerInMemory
    from undersong_client.flower_app import app
    from undersong_server.flower.app import FlowerTransport

    with FlowerInMemory(app, hospitals.homes) as flower:
        transport = FlowerTransport(flower.grid, identities=hospitals.identities, outstanding=64)
        assert transport.locate(timeout_s=30.0) == sorted(hospitals.homes)
        yield transport


class Losing:
    """A transport that loses the message in which one party is asked for one stage of one sum, once.

    Args:
        lost: (party, sum, stage as secagg.proto names it).
    """

    def __init__(self, transport, lost: set[tuple[str, str, str]]) -> None:
        self._transport = transport
        self.lost = set(lost)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        kept = {name: request for name, request in requests.items() if not self._loses(name, [request])}
        return self._transport.exchange(kept, timeout_s=timeout_s)

    def _loses(self, party: str, requests: Sequence[bytes]) -> bool:
        found = {(party, *stage_of(request)) for request in requests} & self.lost
        self.lost -= found
        return bool(found)


class LosingBatches(Losing):
    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        kept = {name: batch for name, batch in requests.items() if not self._loses(name, batch)}
        return self._transport.exchange_batches(kept, timeout_s=timeout_s)


def losing(transport, lost: set[tuple[str, str, str]]) -> Losing:
    return (LosingBatches if hasattr(transport, "exchange_batches") else Losing)(transport, lost)


def stage_of(request: bytes) -> tuple[str, str]:
    message = federation_pb2.Request.FromString(request)
    kind = message.WhichOneof("body") or ""
    body = getattr(message, kind)
    if kind != "sum_step":
        return str(getattr(body, "sum", "")), kind
    return body.sum, secagg_pb2.Request.FromString(body.payload).WhichOneof("stage") or ""
