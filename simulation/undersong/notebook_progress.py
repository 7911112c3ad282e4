"""Progress of a simulation where it was started: one line with a bar in a notebook, else the terminal's."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from undersong_server.progress import Progress

EVERY_S = 0.2  # between two drawings: a kernel's messages are not free


def shown(progress: Progress | None) -> AbstractContextManager[Progress]:
    """The caller's own, or one that suits where the program runs."""
    if progress is not None:
        return nullcontext(progress)
    if in_notebook():
        from IPython.display import HTML, display

        handle = display(HTML(""), display_id=True)
        return NotebookProgress(lambda markup: handle.update(HTML(markup)))
    from undersong_server.cli.display import display as terminal

    return terminal(False)


def in_notebook() -> bool:
    """Returns True if a notebook's kernel runs this process, and False in a terminal's IPython."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """A :class:`undersong_server.progress.Progress` as HTML that replaces itself; sentences stay above the bar.

    Args:
        show: draws HTML in place of what it drew before.
    """

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._said: list[str] = []
        self._bar = ""
        self._phase = ""
        self._drawn = float("-inf")
        self._lock = threading.Lock()  # generators write from threads of their own

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._bar = ""
            self._draw()

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            due = phase != self._phase or done >= total or self._clock() - self._drawn >= EVERY_S
            self._phase = phase
            words = f"{html.escape(phase)} {done}/{total}"
            self._bar = f'<div>{words} <progress value="{done}" max="{max(total, 1)}"></progress></div>'
            if due:
                self._draw()

    def await_people(self, parties: Sequence[str], done: int, total: int) -> None:
        self.update(f"approval of {', '.join(parties)}", done, total)

    def say(self, message: str) -> None:
        with self._lock:
            self._said.append(f"<div>{html.escape(message)}</div>")
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._show("".join([*self._said, self._bar]))
