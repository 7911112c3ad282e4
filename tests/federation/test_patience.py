"""How long a run waits, for whom, and what the operator can do meanwhile."""

from __future__ import annotations

import json
import time

from common.errors import ConfigurationError, PrivacyRefusal
from tests.doubles.alliance import before_the_first_sum
from tests.doubles.hospitals import operator


def test_a_party_that_is_away_for_good_costs_the_patience_once(alliance, monkeypatch, tmp_path):
    each, patience = alliance.hospitals["gamma"], 5.0
    begun = []

    def leaves():
        each.stop()
        begun.append(time.monotonic())

    before_the_first_sum(monkeypatch, leaves)
    try:
        alliance.start("left", "--patience", patience)
        said = alliance.watch("left")
        took = time.monotonic() - begun[0]
    finally:
        each.start()
        alliance.until(lambda: "gamma" in alliance.coordinator.server.connected)
    # two sums and the receipts: three requests that it does not answer
    assert patience <= took < 2.5 * patience
    assert [line.split(": ", 1)[0].split()[-1] for line in said.splitlines() if "does not answer" in line] == [
        "votes/1",
        "votes/2",
    ]
    assert "gamma (away for" in said
    alliance.operator("export", "left", "--out", tmp_path / "published")
    verdict = json.loads(operator("verify", tmp_path / "published", "--json"))
    assert verdict["holds"], verdict["faults"]
    assert verdict["without_receipt"] == ["gamma"]


def test_a_run_that_is_stopped_ends_its_watch(alliance, monkeypatch):
    before_the_first_sum(monkeypatch, lambda: alliance.operator("run", "stop", "halted"))
    alliance.start("halted")
    assert "stopped" in alliance.watch("halted", code=PrivacyRefusal.exit_code)
    alliance.operator("run", "resume", "halted", code=ConfigurationError.exit_code)
