"""Screen of ``undersong run watch``: a line that renews itself on a terminal, one line per event in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from undersong_common.logs import Repeats, without_numbers
from undersong_common.printable import printable, printable_lines
from undersong_common.rows import screen
from undersong_server.operations.runs import STAMP
from undersong_server.runs.folder import FINAL

if TYPE_CHECKING:
    from rich.live import Live

    from undersong_server.operations.runs import RunEvent

EXPLAINED = (
    "A run writes texts, asks the parties for private sums, and writes again: that is a round. A private sum takes up"
    " to five exchanges with every party: keys, pieces of keys, masked answers, who is in, opening."
)


class WatchScreen:
    """Shows events as they come.

    Args:
        silent: shows nothing.
    """

    def __init__(self, run: str, *, silent: bool) -> None:
        self._run = run
        self._silent = silent
        self._live: Live | None = None
        self._kind: tuple[object, ...] | None = None
        self._repeats = Repeats()

    def __enter__(self) -> WatchScreen:
        if self._silent:
            return self
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(console=screen(), auto_refresh=False, transient=True)
            self._live.__enter__()
        self._print(EXPLAINED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def show(self, event: RunEvent) -> None:
        if self._silent:
            return
        for line in event.lines:
            for shown in self._repeats.shown(line, without_numbers(line[STAMP:])):
                self._print(printable_lines(shown))
        words = event_words(event)
        if event.status.error is not None:
            return  # the command prints the error when it ends
        if self._live is not None:
            from rich.text import Text

            ended = event.status.state in FINAL
            self._live.update(Text("" if ended else words), refresh=True)
            if ended:
                self._print(words)
        elif event.kind != self._kind:
            self._kind = event.kind
            self._print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}")

    def _print(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
        else:
            self._live.console.print(line, highlight=False, markup=False)


def event_words(event: RunEvent) -> str:
    """Status of the run in one line; while it waits for people, with the time and telephone contacts."""
    status = event.status
    words = printable(status.words, 4096)
    if status.waiting is not None and status.waiting.whom == "people":
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.waiting.since))
        words += f" since {since}"
        named = dict(event.contacts)
        called = [
            f"{party.party}: {printable(named.get(party.party, ''), 200) or 'no telephone number noted'}"
            + ("" if party.connected else " (its machine is away, too)")
            for party in status.waiting.parties
        ]
        words += f"; to telephone: {'; '.join(called)}"
    words += "".join(f"; {name}: {because}" for name, because in event.away_because)
    if not event.served and status.state not in ("finished", "stopped", "failed"):
        words += "; NOBODY IS SERVING: nothing goes on until `undersong coordinator serve` runs"
    return words
