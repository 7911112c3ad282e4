"""Figures of a running coordinator in Prometheus' text format, and the small HTTP endpoint that serves them.

Names, counts and times only: no run's content ever becomes a metric.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LARGEST_SERIES = 1000  # label sets of one metric: a scan of the port must not fill the memory

_DESCRIPTIONS = {
    "undersong_connections": ("gauge", "Parties connected now."),
    "undersong_streams_total": ("counter", "Streams that a party opened, by party."),
    "undersong_refused_total": ("counter", "Connections and streams refused, by reason."),
    "undersong_sent_bytes_total": ("counter", "Bytes of requests sent to the parties, framing apart."),
    "undersong_received_bytes_total": ("counter", "Bytes of replies received from the parties, framing apart."),
    "undersong_exchange_seconds": ("summary", "Time from a request to every party until the last reply."),
    "undersong_exchange_missing_total": ("counter", "Replies that did not come in time, by party."),
    "undersong_runs": ("gauge", "Runs by state."),
    "undersong_certificate_expires_seconds": ("gauge", "When a certificate ends, seconds since the epoch."),
}


class Metrics:
    """Counters and gauges; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            series = self._values.setdefault(name, {})
            key = tuple(sorted(labels.items()))
            if key in series or len(series) < LARGEST_SERIES:
                series[key] = series.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self._values.setdefault(name, {})[tuple(sorted(labels.items()))] = value

    def replace(self, name: str, values: dict[str, float], label: str) -> None:
        """Sets every series of a gauge with one label; series that are not named end."""
        with self._lock:
            self._values[name] = {((label, key),): value for key, value in values.items()}

    def observe(self, name: str, value: float) -> None:
        """Adds one observation to a summary without quantiles (its count and its sum)."""
        self.add(f"{name}_count")
        self.add(f"{name}_sum", value)

    def get(self, name: str, **labels: str) -> float:
        """The value of one series, 0 where there is none."""
        with self._lock:
            return self._values.get(name, {}).get(tuple(sorted(labels.items())), 0.0)

    def text(self) -> str:
        """Everything in Prometheus' text exposition format."""
        with self._lock:
            values = {name: dict(series) for name, series in self._values.items()}
        lines: list[str] = []
        described: set[str] = set()
        for name in sorted(values):
            base = name.removesuffix("_sum").removesuffix("_count")
            base = base if base in _DESCRIPTIONS else name
            kind, words = _DESCRIPTIONS.get(base, ("untyped", ""))
            if base not in described:
                described.add(base)
                lines += [f"# HELP {base} {words}", f"# TYPE {base} {kind}"]
            for key, value in sorted(values[name].items()):
                labels = ",".join(f'{label}="{_escaped(content)}"' for label, content in key)
                lines.append(f"{name}{{{labels}}} {value:.10g}" if labels else f"{name} {value:.10g}")
        return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Endpoint:
    """Serves ``/metrics`` and ``/healthz`` over plain HTTP on an address of the operator's own network.

    Args:
        health: what ``/healthz`` answers, with "status" either "ok" (code 200) or anything else (503).
    """

    def __init__(self, host: str, port: int, metrics: Metrics, health: Callable[[], dict[str, Any]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._reply(200, CONTENT_TYPE, metrics.text().encode())
                elif self.path == "/healthz":
                    state = health()
                    code = 200 if state.get("status") == "ok" else 503
                    self._reply(code, "application/json", json.dumps(state).encode())
                else:
                    self._reply(404, "text/plain", b"/metrics or /healthz\n")

            def _reply(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Silent: a health check every few seconds is no event."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
