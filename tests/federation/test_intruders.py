"""Everyone who has no business here: refused, logged once a source, and the service stays up for those who have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest

from tests.doubles.loops import wait_for
from tests.doubles.stream import Credentials, Served, Stream, make_home
from undersong_common.errors import ConfigurationError
from undersong_protocol.wire import framing
from undersong_protocol.wire.messages import transport_pb2 as wire
from undersong_server.coordinator import gate
from undersong_server.coordinator.grpc_server import STREAMS_A_SECOND, STREAMS_AT_ONCE, STREAMS_OF_A_PARTY
from undersong_server.coordinator.parties import Registry

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("coordinator") / "home")


@pytest.fixture(scope="module")
def keys(home):
    return Credentials(home, "heart")


@pytest.fixture
def served(home):
    with Served(home) as server:
        yield server


@pytest.fixture(autouse=True)
def warnings(caplog):
    caplog.set_level(logging.WARNING)


def still_serves(served, keys):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        stream.answer(lambda request: request)
        return served.transport.exchange({"heart": b"echo"}, timeout_s=60.0) == {"heart": b"echo"}


def serves_again(served, keys):
    """As a hospital's program does, which connects anew: a busy machine still refuses what a flood has left."""
    with contextlib.suppress(grpc.RpcError):
        return still_serves(served, keys)
    return False


def refusals(caplog):
    return [record.message for record in caplog.records if record.message.startswith("refused")]


def count_refusals(served, reason):
    return served.metrics.registry.get_sample_value("undersong_refused_total", {"reason": reason}) or 0


def failed(port, credentials, party="heart"):
    with Stream(port, credentials) as stream:
        with pytest.raises((grpc.RpcError, EOFError)):
            stream.hello(party)
        return stream.wait_ended()


def test_connection_without_a_certificate_is_refused(served, keys, caplog):
    for _ in range(3):
        assert failed(served.port, grpc.ssl_channel_credentials(keys.ca)) == grpc.StatusCode.UNAVAILABLE
    wait_for(lambda: count_refusals(served, gate.NO_CERTIFICATE) >= 3)
    assert len(refusals(caplog)) == 1
    assert "127.0.0.1" in refusals(caplog)[0]
    assert still_serves(served, keys)


def test_a_certificate_of_a_foreign_authority_is_refused(served, keys, tmp_path, caplog):
    foreign = Credentials(make_home(tmp_path / "foreign"), "heart")
    credentials = grpc.ssl_channel_credentials(keys.ca, foreign.key, foreign.certificate)
    assert failed(served.port, credentials) == grpc.StatusCode.UNAVAILABLE
    wait_for(lambda: len(refusals(caplog)) == 1)
    assert gate.NO_CERTIFICATE in refusals(caplog)[0]
    assert still_serves(served, keys)


def test_an_expired_certificate_is_refused(served, home, keys, caplog):
    old = Credentials(home, "old", now=time.time() - 10 * 86400, days=1)
    assert failed(served.port, old.for_grpc, "old") == grpc.StatusCode.UNAVAILABLE
    wait_for(lambda: len(refusals(caplog)) == 1)
    assert still_serves(served, keys)


def test_a_certificate_that_expires_during_a_stream_ends_it(served, home):
    with Stream(served.port, Credentials(home, "brief", days=3.0 / 86400).for_grpc) as stream:
        stream.hello("brief")
        assert "expired" in stream.next("goodbye", 8.0).goodbye.reason


def test_coordinator_reads_the_party_register_again_after_a_failure(served, home, monkeypatch):
    """A full disk, or a command that holds the file for long: after it revocations must count as before it."""
    asked = []
    refusals = Registry.refusals

    def failing_first(self, presented, *, now):
        asked.append(now)
        if len(asked) == 1:
            raise ConfigurationError("the register cannot be written", "free space")
        return refusals(self, presented, now=now)

    with Stream(served.port, Credentials(home, "gone").for_grpc) as stream:
        stream.hello("gone")
        monkeypatch.setattr(Registry, "refusals", failing_first)
        home.revoke("gone", "lost", now=time.time())
        assert "revoked" in stream.next("goodbye", 8.0).goodbye.reason
    assert len(asked) >= 2


def test_a_party_cannot_pose_as_the_coordinator(home, keys):
    # its certificate is for clients: a TLS client that checks the purpose refuses it as a server's
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = home.path
    (folder / "stolen.crt").write_bytes(keys.certificate)
    (folder / "stolen.key").write_bytes(keys.key)
    context.load_cert_chain(folder / "stolen.crt", folder / "stolen.key")

    def pose():
        try:
            connection, _ = listener.accept()
            context.wrap_socket(connection, server_side=True)
        except OSError:
            pass

    threading.Thread(target=pose, daemon=True).start()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=keys.ca.decode())
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="purpose"),
        socket.create_connection(listener.getsockname()) as connection,
    ):
        client.wrap_socket(connection)
    listener.close()


@pytest.mark.parametrize("started", ["here", pytest.param("as a program", marks=pytest.mark.slow)])
def test_older_tls_than_1_3_is_refused(started, request):
    if started == "here":
        port, keys = request.getfixturevalue("served").port, request.getfixturevalue("keys")
    else:
        port, keys = request.getfixturevalue("federation_process")
    for version, accepted in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
        context.check_hostname = False
        context.load_verify_locations(cadata=keys.ca.decode())
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as raw, context.wrap_socket(raw) as secure:
                agreed = secure.version()
        except OSError:
            agreed = None
        assert (agreed is not None) == accepted, version


@pytest.mark.parametrize("attack", ["http", "silence", "noise"])
def test_connection_without_tls_is_closed_at_once(served, keys, caplog, attack, monkeypatch):
    monkeypatch.setattr(gate, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(gate, "SILENT_S", 0.5)
    if attack == "http":
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=5)
    else:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.settimeout(5)
            if attack == "noise":
                connection.sendall(b"\x16" + os.urandom(4000))
            with contextlib.suppress(ConnectionError):
                assert connection.recv(4096)[:1] in (b"", b"\x15")  # closed, or a TLS alert
    wait_for(lambda: len(refusals(caplog)) == 1)
    assert still_serves(served, keys)


def test_stream_may_last_longer_than_the_handshake_limit(served, keys, monkeypatch):
    monkeypatch.setattr(gate, "HANDSHAKE_S", 1.0)
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        stream.answer(lambda request: request)
        assert not stream.ended.wait(1.2)
        assert served.transport.exchange({"heart": b"echo"}, timeout_s=10.0) == {"heart": b"echo"}


def test_malformed_frames_end_their_stream_with_the_reason(served, keys, caplog):
    hello = wire.Hello(version=framing.VERSION, party="heart", software="x", boot=b"b" * 16)
    cases = [
        (b"\xff\xff\xff", "no message"),
        (wire.FromParty(hello=hello).SerializeToString(), "second Hello"),
        (wire.FromParty().SerializeToString(), "without content"),
        (
            wire.FromParty(chunk=wire.Chunk(content=b"x" * 32, index=0, data=b"x")).SerializeToString(),
            "did not announce",
        ),
        (
            wire.FromParty(transfer=wire.Transfer(id=b"i" * 16, content=b"c" * 32, size=2**40, plain_size=2**40)),
            "allowed",
        ),
    ]
    for data, words in cases:
        with Stream(served.port, keys.for_grpc) as stream:
            stream.hello("heart")
            stream.raw(data if isinstance(data, bytes) else data.SerializeToString())
            assert words in stream.next("goodbye").goodbye.reason
    assert len(refusals(caplog)) == 1
    assert still_serves(served, keys)


def test_a_stream_that_begins_wrongly_is_refused(served, keys):
    for first in (
        b"\xff",
        wire.FromParty(ping=wire.Ping(number=1)).SerializeToString(),
        wire.FromParty(hello=wire.Hello(version=99, party="heart", boot=b"b" * 16)).SerializeToString(),
        wire.FromParty(hello=wire.Hello(version=framing.VERSION, party="heart")).SerializeToString(),
    ):
        with Stream(served.port, keys.for_grpc) as stream:
            stream.raw(first)
            assert stream.wait_ended() == grpc.StatusCode.INVALID_ARGUMENT
    assert still_serves(served, keys)


def test_an_oversized_frame_is_refused_before_it_is_read(served, keys):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        stream.raw(bytes(framing.MAX_FRAME_BYTES + 1))
        assert stream.wait_ended() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert still_serves(served, keys)


@pytest.mark.slow
def test_flood_of_connections_is_refused_and_logged_once(served, keys, caplog):
    knock(served.port, seconds=1.5)
    assert count_refusals(served, gate.TOO_FAST) > 100
    assert sum(gate.TOO_FAST in line for line in refusals(caplog)) == 1
    wait_for(lambda: serves_again(served, keys))


@pytest.mark.slow
def test_open_streams_survive_a_flood_of_connections(served, keys):
    with Stream(served.port, keys.for_grpc) as stream:
        stream.hello("heart")
        stream.answer(lambda request: request)
        flood = threading.Thread(target=knock, args=(served.port, 2.0))
        flood.start()
        times = []
        while flood.is_alive():
            begun = time.monotonic()
            assert served.transport.exchange({"heart": b"echo"}, timeout_s=10.0) == {"heart": b"echo"}
            times.append(time.monotonic() - begun)
        assert sorted(times)[len(times) // 2] < 1.0


@pytest.mark.slow
def test_silent_connections_from_many_addresses_keep_no_party_out(served, keys, caplog):
    """2 000 from 8 addresses held every place for 20 s, again and again; fewer here, all at once."""
    opened = []
    try:
        for number in range(800):
            source = f"127.0.0.{2 + number % 8}"
            opened.append(socket.create_connection(("127.0.0.1", served.port), 5, source_address=(source, 0)))
            if number % 2:
                with contextlib.suppress(OSError):
                    opened[-1].sendall(b"\x16\x03\x01")  # a handshake that never goes on
        begun = time.monotonic()
        assert still_serves(served, keys)
        assert time.monotonic() - begun < gate.HANDSHAKE_S / 2
        limits = served.server._gate.limits
        assert len(limits) <= limits.most_unauthenticated
        wait_for(lambda: count_refusals(served, gate.CROWDED) >= 800 - limits.most_unauthenticated - 8)
        assert sum(gate.CROWDED in line for line in refusals(caplog)) == 8  # one line an address
    finally:
        for connection in opened:
            connection.close()


def test_silent_connection_is_closed_soon(served, monkeypatch):
    monkeypatch.setattr(gate, "SILENT_S", 0.3)
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    wait_for(lambda: count_refusals(served, gate.SILENT) == 1)


@pytest.mark.slow
def test_silent_streams_of_one_party_keep_no_other_party_out(served, home, keys):
    """1 000 of them took every place that streams have; here nearly as many as one program may open in a moment."""
    loud = Credentials(home, "loud")
    streams = [Stream(served.port, loud.for_grpc) for _ in range(int(STREAMS_AT_ONCE) - 2)]
    try:
        wait_for(lambda: count_refusals(served, gate.PARTY_CROWDED) > 0, 20.0)
        assert still_serves(served, keys)
        assert served.server._streams["loud"] <= STREAMS_OF_A_PARTY
        wait_for(lambda: len(served.server._gate.limits) <= served.server._gate.limits.per_party + 1, 20.0)
    finally:
        for stream in streams:
            stream.close()
    with Stream(served.port, loud.for_grpc) as stream:  # the newest is heard, whatever the older ones did
        stream.hello("loud")


def test_silent_streams_over_one_connection_are_closed_for_the_newest(served, home, keys):
    loud = Credentials(home, "louder")
    channel = grpc.secure_channel(f"localhost:{served.port}", loud.for_grpc)
    calls = [channel.stream_stream(framing.METHOD)(iter(threading.Event().wait, True)) for _ in range(12)]
    try:
        wait_for(lambda: sum(call.done() for call in calls) >= 8, 20.0)
        found = {(call.code(), call.details()) for call in calls if call.done()}
        # beyond the streams that a connection may have, gRPC itself refuses them
        beyond = (grpc.StatusCode.UNAVAILABLE, "Stream removed (Received RST_STREAM with error code 7 (RST_STREAM))")
        assert found - {beyond} == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party opened another stream")}
        assert served.server._streams["louder"] <= STREAMS_OF_A_PARTY
        assert still_serves(served, keys)
    finally:
        channel.close()


def test_party_with_too_many_open_streams_gets_no_further_one(served, home):
    many = Credentials(home, "many")
    served.server._streams["many"] = STREAMS_OF_A_PARTY
    with Stream(served.port, many.for_grpc) as stream:
        assert stream.wait_ended() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.server._streams.pop("many") == STREAMS_OF_A_PARTY  # what is refused is not counted
    with Stream(served.port, many.for_grpc) as stream:
        stream.hello("many")


@pytest.mark.slow
def test_rate_of_a_party_s_new_streams_is_limited(served, home, keys):
    quick = Credentials(home, "quick")
    codes = []
    for _ in range(int(STREAMS_AT_ONCE) + 20):
        with Stream(served.port, quick.for_grpc) as stream:
            stream.raw(b"\xff")
            codes.append(stream.wait_ended())
    assert codes.count(grpc.StatusCode.INVALID_ARGUMENT) >= STREAMS_AT_ONCE
    assert codes[-1] == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert count_refusals(served, "opens too many streams") > 0
    assert still_serves(served, keys)


def test_party_that_does_not_read_its_stream_is_disconnected(served, home, monkeypatch):
    monkeypatch.setattr(framing, "LONGEST_QUEUE", 50)
    served.server._write = lambda box, link, context: asyncio.sleep(60)  # as where nothing is taken off the wire
    with Stream(served.port, Credentials(home, "deaf").for_grpc) as stream:
        stream.hello("deaf")
        for number in range(200):
            stream.send(ping=wire.Ping(number=number))
        wait_for(lambda: count_refusals(served, "sent a malformed message") == 1, 10.0)
        wait_for(lambda: "deaf" not in served.server.connected, 10.0)


@pytest.mark.slow
def test_two_hundred_parties_stay_connected_at_once(served, home):
    names = [f"p{number}" for number in range(200)]
    streams = []
    try:
        for name in names:
            stream = Stream(served.port, Credentials(home, name).for_grpc)
            streams.append(stream)
            stream.hello(name)
            stream.answer(lambda request: request)
        wait_for(lambda: served.server.connected == sorted(names))
        found = served.transport.exchange({name: name.encode() for name in names}, timeout_s=30.0)
        assert found == {name: name.encode() for name in names}
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.slow
def test_random_frames_do_not_disturb_the_coordinator(served, keys):
    end = time.monotonic() + 15.0
    random_ = random.Random(7)
    sent = 0
    while time.monotonic() < end:
        time.sleep(1 / STREAMS_A_SECOND)
        with Stream(served.port, keys.for_grpc) as stream:
            if random_.random() < 0.8:
                stream.hello("heart")
            for _ in range(50):
                stream.raw(_random_frame(random_))
                sent += 1
                if stream.ended.is_set():
                    break
    assert sent > 100
    assert still_serves(served, keys)


def knock(port, seconds):
    """As many connections as one thread can open."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        except OSError:
            continue


def _random_frame(random_):
    kind = random_.randrange(4)
    if kind == 0:
        return random_.randbytes(random_.randrange(1, 2000))
    if kind == 1:
        size = random_.choice([0, 1, 100, 2**20, 2**62])
        body = random_.randbytes(random_.randrange(0, 100))
        frame = wire.Transfer(
            id=random_.randbytes(16), content=random_.randbytes(32), size=size, plain_size=size, whole=body
        )
        return wire.FromParty(transfer=frame).SerializeToString()
    if kind == 2:
        chunk = wire.Chunk(content=random_.randbytes(32), index=random_.randrange(2**31), data=b"x" * 100)
        return wire.FromParty(chunk=chunk).SerializeToString()
    good = wire.FromParty(renew=wire.Renew(request=random_.randbytes(300))).SerializeToString()
    broken = bytearray(good)
    broken[random_.randrange(len(broken))] ^= 1 << random_.randrange(8)
    return bytes(broken)
