"""Progress on the terminal: one bar per phase with the time left; plain lines in a pipe or a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from undersong_common.logs import Repeats
from undersong_server.progress import Progress, Silent

LINE_S = 10.0  # between two lines of one phase


def display(quiet: bool) -> AbstractContextManager[Progress]:
    """Returns progress on standard error, so that standard output stays clean; silent progress if ``quiet``."""
    if quiet:
        return nullcontext(Silent())
    console = Console(stderr=True)
    return Display(console) if console.is_terminal else Lines()


class Lines:
    """A :class:`undersong_server.progress.Progress` in a pipe or a log: a line per phase, and one every 10 seconds."""

    def __init__(self, every_s: float = LINE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._phase = ""
        self._said = 0.0
        self._began = (0.0, 0)  # start of the phase, and units done then
        self._lock = threading.Lock()
        self._repeats = Repeats(clock=clock)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            now = self._clock()
            if phase != self._phase:
                self._began = (now, done)
            elif now - self._said < self._every_s:
                return
            self._phase, self._said = phase, now
            print(f"{phase} {done}/{total}{self._left(now, done, total)}", file=sys.stderr, flush=True)

    def _left(self, now: float, done: int, total: int) -> str:
        """Estimates the time left at the present pace; "" for under a minute."""
        began, before = self._began
        if done <= before:
            return ""
        minutes = (now - began) / (done - before) * (total - done) / 60
        return f", about {minutes:.0f} min left" if minutes >= 1 else ""

    def await_people(self, parties: Sequence[str], done: int, total: int) -> None:
        self.update(f"approval of {', '.join(parties)}", done, total)

    def say(self, message: str) -> None:
        for line in self._repeats.shown(message):
            print(line, file=sys.stderr, flush=True)


class Display:
    """A :class:`undersong_server.progress.Progress` on a rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()  # generators write from threads of their own, and each reports its progress
        self._repeats = Repeats()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            if phase not in self._tasks:
                for finished in self._tasks.values():
                    self._bars.remove_task(finished)
                self._tasks = {phase: self._bars.add_task(phase, total=total)}
            self._bars.update(self._tasks[phase], completed=done, total=total)

    def await_people(self, parties: Sequence[str], done: int, total: int) -> None:
        self.update(f"approval of {', '.join(parties)}", done, total)

    def say(self, message: str) -> None:
        for line in self._repeats.shown(message):
            self._console.print(line, highlight=False, markup=False)
