"""Clocks that are ten minutes off, daemons that come back as another version: the run ends right, or says why not."""

from __future__ import annotations

import dataclasses
import json
import logging
import time

import pytest

from tests.doubles.alliance import Alliance
from undersong_client.home import PartyHome
from undersong_client.link import checks, daemon
from undersong_client.link.daemon import Daemon
from undersong_common.version import SOFTWARE
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.federation.sums import Federation
from undersong_server.methods import wasp

pytestmark = pytest.mark.heavy

OFF_S = 600.0
DAY_S = 86400.0


@pytest.fixture(scope="module")
def alliance(alliance_folder):
    """The first party's clock is ahead, the second one's behind."""
    with Alliance(alliance_folder, clocks={"alpha": OFF_S, "beta": -OFF_S}) as made:
        yield made


def clock_finding(each, now_s):
    marks = each.home.parent / "state" / "undersong" / "ledgers"
    found = {
        finding.name: finding
        for finding in checks.check(PartyHome(each.home), checkpoints=marks, environment={}, now_s=now_s)
    }
    assert found["certificate"].grade == "ok"
    return found["clock"]


@pytest.mark.slow
def test_clocks_ten_minutes_off_are_reported_and_the_run_succeeds(alliance, tmp_path):
    for name, words in (("alpha", "600 s ahead of the coordinator's"), ("beta", "600 s behind the coordinator's")):
        each = alliance.hospitals[name]
        # The command reads this machine's clock, and the daemon one of its own: ten minutes of silence, as it seems.
        assert words in each("status", code=None)
        finding = clock_finding(each, each.clock())
        assert (finding.grade, "timedatectl" in finding.remedy) == ("problem", True)
        # seconds pass between this clock's reading and the coordinator's, on a busy machine more than one
        told, _, side = finding.says.partition(" s ")
        assert side == words.partition(" s ")[2]
        assert abs(float(told) - OFF_S) < 60.0
    # asked anew, not remembered from the last connection: a clock that was set is well at once
    assert clock_finding(alliance.hospitals["alpha"], time.time()).grade == "ok"
    alliance.start("clocks")
    alliance.watch("clocks")
    alliance.operator("export", "clocks", "--out", tmp_path / "published")
    verdict = alliance.verdict(tmp_path / "published")
    assert verdict["holds"], verdict["faults"]
    assert all(len(found["survivors"]) == 4 for found in verdict["sums"])
    for each in alliance.hospitals.values():
        each("ledger", "--verify")


@pytest.mark.slow
def test_a_run_waits_for_a_hospital_whose_clock_is_days_behind(alliance):
    each = alliance.hospitals["delta"]
    each.offset_s = -2 * DAY_S
    alliance.start("behind")
    alliance.until(lambda: "delta cannot answer now" in alliance.shown("behind")["status"].get("message", ""))
    assert alliance.shown("behind")["status"]["state"] not in ("failed", "finished")
    each.offset_s = 0.0
    alliance.watch("behind")
    each("ledger", "--verify")


def test_clock_behind_the_certificate_s_beginning_is_named_as_the_cause(alliance):
    each = alliance.hospitals["gamma"]
    found = list(
        checks.check(
            PartyHome(each.home),
            checkpoints=each.home.parent / "state" / "undersong" / "ledgers",
            environment={},
            now_s=time.time() - 2 * 3600,
            offline=True,
        )
    )
    (certificate,) = [finding for finding in found if finding.name == "certificate"]
    assert (certificate.grade, "clock" in certificate.remedy) == ("problem", True)


@pytest.mark.slow
def test_a_daemon_that_comes_back_as_a_newer_version_goes_on(alliance, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    each, original = alliance.hospitals["gamma"], wasp.run

    def updated(options, run):
        each.stop()
        monkeypatch.setattr(daemon, "SOFTWARE", "undersong 9.9.9")
        each.start()
        alliance.until(lambda: each.status.get("state") == "connected")
        return original(options, run)

    monkeypatch.setattr(wasp, "METHOD", dataclasses.replace(wasp.METHOD, run=updated))
    alliance.start("updated")
    alliance.watch("updated")
    assert {query for run, query, _ in each.charges if run == "updated"} >= {"votes/1", "votes/2"}
    parties = {party["name"]: party["software"] for party in json.loads(alliance.operator("parties", "--json"))}
    assert (parties["gamma"], parties["alpha"]) == ("undersong 9.9.9", SOFTWARE)
    assert "undersong 9.9.9" in alliance.operator("parties")
    assert f"gamma runs undersong 9.9.9, this coordinator {SOFTWARE}" in caplog.text
    assert f"the coordinator runs {SOFTWARE}, this party undersong 9.9.9" in caplog.text


@pytest.mark.slow
def test_daemon_of_a_newer_transport_is_refused_and_both_sides_see_why(alliance, monkeypatch):
    each, hello = alliance.hospitals["delta"], Daemon._make_hello

    def newer(self, paused):
        made = hello(self, paused)
        if made.party == "delta":
            made.version, made.software = 2, "undersong 10.0"
        return made

    each.stop()
    monkeypatch.setattr(Daemon, "_make_hello", newer)
    each.start()
    words = "'undersong 10.0' speaks version 2 of the transport, the coordinator (undersong"
    alliance.until(lambda: words in each.status.get("problem", ""))
    assert words in each("status", code=6)
    assert "run the same version of Undersong at the coordinator and at every party" in each.status["problem"]

    def parties():
        return {party["name"]: party for party in json.loads(alliance.operator("parties", "--json"))}

    assert parties()["delta"]["software"] == "undersong 10.0: REFUSED, transport version 2"
    # what is connected is written once in a while, and delta was until a moment ago
    alliance.until(lambda: {n for n, party in parties().items() if party["connected"]} == {"alpha", "beta", "gamma"})
    alliance.start("without delta")
    alliance.until(
        lambda: "delta (away" in alliance.shown("without delta")["status"].get("waiting", {}).get("words", "")
    )
    # put back, it is there again, and the run goes on by itself
    each.stop()
    monkeypatch.undo()
    each.start()
    alliance.watch("without delta")


@pytest.mark.slow
def test_a_daemon_of_a_newer_protocol_is_left_out_with_the_reason(alliance, monkeypatch):
    transport = alliance.coordinator.transport
    exchange, original = transport.exchange, wasp.run

    def newer(requests, **options):
        replies = dict(exchange(requests, **options))
        if "beta" in replies:  # as a newer program of beta would have written it
            reply = codec.decode_reply(replies["beta"], "beta")
            reply.version = codec.VERSION + 1
            replies["beta"] = reply.SerializeToString()
        return replies

    def updated(options, run):
        monkeypatch.setattr(transport, "exchange", newer)
        return original(options, run)

    monkeypatch.setattr(wasp, "METHOD", dataclasses.replace(wasp.METHOD, run=updated))
    alliance.start("newer protocol")
    said = alliance.watch("newer protocol")
    assert "left out: beta" in said
    assert f"speaks version {codec.VERSION + 1} of the protocol, this program speaks {codec.VERSION}" in said


def test_newer_coordinator_s_request_is_refused_with_the_reason(alliance):
    asked = wire.Request(version=codec.VERSION + 1, introduce=wire.Introduce()).SerializeToString()
    reply = alliance.coordinator.transport.exchange({"alpha": asked}, timeout_s=10.0)["alpha"]
    words = f"coordinator: speaks version {codec.VERSION + 1} of the protocol, this program speaks {codec.VERSION}"
    assert words in codec.decode_reply(reply, "alpha").refusal.problem
    alliance.until(lambda: words in alliance.hospitals["alpha"]("status"))


@pytest.mark.slow
def test_certificates_expiring_in_a_run_are_named_and_it_goes_on(alliance, monkeypatch, tmp_path):
    """The coordinator's clock is moved a year on at the first sum: all certificates are too old, and then are not."""
    server, asked = alliance.coordinator.server, Federation.private_sum
    year = time.time() + 366 * 86400
    told: list[str] = []

    def status(each):
        return json.loads((each.home / "status.json").read_text())

    def expired(self, name, inputs):
        if not told:
            with monkeypatch.context() as moved:
                moved.setattr(server, "_clock", lambda: year)
                alliance.until(lambda: not server.connected)
                for each in alliance.hospitals.values():
                    # Told as its stream ends; from the next call on, that the certificate is not accepted any more.
                    alliance.until(lambda party=each: "certificate" in status(party).get("problem", ""))
                    told.append(status(each)["problem"])
        return asked(self, name, inputs)

    monkeypatch.setattr(Federation, "private_sum", expired)
    alliance.start("expired")
    alliance.watch("expired")
    assert len(told) == 4
    alliance.operator("export", "expired", "--out", tmp_path / "published")
    assert alliance.verdict(tmp_path / "published")["holds"]
    each = alliance.hospitals["gamma"]
    marks = each.home.parent / "state" / "undersong" / "ledgers"
    found = checks.check(PartyHome(each.home), checkpoints=marks, environment={}, now_s=year, offline=True)
    (certificate,) = [finding for finding in found if finding.name == "certificate"]
    assert certificate.grade == "problem"
    assert certificate.says.startswith("the certificate expired on")
    assert "enroll --renew" in certificate.remedy
