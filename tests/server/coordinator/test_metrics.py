"""The figures and the health of a coordinator, as a monitor reads them over HTTP."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.coded import raises
from undersong_common.errors import TransportError
from undersong_common.program.machine import HeldStep
from undersong_server.coordinator.metrics import FolderMetrics, Metrics, MetricsServer

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "federation.md"


@pytest.fixture
def metrics():
    made = Metrics()
    folder = {"runs": {"finished": 2, "running": 1}, "certificates": {"heart": 1.75e9}}
    made.registry.register(FolderMetrics(lambda: folder["runs"], lambda: folder["certificates"]))
    made.folder = folder
    return made


@pytest.fixture
def endpoint(metrics):
    state = {"status": "ok", "connected": [], "runs": {}}
    made = MetricsServer("127.0.0.1", 0, metrics.registry, lambda: state)
    made.state = state
    yield made
    made.close()


def fetch(endpoint, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=5) as reply:
        return reply.read().decode()


def samples(endpoint):
    families = text_string_to_metric_families(fetch(endpoint, "/metrics"))
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def samples_with_labels(endpoint):
    families = text_string_to_metric_families(fetch(endpoint, "/metrics"))
    return [(sample.name, *sample.labels) for family in families for sample in family.samples]


def test_metrics_endpoint_serves_what_was_counted(metrics, endpoint):
    metrics.connections.set(3)
    metrics.streams.labels(party="heart").inc()
    metrics.refused.labels(reason="does not speak TLS").inc(2)
    metrics.sent_bytes.inc(1000)
    metrics.exchange_seconds.observe(0.25)
    metrics.exchange_seconds.observe(0.5)
    metrics.exchange_missing.labels(party="lung").inc()
    found = samples(endpoint)
    assert found["undersong_connections",] == 3
    assert found["undersong_streams_total", "heart"] == 1
    assert found["undersong_refused_total", "does not speak TLS"] == 2
    assert found["undersong_sent_bytes_total",] == 1000
    assert (found["undersong_exchange_seconds_sum",], found["undersong_exchange_seconds_count",]) == (0.75, 2)
    assert found["undersong_exchange_missing_total", "lung"] == 1
    assert not any("_created" in name for name, *_ in found)


def test_run_states_are_read_from_the_folder_at_each_scrape(metrics, endpoint):
    assert samples(endpoint)["undersong_runs", "running"] == 1
    metrics.folder["runs"] = {"finished": 3}
    found = samples(endpoint)
    assert found["undersong_runs", "finished"] == 3
    assert ("undersong_runs", "running") not in found
    assert found["undersong_certificate_expires_seconds", "heart"] == 1.75e9


def test_health_endpoint_answers_200_ok_and_503_when_stopping(endpoint):
    assert json.loads(fetch(endpoint, "/healthz"))["status"] == "ok"
    endpoint.state["status"] = "stopping"
    with pytest.raises(urllib.error.HTTPError) as stopping:
        fetch(endpoint, "/healthz")
    assert stopping.value.code == 503
    assert json.loads(stopping.value.read())["status"] == "stopping"
    with pytest.raises(urllib.error.HTTPError) as missing:
        fetch(endpoint, "/elsewhere")
    assert missing.value.code == 404


def test_error_for_a_taken_metrics_port_names_the_port(metrics, endpoint):
    with raises(TransportError, "address-in-use") as refused:
        MetricsServer("127.0.0.1", endpoint.port, metrics.registry, dict)
    assert f"127.0.0.1:{endpoint.port}" in refused.value.problem


def test_every_metric_is_described_in_the_manual(metrics, endpoint):
    metrics.streams.labels(party="heart").inc()
    metrics.refused.labels(reason="does not speak TLS").inc()
    metrics.exchange_missing.labels(party="lung").inc()
    names = {re.sub("_(sum|count)$", "", name) for name, *_ in samples(endpoint) if name.startswith("undersong_")}
    assert len(names) == 10
    assert {name for name in names if f"`{name}`" not in DOCUMENT.read_text(encoding="utf-8")} == set()


def test_dashboard_shows_every_metric_and_no_other(metrics, endpoint):
    metrics.streams.labels(party="heart").inc()
    metrics.refused.labels(reason="does not speak TLS").inc()
    metrics.exchange_missing.labels(party="lung").inc()
    metrics.renewals.labels(party="lung").inc()
    held = (HeldStep("the journal", "the disk is full", "make room", 1.0, "disk-full"),)
    metrics.registry.register(FolderMetrics(dict, dict, lambda: held))
    exported = {name: labels for name, *labels in samples_with_labels(endpoint) if name.startswith("undersong_")}
    dashboard = json.loads(DOCUMENT.with_name("grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for each in expressions for name in re.findall(r"undersong_\w+", each)}
    assert asked == exported.keys()
    for expression in expressions:  # a sum by a label that a figure does not have is one line without a name
        (name, *_) = re.findall(r"undersong_\w+", expression)
        grouped = re.search(r"by \(([^)]*)\)", expression)
        assert set(grouped[1].split(", ") if grouped else ()) <= set(exported[name]), expression
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(places)
