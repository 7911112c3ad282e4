"""A coordinator's console in this process, entered by its administrator."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.doubles.plain_browser import HOST, Browser
from undersong_server.console.application import build
from undersong_server.console.run_pages import ConsoleContext


@contextlib.contextmanager
def entered_console(home: Path, tasks: Sequence[Path] = ()) -> Iterator[Browser]:
    with contextlib.closing(build(ConsoleContext(home, tuple(tasks)), hosts=(HOST,), port=8700)) as site:
        site.accounts.set_role("ada", "administrator")
        yield Browser(site).enter(site.accounts.link("ada"))
