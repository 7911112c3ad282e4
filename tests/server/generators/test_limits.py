"""Limits of an endpoint, by a clock that the test turns."""

from __future__ import annotations

import threading

import pytest

from undersong_server.generators.endpoints import Pace, seconds_of


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def may_start(pace: Pace, tokens: int = 10) -> bool:
    """Whether a call may start now; it ends at once."""
    if pace._pause_s(tokens) > 0:
        return False
    pace.start(tokens, threading.Event())
    pace.end(throttled=False, tokens=tokens, took=tokens)
    return True


@pytest.mark.parametrize(("limits", "tokens"), [({"requests_per_minute": 60}, 10), ({"tokens_per_minute": 600}, 10)])
def test_calls_in_a_minute_stay_within_the_limit_plus_one_burst(limits: dict[str, float], tokens: int) -> None:
    clock = Clock()
    pace = Pace(concurrency=8, clock=clock, **limits)
    made = 0
    for _ in range(6000):
        made += may_start(pace, tokens)
        clock.now += 0.01
    assert 60 <= made <= 60 + 6 + 1


def test_call_larger_than_a_burst_starts_when_the_burst_is_full() -> None:
    clock = Clock()
    pace = Pace(concurrency=1, tokens_per_minute=600, clock=clock)
    assert may_start(pace, 5000)
    assert not may_start(pace, 10)
    clock.now += 600
    assert may_start(pace, 10)


def test_reserved_tokens_that_were_not_used_are_returned() -> None:
    pace = Pace(concurrency=1, tokens_per_minute=6000, clock=Clock())
    for _ in range(50):
        pace.start(500, threading.Event())
        pace.end(throttled=False, tokens=500, took=1)
    assert may_start(pace, 500)


def test_no_call_starts_while_the_endpoint_reports_nothing_remaining() -> None:
    clock = Clock()
    pace = Pace(concurrency=1, clock=clock)
    pace.note_limits({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m10s"})
    assert not may_start(pace)
    clock.now += 61  # bounded by the longest wait
    assert may_start(pace)
    pace.note_limits({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1m10s"})
    pace.note_limits({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "soon"})
    assert may_start(pace)


def test_calls_stay_within_the_remaining_quota_that_an_endpoint_reports() -> None:
    clock = Clock()
    pace = Pace(concurrency=8, clock=clock)
    pace.note_limits({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "20s"})
    assert [may_start(pace) for _ in range(5)] == [True, True, True, False, False]
    pace.note_limits(
        {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "20s"}
    )  # the newest word counts
    assert [may_start(pace) for _ in range(2)] == [True, False]
    clock.now += 21
    assert may_start(pace)
    pace.note_limits({"x-ratelimit-remaining-tokens": "250", "x-ratelimit-reset-tokens": "30s"})
    assert [may_start(pace, tokens) for tokens in (200, 100, 50, 10)] == [True, False, True, False]
    clock.now += 31
    assert may_start(pace, 10_000)


def test_concurrency_falls_after_429s_but_never_below_one() -> None:
    pace = Pace(concurrency=8, clock=Clock())
    for _ in range(60):
        assert may_start(pace)
    allowed = []
    for _ in range(6):
        pace.start(1, threading.Event())
        pace.end(throttled=True, tokens=1, took=0)
        allowed.append(pace.allowed)
    assert allowed == [4, 2, 1, 1, 1, 1]
    for _ in range(60):
        assert may_start(pace)
    assert pace.allowed == 8


def test_no_call_starts_during_an_announced_pause() -> None:
    clock = Clock()
    pace = Pace(concurrency=8, clock=clock)
    pace.hold(20.0)
    assert not may_start(pace)
    clock.now = 20.0
    assert may_start(pace)


def test_stopped_run_does_not_wait_for_rate_limits() -> None:
    pace = Pace(concurrency=1, requests_per_minute=0.001)
    pace.start(1, threading.Event())
    stop = threading.Event()
    stop.set()
    pace.start(1, stop)


def test_malformed_rate_limit_headers_are_ignored() -> None:
    assert [seconds_of(text) for text in ("", "soon", "-", "1 s")] == [None] * 4
    assert seconds_of("2h") == 7200
