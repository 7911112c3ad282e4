"""The coordinator's wire in one process: who is let in, what is delivered, what happens when a stream breaks."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import grpc
import pytest
from cryptography import x509

from tests.doubles.coded import raises
from tests.doubles.loops import in_a_thread, wait_for
from tests.doubles.stream import Credentials, Served, Stream, make_home
from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.enrolment import EnrolmentRequest
from undersong_protocol.wire import framing
from undersong_protocol.wire.messages import transport_pb2 as wire
from undersong_server.coordinator import grpc_server, grpc_transport
from undersong_server.coordinator.parties import RENEWALS_AN_HOUR, Registry
from undersong_server.operations.enrolment import parties


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("coordinator") / "home")


@pytest.fixture(scope="module")
def keys(home):
    return Credentials(home, "heart")


@pytest.fixture(scope="module")
def served(home):
    with Served(home) as server:
        yield server


def asked(served, data, party="heart", timeout_s=10.0):
    return served.transport.exchange({party: data}, timeout_s=timeout_s).get(party)


@pytest.mark.heavy
@pytest.mark.parametrize("size", [1, 5_000, framing.CHUNK_BYTES, 3 * framing.CHUNK_BYTES + 7])
def test_request_and_reply_of_any_size_are_transmitted_unchanged(served, keys, size):
    data = os.urandom(size)
    with Stream(served.port, keys.for_grpc) as stream:
        welcome = stream.hello("heart")
        assert abs(welcome.clock_s - time.time()) < 5
        stream.answer(lambda request: request[::-1])
        assert asked(served, data) == data[::-1]


def test_locked_registry_delays_only_parties_that_are_connecting(home, served, keys, monkeypatch):
    noted, begun = served.registry.seen, threading.Event()
    with (
        closing(sqlite3.connect(home.path / "registry.sqlite", isolation_level=None)) as operators,
        Stream(served.port, keys.for_grpc) as first,
        ThreadPoolExecutor(1) as asks,
    ):
        first.hello("heart")
        first.answer(lambda request: request)
        operators.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(served.registry, "seen", lambda *given, **said: (begun.set(), noted(*given, **said)))
        with Stream(served.port, keys.for_grpc) as second:
            welcomed = asks.submit(second.hello, "heart")
            assert begun.wait(10.0)
            time.sleep(0.05)
            assert asked(served, b"x") == b"x"
            assert "not issued" in served.registry.refusal("heart", "00", now=time.time())  # others are let in
            assert not welcomed.done()
            operators.execute("COMMIT")
            assert welcomed.result().coordinator == "coordinator"


def test_a_request_waits_for_a_party_that_connects_later(served, keys):
    replies = []
    thread = threading.Thread(target=lambda: replies.append(asked(served, b"early")))
    thread.start()
    time.sleep(0.2)
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        stream.answer(lambda request: b"late " + request)
        thread.join(10)
    assert replies == [b"late early"]


@pytest.mark.heavy
def test_a_party_that_does_not_answer_is_left_out_after_the_timeout(served, keys):
    seen = []
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        begun = time.monotonic()
        found = served.transport.exchange(
            {"heart": b"x", "nobody": b"x"}, timeout_s=0.6, watch=lambda waiting: seen.append(waiting)
        )
        assert found == {}
        assert 0.5 < time.monotonic() - begun < 3
    assert {name: seen[0].missing[name].connected for name in ("heart", "nobody")} == {"heart": True, "nobody": False}
    assert seen[0].answered == 0


def test_unanswered_request_is_sent_again_unchanged_after_a_reconnect(served, keys, monkeypatch):
    monkeypatch.setattr(grpc_transport, "ACKNOWLEDGE_S", 0.02)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(asked(served, b"question")))
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        thread.start()
        first = stream.next("transfer").transfer
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        second = stream.next("transfer").transfer
        assert (second.id, second.whole) == (first.id, first.whole)
        stream.reply(second.id, b"answer")
        assert stream.next("ack").ack.id == first.id
        thread.join(10)
    assert replies == [b"answer"]


def test_reply_is_acknowledged_with_the_next_request_or_alone(served, keys, monkeypatch):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        asks = threading.Thread(target=lambda: [asked(served, b"first"), asked(served, b"second")])
        asks.start()
        first = stream.next("transfer")
        stream.reply(first.transfer.id, b"answer")
        second = stream.next("transfer")
        assert (list(first.acknowledged), list(second.acknowledged)) == ([], [first.transfer.id])
        monkeypatch.setattr(grpc_transport, "ACKNOWLEDGE_S", 0.02)
        stream.reply(second.transfer.id, b"answer")
        assert stream.next("ack").ack.id == second.transfer.id
        asks.join(10)


def test_reply_resumed_after_a_break_omits_chunks_that_had_arrived(served, keys):
    size = 8 * framing.CHUNK_BYTES
    question, answer = os.urandom(size), os.urandom(size)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(asked(served, question)))
    thread.start()
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        transfer = stream.next("transfer").transfer
        first = stream.next("chunk").chunk
        outgoing = framing.Outgoing(transfer.id, answer)
        frames = list(outgoing.frames())
        stream.send(transfer=frames[0])
        for chunk in frames[1:4]:
            stream.send(chunk=chunk)
        box = served.transport.mailboxes["heart"]
        wait_for(lambda: box.reassembler.held_bytes == 3 * framing.CHUNK_BYTES)
    with Stream(served.port, keys.for_grpc) as stream:
        welcome = stream.hello("heart", held=[wire.Held(content=transfer.content, chunks=b"\x01")])
        again = [stream.next("chunk").chunk.index for _ in range(7)]
        assert first.index == 0
        assert again == list(range(1, 8))
        held = framing.held_by(welcome.held)
        rest = list(outgoing.frames(held))
        assert len(rest) == 1 + 5
        for frame in rest:
            stream.send(**{"transfer" if isinstance(frame, wire.Transfer) else "chunk": frame})
        thread.join(10)
    assert replies == [answer]


def inflations(monkeypatch, until=None):
    """(peer, thread) of every inflation; each waits for ``until``."""
    found, real = [], framing._inflate_body

    def inflated(peer, body, plain_size):
        found.append((peer, threading.current_thread().name))
        assert until is None or until.wait(20)
        return real(peer, body, plain_size)

    monkeypatch.setattr(framing, "_inflate_body", inflated)
    return found


@pytest.mark.heavy
def test_long_reply_is_decompressed_while_other_parties_are_served(served, keys, home, monkeypatch):
    go_on = threading.Event()
    found = inflations(monkeypatch, go_on)
    other = Credentials(home, "kidney")
    answer = os.urandom(2**20) + bytes(2**24)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(asked(served, b"much?", timeout_s=30.0)))
    with Stream(served.port, keys.for_grpc) as stream, Stream(served.port, other.for_grpc) as beside:
        stream.hello("heart")
        beside.hello("kidney")
        beside.answer(lambda request: request)
        thread.start()
        id_ = stream.next("transfer").transfer.id
        start, *chunks = framing.Outgoing(id_, answer).frames()
        assert start.deflated
        for number in range(framing.MAX_IDS - 1):  # ids under which nobody waits for anything
            stream.send(transfer=wire.Transfer(id=bytes([number]) * 16, **_without_id(start)))
        stream.send(transfer=start)
        for chunk in chunks:
            stream.send(chunk=chunk)
        wait_for(lambda: found)
        assert all(asked(served, b"quick", "kidney", 5.0) == b"quick" for _ in range(3))
        assert not replies
        go_on.set()
        thread.join(30)
    assert replies == [answer]
    assert [peer for peer, _ in found] == ["heart"]
    assert found[0][1].startswith("opens")


def _without_id(frame):
    return {name: getattr(frame, name) for name in ("content", "size", "plain_size", "deflated", "whole")}


@pytest.mark.slow
def test_reply_that_nobody_awaits_is_acknowledged_but_not_stored(served, keys, monkeypatch):
    found = inflations(monkeypatch)
    small, large = bytes(10**6), os.urandom(2**20) + bytes(2**24)
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        for number, data in enumerate([small, large] * 3):
            id_ = number.to_bytes(16, "little")
            stream.reply(id_, data)
            assert stream.next("ack").ack.id == id_
        for frame in list(framing.Outgoing(b"i" * 16, os.urandom(2**20)).frames())[:3]:  # cut off: nothing is held
            stream.send(**{"transfer" if isinstance(frame, wire.Transfer) else "chunk": frame})
        stream.send(ping=wire.Ping(number=7))
        assert stream.next("pong").pong.number == 7
        assert served.transport.mailboxes["heart"].reassembler.held_bytes == 0
        stream.answer(lambda request: request)
        assert asked(served, b"still there?") == b"still there?"
    assert found == []


@pytest.mark.heavy
def test_reply_larger_than_allowed_ends_the_stream_before_it_is_sent(served, keys):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        thread = threading.Thread(
            target=lambda: served.transport.exchange({"heart": b"x"}, timeout_s=1.0, reply_bytes=2**20)
        )
        thread.start()
        id_ = stream.next("transfer").transfer.id
        stream.send(transfer=next(framing.Outgoing(id_, os.urandom(2**20 + 1)).frames()))
        assert "1048577 bytes; 1048576 are allowed" in stream.next("goodbye").goodbye.reason
    thread.join(10)


def test_older_of_two_streams_of_one_party_is_closed(served, keys):
    with Stream(served.port, keys.for_grpc) as old:
        old.hello("heart")
        with Stream(served.port, keys.for_grpc) as new:
            new.hello("heart")
            goodbye = old.next("goodbye").goodbye
            assert "newer" in goodbye.reason
            assert goodbye.reconnect_after_s < 0
            new.answer(lambda request: b"new")
            assert asked(served, b"who?") == b"new"


def test_party_cannot_connect_under_another_name_than_its_certificates(served, keys, caplog):
    with caplog.at_level(logging.WARNING), Stream(served.port, keys.for_grpc) as stream:
        with pytest.raises(grpc.RpcError):
            stream.hello("lung")
        assert stream.wait_ended() == grpc.StatusCode.PERMISSION_DENIED
    assert "heart calls itself 'lung'" in caplog.text


@pytest.mark.heavy
def test_a_revoked_party_is_cut_off_and_not_let_in_again(served, home, caplog):
    keys = Credentials(home, "liver")
    with caplog.at_level(logging.WARNING), Stream(served.port, keys.for_grpc) as stream:
        stream.hello("liver")
        home.revoke("liver", "test", now=time.time())
        assert stream.next("goodbye", 5.0).goodbye.reconnect_after_s < 0
    with Stream(served.port, keys.for_grpc) as stream:
        with pytest.raises(grpc.RpcError):
            stream.hello("liver")
        assert stream.wait_ended() == grpc.StatusCode.PERMISSION_DENIED
    assert "liver was revoked" in caplog.text


@pytest.mark.heavy
def test_certificate_that_is_not_yet_valid_is_refused_only_for_now(served, home, monkeypatch):
    """Not as one that somebody has revoked: the clock may be wrong, and set right at any moment."""
    keys = Credentials(home, "thyroid")
    with monkeypatch.context() as ahead:
        ahead.setattr(served.server, "_clock", lambda: time.time() + 366 * 86400)
        with Stream(served.port, keys.for_grpc) as stream:
            with pytest.raises(grpc.RpcError):
                stream.hello("thyroid")
            assert stream.wait_ended() == grpc.StatusCode.FAILED_PRECONDITION
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("thyroid")


def half_spent(home, name):
    """Keys whose certificate has less than half of its life left."""
    return Credentials(home, name, now=time.time() - 60 * 86400, days=100)


def renewal(keys):
    return EnrolmentRequest.make(keys.name, keys.tls, keys.identity, None).sign(keys.identity)


def test_certificate_is_renewed_over_its_stream_while_the_old_one_is_valid(served, home):
    keys = half_spent(home, "brain")
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("brain")
        stream.send(renew=wire.Renew(request=renewal(keys)))
        assert stream.next("renewed").renewed.grant
        stream.answer(lambda request: b"still here")
        assert asked(served, b"?", "brain") == b"still here"
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("brain")
        stream.send(renew=wire.Renew(request=renewal(Credentials(home, "spleen"))))
        assert "own party only" in stream.next("renewed").renewed.problem
    assert served.metrics.registry.get_sample_value("undersong_renewals_total", {"party": "brain"}) == 1


@pytest.mark.heavy
def test_certificates_are_renewed_only_when_due_and_at_most_three_an_hour(served, home):
    refused = {"reason": "asked for a certificate that it does not get"}
    before = served.metrics.registry.get_sample_value("undersong_refused_total", refused) or 0
    early = Credentials(home, "skin")
    with Stream(served.port, early.for_grpc) as stream:
        stream.hello("skin")
        stream.send(renew=wire.Renew(request=renewal(early)))
        assert "may be renewed in 182." in stream.next("renewed").renewed.problem
    keys = half_spent(home, "bone")
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("bone")
        for _ in range(30):
            stream.send(renew=wire.Renew(request=renewal(keys)))
        answers = [stream.next("renewed").renewed for _ in range(30)]
    assert [bool(answer.grant) for answer in answers] == [True] * 3 + [False] * 27
    assert {answer.problem for answer in answers[3:]} == {
        "bone: was given 3 certificates within an hour, the most that are allowed"
    }
    assert served.metrics.registry.get_sample_value("undersong_renewals_total", {"party": "bone"}) == 3
    assert served.metrics.registry.get_sample_value("undersong_refused_total", refused) - before == 28


def test_simultaneous_renewal_requests_do_not_exceed_the_hourly_limit(home, monkeypatch):
    keys = half_spent(home, "tibia")
    serial = f"{x509.load_pem_x509_certificate(keys.certificate).serial_number:x}"
    check, together = Registry.check_renewal, threading.Barrier(6)

    def checked_at_once(registry, name, serial, *, now):
        check(registry, name, serial, now=now)
        together.wait(10.0)  # everyone has been told that it may have one before anyone gets it

    def ask(request):
        try:
            return home.renew("tibia", serial, request)
        except ConfigurationError as error:
            return error.problem

    monkeypatch.setattr(Registry, "check_renewal", checked_at_once)
    with ThreadPoolExecutor(6) as streams:
        answers = list(streams.map(ask, [renewal(keys)] * 6))
    assert sum(isinstance(answer, bytes) for answer in answers) == RENEWALS_AN_HOUR
    assert {answer for answer in answers if isinstance(answer, str)} == {
        "tibia: was given 3 certificates within an hour, the most that are allowed"
    }


def test_a_party_holds_a_bounded_number_of_valid_certificates(home):
    keys = half_spent(home, "vein")
    registry = home.registry()
    serial = f"{x509.load_pem_x509_certificate(keys.certificate).serial_number:x}"
    registry, now = home.registry(), time.time()
    for hour in range(15):
        registry.check_renewal("vein", serial, now=now + 3600.0 * hour)
        home.sign(EnrolmentRequest.parse(renewal(keys)), now=now + 3600.0 * hour)
    with raises(ConfigurationError, "too-many-certificates"):
        registry.check_renewal("vein", serial, now=now + 3600.0 * 15)
    registry.close()


def test_the_server_certificate_is_renewed_without_a_restart(served, keys):
    before = served.authority.server_credentials
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        served.authority.issue_server(["localhost"], now=time.time())
        assert served.authority.server_credentials != before
        stream.answer(lambda request: b"undisturbed")
        assert asked(served, b"?") == b"undisturbed"
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")


@pytest.mark.heavy
def test_connection_that_answers_no_ping_is_closed(home, keys):
    # a relay that stops passing anything on: to the server the peer is there, and silent
    with (
        Served(home, keepalive_s=0.3) as served,
        FrozenRelay(served.port) as relay,
        Stream(relay.port, keys.for_grpc) as stream,
    ):
        stream.hello("heart")
        wait_for(lambda: served.server.connected == ["heart"])
        relay.freeze()
        wait_for(lambda: served.server.connected == [], 10.0)


@pytest.mark.heavy
def test_connection_that_only_answers_pings_stays_open(home, keys):
    with Served(home, keepalive_s=0.2) as served, Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        for _ in range(5):
            stream.send(pong=wire.Pong(number=stream.next("ping").ping.number))
        assert served.server.connected == ["heart"]


def test_health_check_with_a_certificate_answers_serving(served, keys):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.secure_channel(f"localhost:{served.port}", keys.for_grpc) as channel:
        check = partial(health_pb2_grpc.HealthStub(channel).Check, timeout=5)
        for service in ("", framing.SERVICE):
            reply = check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            check(health_pb2.HealthCheckRequest(service="undersong.Other"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_check_reports_a_stop_that_begins_during_the_check():
    from grpc_health.v1 import health_pb2

    class Asked:
        async def send_initial_metadata(self, metadata):
            self.sent = dict(metadata)

    async def admitted(_context):
        return None

    stopping = threading.Event()
    asked, health = Asked(), grpc_server._HealthService(admitted, lambda: 3.0, stopping.is_set)
    for wanted in ("SERVING", "NOT_SERVING"):
        reply = in_a_thread(health.Check(health_pb2.HealthCheckRequest(), asked))
        assert health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status) == wanted
        assert asked.sent == {framing.CLOCK_METADATA: "3.000"}
        stopping.set()


def test_facts_in_a_partys_hello_are_stored_in_the_registry(served, keys):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart", software="undersong 9", embedder=b"\x01" * 32, epsilon_left=2.5, paused=True)
        party = served.registry.party("heart")
    assert (party.software, party.embedder, party.epsilon_left, party.paused) == ("undersong 9", "01" * 32, 2.5, True)
    assert time.time() - party.last_seen < 10


def test_reason_why_a_daemon_does_not_start_is_stored_until_it_connects(served, keys, home):
    for reason, words in (("POLICY", "its policy is missing"), ("CLOCK", "clock is wrong"), (77, "another version")):
        with Stream(served.port, keys.for_grpc) as stream:
            stream.hello("heart", does_not_start=reason)
            stream.wait_ended()
        (facts,) = [each for each in parties(home.path) if each.party.name == "heart"]
        assert words in facts.away_because
    assert "heart" not in served.server.connected
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        assert served.registry.party("heart").does_not_start == ""


def test_party_of_another_version_is_listed_away_for_its_version(served, keys, home):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.send(hello=wire.Hello(version=framing.VERSION + 1, party="heart", software="newer", boot=bytes(16)))
        stream.wait_ended()
    (facts,) = [facts for facts in parties(home.path) if facts.party.name == "heart"]
    assert "another version" in facts.away_because


class FrozenRelay:
    """Relays TCP until it is told to stop reading: then both ends see an open, silent connection."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._frozen = threading.Event()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self._sockets:
            each.close()

    def freeze(self):
        self._frozen.set()

    def _accept(self):
        try:
            while True:
                outer, _ = self._listener.accept()
                inner = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [outer, inner]
                for one, other in ((outer, inner), (inner, outer)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()
        except OSError:
            return

    def _pump(self, one, other):
        try:
            while data := one.recv(65536):
                if self._frozen.is_set():
                    threading.Event().wait(60)
                    return
                other.sendall(data)
        except OSError:
            return
