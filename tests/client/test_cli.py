"""``undersong-party`` as people and scripts type it: every step by flags, exit codes, JSON, light starts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.doubles.authority import Authority
from tests.doubles.coordinator_stream import ScriptedCoordinator
from tests.doubles.party_home import command, joined, write_notes
from tests.doubles.tiny_bert import write_bert
from undersong_client.approvals import Requests
from undersong_client.state import PartyHome
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Charge, Ledger
from undersong_protocol import statistics
from undersong_protocol.enrolment import EnrolmentRequest
from undersong_protocol.manifest import Manifest
from undersong_protocol.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram, TopQVotes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path, authority):
    return joined(tmp_path, authority)


def proposed(home: Path, *, epsilon: float = 1.5, run: str = "spring") -> Manifest:
    """A run of five parties, as the daemon would have kept it."""
    from undersong_client import keys
    from undersong_common.embedding import Embedder

    opened = PartyHome(home)
    quorum = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)
    requests = [
        SumRequest("labels", LabelHistogram(2)),
        *(SumRequest(f"votes/{n}", TopQVotes(q=8, candidates=60 * n, labels=2)) for n in (1, 2, 3)),
    ]
    own = Member("alpha", keys.identity(opened).public_key().public_bytes_raw())
    others = [Member(name, bytes([number]) * 32) for number, name in enumerate(("beta", "delta", "gamma", "omega"))]
    plan = plan_sums(requests, Privacy(epsilon, 1e-5, "user", 4), quorum)
    task = {"name": "triage", "description": "a note", "labels": ["good", "bad"]}
    manifest = Manifest(run, task, "wasp", Embedder.load().fingerprint, (own, *others), plan)
    Requests(opened).receive(manifest, at=time.time())
    return manifest


def test_init_makes_a_party_that_trusts_nobody(tmp_path):
    made = json.loads(command("init", "alpha", "--home", tmp_path / "h", "--json"))
    assert made["party"] == "alpha"
    assert len(made["fingerprint"].split("-")) == 8
    policy = json.loads(command("policy", "show", "--home", tmp_path / "h", "--json"))
    assert policy["coordinators"] == []
    assert policy["statistics"] == statistics.names()
    assert policy["run_epsilon"] == 0
    command("init", "Alpha!", "--home", tmp_path / "other", code=2)
    assert not (tmp_path / "other").exists()
    assert "not an empty folder" in command("init", "alpha", "--home", tmp_path / "h", code=2)


def test_enrolment_needs_the_right_fingerprint_and_keeps_nothing_without_it(tmp_path, authority):
    home, package = tmp_path / "h", tmp_path / "package"
    package.write_bytes(authority.package_bytes("alpha"))
    command("init", "alpha", "--home", home)
    out = ("--request-out", tmp_path / "request")
    assert "mandatory" in command("enroll", package, *out, "--home", home, code=2)
    wrong = Authority().package("alpha").fingerprint
    assert "not the one that was stated" in command(
        "enroll", package, "--fingerprint", wrong, *out, "--home", home, code=2
    )
    assert not (home / "coordinator.json").exists()
    assert not (tmp_path / "request").exists()
    right = authority.package("alpha").fingerprint
    made = json.loads(command("enroll", package, "--fingerprint", right, *out, "--home", home, "--json"))
    request = EnrolmentRequest.parse((tmp_path / "request").read_bytes())
    assert made["fingerprint"] == request.fingerprint
    assert "PRIVATE" not in (tmp_path / "request").read_text()
    (tmp_path / "grant").write_bytes(Authority().grant(request))
    assert "not signed" in command("enroll", "--grant", tmp_path / "grant", "--home", home, code=2)
    (tmp_path / "grant").write_bytes(authority.grant(request))
    command("enroll", "--grant", tmp_path / "grant", "--home", home)
    assert "no certificate is awaited" in command("enroll", "--grant", tmp_path / "grant", "--home", home, code=2)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(Authority("other").package_bytes("alpha"))
    assert "belongs to the coordinator" in command("enroll", foreign, "--fingerprint", wrong, "--home", home, code=2)


def test_packages_for_others_or_out_of_date_are_refused(tmp_path, authority):
    home = tmp_path / "h"
    command("init", "alpha", "--home", home)
    for data, words in [
        (authority.package_bytes("beta"), "is for 'beta'"),
        (authority.package_bytes("alpha", expires_s=5), "expired"),
        (b"junk", "damaged"),
    ]:
        (tmp_path / "p").write_bytes(data)
        assert words in command("enroll", tmp_path / "p", "--fingerprint", "0", "--home", home, code=2)
    assert "cannot be read" in command("enroll", tmp_path / "nowhere", "--fingerprint", "0", "--home", home, code=2)
    assert "one thing at a time" in command("enroll", "--home", home, code=2)


def test_a_renewal_is_a_request_without_token(home, tmp_path, authority):
    command("enroll", "--renew", "--request-out", tmp_path / "renewal", "--home", home)
    request = EnrolmentRequest.parse((tmp_path / "renewal").read_bytes())
    assert request.renewal
    before = (home / "keys/tls.pem").read_bytes()
    (tmp_path / "grant").write_bytes(authority.grant(request))
    command("enroll", "--grant", tmp_path / "grant", "--home", home)
    assert (home / "keys/tls.pem").read_bytes() != before


def test_data_add_says_what_is_in_the_file(home, tmp_path):
    fields = ("--label-field", "label", "--user-field", "patient")
    found = json.loads(command("data", "add", tmp_path / "alpha.jsonl", *fields, "--home", home, "--json"))
    assert {key: found[key] for key in ("records", "empty", "duplicates", "users", "largest_user")} == {
        "records": 12,
        "empty": 0,
        "duplicates": 0,
        "users": 6,
        "largest_user": 2,
    }
    shown = json.loads(command("data", "show", "--home", home, "--json"))
    assert shown["label_field"] == "label"
    other = write_notes(tmp_path / "other.jsonl", start=50)
    assert "--new-version" in command("data", "add", other, "--home", home, code=2)


def test_a_teacher_model_is_named_checked_and_taken_back(home, tmp_path):
    def shown():
        return json.loads(command("data", "show", "--home", home, "--json"))["teacher_model"]

    def finding():
        findings = json.loads(command("check", "--offline", "--home", home, "--json", code=None))["findings"]
        return [one["grade"] for one in findings if one["name"] == "teacher model"]

    assert (shown(), finding()) == ("", [])
    bert = write_bert(tmp_path / "bert", ["note"])
    command("data", "teacher-model", bert, "--home", home)
    assert (shown(), finding()) == (str(bert), ["ok"])
    for wrong, words in ((tmp_path, "not a usable transformers model"), (tmp_path / "no", "no such folder")):
        assert words in command("data", "teacher-model", wrong, "--home", home, code=2)
    assert shown() == str(bert)
    assert "one model" in command("data", "teacher-model", bert, "--none", "--home", home, code=2)
    (bert / "config.json").unlink()
    assert finding() == ["problem"]
    command("data", "teacher-model", "packaged", "--home", home)
    assert (shown(), finding()) == ("packaged", ["ok"])
    command("data", "teacher-model", "--none", "--home", home)
    assert (shown(), finding()) == ("", [])


def test_budget_and_policy_are_set_by_flags(home):
    shown = json.loads(command("budget", "show", "--home", home, "--json"))
    assert (shown["epsilon"], shown["per_run"], shown["spent_epsilon"]) == (4.0, 2.0, 0.0)
    command("budget", "set", "--epsilon", 1, "--delta", "1e-5", "--per-run", 3, "--home", home, code=2)
    assert "unknown" in command("policy", "set", "--statistic", "everything", "--home", home, code=2)
    command("policy", "set", "--statistic", "label_histogram", "--unit", "user", "--share-budget", "--home", home)
    policy = json.loads(command("policy", "show", "--home", home, "--json"))
    assert (policy["statistics"], policy["units"], policy["share_budget"]) == (["label_histogram"], ["user"], True)


def test_preview_says_in_plain_words_what_leaves_and_what_it_costs(home):
    proposed(home)
    words = command("preview", "spring", "--home", home)
    for expected in (
        "No text, no embedding, no record",
        "how many of your records have each label",
        "3 times top_q_votes",
        "120 to 360 numbers each",
        "epsilon 1.5 at delta 1e-05 for one user (at most 4 records)",
        "budget is epsilon 4 at delta 0.0001; spent so far 0, left before this run 4",
        "5 parties: alpha, beta, delta, gamma, omega. At least 4 must take part",
        "1 other party put everything they see together",
        "If every other party colludes against you",
        "approve 'spring'",
    ):
        assert expected in words, words
    assert "REFUSES" not in words
    value = json.loads(command("preview", "spring", "--home", home, "--json"))
    assert value["objections"] == []
    assert value["privacy"]["epsilon_if_all_others_collude"] > 1.5
    assert [release["releases"] for release in value["releases"]] == [1, 3]


def test_preview_lists_what_the_guard_will_refuse(home):
    proposed(home, epsilon=2.5)
    words = command("preview", "spring", "--home", home)
    assert "This party REFUSES it" in words
    assert "the policy allows 2" in words


def test_words_are_of_statistics_that_exist():
    from undersong_client.preview import WORDS

    assert set(WORDS) <= set(statistics.names())


def test_what_the_records_speak_against_is_confirmed_by_a_person_and_told_to_nobody_else(home, tmp_path):
    proposed(home)
    other = write_notes(tmp_path / "other.jsonl", labels=("good", "elsewhere"))
    fields = ("--label-field", "label", "--user-field", "patient", "--new-version", "--home", home)
    command("data", "add", other, *fields)
    words = "6 of 12 records have a label that the task does not list"
    shown = command("preview", "spring", "--home", home)
    assert words in shown
    assert "the operator is told nothing of it" in shown
    assert "elsewhere" not in shown
    assert words in command("approve", "spring", "--home", home, code=2)
    assert Requests(PartyHome(home)).find("spring").decision == "pending"
    command("approve", "spring", "--despite-cautions", "--home", home)
    assert Requests(PartyHome(home)).find("spring").decision == "approved"


def test_standing_consent_looks_at_the_records_when_it_is_given(home, tmp_path):
    set_ = ("budget", "set", "--epsilon", 4, "--delta", 0.1, "--home", home)
    command(*set_)
    standing = ("policy", "set", "--approval", "standing", "--home", home)
    assert "delta 0.1 is not below 1 / 12" in command(*standing, code=2)
    assert json.loads(command("policy", "show", "--json", "--home", home))["approval"] == "each"
    command("policy", "set", "--declared-units", 12, "--home", home)
    command(*standing)
    larger = write_notes(tmp_path / "larger.jsonl", records=26)
    again = ("data", "add", larger, "--label-field", "label", "--user-field", "patient", "--new-version")
    assert "declares at most 12" in command(*again, "--home", home, code=2)
    command(*again, "--despite-cautions", "--home", home)
    found = json.loads(command("check", "--offline", "--json", "--home", home, code=None))["findings"]
    assert any("at most 12" in each["says"] for each in found if each["name"] == "standing consent")


def test_runs_are_approved_rejected_and_revoked_by_name_or_hash(home):
    first, second = proposed(home, run="first"), proposed(home, run="second")
    listed = json.loads(command("requests", "--home", home, "--json"))["requests"]
    assert [(each["run"], each["decision"]) for each in listed] == [("first", "pending"), ("second", "pending")]
    command("approve", first.hash.hex()[:10], "--home", home)
    command("reject", "second", "--reason", "not now", "--home", home)
    assert "was rejected" in command("approve", "second", "--home", home, code=2)
    decided = json.loads(command("revoke", "first", "--home", home, "--json"))
    assert (decided["decision"], decided["manifest"]) == ("revoked", first.hash.hex())
    assert "(not now)" in command("requests", "--home", home)
    assert "no run 'third'" in command("preview", "third", "--home", home, code=2)
    assert second.hash.hex()[:12] in command("requests", "--home", home)


def test_a_name_from_outside_does_not_draw_on_the_terminal(home):
    proposed(home, run="a\x1b[2Jb")
    assert "\x1b" not in command("requests", "--home", home)


def test_the_ledger_is_shown_verified_and_backed_up(home, tmp_path):
    ledger = Ledger.read(home / "ledger.jsonl")
    ledger.charge(Charge("spring", "00" * 32, "votes/1", 0, (Gaussian(5.0),)), at=5.0)
    shown = json.loads(command("ledger", "--verify", "--home", home, "--json"))
    assert shown["verified_entries"] == len(shown["entries"]) >= 2
    assert 0 < shown["spent_epsilon"] < 4
    command("ledger", "--backup", tmp_path / "backup.jsonl", "--home", home)
    assert Ledger.verify(tmp_path / "backup.jsonl") == shown["verified_entries"]
    command("ledger", "--backup", tmp_path / "backup.jsonl", "--home", home, code=2)
    path = home / "ledger.jsonl"
    path.write_text(path.read_text().replace("votes/1", "votes/2"))
    assert "does not fit the chain" in command("ledger", "--verify", "--home", home, code=3)


def test_pause_and_status(home):
    assert json.loads(command("status", "--home", home, "--json", code=6))["running"] is False
    assert json.loads(command("pause", "--home", home, "--json"))["paused"]
    assert not json.loads(command("resume", "--home", home, "--json"))["paused"]
    assert "not running" in command("status", "--home", home, code=6)


def test_leaving_keeps_the_ledger(home):
    command("revoke", "--home", home, code=2)
    command("revoke", "--coordinator", "--home", home)
    assert not (home / "keys/tls.pem").exists()
    assert (home / "ledger.jsonl").exists()
    assert "joined no coordinator" in command("run", "--home", home, code=2) if "grpc" not in sys.modules else True


def test_check_names_every_problem_with_its_remedy(tmp_path, authority):
    home = tmp_path / "h"
    command("init", "alpha", "--home", home)
    findings = json.loads(command("check", "--offline", "--home", home, "--json", code=2))["findings"]
    problems = {each["name"]: each for each in findings if each["grade"] == "problem"}
    assert set(problems) == {"policy", "budget", "data", "certificate"}
    assert all(each["remedy"] for each in problems.values())


def grades(home, code=0):
    found = json.loads(command("check", "--home", home, "--json", code=code))["findings"]
    return {each["name"].split()[0]: (each["grade"], each["says"]) for each in found}


def test_check_dials_the_coordinator(tmp_path, authority):
    with ScriptedCoordinator(authority) as coordinator:
        home = joined(tmp_path, authority, address=coordinator.address)
        found = grades(home)
        assert found["coordinator"][0] == "ok"
        assert found["embedder"][0] == "ok"
    found = grades(home, code=2)
    assert found["port"][0] == "problem"


def test_check_tells_another_server_from_a_wrong_name(tmp_path, authority):
    with ScriptedCoordinator(Authority()) as foreign:
        home = joined(tmp_path, authority, address=foreign.address)
        grade, says = grades(home, code=2)["TLS"]
        assert grade == "problem"
        assert "certificate is not accepted" in says


def test_check_of_a_name_that_does_not_exist(tmp_path, authority):
    home = joined(tmp_path, authority, address="no-such-host.invalid:7443")
    assert grades(home, code=2)["name"][0] == "problem"


@pytest.mark.parametrize(("days", "grade", "code"), [(-1, "problem", 2), (5, "warning", 0), (60, "ok", 0)])
def test_check_of_the_certificates_end(tmp_path, authority, days, grade, code):
    from datetime import UTC, datetime, timedelta

    begin = datetime.now(UTC) - timedelta(days=100)
    home = joined(tmp_path, authority, begin=begin, life=timedelta(days=100 + days, hours=1))
    found = json.loads(command("check", "--offline", "--home", home, "--json", code=code))["findings"]
    assert next(each["grade"] for each in found if each["name"] == "certificate") == grade


def test_check_of_proxies_modes_and_clock(home, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    (home / "status.json").write_text(json.dumps({"clock_offset_s": -600.0}))
    (home / "status.json").chmod(0o600)
    findings = json.loads(command("check", "--home", home, "--json", code=2))["findings"]
    found = {each["name"]: each for each in findings}
    assert found["proxy"]["grade"] == "warning"
    assert "600 s behind" in found["clock"]["says"]
    (home / "policy.json").chmod(0o644)
    assert "chmod 600" in command("check", "--offline", "--home", home, code=2)


def test_the_service_unit_runs_this_party(home, tmp_path):
    unit = tmp_path / "units" / "undersong-party.service"
    told = json.loads(command("install-service", "--path", unit, "--home", home, "--json"))
    text = unit.read_text()
    assert f"run --home {home} --log-format json" in text
    assert "ProtectSystem=strict" in text
    assert str(tmp_path / ".alpha.jsonl.undersong") in text
    assert told["next"][1] == "systemctl --user enable --now undersong-party"
    system = command("install-service", "--system", "--user", "undersong", "--print", "--home", home)
    assert "User=undersong" in system
    assert "CapabilityBoundingSet=" in system


def test_the_outbox_is_shown_and_decoded(home, tmp_path):
    from undersong_client.outbox import Outbox
    from undersong_protocol.messages import federation_pb2 as fed

    data = fed.Reply(version=1, pending=fed.Pending(reason="waits")).SerializeToString()
    Outbox(home / "outbox.sqlite").record(data, at=1.0, kind="pending", answer_to="propose", run="spring")
    assert "spring" in command("outbox", "--home", home)
    entry = json.loads(command("outbox", "--entry", 1, "--raw", tmp_path / "raw", "--home", home))
    assert entry["decoded"]["pending"]["reason"] == "waits"
    assert (tmp_path / "raw").read_bytes() == data


LIGHT = """
import sys, undersong_client.cli
from typer.testing import CliRunner
result = CliRunner().invoke(undersong_client.cli.app, {arguments!r}, standalone_mode=False)
heavy = ("torch", "sentence_transformers", "openai", "undersong_server", "undersong", "transformers",
         "sklearn", "dp_accounting", "scipy", "pyarrow")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize(
    "arguments", [["requests"], ["status"], ["reject", "spring"], ["pause"], ["outbox"], ["--help"]]
)
def test_light_commands_load_nothing_heavy(home, arguments):
    proposed(home)
    if arguments != ["--help"]:
        arguments = [*arguments, "--home", str(home)]
    code = LIGHT.format(arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout


def test_no_command_of_the_hospital_loads_server_code_or_a_model_provider(home):
    proposed(home)
    code = LIGHT.format(arguments=["preview", "spring", "--home", str(home)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.strip().splitlines()[-1]
    for name in ("torch", "openai", "undersong_server", "undersong"):
        assert f"'{name}'" not in loaded


def test_an_error_is_one_line_and_an_exit_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "undersong_client.cli", "status", "--home", str(tmp_path / "nowhere")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
