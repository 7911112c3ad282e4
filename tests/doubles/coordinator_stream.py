"""A coordinator of one party that does exactly what a test says: real gRPC, real TLS, no other code of the server."""

import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from cryptography import x509

from tests.doubles.authority import Authority
from undersong_protocol.wire import framing
from undersong_protocol.wire.framing import ID_BYTES, Envelope, Outgoing, Reassembler, held_by
from undersong_protocol.wire.messages import transport_pb2 as wire

PATIENCE_S = 60.0


class Stream:
    """One stream of a party: what it sends can be read, what it gets is put in by hand."""

    def __init__(self, hello: wire.Hello, serial: int) -> None:
        self.hello = hello
        self.serial = serial
        self.arrived: queue.Queue[wire.FromParty] = queue.Queue()
        self.outgoing: queue.Queue[wire.ToParty | None] = queue.Queue()
        self.over = threading.Event()
        self.answer_pings = True
        self.reassembler = Reassembler("party")

    def send(self, **frame) -> None:
        self.outgoing.put(wire.ToParty(**frame))

    def cut(self) -> None:
        """Ends the stream without a goodbye."""
        self.outgoing.put(None)

    def post(self, data: bytes, id_: bytes | None = None, frames: slice = slice(None)) -> Outgoing:
        """Sends a request, or a part of its frames."""
        outgoing = Outgoing(id_ or os.urandom(ID_BYTES), data)
        for frame in list(outgoing.frames(held_by(self.hello.held)))[frames]:
            self.send(**{"transfer" if isinstance(frame, wire.Transfer) else "chunk": frame})
        return outgoing

    def next(self, kind: str, timeout_s: float = PATIENCE_S):
        """The next frame of that kind; others are dropped."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.arrived.get(timeout=left)
            except queue.Empty:
                break
            if message.WhichOneof("frame") == kind:
                return getattr(message, kind)
        raise TimeoutError(f"no {kind} came")

    def reply(self, *, acknowledge: bool = True, timeout_s: float = PATIENCE_S) -> Envelope:
        """The next whole reply."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.arrived.get(timeout=left)
            except queue.Empty:
                break
            kind = message.WhichOneof("frame")
            if kind not in ("transfer", "chunk"):
                continue
            arrived = getattr(self.reassembler, kind)(getattr(message, kind))
            if arrived is None:
                continue
            if acknowledge:
                self.send(ack=wire.Ack(id=arrived.ids[0]))
            return Envelope(arrived.ids[0], arrived.open())
        raise TimeoutError("no reply came")

    def ask(self, data: bytes) -> bytes:
        posted = self.post(data)
        # an earlier reply whose acknowledgement was lost with its stream comes first
        while (envelope := self.reply()).id != posted.id:
            pass
        return envelope.data


class ScriptedCoordinator:
    """Listens on loopback; ``next_stream`` waits for the party's next connection."""

    def __init__(self, authority: Authority, *, keepalive_s: float = 5.0, port: int = 0) -> None:
        self.streams: queue.Queue[Stream] = queue.Queue()
        self.keepalive_s = keepalive_s
        self.refuse = ""
        self.refusal = grpc.StatusCode.PERMISSION_DENIED
        self.clock = time.time
        self.version = framing.VERSION
        self.welcome_held: list[wire.Held] = []
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(framing.SERVICE, {"Connect": handler}),)
        )
        credentials = grpc.ssl_server_credentials(
            [authority.server("localhost")], authority.pem.encode(), require_client_auth=True
        )
        self.port = self._server.add_secure_port(f"127.0.0.1:{port}", credentials)
        self._server.start()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def next_stream(self, timeout_s: float = PATIENCE_S) -> Stream:
        return self.streams.get(timeout=timeout_s)

    def close(self) -> None:
        self._server.stop(0).wait(5)

    def __enter__(self) -> "ScriptedCoordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, requests, context):
        if self.refuse:
            context.abort(self.refusal, self.refuse)
        certificate = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])
        hello = wire.FromParty.FromString(next(requests)).hello
        stream = Stream(hello, certificate.serial_number)
        context.add_callback(lambda: (stream.over.set(), stream.outgoing.put(None)))
        threading.Thread(target=self._read, args=(stream, requests), daemon=True).start()
        welcome = wire.Welcome(
            version=self.version,
            coordinator="coordinator",
            software="scripted",
            clock_s=self.clock(),
            keepalive_s=self.keepalive_s,
            held=self.welcome_held,
        )
        yield wire.ToParty(welcome=welcome).SerializeToString()
        self.streams.put(stream)
        while (frame := stream.outgoing.get()) is not None:
            yield frame.SerializeToString()

    def _read(self, stream: Stream, requests) -> None:
        try:
            for data in requests:
                message = wire.FromParty.FromString(data)
                if message.WhichOneof("frame") == "ping" and stream.answer_pings:
                    stream.send(pong=wire.Pong(number=message.ping.number))
                stream.arrived.put(message)
                if message.WhichOneof("frame") == "goodbye":
                    stream.cut()
        except grpc.RpcError:
            pass
        finally:
            stream.over.set()
