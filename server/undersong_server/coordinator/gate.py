"""The open port: counts, limits and logs connections before TLS reads anything of them.

gRPC reports nothing about a connection whose handshake failed. The gate accepts every connection, relays what looks
like TLS to gRPC's own socket on the loopback interface, byte for byte, and learns which connections became the stream
of an enrolled party. It decides nothing about identity: certificates are checked behind it.
"""

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from undersong_server.coordinator.metrics import Metrics

log = logging.getLogger(__name__)

BACKLOG = 256  # largest number of connections that wait, and that one turn of the event loop accepts
SILENT_S = 5.0  # a connection that has sent nothing by then is closed
HANDSHAKE_S = 20.0  # a connection that has not authenticated by then is closed
QUIET_S = 3600.0  # pause before the same refusal of the same source is logged again
BUFFER_BYTES = 1 << 20  # of a slow socket, above which the other one is not read
TLS_HANDSHAKE = 0x16  # first byte of every TLS connection
REMEMBERED = 10_000  # largest number of sources or parties whose state is kept

NOT_TLS = "does not speak TLS"
SILENT = "connected and said nothing"
NO_CERTIFICATE = "showed no valid certificate of this federation (none, foreign or expired), or no TLS 1.3"
OWN_CERTIFICATE = "cannot connect: this coordinator's own certificate is not yet valid; look at this machine's clock"
TOO_FAST = "opens too many connections"
CROWDED = "gave way to another connection before it had authenticated"
PARTY_CROWDED = "is an older one of more connections than one party may hold"

Connection = TypeVar("Connection")
Value = TypeVar("Value")


class Recent(OrderedDict[str, Value]):
    """A dictionary that keeps only the ``REMEMBERED`` entries that were set last."""

    def __setitem__(self, key: str, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > REMEMBERED:
            self.popitem(last=False)


class Rate:
    """Token buckets by name: ``burst`` events at once, ``per_second`` in the long run."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._buckets: Recent[tuple[float, float]] = Recent()

    def allows(self, name: str, now: float) -> bool:
        """Counts one more event of ``name``; False, uncounted, if it is over its rate. ``now``: monotonic seconds."""
        tokens, refilled_at = self._buckets.get(name, (self._burst, now))
        tokens = min(self._burst, tokens + (now - refilled_at) * self._per_second)
        self._buckets[name] = (tokens - 1.0 if tokens >= 1.0 else tokens, now)
        return tokens >= 1.0


@dataclass(eq=False)
class ConnectionLimits(Generic[Connection]):
    """Connection admission policy, without I/O: limits by source address, by party and in total.

    Unauthenticated connections are few and short, and the source that holds most of them gives way first: a newcomer
    is always admitted, however many silent connections others open. Authenticated parties have a limit of their own.

    Attributes:
        total: connections at once.
        most_unauthenticated: connections at once over which no enrolled party has spoken yet.
        per_source: unauthenticated connections at once from one address.
        known_factor: factor on ``per_source`` for an address from which a party has authenticated.
        per_party: connections at once of one authenticated party.
        burst, per_second: new connections from one address, at once and in the long run.
    """

    total: int = 2000
    most_unauthenticated: int = 256
    per_source: int = 64
    known_factor: int = 2
    per_party: int = 4
    burst: float = 256.0
    per_second: float = 50.0

    def __post_init__(self) -> None:
        self._rate = Rate(self.burst, self.per_second)
        # connections by source (unauthenticated) or by party, each oldest first
        self._by_source: dict[str, dict[Connection, None]] = {}
        self._by_party: dict[str, dict[Connection, None]] = {}
        self._held: dict[Connection, tuple[dict[str, dict[Connection, None]], str]] = {}
        self._known: Recent[None] = Recent()  # sources of parties that have authenticated

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._held))

    @property
    def unauthenticated(self) -> int:
        return sum(map(len, self._by_source.values()))

    def enter(self, connection: Connection, source: str, now: float) -> list[Connection] | None:
        """Admits a new connection and returns the connections that give way to it; None if the new one is refused.

        Args:
            source: as :func:`source_of` names it.
            now: seconds on a monotonic clock.
        """
        if not self._rate.allows(source, now):
            return None
        is_known = source in self._known
        source_connections = self._by_source.get(source, {})
        leaving_connections: list[Connection] = []
        if len(source_connections) >= self.per_source * (self.known_factor if is_known else 1):
            leaving_connections = [next(iter(source_connections))]
        elif self.unauthenticated >= self.most_unauthenticated:
            stranger_connections = [
                held_connections
                for source_name, held_connections in self._by_source.items()
                if source_name not in self._known
            ]
            if not stranger_connections and not is_known:
                return None
            leaving_connections = [_oldest_of_most(stranger_connections or self._by_source.values())]
        return self._replace(leaving_connections, self._by_source, source, connection)

    def authenticate(self, connection: Connection, party: str) -> list[Connection]:
        """Notes that an enrolled party spoke over the connection; returns the connections that give way to it."""
        connections_by_name, source = self._held.get(connection, (self._by_party, ""))
        if connections_by_name is self._by_party:
            return []
        self._known[source] = None
        self.leave(connection)
        streams = self._by_party.get(party, {})
        leaving_connections: list[Connection] = []
        if len(streams) >= self.per_party:
            leaving_connections = [next(iter(streams))]
        elif sum(map(len, self._by_party.values())) >= self.total - self.most_unauthenticated:
            leaving_connections = [_oldest_of_most(self._by_party.values())]
        return self._replace(leaving_connections, self._by_party, party, connection)

    def leave(self, connection: Connection) -> None:
        """Forgets a connection that has ended or gives way; unknown connections are ignored."""
        connections_by_name, group_name = self._held.pop(connection, ({}, ""))
        if group_name in connections_by_name:
            connections_by_name[group_name].pop(connection)
            if not connections_by_name[group_name]:
                del connections_by_name[group_name]

    def _replace(
        self, leaving: list[Connection], groups: dict[str, dict[Connection, None]], name: str, connection: Connection
    ) -> list[Connection]:
        for leaving_connection in leaving:
            self.leave(leaving_connection)
        groups.setdefault(name, {})[connection] = None
        self._held[connection] = (groups, name)
        return leaving


def _oldest_of_most(groups: Iterable[Mapping[Connection, None]]) -> Connection:
    largest_group: Mapping[Connection, None] = max(groups, key=len)
    return next(iter(largest_group))


def source_of(address: str) -> str:
    """Names an address as the limits count it: an IPv6 host may use any address of its /64.

    >>> source_of("2001:db8::7%eth0"), source_of("192.0.2.7")
    ('2001:db8::/64', '192.0.2.7')
    """
    host = address.partition("%")[0]
    if ipaddress.ip_address(host).version == 4:
        return host
    return str(ipaddress.ip_network(f"{host}/64", strict=False))


class Refusals:
    """Counts all refusals, and logs each once per source and reason within ``QUIET_S``."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._logged: Recent[tuple[float, int]] = Recent()

    def note(self, source: str, reason: str, detail: str = "") -> None:
        """Counts and logs one refusal. ``reason`` is one of few, a metric's label; ``detail`` is for the log only."""
        self._metrics.refused.labels(reason=reason).inc()
        refusal_key = f"{source} {reason}"
        now_s = self._clock()
        logged_at, refusal_count = self._logged.get(refusal_key, (-QUIET_S, 0))
        if now_s - logged_at < QUIET_S:
            self._logged[refusal_key] = (logged_at, refusal_count + 1)
            return
        self._logged[refusal_key] = (now_s, 0)
        if refusal_count:
            repeat_words = f" ({refusal_count} times since it was last logged)"
        else:
            repeat_words = ""
        log.warning("refused %s: %s%s%s", source, reason, f": {detail}" if detail else "", repeat_words)


class Gate:
    """Listens on the public address and relays to ``inner_port`` of the loopback address ``inner_host``.

    It lives in one event loop.

    Args:
        is_not_yet_valid: returns True if a certificate of this coordinator begins in the future: handshakes then fail.
    """

    def __init__(
        self, inner_host: str, inner_port: int, refusals: Refusals, *, is_not_yet_valid: Callable[[], bool]
    ) -> None:
        self.inner_host = inner_host
        self.inner_port = inner_port
        self.refusals = refusals
        self.is_not_yet_valid = is_not_yet_valid
        self.limits: ConnectionLimits[_Outer] = ConnectionLimits()
        self.relays: dict[int, _Outer] = {}  # keyed by the local port of the connection to gRPC
        self.port = 0

    async def listen(self, host: str, port: int) -> None:
        """Begins to accept connections. Raises OSError where the address cannot be bound."""
        event_loop = asyncio.get_running_loop()
        self._server = await event_loop.create_server(lambda: _Outer(self), host or None, port, backlog=BACKLOG)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()
        for open_relay in self.limits:
            open_relay.transport.abort()

    def admit(self, peer: str, party: str) -> None:
        """Notes that a verified party speaks over the connection that gRPC names ``peer`` ("ipv4:127.0.0.1:PORT")."""
        peer_relay = self._relay(peer)
        if peer_relay is not None:
            peer_relay.admit()
            for older_relay in self.limits.authenticate(peer_relay, party):
                older_relay.refuse(PARTY_CROWDED)

    def source(self, peer: str) -> str:
        """Returns the address from which a party has connected; gRPC names the connection ``peer``."""
        peer_relay = self._relay(peer)
        # Its port would make a new source of each closed connection, and a log line of each.
        if peer_relay is None:
            return "a closed connection"
        return peer_relay.source

    def excuse(self, peer: str) -> None:
        """Notes that a refusal of the connection ``peer`` is logged already, so that the gate logs none."""
        peer_relay = self._relay(peer)
        if peer_relay is not None:
            peer_relay.reason = ""

    def _relay(self, peer: str) -> "_Outer | None":
        _, _, port = peer.rpartition(":")
        if port.isdigit():
            return self.relays.get(int(port))
        return None


class _Side(asyncio.Protocol):
    """One socket of a relay: writes what it reads to the other socket, and pauses while that one is slow."""

    transport: asyncio.Transport

    def __init__(self, other: "_Side | None" = None) -> None:
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class _Outer(_Side):
    """The socket of a connection from outside; its other side is the socket to gRPC, once TLS has begun.

    Attributes:
        reason: logged if the connection ends without having authenticated; "" if that is logged already.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self.inner_port = 0
        self.reason = SILENT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.source = str(transport.get_extra_info("peername")[0])
        self._timer = asyncio.get_running_loop().call_later(SILENT_S, self.transport.abort)
        leaving_connections = self._gate.limits.enter(self, source_of(self.source), time.monotonic())
        if leaving_connections is None:
            self.refuse(TOO_FAST)
        for leaving_connection in leaving_connections or ():
            leaving_connection.refuse(CROWDED)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
        elif data[0] != TLS_HANDSHAKE:
            self.refuse(NOT_TLS)
        else:
            self.reason = NO_CERTIFICATE
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.transport.abort)
            self.transport.pause_reading()
            self._opening = asyncio.ensure_future(self._open_inner(data))

    async def _open_inner(self, first_bytes: bytes) -> None:
        event_loop = asyncio.get_running_loop()
        try:
            inner_transport, inner_protocol = await event_loop.create_connection(
                lambda: _Side(self), self._gate.inner_host, self._gate.inner_port
            )
        except OSError as error:
            log.error("the gRPC server does not answer on the loopback interface: %s", error.strerror)
            self.transport.abort()
            return
        if self.transport.is_closing():
            inner_transport.abort()
            return
        self.other = inner_protocol
        self.inner_port = int(inner_transport.get_extra_info("sockname")[1])
        self._gate.relays[self.inner_port] = self
        inner_transport.write(first_bytes)
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(error)
        self._gate.limits.leave(self)
        self._gate.relays.pop(self.inner_port, None)
        if self.reason == NO_CERTIFICATE and self._gate.is_not_yet_valid():
            self.reason = OWN_CERTIFICATE
        if self.reason:
            self._gate.refusals.note(source_of(self.source), self.reason)

    def admit(self) -> None:
        """Lets this connection last, since it has authenticated."""
        self.reason = ""
        self._timer.cancel()

    def refuse(self, reason: str) -> None:
        """Ends this connection, and logs it for this reason."""
        self.reason = reason
        self.transport.abort()
