"""Metrics of a running coordinator, and the HTTP endpoint that serves ``/metrics`` and ``/healthz``.

Names, counts and times only: no run's content ever becomes a metric. Labels are few: states of runs, reasons of
refusals, and names of parties that the registry holds, so nobody who knocks at the port can add series.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    ProcessCollector,
    Summary,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from undersong_common.errors import TransportError, UndersongError
from undersong_common.program.machine import HeldStep
from undersong_common.version import VERSION

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

HELD_UP = "held up"  # status while a fault of the machine stops a step; the process goes on by itself after it
REQUEST_S = 10  # longest time for a request to arrive

Health = Callable[[], dict[str, Any]]

# No start time per counter: process_start_time_seconds states it for all.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The figures that the serving process counts; safe between threads. ``registry`` holds them for the endpoint."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("undersong_build", "The program that serves.", registry=registry).info({"version": VERSION})
        self.connections = Gauge("undersong_connections", "Parties connected now.", registry=registry)
        self.streams = Counter("undersong_streams", "Streams that a party opened.", ["party"], registry=registry)
        self.refused = Counter("undersong_refused", "Connections and streams refused.", ["reason"], registry=registry)
        self.renewals = Counter(
            "undersong_renewals", "Certificates that a party was given over its stream.", ["party"], registry=registry
        )
        self.sent_bytes = Counter(
            "undersong_sent_bytes", "Bytes of requests sent to the parties, framing apart.", registry=registry
        )
        self.received_bytes = Counter(
            "undersong_received_bytes", "Bytes of replies received from the parties, framing apart.", registry=registry
        )
        self.exchange_seconds = Summary(
            "undersong_exchange_seconds", "Time from a request to every party until the last reply.", registry=registry
        )
        self.exchange_missing = Counter(
            "undersong_exchange_missing", "Replies that did not come in time.", ["party"], registry=registry
        )


class FolderMetrics(Collector):
    """Figures that are read from the coordinator's folder at each scrape.

    Args:
        runs: number of runs by state.
        certificates: end of each certificate by name, seconds since the epoch.
        held: the steps that are held up now.
    """

    def __init__(
        self,
        runs: Callable[[], Mapping[str, int]],
        certificates: Callable[[], Mapping[str, float]],
        held: Callable[[], Sequence[HeldStep]] = tuple,
    ) -> None:
        self._runs = runs
        self._certificates = certificates
        self._held = held

    def collect(self) -> Iterable[Metric]:
        """Returns the number of runs by state, the end of each certificate, and since when steps are held up."""
        runs_gauge = GaugeMetricFamily("undersong_runs", "Runs by state.", labels=["state"])
        for run_state, run_count in self._runs().items():
            runs_gauge.add_metric([run_state], run_count)
        expiry_gauge = GaugeMetricFamily(
            "undersong_certificate_expires_seconds",
            "When a certificate ends, seconds since the epoch.",
            labels=["name"],
        )
        with suppress(UndersongError):  # The figure of held steps below tells which file is missing.
            for party_name, expires_at in self._certificates().items():
                expiry_gauge.add_metric([party_name], expires_at)
        held_gauge = GaugeMetricFamily(
            "undersong_held_up_seconds",
            "Since when a step is held up, seconds since the epoch.",
            labels=["step", "code"],
        )
        for held_step in self._held():
            held_gauge.add_metric([held_step.step, held_step.code], held_step.since_s)
        return runs_gauge, expiry_gauge, held_gauge


class MetricsServer:
    """HTTP server of metrics and health, which runs in threads from its creation on.

    Args:
        registry: the figures behind ``/metrics``.
        health: returns the answer of ``/healthz``; its "status" is "ok" or "held up" (code 200) or anything else (503).

    Raises TransportError where the address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server_class = type("_Family", (ThreadingWSGIServer,), {"address_family": address_family})
        try:
            self._server: WSGIServer = server_class((host, port), _Handler)
        except OSError as error:
            raise TransportError(
                f"cannot listen on {host}:{port} for metrics: {error.strerror or error}",
                "change metrics in coordinator.json, or stop what listens there",
                code="address-in-use",
            ) from None
        self._server.set_app(_application(registry, health))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _application(registry: CollectorRegistry, health: Health) -> Callable[..., Iterable[bytes]]:
    metrics_app: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)

    def serve(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics_app(environ, start)
        if path == "/healthz":
            health_state = health()
            # "held up" is well, since a restart of this process would not give the machine what it lacks.
            is_well = health_state.get("status") in ("ok", HELD_UP)
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            return _reply(start, status, "application/json", json.dumps(health_state).encode())
        return _reply(start, HTTPStatus.NOT_FOUND, "text/plain", b"/metrics or /healthz\n")

    return serve


def _reply(start: "StartResponse", status: HTTPStatus, content_type: str, body: bytes) -> Iterable[bytes]:
    start(f"{status.value} {status.phrase}", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a health check every few seconds is no event."""
