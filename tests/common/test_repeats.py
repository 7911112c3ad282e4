"""Messages that are alike and follow one another are shown once, and none of another kind is lost."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from undersong_common import logs
from undersong_common.logs import Repeats


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_messages_in_a_row_that_differ_in_a_number_are_counted_until_another_comes() -> None:
    now = [0.0]
    repeats = Repeats(quiet_s=60.0, clock=lambda: now[0])
    shown = [line for n in range(5) for line in repeats.lines(f"votes/1: attempt {n} is void")]
    shown += repeats.lines("beta: disconnected")
    shown += repeats.lines("beta: connected")
    shown += repeats.lines("beta: disconnected")
    now[0] = 61.0
    shown += repeats.lines("beta: disconnected")
    assert shown == [
        "votes/1: attempt 0 is void",
        "(4 more like it)",
        "beta: disconnected",
        "beta: connected",
        "beta: disconnected",
        "beta: disconnected",
    ]


def test_names_dates_and_addresses_are_no_mere_numbers() -> None:
    repeats = Repeats()
    lines = [
        "site-1 has approved",
        "site-2 has approved",
        "refused 10.0.0.7: no certificate",
        "refused 10.0.0.8: no certificate",
        "run 'spring 1' failed",
        "run 'spring 2' failed",
        "votes/1 failed",
        "votes/2 failed",
        "until 2026-01-02",
        "until 2026-01-03",
    ]
    assert [line for each in lines for line in repeats.lines(each)] == lines


def logged(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, as_json: bool) -> list[str]:
    monkeypatch.setattr(sys, "stderr", stream)
    root, own = logging.getLogger(), logging.getLogger("undersong_repeats")
    before, level = root.handlers[:], root.level
    try:
        logs.to_stderr(("undersong_repeats",), as_json=as_json, debug=False)
        for seconds in (0.5, 1.0, 2.0):
            own.warning("cannot connect: %s; next try in %.1f s", "refused", seconds)
        own.warning("cannot connect: %s; next try in %.1f s", "no route", 4.0)
        for done in (50, 100):
            own.info("embedded %d of %d records", done, 100)
        for attempt in (1, 2):
            own.info("run %s: %s", "a", f"attempt {attempt}", extra={"alike": ("a", "attempt")})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    return stream.getvalue().splitlines()


def test_a_log_on_a_terminal_shows_once_what_a_file_holds_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = logged(monkeypatch, Terminal(), as_json=False)
    assert [line.partition(" WARNING ")[2] or line.partition(" INFO ")[2] for line in watched] == [
        "cannot connect: refused; next try in 0.5 s",
        "(2 more like it)",
        "cannot connect: no route; next try in 4.0 s",
        "embedded 50 of 100 records",
        "embedded 100 of 100 records",
        "run a: attempt 1",
    ]
    assert len(logged(monkeypatch, io.StringIO(), as_json=False)) == 8
    assert len(logged(monkeypatch, Terminal(), as_json=True)) == 8
