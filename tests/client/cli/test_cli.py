"""``undersong-party`` as people and scripts type it: every step by flags, exit codes, JSON, light starts."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from tests.doubles.authority import Authority
from tests.doubles.coded import raises
from tests.doubles.coordinator_stream import ScriptedCoordinator
from tests.doubles.forgeries import FORGERIES, harmless
from tests.doubles.pace import examples
from tests.doubles.party_home import HashedEmbedder, command, joined, write_notes
from tests.doubles.processes import free_port
from tests.doubles.tiny_bert import write_bert
from tests.doubles.typed import built, typed
from undersong_client.cli import options
from undersong_client.cli.app import app
from undersong_client.cli.data import _bar
from undersong_client.consent import policy as policy_file
from undersong_client.consent import preview
from undersong_client.consent.approvals import Proposal, Proposals
from undersong_client.consent.people import Person
from undersong_client.consent.sheet import Sheet, Surroundings
from undersong_client.home import PartyHome, write_json
from undersong_client.link import checks
from undersong_client.operations import daemon, runs
from undersong_client.storage import store
from undersong_client.storage.checkpoints import LedgerSpending
from undersong_client.storage.outbox import Outbox
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.models.embedding import Embedder, TextLengths
from undersong_common.privacy import accounting, impact
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge, PlanPrice
from undersong_common.program import entry
from undersong_protocol import statistics
from undersong_protocol.agreement.enrolment import EnrolmentRequest, party_fingerprint
from undersong_protocol.agreement.manifest import Manifest, plan_words
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, Unit, plan_sums
from undersong_protocol.agreement.receipt import check_receipt
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram, TopQVotes

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path, authority):
    return joined(tmp_path, authority)


def proposed(
    home: Path,
    *,
    epsilon: float = 1.5,
    run: str = "spring",
    unit: Unit = "user",
    max_per_unit: int = 4,
    task: dict[str, object] | None = None,
    post_quantum: bool = True,
    rate: float = 1.0,
) -> Manifest:
    """A run of five parties, as the daemon would have kept it."""
    from undersong_client import keys

    opened = PartyHome(home)
    quorum = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1, post_quantum=post_quantum)
    requests = [
        SumRequest("labels", LabelHistogram(2)),
        *(SumRequest(f"votes/{n}", TopQVotes(q=8, candidates=60 * n, labels=2), sampling_rate=rate) for n in (1, 2, 3)),
    ]
    own = Member("alpha", keys.identity(opened).public_key().public_bytes_raw())
    others = [Member(name, bytes([number]) * 32) for number, name in enumerate(("beta", "delta", "gamma", "omega"), 2)]
    plan = plan_sums(requests, Privacy(epsilon, 1e-5, unit, max_per_unit), quorum)
    task = {"name": "triage", "description": "a note", "labels": ["good", "bad"], **(task or {})}
    manifest = Manifest(run, task, "wasp", Embedder.load().fingerprint, (own, *others), plan)
    Proposals(opened).receive(manifest, at=time.time())
    return manifest


def spoken(manifest: Manifest) -> str:
    """The plan's words as preview shows them, in threes."""
    nine = plan_words(manifest.hash).split()
    return "   ".join(" ".join(nine[start : start + 3]) for start in (0, 3, 6))


def test_init_makes_a_party_that_trusts_no_coordinator(tmp_path):
    made = json.loads(command("init", "alpha", "--home", tmp_path / "h", "--json"))
    assert made["party"] == "alpha"
    assert len(made["fingerprint"].split("-")) == 8
    policy = json.loads(command("policy", "show", "--home", tmp_path / "h", "--json"))
    assert policy["coordinators"] == []
    assert policy["statistics"] == []
    said = command("policy", "show", "--home", tmp_path / "h")
    assert "allows nothing: no kind of question is allowed; no budget is set" in said
    assert policy["run_epsilon"] == 0
    command("init", "Alpha!", "--home", tmp_path / "other", code=2)
    assert not (tmp_path / "other").exists()
    assert "not an empty folder" in command("init", "alpha", "--home", tmp_path / "h", code=2)


def test_enrolment_with_a_wrong_fingerprint_keeps_nothing(tmp_path, authority):
    home, package = tmp_path / "h", tmp_path / "package"
    package.write_bytes(authority.package_bytes("alpha"))
    command("init", "alpha", "--home", home)
    out = ("--request-out", tmp_path / "request")
    assert "none was stated" in command("enroll", package, *out, "--home", home, code=2)
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
    assert "no valid signature" in command("enroll", "--grant", tmp_path / "grant", "--home", home, code=2)
    (tmp_path / "grant").write_bytes(authority.grant(request))
    command("enroll", "--grant", tmp_path / "grant", "--home", home)
    assert "this party waits for no certificate" in command(
        "enroll", "--grant", tmp_path / "grant", "--home", home, code=2
    )
    foreign = tmp_path / "foreign"
    foreign.write_bytes(Authority("other").package_bytes("alpha"))
    assert "belongs to the coordinator" in command("enroll", foreign, "--fingerprint", wrong, "--home", home, code=2)


def test_enroll_makes_the_party_s_folder_only_with_the_right_fingerprint(tmp_path, authority):
    home, package = tmp_path / "party", tmp_path / "p"
    package.write_bytes(authority.package_bytes("alpha"))
    right = authority.package("alpha").fingerprint
    out = ("--request-out", tmp_path / "request", "--home", home)
    command("enroll", package, "--fingerprint", right.replace(right[0], "z"), *out, code=2)
    assert not home.exists()
    assert f"made {home}" in command("enroll", package, "--fingerprint", right, *out)
    assert PartyHome(home).settings.party == "alpha"
    keys = sorted((home / "keys").iterdir())
    before = [each.read_bytes() for each in keys if "identity" in each.name]
    assert f"made {home}" not in command("enroll", package, "--fingerprint", right, *out)  # the same party once more
    assert [each.read_bytes() for each in keys if "identity" in each.name] == before != []


def test_data_add_sets_the_budget_where_one_is_given(home, tmp_path):
    notes = write_notes(tmp_path / "further.jsonl")
    add = ("data", "add", notes, "--label-field", "label", "--user-field", "patient", "--new-version", "--home", home)
    command(*add, "--delta", "1e-4", code=2)
    said = command(*add, "--epsilon", 3, "--delta", "1e-4", "--per-run", 1, "--question", "counts")
    allowed = json.loads(command("policy", "show", "--home", home, "--json"))["statistics"]
    assert allowed == list(statistics.of_question("counts"))
    assert "epsilon 3 at delta 0.0001 in all; at most 1 a run" in said
    allowed = json.loads(command("budget", "show", "--home", home, "--json"))
    assert (allowed["epsilon"], allowed["delta"], allowed["per_run"]) == (3, 1e-4, 1)


def test_preview_without_a_name_shows_the_only_waiting_plan(home):
    with raises(ConfigurationError, "which-run"):
        runs.only_waiting(home)
    proposed(home, run="spring")
    assert "run 'spring'" in command("preview", "--home", home)
    proposed(home, run="summer")
    with raises(ConfigurationError, "which-run"):
        runs.only_waiting(home)


def test_plan_refused_by_the_policy_is_shown_with_reason_and_remedy(home):
    refused = proposed(home, epsilon=2.5)
    Proposals(PartyHome(home)).refused(refused, "the policy allows 2")
    Proposals(PartyHome(home)).suspended(refused.hash, is_suspended=True)  # it has failed at the coordinator
    listed, shown = command("requests", "--home", home), command("preview", "--home", home)
    assert "the policy allows 2" in listed
    assert "the policy allows 2" in shown
    assert "undersong-party preview shows what to ask the operator for" in " ".join(listed.split())
    remedy = shown.split("Remedy: ")[1]
    assert " ".join(remedy.split()).startswith("ask the operator (coordinator 'coordinator')")
    assert "plan the run with a smaller epsilon (privacy.epsilon)" in " ".join(remedy.split())


def test_enrolment_packages_for_other_parties_or_expired_are_refused(tmp_path, authority):
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
    assert "exactly one of PACKAGE, --grant and --renew" in command("enroll", "--home", home, code=2)


def test_certificate_renewal_request_carries_no_token(home, tmp_path, authority):
    command("enroll", "--renew", "--request-out", tmp_path / "renewal", "--home", home)
    request = EnrolmentRequest.parse((tmp_path / "renewal").read_bytes())
    assert request.renewal
    before = (home / "keys/tls.pem").read_bytes()
    (tmp_path / "grant").write_bytes(authority.grant(request))
    said = command("enroll", "--grant", tmp_path / "grant", "--home", home)
    assert said.startswith("the certificate is renewed: it is valid until 20")
    assert "enrolled" not in said
    assert (home / "keys/tls.pem").read_bytes() != before


@pytest.mark.slow
def test_teacher_model_is_set_by_a_command_checked_and_removed_again(home, tmp_path):
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
    assert "exactly one of FOLDER" in command("data", "teacher-model", bert, "--none", "--home", home, code=2)
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


def test_preview_sheet_has_sentences_with_one_epsilon_and_one_budget_bar(home):
    manifest = proposed(home)
    value = json.loads(command("preview", "spring", "--home", home, "--json"))
    assert value["objections"] == []
    assert value["privacy"]["epsilon_if_all_others_collude"] > 1.5
    assert [release["releases"] for release in value["releases"]] == [1, 3]
    guess = value["privacy"]["best_guess"]
    assert guess == accounting.best_guess(manifest.plan.charged_events())
    events = manifest.plan.events_with(2)
    one_more = accounting.best_guess(events), impact.certainty(accounting.epsilon(events, 1e-5), 1e-5)
    record_fields = "one text, one label and one patient's number, as the file has them; ask IT what the texts hold"
    beside = Surroundings(
        largest_epsilon=2.0,
        units_cut=0,
        one_more=one_more,
        is_undecided=True,
        record_fields=record_fields,
        shared="neither",
    )
    page = preview.sheet_page(Sheet.from_json(value), beside)
    open_ = [section for section in page.sections if not section.folded]
    questions = [
        "Which records",
        "Who decides here",
        "What leaves",
        "The risk of this run",
        "The risk of all runs",
        "What can be undone",
        "What next",
    ]
    assert [name for name, _ in open_[1].figures] == questions
    means = dict(open_[1].figures)["The risk of this run"]
    assert f"the random noise, right in at most {math.ceil(100 * guess)} of 100 cases" in means
    assert "only while at most 1 other hospital helps the operator." in means
    assert f"With bad luck in this one run, in up to {impact.cases(impact.certainty(1.5, 1e-5))}, but over" in means
    assert "A hospital helps the operator if it shares its numbers" in repr(open_[2])
    assert "epsilon" not in repr(open_)  # it is folded
    (bar,) = [section.bar for section in open_ if section.bar is not None]
    assert bar == (0.0, value["cost"]["after"] / 4.0)
    folded = repr([section for section in page.sections if section.folded])
    for other in (value["cost"]["alone"], value["cost"]["worst_after"]):
        assert f"epsilon {other:.4g}" in folded or f"-> {other:.4g}" in folded
    lines = page.lines()
    assert lines.index("FOR A SPECIALIST") > lines.index("What you can do")
    words = command("preview", "spring", "--home", home)
    assert "\n".join(lines) in words
    for expected in (
        "how many of your records have each label",
        "the operator has not stated it; take it as published to everyone",
        f"you (alpha)    {party_fingerprint('alpha', manifest.roster[0].identity)}\n",
        f"gamma          {party_fingerprint('gamma', manifest.roster[3].identity)}   ",
        spoken(manifest),
        "approve 'spring' WORDS",
    ):
        assert expected in words, words


def test_best_guess_at_epsilon_4_is_right_in_68_of_100_cases():
    """Epsilon 4 at delta 1e-5 of one Gaussian: right in 68 of 100 cases, hardly ever surer than 99.1 %."""
    guess = accounting.best_guess([Gaussian(1 / accounting.gaussian_mu(4.0, 1e-5))])
    assert math.ceil(100 * guess) == 68
    assert "in all but at most 2 of 100,000 runs like it, a guess is right in at most 99.1" in impact.worst_guess(
        4.0, 1e-5
    )


def test_preview_counts_long_texts_and_those_read_only_in_part(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    texts = ("short", "word " * 50, "word " * 51, "word " * 400, "word " * 401)  # one of each, by HashedEmbedder
    notes = tmp_path / "long.jsonl"
    notes.write_text("".join(json.dumps({"text": text, "label": "good", "patient": text[:9]}) + "\n" for text in texts))
    home = joined(tmp_path, authority, notes=notes)
    proposed(home)
    warnings = json.loads(command("preview", "spring", "--home", home, "--json"))["warnings"]
    assert TextLengths(texts=5, long=3, cut=1).words in warnings


@pytest.mark.slow
def test_preview_of_a_subsampled_run_says_that_stopping_refunds_nothing(home):
    said = "does not refund"
    proposed(home)
    assert said not in command("preview", "spring", "--home", home)
    manifest = proposed(home, run="autumn", rate=0.5)
    assert said in command("preview", "autumn", "--home", home)
    assert not json.loads(command("preview", "autumn", "--home", home, "--json"))["privacy"]["stopping_refunds"]
    ledger = Ledger.read(PartyHome(home).ledger)
    first = manifest.plan.sums[0]
    charge = Charge("autumn", manifest.hash.hex(), first.name, 0, (first.event(),), "", (Gaussian(1.0),))
    ledger.begin(charge, PlanPrice(tuple(manifest.plan.charged_events()), tuple(manifest.plan.alone_events())))
    ledger.charge(charge)
    ledger.close("autumn", manifest.hash.hex())
    shown = command("ledger", "--home", home)
    assert "1 *" in shown
    assert "Charged at its whole plan" in shown


def test_preview_names_missing_post_quantum_masks_and_policy_may_refuse(home):
    proposed(home, post_quantum=False)
    words = command("preview", "spring", "--home", home)
    assert "Post-quantum masks are OFF" in words
    assert "Your hospital REFUSES it" in words
    assert "'sometimes' is unknown" in command(
        "policy", "set", "--require-post-quantum", "sometimes", "--home", home, code=2
    )
    said = command("policy", "set", "--require-post-quantum", "never", "--home", home)
    assert "require_post_quantum: never" in said
    assert "minimum_colluders: default" in said
    words = command("preview", "spring", "--home", home)
    assert "Post-quantum masks are OFF" in words
    assert "Your hospital REFUSES it" not in words


def test_a_policy_demands_a_number_of_assumed_colluders(home):
    proposed(home)
    command("policy", "set", "--minimum-colluders", "few", "--home", home, code=2)
    said = command("policy", "set", "--minimum-colluders", "3", "--home", home)
    assert "minimum_colluders: 3" in said
    assert "Your hospital REFUSES it" in command("preview", "spring", "--home", home)
    command("policy", "set", "--minimum-colluders", "default", "--home", home)
    assert "Your hospital REFUSES it" not in command("preview", "spring", "--home", home)


def test_plan_that_misfits_the_records_needs_despite_cautions_to_approve(home, tmp_path):
    manifest = proposed(home)
    other = write_notes(tmp_path / "other.jsonl", labels=("good", "neither-of-both"))
    fields = ("--label-field", "label", "--user-field", "patient", "--new-version", "--home", home)
    command("data", "add", other, *fields)
    words = "6 of 12 records have a label that the task does not list"
    shown = command("preview", "spring", "--home", home)
    assert words in shown
    assert "the operator is told nothing of it" in shown
    assert "neither-of-both" not in shown
    approve = ("approve", "spring", plan_words(manifest.hash), "--home", home)
    assert words in command(*approve, code=2)
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    command(*approve, "--despite-cautions")
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


def test_data_add_dry_run_names_twelve_labels_and_counts_the_others(home, tmp_path):
    notes = write_notes(tmp_path / "codes.jsonl", records=40, labels=[f"code-{number:02d}" for number in range(20)])
    fields = ("--label-field", "label", "--user-field", "patient", "--dry-run", "--new-version", "--home", home)
    shown = command("data", "add", notes, *fields)
    assert "code-11 2 and 8 more (--json names all)" in shown
    assert "code-12 2" not in shown
    assert len(json.loads(command("data", "add", notes, *fields, "--json"))["labels"]) == 20


def test_standing_consent_is_checked_against_the_records_when_it_is_set(home, tmp_path):
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
    command("preview", first.hash.hex()[:10], "--home", home)
    command("approve", first.hash.hex()[:10], *plan_words(first.hash).split(), "--home", home)
    with raises(ConfigurationError, "long-comment"):
        runs.reject(home, "second", Person("Ada", comment="x" * 2001))
    assert Proposals(PartyHome(home)).find("second").decision == "pending"
    command("reject", "second", "--reason", "not now", "--home", home)
    assert "was rejected" in command("approve", "second", second.hash.hex(), "--home", home, code=2)
    decided = json.loads(command("revoke", "first", "--home", home, "--json"))
    assert (decided["decision"], decided["manifest"]) == ("revoked", first.hash.hex())
    assert "(not now)" in command("requests", "--home", home)
    assert "no run 'third'" in command("preview", "third", "--home", home, code=2)
    assert second.hash.hex()[:12] in command("requests", "--home", home)


def test_a_plan_that_was_changed_after_it_was_shown_is_not_approved(home):
    """The attack: epsilon 0.1 for users is shown; under the same name epsilon 2 for samples is proposed."""
    shown = proposed(home, epsilon=0.1)
    command("preview", "spring", "--home", home)
    changed = proposed(home, epsilon=2.0, unit="sample", max_per_unit=1)
    approve = ("approve", "spring")
    assert "which plan" in command(*approve, "--home", home, code=2)
    assert "CHANGED since: epsilon 0.1 -> 2; " in command(*approve, plan_words(shown.hash), "--home", home, code=3)
    assert "has another plan by now" in command(
        "approve", shown.hash.hex()[:12], plan_words(shown.hash), "--home", home, code=2
    )
    assert "are not the words" in command(*approve, "zebra " * 9, "--home", home, code=3)
    assert {each.decision for each in Proposals(PartyHome(home)).all()} == {"pending"}
    listed = command("requests", "--home", home)
    assert "REPLACED by another plan since" in listed
    assert "ANOTHER PLAN than before: epsilon 0.1 -> 2: worse, since a smaller number protects more" in listed
    assert "; who is protected user -> sample" in listed
    words = command("preview", "spring", "--home", home)
    assert "ANOTHER PLAN: number 2 under this name" in words
    assert "  - who is protected user -> sample" in words
    assert "THIS PLAN WAS REPLACED" in command("preview", shown.hash.hex()[:12], "--home", home)
    command(*approve, *plan_words(changed.hash).split(), "--home", home)
    decided = {each.manifest: each.decision for each in Proposals(PartyHome(home)).all()}
    assert decided == {shown.hash.hex(): "pending", changed.hash.hex(): "approved"}


def test_revoking_a_name_revokes_every_plan_approved_under_it(home):
    """The attack: two plans under one name were approved; the last is revoked, and the first is proposed again."""
    first = proposed(home, epsilon=1.0)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(first.hash), "--home", home)
    second = proposed(home, epsilon=0.5)
    assert "an earlier plan of this run stays approved" in command("reject", "spring", "--home", home)
    third = proposed(home, epsilon=0.6)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(third.hash), "--home", home)
    command("revoke", "spring", "--reason", "no more", "--home", home)
    decided = {each.manifest: each.decision for each in Proposals(PartyHome(home)).all()}
    assert decided == {
        first.hash.hex(): "revoked",
        second.hash.hex(): "rejected",
        third.hash.hex(): "revoked",
    }
    proposed(home, epsilon=1.0)  # the first once more: what was decided about it stands
    assert Proposals(PartyHome(home)).find("spring").decision == "revoked"


def test_plan_that_the_policy_refuses_cannot_be_approved(home):
    manifest = proposed(home, epsilon=2.5)
    said = command("approve", "spring", plan_words(manifest.hash), "--home", home, code=3)
    assert "the policy allows 2" in said
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"


def test_a_sheet_that_was_not_shown_or_has_changed_since_is_not_signed(home):
    """The attack: budget or cautions change between ``preview`` and ``approve``; the plan's words stay the same."""
    manifest = proposed(home)
    approve = ("approve", "spring", plan_words(manifest.hash), "--despite-cautions", "--home", home)
    assert "was not shown" in command(*approve, code=3)
    command("preview", "spring", "--home", home)
    command("policy", "set", "--two-people", "--home", home)
    assert "CHANGED since it was shown: the policy: no" in command(*approve, code=3)
    policy_file.change(PartyHome(home), two_people=False)
    command("budget", "set", "--epsilon", "40", "--delta", "1e-4", "--home", home)
    assert "CHANGED since it was shown: the budget (set anew, or charged by" in command(*approve, code=3)
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    command("preview", "spring", "--home", home)
    command(*approve)
    known = Proposals(PartyHome(home))
    assert known.sheet(known.find("spring")).cost.budget == 40
    sheet = next(home.glob("requests/*.sheet"))
    sheet.write_text(sheet.read_text().replace("40.0", "41.0"))
    assert known.sheet(known.find("spring")) is None  # it is not what was signed


def test_a_run_that_has_ended_cannot_be_approved(home):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    Proposals(PartyHome(home)).ended(manifest.hash)
    assert "has ended" in command("approve", "spring", plan_words(manifest.hash), "--home", home, code=2)
    assert "ended 20" in command("requests", "--home", home)
    assert "has ended" in command("revoke", "spring", "--home", home, code=2)
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"  # what was signed stays as it was
    assert "this run ended 20" in command("preview", "spring", "--home", home)


def test_finished_run_shows_its_signed_sheet_cost_and_receipt(home):
    manifest = proposed(home)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)
    signed = command("preview", "spring", "--home", home)
    assert "those that were signed" in signed
    decided = Proposals(PartyHome(home)).find("spring").decided_s
    command("budget", "set", "--epsilon", "40", "--delta", "1e-4", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)  # once more: nothing is signed anew
    assert Proposals(PartyHome(home)).find("spring").decided_s == decided
    assert command("preview", "spring", "--home", home) == signed
    ledger = Ledger.read(PartyHome(home).ledger)
    for planned in manifest.plan.sums:
        events = (planned.event(),), "", (planned.event_alone(manifest.plan.quorum),)
        charge = Charge("spring", manifest.hash.hex(), planned.name, 0, *events)
        ledger.begin(charge, PlanPrice(tuple(manifest.plan.charged_events()), tuple(manifest.plan.alone_events())))
        ledger.charge(charge)
        ledger.send(charge, "00" * 32)
    under_way = command("preview", "spring", "--home", home)
    assert under_way.partition("This run has")[0] == signed.partition("This run has")[0]
    assert "Your numbers have left for 4 of 4 sums." in under_way
    ledger.close("spring", manifest.hash.hex())
    Proposals(PartyHome(home)).ended(manifest.hash)
    finished = command("preview", "spring", "--home", home)
    assert "REFUSES" not in finished
    for part in (
        signed.split("What is written and published")[1].split("More on what is asked")[0],
        signed.split("this run, in your budget")[1].split("What leaves, sum by sum")[0].rstrip(),
        *re.findall(r"[0-9a-f]{4}(?:-[0-9a-f]{4}){7}", signed.partition("the operator  ")[2].partition("\n")[2]),
    ):
        assert part in finished  # as it was signed
    assert finished.startswith("The run 'spring' has used the records of alpha\n")
    for question in ("May the run", "Before you decide", "would be left", "What you can do", "over the telephone"):
        assert question not in finished
    ran = impact.cases(accounting.best_guess(manifest.plan.charged_events()))
    assert f"right in at most {ran} of 100 cases" in finished
    assert "they name this hospital as one that took part" in " ".join(finished.split())
    assert "your budget, before -> after epsilon 0 ->" in " ".join(finished.split())
    (cost,) = ledger.costs(1e-4)
    assert f"(epsilon {cost.epsilon:.4g}, as it ran)" in finished
    first_screen, _, annex = finished.partition("FOR A SPECIALIST")
    assert f"epsilon {cost.epsilon:.4g}" in first_screen.partition("What is written and published")[0]
    assert "4 releases, at the budget's delta 0.0001" in annex
    value = json.loads(command("preview", "spring", "--json", "--home", home))
    assert (value["objections"], value["ended"]["cost"]["epsilon"]) == ([], cost.epsilon)
    receipt = value["ended"]["receipt"]
    stated = check_receipt(manifest, "alpha", receipt["body"].encode(), bytes.fromhex(receipt["signature"]))
    assert (stated.closed, len(stated.counted)) == (True, 4)
    assert receipt["signature"] in annex
    assert receipt["signature"] not in first_screen
    policy_file.change(PartyHome(home), run_epsilon=0.1)  # what the guard would refuse today says nothing about it
    assert command("preview", "spring", "--home", home) == finished


def test_ended_run_without_a_signed_sheet_shows_cost_and_no_refusal(home):
    manifest = proposed(home)
    requests = Proposals(PartyHome(home))
    requests.decide(requests.find("spring"), "approved", at=time.time(), reason="standing policy")
    Ledger.read(PartyHome(home).ledger).close("spring", manifest.hash.hex())
    assert "REFUSES" in command("preview", "spring", "--home", home)  # it has not ended for all that its people know
    requests.ended(manifest.hash)
    finished = command("preview", "spring", "--home", home)
    assert "REFUSES" not in finished
    assert "It has cost nothing" in finished
    assert "before -> after" not in finished


def test_printed_consent_sheet_is_one_html_page_with_escaped_strings(home, tmp_path):
    forged = "<script>alert(1)</script> & more"
    manifest = proposed(home, task={"description": forged, "purpose": forged, "generators": ["big (gpt at api.x)"]})
    page = tmp_path / "sheet.html"
    said = command("preview", "spring", "--print", page, "--home", home)
    assert "who writes the texts             big (gpt at api.x)" in said
    assert f"wrote {page}" in said
    written = page.read_text()
    assert "<script" not in written
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in written
    assert "default-src 'none'" in written
    for part in (
        *spoken(manifest).split("   "),
        "before -&gt; after",
        "Signature",
        "<details",
        "svg",
        "(you)",
        "patient",
    ):
        assert part in written, part
    assert "exists already" in command("preview", "spring", "--print", page, "--home", home, code=2)


def test_preview_epsilons_before_and_after_share_one_delta(home):
    proposed(home)
    first = json.loads(command("preview", "spring", "--home", home, "--json"))["cost"]
    assert first["before"] == 0
    assert first["after"] == first["alone"]
    assert (first["budget"], first["delta"]) == (4.0, 1e-4)
    ledger = Ledger.read(home / "ledger.jsonl")
    earlier = Charge("earlier", "00" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
    ledger.charge(earlier, at=5.0)
    ledger.send(earlier, "aa" * 32, at=5.0)
    second = json.loads(command("preview", "spring", "--home", home, "--json"))["cost"]
    assert second["before"] == pytest.approx(ledger.spent(1e-4))
    assert first["after"] < second["after"] < second["before"] + second["alone"]  # Gaussian noise composes
    assert second["left_after"] == pytest.approx(4.0 - second["after"])
    assert second["worst_after"] > second["worst_before"] > second["before"]


def test_each_weak_budget_or_policy_choice_gets_one_warning_sentence(home):
    (delta,) = typed_warnings(home, "budget", "set", "--epsilon", 4, "--delta", 0.5)
    assert delta.startswith("warning: delta 0.5 allows anything to happen once in 2 times")
    assert delta.removeprefix("warning: ") in command("check", "--offline", "--json", "--home", home, code=None)
    assert typed_warnings(home, "budget", "set", "--epsilon", 4, "--delta", "1e-6") == []
    standing, alone = typed_warnings(home, "policy", "set", "--approval", "standing", "--minimum-parties", 1)
    assert "signed without anybody looking" in standing
    assert "your numbers may be opened without those of any other hospital" in alone
    findings = json.loads(command("check", "--offline", "--home", home, "--json", code=None))["findings"]
    warned = [finding["says"] for finding in findings if finding["grade"] == "warning" and finding["name"] == "policy"]
    assert [f"warning: {says}" for says in warned] == [standing, alone]
    assert typed_warnings(home, "policy", "set", "--approval", "each", "--minimum-parties", 3) == []


def typed_warnings(home, *arguments):
    done = typed(app, *arguments, "--home", home, standalone_mode=False)
    assert done.exception is None, done.exception
    return [line for line in done.stderr.split("\n") if line.startswith("warning: ")]


def test_parties_that_the_policy_names_must_take_part(home):
    manifest = proposed(home)
    beta = party_fingerprint("beta", manifest.roster[1].identity)
    set_ = ("policy", "set", "--home", home, "--require-party")
    command(*set_, f"beta={beta.upper().replace('-', ' ')}")
    assert json.loads(command("policy", "show", "--json", "--home", home))["required_parties"] == [f"beta={beta}"]
    shown = command("preview", "spring", "--home", home)
    assert f"beta (named by your policy)   {beta}" in shown
    assert "REFUSES" not in shown
    for wrong, words in (
        (f"zeta={beta}", "and zeta takes no part"),
        (f"gamma={beta}", "and gamma has the fingerprint"),  # an impostor under a known name
    ):
        command(*set_, wrong)
        assert words in command("approve", "spring", plan_words(manifest.hash), "--home", home, code=3)
    for malformed in ("beta", "beta=1234", f"={beta}", f"B\x1b={beta}"):
        assert "\x1b" not in command(*set_, malformed, code=2)
    assert "contradict" in command(*set_, f"beta={beta}", "--require-nobody", code=2)
    command("policy", "set", "--require-nobody", "--home", home)
    command("preview", "spring", "--home", home)
    command("approve", "spring", plan_words(manifest.hash), "--home", home)


def stored(home: Path, text: str) -> None:
    """A string of a peer wherever this party's folder may hold one, unchecked, as a hand or an older version would."""
    request = Proposal(text, "00" * 32, 5.0, reason=text, method=text, objection=text, words=text)
    changed = dataclasses.replace(request, manifest="11" * 32, number=2, changes=(text,))
    facts = {
        "state": "connected",
        "address": "localhost:1",
        "coordinator_software": text,
        "problem": text,
        "answered": text,
        "answered_s": 1.0,
        "refused": [{"at_s": 1.0, "problem": text}],
        "changed": [{"run": text, "changes": [text]}],
        "cautions": {text: ["caution"]},
    }
    for path, value in (
        (home / "requests" / f"{request.manifest}.json", dataclasses.asdict(request)),
        (home / "requests" / f"{changed.manifest}.json", dataclasses.asdict(changed)),
        (home / "status.json", facts),
    ):
        path.write_text(json.dumps(value))
        path.chmod(0o600)
    with store.journal(home / "journal.sqlite").writing() as database:
        database.execute("DELETE FROM sent")
    Outbox(PartyHome(home)).record(b"bytes", at=1.0, kind="signature", run=text, query=text)


def test_strings_from_outside_cannot_forge_text_on_any_screen(home):
    commands = [["requests"], ["outbox"], ["status"]]
    commands += [[*each, "--json"] for each in commands]
    honest = None
    for text in ("honest", *FORGERIES[::4]):
        stored(home, text)
        screens = [command(*each, "--home", home, code=None).split("\n") for each in commands]
        for screen in screens:
            assert all(harmless(line.replace("\t", "")) for line in screen), (text, screen)
        lengths = [len(screen) for screen in screens]
        honest = honest or lengths
        assert lengths == honest, text  # no line is forged


@pytest.mark.parametrize("forged", ["a\x1b[2Jb", "a\nok       budget: no limit"])
def test_coordinator_s_answer_to_check_cannot_forge_screen_text(home, forged, monkeypatch):
    monkeypatch.setattr(checks, "_ask_health", lambda *_: (forged, None))
    screen = command("check", "--home", home, code=2).split("\n")
    assert all(map(harmless, screen))
    assert sum(line.startswith("ok       budget") for line in screen) == 1


def test_strings_from_outside_cannot_forge_error_lines(home, capsys):
    for forged in FORGERIES[::4]:
        stored(home, forged)
        for arguments in (["preview", forged], ["approve", forged, "zebra"], ["reject", forged], ["revoke", forged]):
            with pytest.raises(SystemExit):
                entry.run(lambda given=arguments: built(app).main([*given, "--home", str(home)], standalone_mode=False))
            said = capsys.readouterr()
            assert harmless((said.out + said.err).replace("\n", "")), arguments
            assert len(said.err.split("\n")) <= 3, arguments


def test_ledger_command_shows_verifies_and_backs_up_the_ledger(home, tmp_path):
    ledger = Ledger.read(home / "ledger.jsonl")
    ledger.charge(Charge("spring", "00" * 32, "votes/1", 0, (Gaussian(5.0),)), at=5.0)
    shown = json.loads(command("ledger", "--verify", "--home", home, "--json"))
    assert shown["verified_entries"] == len(shown["entries"]) >= 2
    assert 0 < shown["spent_epsilon"] < 4
    path = home / "ledger.jsonl"
    delta = Ledger.read(path).budget.delta
    assert impact.total(shown["spent_epsilon"], delta, composed=True) in command("ledger", "--home", home)
    command("ledger", "--backup", tmp_path / "backup.jsonl", "--home", home)
    assert Ledger.verify(tmp_path / "backup.jsonl") == shown["verified_entries"]
    command("ledger", "--backup", tmp_path / "backup.jsonl", "--home", home, code=2)
    path.write_text(path.read_text().replace("votes/1", "votes/2"))
    assert "does not fit the chain" in command("ledger", "--verify", "--home", home, code=3)


def test_ledger_command_shows_one_state_although_a_run_charges_meanwhile(home, monkeypatch):
    """A run charges between two of them."""
    ledger = Ledger.read(home / "ledger.jsonl")
    ledger.charge(Charge("spring", "00" * 32, "votes/1", 0, (Gaussian(5.0),)))
    of = LedgerSpending.of

    def charging(*arguments):
        spending = of(*arguments)
        ledger.charge(Charge("spring", "00" * 32, "votes/2", 0, (Gaussian(5.0),)))
        return spending

    monkeypatch.setattr(LedgerSpending, "of", charging)
    shown = json.loads(command("ledger", "--verify", "--home", home, "--json"))
    assert shown["spent_epsilon"] == shown["runs"][-1]["spent"]
    assert shown["verified_entries"] == len(shown["entries"])
    assert shown["runs"][-1]["releases"] == sum(entry["kind"] == "charge" for entry in shown["entries"])


def test_status_shows_pause_resume_and_a_daemon_that_is_not_running(home):
    assert json.loads(command("status", "--home", home, "--json", code=6))["running"] is False
    assert json.loads(command("pause", "--home", home, "--json"))["paused"]
    assert not json.loads(command("resume", "--home", home, "--json"))["paused"]
    assert "not running" in command("status", "--home", home, code=6)


@pytest.mark.parametrize(
    ("facts", "silent"),
    [
        ({"heard_s": -5.0, "written_s": -1.0}, ""),
        ({"heard_s": -40.0, "written_s": -1.0}, "the coordinator was last heard 40 s ago"),
        ({"heard_s": -75.0, "written_s": -70.0}, "the daemon itself was last heard 1 min 10 s ago"),
        ({}, ""),  # as a daemon of an earlier release has written it
    ],
    ids=["heard", "a coordinator that is stopped", "a daemon that is stopped", "no times"],
)
def test_status_says_since_when_the_coordinator_is_silent(home, monkeypatch, facts, silent):
    now_s = time.time()
    monkeypatch.setattr(daemon.time, "time", lambda: now_s)
    stated = {"state": "connected", "longest_silence_s": 32.0} | {key: now_s + ago for key, ago in facts.items()}
    write_json(home / "status.json", stated)
    with PartyHome(home).running():
        said = json.loads(command("status", "--home", home, "--json", code=6 if silent else 0))["silence"]
        assert said.startswith(silent)
        assert bool(said) == bool(silent)
        assert said in command("status", "--home", home, code=None)


@pytest.mark.parametrize("data", [b"", bytes(200), b'{"state": "conn', b"[]"], ids=["empty", "zeros", "cut", "a list"])
def test_status_with_a_damaged_status_file_still_says_what_is_known(home, data):
    replace_file(home / "status.json", data)
    assert "not running" in command("status", "--home", home, code=6)
    with PartyHome(home).running():
        said = command("status", "--home", home, code=6)
    assert "status.json: is damaged" in said
    assert "writes it anew" in said


def test_leaving_a_coordinator_keeps_the_ledger(home, monkeypatch):
    command("revoke", "--home", home, code=2)
    command("revoke", "--coordinator", "--home", home)
    assert not (home / "keys/tls.pem").exists()
    assert (home / "ledger.jsonl").exists()
    monkeypatch.setattr(entry, "only_tls_1_3", lambda: None)  # it asks for a process that has not imported gRPC
    assert "joined no coordinator" in command("run", "--home", home, code=2)


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


def test_check_command_connects_to_the_coordinator(tmp_path, authority):
    with ScriptedCoordinator(authority) as coordinator:
        home = joined(tmp_path, authority, address=coordinator.address)
        found = grades(home)
        assert found["coordinator"][0] == "ok"
        assert found["embedder"][0] == "ok"
    found = grades(home, code=2)
    assert found["port"][0] == "problem"


def test_check_reports_a_server_whose_certificate_is_not_accepted(tmp_path, authority):
    with ScriptedCoordinator(Authority()) as foreign:
        home = joined(tmp_path, authority, address=foreign.address)
        grade, says = grades(home, code=2)["TLS"]
        assert grade == "problem"
        assert "certificate is not accepted" in says


@pytest.mark.parametrize(
    ("error", "asked_first"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "telephone the operator first"),
        (TimeoutError("timed out"), "ask your network team"),
        (OSError(113, "No route to host"), "ask your network team"),
    ],
)
def test_check_says_whom_to_ask_first_when_a_port_cannot_be_reached(
    tmp_path, authority, monkeypatch, error, asked_first
):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr(checks.socket, "create_connection", refused)
    coordinator_home = joined(tmp_path, authority, address="localhost:9")
    (finding,) = checks._dial_directly(PartyHome(coordinator_home), None, "localhost", 9)
    assert finding.grade == "problem"
    assert asked_first in finding.remedy
    assert ("nothing listens" in finding.remedy) is isinstance(error, ConnectionRefusedError)


@pytest.mark.parametrize(
    ("spent", "budget", "used_up", "bar"),
    [
        (0.0, 4.0, False, "." * 10),
        (3.9, 4.0, False, "#########."),
        (4.0 - 9.2e-07, 4.0, True, "#" * 10),
        (5.0, 4.0, True, "#" * 10),
        (3.0, math.inf, False, "." * 10),
    ],
)
def test_a_budget_of_which_next_to_nothing_is_left_is_said_to_be_used_up(spent, budget, used_up, bar):
    words = options.spending_words(LedgerSpending(1e-5, spent, budget, max(0.0, budget - spent)))
    assert ("too little for another run" in words) is used_up
    assert ("practically no protection" in words) is math.isinf(budget)
    assert _bar(spent, budget) == bar


def test_check_reports_a_host_name_that_does_not_exist(tmp_path, authority):
    home = joined(tmp_path, authority, address="no-such-host.invalid:7443")
    assert grades(home, code=2)["name"][0] == "problem"


PROXY_VARIABLES = [*checks.PROXY_VARIABLES, *checks.EXEMPTION_VARIABLES, *checks.UNREAD_PROXY_VARIABLES]


def test_check_distinguishes_a_dead_proxy_from_a_dead_coordinator(tmp_path, authority, monkeypatch):
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    dead = f"http://user:secret@127.0.0.1:{free_port()}"
    with ScriptedCoordinator(authority) as coordinator:
        home = joined(tmp_path, authority, address=coordinator.address)
        monkeypatch.setenv("https_proxy", dead)
        found = grades(home, code=2)
        assert found["proxy"][0] == "problem"
        assert {"TLS", "port", "coordinator"}.isdisjoint(found)
        assert "secret" not in str(found)
        for exception in ("example.org, LOCALHOST", "127.0.0.0/8,host"):
            monkeypatch.setenv("no_proxy", exception)
            found = grades(home)
            assert (found["proxy"][0], found["coordinator"][0]) == ("ok", "ok"), exception
        monkeypatch.setenv("no_grpc_proxy", "example.org")  # counts instead of no_proxy
        assert grades(home, code=2)["proxy"][0] == "problem"
        for name in PROXY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTPS_PROXY", dead)  # which gRPC does not read
        found = grades(home)
        assert (found["proxy"][0], found["coordinator"][0]) == ("ok", "ok")


@pytest.mark.parametrize(
    ("excepted", "grade"), [("10.0.0.0/8", "ok"), ("10.1.2.3", "ok"), ("", "warning"), ("11.0.0.0/8,10.1", "warning")]
)
def test_check_interprets_the_no_proxy_variable_as_the_connection_does(
    tmp_path, authority, monkeypatch, excepted, grade
):
    home = joined(tmp_path, authority, address="10.1.2.3:7443")
    monkeypatch.setenv("grpc_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_grpc_proxy", excepted)
    findings = json.loads(command("check", "--offline", "--home", home, "--json"))["findings"]
    assert next(each["grade"] for each in findings if each["name"] == "proxy") == grade


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b"\x1b[2J 20\r\n\r\n", b""])
def test_check_names_a_proxy_that_refuses(tmp_path, authority, monkeypatch, answer):
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    class Refusing(StreamRequestHandler):
        def handle(self):
            self.rfile.readline()
            self.wfile.write(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Refusing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        home = joined(tmp_path, authority, address="coordinator.example:7443")  # only the proxy could know it
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
        found = grades(home, code=2)
        proxy.shutdown()
    assert found["proxy"][0] == "problem"
    assert harmless(found["proxy"][1])
    assert "name" not in found


@pytest.mark.parametrize(("days", "grade", "code"), [(-1, "problem", 2), (5, "warning", 0), (60, "ok", 0)])
def test_check_grades_the_certificate_by_the_days_that_are_left(tmp_path, authority, days, grade, code):
    from datetime import UTC, datetime, timedelta

    begin = datetime.now(UTC) - timedelta(days=100)
    home = joined(tmp_path, authority, begin=begin, life=timedelta(days=100 + days, hours=1))
    found = json.loads(command("check", "--offline", "--home", home, "--json", code=code))["findings"]
    assert next(each["grade"] for each in found if each["name"] == "certificate") == grade


def test_check_reports_a_proxy_loose_file_modes_and_a_wrong_clock(home, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    (home / "status.json").write_text(json.dumps({"clock_offset_s": -600.0}))
    (home / "status.json").chmod(0o600)
    findings = json.loads(command("check", "--home", home, "--json", code=2))["findings"]
    found = {each["name"]: each for each in findings}
    assert found["proxy"]["grade"] == "warning"
    assert "600 s behind" in found["clock"]["says"]
    (home / "policy.json").chmod(0o644)
    assert "chmod 600" in command("check", "--offline", "--home", home, code=2)


def test_outbox_command_lists_and_decodes_sent_messages(home, tmp_path):
    from undersong_protocol.wire.messages import federation_pb2 as fed

    data = fed.Reply(version=1, pending=fed.Pending(reason="waits")).SerializeToString()
    Outbox(PartyHome(home)).record(data, at=1.0, kind="pending", answer_to="propose", run="spring")
    assert "spring" in command("outbox", "--home", home)
    entry = json.loads(command("outbox", "--entry", 1, "--raw", tmp_path / "raw", "--json", "--home", home))
    assert entry["decoded"]["pending"]["reason"] == "waits"
    assert (tmp_path / "raw").read_bytes() == data


LIGHT = """
import json, sys, undersong_client.cli.app
from typer.testing import CliRunner
for command in json.loads(sys.argv[2]):
    CliRunner().invoke(undersong_client.cli.app.app, [*command, "--home", sys.argv[1]], standalone_mode=False)
    print(json.dumps([command, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
HEAVY = {
    *("torch", "sentence_transformers", "openai", "undersong_server", "undersong", "transformers"),
    *("sklearn", "dp_accounting", "scipy", "pyarrow"),
}


@pytest.mark.slow
def test_commands_import_no_model_code_and_light_ones_no_heavy_library(home):
    proposed(home)
    light = [["--help"], ["requests"], ["status"], ["reject", "spring"], ["pause"], ["outbox"]]
    commands = json.dumps([*light, *[["preview", "spring"]] * examples(0, 1)])
    started = [sys.executable, "-c", LIGHT, str(home), commands]
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    for command_, loaded in map(json.loads, done.stdout.splitlines()):
        allowed = set() if command_ in light else {"scipy", "dp_accounting"}
        assert HEAVY & set(loaded) <= allowed, command_


@pytest.mark.slow
def test_an_error_is_one_line_and_an_exit_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "undersong_client.cli.app", "status", "--home", str(tmp_path / "nowhere")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_status_shows_why_the_daemon_refuses_to_start(home):
    (home / "policy.json").write_text("{}")
    started = [sys.executable, "-m", "undersong_client.cli.app", "run", "--home", str(home)]
    done = subprocess.run(started, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    said = command("status", "--home", home, code=6)
    assert "the daemon refuses to start" in said
    assert "last problem: " in said
    assert "is not signed by this party's key" in said
    assert "remedy: " in said
    assert json.loads(command("status", "--home", home, "--json", code=6))["state"] == "the daemon refuses to start"
