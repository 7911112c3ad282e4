"""The open port: counts, limits and logs connections before TLS reads anything of them.

gRPC tells nobody about a connection whose handshake failed. The gate accepts every connection, lets what looks like
TLS through to gRPC's own socket on the loopback interface, byte for byte, and learns whether it became the stream of an
enrolled party. It decides nothing about identity: certificates are checked behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from undersong_server.coordinator.metrics import Metrics

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64  # connections taken in one turn of the loop, so that streams get theirs
BACKLOG = 512
SILENT_S = 5.0  # until a connection must have said something
HANDSHAKE_S = 20.0  # until a connection must have become a party's stream
QUIET_S = 3600.0  # a source's next refusal for the same reason is logged after this long
BUFFER_BYTES = 1 << 20
TLS_HANDSHAKE = 0x16

NOT_TLS = "does not speak TLS"
SILENT = "connected and said nothing"
NO_CERTIFICATE = "showed no valid certificate of this federation (none, foreign or expired), or no TLS 1.3"
TOO_FAST = "opens too many connections"
CROWDED = "gave way to another connection before it had authenticated"
PARTY_CROWDED = "is an older one of more connections than one party may hold"
REMEMBERED = 10_000  # sources or parties whose state is kept at once

Connection = TypeVar("Connection")


@dataclass(frozen=True)
class Limits:
    """How many connections there may be.

    Attributes:
        in_all: connections at once.
        unproven: of them, over which no enrolled party has spoken yet.
        unproven_a_source: of these, from one address.
        known_factor: by how much an address from which a party has authenticated may hold more.
        a_party: connections of one party that has authenticated.
        burst, a_second: new connections from one address, at once and for long.
    """

    in_all: int = 2000
    unproven: int = 256
    unproven_a_source: int = 64
    known_factor: int = 2
    a_party: int = 4
    burst: float = 256.0
    a_second: float = 50.0


class Rate:
    """How often each of many may do something: ``burst`` times at once, ``a_second`` for long."""

    def __init__(self, burst: float, a_second: float) -> None:
        self._burst = burst
        self._a_second = a_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, who: str, now: float) -> bool:
        """Counts one more, where it is allowed. ``now``: seconds on a monotonic clock."""
        tokens, at = self._buckets.pop(who, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._a_second)
        allowed = tokens >= 1.0
        self._buckets[who] = (tokens - 1.0 if allowed else tokens, now)
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return allowed


class Places(Generic[Connection]):
    """The places, without sockets or clocks: it says who is let in and who gives way; the gate does it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._rate = Rate(self.limits.burst, self.limits.a_second)
        self._unproven: dict[str, dict[Connection, None]] = {}  # by source, oldest first
        self._proven: dict[str, dict[Connection, None]] = {}  # by party, oldest first
        self._source: dict[Connection, str] = {}
        self._party: dict[Connection, str] = {}
        self._known: OrderedDict[str, None] = OrderedDict()  # sources of parties that have authenticated

    def __len__(self) -> int:
        return len(self._source)

    @property
    def unproven(self) -> int:
        """Connections over which nobody has authenticated."""
        return len(self._source) - len(self._party)

    def take(self, connection: Connection, source: str, now: float) -> list[Connection] | None:
        """A place for a new connection; those that give way to it, or None where it gets none.

        Args:
            source: as :func:`source_of` names it.
            now: seconds on a monotonic clock.
        """
        if not self._rate.allows(source, now):
            return None
        known = source in self._known
        own = self._unproven.get(source, {})
        leaving: list[Connection] = []
        if len(own) >= self.limits.unproven_a_source * (self.limits.known_factor if known else 1):
            leaving = [next(iter(own))]
        elif self.unproven >= self.limits.unproven:
            strangers = [held for who, held in self._unproven.items() if who not in self._known]
            if not strangers and not known:
                return None
            leaving = [_oldest_of_most(strangers or self._unproven.values())]
        for each in leaving:
            self.leave(each)
        self._unproven.setdefault(source, {})[connection] = None
        self._source[connection] = source
        return leaving

    def prove(self, connection: Connection, party: str) -> list[Connection]:
        """An enrolled party has spoken over this connection; its oldest ones beyond its places give way."""
        source = self._source.get(connection)
        if source is None or connection in self._party:
            return []
        self._forget(self._unproven, source, connection)
        self._party[connection] = party
        held = self._proven.setdefault(party, {})
        held[connection] = None
        self._known.pop(source, None)
        self._known[source] = None
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        leaving = []
        if len(held) > self.limits.a_party:
            leaving.append(next(iter(held)))
        elif len(self._party) > self.limits.in_all - self.limits.unproven:
            leaving.append(_oldest_of_most(self._proven.values()))
        for each in leaving:
            self.leave(each)
        return leaving

    def leave(self, connection: Connection) -> None:
        """A connection has ended, or gives way; a second time changes nothing."""
        source = self._source.pop(connection, None)
        party = self._party.pop(connection, None)
        if party is not None:
            self._forget(self._proven, party, connection)
        elif source is not None:
            self._forget(self._unproven, source, connection)

    @staticmethod
    def _forget(held: dict[str, dict[Connection, None]], who: str, connection: Connection) -> None:
        held[who].pop(connection)
        if not held[who]:
            del held[who]


def _oldest_of_most(held: Iterable[dict[Connection, None]]) -> Connection:
    most: dict[Connection, None] = max(held, key=len)
    return next(iter(most))


def source_of(address: str) -> str:
    """The address as limits count it: an IPv6 host may take any address of its /64.

    >>> source_of("2001:db8::7%eth0"), source_of("192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    host = address.partition("%")[0]
    if ipaddress.ip_address(host).version == 4:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False))


class Refusals:
    """Logs a refusal once for each source and reason; counts them all."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def note(self, source: str, reason: str, detail: str = "") -> None:
        """Counts and logs one refusal. ``reason`` is one of few, a metric's label; ``detail`` is for the log only."""
        self._metrics.refused.labels(reason=reason).inc()
        at, count = self._seen.get((source, reason), (-QUIET_S, 0))
        now = self._clock()
        if now - at < QUIET_S:
            self._seen[source, reason] = (at, count + 1)
            return
        self._seen[source, reason] = (now, 0)
        self._seen.move_to_end((source, reason))
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        earlier = f" ({count} times since it was last logged)" if count else ""
        log.warning("refused %s: %s%s%s", source, reason, f": {detail}" if detail else "", earlier)


class Gate:
    """Listens on the public address and relays to ``inner_port`` of the loopback interface. Lives in one event loop."""

    def __init__(self, inner_port: int, refusals: Refusals, limits: Limits | None = None) -> None:
        self._inner_port = inner_port
        self._refusals = refusals
        self._listeners: list[socket.socket] = []
        self._places: Places[_Outer] = Places(limits)
        self._relays: set[_Outer] = set()
        self._by_inner: dict[int, _Outer] = {}
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Begins to accept connections. Raises OSError where the address cannot be bound."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address if port or not self.port else (address[0], self.port, *address[2:]))
            listener.listen(BACKLOG)
            listener.setblocking(False)
            self.port = self.port or int(listener.getsockname()[1])
            self._listeners.append(listener)
            loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
            listener.close()
        for relay in list(self._relays):
            relay.abort()

    def admit(self, peer: str, party: str) -> None:
        """Notes that a verified party speaks over gRPC's ``peer`` ("ipv4:127.0.0.1:PORT")."""
        relay = self._relay(peer)
        if relay is not None:
            relay.admitted = True
            for older in self._places.prove(relay, party):
                older.give_way(PARTY_CROWDED)

    def source(self, peer: str) -> str:
        """The address behind gRPC's ``peer``."""
        relay = self._relay(peer)
        # One that has hung up already is not named by its port, which would be a new source each time.
        return "a closed connection" if relay is None else relay.source

    def excuse(self, peer: str) -> None:
        """Notes that the connection was refused by name already, so that its end is not logged a second time."""
        relay = self._relay(peer)
        if relay is not None:
            relay.judged = True

    def _relay(self, peer: str) -> _Outer | None:
        _, _, port = peer.rpartition(":")
        return self._by_inner.get(int(port)) if port.isdigit() else None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("cannot accept a connection: %s", error.strerror)
                return
            outer = _Outer(self, str(address[0]))
            leaving = self._places.take(outer, source_of(outer.source), time.monotonic())
            if leaving is None:
                connection.close()
                self._refusals.note(source_of(outer.source), TOO_FAST)
                continue
            for other in leaving:
                other.give_way(CROWDED)
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._relays.add(outer)
            task = asyncio.ensure_future(self._relayed(connection, outer))
            task.add_done_callback(_forget)

    async def _relayed(self, connection: socket.socket, outer: _Outer) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: outer, connection)
        except OSError:
            self._relays.discard(outer)
            self._places.leave(outer)
            connection.close()

    async def _open_inner(self, outer: _Outer) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Inner(outer), "127.0.0.1", self._inner_port)
        except OSError as error:
            log.error("the gRPC server does not answer on the loopback interface: %s", error.strerror)
            outer.abort()

    def _opened(self, outer: _Outer, inner_port: int) -> None:
        self._by_inner[inner_port] = outer

    def _closed(self, outer: _Outer) -> None:
        self._relays.discard(outer)
        self._places.leave(outer)
        self._by_inner.pop(outer.inner_port, None)
        if not outer.judged and (outer.gave_way or not outer.admitted):
            self._refusals.note(source_of(outer.source), outer.reason)


class _Side(asyncio.Protocol):
    """One socket of a relay: what it reads is written to the other one, which may ask it to wait."""

    transport: asyncio.Transport | None = None
    other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Outer(_Side):
    """The socket of whoever connected."""

    def __init__(self, gate: Gate, source: str) -> None:
        self._gate = gate
        self.source = source
        self.inner_port = 0
        self.admitted = False
        self.judged = False
        self.gave_way = False
        self.reason = SILENT
        self._first: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.gave_way:
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(min(SILENT_S, HANDSHAKE_S), self._late)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        if not self._first:
            if data[0] != TLS_HANDSHAKE:
                self.reason = NOT_TLS
                self.abort()
                return
            self.reason = NO_CERTIFICATE
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._late)
            self._task = asyncio.ensure_future(self._gate._open_inner(self))
        self._first.append(data)
        if self.transport is not None:
            self.transport.pause_reading()

    def attach(self, inner: _Inner, port: int) -> None:
        if self.transport is None or self.transport.is_closing() or inner.transport is None:
            if inner.transport is not None:
                inner.transport.abort()
            return
        self.other = inner
        self.inner_port = port
        self._gate._opened(self, port)
        inner.transport.writelines(self._first)
        self._first.clear()
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)
        self._gate._closed(self)

    def give_way(self, reason: str) -> None:
        """Ends this connection in favour of another one."""
        self.reason = reason
        self.gave_way = True
        self.abort()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _late(self) -> None:
        if not self.admitted:
            self.abort()


class _Inner(_Side):
    """The socket to gRPC."""

    def __init__(self, outer: _Outer) -> None:
        self.other = outer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(self.other, _Outer)
        self.other.attach(self, int(transport.get_extra_info("sockname")[1]))


def _forget(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("internal error %s in the gate", type(task.exception()).__name__)
