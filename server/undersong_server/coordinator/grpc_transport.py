"""The native transport: requests wait in a party's mailbox until the party has answered, however often it reconnects.

The mailboxes live in the server's event loop; :meth:`GrpcTransport.exchange` is called from the threads of runs. What
is sent after a reconnect are the same bytes under the same id, and a reply that arrived in part is continued.
"""

import asyncio
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from undersong_protocol.wire.framing import ID_BYTES, Envelope, FrameLimits, Outgoing, Reassembler, SharedRoom
from undersong_protocol.wire.messages import federation_pb2
from undersong_protocol.wire.messages import transport_pb2 as wire
from undersong_server.coordinator.metrics import Metrics

WATCH_S = 0.25  # pause between two checks of a waiting run
WATCH_A_PARTY_S = 0.002  # the pause lasts at least this time per missing party, because listing them blocks the loop
ACKNOWLEDGE_S = 0.25  # longest wait of an acknowledgement for a request that carries it
ACKNOWLEDGED = 16  # largest number of one party's acknowledgements that wait
UNFINISHED_BYTES = 2**30  # most memory for replies that arrived in part, of all parties together


_numbers = itertools.count()


@dataclass(frozen=True)
class Presence:
    """State of one party's connection. Times are seconds on the transport's (monotonic) clock.

    Attributes:
        since: start of the present state, connected or not.
        heard: time of the last frame; None if the party has not connected since the coordinator started.
    """

    connected: bool
    since: float
    heard: float | None


@dataclass(frozen=True)
class Waiting:
    """State of a request: the replies that a run still waits for.

    Attributes:
        missing: connections of the parties that have not answered, by party.
        answered: number of parties that have answered.
        left_s: seconds until the run goes on without the missing ones.
    """

    missing: Mapping[str, Presence]
    answered: int
    left_s: float


@dataclass(eq=False)
class _Exchange:
    """Requests of one run that are under way; the condition guards the two maps."""

    pending: dict[str, bytes]  # id of the request that waits for a reply, by party
    reply_bytes: int  # largest size of one reply
    replies: dict[str, bytes] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)


@dataclass(frozen=True)
class PartyStream:
    """A verified party at the other end: its name, its certificate's serial number (hex), and its address."""

    name: str
    serial: str
    source: str


class Link:
    """One live stream of a party, as its mailbox sees it: a queue of frames that the stream's writer empties."""

    def __init__(self, peer: PartyStream, boot: bytes) -> None:
        self.peer = peer
        self.boot = boot
        self.number = next(_numbers)  # a later stream has a higher one
        self.queue: asyncio.Queue[Iterable[Any] | None] = asyncio.Queue()
        self.over = asyncio.Event()
        self.closed = ""
        self.reconnect_after_s = 0.0
        self.awaited_since = math.inf  # start of the wait for the party's next frame; inf while a frame is handled
        self.decided_at = -math.inf  # last time that the party reported a decision of its people

    def close(self, reason: str, reconnect_after_s: float = 0.0) -> None:
        """Asks the stream to end with a Goodbye; what is queued is dropped."""
        if not self.closed:
            self.closed = reason
            self.reconnect_after_s = reconnect_after_s
            self.queue.put_nowait(None)
            self.over.set()


class Mailbox:
    """Requests and replies of one party, across its streams. Lives in the event loop."""

    def __init__(self, name: str, limits: FrameLimits, room: SharedRoom) -> None:
        self.name = name
        self.link: Link | None = None
        self.changed_at = time.monotonic()
        self.heard_at: float | None = None
        self.reassembler = Reassembler(name, limits, room)
        self._open: dict[bytes, tuple[Outgoing, _Exchange]] = {}
        self._arrived: list[bytes] = []  # ids of received replies that are not acknowledged yet
        self._timer: asyncio.TimerHandle | None = None

    @property
    def presence(self) -> Presence:
        return Presence(self.link is not None, self.changed_at, self.heard_at)

    def attach(self, link: Link, held: Mapping[bytes, bytes]) -> None:
        """Replaces the old stream by a new one. Sends open requests again, except the parts that the party holds."""
        old_link = self.link
        self.link = link
        self.acknowledged()  # drops those of the old stream: the party repeats replies that were not acknowledged
        self.changed_at = self.heard_at = time.monotonic()
        if old_link is not None:
            is_same_boot = old_link.boot == link.boot
            # A second process with the party's keys must not take turns with the first one.
            old_link.close("a newer connection of this party replaces this one", 0.0 if is_same_boot else -1.0)
        for outgoing_message, _ in self._open.values():
            link.queue.put_nowait(outgoing_message.frames(held))

    def detach(self, link: Link) -> None:
        if self.link is link:
            self.link = None
            self.changed_at = time.monotonic()

    def send(self, outgoing: Outgoing, exchange: _Exchange) -> None:
        self._open[outgoing.id] = (outgoing, exchange)
        if self.link is not None:
            self.link.queue.put_nowait(outgoing.frames())

    def withdraw(self, id_: bytes) -> None:
        self._open.pop(id_, None)

    def awaited_bytes(self, id_: bytes) -> int | None:
        """Largest size, in bytes, of the reply to the request ``id_``; None if no exchange waits for that reply."""
        open_entry = self._open.get(id_)
        if open_entry is None:
            return None
        return open_entry[1].reply_bytes

    def acknowledge(self, id_: bytes) -> None:
        """Tells the party at once that it may drop its copy of the reply ``id_``."""
        if self.link is not None:
            self.link.queue.put_nowait([wire.Ack(id=id_)])

    def acknowledged(self) -> list[bytes]:
        """Returns, once, the ids of replies that the party may drop, for a frame that carries them."""
        ids = self._arrived
        self._arrived = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return ids

    def _acknowledge_with_next(self, id_: bytes) -> None:
        """Acknowledges a reply with the next request to the party: a frame for it alone would wake both ends."""
        self._arrived.append(id_)
        if len(self._arrived) >= ACKNOWLEDGED:
            self._acknowledge_alone()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._acknowledge_alone)

    def _acknowledge_alone(self) -> None:
        for message_id in self.acknowledged():
            self.acknowledge(message_id)

    def received(self, envelope: Envelope) -> None:
        """Hands a complete reply to the exchange that waits for it; without one, acknowledges and drops the reply."""
        open_entry = self._open.pop(envelope.id, None)
        if open_entry is None:
            self.acknowledge(envelope.id)
            return
        self._acknowledge_with_next(envelope.id)
        exchange = open_entry[1]
        with exchange.changed:
            if exchange.pending.pop(self.name, None) is not None:
                exchange.replies[self.name] = envelope.data
            # A wake for each reply would cost the loop time: the waiting thread looks now and then.
            if not exchange.pending:
                exchange.changed.notify_all()


class GrpcTransport:
    """Implements :class:`undersong_server.federation.exchange.Transport` over whatever streams the parties hold open.

    Args:
        metrics: counts bytes, times of exchanges and missing replies.
        limits: sizes that the replies of one party may have.
        epoch: of the serving process, which every request carries; 0 carries none.
    """

    def __init__(self, metrics: Metrics, limits: FrameLimits | None = None, epoch: int = 0) -> None:
        self._metrics = metrics
        self._limits = limits or FrameLimits()
        self._room = SharedRoom(UNFINISHED_BYTES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._decision = threading.Event()
        # Protobuf reads a field that is appended to a message's bytes as one of the message.
        self._epoch_field = federation_pb2.Request(epoch=epoch).SerializeToString()
        self.mailboxes: dict[str, Mailbox] = {}

    @property
    def links(self) -> dict[str, Link]:
        """The live streams by party; from any thread."""
        party_links = (
            (party_name, party_mailbox.link) for party_name, party_mailbox in sorted(self.mailboxes.copy().items())
        )
        return {
            party_name: party_link for party_name, party_link in party_links if party_link is not None
        }  # Each link is read once, because its stream may end meanwhile.

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the event loop in which the mailboxes live; called once, before any exchange."""
        self._loop = loop

    def mailbox(self, name: str) -> Mailbox:
        """Returns the mailbox of the party ``name``; for calls from the event loop only."""
        if name not in self.mailboxes:
            self.mailboxes[name] = Mailbox(name, self._limits, self._room)
        return self.mailboxes[name]

    def decided(self, name: str) -> None:
        """Ends every :meth:`sleep` now, because a person at the party ``name`` has approved or rejected something."""
        self._decision.set()

    def sleep(self, seconds: float) -> None:
        """Sleeps for ``seconds``, or until a party reports that its people have decided."""
        if self._decision.wait(seconds):
            self._decision.clear()

    def presence(self, names: Iterable[str]) -> dict[str, Presence]:
        """The connections of the named parties; from any thread."""
        absent_presence = Presence(False, 0.0, None)
        return {
            party_name: party_mailbox.presence if (party_mailbox := self.mailboxes.get(party_name)) else absent_presence
            for party_name in names
        }

    def exchange(
        self,
        requests: Mapping[str, bytes],
        *,
        timeout_s: float,
        watch: Callable[[Waiting], bool | None] = lambda _waiting: None,
        reply_bytes: int | None = None,
    ) -> Mapping[str, bytes]:
        """Sends every request and waits until all parties have answered, or for ``timeout_s`` seconds.

        Args:
            reply_bytes: largest size of one reply, if known; a party that announces more is cut off.
            watch: called every quarter of a second while replies are missing, less often while hundreds are; it ends
                the waiting by True or by what it raises.
        """
        assert self._loop is not None
        begun_at_s = time.monotonic()
        outgoing_by_party = _pack(requests, self._epoch_field)
        largest_reply = self._limits.reply_bytes(reply_bytes)
        exchange = _Exchange(
            {party_name: sent_message.id for party_name, sent_message in outgoing_by_party.items()}, largest_reply
        )
        self._loop.call_soon_threadsafe(self._post, outgoing_by_party, exchange)
        self._metrics.sent_bytes.inc(sum(sent.size for sent in outgoing_by_party.values()))
        try:
            while True:
                seconds_left = begun_at_s + timeout_s - time.monotonic()
                with exchange.changed:
                    if exchange.pending and seconds_left > 0:
                        exchange.changed.wait(min(max(WATCH_S, WATCH_A_PARTY_S * len(exchange.pending)), seconds_left))
                    if not exchange.pending:
                        break
                    missing_parties = list(exchange.pending)
                    reply_count = len(exchange.replies)
                if seconds_left <= 0:
                    break
                if watch(Waiting(self.presence(missing_parties), reply_count, seconds_left)):
                    break
        finally:
            with exchange.changed:
                pending_ids = dict(exchange.pending)
                exchange.pending.clear()
            if pending_ids:
                self._loop.call_soon_threadsafe(self._withdraw, pending_ids)
        for name in pending_ids:
            self._metrics.exchange_missing.labels(party=name).inc()
        self._metrics.received_bytes.inc(sum(map(len, exchange.replies.values())))
        self._metrics.exchange_seconds.observe(time.monotonic() - begun_at_s)
        return {party_name: exchange.replies[party_name] for party_name in requests if party_name in exchange.replies}

    def _post(self, outgoing: Mapping[str, Outgoing], exchange: _Exchange) -> None:
        for party_name, sent_message in outgoing.items():
            self.mailbox(party_name).send(sent_message, exchange)

    def _withdraw(self, ids: Mapping[str, bytes]) -> None:
        for party_name, message_id in ids.items():
            self.mailbox(party_name).withdraw(message_id)


def _pack(requests: Mapping[str, bytes], epoch_field: bytes = b"") -> dict[str, Outgoing]:
    # Most requests are the same for every party, so each different one is hashed and compressed once.
    packed_by_request: dict[bytes, Outgoing] = {}
    outgoing_by_party = {}
    for party_name, request_bytes in requests.items():
        message_id = os.urandom(ID_BYTES)
        earlier_packed = packed_by_request.get(request_bytes)
        if earlier_packed is None:
            earlier_packed = packed_by_request[request_bytes] = Outgoing(message_id, request_bytes + epoch_field)
            outgoing_by_party[party_name] = earlier_packed
        else:
            outgoing_by_party[party_name] = earlier_packed.under(message_id)
    return outgoing_by_party
