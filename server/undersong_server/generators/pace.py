"""How fast an endpoint is asked: limits a minute, head-room that its answers state, fewer calls at once after a 429."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping

_LIMITS = ("requests", "tokens")  # in the order in which all that is kept of them stands
_BURST_S = 6.0  # of a limit a minute that may be used at once
_RESET = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Pace:
    """Lets calls of one generator start, shared by its threads.

    Attributes:
        counts: public counters: calls that had to wait, and how often fewer calls at once were allowed.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        longest_wait_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A limit of None is none; ``longest_wait_s`` bounds the pauses that an endpoint's headers ask for."""
        self._most = concurrency
        self._allowed = float(concurrency)
        self._in_flight = 0
        self._rates = (requests_per_minute, tokens_per_minute)
        self._full = [None if rate is None else rate * _BURST_S / 60.0 for rate in self._rates]
        self._left = [0.0 if full is None else max(full, 1.0) for full in self._full]
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._at = clock()
        self._stated = [(math.inf, 0.0)] * len(_LIMITS)  # what answers say is left of each limit, and until when
        self._changed = threading.Condition()
        self.counts = {"waited": 0, "slowed_down": 0}

    @property
    def allowed(self) -> int:
        """How many calls may be in flight now."""
        return max(1, int(self._allowed))

    def start(self, tokens: int, stop: threading.Event) -> None:
        """Waits until a call of so many tokens may start, or ``stop`` is set. Every start has its :meth:`end`."""
        with self._changed:
            waited = False
            while not stop.is_set() and (pause := self._pause_s(tokens)) > 0:
                waited = True
                self._changed.wait(min(pause, 0.5))
            self.counts["waited"] += waited
            self._in_flight += 1
            for place, wanted in enumerate(_wanted(tokens)):
                self._left[place] -= wanted
                left, until = self._stated[place]
                self._stated[place] = (left - wanted, until)

    def end(self, *, throttled: bool, tokens: int, took: int) -> None:
        """Notes the end of a call: whether it met a 429, and how many of its reserved tokens it took."""
        with self._changed:
            self._in_flight -= 1
            self._left[1] += max(0, tokens - took)
            if throttled:
                self._allowed = max(1.0, self._allowed / 2)
                self.counts["slowed_down"] += 1
            else:  # one more at once for every round of calls that went well
                self._allowed = min(float(self._most), self._allowed + 1.0 / max(1.0, self._allowed))
            self._changed.notify_all()

    def heed(self, headers: Mapping[str, str]) -> None:
        """Notes what an answer's headers say is left of the endpoint's limits, and when these are whole again."""
        for place, what in enumerate(_LIMITS):
            left = headers.get(f"x-ratelimit-remaining-{what}", "")
            reset = seconds_of(headers.get(f"x-ratelimit-reset-{what}", ""))
            if left.isdecimal() and reset is not None:
                with self._changed:
                    self._stated[place] = (float(left), self._clock() + min(reset, self._longest_wait_s))

    def _pause_s(self, tokens: int) -> float:
        """How long a call has to wait, at least; 0 where it may start."""
        now = self._clock()
        passed, self._at = now - self._at, now
        longest = 0.0
        for place, (rate, full, wanted) in enumerate(zip(self._rates, self._full, _wanted(tokens), strict=True)):
            left, until = self._stated[place]
            if left < wanted:
                longest = max(longest, until - now)
            if rate is None or full is None:
                continue
            # A call that is larger than a burst starts when the burst is full.
            room = max(full, 1.0)
            self._left[place] = min(room, self._left[place] + passed * rate / 60.0)
            longest = max(longest, (min(wanted, room) - self._left[place]) * 60.0 / rate)
        if self._in_flight >= self.allowed:
            longest = max(longest, 0.05)
        return longest


def _wanted(tokens: int) -> tuple[float, float]:
    """What a call takes of each limit."""
    return 1.0, float(tokens)


def seconds_of(reset: str) -> float | None:
    """Seconds of a header such as "1s", "6m0s" or "20ms", or of a plain number; None for anything else.

    >>> seconds_of("1m30s"), seconds_of("250ms"), seconds_of("7"), seconds_of("soon")
    (90.0, 0.25, 7.0, None)
    """
    parts = _RESET.findall(reset)
    if parts and "".join(number + unit for number, unit in parts) == reset:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        return max(0.0, float(reset))
    except ValueError:
        return None
