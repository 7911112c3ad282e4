"""The terminal's display is driven by every generator's own thread at once."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from undersong_server.cli.display import Display

THREADS = 8
UPDATES = 100


def test_eight_threads_drive_one_display() -> None:
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

    with Display(Console(file=io.StringIO(), force_terminal=True, width=80)) as display:
        threads = [threading.Thread(target=drive, args=(number, display)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
