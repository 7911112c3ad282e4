"""The daemon over real gRPC and TLS: it loses no reply, repeats none, and comes back from whatever the network does."""

import contextlib
import errno
import json
import logging
import math
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.doubles.authority import Authority
from tests.doubles.coordinator_stream import ScriptedCoordinator
from tests.doubles.loops import wait_for
from tests.doubles.parties import EMBEDDER
from tests.doubles.party_home import HashedEmbedder, command, joined, sign_former_trust, write_notes
from tests.doubles.processes import free_port
from undersong_client import keys
from undersong_client.answering.assemble import assemble
from undersong_client.answering.computation import HospitalComputation
from undersong_client.answering.pending import DeferredVector, DroppedRequest, PendingReply
from undersong_client.consent import trust
from undersong_client.home import PartyHome, read_json
from undersong_client.link.connection import Ended
from undersong_client.link.daemon import METRICS, Backoff, Daemon
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.models.embedding import Embedder
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.spending import Charge
from undersong_protocol.agreement.enrolment import EnrolmentRequest
from undersong_protocol.agreement.manifest import Manifest, plan_words
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.messages import advertise_request
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram
from undersong_protocol.wire import codec
from undersong_protocol.wire.framing import CHUNK_BYTES, ID_BYTES, Outgoing
from undersong_protocol.wire.messages import federation_pb2 as fed
from undersong_protocol.wire.messages import transport_pb2 as wire

pytestmark = pytest.mark.heavy

FAST = Backoff(first_s=0.05, largest_s=0.2, refused_s=0.4)
INTRODUCE = fed.Request(version=codec.VERSION, introduce=fed.Introduce()).SerializeToString()


class Running:
    """A daemon in a thread of the test."""

    def __init__(self, home: PartyHome, tmp_path) -> None:
        self.assembled = assemble(
            home,
            checkpoints=tmp_path / "state" / "undersong" / "ledgers",
            clock=time.time,
            embedder=HashedEmbedder(),
            computation=HospitalComputation(home, HashedEmbedder()),
        )
        self.daemon = Daemon(home, self.assembled, backoff=FAST, use_proxy=False)
        self.error: UndersongError | None = None
        self.handled: list[bytes] = []
        handle = self.assembled.party.answer

        def counting(data: bytes, start_s: float | None = None, **passed: Any) -> PendingReply:
            self.handled.append(data)
            return handle(data, start_s, **passed)

        self.assembled.party.answer = counting  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.daemon.run()
        except UndersongError as error:
            self.error = error

    def join(self, timeout_s: float = 15.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self.daemon.stop()
        self.join(40.0)


@pytest.fixture
def coordinator(authority):
    with ScriptedCoordinator(authority) as made:
        yield made


@pytest.fixture
def home(tmp_path, authority, coordinator):
    return PartyHome(joined(tmp_path, authority, address=coordinator.address))


@pytest.fixture
def running(home, tmp_path):
    with contextlib.closing(Started(home, tmp_path)) as made:
        yield made


class Started(Running):
    def close(self) -> None:
        self.stop()


def status(home: PartyHome) -> dict[str, Any]:
    return read_json(home.status) if home.status.exists() else {}


def test_daemon_introduces_itself_answers_and_records_what_left(running, coordinator, home):
    stream = coordinator.next_stream()
    assert stream.hello.party == "alpha"
    assert stream.hello.embedder.hex() == EMBEDDER
    assert not stream.hello.HasField("epsilon_left")  # the hospital did not choose to share it
    data = stream.ask(INTRODUCE)
    reply = codec.decode_reply(data, "alpha")
    assert reply.introduction.name == "alpha"
    hello, introduction = Outbox(home).entries()
    assert (hello.kind, introduction.kind, introduction.answer_to) == ("hello", "introduction", "introduce")
    assert Outbox(home).data(introduction.number) == data
    wait_for(lambda: status(home).get("state") == "connected")


def test_monitoring_figures_are_the_same_whatever_the_records_are(tmp_path, authority, coordinator):
    read = []
    for records in (12, 40):
        folder = tmp_path / f"{records}"
        folder.mkdir()
        notes = write_notes(folder / "notes.jsonl", records)
        home = PartyHome(joined(folder, authority, address=coordinator.address, notes=notes))
        file = home.path.parent / "undersong.prom"
        with contextlib.closing(Started(home, home.path.parent)) as started:
            started.daemon._figures_file = file
            coordinator.next_stream()
            wait_for(lambda file=file: file.exists() and "undersong_party_connected 1.0" in file.read_text())
            wait_for(lambda file=file: set(METRICS) == set(figures(file)))
            read.append(figures(file))
        assert file.stat().st_mode & 0o777 == 0o644  # another account reads it
        assert figures(file)["connected"] == 0.0
    times = {name for name in METRICS if name.endswith("_seconds")}
    assert {name for name in METRICS if read[0][name] != read[1][name]} <= times
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=file.read_bytes(), check=True)


def test_monitoring_figures_say_since_when_the_first_step_is_held_up(running, tmp_path):
    running.stop()
    running.daemon._figures_file = tmp_path / "undersong.prom"
    for step in ("first", "second"):
        running.daemon._held_steps.hold(step, OSError(28, "No space left on device"))
    first_step, second_step = running.daemon._held_steps.all()
    running.daemon._write_figures()
    assert figures(running.daemon._figures_file)["held_up_seconds"] == first_step.since_s < second_step.since_s


def test_status_reads_the_budget_while_a_vector_is_charged(home, tmp_path, monkeypatch):
    """The daemon's thread and the one that answers share no ledger: each would close the other's lock of the file."""
    assembled = assemble(
        home,
        checkpoints=tmp_path / "state" / "undersong" / "ledgers",
        clock=time.time,
        embedder=HashedEmbedder(),
        computation=HospitalComputation(home, HashedEmbedder()),
    )
    daemon = Daemon(home, assembled)
    assert daemon._ledger is not assembled.ledger, "what one thread reads, another one may change meanwhile"
    chain = assembled.ledger._chain
    epsilon_left = []
    reader = threading.Thread(target=lambda: epsilon_left.append(daemon._epsilon_left()), daemon=True)
    sync = chain.sync

    def sync_while_the_budget_is_read():
        if not reader.ident:
            reader.start()
            reader.join(0.2)
            assert reader.is_alive(), "the charge is written and not yet on the disk"
        sync()

    monkeypatch.setattr(chain, "sync", sync_while_the_budget_is_read)
    assembled.ledger.charge(Charge("a run", "ab" * 32, "votes/1", 0, (Gaussian(5.0),)))
    reader.join(10.0)
    assert 0.0 < epsilon_left[0] < 4.0
    assert assembled.ledger.spent(1e-4) == pytest.approx(4.0 - epsilon_left[0])


def figures(file):
    lines = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name.removeprefix("undersong_party_"): float(value) for name, value in lines}


@pytest.fixture
def held(running):
    """Holds the party's answers back until ``gate`` is set; ``entered`` is set when one is asked for."""
    found = SimpleNamespace(gate=threading.Event(), entered=threading.Event())
    handle = running.assembled.party.answer

    def slow(data: bytes, start_s: float | None = None, **passed: Any) -> PendingReply:
        found.entered.set()
        found.gate.wait(10)
        return handle(data, start_s, **passed)

    running.assembled.party.answer = slow
    yield found
    found.gate.set()


def test_only_a_reply_that_nobody_acknowledged_is_sent_again(running, coordinator):
    first = coordinator.next_stream()
    posted = first.post(INTRODUCE)
    lost = first.reply(acknowledge=False)
    first.cut()
    second = coordinator.next_stream()
    again = second.reply()
    assert (again.id, again.data) == (posted.id, lost.data)
    wait_for(lambda: not running.daemon._answering.unacknowledged())  # the acknowledgement has come
    second.cut()
    third = coordinator.next_stream()
    with pytest.raises(TimeoutError):
        third.reply(timeout_s=0.7)
    assert running.handled == [INTRODUCE]


def test_reply_that_a_request_acknowledges_is_not_kept_to_send_again(running, coordinator):
    stream = coordinator.next_stream()
    posted = stream.post(INTRODUCE)
    stream.reply(acknowledge=False)
    assert running.daemon._answering.unacknowledged()
    (transfer,) = Outgoing(b"i" * ID_BYTES, INTRODUCE).frames()
    stream.outgoing.put(wire.ToParty(transfer=transfer, acknowledged=[posted.id]))
    stream.reply()
    wait_for(lambda: not running.daemon._answering.unacknowledged())


def test_a_request_that_is_repeated_while_it_is_computed_is_computed_once(running, coordinator, held):
    first = coordinator.next_stream()
    posted = first.post(INTRODUCE)
    assert held.entered.wait(5)
    first.cut()
    second = coordinator.next_stream()
    second.post(INTRODUCE, posted.id)
    second.send(ping=wire.Ping(number=1))
    second.next("pong")
    held.gate.set()
    assert second.reply().id == posted.id
    with pytest.raises(TimeoutError):
        second.reply(timeout_s=0.5)
    assert running.handled == [INTRODUCE]


def test_a_large_request_goes_on_after_a_cut_where_it_stopped(running, coordinator):
    import os

    data = os.urandom(5 * CHUNK_BYTES + 17)
    first = coordinator.next_stream()
    posted = first.post(data, frames=slice(0, 4))  # its announcement and three of six chunks
    time.sleep(0.5)
    first.cut()
    second = coordinator.next_stream()
    (held,) = second.hello.held
    assert (held.content, held.chunks) == (posted.content, b"\x07")
    second.post(data, posted.id)
    assert second.reply().id == posted.id
    assert running.handled == [data]


def test_large_reply_resumes_after_the_part_that_the_coordinator_holds(running, coordinator):
    import os

    large = os.urandom(4 * CHUNK_BYTES)
    reply = fed.Reply(version=codec.VERSION, sum_reply=fed.SumReply(payload=large)).SerializeToString()
    running.assembled.party.answer = lambda *_, **__: PendingReply(reply)
    first = coordinator.next_stream()
    first.post(INTRODUCE)
    transfer = first.next("transfer")
    chunk = first.next("chunk")
    coordinator.welcome_held = [wire.Held(content=transfer.content, chunks=bytes([1 << chunk.index]))]
    first.cut()
    second = coordinator.next_stream()
    assert second.next("transfer").content == transfer.content
    indices = [second.next("chunk").index for _ in range(4)]
    assert sorted([chunk.index, *indices]) == list(range(5))


def test_a_half_open_connection_is_given_up_and_dialled_anew(tmp_path, authority):
    with ScriptedCoordinator(authority, keepalive_s=0.3) as coordinator:
        home = PartyHome(joined(tmp_path, authority, address=coordinator.address))
        with contextlib.closing(Started(home, tmp_path)):
            first = coordinator.next_stream()
            first.answer_pings = False
            first.next("ping")
            second = coordinator.next_stream()
            assert first.over.wait(5)
            second.ask(INTRODUCE)


@pytest.fixture
def laddered(running):
    """The first request needs a vector, which is computed between two passes; ``computed`` is set by the second one."""
    answer = running.assembled.party.answer
    facts = SimpleNamespace(first=b"", asked=threading.Event(), passes=0, computed=0, looks=0, is_done=False)
    wanted = SimpleNamespace(run="a run", planned=SimpleNamespace(name="a sum"), coins=b"coins")

    def compute(*_: Any, **__: Any) -> object:
        facts.computed += 1
        return object()

    def pass_over(data: bytes, start_s: float | None = None, **passed: Any) -> PendingReply:
        deferral = passed["deferral"]
        facts.first = facts.first or data
        if data != facts.first:
            return answer(data, start_s, **passed)
        facts.passes += 1
        facts.asked.set()
        if facts.is_done:
            return PendingReply(answer(data).reply)
        if deferral.vector_request is None:
            deferral.vector_request, deferral.start_s, deferral.first_rung_s = wanted, start_s, 0.7
            raise DeferredVector
        facts.looks += 1
        if not passed["is_asked"]():
            raise DroppedRequest("its stream is gone")
        facts.is_done = True
        return PendingReply(answer(data).reply, first_rung_s=0.7)

    running.assembled.party.answer = pass_over
    running.assembled.computation.vector = compute
    return facts


OTHER = fed.Request(version=codec.VERSION, introduce=fed.Introduce(challenge=b"other")).SerializeToString()


def test_vector_is_sent_at_its_public_time_and_other_replies_before_it(running, coordinator, laddered):
    stream = coordinator.next_stream()
    begun = time.monotonic()
    vector, other = stream.post(INTRODUCE), stream.post(OTHER)
    assert stream.reply().id == other.id
    assert time.monotonic() - begun < 0.6, "it waits neither for the vector nor for its rung"
    assert stream.reply().id == vector.id
    assert time.monotonic() - begun >= 0.7


def test_vector_requested_twice_is_computed_once_and_sent_at_public_time(running, coordinator, laddered):
    stream = coordinator.next_stream()
    begun = time.monotonic()
    asked = [stream.post(INTRODUCE)]
    assert laddered.asked.wait(5)
    time.sleep(0.2)  # the vector is done, and its rung is not reached
    asked.append(stream.post(INTRODUCE))
    assert stream.reply().id == asked[0].id
    assert time.monotonic() - begun >= 0.7
    assert stream.reply().id == asked[1].id
    assert laddered.computed == 1


def test_vector_whose_stream_is_cut_answers_the_same_request_on_a_new_one(running, coordinator, laddered):
    stream = coordinator.next_stream()
    stream.post(INTRODUCE)
    assert laddered.asked.wait(5)
    stream.cut()
    stream = coordinator.next_stream()
    again = stream.post(INTRODUCE)
    assert stream.reply().id == again.id
    assert laddered.computed == 1


def test_vector_is_dropped_when_no_stream_asks_for_it_any_more(running, coordinator, laddered, caplog):
    caplog.set_level(logging.WARNING)
    stream = coordinator.next_stream()
    vector = stream.post(INTRODUCE)
    assert laddered.asked.wait(5)
    stream.cut()
    stream = coordinator.next_stream()
    wait_for(lambda: "a request is dropped" in caplog.text)
    other = stream.post(OTHER)
    assert stream.reply().id == other.id
    stream.post(INTRODUCE, vector.id)  # asked again, it is answered
    assert stream.reply().id == vector.id


def test_a_vector_that_cannot_be_journaled_at_first_is_not_computed_anew(running, coordinator, laddered, monkeypatch):
    faults = threading.Event()

    def full(*_: Any, **__: Any) -> None:
        faults.set()
        raise OSError(errno.ENOSPC, "No space left on device", "journal.sqlite")

    stream = coordinator.next_stream()
    monkeypatch.setattr(Outbox, "record", full)
    vector = stream.post(INTRODUCE)
    assert faults.wait(5)
    monkeypatch.undo()
    assert stream.reply().id == vector.id
    assert laddered.computed == 1


def test_other_requests_are_answered_while_a_vector_s_stream_is_silent(running, coordinator, laddered, monkeypatch):
    stream = coordinator.next_stream()
    vector = stream.post(INTRODUCE)
    assert laddered.asked.wait(5)
    monkeypatch.setattr(running.daemon._answering, "_is_stream_open", lambda: None)
    wait_for(lambda: laddered.looks > 0)
    other = stream.post(OTHER)
    assert stream.reply().id == other.id
    assert not laddered.is_done
    monkeypatch.undo()
    assert stream.reply().id == vector.id


def test_pings_are_answered_while_a_long_answer_is_computed(running, coordinator, held):
    stream = coordinator.next_stream()
    stream.post(INTRODUCE)
    stream.send(ping=wire.Ping(number=41))
    assert stream.next("pong").number == 41
    held.gate.set()
    stream.reply()


def test_daemon_reconnects_to_a_coordinator_that_was_away(running, coordinator, authority):
    coordinator.next_stream().ask(INTRODUCE)
    coordinator.close()
    time.sleep(0.6)
    with ScriptedCoordinator(authority, port=coordinator.port) as back:
        back.next_stream().ask(INTRODUCE)


def test_unreachable_coordinator_is_warned_of_once_in_plain_words(tmp_path, authority, caplog):
    home = PartyHome(joined(tmp_path, authority, address=f"localhost:{free_port()}"))
    with caplog.at_level(logging.DEBUG, logger="undersong_client"), contextlib.closing(Started(home, tmp_path)):
        wait_for(lambda: caplog.text.count("cannot connect") > 1)
        shown = status(home)
    warned = [record for record in caplog.records if "cannot connect" in record.message and record.levelname != "DEBUG"]
    assert len(warned) == 1  # a line for every try was 43 000 a day
    assert re.search(r"cannot be reached, since [-0-9]+ [0-9:]+; nothing is lost", shown["problem"])
    assert "ask IT" in shown["remedy"]
    assert "UNAVAILABLE" not in warned[0].message


def test_coordinator_of_another_authority_gets_no_message(tmp_path, authority, caplog):
    with ScriptedCoordinator(Authority()) as foreign:
        home = PartyHome(joined(tmp_path, authority, address=foreign.address))
        with caplog.at_level(logging.INFO), contextlib.closing(Started(home, tmp_path)):
            wait_for(lambda: "cannot connect" in caplog.text)
            assert foreign.streams.empty()
            assert status(home).get("state") in ("waiting", "connecting")


def test_daemon_reports_a_refused_certificate_and_retries_later(tmp_path, authority, coordinator, home):
    coordinator.refuse = "this certificate is not accepted here any more"
    with contextlib.closing(Started(home, tmp_path)):
        wait_for(lambda: "not accepted here" in status(home).get("problem", ""))
        coordinator.refuse = ""
        coordinator.next_stream()


def test_daemon_reconnects_soon_after_a_refusal_by_coordinator_s_clock(coordinator, home, tmp_path):
    """It passes when that clock is set right, and nobody has to act here."""
    coordinator.refuse, coordinator.refusal = "has expired, by the clock", grpc.StatusCode.FAILED_PRECONDITION
    with contextlib.closing(Started(home, tmp_path)) as started:
        started.daemon._backoff = replace(FAST, refused_s=600.0)
        wait_for(lambda: "by the clock" in status(home).get("problem", ""))
        coordinator.refuse = ""
        coordinator.next_stream()


def test_goodbye_without_reconnection_ends_the_daemon_with_its_reason(running, coordinator):
    stream = coordinator.next_stream()
    stream.send(goodbye=wire.Goodbye(reason="a newer connection replaces this one", reconnect_after_s=-1))
    running.join()
    assert isinstance(running.error, ConfigurationError)
    assert "newer connection" in running.error.problem


@pytest.mark.parametrize("frame", [{"welcome": wire.Welcome(version=1)}, {"chunk": wire.Chunk(content=b"x")}, {}])
def test_daemon_disconnects_from_a_coordinator_that_breaks_the_protocol(running, coordinator, home, frame):
    stream = coordinator.next_stream()
    stream.send(**frame)
    assert stream.over.wait(5)
    wait_for(lambda: "protocol fault" in status(home).get("problem", ""))


def test_daemon_disconnects_from_another_transport_version(tmp_path, home, coordinator):
    coordinator.version = 2
    with contextlib.closing(Started(home, tmp_path)):
        words = "(scripted) speaks version 2 of the transport, this program (undersong"
        wait_for(lambda: words in status(home).get("problem", ""))
        assert "run the same version" in status(home)["problem"]


def test_coordinator_s_time_that_is_not_a_number_is_kept_out_of_status(tmp_path, home, coordinator):
    coordinator.clock = lambda: math.nan
    with contextlib.closing(Started(home, tmp_path)):
        wait_for(lambda: "protocol fault" in status(home).get("problem", ""))
        assert "clock_offset_s" not in status(home)


@pytest.mark.parametrize("asked_s", [5e-324, 1e-9, 2.0, 1e300, math.inf])
def test_daemon_pauses_before_redialling_whatever_pause_it_is_told(asked_s):
    daemon = SimpleNamespace(_backoff=Backoff(), _random=SimpleNamespace(random=lambda: 0.0))
    waits_s = Daemon._pause_after(daemon, Ended("a goodbye", asked_s, welcomed=True), 0)
    assert waits_s == min(max(asked_s, Backoff().first_s), 3600.0)


def test_a_pause_leaves_requests_unanswered_until_it_ends(running, coordinator, home):
    coordinator.next_stream()
    command("pause", "--home", home.path)
    paused = coordinator.next_stream()
    assert paused.hello.paused
    posted = paused.post(INTRODUCE)
    with pytest.raises(TimeoutError):
        paused.reply(timeout_s=0.7)
    assert running.handled == []
    command("resume", "--home", home.path)
    back = coordinator.next_stream()
    assert not back.hello.paused
    back.post(INTRODUCE, posted.id)
    back.reply()


def manifest_for(home: PartyHome, epsilon: float = 1.0) -> Manifest:
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(epsilon, 1e-5), Quorum(1, 1, 0, 0))
    identity = keys.identity(home).public_key().public_bytes_raw()
    task = {"name": "t", "labels": ["good", "bad"]}
    return Manifest("a run", task, "test", EMBEDDER, (Member("alpha", identity),), plan)


def asked(stream, **body) -> fed.Reply:
    request = fed.Request(version=codec.VERSION, **body).SerializeToString()
    return codec.decode_reply(stream.ask(request), "alpha")


def propose(stream, manifest: Manifest) -> fed.Reply:
    return asked(stream, propose=fed.ProposeManifest(manifest=manifest.to_bytes()))


def approve(home: PartyHome, manifest: Manifest) -> None:
    """A person reads the sheet and types the plan's words."""
    command("preview", "a run", "--home", home.path)
    command("approve", "a run", plan_words(manifest.hash), "--home", home.path)


def agreement(stream, home: PartyHome, manifest: Manifest) -> fed.AgreeManifest:
    """A run that is proposed, approved and signed, as it is agreed on."""
    assert propose(stream, manifest).WhichOneof("body") == "pending"
    approve(home, manifest)
    signature = propose(stream, manifest).signature.signature
    return fed.AgreeManifest(manifest=manifest.to_bytes(), signatures={"alpha": signature})


@pytest.fixture
def hashed_embedder(monkeypatch):
    """The commands beside the daemon have its embedder."""
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())


@pytest.mark.usefixtures("hashed_embedder")
def test_run_waits_for_a_person_and_the_coordinator_hears_the_decision(running, coordinator, home, caplog):
    caplog.set_level(logging.INFO)
    stream = coordinator.next_stream()
    manifest = manifest_for(home)
    assert "approval of a person" in propose(stream, manifest).pending.reason
    assert "a run" in command("requests", "--home", home.path)
    wait_for(lambda: "run 'a run' waits for a decision: undersong-party approve 'a run'" in caplog.text)
    approve(home, manifest)
    assert stream.next("decided").run == "a run"
    manifest.check_signatures({"alpha": propose(stream, manifest).signature.signature})


@pytest.mark.usefixtures("hashed_embedder")
def test_run_closed_before_agreement_is_not_signed_afterwards(running, coordinator, home):
    stream = coordinator.next_stream()
    manifest = manifest_for(home)

    def request():
        return json.loads(command("requests", "--json", "--home", home.path))["requests"][0]

    suspend, close = fed.SuspendRun(manifest_hash=manifest.hash), fed.CloseRun(manifest_hash=manifest.hash)
    for unknown in (manifest.hash, b"", b"../../policy", bytes(4000)):
        assert asked(stream, suspend_run=fed.SuspendRun(manifest_hash=unknown)).WhichOneof("body") == "noted"
        assert asked(stream, close_run=fed.CloseRun(manifest_hash=unknown)).WhichOneof("body") == "noted"
    assert propose(stream, manifest).WhichOneof("body") == "pending"
    assert asked(stream, suspend_run=suspend).WhichOneof("body") == "noted"
    assert "suspended_at" in request()
    assert "has failed" in command("approve", "a run", plan_words(manifest.hash), "--home", home.path, code=2)
    agree = agreement(stream, home, manifest)  # it is asked again
    assert request()["suspended_s"] == 0
    assert asked(stream, close_run=close).WhichOneof("body") == "noted"
    assert "ended_at" in request()
    for refused in (asked(stream, agree=agree), propose(stream, manifest)):
        assert "has ended at this party" in refused.refusal.problem
    assert request()["objection"] == ""


@pytest.mark.usefixtures("hashed_embedder")
def test_new_request_for_a_suspended_run_marks_it_as_going_on(running, coordinator, home):
    stream = coordinator.next_stream()
    manifest = manifest_for(home)
    agree = agreement(stream, home, manifest)
    for _ in range(2):
        asked(stream, suspend_run=fed.SuspendRun(manifest_hash=manifest.hash))
        assert "SUSPENDED" in command("requests", "--home", home.path)
        asked(stream, agree=agree)
        assert "SUSPENDED" not in command("requests", "--home", home.path)


def test_daemon_sends_notices_of_a_waiting_request_and_an_ended_run(home, tmp_path, coordinator):
    said = tmp_path / "said"
    home.change(notify=f"tee -a {said}")
    with contextlib.closing(Started(home, tmp_path)):
        stream = coordinator.next_stream()
        manifest = manifest_for(home)
        propose(stream, manifest)
        wait_for(lambda: said.exists() and b"request-waits" in said.read_bytes())
        time.sleep(0.6)  # the daemon has seen it under way
        asked(stream, close_run=fed.CloseRun(manifest_hash=manifest.hash))
        wait_for(lambda: b"run-ended" in said.read_bytes())
    for line in said.read_text().replace("}{", "}\n{").splitlines():
        assert set(json.loads(line)) == {"event", "name", "about", "at_s"}


def test_daemon_stops_after_the_last_day_of_its_data_set(home, tmp_path, coordinator):
    started = Started(home, tmp_path)
    coordinator.next_stream()
    home.change(keep_until="2001-02-03")
    started.daemon._renewal_checked_s = 0.0  # an hour later
    started.join()
    assert started.error is not None
    assert started.error.code == "retention-over"


@pytest.mark.usefixtures("hashed_embedder")
def test_run_that_ended_with_a_receipt_cannot_be_approved_or_continued(running, coordinator, home):
    stream = coordinator.next_stream()
    manifest = manifest_for(home)
    assert propose(stream, manifest).WhichOneof("body") == "pending"
    command("preview", "a run", "--home", home.path)
    command("approve", "a run", plan_words(manifest.hash), "--home", home.path)
    signature = propose(stream, manifest).signature.signature

    agree = fed.AgreeManifest(manifest=manifest.to_bytes(), signatures={"alpha": signature})
    assert asked(stream, agree=agree).WhichOneof("body") == "agreed"
    close = fed.CloseRun(manifest_hash=manifest.hash)
    receipt = asked(stream, close_run=close).receipt
    assert json.loads(receipt.body)["entries"][-1]["kind"] == "close"
    assert asked(stream, close_run=close).receipt == receipt
    assert "ended" in command("requests", "--home", home.path)
    again = command("approve", "a run", plan_words(manifest.hash), "--home", home.path, code=2)
    assert "has ended" in again
    first = advertise_request(manifest.sum_parameters("labels", 0))
    for refused in (
        asked(stream, open_sum=fed.OpenSum(manifest_hash=manifest.hash, sum="labels", payload=first)),
        asked(stream, prepare_sum=fed.PrepareSum(manifest_hash=manifest.hash, sum="labels", payload=first)),
    ):
        assert refused.WhichOneof("body") == "refusal", refused


@pytest.mark.usefixtures("hashed_embedder")
def test_revoking_a_run_erases_the_keys_of_its_attempt_without_a_request(running, coordinator, home):
    stream = coordinator.next_stream()
    manifest = manifest_for(home)
    asked(stream, agree=agreement(stream, home, manifest))
    first = advertise_request(manifest.sum_parameters("labels", 0))
    asked(stream, prepare_sum=fed.PrepareSum(manifest_hash=manifest.hash, sum="labels", payload=first))
    assert len(list(home.attempts.iterdir())) == 1
    command("revoke", "a run", "--home", home.path)
    wait_for(lambda: not any(home.attempts.iterdir()))


@pytest.mark.usefixtures("hashed_embedder")
def test_only_the_approved_plan_is_signed_and_another_is_reported(running, coordinator, home, caplog):
    stream = coordinator.next_stream()
    shown, changed = manifest_for(home, epsilon=0.1), manifest_for(home, epsilon=2.0)
    assert propose(stream, shown).WhichOneof("body") == "pending"
    time.sleep(0.6)  # the daemon has seen that it is pending
    approve(home, shown)
    stream.next("decided")
    assert propose(stream, changed).WhichOneof("body") == "pending"
    assert "ANOTHER PLAN than before: epsilon 0.1 -> 2" in caplog.text
    time.sleep(0.6)
    status = command("status", "--home", home.path, code=None)
    assert "run 'a run' is proposed with ANOTHER PLAN than before: epsilon 0.1 -> 2" in status
    shown.check_signatures({"alpha": propose(stream, shown).signature.signature})
    assert "another manifest already" in propose(stream, changed).refusal.problem


def test_changed_policy_takes_effect_in_a_running_daemon(running, coordinator, home):
    stream = coordinator.next_stream()
    manifest = manifest_for(home, epsilon=1.5)
    assert propose(stream, manifest).WhichOneof("body") == "pending"
    command("budget", "set", "--epsilon", 1, "--delta", "1e-4", "--home", home.path)
    assert "more than the policy allows in one run" in propose(stream, manifest).refusal.problem
    home.policy.write_text("{}")
    assert "policy does not let it answer" in propose(stream, manifest).refusal.problem


def test_leaving_the_coordinator_ends_the_connection(running, coordinator, home):
    stream = coordinator.next_stream()
    command("revoke", "--coordinator", "--home", home.path)
    assert "does not trust" in stream.next("goodbye").reason
    running.join()
    assert isinstance(running.error, UndersongError)


def test_old_certificate_is_renewed_and_used_by_the_next_connection(tmp_path, authority, coordinator):
    from datetime import UTC, datetime

    begin = datetime.now(UTC) - timedelta(days=80)
    home = PartyHome(joined(tmp_path, authority, address=coordinator.address, begin=begin, life=timedelta(days=90)))
    with contextlib.closing(Started(home, tmp_path)):
        first = coordinator.next_stream()
        request = EnrolmentRequest.parse(first.next("renew").request)
        assert request.renewal
        assert request.identity == keys.identity(home).public_key().public_bytes_raw()
        first.send(renewed=wire.Renewed(grant=Authority().grant(request)))  # another authority's: not taken
        old = keys.credential(home)
        first.send(renewed=wire.Renewed(problem="not today"))
        time.sleep(0.3)
        assert keys.credential(home) == old
        first.send(renewed=wire.Renewed(grant=authority.grant(request)))
        wait_for(lambda: keys.credential(home) != old)
        first.ask(INTRODUCE)  # the stream and its runs go on
        first.cut()
        second = coordinator.next_stream()
        assert second.serial != first.serial
        assert trust.validity(home)[1] - datetime.now(UTC) > timedelta(days=300)


def test_an_orderly_stop_logs_no_error(running, coordinator, caplog):
    caplog.set_level(logging.INFO)
    coordinator.next_stream().ask(INTRODUCE)
    running.daemon.stop()
    running.join()
    assert running.error is None
    assert "stopped" in caplog.messages
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_daemon_that_is_stopped_still_sends_the_answer_under_way(running, coordinator, held):
    stream = coordinator.next_stream()
    posted = stream.post(INTRODUCE)
    assert held.entered.wait(5)
    running.daemon.stop()
    time.sleep(0.4)
    held.gate.set()
    assert stream.reply().id == posted.id
    assert stream.next("goodbye").reason == "the daemon stops"
    running.join()
    assert running.error is None


def test_reply_that_cannot_be_journaled_is_not_sent(running, coordinator, monkeypatch, caplog):
    stream = coordinator.next_stream()

    def full(*_, **__):
        raise ConfigurationError("journal.sqlite: cannot be written: disk full")

    monkeypatch.setattr(Outbox, "record", full)
    with caplog.at_level(logging.ERROR):
        posted = stream.post(INTRODUCE)
        with pytest.raises(TimeoutError):
            stream.reply(timeout_s=0.7)
        wait_for(lambda: "is held up: journal.sqlite" in caplog.text)
    monkeypatch.undo()
    stream.post(INTRODUCE, posted.id)
    assert stream.reply().id == posted.id


def test_no_private_text_reaches_log_status_or_outbox(running, coordinator, home, caplog):
    with caplog.at_level(logging.DEBUG):
        stream = coordinator.next_stream()
        propose(stream, manifest_for(home))

        def broken(*_):
            raise RuntimeError("private note 3")

        running.assembled.party._answer_propose = broken
        reply = propose(stream, manifest_for(home))
        assert reply.refusal.kind == fed.Refusal.INTERNAL
    written = caplog.text + home.status.read_text() + str(reply)
    written += "".join(str(Outbox(home).data(entry.number)) for entry in Outbox(home).entries())
    assert "private note" not in written
    assert "internal error RuntimeError" in caplog.text


def test_statistic_trusted_under_an_earlier_release_is_logged_once(tmp_path, home, coordinator, caplog):
    signed = sign_former_trust(home.path, "sentence_histogram")
    with caplog.at_level(logging.WARNING), contextlib.closing(Started(home, tmp_path)):
        coordinator.next_stream().cut()
        coordinator.next_stream().ask(INTRODUCE)
    assert caplog.text.count("(sentence_histogram)") == 1
    assert home.policy.read_bytes() == signed


def test_embeddings_are_computed_once_and_stored_encrypted(tmp_path, home):
    for expected in ([12], []):
        embedder = HashedEmbedder()
        HospitalComputation(home, embedder).warm()
        assert embedder.asked == expected
    cache = tmp_path / ".alpha.jsonl.undersong" / "embeddings.sqlite"
    assert cache.exists()
    assert json.dumps(home.settings.cache).strip('"') == str(cache.parent)


def test_reconnection_pauses_grow_with_failures_and_are_random():
    backoff = Backoff(first_s=0.5, largest_s=60.0)
    assert [backoff.wait_s(failures, 1.0) for failures in (1, 2, 3, 8, 1000)] == [0.5, 1.0, 2.0, 60.0, 60.0]
    assert backoff.wait_s(3, 0.0) == pytest.approx(0.2)
    assert backoff.wait_s(0, 0.5) < 0.5


def test_requests_that_come_with_the_welcome_are_answered(running, coordinator, monkeypatch):
    first = coordinator.next_stream()
    welcomed, answer = running.daemon._take_welcome, running.daemon._answering.party.answer

    def late(*arguments):
        time.sleep(0.5)  # one request is being answered and one waits before this side is done with the welcome
        welcomed(*arguments)

    def slow(*arguments, **passed):
        time.sleep(1.0)
        return answer(*arguments, **passed)

    monkeypatch.setattr(running.daemon, "_take_welcome", late)
    monkeypatch.setattr(running.daemon._answering.party, "answer", slow)
    first.cut()
    second = coordinator.next_stream()
    posted = [second.post(INTRODUCE).id, second.post(INTRODUCE).id]
    assert [second.reply(timeout_s=20.0).id, second.reply(timeout_s=20.0).id] == posted
