"""The terminal's display is driven by every generator's own thread at once."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from undersong_server.cli.display import Display, Lines, bars

THREADS = 8
UPDATES = 25


@pytest.mark.slow
def test_eight_threads_update_one_display_without_an_error() -> None:
    errors: list[Exception] = []
    together = threading.Barrier(THREADS)

    def drive(number: int, display: Display) -> None:
        try:
            for done in range(UPDATES):
                together.wait()  # every update meets the others': each thread wants another bar
                display.update(f"generator {number}", done, UPDATES)
        except (KeyError, threading.BrokenBarrierError) as error:
            errors.append(error)
            together.abort()

    with bars(Console(file=io.StringIO(), force_terminal=True, width=80)) as shown:
        display = Display(shown)
        threads = [threading.Thread(target=drive, args=(number, display)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_progress_in_a_pipe_prints_a_new_line_at_most_every_ten_seconds(capsys) -> None:
    now = [0.0]
    lines = Lines(every_s=10.0, clock=lambda: now[0])
    for done in range(100):
        lines.update("writing", done, 100)
        now[0] += 0.5
    lines.update("private sum votes/1", 0, 5)
    lines.say("a word that stays")
    lines.say("attempt 1 is void")
    lines.say("attempt 2 is void")
    now[0] += 60.0
    lines.update("private sum votes/1", 1, 5)
    assert capsys.readouterr().err.splitlines() == [
        "writing 0/100",
        "writing 20/100",
        "writing 40/100",
        "writing 60/100",
        "writing 80/100",
        "private sum votes/1 0/5",
        "a word that stays",
        "attempt 1 is void",
        "private sum votes/1 1/5, about 4 min left",
    ]
