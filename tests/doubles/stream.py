"""A party's end of the stream in a test's own hands: it may say anything, at any time."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from undersong_protocol.agreement.enrolment import EnrolmentRequest, Grant, new_tls_key
from undersong_protocol.wire import framing
from undersong_protocol.wire.messages import transport_pb2 as wire
from undersong_server.authority import Authority
from undersong_server.coordinator.grpc_server import GrpcServer
from undersong_server.coordinator.grpc_transport import GrpcTransport
from undersong_server.coordinator.home import CoordinatorHome, CoordinatorSettings
from undersong_server.coordinator.metrics import Metrics


class Credentials:
    """A party's keys as the enrolment makes them."""

    def __init__(
        self, home: CoordinatorHome, name: str, *, days: float | None = None, now: float | None = None
    ) -> None:
        now = time.time() if now is None else now
        self.name = name
        self.identity = Ed25519PrivateKey.generate()
        self.tls = new_tls_key()
        package = home.invite(name, now=now)
        request = EnrolmentRequest.make(name, self.tls, self.identity, package.token)
        authority = home.authority()
        self.ca = authority.certificate_pem
        signed = EnrolmentRequest.parse(request.sign(self.identity))
        grant = home.sign(signed, now=now, days=days)
        self.certificate = Grant.parse(
            grant, signing_key=authority.signing_public, ca_certificate=self.ca.decode()
        ).certificate.encode()

    @property
    def key(self) -> bytes:
        return self.tls.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def for_grpc(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def make_home(folder: Path, parties: Iterable[str] = (), **changes: Any) -> CoordinatorHome:
    """A coordinator's folder with enrolled parties."""
    settings: dict[str, Any] = {
        "name": "coordinator",
        "bind": "127.0.0.1:0",
        "addresses": ("localhost:7443",),
        "metrics": "",
        "operator": "Example Hospital",
        "contact": "01 234 56",
    }
    home = CoordinatorHome.create(folder, CoordinatorSettings(**{**settings, **changes}), now=time.time())
    for name in parties:
        Credentials(home, name)
    return home


class Served:
    """A gRPC server over a home, without runs; use it as a context."""

    def __init__(self, home: CoordinatorHome, *, keepalive_s: float = 20.0) -> None:
        self.home = home
        self.metrics = Metrics()
        self.registry = home.registry()
        self.authority: Authority = home.authority()
        self.transport = GrpcTransport(self.metrics)
        self.server = GrpcServer(
            "127.0.0.1",
            0,
            coordinator="coordinator",
            authority=self.authority,
            registry=self.registry,
            transport=self.transport,
            metrics=self.metrics,
            renew=home.renew,
            keepalive_s=keepalive_s,
        )
        self.port = self.server.port

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self.registry.close()


class Stream:
    """One stream to the coordinator. ``frames`` holds what came; ``ended`` is set with ``error`` when it is over."""

    def __init__(self, port: int, credentials: grpc.ChannelCredentials, *, host: str = "localhost") -> None:
        self._channel = grpc.secure_channel(
            f"{host}:{port}",
            credentials,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
            ],
        )
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self.frames: queue.Queue[wire.ToParty] = queue.Queue()
        self.ended = threading.Event()
        self.error: grpc.RpcError | None = None
        self._call = self._channel.stream_stream(framing.METHOD)(iter(self._out.get, None))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def raw(self, data: bytes) -> None:
        self._out.put(data)

    def send(self, **frame: Any) -> None:
        self.raw(wire.FromParty(**frame).SerializeToString())

    def hello(self, party: str, **changes: Any) -> wire.Welcome:
        given: dict[str, Any] = {
            "version": framing.VERSION,
            "party": party,
            "software": "test",
            "boot": os.urandom(16),
            **changes,
        }
        self.send(hello=wire.Hello(**given))
        return self.next("welcome").welcome

    def next(self, kind: str, timeout_s: float = 10.0) -> wire.ToParty:
        """The next frame of that kind; others are dropped."""
        end = time.monotonic() + timeout_s
        while True:
            if self.ended.is_set() and self.frames.empty():
                raise self.error or EOFError("the stream ended")
            with contextlib.suppress(queue.Empty):
                frame = self.frames.get(timeout=0.02)
                if frame.WhichOneof("frame") == kind:
                    return frame
            if time.monotonic() > end:
                raise TimeoutError(kind)

    def answer(self, handle: Callable[[bytes], bytes]) -> None:
        """From now on answers every request."""
        reassembler = framing.Reassembler("coordinator")

        def work() -> None:
            while not (self.ended.is_set() and self.frames.empty()):
                try:
                    frame = self.frames.get(timeout=0.05)
                except queue.Empty:
                    continue
                match frame.WhichOneof("frame"):
                    case "transfer":
                        arrived = reassembler.transfer(frame.transfer)
                    case "chunk":
                        arrived = reassembler.chunk(frame.chunk)
                    case _:
                        arrived = None
                if arrived is not None:
                    self.reply(arrived.ids[0], handle(arrived.open()))

        threading.Thread(target=work, daemon=True).start()

    def reply(self, id_: bytes, data: bytes) -> None:
        for frame in framing.Outgoing(id_, data).frames():
            if isinstance(frame, wire.Transfer):
                self.send(transfer=frame)
            else:
                self.send(chunk=frame)

    def wait_ended(self, timeout_s: float = 10.0) -> grpc.StatusCode | None:
        """The status with which the stream ended. Raises TimeoutError."""
        if not self.ended.wait(timeout_s):
            raise TimeoutError("the stream goes on")
        return self.error.code() if self.error is not None else None

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()
        self._channel.close()

    def _read(self) -> None:
        try:
            for data in self._call:
                self.frames.put(wire.ToParty.FromString(data))
        except grpc.RpcError as error:
            self.error = error
        self.ended.set()
