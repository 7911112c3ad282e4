"""What a hospital's guard refuses over the real connection: its people and the operator read the same reason."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import shutil
import sqlite3

import pytest

from tests.doubles.alliance import before_the_first_sum
from tests.doubles.pace import slow_after
from undersong_client.consent.approvals import Proposals
from undersong_client.home import PartyHome
from undersong_common.errors import PrivacyRefusal
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.database.journal import Journal
from undersong_server.runs import execution
from undersong_server.runs.folder import RunFolder

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def warnings(caplog):
    caplog.set_level(logging.INFO)


@pytest.fixture
def finished_run(alliance):
    """A run that everybody signed and that has ended well."""
    if not (alliance.home / "runs" / "finished").exists():
        alliance.start("finished")
        alliance.watch("finished")
    return RunFolder(alliance.home / "runs" / "finished")


def manifest_of(folder):
    journal = Journal(folder.journal_path)
    try:
        signatures = journal.get_json("manifest/signatures")
        return Manifest.from_bytes(journal.get("manifest")), signatures
    finally:
        journal.close()


def both_see(alliance, run, hospital, words, caplog, *, objection=True, here=""):
    """The run failed by a refusal; the operator reads it everywhere, and the hospital too, there with its amounts."""
    here = here or words
    said = alliance.watch(run, code=PrivacyRefusal.exit_code)
    assert f"{hospital} refuses: " in said
    assert words in said
    shown = alliance.shown(run)
    assert words in shown["status"]["error"]["problem"]
    assert any(words in line for line in shown["log"])
    assert words in alliance.operator("run", "show", run)
    assert words in alliance.operator("run", "list", "--json")
    assert any(words in record.message for record in caplog.records if record.name.startswith("undersong_server."))
    assert any(
        here in record.message and record.message.startswith(f"{hospital} refused")
        for record in caplog.records
        if record.name == "undersong_client.answering.party"
    )
    each = alliance.hospitals[hospital]
    alliance.until(lambda: reads(each, here))
    assert here in each("status")
    if objection:
        (request,) = [found for found in json.loads(each("requests", "--json"))["requests"] if found["run"] == run]
        assert here in request["objection"]
        assert "REFUSED" in each("requests")
    assert run not in {charged for charged, _, _ in each.charges}


def reads(each, words):
    """Whether the hospital's people find these words in its status."""
    return any(words in refused["problem"] for refused in json.loads(each("status", "--json"))["refused"])


def tampered(alliance, run, tamper):
    """Plans a run, and puts another manifest than the honest one into the coordinator's journal."""
    alliance.operator("run", "plan", alliance.task, "--name", run)
    folder = RunFolder(alliance.home / "runs" / run)
    honest = dataclasses.replace(
        manifest_of(RunFolder(alliance.home / "runs" / "finished"))[0],
        run=run,
        plan=folder.planned().load().plan,
    )
    journal = Journal(folder.journal_path)
    journal.put("manifest", tamper(honest).to_bytes())
    journal.close()
    alliance.operator("run", "start", run)


def with_first_sum(manifest, **changes):
    first, *rest = manifest.plan.sums
    plan = dataclasses.replace(manifest.plan, sums=(dataclasses.replace(first, **changes), *rest))
    return dataclasses.replace(manifest, plan=plan)


# One sentence of the guard comes this whole way. tests/protocol/test_plan.py has every changed figure.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tamper", "words"),
    slow_after(
        [
            (
                "lowered noise",
                lambda manifest: with_first_sum(manifest, sigma_integer=manifest.plan.sums[0].sigma_integer * 0.9),
                "the plan spends epsilon",
            ),
            (
                "raised sensitivity",
                lambda manifest: with_first_sum(manifest, l2=manifest.plan.sums[0].l2 * 2),
                "L2 sensitivity",
            ),
            (
                "more dropouts",
                lambda manifest: dataclasses.replace(
                    manifest,
                    plan=dataclasses.replace(
                        manifest.plan, quorum=dataclasses.replace(manifest.plan.quorum, tolerated_dropouts=2)
                    ),
                ),
                "2 tolerated dropouts are too many for 4 parties",
            ),
        ],
        1,
    ),
)
def test_a_plan_that_was_tampered_with_is_refused(alliance, finished_run, name, tamper, words, caplog, monkeypatch):
    monkeypatch.setattr(execution, "_check_same_plan", lambda *_: None)  # such a coordinator would not look either
    tampered(alliance, name, tamper)
    # A quorum that cannot be is no plan, and nothing of it is kept.
    both_see(alliance, name, "alpha", words, caplog, objection=name != "more dropouts")


@pytest.mark.slow
def test_run_with_too_few_parties_is_refused_by_the_hospitals(alliance, finished_run, caplog):
    alliance.hospitals["beta"]("policy", "set", "--minimum-parties", 9)
    try:
        alliance.start("few")
        both_see(alliance, "few", "beta", "at least 8 other hospitals", caplog)
    finally:
        alliance.hospitals["beta"]("policy", "set", "--minimum-parties", 3)
    alpha = alliance.hospitals["alpha"]
    alliance.until(lambda: request_of(alpha, "few").suspended_s)
    # widened again, the same run goes on where it failed
    alliance.operator("run", "resume", "few")
    alliance.watch("few")
    alliance.until(lambda: request_of(alpha, "few").ended_s)
    assert not request_of(alpha, "few").suspended_s


def request_of(each, run):
    """A run as it was proposed to this hospital."""
    return Proposals(PartyHome(each.home)).find(run)


@pytest.mark.slow
def test_run_that_one_hospital_rejects_is_signed_and_awaited_by_none(alliance):
    alpha, beta = alliance.hospitals["alpha"], alliance.hospitals["beta"]
    for each in (alpha, beta):
        each("policy", "set", "--approval", "each")
    try:
        alliance.start("unwanted")
        for each in (alpha, beta):
            alliance.until(lambda each=each: "unwanted" in each("requests"))
        alliance.until(lambda: alpha.status["waiting"] == 1)
        beta("reject", "unwanted", "--reason", "not for us")
        alliance.watch("unwanted", code=3)
        alliance.until(lambda: alpha.status["waiting"] == 0)
        words = request_of(alpha, "unwanted").words
        assert "has failed" in alpha("approve", "unwanted", words, code=2)
        assert "SUSPENDED" in alpha("requests")
        assert "not for us" not in alpha("requests")  # said to the operator, and to no other hospital
        assert "next: undersong-party approve" not in alpha("preview", "unwanted")
        assert request_of(alliance.hospitals["gamma"], "unwanted").suspended_s  # where it was approved
        alliance.operator("run", "stop", "unwanted")
        for each in alliance.hospitals.values():
            alliance.until(lambda each=each: request_of(each, "unwanted").ended_s)
        assert "has ended" in alpha("approve", "unwanted", words, code=2)
        status = RunFolder(alliance.home / "runs" / "unwanted").status()
        assert (status.state, status.charged) == ("stopped", False)
    finally:
        for each in (alpha, beta):
            each("policy", "set", "--approval", "standing")


@pytest.mark.slow
def test_run_reported_as_failed_that_charges_again_is_shown_as_going_on(alliance, monkeypatch):
    alpha = alliance.hospitals["alpha"]

    def lie():
        suspend = wire.SuspendRun(manifest_hash=bytes.fromhex(request_of(alpha, "not over").manifest))
        message = wire.Request(version=codec.VERSION, suspend_run=suspend).SerializeToString()
        alliance.coordinator.transport.exchange({"alpha": message}, timeout_s=5.0)
        assert request_of(alpha, "not over").suspended_s

    before_the_first_sum(monkeypatch, lie)
    alliance.start("not over")
    alliance.watch("not over")
    assert alpha.charges[-1][0] == "not over"
    assert not request_of(alpha, "not over").suspended_s


@pytest.mark.slow
def test_hospital_that_was_absent_learns_of_a_run_s_end_on_its_return(alliance, monkeypatch):
    delta = alliance.hospitals["delta"]
    before_the_first_sum(monkeypatch, delta.stop)
    alliance.start("ended meanwhile")
    try:
        alliance.watch("ended meanwhile")
        folder = RunFolder(alliance.home / "runs" / "ended meanwhile")
        assert folder.status().charged
        assert folder.heard(folder.status()) == {"alpha", "beta", "gamma"}
        assert not request_of(delta, "ended meanwhile").ended_s
    finally:
        delta.start()
    alliance.until(lambda: request_of(delta, "ended meanwhile").ended_s)
    alliance.until(lambda: folder.heard(folder.status()) == set(alliance.hospitals))
    shown = json.loads(alliance.hospitals["alpha"]("preview", "ended meanwhile", "--json"))
    published = json.loads((folder.output / "manifest.json").read_text())["receipts"]
    assert shown["ended"]["receipt"] == published["alpha"]
    assert shown["objections"] == []


def test_run_beyond_a_budget_lowered_meanwhile_is_refused(alliance, finished_run, caplog):
    each = alliance.hospitals["gamma"]
    spent = json.loads(each("budget", "show", "--json"))["spent_epsilon"]
    assert spent > 0
    each("budget", "set", "--epsilon", spent + 0.2, "--delta", "1e-3", "--per-run", 2.5)
    try:
        alliance.start("dear", "--set", "privacy.epsilon=2")
        told, budget = "the budget of this data set does not allow this run", f"{spent + 0.2:g}"
        both_see(alliance, "dear", "gamma", told, caplog, here=f"its budget is {budget}")
        problem = alliance.shown("dear")["status"]["error"]["problem"]
        assert budget not in problem  # the hospital does not share it
    finally:
        each("budget", "set", "--epsilon", 500, "--delta", "1e-3", "--per-run", 5)


@pytest.mark.slow
def test_run_proposed_again_with_another_roster_is_refused(alliance, finished_run, caplog):
    alliance.start("twice")
    alliance.watch("twice")
    before = {name: each.charges for name, each in alliance.hospitals.items()}
    # a coordinator that lost its folder, or lies: the same name, without one of the parties
    alliance.until(lambda: not alliance.coordinator.drives("twice"))  # its last status is on the disk
    shutil.rmtree(alliance.home / "runs" / "twice")
    # alpha's refusal is waited for: a party that is only late would be asked again, after another one's refusal
    alliance.start("twice", "--parties", "alpha,beta,gamma", "--patience", 60)
    said = alliance.watch("twice", code=3)
    assert "alpha refuses: run 'twice' was charged under another manifest" in said
    assert {name: each.charges for name, each in alliance.hospitals.items()} == before
    first, second = [
        found
        for found in json.loads(alliance.hospitals["alpha"]("requests", "--json"))["requests"]
        if found["run"] == "twice"
    ]
    assert (first["decision"], first["objection"], first["replaced"]) == ("approved", "", True)
    assert (second["decision"], second["changes"][0]) == ("pending", "without the party delta")
    assert "charged under another manifest" in second["objection"]


def test_party_answering_with_another_key_than_enrolled_ends_the_run(alliance):
    """A certificate alone does not say whose signatures the data set will hold: the registry does."""
    registry = sqlite3.connect(alliance.home / "registry.sqlite", isolation_level=None)
    with contextlib.closing(registry):
        (identity,) = registry.execute("SELECT identity FROM party WHERE name = 'beta'").fetchone()
        registry.execute("UPDATE party SET identity = ? WHERE name = 'beta'", ("ab" * 32,))
        try:
            alliance.start("exchanged")
            said = alliance.watch("exchanged", code=3)
        finally:
            registry.execute("UPDATE party SET identity = ? WHERE name = 'beta'", (identity,))
    assert "beta: the party introduces itself with another identity key than it has enrolled with" in said
    requests = json.loads(alliance.hospitals["alpha"]("requests", "--json"))["requests"]
    assert "exchanged" not in {found["run"] for found in requests}  # nobody was asked to sign with it


@pytest.mark.slow
def test_withdrawn_consent_leaves_the_party_out_with_the_reason(alliance, monkeypatch):
    each = alliance.hospitals["beta"]
    before_the_first_sum(monkeypatch, lambda: each("revoke", "withdrawn", "--reason", "the ethics board"))
    alliance.start("withdrawn")
    said = alliance.watch("withdrawn")
    assert "left out: beta refuses: its people have withdrawn from run 'withdrawn': the ethics board" in said
    assert "withdrawn" not in {run for run, _, _ in each.charges}
    assert "revoked" in each("requests")
    assert "beta is in no opened sum." in " ".join(alliance.hospitals["alpha"]("preview", "withdrawn").split())


def test_run_ends_with_reasons_if_too_many_hospitals_withdraw(alliance, monkeypatch):
    def act():
        for name in ("beta", "gamma"):
            alliance.hospitals[name]("revoke", "deserted", "--reason", f"{name} has reasons")

    before_the_first_sum(monkeypatch, act)
    alliance.start("deserted")
    said = alliance.watch("deserted", code=3)
    assert "beta has reasons" in said
    assert "gamma has reasons" in said


@pytest.mark.slow
def test_replayed_request_gives_equal_bytes_or_a_refusal_and_costs_nothing(alliance, monkeypatch):
    transport = alliance.coordinator.transport
    exchange, kept = transport.exchange, []

    def recording(requests, **options):
        replies = exchange(requests, **options)
        kept.append((dict(requests), dict(replies)))
        return replies

    monkeypatch.setattr(transport, "exchange", recording)
    alliance.start("replayed")
    alliance.watch("replayed")
    monkeypatch.undo()
    before = {name: each.charges for name, each in alliance.hospitals.items()}
    same = refused = 0
    for requests, replies in kept:
        for name, reply in exchange(requests, timeout_s=20.0).items():
            if reply == replies[name]:
                same += 1
                continue
            body = codec.decode_reply(reply, name).WhichOneof("body")
            asked = codec.decode_request(requests[name]).WhichOneof("body")
            assert body == "refusal" or asked == "close_run", (asked, body)
            refused += 1
    assert same > refused
    assert {name: each.charges for name, each in alliance.hospitals.items()} == before
    # another party's request is none of mine: its payload names another recipient or another transcript
    step = next(requests for requests, _ in kept if requests["alpha"] != requests["beta"])
    crossed = exchange({"alpha": step["beta"]}, timeout_s=20.0)["alpha"]
    assert codec.decode_reply(crossed, "alpha").WhichOneof("body") == "refusal"


@pytest.mark.slow
def test_daemon_that_stops_right_after_connecting_counts_as_disconnected(alliance):
    """A read that gRPC does not give up at once must not keep a party among those that are connected."""
    each = alliance.hospitals["alpha"]
    for _ in range(15):
        each.stop()
        alliance.until(lambda: "alpha" not in alliance.coordinator.server.connected)
        each.start()
        alliance.until(lambda: "alpha" in alliance.coordinator.server.connected)


def test_planning_a_run_warns_of_refusals_by_shared_policies(alliance):
    each = alliance.hospitals["alpha"]

    def says(*changes):
        each("policy", "set", *changes)
        each.stop()
        alliance.until(lambda: "alpha" not in alliance.coordinator.server.connected)
        each.start()
        alliance.until(lambda: "alpha" in alliance.coordinator.server.connected)
        name = changes[0].strip("-")
        return alliance.operator("run", "plan", alliance.task, "--name", name)

    refused = "alpha would refuse this, by the policy that it shares: a sum of the run may open"
    assert refused in says("--share-policy", "--minimum-parties", 9)
    assert "would refuse" not in says("--hide-policy", "--minimum-parties", 3)
