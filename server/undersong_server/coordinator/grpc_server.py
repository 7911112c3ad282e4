"""The coordinator's gRPC server: one stream per party, whose name is that of the certificate that TLS has verified."""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from undersong_common.errors import ConfigurationError, MachineFault, PeerFault, TransportError, UndersongError
from undersong_common.printable import printable
from undersong_common.version import SOFTWARE
from undersong_protocol.agreement.bounds import LONGEST_JSON
from undersong_protocol.agreement.enrolment import common_name
from undersong_protocol.wire import framing
from undersong_protocol.wire.codec import parsed
from undersong_protocol.wire.messages import transport_pb2 as wire
from undersong_server import defaults
from undersong_server.authority import Authority, serial_of
from undersong_server.coordinator.gate import Gate, Rate, Refusals
from undersong_server.coordinator.grpc_transport import GrpcTransport, Link, Mailbox, PartyStream
from undersong_server.coordinator.metrics import Metrics
from undersong_server.coordinator.parties import EXPIRED, NOT_STARTED, TOUCHED_EVERY_S, Registry

# The loopback interface's addresses, for a socket and for gRPC.
LOOPBACKS = (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"))

log = logging.getLogger(__name__)

# Keepalive periods of silence before the server sends a ping, sends another one, and gives up. The party sends a ping
# after one period; the quarter more means that only one of the two asks.
SILENCES = (1.25, 1.0, 0.75)
READ_TURNS = 5  # turns of the event loop in which a frame that came while it was busy is read
HELLO_S = 15.0  # longest wait for a Hello
FRAMES_A_SECOND = 500.0  # frames a second of one party; beyond them the server reads more slowly and refuses none
FRAMES_AT_ONCE = 2000.0
REVIEW_S = 1.0  # longest time until a revocation ends a live stream
MOST_STREAMS = 2000  # streams of all parties at one time
STREAMS_OF_A_PARTY = 4  # the live stream and those that end or begin
STREAMS_AT_ONCE = 60.0  # streams that one party may open at once; STREAMS_A_SECOND in the long run
STREAMS_A_SECOND = 2.0
GOODBYE_S = 2.0  # longest wait for a party to read why its stream ends
UNREAD_BYTES = 2**19  # bytes of one stream that a party may send ahead
DECISION_S = 1.0  # shortest time between two messages of a party, that its people decided, that count
OPENING_THREADS = 2  # threads that join, hash and inflate long replies

OTHER_NAME = "claims another party's name"
NOT_ALLOWED = "certificate not accepted"
MALFORMED = "sent a malformed message"
TOO_MANY_STREAMS = "opens too many streams"
NOT_RENEWED = "asked for a certificate that it does not get"
OTHER_VERSION = "speaks another version of the transport"
DOES_NOT_START = "its daemon does not start"

FRAME_FIELDS = {field.message_type.name: field.name for field in wire.ToParty.DESCRIPTOR.oneofs[0].fields}

Renew = Callable[[str, str, bytes], bytes]


class _Refused(Exception):
    """A stream is refused: status and words for the party; reason and detail for the log, "" if nothing is logged."""

    def __init__(self, status: grpc.StatusCode, words: str, reason: str = "", detail: str = "") -> None:
        super().__init__(status, words)
        self.reason = reason
        self.detail = detail


class GrpcServer:
    """Serves the parties' streams, in a thread with its own event loop.

    Args:
        coordinator: the coordinator's name, which the parties read.
        renew: returns the grant's bytes for a party, the serial number of its certificate, and its request; raises
            UndersongError to refuse.
        keepalive_s: silence after which either side sends a ping.

    Raises:
        TransportError: the address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        coordinator: str,
        authority: Authority,
        registry: Registry,
        transport: GrpcTransport,
        metrics: Metrics,
        renew: Renew,
        keepalive_s: float = defaults.KEEPALIVE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._address = (host, port)
        self._coordinator = coordinator
        self._authority = authority
        self._registry = registry
        self._last_problem = ""  # the registry's last problem, as logged
        self._transport = transport
        self._metrics = metrics
        metrics.connections.set_function(lambda: len(transport.links))
        self._renew = renew
        self._keepalive_s = keepalive_s
        self._clock = clock
        self._refusals = Refusals(metrics)
        self._streams: Counter[str] = Counter()  # open streams by party, with or without a Hello
        self._greeting: dict[str, asyncio.Future[wire.Hello]] = {}
        self._stream_rate = Rate(STREAMS_AT_ONCE, STREAMS_A_SECOND)
        self._frame_rate = Rate(FRAMES_AT_ONCE, FRAMES_A_SECOND)
        self._presented: tuple[bytes, bytes] = (b"", b"")
        self._listening: Future[int] = Future()  # gives the port, or why there is none
        self._opener = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="opens")
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._serve, name="grpc", daemon=True)
        self._thread.start()
        try:
            self.port = self._listening.result()
        except Exception as failure:  # noqa: BLE001 - of another thread: all that kept it from listening
            raise TransportError(
                f"cannot listen on {host}:{port}: {failure}",
                "choose another --bind, or stop what listens there",
                code="address-in-use",
            ) from None

    @property
    def connected(self) -> list[str]:
        return list(self._transport.links)

    def close(self) -> None:
        """Says goodbye to every party and stops."""
        self._stop()
        self._thread.join(timeout=15.0)
        self._opener.shutdown(wait=False, cancel_futures=True)

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits for the start
            if not self._listening.done():
                self._listening.set_exception(error)

    def _open_inner(self, server: Any) -> tuple[str, int]:
        """Opens gRPC's own port on the loopback interface; returns its address. A container may lack IPv4, or IPv6."""
        for host, address in LOOPBACKS:
            try:
                return host, server.add_secure_port(f"{address}:0", self._credentials())
            except RuntimeError:
                continue
        raise ConfigurationError(
            "the loopback interface has neither an IPv4 nor an IPv6 address", "bring it up: ip link set lo up"
        )

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopping.set)
        self._transport.bind(loop)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", framing.MAX_FRAME_BYTES),
                ("grpc.max_send_message_length", framing.MAX_FRAME_BYTES),
                ("grpc.max_metadata_size", 8192),
                ("grpc.max_concurrent_streams", 4),  # per connection: its stream, and a health check
                # gRPC's keepalive applies to connections without a live stream. A live stream sends our own Ping first.
                ("grpc.keepalive_time_ms", int(2 * self._keepalive_s * 1000)),
                ("grpc.keepalive_timeout_ms", int(self._keepalive_s * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.so_reuseport", 0),
                *framing.flow_control(UNREAD_BYTES),
            ],
            maximum_concurrent_rpcs=MOST_STREAMS,
        )
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        method = framing.METHOD.rpartition("/")[2]
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(framing.SERVICE, {method: handler}),))
        health_pb2_grpc.add_HealthServicer_to_server(_HealthService(self._admit, self._clock, stopping.is_set), server)
        gate = self._gate = Gate(*self._open_inner(server), self._refusals, is_not_yet_valid=self._is_not_yet_valid)
        await gate.listen(*self._address)
        await server.start()
        review = asyncio.ensure_future(self._review())
        self._listening.set_result(gate.port)
        await stopping.wait()
        review.cancel()
        for link in self._transport.links.values():
            link.close("the coordinator stops", 2.0)
        await server.stop(grace=2.0)
        gate.close()

    def _is_not_yet_valid(self) -> bool:
        try:
            return bool(self._authority.not_yet_valid(self._clock()))
        except ConfigurationError:  # its file is not there now; the step that reviews certificates tells it
            return False

    def _credentials(self) -> Any:
        def configuration() -> Any:
            self._presented = self._authority.server_credentials
            return grpc.ssl_server_certificate_configuration(
                [self._presented], root_certificates=self._authority.certificate_pem
            )

        def renewed() -> Any:
            # Asked at each handshake: a renewed server certificate needs no restart.
            if self._authority.server_credentials != self._presented:
                return configuration()
            return None

        return grpc.dynamic_ssl_server_credentials(configuration(), renewed, require_client_authentication=True)

    # One stream

    async def _admit(self, context: Any) -> PartyStream:
        """The verified party behind a call. Ends the call, and logs it, if its certificate is not accepted."""
        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        certificate = x509.load_pem_x509_certificate(pem)
        peer = PartyStream(common_name(certificate), serial_of(certificate), self._gate.source(context.peer()))
        asked = partial(self._registry.refusal, peer.name, peer.serial, now=self._clock())
        try:  # A database elsewhere may be slow to answer; a file is not, and a flood would wait for a few threads.
            if self._registry.database.remote:
                problem = await asyncio.to_thread(asked)
            else:
                problem = asked()
        except TransportError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator's registry does not answer; try again")
        if problem:
            self._gate.excuse(context.peer())
            self._refusals.note(peer.source, NOT_ALLOWED, problem)
            if problem.endswith(EXPIRED):  # by this clock, which may be wrong: the party is to ask again soon
                words = "this certificate has expired, by the coordinator's clock"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, words)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this certificate is not accepted here any more")
        self._gate.admit(context.peer(), peer.name)
        return peer

    async def _connect(self, requests: Any, context: Any) -> None:
        peer = await self._admit(context)
        try:
            with self._counted(peer.name):
                hello = await self._greeted(peer, context)
                if hello.does_not_start:
                    await self._does_not_start(peer, hello, context)
                else:
                    await self._stream(peer, hello, context)
        except _Refused as refused:
            if refused.reason:
                self._refusals.note(peer.source, refused.reason, refused.detail)
            await context.abort(*refused.args)

    @contextmanager
    def _counted(self, party: str) -> Iterator[None]:
        """Counts one open stream of the party. Raises _Refused, and counts nothing, where it has too many."""
        full = self._streams[party] >= STREAMS_OF_A_PARTY
        if full or not self._stream_rate.allows(party, time.monotonic()):
            words = "this party opens too many streams"
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, words, TOO_MANY_STREAMS, party)
        self._streams[party] += 1
        try:
            yield
        finally:
            self._streams[party] -= 1
            self._streams += Counter()  # drops parties without streams

    async def _greeted(self, peer: PartyStream, context: Any) -> wire.Hello:
        """Waits for the party's valid Hello. Of a party's streams that say nothing the newest is waited for."""
        before = self._greeting.get(peer.name)
        if before is not None:
            before.cancel()
        greeting = self._greeting[peer.name] = asyncio.ensure_future(_hello(context, peer))
        try:
            await asyncio.wait([greeting], timeout=HELLO_S)
            if not greeting.done():
                raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello came")
            if greeting.cancelled():
                raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party opened another stream")
            hello = greeting.result()
        except PeerFault as fault:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, fault.problem, MALFORMED, fault.problem) from None
        finally:
            greeting.cancel()
            if self._greeting.get(peer.name) is greeting:
                del self._greeting[peer.name]
        if hello.version != framing.VERSION:
            await self._other_version(peer, hello)
        if len(hello.boot) != framing.ID_BYTES:
            problem = f"{peer.name}: began without the number of its process"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, problem, MALFORMED, problem)
        if hello.party != peer.name:
            detail = f"{peer.name} calls itself {printable(hello.party, 63)!r}"
            words = f"the certificate names {peer.name}: no other name is accepted"
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, words, OTHER_NAME, detail)
        return hello

    async def _other_version(self, peer: PartyStream, hello: wire.Hello) -> None:
        """Refuses the stream. The operator sees in `undersong parties` who has to update."""
        software = printable(hello.software, 40) or "unknown software"
        seen = f"{software}: REFUSED, transport version {hello.version}"
        now = self._clock()
        await self._note(
            self._registry.seen, peer.name, now=now, software=seen, embedder="", epsilon_left=None, paused=False
        )
        await self._note(self._registry.refused_start, peer.name, "version")
        problem = (
            f"{peer.name}: {software!r} speaks version {hello.version} of the transport, the coordinator ({SOFTWARE})"
            f" speaks {framing.VERSION}"
        )
        remedy = "run the same version of Undersong at the coordinator and at every party"
        raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{problem}; {remedy}", OTHER_VERSION, problem)

    async def _does_not_start(self, peer: PartyStream, hello: wire.Hello, context: Any) -> None:
        """Notes the reason and ends the stream: the daemon has ended already."""
        try:
            reason = wire.DoesNotStart.Name(hello.does_not_start).lower()
        except ValueError:  # a newer program has other reasons
            reason = "version"
        await self._note(self._registry.refused_start, peer.name, reason)
        self._refusals.note(peer.source, DOES_NOT_START, f"{peer.name}: {NOT_STARTED[reason]}")
        await context.write(wire.ToParty(welcome=self._welcome()).SerializeToString())

    async def _note(self, note: Callable[..., None], *facts: Any, **named: Any) -> None:
        """Writes what the operator reads of a party. A party is served though the disk takes nothing now."""
        try:
            await asyncio.to_thread(note, *facts, **named)
        except MachineFault as fault:
            self._tell_once(fault.problem)

    def _tell_once(self, problem: str) -> None:
        if problem != self._last_problem:
            self._last_problem = problem
            log.error("the register could not be used (%s); it is tried again", problem)

    def _welcome(self, **also: Any) -> wire.Welcome:
        return wire.Welcome(
            version=framing.VERSION,
            coordinator=self._coordinator,
            software=SOFTWARE,
            clock_s=self._clock(),
            keepalive_s=self._keepalive_s,
            **also,
        )

    async def _stream(self, peer: PartyStream, hello: wire.Hello, context: Any) -> None:
        software = printable(hello.software, 80)
        link = Link(peer, hello.boot)
        shared = hello.HasField("epsilon_left") and math.isfinite(hello.epsilon_left)
        await self._note(
            self._registry.seen,
            peer.name,
            now=self._clock(),
            software=software,
            embedder=hello.embedder.hex()[:64],
            epsilon_left=hello.epsilon_left if shared else None,
            paused=hello.paused,
            policy=hello.policy[:LONGEST_JSON],
        )
        box = self._transport.mailbox(peer.name)
        if box.link is not None and box.link.number > link.number:
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party opened another stream")
        box.reassembler.new_stream()
        welcome = self._welcome(held=box.reassembler.held())
        await context.write(wire.ToParty(welcome=welcome).SerializeToString())
        box.attach(link, framing.held_by(hello.held))
        self._metrics.streams.labels(party=peer.name).inc()
        log.info("%s connected from %s (%s)", peer.name, peer.source, software)
        if hello.software != SOFTWARE:
            log.warning("%s runs %s, this coordinator %s", peer.name, software, SOFTWARE)
        reader = asyncio.ensure_future(self._read(peer, link, context))
        writer = asyncio.ensure_future(self._write(box, link, context))
        ending = asyncio.ensure_future(link.over.wait())
        watcher = asyncio.ensure_future(self._watch(peer, link))
        try:
            await asyncio.wait([reader, writer, ending, watcher], return_when=asyncio.FIRST_COMPLETED)
            if link.closed:
                await asyncio.wait([writer], timeout=GOODBYE_S)
        finally:
            box.detach(link)
            log.info("%s disconnected%s", peer.name, f": {link.closed}" if link.closed else "")
            # Last: gRPC ends a read that was cancelled when it likes, and the party is gone already.
            for task in (reader, writer, ending, watcher):
                task.cancel()
            await asyncio.gather(reader, writer, ending, watcher, return_exceptions=True)

    async def _write(self, box: Mailbox, link: Link, context: Any) -> None:
        while True:
            frames = await link.queue.get()
            if frames is None:
                goodbye = wire.Goodbye(reason=link.closed, reconnect_after_s=link.reconnect_after_s)
                await context.write(wire.ToParty(goodbye=goodbye).SerializeToString())
                return
            for frame in frames:
                if link.closed:
                    break
                message = wire.ToParty(**{FRAME_FIELDS[type(frame).__name__]: frame})
                if isinstance(frame, wire.Transfer) and box.link is link:
                    message.acknowledged.extend(box.acknowledged())
                await context.write(message.SerializeToString())

    async def _read(self, peer: PartyStream, link: Link, context: Any) -> None:
        box = self._transport.mailbox(peer.name)
        while not link.closed:
            link.awaited_since = time.monotonic()
            data = await context.read()
            link.awaited_since = math.inf
            if data is grpc.aio.EOF:
                return
            box.heard_at = time.monotonic()
            while not self._frame_rate.allows(peer.name, time.monotonic()):
                await asyncio.sleep(1.0 / FRAMES_A_SECOND)
            try:
                await self._frame(peer, link, _parsed(data, peer.name))
            except PeerFault as fault:
                self._refusals.note(peer.source, MALFORMED, fault.problem)
                link.close(f"protocol fault: {fault.problem}", 30.0)
                return

    async def _watch(self, peer: PartyStream, link: Link) -> None:
        """Asks a party that is silent while a frame of it is awaited; returns when it does not answer.

        One task for a stream: a timer for each frame took a seventh of the loop's time.
        """
        silences = pings = 0
        awaited = asked_at = link.awaited_since
        while True:
            if awaited != link.awaited_since:
                silences = 0
                awaited = asked_at = link.awaited_since
            left = asked_at + SILENCES[silences] * self._keepalive_s - time.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, SILENCES[0] * self._keepalive_s))
                continue
            for _ in range(READ_TURNS):
                await asyncio.sleep(0)
            if awaited != link.awaited_since:
                continue
            silences += 1
            if silences == len(SILENCES):
                log.warning("%s: silent for %.0f s; given up", peer.name, sum(SILENCES) * self._keepalive_s)
                return
            asked_at = time.monotonic()
            pings += 1
            link.queue.put_nowait([wire.Ping(number=pings)])

    async def _frame(self, peer: PartyStream, link: Link, message: wire.FromParty) -> None:
        box = self._transport.mailbox(peer.name)
        if link.queue.qsize() > framing.LONGEST_QUEUE:
            raise PeerFault(peer.name, "does not read what it is sent")
        match message.WhichOneof("frame"):
            case "transfer":
                largest = box.awaited_bytes(message.transfer.id)
                if largest is None:
                    box.reassembler.decline(message.transfer)
                    box.acknowledge(message.transfer.id)
                else:
                    await self._arrived(box, box.reassembler.transfer(message.transfer, largest_bytes=largest))
            case "chunk":
                await self._arrived(box, box.reassembler.chunk(message.chunk))
            case "ping":
                link.queue.put_nowait([wire.Pong(number=message.ping.number)])
            case "decided" if (now := time.monotonic()) - link.decided_at >= DECISION_S:
                link.decided_at = now
                log.info("%s decided about run %s", peer.name, printable(message.decided.run, 80))
                self._transport.decided(peer.name)
            case "ack" | "pong" | "decided":
                pass
            case "renew":
                link.queue.put_nowait([await self._renewed(peer, message.renew.request)])
            case "goodbye":
                link.close(f"it said goodbye: {printable(message.goodbye.reason, 200)}")
            case _:
                raise PeerFault(peer.name, "sent a second Hello, or a frame without content")

    async def _arrived(self, box: Mailbox, arrived: framing.Arrived | None) -> None:
        """Opens a reply once, in a thread if it is long; nothing is read from its party meanwhile."""
        if arrived is None:
            return
        if all(box.awaited_bytes(id_) is None for id_ in arrived.ids):
            for id_ in arrived.ids:
                box.acknowledge(id_)
            return
        if arrived.plain_size <= framing.CHUNK_BYTES:
            data = arrived.open()
        else:
            data = await asyncio.get_running_loop().run_in_executor(self._opener, arrived.open)
        for id_ in arrived.ids:
            box.received(framing.Envelope(id_, data))

    async def _renewed(self, peer: PartyStream, request: bytes) -> wire.Renewed:
        try:
            grant = await asyncio.to_thread(self._renew, peer.name, peer.serial, request)
        except UndersongError as error:
            self._refusals.note(peer.source, NOT_RENEWED, f"{peer.name}: {error.problem}")
            return wire.Renewed(problem=error.problem)
        self._metrics.renewals.labels(party=peer.name).inc()
        log.info("%s: certificate renewed", peer.name)
        return wire.Renewed(grant=grant)

    async def _review(self) -> None:
        """Ends the streams of connected parties that were revoked or whose certificate has expired."""
        while True:
            await asyncio.sleep(REVIEW_S)
            try:
                now = self._clock()
                links = self._transport.links
                presented = {name: link.peer.serial for name, link in links.items()}
                refused = await asyncio.to_thread(self._registry.refusals, presented, now=now)
                for name, problem in refused.items():
                    self._refusals.note(links[name].peer.source, NOT_ALLOWED, problem)
                    links[name].close(problem, -1.0 if "revoked" in problem else 0.0)
                is_due = bool(links) and int(now) % TOUCHED_EVERY_S == 0
                if is_due:
                    ago = now - time.monotonic()
                    boxes = map(self._transport.mailbox, links)
                    heard = {box.name: ago + box.heard_at for box in boxes if box.heard_at is not None}
                    await asyncio.to_thread(self._registry.touch, heard)
                if is_due or not links:  # a full disk still lets the register be read, which is no end of its fault
                    self._last_problem = ""
            except UndersongError as error:
                self._tell_once(error.problem)
            except Exception as error:  # noqa: BLE001 - a review that has ended would let revoked parties stay
                self._tell_once(type(error).__name__)


class _HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """gRPC's health protocol, for callers with a certificate."""

    def __init__(
        self, admit: Callable[[Any], Awaitable[PartyStream]], clock: Callable[[], float], stopping: Callable[[], bool]
    ) -> None:
        self._admit = admit
        self._clock = clock
        self._stopping = stopping

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's own name
        await self._admit(context)
        await context.send_initial_metadata(((framing.CLOCK_METADATA, f"{self._clock():.3f}"),))
        if request.service not in ("", framing.SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if self._stopping() else status.SERVING)


async def _hello(context: Any, peer: PartyStream) -> wire.Hello:
    data = await context.read()
    if data is grpc.aio.EOF:
        message = wire.FromParty()
    else:
        message = _parsed(data, peer.name)
    if message.WhichOneof("frame") != "hello":
        raise PeerFault(peer.name, "began without a Hello", "run the same version of Undersong at both ends")
    return message.hello


def _parsed(data: bytes, peer: str) -> wire.FromParty:
    remedy = "run the same version of Undersong at both ends"
    return parsed(wire.FromParty, data, peer, "sent bytes that are no message", remedy)
