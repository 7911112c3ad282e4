"""How long a run waits, for whom, and what the operator can do meanwhile."""

from __future__ import annotations

import time

import pytest

from tests.doubles.alliance import before_the_first_sum
from undersong_common.errors import ConfigurationError, PrivacyRefusal

pytestmark = pytest.mark.heavy


@pytest.mark.slow  # it waits; the same rule is tested in tests/server/coordinator/test_grpc_driver.py
def test_a_party_that_is_away_for_good_costs_the_patience_once(alliance, monkeypatch, tmp_path):
    each, patience = alliance.hospitals["gamma"], 5.0
    transport, waited = alliance.coordinator.transport, []
    exchange = transport.exchange

    def timed(requests, **options):
        begun = time.monotonic()
        try:
            return exchange(requests, **options)
        finally:
            waited.append(time.monotonic() - begun)

    before_the_first_sum(monkeypatch, each.stop)
    monkeypatch.setattr(transport, "exchange", timed)
    try:
        alliance.start("left", "--patience", patience)
        said = alliance.watch("left")
    finally:
        each.start()
        alliance.until(lambda: "gamma" in alliance.coordinator.server.connected)
    # two sums and the receipts are three requests that it does not answer
    assert sum(seconds >= patience for seconds in waited) == 1
    assert [line.split(": ", 1)[0].split()[-1] for line in said.splitlines() if "does not answer" in line] == [
        "votes/1",
        "votes/2",
    ]
    assert "gamma (away for" in said
    alliance.operator("export", "left", "--out", tmp_path / "published")
    verdict = alliance.verdict(tmp_path / "published")
    assert verdict["holds"], verdict["faults"]
    assert verdict["without_receipt"] == ["gamma"]


def test_a_run_that_is_stopped_ends_its_watch(alliance, monkeypatch):
    before_the_first_sum(monkeypatch, lambda: alliance.operator("run", "stop", "halted"))
    alliance.start("halted")
    assert "stopped" in alliance.watch("halted", code=PrivacyRefusal.exit_code)
    alliance.operator("run", "resume", "halted", code=ConfigurationError.exit_code)
