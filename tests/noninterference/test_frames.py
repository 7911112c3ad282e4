"""The whole daemon over its real connection: every frame that it sends is the same, whatever its records are.

One party's folder is set up by the program's commands and copied; each copy gets other records, runs as the real
daemon against the same scripted coordinator, and is told the same. The frames are compared in their order.
"""

import contextlib
import itertools
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.doubles.authority import Authority
from tests.doubles.coordinator_stream import ScriptedCoordinator, Stream
from tests.doubles.loops import wait_for
from tests.doubles.party_home import command, joined
from tests.noninterference import coordinator as hostile
from tests.noninterference.coordinator import Course, request
from tests.noninterference.hospital import NAME, Coins, TotalEmbedder, encapsulate, visible
from tests.noninterference.questions import LABELS, Asked
from undersong_client import keys
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import HospitalComputation
from undersong_client.answering.computing_process import ComputingProcess
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_client.link.daemon import Backoff, Daemon
from undersong_common.models.embedding import publishable
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics import Statistic, TopQVotes, build
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_protocol.wire.messages import transport_pb2 as transport
from undersong_protocol.wire.public import Input, Segment, block_id, encode_embeddings

pytestmark = pytest.mark.heavy

FAST = Backoff(first_s=0.05, largest_s=0.1)
NOTES = {
    "ordinary": [("pain and fever", "good", "1"), ("a lost card", "bad", "2"), ("sleep", "good", "1")],
    "none": [],
    "other labels": [(f"größe {number}", "elsewhere", str(number)) for number in range(40)],
}


def write_notes(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    import json

    path.write_text(
        "".join(json.dumps(dict(zip(("text", "label", "patient"), row, strict=True))) + "\n" for row in rows)
    )
    return path


class Told:
    """What one copy of the daemon sent, frame by frame; replies apart from how they are cut into frames."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []

    def add(self, frame: transport.FromParty) -> None:
        kind = frame.WhichOneof("frame") or ""
        if kind in ("ping", "pong", "renew"):
            return
        value = getattr(frame, kind)
        if kind == "transfer":
            self.frames.append((kind, (value.id, value.size)))
        elif kind != "chunk":
            self.frames.append((kind, value.SerializeToString()))


def play_conversation(
    home: Path, folder: Path, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch, *, in_process: bool
) -> Told:
    """One conversation: an approval that is waited for, a sum, a stream that breaks, a receipt, a goodbye."""
    opened = PartyHome(home)
    opening = partial(HospitalComputation, opened, TotalEmbedder())
    clock = itertools.count(1_800_000_000)
    made = assemble(
        opened,
        checkpoints=folder / "marks",
        clock=lambda: float(next(clock)),
        embedder=TotalEmbedder(),
        entropy=Coins(3),
        encapsulate=encapsulate,
        computation=opening() if in_process else ComputingProcess(opening),
    )
    daemon = Daemon(opened, made, backoff=FAST, use_proxy=False)
    monkeypatch.setattr(daemon, "_boot", bytes(16))  # drawn at each start, and sent as it is
    told, ids = Told(), itertools.count(1)
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    stream = coordinator.next_stream()
    told.frames.append(("hello", stream.hello.SerializeToString()))

    def ask(message: bytes, at: Stream) -> wire.Reply:
        identity = next(ids).to_bytes(16, "big")
        at.post(message, identity)
        while True:
            frame = at.arrived.get(timeout=30.0)
            told.add(frame)
            if frame.WhichOneof("frame") == "transfer":
                assert frame.transfer.id == identity
                arrived = at.reassembler.transfer(frame.transfer)
                assert arrived is not None
                data = arrived.open()
                at.send(ack=transport.Ack(id=identity))
                told.frames.append(("reply", visible(data)))
                return wire.Reply.FromString(data)

    def decided(at: Stream) -> None:
        # The daemon looks a few times a second, and tells what has changed since.
        wait_for(lambda: daemon._known_proposals, 20.0)
        for each in Proposals(opened).all():
            Proposals(opened).decide(each, "approved", at=1_900_000_000.0, reason="")
        while True:
            frame = at.arrived.get(timeout=30.0)
            told.add(frame)
            if frame.WhichOneof("frame") == "decided":
                return

    block = encode_embeddings(
        publishable(TotalEmbedder().encode(["pain", "lost", "größe"])), np.zeros(3, dtype=np.int64)
    )
    asked = Asked([Input("candidates", (Segment(block_id(block)),))], [block])
    statistics: tuple[Statistic, ...] = (
        TopQVotes(q=2, candidates=4, labels=len(LABELS)),
        build("label_histogram", {"labels": len(LABELS)}),
    )
    plan = hostile.plan(statistics, Privacy(1.0, 1e-5, "user", 3, max_records=50), 3, 1.0)
    manifest = hostile.manifest_of(plan, keys.identity(opened).public_key().public_bytes_raw())
    assert ask(request(introduce=wire.Introduce()), stream).introduction.name == NAME
    assert ask(hostile.proposal(manifest), stream).pending.reason
    decided(stream)
    signature = ask(hostile.proposal(manifest), stream).signature.signature
    ask(hostile.agreement(manifest, signature), stream)
    for name, inputs in (("sum 0", asked), ("sum 1", Asked([], [])), ("sum 1", asked)):
        course = Course(manifest, name, 0, inputs)
        course.take(ask(course.opening(), stream))
        while course.payload():
            course.take(ask(course.step(), stream))
        if name == "sum 0":
            assert course.opened is not None
            stream.cut()
            stream = coordinator.next_stream()
            told.frames.append(("hello", stream.hello.SerializeToString()))
    ask(hostile.closing(manifest), stream)
    ask(b"no request at all", stream)
    daemon.stop()
    thread.join(40.0)
    assert not thread.is_alive()
    with contextlib.suppress(Exception):
        while frame := stream.arrived.get(timeout=0.3):
            told.add(frame)
    return told


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, Path], ScriptedCoordinator]]:
    """Copies of one party that has joined, by the name of their records."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    authority = Authority()
    with ScriptedCoordinator(authority, keepalive_s=60.0) as coordinator:
        origin = joined(tmp_path, authority, NAME, address=coordinator.address, notes=None)
        homes = {}
        for name, rows in NOTES.items():
            folder = tmp_path / name.replace(" ", "-")
            folder.mkdir()
            notes = write_notes(folder / "notes.jsonl", rows)
            shutil.copytree(origin, folder / "home")
            command(
                *("data", "add", notes, "--label-field", "label", "--user-field", "patient", "--new-version"),
                *("--despite-cautions", "--home", folder / "home"),
            )
            homes[name] = folder / "home"
        yield homes, coordinator


@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_frame_is_the_same_whatever_the_records_are(
    hospitals: tuple[dict[str, Path], ScriptedCoordinator],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    in_process: bool,
) -> None:
    homes, coordinator = hospitals
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    told = {
        name: play_conversation(home, home.parent, coordinator, monkeypatch, in_process=in_process)
        for name, home in homes.items()
    }
    first, *others = told.values()
    kinds = [kind for kind, _ in first.frames]
    assert kinds.count("reply") >= 15
    assert {"hello", "decided", "goodbye"} <= set(kinds)
    for other in others:
        assert [kind for kind, _ in other.frames] == kinds
        for one, two in zip(first.frames, other.frames, strict=True):
            assert one == two
