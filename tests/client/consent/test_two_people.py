"""The rule of two people at a terminal, and the one function that tells what a changed policy loosens."""

import json
import shutil
import time
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.cli.test_cli import proposed, spoken
from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder, command, joined
from tests.doubles.terminal import type_from
from undersong_client import keys
from undersong_client.consent import policy, policy_file, two_people
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.people import ROLES_OF_TWO, Person, PersonalDecision, check_another
from undersong_client.consent.policy import HospitalPolicy, changed, loosened
from undersong_client.consent.two_people import check_one_of_two, give_duty
from undersong_client.home import PartyHome, PartySettings
from undersong_client.operations import rules
from undersong_common.errors import ConfigurationError, MachineFault, PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_common.pages.store import FILE_NAME, AuditLog
from undersong_common.program import owner, uptime
from undersong_protocol.agreement.words import opened_numbers

POLICY = HospitalPolicy(
    coordinators=("aa",),
    statistics=("votes",),
    units=("user",),
    minimum_parties=4,
    run_epsilon=1.0,
    total_epsilon=2.0,
    total_delta=1e-5,
    declared_units=100,
    required_parties=("beta=1a2b-3c4d-5e6f-7a8b-9c0d-1e2f-3a4b-5c6d",),
    minimum_colluders=1,
)
LOOSER = {
    "coordinators": ("aa", "bb"),
    "statistics": ("votes", "labels"),
    "units": ("user", "sample"),
    "minimum_parties": 3,
    "run_epsilon": 1.5,
    "total_epsilon": 3.0,
    "total_delta": 1e-4,
    "total_parts": 2,
    "approval": "standing",
    "two_people": False,
    "declared_units": 0,
    "required_parties": (),
    "require_post_quantum": "never",
    "minimum_colluders": 0,
}
STRICTER = {
    "coordinators": (),
    "statistics": (),
    "units": (),
    "minimum_parties": 5,
    "run_epsilon": 0.5,
    "total_epsilon": 1.0,
    "total_delta": 1e-6,
    "approval": "each",
    "two_people": True,
    "declared_units": 200,
    "require_post_quantum": "always",
    "minimum_colluders": 2,
}


def test_loosening_tests_cover_every_rule_of_the_policy():
    assert set(LOOSER) == {rule.name for rule in fields(HospitalPolicy)}


@pytest.mark.parametrize("rule", LOOSER)
def test_change_that_loosens_one_rule_counts_even_if_others_are_stricter(rule):
    before = replace(POLICY, two_people=rule == "two_people", approval="each")
    rest = {} if rule in ("minimum_parties", "total_epsilon", "run_epsilon") else {"minimum_parties": 9}
    (loose,) = loosened(before, replace(before, **{rule: LOOSER[rule]}, **rest))
    assert loose.startswith("who decides: " if rule in ("approval", "two_people") else f"{rule.replace('_', ' ')}: ")
    assert loose in changed(before, replace(before, **{rule: LOOSER[rule]}))


@given(st.sets(st.sampled_from(sorted(STRICTER))))
def test_tightening_policy_rules_loosens_nothing_and_undoing_it_does(rules):
    after = replace(POLICY, **{rule: STRICTER[rule] for rule in rules if rule != "approval"})
    assert loosened(POLICY, after) == ()
    assert bool(loosened(after, POLICY)) == bool(rules - {"approval", "require_post_quantum"})


@pytest.mark.parametrize(
    ("before", "after", "looser"),
    [("default", 0, True), ("default", 1, False), (1, "default", True), (0, "default", False)],
)
def test_lower_minimum_of_colluders_counts_as_loosening_for_any_size(before, after, looser):
    changed_policy = replace(POLICY, minimum_colluders=after)
    assert bool(loosened(replace(POLICY, minimum_colluders=before), changed_policy)) == looser


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


@pytest.mark.heavy
def test_two_approvers_at_a_terminal_are_two_accounts_of_the_machine(home, monkeypatch):
    manifest = proposed(home, run="spring")
    command("policy", "set", "--two-people", "--home", home)
    command("preview", "spring", "--home", home)

    def typed(uid, *words, code=0):
        type_from(monkeypatch, uid)
        return command(*words, "--home", home, code=code)

    def approve(uid, *options, code=0):
        return typed(uid, "approve", "spring", *spoken(manifest).split(), *options, "--despite-cautions", code=code)

    assert "counts for nothing" in approve(30001, "--role", "IT", code=2)
    assert "anybody may be behind root" in approve(0, "--role", "IT", code=3)
    assert "no account nobody-here" in typed(30003, "policy", "duty", "nobody-here", "IT", "--terminal", code=2)
    typed(30003, "policy", "duty", "#30001", "privacy officer", "--terminal")
    typed(30003, "policy", "duty", "#30002", "IT", "--terminal")
    duties = [entry for entry in AuditLog(PartyHome(home).page / FILE_NAME).entries() if entry.what == "policy duty"]
    assert "#30002 at the terminal: IT, by #30003 at the terminal" in duties[1].about
    assert "to themselves" in typed(30001, "policy", "duty", "#30001", "IT", "--terminal", code=2)
    approve(30001, "--name", "Ada")
    approve(30001, "--name", "Bert", "--role", "IT", code=2)  # another name and role are no other person
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    approve(30002, "--name", "Bert")
    request = Proposals(PartyHome(home)).find("spring")
    assert request.decision == "approved"
    assert [person.account for person in request.people] == ["#30001 at the terminal", "#30002 at the terminal"]
    log = [entry for entry in AuditLog(PartyHome(home).page / FILE_NAME).entries() if entry.what == "approve"]
    assert [entry.who for entry in log] == ["#30001 at the terminal", "#30002 at the terminal"]
    assert "(account #30001, at a terminal of this machine" in log[0].about
    assert "at a terminal of this machine, role given by the administrator #30003 at the terminal" in log[0].about

    loosen = ("policy", "set", "--one-person")
    assert "gave rights" not in typed(30003, *loosen, code=2)  # no role
    for uid in (30001, 30001):
        assert "nothing is changed yet" in typed(uid, *loosen, code=3)
    assert json.loads(typed(30001, "policy", "show", "--json"))["two_people"]
    typed(30002, *loosen)
    assert not json.loads(typed(30001, "policy", "show", "--json"))["two_people"]


@pytest.fixture
def party(tmp_path, monkeypatch):
    """A party whose policy asks for two people, whoever they are, and an older one that asks for one."""
    home = PartyHome.create(tmp_path / "home", PartySettings(party="alpha"))
    keys.create(home)
    policy.write(home, replace(POLICY, run_epsilon=1.5))
    shutil.copy(home.policy, tmp_path / "older.json")
    policy.write(home, replace(POLICY, two_people=True))
    monkeypatch.setattr(two_people, "check_one_of_two", lambda *_: None)
    return home


@pytest.mark.parametrize("namespace", ["_is_in_user_namespace", "_is_time_shifted"])
def test_page_running_in_a_user_or_time_namespace_accepts_no_decision(party, monkeypatch, namespace):
    """The attack: a page in a time namespace, in which the day after an act has passed."""
    for name in ("_is_in_user_namespace", "_is_time_shifted"):
        monkeypatch.setattr(owner, name, lambda name=name: name == namespace)
    with raises(PrivacyRefusal, "not-identified"):
        check_one_of_two(party, ADA, [])
    command("page", "--home", party.path, code=3)
    policy.write(party, replace(policy.read(party), two_people=False))
    two_people.check_namespace(party)


ADA, BERT = (Person(name, "IT", account=name, log_in="password") for name in ("ada", "bert"))


def set_policy(party, person, **changes):
    """Sets the policy as the command and the page do; returns whether it is set, or waits for a second person."""
    try:
        rules._change(party, changes, lambda _: None, person)
    except two_people.WaitsForSecondPerson:
        return False
    return True


def test_wish_for_a_looser_policy_dated_in_the_future_does_not_count(party, monkeypatch):
    assert not set_policy(party, ADA, run_epsilon=1.5)
    now = uptime.instant(time.time)
    assert two_people.pending_wish(party).person == ADA
    for passed_s in (-3600.0, 86401.0):
        for later in (
            uptime.Instant(now.at, now.boot, now.up + passed_s),
            uptime.Instant(now.at + passed_s, "another", now.up),
        ):
            monkeypatch.setattr(two_people, "instant", lambda _clock, later=later: later)
            assert two_people.pending_wish(party) is None


def test_no_clock_setting_revives_an_expired_wish_for_a_looser_policy(party, monkeypatch):
    """The attack: a month later, one person's clock says that it is the day of the other one's wish."""
    monkeypatch.setattr(two_people, "instant", lambda _clock: uptime.Instant(1e9, "boot", 100.0))
    assert not set_policy(party, ADA, run_epsilon=1.5)
    for clock_s in (1e9, 1e9 + 60, 2e9):
        monkeypatch.setattr(two_people, "instant", lambda _clock, at=clock_s: uptime.Instant(at, "boot", 86501.0))
        assert two_people.pending_wish(party) is None
        monkeypatch.setattr(two_people, "instant", lambda _clock, at=clock_s: uptime.Instant(at, "boot", 160.0))
        assert two_people.pending_wish(party).person == ADA
    monkeypatch.setattr(two_people, "instant", lambda _clock: uptime.Instant(1e9, "boot", 86501.0))
    assert not set_policy(party, BERT, run_epsilon=1.5), "and so it is the first one"


@pytest.mark.parametrize("change", [{"signature": ""}, {"at_s": 5e9}, {"change": "ab"}, {"person": asdict(BERT)}, None])
def test_unsigned_wish_for_a_looser_policy_does_not_count(party, change):
    assert not set_policy(party, ADA, run_epsilon=1.5)
    path = party.page / two_people.WISH_FILE
    wish = json.loads(path.read_text())
    if change is None:
        del wish["signature"]
    path.write_text(json.dumps({**wish, **(change or {})}))
    assert two_people.pending_wish(party) is None
    assert not set_policy(party, BERT, run_epsilon=1.5), "and so it is the first one"


def test_used_wish_for_a_looser_policy_cannot_be_used_again(party):
    assert not set_policy(party, BERT, run_epsilon=1.5)
    wish = (party.page / two_people.WISH_FILE).read_bytes()
    assert set_policy(party, ADA, run_epsilon=1.5)
    assert set_policy(party, BERT, run_epsilon=1.0)
    (party.page / two_people.WISH_FILE).write_bytes(wish)
    assert not set_policy(party, ADA, run_epsilon=1.5)
    assert policy.read(party).run_epsilon == 1.0


def put_back(party):
    shutil.copy(party.path.parent / "older.json", party.policy)


def test_older_policy_file_that_replaces_the_current_one_is_refused(party):
    put_back(party)
    for _ in range(2):
        with raises(PrivacyRefusal, "policy-put-back"):
            policy.read(party)
    assert policy.read(party, latest=False).run_epsilon == 1.5


@pytest.mark.parametrize(("parties", "threshold"), [(3, 5), (5, 3)])
def test_former_policy_with_parties_and_threshold_takes_the_larger_number(party, parties, threshold):
    numbers = {"minimum_parties": parties, "minimum_threshold": threshold}
    policy_file.write_fields(party, policy_file.read_fields(party) | numbers)
    assert policy.read(party).minimum_parties == 5


def test_policy_read_while_it_is_replaced_is_the_new_one(party, monkeypatch):
    before = party.policy.read_bytes()
    policy.write(party, replace(POLICY, two_people=True, minimum_parties=9))
    after = party.policy.read_bytes()
    party.policy.write_bytes(before)  # the log names the new one already
    monkeypatch.setattr(time, "sleep", lambda _: party.policy.write_bytes(after))
    assert policy.read(party).minimum_parties == 9


def test_policy_signed_by_an_earlier_version_is_logged_only_once(party):
    (party.page / FILE_NAME).unlink()
    for _ in range(2):
        policy_file.note_first(party)
    assert [entry.what for entry in AuditLog(party.page / FILE_NAME).entries()] == ["policy signed"]
    put_back(party)
    with raises(PrivacyRefusal, "policy-put-back"):
        policy.read(party)


def test_two_people_set_the_policy_anew_where_an_older_one_was_put_back(party):
    put_back(party)
    for _ in range(2):
        assert not set_policy(party, ADA, minimum_parties=9), "one person who sets anything signs the older one anew"
    assert set_policy(party, BERT, minimum_parties=9)
    assert policy.read(party).minimum_parties == 9


def test_one_person_sets_the_policy_anew_after_the_two_people_rule_ended(party):
    assert not set_policy(party, ADA, two_people=False)
    assert set_policy(party, BERT, two_people=False)
    put_back(party)
    with raises(PrivacyRefusal, "policy-put-back"):
        policy.read(party)
    assert set_policy(party, ADA, run_epsilon=1.5)
    assert policy.read(party).run_epsilon == 1.5


def test_a_policy_that_cannot_be_written_leaves_the_last_one_in_force(party, monkeypatch):
    def full(*_):
        raise MachineFault("no room is left", "make room", code="no-room")

    with monkeypatch.context() as disk:
        disk.setattr(policy_file, "write_json", full)
        with raises(MachineFault, "no-room"):
            policy.write(party, replace(POLICY, two_people=True, minimum_parties=9))
    assert policy.read(party).minimum_parties == POLICY.minimum_parties


def test_policy_without_the_two_people_rule_writes_no_audit_log(tmp_path):
    home = PartyHome.create(tmp_path / "home", PartySettings(party="alpha"))
    keys.create(home)
    for epsilon in (1.0, 1.5):
        policy.write(home, replace(POLICY, run_epsilon=epsilon))
    assert not home.page.exists()


def test_text_in_the_audit_log_cannot_pass_for_a_signed_policy(party):
    before = policy_file.last_signed(party)
    log = AuditLog(party.page / FILE_NAME)
    log.note(
        "ada", "comment", f'"what":"policy signed" {json.dumps({"what": "policy signed", "about": "00, one person"})}'
    )
    assert policy_file.last_signed(party) == before
    with (party.page / FILE_NAME).open("ab") as file:
        file.write(b'{"about":"00, one person","hash":"ab","what":"policy signed"}')  # a line that a crash cut off
    assert policy_file.last_signed(party) == before


@pytest.mark.heavy
def test_trusting_another_coordinator_needs_two_people(home, tmp_path):
    party = PartyHome(home)
    policy.change(party, two_people=True)
    command("revoke", "--coordinator", "--home", home)
    package = tmp_path / "alpha.package"
    from undersong_protocol.agreement.enrolment import Package

    fingerprint = Package.parse(package.read_bytes()).fingerprint
    refused = command("enroll", package, "--fingerprint", fingerprint, "--home", home, code=3)
    assert "the rule of two people counts accounts of people" in refused
    assert policy.read(party).coordinators == ()
    assert not party.coordinator.exists()


def test_page_account_and_machine_account_are_not_two_people():
    ada = Person("Ada", "privacy officer", account="ada", log_in="password")
    bert = Person("Bert", "IT", account="bert at the terminal", log_in="terminal")
    with raises(ConfigurationError, "same-person"):
        check_another([ada], bert, ("privacy officer", "IT"))


@pytest.mark.parametrize("name", ["Ada", "ADA", "ada"])
def test_one_name_in_capital_or_small_letters_is_not_two_people(name):
    ada = Person("Ada", "privacy officer", account="ada", log_in="password")
    with raises(ConfigurationError, "same-person"):
        check_another([ada], Person(name, "IT", account="bert", log_in="password"), ROLES_OF_TWO)


@pytest.mark.parametrize(
    "behind",
    [{"account": "cleo"}, {"issuer": "https://id.example", "subject": "7"}, {"let_in_by": "root"}],
    ids=["account", "provider", "let in"],
)
def test_two_accounts_of_one_person_are_not_two_people(behind):
    ada = Person("Ada", "privacy officer", account="ada", log_in="password")
    bert = Person("Bert", "IT", account="bert", log_in="password")
    check_another([ada], bert, ROLES_OF_TWO)
    with raises(ConfigurationError, "same-person"):
        check_another([replace(ada, **behind)], replace(bert, **behind), ROLES_OF_TWO)


def test_person_and_the_account_they_let_in_today_are_not_two_people():
    """The attack: one with an account of the page lets another's in from a terminal, and decides by both."""
    ada = Person("Ada", "privacy officer", account="ada", log_in="password")
    bert = Person("Bert", "IT", account="bert", log_in="link", let_in_by="ada at the terminal")
    for approver, person in ((ada, bert), (bert, ada)):
        with raises(ConfigurationError, "same-person"):
            check_another([approver], person, ROLES_OF_TWO)
    check_another([replace(ada, let_in_by="cleo at the terminal")], bert, ROLES_OF_TWO)


def test_two_people_rule_accepts_no_decision_if_the_audit_log_was_changed(home):
    party = PartyHome(home)
    give_duty(party, "ada", "IT", by=("root",))
    log = AuditLog(party.page / FILE_NAME)
    log.note("ada", "policy set", "a rule: 1 -> 2")
    log.path.write_bytes(log.path.read_bytes().replace(b"1 -> 2", b"1 -> 1"))
    with raises(PrivacyRefusal, "broken-chain"):
        check_one_of_two(party, Person("Ada", "IT", account="ada", log_in="password", role_from="root"), [])


def test_person_who_gave_a_role_cannot_be_one_of_two_approvers(home):
    party = PartyHome(home)
    give_duty(party, "ada", "privacy officer", by=("root",))
    ada = Person("Ada", "privacy officer", account="ada", log_in="password", role_from="root", let_in_by="root")
    root = Person("Root", "IT", account="root", log_in="password", role_from="cleo")
    check_one_of_two(party, ada, [])
    for person, others in ((root, []), (ada, [root])):
        with raises(PrivacyRefusal, "gave-rights"):
            check_one_of_two(party, person, others)


def test_decision_without_newer_fields_serialises_as_in_earlier_version():
    decided = PersonalDecision("Ada", "IT", "", "ada", decision="approved", at_s=5.0, sheet="ab")
    assert list(decided.to_json()) == ["name", "role", "comment", "account", "decision", "at_s", "sheet"]


def test_log_and_check_say_who_decides_before_and_after_a_policy_change(home):
    steps = {
        "nobody": ("--approval", "standing"),
        "one person": ("--approval", "each"),
        "two people": ("--two-people",),
    }
    for deciders, options in steps.items():
        command("policy", "set", *options, "--despite-cautions", "--home", home)
        findings = json.loads(command("check", "--offline", "--home", home, "--json", code=None))["findings"]
        assert any(f"decided by {deciders}" in finding["says"] for finding in findings), (deciders, findings)
    entries = AuditLog(PartyHome(home).page / FILE_NAME).entries()
    noted = [entry.about for entry in entries if entry.what == "policy set"]
    assert "who decides: nobody: every run within the policy is signed by itself -> one person" in noted[-2]
    assert "who decides: one person -> two people" in noted[-1]


@pytest.mark.parametrize("minimum_parties", [2, 4])
def test_check_says_with_how_many_other_hospitals_a_sum_is_opened(home, minimum_parties):
    command("policy", "set", "--minimum-parties", minimum_parties, "--despite-cautions", "--home", home)
    findings = json.loads(command("check", "--offline", "--home", home, "--json", code=None))["findings"]
    (says,) = (finding["says"] for finding in findings if "decided by" in finding["says"])
    assert opened_numbers(minimum_parties - 1) in says
