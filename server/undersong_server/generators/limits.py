"""Limits of an endpoint: budgets of tokens and dollars, rates per minute, and fewer calls at once after a 429."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping

from undersong_server.generators.interface import BudgetExhausted

_LIMITS = ("requests", "tokens")  # in the order of every tuple and list of limits a minute
_BURST_S = 6.0  # of a limit a minute that may be used at once
_RESET = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Amount = tuple[float, float]
"""Tokens and US dollars."""


class CallBudget:
    """Tokens and dollars that one generator may spend over one run, shared by its threads.

    A call reserves its worst case before it is made, and settles what it took.
    """

    def __init__(self, name: str, tokens: int | None, price_usd: float | None) -> None:
        """None means unlimited. ``name`` is the generator's, for messages."""
        self._name = name
        self._limits = (math.inf if tokens is None else tokens, math.inf if price_usd is None else price_usd)
        self._spent: Amount = (0.0, 0.0)
        self._reserved: Amount = (0.0, 0.0)
        self._calls = 0
        self._changed = threading.Condition()

    def reserve(self, tokens: int, price_usd: float) -> None:
        """Reserves the worst case of one call; waits if it would fit once calls in flight have settled.

        Raises:
            BudgetExhausted: the call could exceed a limit even if the calls in flight were free.
        """
        wanted = (tokens, price_usd)
        with self._changed:
            while self._exceeds(_sum(self._spent, self._reserved, wanted)):
                if not self._calls or self._exceeds(_sum(self._spent, wanted)):
                    raise self._exhausted(tokens, price_usd)
                self._changed.wait()
            self._reserved = _sum(self._reserved, wanted)
            self._calls += 1

    def settle(self, reserved: Amount, took: Amount) -> None:
        """Gives a reservation back and records what the call took; (0, 0.0) if it was not billed."""
        with self._changed:
            self._calls -= 1
            # Exactly zero when no call is in flight: rounding of dollars must not accumulate.
            self._reserved = _sum(self._reserved, (-reserved[0], -reserved[1])) if self._calls else (0.0, 0.0)
            self._spent = _sum(self._spent, took)
            self._changed.notify_all()

    def charge(self, tokens: int, price_usd: float) -> None:
        """Records what an earlier process spent."""
        with self._changed:
            self._spent = _sum(self._spent, (tokens, price_usd))

    def _exceeds(self, amount: Amount) -> bool:
        return amount[0] > self._limits[0] or amount[1] > self._limits[1]

    def _exhausted(self, tokens: int, price_usd: float) -> BudgetExhausted:
        stated = zip(("token_budget", "price_budget_usd"), self._limits, strict=True)
        limits = " or ".join(f"{name} {limit:.10g}" for name, limit in stated if limit < math.inf)
        return BudgetExhausted(
            f"generator {self._name}: the next call (at most {tokens} tokens and ${price_usd:.4f}) could exceed"
            f" {limits}; spent so far: {self._spent[0]:.0f} tokens and ${self._spent[1]:.4f}",
            "raise the budget and run the same command again (what was answered is kept), or ask for fewer samples",
            code="budget-exhausted",
        )


def _sum(*amounts: Amount) -> Amount:
    return sum(tokens for tokens, _ in amounts), sum(price for _, price in amounts)


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
        """None means unlimited. ``longest_wait_s`` bounds the pauses that an endpoint's headers ask for."""
        self._most = concurrency
        self._allowed = float(concurrency)
        self._in_flight = 0
        self._rates = (requests_per_minute, tokens_per_minute)
        self._rooms = [max((rate or 0.0) * _BURST_S / 60.0, 1.0) for rate in self._rates]
        self._left = list(self._rooms)
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._at = clock()
        self._stated = [(math.inf, 0.0)] * len(_LIMITS)  # what answers say is left of each limit, and until when
        self._changed = threading.Condition()
        self.counts = {"waited": 0, "slowed_down": 0}

    @property
    def allowed(self) -> int:
        """Number of calls that may be in flight now."""
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
            for limit, wanted in enumerate((1.0, float(tokens))):
                self._left[limit] -= wanted
                left, until = self._stated[limit]
                self._stated[limit] = (left - wanted, until)

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
        for limit, what in enumerate(_LIMITS):
            left = headers.get(f"x-ratelimit-remaining-{what}", "")
            reset = seconds_of(headers.get(f"x-ratelimit-reset-{what}", ""))
            if left.isdecimal() and reset is not None:
                with self._changed:
                    self._stated[limit] = (float(left), self._clock() + min(reset, self._longest_wait_s))

    def _pause_s(self, tokens: int) -> float:
        """Returns the seconds that a call has to wait at least; 0 if it may start."""
        now = self._clock()
        passed, self._at = now - self._at, now
        longest = 0.05 if self._in_flight >= self.allowed else 0.0
        for limit, wanted in enumerate((1.0, float(tokens))):
            left, until = self._stated[limit]
            if left < wanted:
                longest = max(longest, until - now)
            rate, room = self._rates[limit], self._rooms[limit]
            if rate is not None:
                self._left[limit] = min(room, self._left[limit] + passed * rate / 60.0)
                # A call that is larger than a burst starts when the burst is full.
                longest = max(longest, (min(wanted, room) - self._left[limit]) * 60.0 / rate)
        return longest


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
