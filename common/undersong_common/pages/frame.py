"""Every request passes this first: the Host header, the session's address, the size of what is sent, all headers."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from fastapi import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from undersong_common.printable import printable

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

LARGEST_BODY_BYTES, LARGEST_OPEN_BODY_BYTES = 8 * 2**20, 2**16  # under a session's address; elsewhere
TOO_LARGE = "What was sent is too large."
REPORTS = "/csp-report"  # where browsers report what the policy stopped
INSIDE = re.compile(r"/s/([A-Za-z0-9_-]{43})(/.*)", re.DOTALL)  # the half of a session's secret that is no cookie
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'; report-uri /csp-report"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # "no-referrer" would send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Frame:
    """Wraps an application. A page of this machine must not be reached under another name: a name that an attacker's
    server gives out may lead here (DNS rebinding).

    A path under a session's address reaches the application without that prefix; ``scope["tab"]`` holds its secret.

    Args:
        hosts: values of the Host header that are answered, each with its port.
        tls: tells browsers to come back over TLS only.
    """

    def __init__(self, application: Application, hosts: Sequence[str], *, tls: bool) -> None:
        self._application = application
        self._hosts = frozenset(host.lower() for host in hosts)
        self._headers = dict(HEADERS)
        if tls:
            self._headers["strict-transport-security"] = "max-age=31536000"

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if len(asked) != 1 or asked[0].lower() not in self._hosts:
            log.warning("refused a request for the host %s", printable(", ".join(asked), 100))
            await _refuse(send, 421, "This page is not served under that name.\n", self._headers)
            return
        if inside := INSIDE.fullmatch(scope["path"]):
            scope = {**scope, "tab": inside[1], "path": inside[2]}
        # Whatever reads a body before it knows who sent it is open, under an invented session's address too.
        most = LARGEST_BODY_BYTES if inside and inside[2] != REPORTS else LARGEST_OPEN_BODY_BYTES
        if not length.isdigit() or int(length) > most:
            await _refuse(send, 413, f"{TOO_LARGE}\n", self._headers)
            return
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, TOO_LARGE)
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in own)]
            await send(message)

        await self._application(scope, bounded, with_headers)


async def _refuse(send: Callable[[Message], Awaitable[None]], status: int, text: str, headers: dict[str, str]) -> None:
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*lines, (b"content-type", b"text/plain; charset=utf-8")]})
    await send({"type": "http.response.body", "body": text.encode()})


PATIENCE_S = 30.0  # until a request has wholly arrived, or what was written was read
MOST_CONNECTIONS = 300  # beyond them the one that has waited longest for its browser is closed
MOST_AT_WORK = 400  # beyond them requests are answered with 503


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped here
    """One connection of a browser.

    Whoever opens many and neither asks nor reads loses their own: time counts from the beginning, whatever trickles in.
    """

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits()
        if (excess := len(self.connections) - MOST_CONNECTIONS) > 0:
            waiting = sorted((each for each in self.connections if each.waiting), key=lambda each: each.since)
            for each in waiting[:excess]:
                each.transport.abort()

    def on_response_complete(self) -> None:
        self._waits()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """True while it is the browser's turn: to ask, to send the rest, or to read."""
        return self.flow.write_paused or self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _waits(self) -> None:
        self._stop_waiting()
        self.since = self.loop.time()
        self._ends = self.loop.call_later(PATIENCE_S, self._end_if_waiting)

    def _stop_waiting(self) -> None:
        if self._ends is not None:
            self._ends.cancel()

    def _end_if_waiting(self) -> None:
        if self.waiting:
            self.transport.abort()
