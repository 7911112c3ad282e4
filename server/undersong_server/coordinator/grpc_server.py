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
STREAMS_OF_A_PARTY = 4  # largest number of open streams of one party: the live one, and those that end or begin
STREAMS_AT_ONCE = 60.0  # streams that one party may open in a burst; STREAMS_A_SECOND holds in the long run
STREAMS_A_SECOND = 2.0
GOODBYE_S = 2.0  # longest wait for a party to read why its stream ends
UNREAD_BYTES = 2**19  # bytes of one stream that a party may send ahead
DECISION_S = 1.0  # A party's message that its people have decided counts at most once in this time.
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
                "stop what listens there, or: undersong coordinator change --bind HOST:PORT",
                code="address-in-use",
            ) from None

    @property
    def connected(self) -> list[str]:
        return list(self._transport.links)

    @property
    def connected_since(self) -> dict[str, float]:
        """The time at which each connected party's stream began, on the monotonic clock."""
        presences = self._transport.presence(self._transport.links)
        return {name: presence.since for name, presence in presences.items() if presence.connected}

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
        event_loop = asyncio.get_running_loop()
        stop_event = asyncio.Event()
        self._stop = lambda: event_loop.call_soon_threadsafe(stop_event.set)
        self._transport.bind(event_loop)
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
        stream_handler = grpc.stream_stream_rpc_method_handler(self._connect)
        method = framing.METHOD.rpartition("/")[2]
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(framing.SERVICE, {method: stream_handler}),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(
            _HealthService(self._admit, self._clock, stop_event.is_set), server
        )
        tls_gate = self._gate = Gate(*self._open_inner(server), self._refusals, is_not_yet_valid=self._is_not_yet_valid)
        await tls_gate.listen(*self._address)
        await server.start()
        review_task = asyncio.ensure_future(self._review())
        self._listening.set_result(tls_gate.port)
        await stop_event.wait()
        review_task.cancel()
        for party_link in self._transport.links.values():
            party_link.close("the coordinator stops", 2.0)
        await server.stop(grace=2.0)
        tls_gate.close()

    def _is_not_yet_valid(self) -> bool:
        try:
            return bool(self._authority.not_yet_valid(self._clock()))
        except ConfigurationError:  # The file is missing now: the step that reviews certificates reports it.
            return False

    def _credentials(self) -> Any:
        def make_configuration() -> Any:
            self._presented = self._authority.server_credentials
            return grpc.ssl_server_certificate_configuration(
                [self._presented], root_certificates=self._authority.certificate_pem
            )

        def find_renewed() -> Any:
            # gRPC calls this at each handshake, so that a renewed server certificate needs no restart.
            if self._authority.server_credentials != self._presented:
                return make_configuration()
            return None

        return grpc.dynamic_ssl_server_credentials(
            make_configuration(), find_renewed, require_client_authentication=True
        )

    # These methods serve one stream.

    async def _admit(self, context: Any) -> PartyStream:
        """The verified party behind a call. Ends the call, and logs it, if its certificate is not accepted."""
        certificate_pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        party_stream = PartyStream(common_name(certificate), serial_of(certificate), self._gate.source(context.peer()))
        ask_refusal = partial(self._registry.refusal, party_stream.name, party_stream.serial, now=self._clock())
        try:
            # A remote database may be slow, so a thread asks it. A file is not, and threads are few.
            if self._registry.database.remote:
                problem = await asyncio.to_thread(ask_refusal)
            else:
                problem = ask_refusal()
        except TransportError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator's registry does not answer; try again")
        if problem:
            self._gate.excuse(context.peer())
            self._refusals.note(party_stream.source, NOT_ALLOWED, problem)
            if problem.endswith(EXPIRED):  # This clock may be wrong: by this status the party asks again soon.
                refusal_words = "this certificate has expired, by the coordinator's clock"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal_words)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this certificate is not accepted here any more")
        self._gate.admit(context.peer(), party_stream.name)
        return party_stream

    async def _connect(self, requests: Any, context: Any) -> None:
        party_stream = await self._admit(context)
        try:
            with self._counted(party_stream.name):
                hello_message = await self._greeted(party_stream, context)
                if hello_message.does_not_start:
                    await self._does_not_start(party_stream, hello_message, context)
                else:
                    await self._stream(party_stream, hello_message, context)
        except _Refused as refused:
            if refused.reason:
                self._refusals.note(party_stream.source, refused.reason, refused.detail)
            await context.abort(*refused.args)

    @contextmanager
    def _counted(self, party: str) -> Iterator[None]:
        """Counts one open stream of the party. Raises _Refused, and counts nothing, where it has too many."""
        is_full = self._streams[party] >= STREAMS_OF_A_PARTY
        if is_full or not self._stream_rate.allows(party, time.monotonic()):
            refusal_words = "this party opens too many streams"
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal_words, TOO_MANY_STREAMS, party)
        self._streams[party] += 1
        try:
            yield
        finally:
            self._streams[party] -= 1
            self._streams += Counter()  # drops parties without streams

    async def _greeted(self, peer: PartyStream, context: Any) -> wire.Hello:
        """Waits for the party's valid Hello. Of a party's streams without a Hello, only the newest may send it."""
        earlier_greeting = self._greeting.get(peer.name)
        if earlier_greeting is not None:
            earlier_greeting.cancel()
        own_greeting = self._greeting[peer.name] = asyncio.ensure_future(_hello(context, peer))
        try:
            await asyncio.wait([own_greeting], timeout=HELLO_S)
            if not own_greeting.done():
                raise _Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello came within {HELLO_S:g} s")
            if own_greeting.cancelled():
                raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party opened another stream")
            hello_message = own_greeting.result()
        except PeerFault as fault:
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, fault.problem, MALFORMED, fault.problem) from None
        finally:
            own_greeting.cancel()
            if self._greeting.get(peer.name) is own_greeting:
                del self._greeting[peer.name]
        if hello_message.version != framing.VERSION:
            await self._other_version(peer, hello_message)
        if len(hello_message.boot) != framing.ID_BYTES:
            problem = f"{peer.name}: began without the number of its process"
            raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, problem, MALFORMED, problem)
        if hello_message.party != peer.name:
            name_detail = f"{peer.name} calls itself {printable(hello_message.party, 63)!r}"
            refusal_words = f"the certificate names {peer.name}: no other name is accepted"
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, refusal_words, OTHER_NAME, name_detail)
        return hello_message

    async def _other_version(self, peer: PartyStream, hello: wire.Hello) -> None:
        """Refuses a stream of another transport version; `undersong parties` then shows who has to update."""
        software_words = printable(hello.software, 40) or "unknown software"
        seen_words = f"{software_words}: REFUSED, transport version {hello.version}"
        now_s = self._clock()
        await self._note(
            self._registry.seen, peer.name, now=now_s, software=seen_words, embedder="", epsilon_left=None, paused=False
        )
        await self._note(self._registry.refused_start, peer.name, "version")
        problem = (
            f"{peer.name}: {software_words!r} speaks version {hello.version} of the transport, the coordinator"
            f" ({SOFTWARE})"
            f" speaks {framing.VERSION}"
        )
        version_remedy = "run the same version of Undersong at the coordinator and at every party"
        raise _Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{problem}; {version_remedy}", OTHER_VERSION, problem)

    async def _does_not_start(self, peer: PartyStream, hello: wire.Hello, context: Any) -> None:
        """Notes why a party's daemon does not start, as its Hello states; there is no stream to serve."""
        try:
            reason = wire.DoesNotStart.Name(hello.does_not_start).lower()
        except ValueError:  # A newer program has reasons that this one does not know.
            reason = "version"
        await self._note(self._registry.refused_start, peer.name, reason)
        self._refusals.note(peer.source, DOES_NOT_START, f"{peer.name}: {NOT_STARTED[reason]}")
        await context.write(wire.ToParty(welcome=self._welcome()).SerializeToString())

    async def _note(self, note: Callable[..., None], *facts: Any, **named: Any) -> None:
        """Writes facts of a party into the registry. If the disk is full, that is logged, and the party is served."""
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
        software_words = printable(hello.software, 80)
        party_link = Link(peer, hello.boot)
        states_budget = hello.HasField("epsilon_left") and math.isfinite(hello.epsilon_left)
        await self._note(
            self._registry.seen,
            peer.name,
            now=self._clock(),
            software=software_words,
            embedder=hello.embedder.hex()[:64],
            epsilon_left=hello.epsilon_left if states_budget else None,
            paused=hello.paused,
            policy=hello.policy[:LONGEST_JSON],
        )
        party_mailbox = self._transport.mailbox(peer.name)
        if party_mailbox.link is not None and party_mailbox.link.number > party_link.number:
            raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "this party opened another stream")
        party_mailbox.reassembler.new_stream()
        welcome_message = self._welcome(held=party_mailbox.reassembler.held())
        await context.write(wire.ToParty(welcome=welcome_message).SerializeToString())
        party_mailbox.attach(party_link, framing.held_by(hello.held))
        self._metrics.streams.labels(party=peer.name).inc()
        log.info("%s connected from %s (%s)", peer.name, peer.source, software_words)
        if hello.software != SOFTWARE:
            log.warning("%s runs %s, this coordinator %s", peer.name, software_words, SOFTWARE)
        read_task = asyncio.ensure_future(self._read(peer, party_link, context))
        writer = asyncio.ensure_future(self._write(party_mailbox, party_link, context))
        end_task = asyncio.ensure_future(party_link.over.wait())
        watch_task = asyncio.ensure_future(self._watch(peer, party_link))
        try:
            await asyncio.wait([read_task, writer, end_task, watch_task], return_when=asyncio.FIRST_COMPLETED)
            if party_link.closed:
                await asyncio.wait([writer], timeout=GOODBYE_S)
        finally:
            party_mailbox.detach(party_link)
            log.info("%s disconnected%s", peer.name, f": {party_link.closed}" if party_link.closed else "")
            # The party counts as gone before this, because gRPC may take its time to end a cancelled read.
            for task in (read_task, writer, end_task, watch_task):
                task.cancel()
            await asyncio.gather(read_task, writer, end_task, watch_task, return_exceptions=True)

    async def _write(self, box: Mailbox, link: Link, context: Any) -> None:
        while True:
            frames = await link.queue.get()
            if frames is None:
                goodbye_message = wire.Goodbye(reason=link.closed, reconnect_after_s=link.reconnect_after_s)
                await context.write(wire.ToParty(goodbye=goodbye_message).SerializeToString())
                return
            for frame in frames:
                if link.closed:
                    break
                message = wire.ToParty(**{FRAME_FIELDS[type(frame).__name__]: frame})
                if isinstance(frame, wire.Transfer) and box.link is link:
                    message.acknowledged.extend(box.acknowledged())
                await context.write(message.SerializeToString())

    async def _read(self, peer: PartyStream, link: Link, context: Any) -> None:
        party_mailbox = self._transport.mailbox(peer.name)
        while not link.closed:
            link.awaited_since = time.monotonic()
            frame_bytes = await context.read()
            link.awaited_since = math.inf
            if frame_bytes is grpc.aio.EOF:
                return
            party_mailbox.heard_at = time.monotonic()
            while not self._frame_rate.allows(peer.name, time.monotonic()):
                await asyncio.sleep(1.0 / FRAMES_A_SECOND)
            try:
                await self._frame(peer, link, _parsed(frame_bytes, peer.name))
            except PeerFault as fault:
                self._refusals.note(peer.source, MALFORMED, fault.problem)
                link.close(f"protocol fault: {fault.problem}", 30.0)
                return

    async def _watch(self, peer: PartyStream, link: Link) -> None:
        """Pings a party from which nothing comes while the server reads; returns when it does not answer.

        One task for a stream: a timer for each frame took a seventh of the loop's time.
        """
        silence_count = ping_count = 0
        awaited_since = asked_at = link.awaited_since
        while True:
            if awaited_since != link.awaited_since:
                silence_count = 0
                awaited_since = asked_at = link.awaited_since
            seconds_left = asked_at + SILENCES[silence_count] * self._keepalive_s - time.monotonic()
            if seconds_left > 0:
                await asyncio.sleep(min(seconds_left, SILENCES[0] * self._keepalive_s))
                continue
            for _ in range(READ_TURNS):
                await asyncio.sleep(0)
            if awaited_since != link.awaited_since:
                continue
            silence_count += 1
            if silence_count == len(SILENCES):
                log.warning("%s: silent for %.0f s; given up", peer.name, sum(SILENCES) * self._keepalive_s)
                return
            asked_at = time.monotonic()
            ping_count += 1
            link.queue.put_nowait([wire.Ping(number=ping_count)])

    async def _frame(self, peer: PartyStream, link: Link, message: wire.FromParty) -> None:
        party_mailbox = self._transport.mailbox(peer.name)
        if link.queue.qsize() > framing.LONGEST_QUEUE:
            raise PeerFault(peer.name, "does not read what it is sent")
        match message.WhichOneof("frame"):
            case "transfer":
                largest_bytes = party_mailbox.awaited_bytes(message.transfer.id)
                if largest_bytes is None:
                    party_mailbox.reassembler.decline(message.transfer)
                    party_mailbox.acknowledge(message.transfer.id)
                else:
                    await self._arrived(
                        party_mailbox, party_mailbox.reassembler.transfer(message.transfer, largest_bytes=largest_bytes)
                    )
            case "chunk":
                await self._arrived(party_mailbox, party_mailbox.reassembler.chunk(message.chunk))
            case "ping":
                link.queue.put_nowait([wire.Pong(number=message.ping.number)])
            case "decided" if (now_s := time.monotonic()) - link.decided_at >= DECISION_S:
                link.decided_at = now_s
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
        """Unpacks a complete reply, in a thread if it is long, and hands it on. Its party is not read meanwhile."""
        if arrived is None:
            return
        if all(box.awaited_bytes(message_id) is None for message_id in arrived.ids):
            for id_ in arrived.ids:
                box.acknowledge(id_)
            return
        if arrived.plain_size <= framing.CHUNK_BYTES:
            message_bytes = arrived.open()
        else:
            message_bytes = await asyncio.get_running_loop().run_in_executor(self._opener, arrived.open)
        for id_ in arrived.ids:
            box.received(framing.Envelope(id_, message_bytes))

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
        """Ends, once a second, the streams of parties that were revoked or whose certificate has expired."""
        while True:
            await asyncio.sleep(REVIEW_S)
            try:
                now_s = self._clock()
                link_by_party = self._transport.links
                serial_by_party = {party_name: link.peer.serial for party_name, link in link_by_party.items()}
                refusal_by_party = await asyncio.to_thread(self._registry.refusals, serial_by_party, now=now_s)
                for name, problem in refusal_by_party.items():
                    self._refusals.note(link_by_party[name].peer.source, NOT_ALLOWED, problem)
                    link_by_party[name].close(problem, -1.0 if "revoked" in problem else 0.0)
                is_due = bool(link_by_party) and int(now_s) % TOUCHED_EVERY_S == 0
                if is_due:
                    clock_offset_s = now_s - time.monotonic()
                    mailboxes = map(self._transport.mailbox, link_by_party)
                    heard_by_party = {
                        party_mailbox.name: clock_offset_s + party_mailbox.heard_at
                        for party_mailbox in mailboxes
                        if party_mailbox.heard_at is not None
                    }
                    await asyncio.to_thread(self._registry.touch, heard_by_party)
                if (
                    is_due or not link_by_party
                ):  # Only a write, where one is due, shows that a fault such as a full disk is over.
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
        response_class = health_pb2.HealthCheckResponse
        return response_class(status=response_class.NOT_SERVING if self._stopping() else response_class.SERVING)


async def _hello(context: Any, peer: PartyStream) -> wire.Hello:
    frame_bytes = await context.read()
    if frame_bytes is grpc.aio.EOF:
        message = wire.FromParty()
    else:
        message = _parsed(frame_bytes, peer.name)
    if message.WhichOneof("frame") != "hello":
        raise PeerFault(peer.name, "began without a Hello", "run the same version of Undersong at both ends")
    return message.hello


def _parsed(data: bytes, peer: str) -> wire.FromParty:
    version_remedy = "run the same version of Undersong at both ends"
    return parsed(wire.FromParty, data, peer, "sent bytes that are no message", version_remedy)
