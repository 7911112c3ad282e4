"""One gRPC stream to the coordinator, from the first frame (Hello) to its end. The party always connects."""

import asyncio
import atexit
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from undersong_client.consent.trust import TrustedCoordinator
from undersong_client.keys import Credential
from undersong_common.errors import PeerFault, TransportError
from undersong_common.printable import printable
from undersong_common.version import SOFTWARE
from undersong_protocol.wire import framing
from undersong_protocol.wire.codec import parsed
from undersong_protocol.wire.messages import transport_pb2 as wire

log = logging.getLogger(__name__)

WELCOME_S = 20.0  # longest wait for the coordinator's first frame, its Welcome
PING_SHARE = 1.5  # keepalive periods of silence after which a ping has surely been sent
PONG_S = 2.0  # usual time until a ping is answered
SILENCES = 3  # a stream that was silent for so many keepalive periods is given up
GOODBYE_S = 2.0  # longest wait until a last frame has left
UNREAD_BYTES = 2**21  # largest amount that the coordinator may send before this party has read it
# Somebody has to act before the coordinator accepts this party. A refusal by the coordinator's clock passes by itself.
REFUSALS_OF_PEOPLE = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
REFUSALS = (*REFUSALS_OF_PEOPLE, grpc.StatusCode.FAILED_PRECONDITION)

Frames = Iterable[Any]


class Listener:
    """Interface for the messages of a stream, called in the stream's thread. This base class wants no message."""

    def wants(self, id_: bytes) -> bool:
        """Returns True if a request with this id would be answered; only then are its bytes kept."""
        return False

    def request(self, envelope: framing.Envelope) -> None:
        """Takes a request. Raises PeerFault if too many wait already."""

    def acknowledged(self, id_: bytes) -> None: ...

    def renewed(self, message: wire.Renewed) -> None: ...


@dataclass(frozen=True)
class Ended:
    """The reason why a stream has ended.

    Attributes:
        reason: public words for the log.
        reconnect_after_s: seconds to wait, as the coordinator asked; negative: wait until a person has acted.
        welcomed: True if the coordinator had accepted this party.
        refused: True if the coordinator does not accept this party's certificate or name.
    """

    reason: str
    reconnect_after_s: float = 0.0
    welcomed: bool = False
    refused: bool = False


def secure_channel(
    address: str,
    coordinator: TrustedCoordinator,
    credential: Credential,
    *,
    use_proxy: bool = True,
    of_loop: bool = False,
) -> Any:
    """Makes a gRPC channel with mutual TLS to one address of the coordinator, which connects at its first use.

    Args:
        use_proxy: True connects through the environment's proxy.
        of_loop: True makes a channel of grpc.aio, for the event loop that runs in this thread.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", framing.MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", framing.MAX_FRAME_BYTES),
        ("grpc.enable_http_proxy", int(use_proxy)),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 1000),
        *framing.flow_control(UNREAD_BYTES),
        ("grpc.use_local_subchannel_pool", 1),  # a new stream must not inherit an old one's certificate
        *([("grpc.ssl_target_name_override", coordinator.server_name)] if coordinator.server_name else []),
    ]
    channel_credentials = grpc.ssl_channel_credentials(
        root_certificates=coordinator.ca_certificate.encode("ascii"),
        private_key=credential.key,
        certificate_chain=credential.certificates,
    )
    return (grpc.aio if of_loop else grpc).secure_channel(address, channel_credentials, options)


class Connection:
    """One stream to the coordinator. ``open`` connects; ``ended`` holds the reason of its end.

    Args:
        address: address of the coordinator, host:port.
        hello: this party's first frame.
        reassembler: keeps unfinished messages, also for the next stream.
        listener: receives requests, acknowledgements and renewed certificates.
    """

    def __init__(
        self,
        address: str,
        coordinator: TrustedCoordinator,
        credential: Credential,
        *,
        hello: wire.Hello,
        reassembler: framing.Reassembler,
        listener: Listener,
        use_proxy: bool = True,
    ) -> None:
        self.address = address
        self._listener = listener
        self._reassembler = reassembler
        self.welcome: wire.Welcome | None = None
        self.ended: Ended | None = None
        self._changed = threading.Condition()  # notified when ``welcome`` or ``ended`` changes
        self._heard_s = time.monotonic()
        # While a long request is opened, nothing is read. Pings still go out, and the silence does not end the stream.
        self._is_opening_request = False
        self._frame_queue: asyncio.Queue[Frames | None] = asyncio.Queue()
        self._unanswered_pings = 0
        self._stream_over = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._make_channel = partial(
            secure_channel, address, coordinator, credential, use_proxy=use_proxy, of_loop=True
        )
        reassembler.new_stream()
        self._loop = event_loop()
        self.send(wire.FromParty(hello=hello))
        self._loop.call_soon_threadsafe(self._begin_stream)

    def wait_welcome(self, is_stopped: Callable[[], bool] = lambda: False, limit_s: float = WELCOME_S) -> wire.Welcome:
        """Waits up to ``limit_s`` seconds for the coordinator's Welcome and returns it.

        Raises TransportError if it does not come, or if the stream ends before; then ``ended`` holds the reason.
        """
        start_s = time.monotonic()
        with self._changed:
            while self.welcome is None and self.ended is None:
                self._changed.wait(0.2)
                if is_stopped():
                    break
                if time.monotonic() - start_s > limit_s:
                    self._end_stream(Ended(f"no answer from {self.address} in {limit_s:.0f} s"))
        if self.welcome is None:
            raise TransportError(self.ended.reason if self.ended else "stopped")
        return self.welcome

    def send(self, frame: wire.FromParty) -> None:
        self._queue_frames([frame])

    def send_reply(self, reply: framing.Outgoing) -> None:
        """Sends a reply, without the chunks that the coordinator holds already."""
        if self.welcome is None:
            held_chunks = {}
        else:
            held_chunks = framing.held_by(self.welcome.held)
        self._queue_frames(
            wire.FromParty(transfer=frame) if isinstance(frame, wire.Transfer) else wire.FromParty(chunk=frame)
            for frame in reply.frames(held_chunks)
        )

    def keep_alive(self, now_s: float) -> None:
        """Sends a ping if the stream has been silent, and ends it after a long silence; call it regularly."""
        if self.welcome is None:
            return
        keepalive_s = max(0.2, min(300.0, self.welcome.keepalive_s))  # In this order of the arguments, NaN becomes 300.
        silence_s = now_s - self._heard_s
        if silence_s > SILENCES * keepalive_s and not self._is_opening_request:
            self._end_stream(Ended(f"silent for {silence_s:.0f} s", welcomed=True))
            self._loop.call_soon_threadsafe(self._cancel_stream)
        elif silence_s > keepalive_s * (1 + self._unanswered_pings):
            self._unanswered_pings += 1
            self.send(wire.FromParty(ping=wire.Ping(number=self._unanswered_pings)))

    def stands(self, now_s: float) -> bool | None:
        """True while the stream stands, False once it has ended; None if it has been silent for too long to tell.

        A process that was stopped, or a machine that slept, finds its stream as it left it. So a stream counts for
        nothing before it has been heard again.
        """
        if self.ended is not None or self.welcome is None:
            return False
        return True if self.silent_s(now_s) <= self.longest_silence_s else None

    def silent_s(self, now_s: float) -> float:
        """Seconds since the last frame arrived; 0 while a long request is opened, during which nothing is read."""
        if self._is_opening_request:
            return 0.0
        return max(0.0, now_s - self._heard_s)

    @property
    def longest_silence_s(self) -> float:
        """Seconds of silence within which a stream that stands has surely been heard, by an answer to a ping."""
        keepalive_s = 0.0 if self.welcome is None else self.welcome.keepalive_s
        return PING_SHARE * max(0.2, min(300.0, keepalive_s)) + PONG_S

    def close(self, reason: str) -> None:
        """Sends a last frame with ``reason``, waits briefly until it has left, and ends the stream."""
        if self.ended is None and self.welcome is not None:
            self.send(wire.FromParty(goodbye=wire.Goodbye(reason=reason)))
            self._queue_frames(None)
            self._stream_over.wait(GOODBYE_S)
        self._end_stream(Ended(reason, welcomed=self.welcome is not None))
        self._loop.call_soon_threadsafe(self._cancel_stream)
        self._stream_over.wait(GOODBYE_S)

    def _queue_frames(self, frames: Frames | None) -> None:
        """Queues frames for sending; None closes the sending side."""
        self._loop.call_soon_threadsafe(self._frame_queue.put_nowait, frames)

    # The methods below run in the stream's own thread.

    def _begin_stream(self) -> None:
        self._task = asyncio.ensure_future(self._run_stream())
        self._task.add_done_callback(self._finish_stream)

    def _cancel_stream(self) -> None:
        task, self._task = self._task, None  # A second cancellation would interrupt the cleanup of the first one.
        if task is not None:
            task.cancel()

    def _finish_stream(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # The error's message may hold private data.
            log.error("internal error %s; the stream is given up", type(error).__name__)
        self._end_stream(Ended("the stream broke off", welcomed=self.welcome is not None))
        self._stream_over.set()

    async def _run_stream(self) -> None:
        channel = self._make_channel()
        stream_call = channel.stream_stream(framing.METHOD)()
        writer = asyncio.ensure_future(self._write_frames(stream_call))
        try:
            await self._read_frames(stream_call)
        except PeerFault as fault:
            fault_words = "; ".join(filter(None, (f"protocol fault: {fault.problem}", fault.remedy)))
            self._end_stream(Ended(fault_words, 30.0, welcomed=self.welcome is not None))
        except grpc.RpcError as error:
            status_code = error.code()
            detail_words = printable(str(error.details()))
            is_refused = status_code in REFUSALS_OF_PEOPLE
            if status_code is grpc.StatusCode.UNAVAILABLE and self.welcome is None:
                log.debug("%s: %s", status_code.name, detail_words)  # gRPC's words, for a specialist
                reason = f"the coordinator at {self.address} cannot be reached"
            else:
                reason = f"{status_code.name}: {detail_words}"
            self._end_stream(Ended(reason, welcomed=self.welcome is not None, refused=is_refused))
        finally:
            stream_call.cancel()
            writer.cancel()
            await asyncio.wait([writer])
            await channel.close()

    async def _write_frames(self, stream_call: Any) -> None:
        try:
            while (frames := await self._frame_queue.get()) is not None:
                for frame in frames:
                    await stream_call.write(frame.SerializeToString())
            await stream_call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # The stream has ended; its reader raises the reason.
        except Exception as error:  # noqa: BLE001 - the error's message may hold private data
            log.error("internal error %s; the stream is given up", type(error).__name__)
            stream_call.cancel()

    async def _read_frames(self, stream_call: Any) -> None:
        while (frame_bytes := await stream_call.read()) is not grpc.aio.EOF:
            self._heard_s = time.monotonic()
            self._unanswered_pings = 0
            message = parsed(wire.ToParty, frame_bytes, "coordinator", "sent bytes that are no message")
            if not await self._handle_frame(message):
                self._frame_queue.put_nowait(None)
                await stream_call.code()  # The coordinator ends its own side.
                return
        self._end_stream(Ended("the coordinator ended the stream", welcomed=self.welcome is not None))

    async def _handle_frame(self, message: wire.ToParty) -> bool:
        """Handles one frame; returns False if the stream must end."""
        frame_kind = message.WhichOneof("frame")
        if self.welcome is None:
            if frame_kind == "goodbye":
                self._take_goodbye(message.goodbye)
                return False
            if frame_kind != "welcome":
                raise PeerFault(
                    "coordinator",
                    "does not begin with a Welcome",
                    "check that an Undersong coordinator serves this address",
                )
            if message.welcome.version != framing.VERSION:
                raise PeerFault(
                    "coordinator",
                    f"({printable(message.welcome.software, 40) or 'unknown software'}) speaks version"
                    f" {message.welcome.version} of the transport, this program ({SOFTWARE}) speaks {framing.VERSION}",
                    "run the same version of Undersong at the coordinator and at every party",
                )
            # With NaN or infinity in it, the status file would be no JSON for other programs.
            if not math.isfinite(message.welcome.clock_s):
                raise PeerFault("coordinator", "states a time that is no number", "tell its operator")
            with self._changed:
                self.welcome = message.welcome
                self._changed.notify_all()
            return True
        for message_id in message.acknowledged:
            self._listener.acknowledged(message_id)
        match frame_kind:
            case "transfer":
                await self._take_message(self._reassembler.transfer(message.transfer))
            case "chunk":
                await self._take_message(self._reassembler.chunk(message.chunk))
            case "ack":
                self._listener.acknowledged(message.ack.id)
            case "ping":
                if self._frame_queue.qsize() > framing.LONGEST_QUEUE:
                    raise PeerFault("coordinator", "does not read what it is sent")
                self.send(wire.FromParty(pong=wire.Pong(number=message.ping.number)))
            case "pong":
                pass
            case "renewed":
                self._listener.renewed(message.renewed)
            case "goodbye":
                self._take_goodbye(message.goodbye)
                return False
            case _:
                raise PeerFault("coordinator", "sent a second Welcome, or a frame without content")
        return True

    async def _take_message(self, arrived: framing.Arrived | None) -> None:
        """Opens a request that is wanted, outside the loop where that takes long; nothing else is read meanwhile."""
        if arrived is None:
            return
        # A request is not acknowledged: the coordinator keeps it until it is answered, and repeats it on a new stream.
        wanted_ids = [message_id for message_id in arrived.ids if self._listener.wants(message_id)]
        if not wanted_ids:
            return
        if arrived.plain_size <= framing.CHUNK_BYTES:
            message_bytes = arrived.open()
        else:
            self._is_opening_request = True
            try:
                message_bytes = await self._loop.run_in_executor(None, arrived.open)
            finally:
                self._heard_s = time.monotonic()
                self._is_opening_request = False
        for id_ in wanted_ids:
            self._listener.request(framing.Envelope(id_, message_bytes))

    def _take_goodbye(self, message: wire.Goodbye) -> None:
        self._end_stream(
            Ended(
                f"the coordinator says: {printable(message.reason, 200)}",
                message.reconnect_after_s,
                welcomed=self.welcome is not None,
            )
        )

    def _end_stream(self, stream_end: Ended) -> None:
        with self._changed:
            if self.ended is None:
                self.ended = stream_end
            self._changed.notify_all()


THREAD = "stream"
END_S = 2.0  # longest wait for the end of the streams when the process ends

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of all streams, which runs in a thread from the first call until the process ends."""
    global _loop
    with _lock:
        if _loop is None:
            start_queue: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()
            thread = threading.Thread(
                target=lambda: asyncio.run(_run_until_stopped(start_queue)), name=THREAD, daemon=True
            )
            thread.start()
            _loop, stop_event = start_queue.get()
            atexit.register(_stop_loop, _loop, stop_event, thread)
        return _loop


async def _run_until_stopped(start_queue: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stop_event = asyncio.Event()
    start_queue.put((asyncio.get_running_loop(), stop_event))
    await stop_event.wait()


def _stop_loop(loop: asyncio.AbstractEventLoop, stop_event: asyncio.Event, thread: threading.Thread) -> None:
    """Cancels what still runs. Later, the interpreter would stop its thread anywhere, even within gRPC's code."""
    loop.call_soon_threadsafe(stop_event.set)
    thread.join(END_S)
