"""A page as a browser reaches it: served by a thread of this process, on a port of its own."""

import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from undersong_common.pages.serving import Listening, configuration
from undersong_common.pages.site import Site


class ServedPage:
    """A page under way; use it as a context.

    Args:
        build: makes the site for the hosts and the port that it is reached by.
        listening: where it listens, and which names it answers; None for a free port of this machine.
    """

    def __init__(self, build: Callable[[tuple[str, ...], int], Site], listening: Listening | None = None) -> None:
        self._listening = listening or Listening("127.0.0.1", 0)
        self._listener = self._listening.open()
        self.port = self._listener.getsockname()[1]
        self.address = self._listening.address(self.port)
        self.site = build(self._listening.hosts(self.port), self.port)
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def link(self, person: str = "ada", role: str = "administrator") -> str:
        """A one-time link for a person."""
        self.site.accounts.set_role(person, role)
        return f"{self.address}/enter#{self.site.accounts.link(person)}"

    def start(self) -> None:
        self._server = uvicorn.Server(configuration(self.site, self._listening))
        listener = self._listener.dup()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        end = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < end
            time.sleep(0.01)

    def stop(self) -> None:
        """Cuts every connection; :meth:`start` serves the same port again."""
        if self._thread is not None:
            self.site.ending.set()
            self._server.should_exit = True
            self._thread.join(10)
            self._thread = None
            self.site.ending.clear()

    def __enter__(self) -> "ServedPage":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._listener.close()
        self.site.close()
