"""Who may hold a connection to the coordinator, and who gives way: limits by source address, by party and in all.

Whoever has not authenticated holds one of a few places for a short time, and a source that holds most of them gives way
first: one newcomer always finds a place, however many connections others open and say nothing on. Parties that have
authenticated hold places of their own, and what they do on them is bounded for each.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

REMEMBERED = 10_000  # sources or parties at once

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
