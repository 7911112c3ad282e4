"""One stream: how it ends, in whichever moment, and in which thread its listener is called."""

import contextlib
import gc
import os
import queue
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest

from tests.doubles.authority import Authority
from tests.doubles.coordinator_stream import ScriptedCoordinator
from tests.doubles.loops import wait_for
from undersong_client.consent.trust import TrustedCoordinator
from undersong_client.keys import Credential
from undersong_client.link.connection import THREAD, Connection, Ended, Listener
from undersong_protocol.wire import framing
from undersong_protocol.wire.framing import ID_BYTES, Envelope, Reassembler
from undersong_protocol.wire.messages import transport_pb2 as wire


class Told(Listener):
    """A listener that keeps what it was told, and in which thread."""

    def __init__(self) -> None:
        self.acknowledgements: queue.Queue[tuple[bytes, threading.Thread]] = queue.Queue()
        self.requests: queue.Queue[Envelope] = queue.Queue()

    def wants(self, id_: bytes) -> bool:
        return True

    def request(self, envelope: Envelope) -> None:
        self.requests.put(envelope)

    def acknowledged(self, id_: bytes) -> None:
        self.acknowledgements.put((id_, threading.current_thread()))

    def renewed(self, message: wire.Renewed) -> None: ...


@contextlib.contextmanager
def dialled(authority: Authority, address: str, told: Told | None = None) -> Iterator[Connection]:
    coordinator = TrustedCoordinator(
        name="coordinator",
        addresses=(address,),
        server_name="",
        ca_certificate=authority.pem,
        signing_key=b"",
        fingerprint="",
    )
    connection = Connection(
        address,
        coordinator,
        Credential(*authority.server("alpha")),
        hello=wire.Hello(version=framing.VERSION, party="alpha", software="test", boot=os.urandom(ID_BYTES)),
        reassembler=Reassembler("coordinator"),
        listener=told or Told(),
        use_proxy=False,
    )
    try:
        yield connection
    finally:
        connection.close("the test ends")


@pytest.mark.heavy
def test_stream_closes_at_once_and_quietly_at_any_moment(authority, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent, ScriptedCoordinator(authority) as coordinator:
        for address in (f"localhost:{silent.getsockname()[1]}", coordinator.address):
            for wait_s in (0.0, 0.003, 0.01):
                with dialled(authority, address) as connection:
                    time.sleep(wait_s)
                    begun = time.monotonic()
                    connection.close("no longer wanted")
                    assert time.monotonic() - begun < 1.0
                    assert connection.ended is not None
                    # The second where the welcome was there: then it has said goodbye.
                    assert connection.ended.reason in ("no longer wanted", "the coordinator ended the stream")
    gc.collect()
    assert [
        record.message for record in caplog.records if record.name in ("asyncio", "undersong_client.link.connection")
    ] == []


def test_frames_sent_before_the_end_arrive_and_streams_share_one_thread(authority):
    with ScriptedCoordinator(authority) as coordinator:
        first, second = Told(), Told()
        with (
            dialled(authority, coordinator.address, first) as one,
            dialled(authority, coordinator.address, second) as two,
        ):
            for _ in range(2):
                stream = coordinator.next_stream()
                for number in range(20):
                    stream.send(ack=wire.Ack(id=bytes([number])))
                stream.send(goodbye=wire.Goodbye(reason="that is all"))
                stream.cut()
            threads = set()
            for told in (first, second):
                got = [told.acknowledgements.get(timeout=10.0) for _ in range(20)]
                assert [id_ for id_, _ in got] == [bytes([number]) for number in range(20)]
                threads |= {thread for _, thread in got}
            assert [thread.name for thread in threads] == [THREAD]
            wait_for(lambda: one.ended is not None and two.ended is not None)
            assert one.ended == two.ended == Ended("the coordinator says: that is all", welcomed=True)


def test_connection_to_a_coordinator_that_does_not_read_is_closed(authority, monkeypatch):
    monkeypatch.setattr(framing, "LONGEST_QUEUE", -1)
    with ScriptedCoordinator(authority) as coordinator, dialled(authority, coordinator.address) as connection:
        connection.wait_welcome(lambda: False)
        coordinator.next_stream().send(ping=wire.Ping(number=1))
        wait_for(lambda: connection.ended is not None)
        assert "does not read what it is sent" in connection.ended.reason


def test_long_request_is_decompressed_while_other_streams_go_on(authority, monkeypatch):
    go_on, opens, opened = threading.Event(), threading.Event(), framing.Arrived.open

    def slowly(arrived):
        if threading.current_thread().name != THREAD:
            opens.set()
            assert go_on.wait(10.0)
        return opened(arrived)

    monkeypatch.setattr(framing.Arrived, "open", slowly)
    told, other = Told(), Told()
    with (
        ScriptedCoordinator(authority) as coordinator,
        dialled(authority, coordinator.address, told) as connection,
    ):
        connection.wait_welcome(lambda: False)
        stream = coordinator.next_stream()
        stream.post(bytes(2**20))
        stream.post(b"short")
        assert opens.wait(10.0)
        with dialled(authority, coordinator.address, other):
            coordinator.next_stream().post(b"of another stream")
            assert other.requests.get(timeout=10.0).data == b"of another stream"
        connection.keep_alive(time.monotonic() + 100.0)  # the silence is its own: it asks, and does not give up
        assert stream.next("ping").number == 1
        assert connection.ended is None
        go_on.set()
        assert [len(told.requests.get(timeout=10.0).data) for _ in range(2)] == [2**20, 5]
        connection.keep_alive(time.monotonic() + 100.0)
        assert connection.ended is not None


def test_internal_fault_ends_the_stream_without_showing_its_words(authority, caplog):
    class Broken:
        def frames(self, held):
            yield wire.Transfer()
            raise ValueError("Ms Doe, born 1950")

    with ScriptedCoordinator(authority) as coordinator, dialled(authority, coordinator.address) as connection:
        connection.wait_welcome(lambda: False)
        stream = coordinator.next_stream()
        connection.send_reply(Broken())
        assert stream.over.wait(10.0)
        wait_for(lambda: connection.ended is not None)
        assert connection.ended == Ended("the stream broke off", welcomed=True)
    assert "internal error ValueError" in caplog.text
    assert "Doe" not in caplog.text


@pytest.mark.slow  # a process of its own
def test_process_with_open_streams_ends_their_thread_without_warning(authority, tmp_path):
    with ScriptedCoordinator(authority) as coordinator:
        key, certificate = authority.server("alpha")
        for name, data in (("key", key), ("certificate", certificate), ("ca", authority.pem.encode())):
            (tmp_path / name).write_bytes(data)
        program = f"""
            import atexit, threading
            atexit.register(lambda: print("stream" in [each.name for each in threading.enumerate()]))  # called last
            from pathlib import Path
            from undersong_client.link.connection import Connection
            from undersong_client.consent.trust import TrustedCoordinator
            from undersong_client.keys import Credential
            from undersong_protocol.wire import framing
            from undersong_protocol.wire.framing import Reassembler
            from undersong_protocol.wire.messages import transport_pb2 as wire
            read = lambda name: (Path({str(tmp_path)!r}) / name).read_bytes()
            coordinator = TrustedCoordinator("coordinator", (), "", read("ca").decode(), b"", "")
            hello = wire.Hello(version=framing.VERSION, party="alpha", software="test", boot=bytes(16))
            streams = [
                Connection({coordinator.address!r}, coordinator, Credential(read("key"), read("certificate")),
                    hello=hello, reassembler=Reassembler("coordinator"), listener=None, use_proxy=False)
                for _ in range(2)
            ]
            streams[0].wait_welcome(lambda: False)  # the other one is being opened
        """
        ended = subprocess.run(
            [sys.executable, "-W", "default", "-c", textwrap.dedent(program)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60.0,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")
