"""Limits, attempts and cached answers of an endpoint, and answers of several threads as they come.

Limits are budgets of tokens and dollars, rates per minute, and fewer calls at once after a 429.

The cache keeps answers across runs in one file, for trials whose rerun is not to be paid again. Its key is everything
that decides an answer (address, headers, body) and the number of requests alike that came before in the run, so that
two orders never get one entry. An answer is kept once it has become a text: a useless one would be useless for ever.
"""

import hashlib
import json
import math
import queue
import re
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from undersong_common.errors import ConfigurationError, GenerationError, MachineFault
from undersong_common.program.machine import fault_of
from undersong_server.database.journal import Journal
from undersong_server.generators.interface import (
    BudgetExhausted,
    Completion,
    GenerationRequest,
    Generator,
    Loss,
    PaidGenerator,
)

T = TypeVar("T")
_LIMITS = ("requests", "tokens")  # the order of every tuple and list of limits a minute
_FIRST_AT_ONCE = 4  # calls that may be in flight before any has succeeded
_BURST_S = 6.0  # seconds of a limit a minute that may be used at one time
_RESET = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNSETTLED = "its answer had not come when the run ended"


class AttemptLog:
    """The attempts of one generator that have no answer: in flight, or lost. Each counts at its highest possible cost.

    An attempt is in the journal before it is sent. The author takes it out in the transaction that keeps its answer,
    and :meth:`end` if it was not billed. So one that is still there when a process starts was lost, whatever killed
    the last one.
    """

    def __init__(self, journal: Journal | None, name: str) -> None:
        """Reads what earlier processes lost; without a journal, the attempts of this process alone are counted."""
        self._journal = journal
        self._prefix = f"attempt/{name}/"
        self._lock = threading.Lock()
        self._lost: dict[str, Loss] = {}
        self._worst: dict[str, Loss] = {}  # attempts in flight at their highest price
        for attempt_key, entry in (journal.items(self._prefix) if journal else {}).items():
            tokens, price_usd, loss_words = json.loads(entry)
            self._lost[attempt_key] = Loss(1, tokens, price_usd, loss_words or _UNSETTLED)

    @property
    def lost(self) -> Loss:
        """What was lost in all: the number, tokens and price of attempts that may be billed and brought no answer."""
        with self._lock:
            return sum(self._lost.values(), Loss())

    def begin(self, tokens: int, price_usd: float) -> str:
        """Notes an attempt before it is sent; returns its key."""
        attempt_key = f"{self._prefix}{uuid.uuid4().hex}"
        self._note_worst({attempt_key: Loss(1, tokens, price_usd)})
        return attempt_key

    def begin_batch(self, stem: str, worst: Mapping[str, tuple[int, float]]) -> list[str]:
        """Notes the requests of a batch, (tokens, dollars) by identifier, before it is sent; returns their keys."""
        worst_losses = {self.batch_key(stem, request_name): Loss(1, *bounds) for request_name, bounds in worst.items()}
        self._note_worst(worst_losses)
        return list(worst_losses)

    def batch_key(self, stem: str, identifier: str) -> str:
        """Returns the key of a request in one batch; a request that is sent in two batches has two keys."""
        return f"{self._prefix}batch/{stem}/{identifier}"

    def end(self, key: str, *, lost: bool, words: str = "") -> None:
        """Notes that an attempt ended without an answer, whether it may have been billed, and why."""
        with self._lock:
            worst_loss = self._worst.pop(key, None)
            if worst_loss is None:
                return
            losses = {key: replace(worst_loss, words=words)} if lost else {}
            self._lost |= losses
        self._replace_losses([key], losses)

    def take_over(self, key: str) -> Loss:
        """Returns the cost of an attempt that an earlier process lost, and counts the attempt as in flight again."""
        with self._lock:
            loss = self._lost.pop(key, None)
            if loss is not None:
                self._worst[key] = loss
        return loss or Loss()

    def settle(self, key: str) -> None:
        """Forgets an attempt that was answered. The class Author removes it from the journal."""
        with self._lock:
            self._worst.pop(key, None)

    def give_up(self) -> Loss:
        """Counts the calls in flight as lost, and returns the largest loss that they may have caused together."""
        with self._lock:
            losses = {attempt_key: replace(loss, words=_UNSETTLED) for attempt_key, loss in self._worst.items()}
            self._worst = {}
            self._lost |= losses
        return sum(losses.values(), Loss())

    def _note_worst(self, worst: Mapping[str, Loss]) -> None:
        with self._lock:
            self._worst |= worst
        self._replace_losses(worst, worst)

    def _replace_losses(self, dropped: Iterable[str], worst: Mapping[str, Loss]) -> None:
        if self._journal is not None:
            loss_entries = [
                (attempt_key, json.dumps([loss.tokens, loss.price_usd, loss.words]).encode())
                for attempt_key, loss in worst.items()
            ]
            self._journal.exchange(dropped, loss_entries)


UNREPORTED = "usage not reported"  # note on an answer that counts at its highest possible cost


class CallBudget:
    """Tokens and dollars that one generator may spend over one run, shared by its threads.

    A call reserves its worst case before it is made, and settles what it took.
    """

    def __init__(self, name: str, tokens: int | None, price_usd: float | None) -> None:
        """Sets the limits; None is unlimited. ``name`` is the generator's, for messages."""
        self._name = name
        self._limits = np.array([tokens, price_usd], dtype=np.float64)  # NaN without a limit, which nothing exceeds
        self._spent = np.zeros(2)
        self._reserved = np.zeros(2)
        self._calls_in_flight = 0
        self._changed = threading.Condition()
        self.last_loss = ""  # words of the attempt that was lost last
        self.unreported = 0  # answers whose endpoint states no usage that can be true

    def reserve(self, tokens: int, price_usd: float) -> None:
        """Reserves the worst case of one call; waits if it would fit once calls in flight have settled.

        Raises:
            BudgetExhausted: the call could exceed a limit even if the calls in flight were free.
        """
        call_amounts = (tokens, price_usd)
        with self._changed:
            while (self._spent + self._reserved + call_amounts > self._limits).any():
                if not self._calls_in_flight or (self._spent + call_amounts > self._limits).any():
                    raise self._budget_error(tokens, price_usd)
                self._changed.wait()
            self._reserved += call_amounts
            self._calls_in_flight += 1

    def settle(self, reserved: tuple[int, float], took: tuple[int, float]) -> None:
        """Ends a reservation and records the tokens and dollars that the call took; (0, 0.0) if it was not billed."""
        with self._changed:
            self._calls_in_flight -= 1
            # Exactly zero when no call is in flight: rounding of dollars must not accumulate.
            if self._calls_in_flight:
                self._reserved = self._reserved - reserved
            else:
                self._reserved = np.zeros(2)
            self._spent += took
            self._changed.notify_all()

    def charge(self, tokens: int, price_usd: float) -> None:
        """Records tokens and dollars that an earlier process spent of the same budget."""
        with self._changed:
            self._spent += (tokens, price_usd)

    def _budget_error(self, tokens: int, price_usd: float) -> BudgetExhausted:
        stated_limits = zip(("token_budget", "price_budget_usd"), self._limits, strict=True)
        limits = " or ".join(
            f"{limit_name} {limit:.10g}" for limit_name, limit in stated_limits if math.isfinite(limit)
        )
        return BudgetExhausted(
            f"generator {self._name}: the next call (at most {tokens} tokens and ${price_usd:.4f}) could exceed"
            f" {limits}; spent so far: {self._spent[0]:.0f} tokens and ${self._spent[1]:.4f}"
            + (f"; an answer was lost, and counts at its worst case: {self.last_loss}" if self.last_loss else "")
            + (f"; {UNREPORTED}: {self.unreported}, at the worst case" if self.unreported else ""),
            "raise the budget and run the same command again (what was answered is kept), or ask for fewer samples",
            code="budget-exhausted",
        )


class Pace:
    """Decides when a call of one generator may start, by rates and calls in flight; the generator's threads share it.

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
        """Sets the limits; None is unlimited. ``longest_wait_s`` bounds the pauses that the endpoint asks for."""
        self._most_calls = concurrency
        # The first calls show whether an endpoint has a low limit; more at once would all meet it.
        self._allowed_calls = float(min(concurrency, _FIRST_AT_ONCE))
        self._calls_in_flight = 0
        self._rates = (requests_per_minute, tokens_per_minute)
        self._rooms = [max((rate or 0.0) * _BURST_S / 60.0, 1.0) for rate in self._rates]
        self._left = list(self._rooms)
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._refilled_at_s = clock()
        self._stated = [(math.inf, 0.0)] * len(_LIMITS)  # the rest of each limit by the answers' headers, and its end
        self._held_until_s = -math.inf
        self._changed = threading.Condition()
        self.counts = {"waited": 0, "slowed_down": 0}

    @property
    def allowed(self) -> int:
        """Number of calls that may be in flight now."""
        return max(1, int(self._allowed_calls))

    def start(self, tokens: int, stop: threading.Event) -> None:
        """Waits until a call of ``tokens`` may start, or ``stop`` is set. After every call :meth:`end` is called."""
        with self._changed:
            has_waited = False
            while not stop.is_set() and (pause_s := self._pause_s(tokens)) > 0:
                has_waited = True
                self._changed.wait(min(pause_s, 0.5))
            self.counts["waited"] += has_waited
            self._calls_in_flight += 1
            for limit_number, amount in enumerate((1.0, float(tokens))):
                self._left[limit_number] -= amount
                remaining_amount, reset_at_s = self._stated[limit_number]
                self._stated[limit_number] = (remaining_amount - amount, reset_at_s)

    def end(self, *, throttled: bool, tokens: int, took: int) -> None:
        """Notes that a call ended: whether the endpoint answered 429, and how many of the call's tokens it took."""
        with self._changed:
            self._calls_in_flight -= 1
            self._left[1] += max(0, tokens - took)
            if throttled:
                self._allowed_calls = max(1.0, self._allowed_calls / 2)
                self.counts["slowed_down"] += 1
            else:  # after as many successful calls as are allowed at once, one more is allowed
                self._allowed_calls = min(
                    float(self._most_calls), self._allowed_calls + 1.0 / max(1.0, self._allowed_calls)
                )
            self._changed.notify_all()

    def hold(self, pause_s: float) -> None:
        """Holds all calls back until a pause that the endpoint has announced has passed."""
        with self._changed:
            self._held_until_s = max(self._held_until_s, self._clock() + pause_s)

    def note_limits(self, headers: Mapping[str, str]) -> None:
        """Notes how much of the endpoint's limits is left and when they are reset, by the headers of an answer."""
        for limit_number, limit_name in enumerate(_LIMITS):
            remaining_words = headers.get(f"x-ratelimit-remaining-{limit_name}", "")
            reset_s = seconds_of(headers.get(f"x-ratelimit-reset-{limit_name}", ""))
            if remaining_words.isdecimal() and reset_s is not None:
                with self._changed:
                    self._stated[limit_number] = (
                        float(remaining_words),
                        self._clock() + min(reset_s, self._longest_wait_s),
                    )

    def _pause_s(self, tokens: int) -> float:
        """Returns the seconds that a call has to wait at least; 0 if it may start."""
        now_s = self._clock()
        passed_s = now_s - self._refilled_at_s
        self._refilled_at_s = now_s
        longest_s = max(0.0, self._held_until_s - now_s)
        if self._calls_in_flight >= self.allowed:
            longest_s = max(longest_s, 0.05)
        for limit_number, amount in enumerate((1.0, float(tokens))):
            remaining_amount, reset_at_s = self._stated[limit_number]
            if remaining_amount < amount:
                longest_s = max(longest_s, reset_at_s - now_s)
            rate_per_minute = self._rates[limit_number]
            bucket_size = self._rooms[limit_number]
            if rate_per_minute is not None:
                self._left[limit_number] = min(
                    bucket_size, self._left[limit_number] + passed_s * rate_per_minute / 60.0
                )
                # A call that is larger than a burst starts when the burst is full.
                longest_s = max(
                    longest_s, (min(amount, bucket_size) - self._left[limit_number]) * 60.0 / rate_per_minute
                )
        return longest_s


def seconds_of(reset: str) -> float | None:
    """Parses a header such as "1s", "6m0s" or "20ms", or a plain number, to seconds; None for any other text.

    >>> seconds_of("1m30s"), seconds_of("250ms"), seconds_of("7"), seconds_of("soon")
    (90.0, 0.25, 7.0, None)
    """
    reset_parts = _RESET.findall(reset)
    if reset_parts and "".join(amount_words + unit for amount_words, unit in reset_parts) == reset:
        return sum(float(amount_words) * _UNITS[unit] for amount_words, unit in reset_parts)
    try:
        return max(0.0, float(reset))
    except ValueError:
        return None


def batch_prefix(name: str) -> str:
    """Returns the prefix of the journal's keys that hold a generator's submitted batches."""
    return f"batch/{name}/"


NOTE = "from the cache"


class CachedGenerator:
    """A generator that answers from a file of earlier answers first, and asks its endpoint only for the others."""

    def __init__(self, generator: Generator, cache_parts: Callable[[GenerationRequest], Any], path: Path) -> None:
        """Opens the file of earlier answers, or makes it.

        Args:
            cache_parts: returns everything that decides the answer to a request, as JSON values.

        Raises ConfigurationError if the file cannot be used.
        """
        self.name = generator.name
        self._asked = generator
        self._cache_parts = cache_parts
        self._seen: Counter[str] = Counter()
        self._hit_count = 0
        # Keys and values of answers that the author has not judged; the value is "" for one from the file.
        self._unjudged: dict[GenerationRequest, list[tuple[str, str]]] = {}
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
            self._database.execute("CREATE TABLE IF NOT EXISTS answer (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except sqlite3.Error as error:
            cache_fault = fault_of(error, path)
            if isinstance(cache_fault, MachineFault):
                raise cache_fault from None
            raise ConfigurationError(
                f"generator {self.name}: cache {path} cannot be used: {error}",
                "name a file that can be written",
                code="cache-unusable",
            ) from None

    @property
    def counts(self) -> dict[str, int]:
        return {**self._asked.counts, "cache_hits": self._hit_count}

    @property
    def lost(self) -> Loss:
        """Returns the lost attempts of the generator behind the cache."""
        if isinstance(self._asked, PaidGenerator):
            return self._asked.lost
        return Loss()

    def keep_texts(self, outcomes: Iterable[tuple[GenerationRequest, bool]]) -> None:
        """Keeps the answers to requests that became texts (True), and drops those that did not."""
        for request, is_text in outcomes:
            unjudged_answers = self._unjudged.get(request)
            if unjudged_answers:
                answer_key, answer_json = unjudged_answers.pop(0)
            else:
                answer_key, answer_json = "", ""
            if is_text and answer_json:
                self._database.execute("INSERT OR REPLACE INTO answer VALUES (?, ?)", (answer_key, answer_json))
            elif answer_key and not is_text:
                self._database.execute("DELETE FROM answer WHERE key = ?", (answer_key,))

    def observe(self, requests: Sequence[GenerationRequest], answers: Sequence[Completion | GenerationError]) -> None:
        """Counts journaled requests as asked, so that the next equal request takes another entry of the file."""
        for request in requests:
            self._request_key(request)
        self._asked.observe(requests, answers)

    def answer(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Completion | GenerationError]]:
        request_keys = [self._request_key(request) for request in requests]
        missed_indices = []
        for index, request_key in enumerate(request_keys):
            answer_row = self._database.execute("SELECT value FROM answer WHERE key = ?", (request_key,)).fetchone()
            if answer_row is None:
                missed_indices.append(index)
                continue
            self._hit_count += 1
            self._unjudged.setdefault(requests[index], []).append((request_key, ""))
            answer_entry = json.loads(answer_row[0])
            yield index, Completion(answer_entry["text"], note=NOTE, finish=answer_entry["finish"])
        for position, answer in self._asked.answer([requests[index] for index in missed_indices]):
            index = missed_indices[position]
            if isinstance(answer, Completion):
                answer_json = json.dumps({"text": answer.text, "finish": answer.finish})
                self._unjudged.setdefault(requests[index], []).append((request_keys[index], answer_json))
            yield index, answer

    def _request_key(self, request: GenerationRequest) -> str:
        cache_parts = json.dumps(self._cache_parts(request), sort_keys=True)
        request_hash = hashlib.sha256(cache_parts.encode()).hexdigest()
        self._seen[request_hash] += 1
        return f"{request_hash}/{self._seen[request_hash]}"


def merge_sources(
    sources: Mapping[str, Callable[[threading.Event], Iterator[T]]], failures: list[BaseException]
) -> Iterator[T]:
    """Yields the items of all sources as they come; each source is at most one item ahead of the reader.

    Several sources run in daemon threads of their names, so that an interrupted process does not wait for calls in
    flight; a single one runs in the reader's thread and raises its own errors. If a source fails, the error is added to
    ``failures`` and the event that every source is given is set, so that the others end after their current item.
    """
    stop_event = threading.Event()
    if len(sources) == 1:
        for source in sources.values():
            yield from source(stop_event)
        return
    # Pairs of a source's name and its next item in a list; an empty list tells that the source has ended.
    arrived_items: queue.SimpleQueue[tuple[str, list[T]]] = queue.SimpleQueue()
    semaphore_by_source = {source_name: threading.Semaphore(0) for source_name in sources}

    def work(name: str) -> None:
        try:
            for source_item in sources[name](stop_event):
                arrived_items.put((name, [source_item]))
                semaphore_by_source[name].acquire()
                if stop_event.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 - handed to the reader
            failures.append(error)
            stop_event.set()
        arrived_items.put((name, []))

    for source_name in sources:
        threading.Thread(target=work, args=(source_name,), daemon=True, name=source_name).start()
    try:
        running_count = len(sources)
        while running_count:
            source_name, items = arrived_items.get()
            yield from items
            running_count -= not items
            semaphore_by_source[source_name].release()
    finally:
        stop_event.set()
        for semaphore in semaphore_by_source.values():
            semaphore.release()
