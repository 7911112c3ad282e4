"""Figures of a running coordinator, for Prometheus.

Names, counts and times only: no run's content ever becomes a metric. Labels are few: states of runs, reasons of
refusals, and names of parties that the registry holds, so nobody who knocks at the port can add series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from undersong_common.version import VERSION

# A second series beside each counter would say when it began; process_start_time_seconds says that once.
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
    """What the coordinator's folder says at the time of each scrape.

    Args:
        runs: number of runs by state.
        certificates: end of each certificate by name, seconds since the epoch.
    """

    def __init__(self, runs: Callable[[], Mapping[str, int]], certificates: Callable[[], Mapping[str, float]]) -> None:
        self._runs = runs
        self._certificates = certificates

    def describe(self) -> Iterable[Metric]:
        """The names, for the registry, without reading the folder."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """One sample for each state of a run, and for each certificate."""
        runs, ends = self._families()
        for state, count in self._runs().items():
            runs.add_metric([state], count)
        for name, end in self._certificates().items():
            ends.add_metric([name], end)
        return runs, ends

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily("undersong_runs", "Runs by state.", labels=["state"]),
            GaugeMetricFamily(
                "undersong_certificate_expires_seconds",
                "When a certificate ends, seconds since the epoch.",
                labels=["name"],
            ),
        )
