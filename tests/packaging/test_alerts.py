"""Alert rules: they name figures that exist, and fire when they should."""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.doubles.processes import ROOT
from undersong_client.link.daemon import METRICS

RULES = ROOT / "docker" / "prometheus" / "undersong.rules.yml"
CASES = """\
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: undersong_party_written_seconds, values: "0 60 120 180x20"}}
      - {{series: undersong_party_connected, values: "1x5 0x40"}}
      - {{series: undersong_party_paused, values: "0x45"}}
      - {{series: undersong_party_epsilon_budget, values: "4x45"}}
      - {{series: undersong_party_epsilon_left, values: "4x10 0.3x35"}}
      - {{series: 'undersong_certificate_expires_seconds{{name="heart"}}', values: "86400x180"}}
      - {{series: 'undersong_runs{{state="failed"}}', values: "1x10 2x10"}}
    alert_rule_test:
      - {{eval_time: 3m, alertname: UndersongPartyGone}}
      - {{eval_time: 15m, alertname: UndersongPartyGone, exp_alerts: [{{exp_labels: {{severity: critical}}}}]}}
      - {{eval_time: 8m, alertname: UndersongPartyDisconnected}}
      - {{eval_time: 30m, alertname: UndersongPartyDisconnected, exp_alerts: [{{exp_labels: {{severity: warning}}}}]}}
      - {{eval_time: 5m, alertname: UndersongBudgetLow}}
      - {{eval_time: 20m, alertname: UndersongBudgetLow, exp_alerts: [{{exp_labels: {{severity: info}}}}]}}
      - {{eval_time: 8m, alertname: UndersongRunFailed}}
      - eval_time: 15m
        alertname: UndersongRunFailed
        exp_alerts: [{{exp_labels: {{state: failed, severity: warning}}}}]
      - eval_time: 90m
        alertname: UndersongCertificateEnds
        exp_alerts: [{{exp_labels: {{name: heart, severity: warning}}}}]
"""


def test_every_metric_in_an_alert_rule_is_one_that_a_program_writes():
    from undersong_server.coordinator.metrics import FolderMetrics, Metrics

    registry = Metrics().registry
    registry.register(FolderMetrics(lambda: {"failed": 1}, lambda: {"heart": 1.0}))
    written = {f"undersong_party_{name}" for name in METRICS}
    for family in registry.collect():
        written |= {family.name, f"{family.name}_total"}
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    named = {name for rule in rules for name in re.findall(r"undersong_\w+", rule["expr"])}
    assert len(named) > 8
    assert named <= written
    manual = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`undersong_party_{name}`" not in manual] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_alert_rules_fire_for_the_metrics_that_they_watch(tmp_path):
    rules = re.sub(r"annotations: \{.*\}", "annotations: {}", RULES.read_text(encoding="utf-8"))
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "cases.yml").write_text(CASES.format(rules=tmp_path / "rules.yml"))
    for command in (["check", "rules", RULES], ["test", "rules", tmp_path / "cases.yml"]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
