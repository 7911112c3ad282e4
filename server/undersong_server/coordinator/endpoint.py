"""``/metrics`` and ``/healthz`` over plain HTTP, on an address of the operator's own network."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from undersong_common.errors import TransportError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

REQUEST_S = 10  # how long a request may take to arrive

Health = Callable[[], dict[str, Any]]


class Endpoint:
    """Serves in threads of its own from the moment it is made.

    Args:
        registry: the figures behind ``/metrics``.
        health: what ``/healthz`` answers, with "status" either "ok" (code 200) or anything else (503).

    Raises TransportError where the address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        server = type("_Family", (_Server,), {"address_family": _family(host)})
        try:
            self._server: WSGIServer = server((host, port), _Handler)
        except OSError as error:
            raise TransportError(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}",
                "change metrics in coordinator.json, or stop what listens there",
            ) from None
        self._server.set_app(_application(registry, health))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _application(registry: CollectorRegistry, health: Health) -> Callable[..., Iterable[bytes]]:
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)

    def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start)
        if path == "/healthz":
            state = health()
            status = HTTPStatus.OK if state.get("status") == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
            return _reply(start, status, "application/json", json.dumps(state).encode())
        return _reply(start, HTTPStatus.NOT_FOUND, "text/plain", b"/metrics or /healthz\n")

    return serve


def _reply(start: StartResponse, status: HTTPStatus, kind: str, body: bytes) -> Iterable[bytes]:
    start(f"{status.value} {status.phrase}", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: a health check every few seconds is no event."""
